//! The copy itself: a state, and a board that follows it.

use crate::cluster_snapshot::ClusterSnapshot;
use crate::solve::PassOutcome;
use cellwright_cell::command::{Actor, Command, Entry, Observed, Request, TaskReport, Verdict};
use cellwright_cell::event::Event;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::Rejection;
use cellwright_cell::state::State;
use std::collections::BTreeMap;

#[derive(Clone)]
pub(super) struct ScratchCell {
    pub state: State,
    pub snapshot: ClusterSnapshot,
}

/// One command on a state, at the time the state stands at.
pub(super) fn apply_one(
    state: &mut State,
    by: &Actor,
    command: Command,
    events: &mut Vec<Event>,
) -> Verdict {
    let requests = vec![Request { by: by.clone(), id: None, command }];
    let verdicts = state.apply(&Entry { now: state.now(), requests }, events);
    let missing = || Rejection::NoSuchRow("verdict".into());
    verdicts.into_iter().next().unwrap_or_else(|| Err(missing()))
}

impl ScratchCell {
    /// All of them as one entry; the board follows.
    pub fn apply(&mut self, by: &Actor, commands: Vec<Command>) {
        let request = |command| Request { by: by.clone(), id: None, command };
        self.apply_requests(commands.into_iter().map(request).collect());
    }

    fn apply_requests(&mut self, requests: Vec<Request>) {
        let mut events = Vec::new();
        self.state.apply(&Entry { now: self.state.now(), requests }, &mut events);
        self.snapshot.sync(&self.state, &events);
    }

    /// What the cell's own parts do.
    fn apply_as_system(&mut self, commands: Vec<Command>) {
        let request = |command| Request::from_default_sender(command, &self.state);
        let requests = commands.into_iter().map(request).collect();
        self.apply_requests(requests);
    }

    /// What a pass planned becomes true. A group whose tasks may not start yet is refused and
    /// waits: it was placed on the board to see where, which is all that was asked.
    pub fn commit(&mut self, outcome: &PassOutcome) {
        self.apply_as_system(vec![Command::CommitPlan(outcome.plan.clone())]);
    }

    /// Their machines have seen these stopping tasks go.
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
