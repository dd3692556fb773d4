//! Who leads, said in this replica's log each time it changes. Consensus has a log of its own, in
//! its own words and at every step; an operator wants one line when something is different.

use crate::handle::MasterHandle;
use cellwright_store::Status;

/// What is worth a line: who leads in which term, or that nobody does.
fn leader_text(status: &Status) -> String {
    match status.leader_peer() {
        Some((id, _)) if id == status.id => format!("this replica leads, term {}", status.term),
        Some((_, peer)) => format!("{} leads, term {}", peer.name, status.term),
        None => "nobody leads".into(),
    }
}

/// Looks for as long as the replica runs.
pub async fn log_leader_changes(handle: MasterHandle) {
    let mut changes = handle.watch();
    let mut logged = String::new();
    loop {
        let current = leader_text(&changes.borrow_and_update());
        if current != logged {
            tracing::info!("{current}");
            logged = current;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
