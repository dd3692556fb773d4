//! The scratch cell of a dry run: a copy of the state, and a snapshot that follows it.

use crate::cluster_snapshot::ClusterSnapshot;
use crate::solve::PassOutcome;
use cellwright_cell::command::{
    Actor, Command, Done, Entry, Observed, Request, TaskReport, Verdict,
};
use cellwright_cell::event::Event;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::state::State;
use std::collections::BTreeMap;

#[derive(Clone)]
pub(super) struct ScratchCell {
    pub state: State,
    pub snapshot: ClusterSnapshot,
}

/// Applies one command to a state, at the state's own time.
pub(super) fn apply_one(
    state: &mut State,
    by: &Actor,
    command: Command,
    events: &mut Vec<Event>,
) -> Verdict {
    let requests = vec![Request { by: by.clone(), id: None, command }];
    let verdicts = state.apply(&Entry { now: state.now(), requests }, events);
    // One request has one verdict; without a request nothing would change.
    verdicts.into_iter().next().unwrap_or(Ok(Done::Unchanged))
}

impl ScratchCell {
    /// Applies all commands as one entry; the snapshot follows.
    pub fn apply(&mut self, by: &Actor, commands: Vec<Command>) {
        let request = |command| Request { by: by.clone(), id: None, command };
        self.apply_requests(commands.into_iter().map(request).collect());
    }

    fn apply_requests(&mut self, requests: Vec<Request>) {
        let mut events = Vec::new();
        self.state.apply(&Entry { now: self.state.now(), requests }, &mut events);
        self.snapshot.sync(&self.state, &events);
    }

    /// Applies commands of the cell's own components.
    fn apply_as_system(&mut self, commands: Vec<Command>) {
        let request = |command| Request::from_default_sender(command, &self.state);
        let requests = commands.into_iter().map(request).collect();
        self.apply_requests(requests);
    }

    /// Commits the plan of a pass. A group whose tasks may not start yet is rejected and stays
    /// pending: the pass has shown where it would be placed, which is all that is needed.
    pub fn commit(&mut self, outcome: &PassOutcome) {
        self.apply_as_system(vec![Command::CommitPlan(outcome.plan.clone())]);
    }

    /// Reports these stopping tasks as stopped by their machines.
    pub fn report_stopped(&mut self, tasks: &[TaskId]) {
        let mut by_machine: BTreeMap<MachineId, Vec<TaskReport>> = BTreeMap::new();
        for task in tasks {
            let Some(row) = self.state.tasks().get(*task) else { continue };
            let Some(machine) = row.machine() else { continue };
            let report = TaskReport { task: *task, attempt: row.attempt, what: Observed::Stopped };
            by_machine.entry(machine).or_default().push(report);
        }
        let commands = by_machine.into_iter().filter_map(|(machine, reports)| {
            let incarnation = self.state.machines().get(machine)?.incarnation;
            Some(Command::TaskReports { machine, incarnation, reports })
        });
        let commands: Vec<Command> = commands.collect();
        self.apply_as_system(commands);
    }
}
