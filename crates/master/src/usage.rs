//! Current usage of tasks, for readers. Agents report it with every poll; a replica keeps the last
//! report of each agent that it polls, and asks the others for theirs on request.
//!
//! Soft state and small: one sample a task. No decision depends on it (reservations have estimates
//! of their own, `cellwright_control::controller::reclaim`), so a replica that does not answer only
//! leaves blanks.
//!
//! Rejected: usage in the replicated log. It changes with every poll of every machine, and its
//! readers want the present, not a past that all replicas agree on.

use crate::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::MetricSeries;
use cellwright_messages::{TaskNumbers, TaskUsage};
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Older reports are not current.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How often others are asked while there are readers, and how long they may take.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The usage of one machine's tasks, as it is sent between replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUsage {
    pub machine: MachineId,
    /// Milliseconds since its agent reported it.
    pub age: u64,
    pub tasks: Vec<TaskUsage>,
    /// Numbers that they tell.
    #[serde(default)]
    pub numbers: Vec<TaskNumbers>,
}

#[derive(Clone, Debug)]
struct MachineReport {
    at: Instant,
    /// Sorted by task.
    tasks: Arc<[TaskUsage]>,
    /// Sorted by task.
    numbers: Arc<[TaskNumbers]>,
    /// Reported to this replica, not to another that passed it on.
    is_local: bool,
}

/// Usage at one moment.
#[derive(Clone, Debug, Default)]
pub struct UsageSnapshot(Arc<BTreeMap<MachineId, MachineReport>>);

impl UsageSnapshot {
    fn fresh_report(&self, machine: MachineId) -> Option<&MachineReport> {
        self.0.get(&machine).filter(|report| report.at.elapsed() < MAX_AGE)
    }

    /// All tasks of a machine together.
    #[must_use]
    pub fn of_machine(&self, machine: MachineId) -> Option<Resources> {
        let report = self.fresh_report(machine)?;
        Some(report.tasks.iter().fold(Resources::ZERO, |sum, task| sum.plus(task.used)))
    }

    #[must_use]
    pub fn of_task(&self, machine: MachineId, task: TaskId, attempt: u32) -> Option<Resources> {
        let report = self.fresh_report(machine)?;
        let at = report.tasks.binary_search_by_key(&task, |usage| usage.task).ok()?;
        let found = &report.tasks[at];
        (found.attempt == attempt).then_some(found.used)
    }

    /// Thousandths of a number that an attempt of a task told.
    #[must_use]
    pub fn number(
        &self,
        machine: MachineId,
        task: TaskId,
        attempt: u32,
        series: &MetricSeries,
    ) -> Option<u64> {
        self.told(machine, task, attempt)?.of(series)
    }

    /// Readings of its numbers that were refused.
    #[must_use]
    pub fn refused(&self, machine: MachineId, task: TaskId, attempt: u32) -> u64 {
        self.told(machine, task, attempt).map_or(0, |told| told.refused)
    }

    fn told(&self, machine: MachineId, task: TaskId, attempt: u32) -> Option<&TaskNumbers> {
        let report = self.fresh_report(machine)?;
        let at = report.numbers.binary_search_by_key(&task, |told| told.task).ok()?;
        Some(&report.numbers[at]).filter(|found| found.attempt == attempt)
    }
}

/// Caches the latest reports.
#[derive(Debug, Default)]
pub struct UsageCache {
    snapshot: RwLock<UsageSnapshot>,
    refreshed_at: RwLock<Option<Instant>>,
}

impl UsageCache {
    /// Records an agent's report.
    pub fn record_report(
        &self,
        machine: MachineId,
        tasks: Vec<TaskUsage>,
        numbers: Vec<TaskNumbers>,
    ) {
        self.insert(machine, Instant::now(), (tasks, numbers), true);
    }

    fn insert(
        &self,
        machine: MachineId,
        at: Instant,
        (mut tasks, mut numbers): (Vec<TaskUsage>, Vec<TaskNumbers>),
        is_local: bool,
    ) {
        numbers.sort_unstable_by_key(|told| told.task);
        tasks.sort_unstable_by_key(|usage| usage.task);
        let mut held = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        let newer = held.0.get(&machine).is_none_or(|known| known.at <= at);
        if newer {
            let report =
                MachineReport { at, tasks: tasks.into(), numbers: numbers.into(), is_local };
            Arc::make_mut(&mut held.0).insert(machine, report);
        }
    }

