//! Publishes the limits for each user from the master's configuration into the replicated log. The
//! limits are enforced in the log (`cellwright_cell::bounds`), so the figures have to be in it: the
//! leading master writes those of its configuration whenever the cell has others. Masters with
//! different configurations show up because each new leader writes its own.

use crate::handle::MasterHandle;
use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::Command;
use cellwright_store::Role;
use std::time::Duration;
use tokio::time::timeout;

/// Time between two checks of a leader when nothing else happens.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Runs for as long as the replica runs.
pub async fn publish_bounds_periodically(handle: MasterHandle, bounds: Bounds) {
    let mut status = handle.replica().watch();
    loop {
        let leads = status.borrow_and_update().role == Role::Leader;
        if leads && handle.replicated().with(|view| *view.state.bounds() != bounds) {
            publish_bounds(&handle, bounds).await;
        }
        if let Ok(Err(_)) = timeout(CHECK_INTERVAL, status.changed()).await {
            return;
        }
    }
}

async fn publish_bounds(handle: &MasterHandle, bounds: Bounds) {
    let sent =
        async { handle.submit(&handle.own_caller()?, None, Command::SetBounds(bounds)).await };
    match sent.await {
        Ok(answer) => match answer.verdict {
            Ok(_) => tracing::info!(?bounds, "the cell has this master's limits for each user"),
            Err(rejection) => tracing::error!(%rejection, "the limits for each user were refused"),
        },
        // Retried at the next check.
        Err(error) => tracing::debug!(%error, "the limits for each user are not in the log yet"),
    }
}
