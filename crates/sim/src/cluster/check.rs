//! What must hold in a simulated cell, at every step and at the end.

use super::ledger::Broken;
use super::world::Cluster;
use crate::agent::Ran;
use cellwright_api::internal::LogAnswer;
use cellwright_cell::invariant;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Span;
use cellwright_cell::{encode, event::Event};
use std::collections::BTreeMap;

/// Follows the log beside the masters, checks every invariant after every entry, and compares the
/// state hash with that of every replica.
#[derive(Default)]
pub struct Checker {
    state: State,
    index: u64,
    hashes: BTreeMap<u64, u64>,
    /// Who runs an `at_most_one` task now, by name.
    only: BTreeMap<String, usize>,
    /// All machines have been up once.
    formed: bool,
    pub entries: u64,
}

impl Checker {
    /// # Errors
    /// The first thing found wrong.
    pub async fn step(&mut self, cluster: &Cluster) -> Result<(), Broken> {
        self.follow(cluster).await?;
        for (id, handle) in cluster.on() {
            let Some((index, hash)) = handle.replicated().last_hash() else { continue };
            let known = *self.hashes.entry(index).or_insert(hash);
            if known != hash {
                let what = format!("replica {id} has another state at index {index}");
                return Err(Broken(what));
            }
        }
        if let Some(flaw) = cluster.flaws.first() {
            return Err(Broken(flaw));
        }
        self.overlaps(cluster.take_history())
    }

    /// Tasks move away from silent machines only while most of the cell speaks.
    fn most_are_up(&mut self) -> Result<(), Broken> {
        let machines = self.state.machines();
        let all = machines.iter().count();
        let up = machines.iter().filter(|(_, m)| m.status == MachineStatus::Up).count();
        self.formed |= all > 0 && up == all;
        match self.formed && (all - up) * 2 > all {
            true => Err(Broken(format!("more than half of the machines are down: {up} of {all}"))),
            false => Ok(()),
        }
    }

    async fn follow(&mut self, cluster: &Cluster) -> Result<(), Broken> {
        let Some((_, leader)) = cluster.leader() else { return Ok(()) };
        // Only what a quorum holds is final; a leader that is cut off applies nothing new.
        match leader.log_after(self.index, Span::ZERO).await {
            LogAnswer::Records(records) => {
                for record in records {
                    if record.previous != self.index {
                        let (from, to) = (self.index, record.previous);
                        return Err(Broken(format!("the log was rewritten from {from} to {to}")));
                    }
                    let entry = encode::load_entry(&record.entry)
                        .map_err(|e| Broken(format!("entry {}: {e}", record.index)))?;
                    let before = self.state.clone();
                    let mut events: Vec<Event> = Vec::new();
                    let verdicts = self.state.apply(&entry, &mut events);
                    self.index = record.index;
                    self.entries += 1;
                    let after = &self.state;
                    invariant::check_step(&before, &entry, &verdicts, after, &events)
                        .and_then(|()| invariant::check_state(after))
                        .map_err(|v| Broken(format!("after entry {}: {v}", record.index)))?;
                    self.compare(record.index)?;
                    self.most_are_up()?;
                }
                Ok(())
            }
            LogAnswer::Snapshot { index, state, .. } => {
                self.state = encode::load(&state).map_err(|e| Broken(e.to_string()))?;
                self.index = index;
                self.compare(index)
            }
        }
    }

    fn compare(&mut self, index: u64) -> Result<(), Broken> {
        let hash = self.state.hash();
        let known = *self.hashes.entry(index).or_insert(hash);
        match known == hash {
            true => Ok(()),
            false => Err(Broken(format!("the checker has another state at index {index}"))),
        }
    }

    /// Tasks of `at_most_one` jobs never run twice at once.
    fn overlaps(&mut self, mut history: Vec<(usize, Ran)>) -> Result<(), Broken> {
        // Ends before starts of the same instant.
        history.sort_by_key(|(_, ran)| (ran.at, ran.started));
        for (machine, ran) in history.into_iter().filter(|(_, ran)| ran.at_most_one) {
            let holder = self.only.get(&ran.name).copied();
            match (ran.started, holder) {
                (true, Some(other)) if other != machine => {
                    let what = format!("{} runs on machines {other} and {machine}", ran.name);
                    return Err(Broken(what));
                }
                (true, _) => {
                    self.only.insert(ran.name, machine);
                }
                (false, Some(other)) if other == machine => {
                    self.only.remove(&ran.name);
                }
                (false, _) => {}
            }
        }
        Ok(())
    }
}

/// Whether the healed cell has come to rest: one leader, all replicas alike, all machines up, and
/// the agents run exactly what the state says.
///
/// # Errors
/// What is not as it should be yet.
pub fn healed(cluster: &Cluster) -> Result<State, String> {
    let (_, leader) = cluster.leader().ok_or("there is no leader")?;
    let view = leader.read();
    let on = cluster.on();
    if u64::try_from(on.len()).unwrap_or(0) != cluster.shape.masters {
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
    if cluster.running() != running {
        return Err(format!("{} tasks run, the state says {running}", cluster.running()));
    }
    Ok(state.clone())
}
