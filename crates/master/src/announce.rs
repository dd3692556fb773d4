//! Who leads, said in this replica's log each time it changes. Consensus has a log of its own, in
//! its own words and at every step; an operator wants one line when something is different.

use crate::handle::Handle;
use cellwright_store::Status;

/// What is worth a line: who leads in which term, or that nobody does.
fn line(status: &Status) -> String {
    match status.leader_peer() {
        Some((id, _)) if id == status.id => format!("this replica leads, term {}", status.term),
        Some((_, peer)) => format!("{} leads, term {}", peer.name, status.term),
        None => "nobody leads".into(),
    }
}

/// Looks for as long as the replica runs.
pub async fn keep_announcing(handle: Handle) {
    let mut changes = handle.watch();
    let mut said = String::new();
    loop {
        let now = line(&changes.borrow_and_update());
        if now != said {
            tracing::info!("{now}");
            said = now;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