    #[must_use]
    pub fn read(&self) -> UsageSnapshot {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What agents reported to this replica, for another one that asks.
    #[must_use]
    pub fn local_usage(&self) -> Vec<MachineUsage> {
        let usage = self.read();
        let own =
            usage.0.iter().filter(|(_, report)| report.is_local && report.at.elapsed() < MAX_AGE);
        own.map(|(machine, report)| MachineUsage {
            machine: *machine,
            age: u64::try_from(report.at.elapsed().as_millis()).unwrap_or(u64::MAX),
            tasks: report.tasks.to_vec(),
            numbers: report.numbers.to_vec(),
        })
        .collect()
    }

    /// Asks the others, unless that was done just now.
    pub async fn refresh(&self, peers: &Arc<dyn Peers>, others: Vec<(NodeId, Peer)>) {
        if others.is_empty() || !self.is_due() {
            return;
        }
        let calls = others
            .into_iter()
            .map(|(id, peer)| timeout(CALL_TIMEOUT, peers.call(id, peer, PeerCall::Usage)));
        for answer in join_all(calls).await {
            // Replicas that do not answer leave blanks, and readers see them as such.
            let Ok(Ok(PeerAnswer::Usage(reports))) = answer else { continue };
            self.merge(reports);
        }
        self.drop_stale();
    }

    fn is_due(&self) -> bool {
        let mut refreshed_at = self.refreshed_at.write().unwrap_or_else(PoisonError::into_inner);
        let due = refreshed_at.is_none_or(|at| at.elapsed() >= REFRESH_INTERVAL);
        if due {
            *refreshed_at = Some(Instant::now());
        }
        due
    }

    fn merge(&self, reports: Vec<MachineUsage>) {
        for MachineUsage { machine, age, tasks, numbers } in reports {
            let Some(at) = Instant::now().checked_sub(Duration::from_millis(age)) else { continue };
            self.insert(machine, at, (tasks, numbers), false);
        }
    }

    /// Drops machines that are no longer reported.
    fn drop_stale(&self) {
        let mut held = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        if held.0.values().any(|report| report.at.elapsed() >= MAX_AGE) {
            Arc::make_mut(&mut held.0).retain(|_, report| report.at.elapsed() < MAX_AGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Token;
    use cellwright_cell::scale::MetricKind;
    use cellwright_store::CallError;
    use futures::future::BoxFuture;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn used(task: u32, attempt: u32, cpu: u64) -> TaskUsage {
        TaskUsage { task: TaskId(task), attempt, used: Resources { cpu, ..Resources::ZERO } }
    }

    fn cpu(found: Option<Resources>) -> Option<u64> {
        found.map(|resources| resources.cpu)
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_word_of_a_machine_counts_until_it_is_old() {
        let book = UsageCache::default();
        let queue = MetricSeries {
            name: Token::new("queue").unwrap(),
            kind: MetricKind::Value,
            labels: BTreeMap::new(),
        };
        let told = vec![(queue.clone(), 2500)];
        let numbers = TaskNumbers { task: TaskId(7), attempt: 2, told, refused: 0 };
        let used_by = vec![used(9, 1, 5), used(7, 2, 30)];
        book.record_report(MachineId(1), used_by, vec![numbers]);
        let usage = book.read();
        assert_eq!(cpu(usage.of_machine(MachineId(1))), Some(35));
        assert_eq!(cpu(usage.of_task(MachineId(1), TaskId(7), 2)), Some(30));
        assert_eq!(usage.of_task(MachineId(1), TaskId(7), 1), None, "of an earlier attempt");
        let number = |task, attempt| usage.number(MachineId(1), TaskId(task), attempt, &queue);
        assert_eq!([number(7, 2), number(7, 1), number(9, 1)], [Some(2500), None, None]);
        assert_eq!(usage.of_machine(MachineId(2)), None, "nobody said anything");
        book.record_report(MachineId(1), vec![], vec![]);
        assert_eq!(cpu(book.read().of_machine(MachineId(1))), Some(0), "nothing runs any more");
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(book.read().of_machine(MachineId(1)), None);
        assert_eq!(book.local_usage(), []);
    }

    struct Other(AtomicU32);

    impl Peers for Other {
        fn call(
            &self,
            _: NodeId,
            _: Peer,
            call: PeerCall,
        ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
            assert!(matches!(call, PeerCall::Usage));
            self.0.fetch_add(1, Ordering::Relaxed);
            let usage_of = |machine, age| MachineUsage {
                machine,
                age,
                tasks: vec![used(3, 1, 40)],
                numbers: vec![],
            };
            let all = vec![usage_of(MachineId(1), 900), usage_of(MachineId(2), 900)];
            Box::pin(async move { Ok(PeerAnswer::Usage(all)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_asked_now_and_then_and_do_not_overrule_newer_words() {
        let (book, peer) = (UsageCache::default(), Arc::new(Other(AtomicU32::new(0))));
        let peers: Arc<dyn Peers> = peer.clone();
        let others = || vec![(2, Peer { name: "m2".into(), address: "127.0.0.1:1".into() })];
        tokio::time::advance(Duration::from_secs(2)).await;
        book.record_report(MachineId(1), vec![used(3, 1, 10)], vec![]);
        book.refresh(&peers, others()).await;
        book.refresh(&peers, others()).await;
        assert_eq!(peer.0.load(Ordering::Relaxed), 1);
        let usage = book.read();
        assert_eq!(cpu(usage.of_machine(MachineId(1))), Some(10), "its own word is newer");
        assert_eq!(cpu(usage.of_machine(MachineId(2))), Some(40));
        assert_eq!(book.local_usage().len(), 1, "what was passed on is not passed on again");
        tokio::time::advance(REFRESH_INTERVAL).await;
        book.refresh(&peers, others()).await;
        assert_eq!(peer.0.load(Ordering::Relaxed), 2);
    }
}
