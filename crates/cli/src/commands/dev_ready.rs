//! What `cell dev` waits for before it reports that it is ready, so that the commands it prints
//! work at once: its machines are up, and its one user has quota to run services as well as batch
//! jobs.

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

/// Longer than any machine takes to register; after that, startup goes on without the missing ones.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The user as whom an open cell runs jobs.
const DEV_USER: &str = "dev";

/// Waits until this many machines are up, or until the timeout.
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
    // They may register later; only the first seconds depend on it.
    let _ = timeout(STARTUP_TIMEOUT, all_up).await;
}

/// Grants production quota, which is backed by machines and therefore can only be granted now. It
/// is half of the capacity, so that users added by hand can get some too. An existing grant stays.
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
