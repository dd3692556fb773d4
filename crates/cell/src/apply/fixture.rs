//! A small cell for unit tests of single rules: machines, users and jobs take one line each, every
//! step is checked against every invariant, and events are rendered as text.

use crate::command::{Actor, Command, Entry, Observed, Request, TaskReport, Verdict};
use crate::fit;
use crate::id::{MachineId, TaskId};
use crate::invariant;
use crate::machine::{MachineSpec, PortRange};
use crate::name::{JobKey, Name};
use crate::plan::{Assignment, Group, Plan};
use crate::priority::{Band, Priority};
use crate::quota::Quota;
use crate::resource::Resources;
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::{Task, TaskState};
use crate::time::{Span, Time};
use crate::words;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// `user/job`.
pub(crate) fn key(text: &str) -> JobKey {
    let (user, job) = text.split_once('/').unwrap();
    JobKey { user: name(user), job: name(job) }
}

/// The same amount in every dimension.
pub(crate) fn all(amount: u64) -> Resources {
    Resources::new(amount, amount, amount, amount)
}

pub(crate) fn quota(amount: u64) -> Quota {
    Quota { amount: all(amount), from: Time::ZERO, until: Time::NEVER }
}

/// A job of tasks that ask for 10 of everything.
pub(crate) fn job(job: &str, count: u32, priority: u16) -> JobSpec {
    let mut spec = JobSpec::new(name(job), count, Priority(priority), all(10));
    spec.restart.max_failures = Some(0);
    spec.restart.backoff_max = Span::seconds(60);
    spec
}

pub(crate) fn machine(machine: &str, capacity: u64) -> MachineSpec {
    MachineSpec {
        name: name(machine),
        capacity: all(capacity),
        attributes: BTreeMap::new(),
        labels: BTreeMap::new(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange { first: 20_000, last: 20_100 },
        address: None,
    }
}

#[derive(Default)]
pub(crate) struct Cell {
    pub state: State,
    pub now: u64,
    /// Events of the last command, rendered.
    pub event_lines: Vec<String>,
    /// Senders of the commands that caused these events, each once.
    pub senders: BTreeSet<String>,
}

impl Cell {
    /// Machines `m1`, `m2`, ... of 100 each, up; `ubar` with a batch quota of 100 and, where there
    /// is a machine to back it, one of production.
    pub fn with_machines(count: u32) -> Cell {
        let mut cell = Cell::default();
        for number in 1..=count {
            cell.ok(Command::AddMachine(machine(&format!("m{number}"), 100)));
            cell.ok(Command::MachineUp { machine: MachineId(number - 1), incarnation: 1 });
        }
        cell.ok(Command::AddUser { name: name("ubar") });
        cell.grant("ubar", Band::Batch, 100);
        if count > 0 {
            cell.grant("ubar", Band::Production, 100);
        }
        cell
    }

    pub fn grant(&mut self, user: &str, band: Band, amount: u64) {
        self.ok(Command::SetQuota {
            user: name(user),
            band,
            quota: Some(quota(amount)),
            expect: None,
        });
    }

    /// Applies one command at the next millisecond and checks every invariant.
    pub fn apply(&mut self, by: Actor, command: impl Into<Command>) -> Verdict {
        self.now += 1;
        let command = command.into();
        let before = self.state.clone();
        let requests = vec![Request { by, id: None, command }];
        let entry = Entry { now: Time(self.now), requests };
        let mut events = Vec::new();
        let verdicts = self.state.apply(&entry, &mut events);
        invariant::check_state(&self.state).unwrap();
        invariant::check_step(&before, &entry, &verdicts, &self.state, &events).unwrap();
        self.event_lines = events.iter().map(|event| words::event(&self.state, event)).collect();
        self.senders = events.iter().map(|event| event.actor.to_string()).collect();
        verdicts.into_iter().next().unwrap()
    }

    pub fn send_as(&mut self, user: &str, command: impl Into<Command>) -> Verdict {
        self.apply(Actor::User(name(user)), command)
    }

    /// Sends the command as its usual sender.
    pub fn send(&mut self, command: impl Into<Command>) -> Verdict {
        let command = command.into();
        self.apply(Actor::default_sender(&command, &self.state), command)
    }

    pub fn ok(&mut self, command: impl Into<Command>) -> crate::command::Done {
        self.send(command).unwrap()
    }

    /// The rejection as text.
    pub fn rejection_text(&mut self, command: impl Into<Command>) -> String {
        let rejection = self.send(command).unwrap_err();
        words::rejection(&self.state, &rejection)
    }

    pub fn submit(&mut self, spec: &JobSpec) {
        self.ok(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec.clone()) });
    }

    /// What `ubar` is charged in a band.
    pub fn charged(&self, band: Band) -> Resources {
        let user = self.state.user_named(&name("ubar")).unwrap();
        self.state.user_load(user).unwrap().charged.get(&band).copied().unwrap_or_default()
    }

    pub fn task_id(&self, job: &str, index: usize) -> TaskId {
        let id = self.state.job_named(&key(&format!("ubar/{job}"))).unwrap();
        self.state.jobs().get(id).unwrap().tasks[index]
    }

    pub fn task(&self, job: &str, index: usize) -> &Task {
        self.state.tasks().get(self.task_id(job, index)).unwrap()
    }

    pub fn states(&self, job: &str) -> Vec<TaskState> {
        let id = self.state.job_named(&key(&format!("ubar/{job}"))).unwrap();
        let rows = &self.state.jobs().get(id).unwrap().tasks;
        rows.iter().map(|task| self.state.tasks().get(*task).unwrap().state).collect()
    }

    /// Places a pending task and reports it started.
    pub fn run(&mut self, job: &str, index: usize, on: &str) {
        self.run_in(job, index, on, None);
    }

    pub fn run_in(&mut self, job: &str, index: usize, on: &str, alloc: Option<TaskId>) {
        let task = self.task_id(job, index);
        let machine = self.state.machine_named(&name(on)).unwrap();
        let candidate = fit::Candidate::of(&self.state, task).unwrap();
        let row = self.state.machines().get(machine).unwrap();
        let load = self.state.machine_load(machine).unwrap();
        let ports = fit::choose_ports(candidate.spec, row, load);
        let requests = &candidate.spec.task.devices;
        let devices = fit::choose_devices(&row.spec.devices, load, requests).unwrap();
        let attempt = candidate.task.attempt;
        let assignment = Assignment { task, attempt, machine, alloc, ports, devices };
        let group = Group { victims: Vec::new(), assignments: vec![assignment] };
        let done = self.ok(Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }));
        assert_eq!(done, crate::command::Done::Applied);
        self.report(job, index, Observed::Started);
    }

    pub fn report(&mut self, job: &str, index: usize, what: Observed) {
        let task = self.task_id(job, index);
        let row = self.task(job, index);
        let (attempt, machine) = (row.attempt, row.machine().unwrap());
        let reports = vec![TaskReport { task, attempt, what }];
        let done = self.ok(Command::TaskReports { machine, incarnation: 1, reports });
        assert_eq!(done, crate::command::Done::Applied);
    }
}
