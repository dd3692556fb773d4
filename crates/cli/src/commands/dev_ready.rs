//! What `cell dev` waits for before it says that it is there, so that the commands it prints work
//! at once: its machines are up, and its one user may run services as well as batch.

use super::quota::grant;
use crate::failure::Failure;
use cellwright_api::client::Client;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::resource::Resources;
use cellwright_master::handle::MasterHandle;
use std::time::Duration;
use tokio::time::timeout;

/// Longer than any machine takes to be heard of; after that it is said who is there.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Whom an open cell runs jobs as.
const DEV_USER: &str = "dev";

/// Waits until so many machines are up, or too long.
pub async fn wait_until_up(handle: &MasterHandle, machine_count: usize) {
    let mut changes = handle.watch_applied();
    let all_up = async {
        loop {
            changes.borrow_and_update();
            let state = handle.read().state;
            let up = state.machines().iter().filter(|(_, row)| row.status == MachineStatus::Up);
            if up.count() >= machine_count || changes.changed().await.is_err() {
                return;
            }
        }
    };
    // They may come later; nothing depends on it but the first seconds.
    let _ = timeout(STARTUP_TIMEOUT, all_up).await;
}

/// Production quota is backed by machines, so it can only be granted now. Half of what there is:
/// users that are added by hand shall get some too. What somebody has settled already stays.
pub async fn grant_production(client: &Client, handle: &MasterHandle) -> Result<(), Failure> {
    let state = handle.read().state;
    let Ok(user) = Name::new(DEV_USER) else { return Ok(()) };
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
