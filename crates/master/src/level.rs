//! Raises the cell's feature level: behaviour of newer builds is switched on once every member's
//! build knows it, at one index of the log, and not before; members that are catching up and have
//! no vote yet are included. The leader asks the others which level they know and writes it to the
//! log; a replica that is down keeps the level where it is.
//!
//! Rejected: a level in the configuration. An operator who upgrades five replicas forgets one file,
//! and the replica that reads it diverges.

use crate::handle::MasterHandle;
use cellwright_cell::command::Command;
use cellwright_cell::state::LEVEL;
use cellwright_store::{NodeId, Role};
use futures::future::{BoxFuture, join_all};
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks of a leader. Only new features wait for it.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Replicas that are not members yet.
pub trait ReplicaProbe: Send + Sync + 'static {
    /// The identity of the replica that answers at this address.
    fn identify(&self, address: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>>;
}

/// The identity and level that a replica reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    pub id: NodeId,
    /// The newest level of log behaviour its build knows.
    pub level: u32,
}

/// Runs for as long as the replica runs.
pub async fn raise_level_periodically(handle: MasterHandle, probe: Arc<dyn ReplicaProbe>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        raise_level(&handle, probe.as_ref()).await;
    }
}

/// Raises the cell by one level if every member knows it; returns whether it did.
pub async fn raise_level(handle: &MasterHandle, probe: &dyn ReplicaProbe) -> bool {
    let Some(level) = next_level(handle, probe, LEVEL).await else { return false };
    let Ok(caller) = handle.own_caller() else { return false };
    let raised = handle.submit(&caller, None, Command::RaiseLevel { level }).await;
    raised.is_ok_and(|answer| answer.verdict.is_ok())
}

/// The level to raise the cell to: the next one, where this replica leads, its build knows levels
/// up to `known` and every other member's build knows the next too.
pub async fn next_level(
    handle: &MasterHandle,
    probe: &dyn ReplicaProbe,
    known: u32,
) -> Option<u32> {
    let next = handle.replicated().with(|view| view.state.level()) + 1;
    let status = handle.status();
    if next > known || status.role != Role::Leader {
        return None;
    }
    let others_here = status.members.iter().filter(|(id, _)| **id != status.id);
    let answers = join_all(others_here.map(|(id, member)| async move {
        let found = probe.identify(member.peer.address.clone()).await;
        match found {
            Ok(found) if found.id == *id && found.level >= next => true,
            Ok(found) => {
                let (replica, known) = (&member.peer.name, found.level);
                tracing::info!(replica, known, next, "the cell stays at its level");
                false
            }
            Err(why) => {
                tracing::debug!(replica = member.peer.name, why, "the cell stays at its level");
                false
            }
        }
    }));
    answers.await.into_iter().all(|knows| knows).then_some(next)
}
