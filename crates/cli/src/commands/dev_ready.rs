//! What `cell dev` waits for before it says that it is there, so that the commands it prints work
//! at once: its machines are up, and its one user may run services as well as batch.

use super::quota::grant;
use crate::failure::Failure;
use cellwright_api::client::Client;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::resource::Resources;
use cellwright_master::handle::Handle;
use std::time::Duration;
use tokio::time::timeout;

/// Longer than any machine takes to be heard of; after that it is said who is there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Whom an open cell runs jobs as.
const USER: &str = "dev";

/// Waits until so many machines are up, or too long.
pub async fn until_up(handle: &Handle, wanted: usize) {
    let mut changes = handle.changed();
    let all_up = async {
        loop {
            changes.borrow_and_update();
            let state = handle.read().state;
            let up = state.machines().iter().filter(|(_, row)| row.status == MachineStatus::Up);
            if up.count() >= wanted || changes.changed().await.is_err() {
                return;
            }
        }
    };
    // They may come later; nothing depends on it but the first seconds.
    let _ = timeout(PATIENCE, all_up).await;
}

/// Production quota is backed by machines, so it can only be granted now. Half of what there is:
/// users that are added by hand shall get some too. What somebody has settled already stays.
pub async fn grant_production(client: &Client, handle: &Handle) -> Result<(), Failure> {
    let state = handle.read().state;
    let Ok(user) = Name::new(USER) else { return Ok(()) };
    let row = state.user_named(&user).and_then(|id| state.users().get(id));
    let is_settled = row.is_none_or(|row| row.quota.contains_key(&Band::Production));
    let all = state.machines().iter().map(|(_, row)| row.spec.capacity);
    let all = all.fold(Resources::ZERO, Resources::plus);
    if is_settled || all.cpu < 2 {
        return Ok(());
    }
    let Resources { cpu, ram, disk, disk_rate } = all;
    let half = Resources { cpu: cpu / 2, ram: ram / 2, disk: disk / 2, disk_rate: disk_rate / 2 };
    grant(client, &user, Band::Production, half).await
}
