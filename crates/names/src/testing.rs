//! A small cell for name lookups: every command goes through the real state machine, and the
//! directory follows.

use crate::directory::Directory;
use cellwright_cell::command::{Command, Entry, Observed, Request, TaskReport};
use cellwright_cell::event::Event;
use cellwright_cell::fit;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use serde_json::json;
use std::net::IpAddr;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn key(job: &str) -> JobKey {
    JobKey { user: name("ada"), job: name(job) }
}

pub(crate) fn machine(text: &str, address: Option<IpAddr>) -> MachineSpec {
    let resources = json!({"cpu": 1000, "ram": 1000, "disk": 1000, "disk_rate": 1000});
    let spec = json!({"name": text, "capacity": resources, "rack": null, "power": null});
    MachineSpec { address, ..serde_json::from_value(spec).unwrap() }
}

pub(crate) fn job(text: &str, count: u32, ports: u8) -> JobSpec {
    let resources = json!({"cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1});
    let task = json!({"limits": resources, "ports": ports, "command": ["serve"]});
    let spec = json!({"name": text, "count": count, "priority": 120, "task": task,
        "labels": {"tier": "front-end"}});
    serde_json::from_value(spec).unwrap()
}

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) state: State,
    pub(crate) directory: Directory,
    pub(crate) index: u64,
}

impl Cell {
    /// `ada`, and machines `m0`, `m1`, … at 10.0.0.1 and up.
    pub(crate) fn with_machines(count: u8) -> Cell {
        let mut cell = Cell::default();
        for number in 0..count {
            let address = IpAddr::from([10, 0, 0, number + 1]);
            cell.ok(Command::AddMachine(machine(&format!("m{number}"), Some(address))));
            cell.ok(Command::MachineUp { machine: MachineId(number.into()), incarnation: 1 });
        }
        cell.ok(Command::AddUser { name: name("ada") });
        let limits = Resources::new(500, 500, 500, 500);
        let quota = Quota { amount: limits, from: Time(0), until: Time(u64::MAX) };
        let (user, band) = (name("ada"), Band::Batch);
        cell.ok(Command::SetQuota { user, band, quota: Some(quota), expect: None });
        cell
    }

    /// Applies the command as an entry of its own; returns whether it was accepted.
    pub(crate) fn try_apply(&mut self, command: Command) -> bool {
        self.index += 1;
        let requests = vec![Request::from_default_sender(command, &self.state)];
        let mut events: Vec<Event> = Vec::new();
        let entry = Entry { now: Time(self.index * 1000), requests };
        let verdicts = self.state.apply(&entry, &mut events);
        self.directory.apply_events(&self.state, &events, self.index);
        verdicts[0].is_ok()
    }

    pub(crate) fn ok(&mut self, command: Command) {
        let command_text = format!("{command:?}");
        assert!(self.try_apply(command), "{command_text}");
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) {
        self.ok(Command::SubmitJob { owner: name("ada"), spec: Box::new(spec) });
    }

    pub(crate) fn task(&self, job: &str, index: usize) -> TaskId {
        let job = self.state.job_named(&key(job)).unwrap();
        self.state.jobs().get(job).unwrap().tasks[index]
    }

    /// Puts a pending task on a machine; returns whether it fits there.
    pub(crate) fn place_task(&mut self, task: TaskId, machine: MachineId) -> bool {
        let Some(candidate) = fit::Candidate::of(&self.state, task) else { return false };
        let Some(row) = self.state.machines().get(machine) else { return false };
        let Some(load) = self.state.machine_load(machine) else { return false };
        let ports = fit::choose_ports(candidate.spec, row, load);
        let attempt = candidate.task.attempt;
        let assignment =
            Assignment { task, attempt, machine, alloc: None, ports, devices: Vec::new() };
        let group = Group { victims: Vec::new(), assignments: vec![assignment] };
        self.try_apply(Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }))
    }

    /// Reports an observation of the task by its machine; returns whether it was accepted.
    pub(crate) fn report(&mut self, task: TaskId, observed: Observed) -> bool {
        let Some(row) = self.state.tasks().get(task) else { return false };
        let (attempt, Some(machine)) = (row.attempt, row.machine()) else { return false };
        let Some(machine_row) = self.state.machines().get(machine) else { return false };
        let incarnation = machine_row.incarnation;
        let reports = vec![TaskReport { task, attempt, what: observed }];
        self.try_apply(Command::TaskReports { machine, incarnation, reports })
    }

    pub(crate) fn run(&mut self, job: &str, index: usize, machine: u32) {
        let task = self.task(job, index);
        assert!(self.place_task(task, MachineId(machine)));
        assert!(self.report(task, Observed::Started));
        let state = self.state.tasks().get(task).unwrap().state;
        assert_eq!(state, TaskState::Running);
    }
}
