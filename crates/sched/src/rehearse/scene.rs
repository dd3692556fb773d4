//! The copy itself: a state, and a board that follows it.

use crate::board::Board;
use crate::solve::Outcome;
use cellwright_cell::command::{Actor, Command, Entry, Observed, Request, TaskReport, Verdict};
use cellwright_cell::event::Event;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::Refusal;
use cellwright_cell::state::State;
use std::collections::BTreeMap;

#[derive(Clone)]
pub(super) struct Scene {
    pub state: State,
    pub board: Board,
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
    let missing = || Refusal::NoSuchRow("verdict".into());
    verdicts.into_iter().next().unwrap_or_else(|| Err(missing()))
}

impl Scene {
    /// All of them as one entry; the board follows.
    pub fn apply(&mut self, by: &Actor, commands: Vec<Command>) {
        let request = |command| Request { by: by.clone(), id: None, command };
        self.follow(commands.into_iter().map(request).collect());
    }

    fn follow(&mut self, requests: Vec<Request>) {
        let mut events = Vec::new();
        self.state.apply(&Entry { now: self.state.now(), requests }, &mut events);
        self.board.sync(&self.state, &events);
    }

    /// What the cell's own parts do.
    fn play(&mut self, commands: Vec<Command>) {
        let request = |command| Request::sent(command, &self.state);
        let requests = commands.into_iter().map(request).collect();
        self.follow(requests);
    }

    /// What a pass planned becomes true. A group whose tasks may not start yet is refused and
    /// waits: it was placed on the board to see where, which is all that was asked.
    pub fn commit(&mut self, outcome: &Outcome) {
        self.play(vec![Command::CommitPlan(outcome.plan.clone())]);
    }

    /// Their machines have seen these stopping tasks go.
    pub fn see_gone(&mut self, tasks: &[TaskId]) {
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
        self.play(commands);
    }
}
