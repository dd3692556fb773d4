//! What tasks use at present, for readers. Agents say so with every poll; a replica keeps the last
//! word of each of its own share, and asks the others for theirs when somebody wants to see it.
//!
//! Soft and small: one sample a task. Nothing decides by it (reservations have estimates of their
//! own, `cellwright_control::controller::reclaim`), so a replica that does not answer only leaves
//! blanks.
//!
//! Rejected: usage in the replicated log. It changes with every poll of every machine, and whoever
//! reads it wants the present, not a past that all replicas agree on.

use crate::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_api::internal::TaskUsage;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::resource::Resources;
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// What is older says nothing of the present.
const KEPT: Duration = Duration::from_secs(60);
/// How often others are asked while somebody looks, and how long they may take.
const ASK_EVERY: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(1);

/// What the tasks of one machine used, as it travels between replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUsage {
    pub machine: MachineId,
    /// Milliseconds since its agent said so.
    pub age: u64,
    pub tasks: Vec<TaskUsage>,
}

#[derive(Clone, Debug)]
struct Said {
    at: Instant,
    /// Sorted by task.
    tasks: Arc<[TaskUsage]>,
    /// Said to this replica, not to another that passed it on.
    own: bool,
}

/// One moment of it.
#[derive(Clone, Debug, Default)]
pub struct Usage(Arc<BTreeMap<MachineId, Said>>);

impl Usage {
    fn said(&self, machine: MachineId) -> Option<&Said> {
        self.0.get(&machine).filter(|said| said.at.elapsed() < KEPT)
    }

    /// All tasks of a machine together.
    #[must_use]
    pub fn of_machine(&self, machine: MachineId) -> Option<Resources> {
        let said = self.said(machine)?;
        Some(said.tasks.iter().fold(Resources::ZERO, |sum, task| sum.plus(task.used)))
    }

    #[must_use]
    pub fn of_task(&self, machine: MachineId, task: TaskId, attempt: u32) -> Option<Resources> {
        let said = self.said(machine)?;
        let at = said.tasks.binary_search_by_key(&task, |usage| usage.task).ok()?;
        let found = &said.tasks[at];
        (found.attempt == attempt).then_some(found.used)
    }
}

/// Where it is kept.
#[derive(Debug, Default)]
pub struct UsageBook {
    held: RwLock<Usage>,
    asked: RwLock<Option<Instant>>,
}

impl UsageBook {
    /// What an agent said.
    pub fn note(&self, machine: MachineId, tasks: Vec<TaskUsage>) {
        self.enter(machine, Instant::now(), tasks, true);
    }

    fn enter(&self, machine: MachineId, at: Instant, mut tasks: Vec<TaskUsage>, own: bool) {
        tasks.sort_unstable_by_key(|usage| usage.task);
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let newer = held.0.get(&machine).is_none_or(|known| known.at <= at);
        if newer {
            let said = Said { at, tasks: tasks.into(), own };
            Arc::make_mut(&mut held.0).insert(machine, said);
        }
    }

    #[must_use]
    pub fn read(&self) -> Usage {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What agents said to this replica, for another one that asks.
    #[must_use]
    pub fn own(&self) -> Vec<MachineUsage> {
        let usage = self.read();
        let own = usage.0.iter().filter(|(_, said)| said.own && said.at.elapsed() < KEPT);
        own.map(|(machine, said)| MachineUsage {
            machine: *machine,
            age: u64::try_from(said.at.elapsed().as_millis()).unwrap_or(u64::MAX),
            tasks: said.tasks.to_vec(),
        })
        .collect()
    }

    /// Asks the others, unless that was done just now.
    pub async fn refresh(&self, peers: &Arc<dyn Peers>, others: Vec<(NodeId, Peer)>) {
        if others.is_empty() || !self.is_due() {
            return;
        }
        let asked = others
            .into_iter()
            .map(|(id, peer)| timeout(PATIENCE, peers.call(id, peer, PeerCall::Usage)));
        for answer in join_all(asked).await {
            // Whoever does not answer leaves blanks, which readers are shown as such.
            let Ok(Ok(PeerAnswer::Usage(told))) = answer else { continue };
            self.take_in(told);
        }
        self.forget();
    }

    fn is_due(&self) -> bool {
        let mut asked = self.asked.write().unwrap_or_else(PoisonError::into_inner);
        let due = asked.is_none_or(|at| at.elapsed() >= ASK_EVERY);
        if due {
            *asked = Some(Instant::now());
        }
        due
    }

    fn take_in(&self, told: Vec<MachineUsage>) {
        for MachineUsage { machine, age, tasks } in told {
            let Some(at) = Instant::now().checked_sub(Duration::from_millis(age)) else { continue };
            self.enter(machine, at, tasks, false);
        }
    }

    /// Machines nobody speaks of any more.
    fn forget(&self) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.0.values().any(|said| said.at.elapsed() >= KEPT) {
            Arc::make_mut(&mut held.0).retain(|_, said| said.at.elapsed() < KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let book = UsageBook::default();
        book.note(MachineId(1), vec![used(9, 1, 5), used(7, 2, 30)]);
        let usage = book.read();
        assert_eq!(cpu(usage.of_machine(MachineId(1))), Some(35));
        assert_eq!(cpu(usage.of_task(MachineId(1), TaskId(7), 2)), Some(30));
        assert_eq!(usage.of_task(MachineId(1), TaskId(7), 1), None, "of an earlier attempt");
        assert_eq!(usage.of_machine(MachineId(2)), None, "nobody said anything");
        book.note(MachineId(1), vec![]);
        assert_eq!(cpu(book.read().of_machine(MachineId(1))), Some(0), "nothing runs any more");
        tokio::time::advance(KEPT).await;
        assert_eq!(book.read().of_machine(MachineId(1)), None);
        assert_eq!(book.own(), []);
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
            let told = |machine, age| MachineUsage { machine, age, tasks: vec![used(3, 1, 40)] };
            let all = vec![told(MachineId(1), 900), told(MachineId(2), 900)];
            Box::pin(async move { Ok(PeerAnswer::Usage(all)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_asked_now_and_then_and_do_not_overrule_newer_words() {
        let (book, asked) = (UsageBook::default(), Arc::new(Other(AtomicU32::new(0))));
        let peers: Arc<dyn Peers> = asked.clone();
        let others = || vec![(2, Peer { name: "m2".into(), address: "127.0.0.1:1".into() })];
        tokio::time::advance(Duration::from_secs(2)).await;
        book.note(MachineId(1), vec![used(3, 1, 10)]);
        book.refresh(&peers, others()).await;
        book.refresh(&peers, others()).await;
        assert_eq!(asked.0.load(Ordering::Relaxed), 1);
        let usage = book.read();
        assert_eq!(cpu(usage.of_machine(MachineId(1))), Some(10), "its own word is newer");
        assert_eq!(cpu(usage.of_machine(MachineId(2))), Some(40));
        assert_eq!(book.own().len(), 1, "what was passed on is not passed on again");
        tokio::time::advance(ASK_EVERY).await;
        book.refresh(&peers, others()).await;
        assert_eq!(asked.0.load(Ordering::Relaxed), 2);
    }
}
