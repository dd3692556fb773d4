//! Raises the cell's feature level: behaviour of newer builds is switched on once every member's
//! build knows it, at one index of the log, and not before; members that are catching up and have
//! no vote yet are included. The leader asks the others which level they know and writes it to the
//! log; a replica that is down keeps the level where it is. A scheduler reads the log too, so one
//! that asks for leases and knows less keeps it as well. One that is away does not: nobody knows
//! whether it comes back, and it says then what it needs.
//!
//! With a level a format of what is written begins ([`cellwright_cell::encode`]).
//!
//! Rejected: a level in the configuration. An operator who upgrades five replicas forgets one file,
//! and the replica that reads it diverges.

use crate::handle::MasterHandle;
use cellwright_cell::command::Command;
use cellwright_store::{NodeId, Role};
use cellwright_supervise::lock;
use futures::future::{BoxFuture, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two checks of a leader. Only new features wait for it.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A scheduler that asked for no lease for so long is not waited for.
const SCHEDULER_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Schedulers that are remembered; beyond, the level stays until some have gone.
const MAX_SCHEDULERS: usize = 4096;

/// Which level each scheduler knows that is heard of.
#[derive(Debug, Default)]
pub struct SchedulerLevels(BTreeMap<String, (u32, Instant)>);

impl SchedulerLevels {
    /// A scheduler that knows levels up to `level` asked for its lease.
    pub fn heard(&mut self, scheduler: &str, level: u32, now: Instant) {
        self.0.retain(|_, (_, at)| now.duration_since(*at) < SCHEDULER_HEARTBEAT_TIMEOUT);
        if self.0.len() <= MAX_SCHEDULERS {
            self.0.insert(scheduler.to_owned(), (level, now));
        }
    }

    /// One that is heard of and does not know `level`, and what it knows.
    fn without(&self, level: u32, now: Instant) -> Option<(String, u32)> {
        let mut heard = self
            .0
            .iter()
            .filter(|(_, (_, at))| now.duration_since(*at) < SCHEDULER_HEARTBEAT_TIMEOUT);
        let found = heard.find(|(_, (known, _))| *known < level);
        found.map(|(scheduler, (known, _))| (scheduler.clone(), *known))
    }

    fn is_full(&self) -> bool {
        self.0.len() > MAX_SCHEDULERS
    }
}

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
    // Schedulers tell whom they take for the leader what they know: a new one waits for them.
    let mut led_in = None;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let status = handle.status();
        let leads_in = (status.role == Role::Leader).then_some(status.term);
        if leads_in.is_some() && led_in == leads_in {
            raise_level(&handle, probe.as_ref()).await;
        }
        led_in = leads_in;
    }
}

/// Raises the cell by one level if every member knows it; returns whether it did.
pub async fn raise_level(handle: &MasterHandle, probe: &dyn ReplicaProbe) -> bool {
    let Some(level) = next_level(handle, probe, handle.replicated().known_level()).await else {
        return false;
    };
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
    let next = handle.replicated().level() + 1;
    let status = handle.status();
    if next > known || status.role != Role::Leader {
        return None;
    }
    let behind = {
        let levels = lock(&handle.0.scheduler_levels);
        if levels.is_full() {
            return None;
        }
        levels.without(next, Instant::now())
    };
    if let Some((scheduler, known)) = behind {
        tracing::info!(scheduler, known, next, "the cell stays at its level");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_knows_less_is_waited_for_as_long_as_it_is_heard() {
        let (mut levels, start) = (SchedulerLevels::default(), Instant::now());
        levels.heard("s1", 2, start);
        assert_eq!(levels.without(2, start), None);
        levels.heard("s2", 1, start);
        assert_eq!(levels.without(2, start), Some(("s2".to_owned(), 1)));
        assert_eq!(levels.without(2, start + SCHEDULER_HEARTBEAT_TIMEOUT), None, "it went silent");
        levels.heard("s2", 2, start + Duration::from_secs(1));
        assert_eq!(levels.without(2, start + Duration::from_secs(1)), None, "it was upgraded");
    }
}
