//! The checker: invariants that must hold in a simulated cell, at every step and at the end.

use super::client::{LEASE_DURATION, LEASED_NAMESPACE};
use super::duty_checker::{self, DutyChecker};
use super::ledger::CheckFailure;
use super::scaling_checker;
use super::usage_checker::UsageChecker;
use super::world::Cluster;
use crate::agent::RunEvent;
use cellwright_cell::ephemeral::ResourceRow;
use cellwright_cell::invariant;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::{HIGHEST_LEVEL, State};
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Span;
use cellwright_cell::{encode, event::Event};
use cellwright_master::handle::MasterHandle;
use cellwright_messages::LogAnswer;
use cellwright_store::{DiskSpace, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// How far log time may be ahead: no more than replicas need to hear from each other.
const MAX_TIME_SKEW: Span = Span::seconds(10);

/// Follows the log beside the masters, checks every invariant after every entry, and compares the
/// state hash with that of every replica.
#[derive(Default)]
pub struct Checker {
    state: State,
    index: u64,
    hashes: BTreeMap<u64, u64>,
    /// The machine that runs an `at_most_one` task now, by task name.
    exclusive_tasks: BTreeMap<String, usize>,
    /// All machines have been up once.
    is_formed: bool,
    /// For how many checks the leader has been low on disk space while another replica was not, and
    /// nothing else was wrong.
    low_disk_ticks: u32,
    usage: UsageChecker,
    duties: DutyChecker,
    pub entries: u64,
}

impl Checker {
    /// # Errors
    /// The first violation found.
    pub async fn step(&mut self, cluster: &Cluster) -> Result<(), CheckFailure> {
        self.follow(cluster).await?;
        for (id, handle) in cluster.running_replicas() {
            let Some((index, hash)) = handle.replicated().last_hash() else { continue };
            let known = *self.hashes.entry(index).or_insert(hash);
            if known != hash {
                let message = format!("replica {id} has another state at index {index}");
                return Err(CheckFailure(message));
            }
        }
        check_terms(cluster)?;
        self.check_leadership_transfer(cluster)?;
        self.check_time(cluster)?;
        if let Some(violation) = cluster.violations.first() {
            return Err(CheckFailure(violation));
        }
        self.usage.check(cluster, &self.state)?;
        self.duties.check(cluster, &self.state)?;
        self.check_exclusive_tasks(cluster.take_run_events())
    }

    fn check_leadership_transfer(&mut self, cluster: &Cluster) -> Result<(), CheckFailure> {
        let leader =
            cluster.leader().filter(|(_, handle)| handle.replica().disk_space().is_below_reserve());
        let is_ample = |disk_space: DiskSpace| disk_space.free > 2 * disk_space.reserve;
        let voters = |id| leader.as_ref().is_some_and(|(_, handle)| is_voter(handle, id));
        let better = cluster
            .running_replicas()
            .into_iter()
            .find(|(id, handle)| voters(*id) && is_ample(handle.replica().disk_space()));
        let Some(((id, _), (other, _))) = leader.as_ref().zip(better) else {
            self.low_disk_ticks = 0;
            return Ok(());
        };
        self.low_disk_ticks =
            if cluster.is_healthy_except_disk() { self.low_disk_ticks + 1 } else { 0 };
        if self.low_disk_ticks > MAX_TRANSFER_TICKS {
            Err(CheckFailure(format!("replica {id} leads without room, and {other} has some")))
        } else {
            Ok(())
        }
    }

    /// The clock of one process moves neither log time nor any lease.
    fn check_time(&self, cluster: &Cluster) -> Result<(), CheckFailure> {
        let now = self.state.now();
        // A cell of one goes by the only clock there is, so nothing corrects it.
        let is_late = self.index > 0 && cluster.shape.masters > 1;
        let right = cluster.clocks.true_time();
        if is_late && now.since(right) > MAX_TIME_SKEW {
            let by = now.since(right).0;
            return Err(CheckFailure(format!("the time of the log is {by} ms ahead")));
        }
        let leased = |row: &&ResourceRow| {
            row.name.namespace.as_ref().is_some_and(|n| n.as_str() == LEASED_NAMESPACE)
        };
        let rows = self.state.resources().iter().map(|(_, row)| row);
        let long = rows.filter(leased).find(|row| row.lease_until > now.plus(LEASE_DURATION));
        match long {
            Some(row) => {
                let left = row.lease_until.since(now).0;
                Err(CheckFailure(format!("a lease of {} ms has {left} ms left", LEASE_DURATION.0)))
            }
            None => Ok(()),
        }
    }

    /// Tasks move away from silent machines only while most of the cell is heard from.
    fn check_majority_up(&mut self) -> Result<(), CheckFailure> {
        let machines = self.state.machines();
        let all = machines.iter().count();
        let up = machines.iter().filter(|(_, m)| m.status == MachineStatus::Up).count();
        self.is_formed |= all > 0 && up == all;
        if self.is_formed && (all - up) * 2 > all {
            Err(CheckFailure(format!("more than half of the machines are down: {up} of {all}")))
        } else {
            Ok(())
        }
    }

    async fn follow(&mut self, cluster: &Cluster) -> Result<(), CheckFailure> {
        let Some((_, leader)) = cluster.leader() else { return Ok(()) };
        // Only what a quorum holds is final; a leader that is partitioned applies nothing new.
        match leader.log_after(self.index, Span::ZERO).await {
            LogAnswer::Records(records) => {
                for record in records {
                    if record.previous != self.index {
                        let (from, to) = (self.index, record.previous);
                        return Err(CheckFailure(format!(
                            "the log was rewritten from {from} to {to}"
                        )));
                    }
                    let entry = encode::load_entry_known(&record.entry, HIGHEST_LEVEL)
                        .map_err(|e| CheckFailure(format!("entry {}: {e}", record.index)))?;
                    let before = self.state.clone();
                    let mut events: Vec<Event> = Vec::new();
                    let verdicts = self.state.apply(&entry, &mut events);
                    self.index = record.index;
                    self.entries += 1;
                    let after = &self.state;
                    invariant::check_step(&before, &entry, &verdicts, after, &events)
                        .and_then(|()| invariant::check_state(after))
                        .map_err(|v| CheckFailure(format!("after entry {}: {v}", record.index)))?;
                    duty_checker::check_requests(&before, &entry)?;
                    scaling_checker::check_decisions(&before, &entry, &verdicts)?;
                    self.compare(record.index)?;
                    self.check_majority_up()?;
                }
                Ok(())
            }
            LogAnswer::Snapshot { index, state, .. } => {
                let loaded = encode::load_known(&state, HIGHEST_LEVEL);
                self.state = loaded.map_err(|e| CheckFailure(e.to_string()))?;
                self.index = index;
                self.compare(index)
            }
        }
    }

    fn compare(&mut self, index: u64) -> Result<(), CheckFailure> {
        let hash = self.state.hash();
        let known = *self.hashes.entry(index).or_insert(hash);
        if known == hash {
            Ok(())
        } else {
            Err(CheckFailure(format!("the checker has another state at index {index}")))
        }
    }

    /// Tasks of `at_most_one` jobs never run twice at once.
    fn check_exclusive_tasks(
        &mut self,
        mut history: Vec<(usize, RunEvent)>,
    ) -> Result<(), CheckFailure> {
        // Ends before starts of the same instant.
        history.sort_by_key(|(_, ran)| (ran.at, ran.started));
        for (machine, ran) in history.into_iter().filter(|(_, ran)| ran.at_most_one) {
            let holder = self.exclusive_tasks.get(&ran.name).copied();
            match (ran.started, holder) {
                (true, Some(other)) if other != machine => {
                    let message = format!("{} runs on machines {other} and {machine}", ran.name);
                    return Err(CheckFailure(message));
                }
                (true, _) => {
                    self.exclusive_tasks.insert(ran.name, machine);
                }
                (false, Some(other)) if other == machine => {
                    self.exclusive_tasks.remove(&ran.name);
                }
                (false, _) => {}
            }
        }
        Ok(())
    }
}

/// Checks, ten a second, within which a leader low on disk space must have transferred leadership:
/// it tries again every five seconds.
const MAX_TRANSFER_TICKS: u32 = 120;
/// Terms that an election or two after a fault account for.
const TERM_BUDGET: (u64, u64) = (12, 8);

fn is_voter(handle: &MasterHandle, id: NodeId) -> bool {
    handle.status().members.get(&id).is_some_and(|member| member.voter)
}

/// Terms count elections that could be won, not the time that a replica was partitioned.
fn check_terms(cluster: &Cluster) -> Result<(), CheckFailure> {
    let most = TERM_BUDGET.0 + TERM_BUDGET.1 * cluster.fault_count;
    for (id, handle) in cluster.running_replicas() {
        let term = handle.status().term;
        if term > most {
            let strikes = cluster.fault_count;
            let message = format!("replica {id} is at term {term} after {strikes} faults");
            return Err(CheckFailure(message));
        }
    }
    Ok(())
}

/// Whether the healed cell has settled: one leader, all replicas alike, all machines up, nothing
/// left for controllers to do, and the agents run exactly what the state says.
///
/// # Errors
/// What is not right yet.
pub fn check_healed(cluster: &Cluster) -> Result<State, String> {
    let (_, leader) = cluster.leader().ok_or("there is no leader")?;
    let view = leader.read();
    let on = cluster.running_replicas();
    if u64::try_from(on.len()).unwrap_or(0) != cluster.shape.masters - cluster.lost_count() {
        return Err(format!("only {} replicas are on", on.len()));
    }
    for (id, handle) in on {
        let other = handle.read();
        if other.index != view.index {
            return Err(format!("replica {id} stands at {}, not {}", other.index, view.index));
        }
    }
    let state = &view.state;
    let up = state.machines().iter().filter(|(_, m)| m.status == MachineStatus::Up).count();
    if u64::try_from(up).unwrap_or(0) != cluster.shape.machines {
        return Err(format!("only {up} machines are up"));
    }
    let count = |want: fn(TaskState) -> bool| {
        state.tasks().iter().filter(|(_, task)| want(task.state)).count()
    };
    let moving = count(|s| matches!(s, TaskState::Assigned | TaskState::Stopping(_)));
    let pending = count(|s| s == TaskState::Pending);
    let running = count(|s| s == TaskState::Running);
    if moving > 0 || pending > 0 {
        let waits = |(id, task): (_, &cellwright_cell::task::Task)| {
            let early = task.not_before.since(state.now()).0;
            (task.state == TaskState::Pending)
                .then(|| format!("{} may start in {early} ms", state.task_name(id)))
        };
        let first = state.tasks().iter().find_map(waits).unwrap_or_default();
        let passes = leader.passes();
        return Err(format!(
            "{moving} tasks are on their way, {pending} wait ({first}); log at {}; {passes:?}",
            view.index
        ));
    }
    if let Some(duty) = duty_checker::duties(state, leader.log_time()).first() {
        return Err(duty.clone());
    }
    if cluster.running() != running {
        return Err(format!("{} tasks run, the state says {running}", cluster.running()));
    }
    Ok(state.clone())
}

/// No event log is silently shorter than another: what one replica has, the others have too, or
/// they report a gap there.
///
/// # Errors
/// What is missing, and on which replica.
pub fn check_event_feeds(cluster: &Cluster) -> Result<(), CheckFailure> {
    let mut feeds = Vec::new();
    for (id, handle) in cluster.running_replicas() {
        let read = |error: std::io::Error| CheckFailure(format!("events of replica {id}: {error}"));
        feeds.push((id, ReplicaFeed::of(&handle, cluster.bugs.hides_gaps).map_err(read)?));
    }
    for (other, whole) in &feeds {
        for index in &whole.entries {
            let short = feeds.iter().find(|(_, feed)| !feed.accounts_for(*index));
            if let Some((id, _)) = short {
                let message = format!("replica {id} misses events of {index}, which {other} has");
                return Err(CheckFailure(format!("{message}, and says nothing")));
            }
        }
    }
    Ok(())
}

/// The events that a replica's log has, and the gaps it reports.
#[derive(Default)]
struct ReplicaFeed {
    entries: BTreeSet<u64>,
    /// Between these entries, exclusive.
    gaps: Vec<(u64, u64)>,
    from: u64,
}

impl ReplicaFeed {
    fn of(handle: &MasterHandle, hides_gaps: bool) -> std::io::Result<ReplicaFeed> {
        let events = &handle.replicated().records.events;
        let mut feed = ReplicaFeed {
            from: events.reaches_back_to().unwrap_or(u64::MAX),
            ..ReplicaFeed::default()
        };
        let mut last = 0;
        loop {
            let read = events.read_after(last, u32::MAX, usize::MAX)?;
            let first = read.items.first().map_or(u64::MAX, |item| item.index);
            if read.gap && !hides_gaps {
                feed.gaps.push((last, first));
            }
            feed.entries.extend(read.items.iter().map(|item| item.index));
            match read.items.last() {
                Some(item) => last = item.index,
                None => return Ok(feed),
            }
        }
    }

    fn accounts_for(&self, index: u64) -> bool {
        let is_reported = |(after, until): &(u64, u64)| *after < index && index < *until;
        index <= self.from || self.entries.contains(&index) || self.gaps.iter().any(is_reported)
    }
}
