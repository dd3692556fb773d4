//! Logs each change of leadership in this replica's log. Consensus has log lines of its own, at
//! every step; an operator wants one line when something changes.

use crate::handle::MasterHandle;
use cellwright_store::Status;

/// The text of the line: which replica leads in which term, or that none does.
fn leader_text(status: &Status) -> String {
    match status.leader_peer() {
        Some((id, _)) if id == status.id => format!("this replica leads, term {}", status.term),
        Some((_, peer)) => format!("{} leads, term {}", peer.name, status.term),
        None => "nobody leads".into(),
    }
}

/// Runs for as long as the replica runs.
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
