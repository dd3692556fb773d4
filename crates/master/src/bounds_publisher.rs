//! What each user may have is judged in the log (`cellwright_cell::bounds`), so the figures have to
//! be in it: the leading master says what its configuration has, whenever the cell has another
//! word. Masters of different configurations are noticed by their leaders' saying so in turn.

use crate::handle::MasterHandle;
use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::Command;
use cellwright_store::Role;
use std::time::Duration;
use tokio::time::timeout;

/// Between two looks of a leader when nothing else happens.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Looks for as long as the replica runs.
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
    let caller = handle.own_caller();
    match handle.submit(&caller, None, Command::SetBounds(bounds)).await {
        Ok(answer) => match answer.verdict {
            Ok(_) => tracing::info!(?bounds, "the cell has this master's limits for each user"),
            Err(refusal) => tracing::error!(%refusal, "the limits for each user were refused"),
        },
        // Said again at the next look.
        Err(error) => tracing::debug!(%error, "the limits for each user are not in the log yet"),
    }
}
