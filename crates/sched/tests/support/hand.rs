//! A board made by hand, for tests of single rules: machines, users and jobs in a line each.

use super::specs::{plain, token};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use cellwright_sched::board::{HeldFacts, Holding, JobFacts, MachineFacts, PendingFacts};
use cellwright_sched::{Board, Options, Outcome, Solver};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct Hand {
    pub board: Board,
    jobs: u32,
    tasks: u32,
}

/// The same amount of CPU and memory.
pub fn amount(n: u64) -> Resources {
    Resources::new(n, n, 0, 0)
}

/// A job of tasks that ask for `size` of CPU and memory.
pub fn job(count: u32, priority: u16, size: u64) -> JobSpec {
    plain("job", count, priority, amount(size))
}

pub fn machine(size: u64) -> MachineSpec {
    MachineSpec {
        name: Name::new("m").unwrap(),
        capacity: amount(size),
        attributes: BTreeMap::new(),
        labels: BTreeMap::new(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange { first: 20_000, last: 20_010 },
        address: None,
    }
}

impl Hand {
    /// `count` machines of the same size.
    pub fn machines(count: u32, size: u64) -> Hand {
        let mut hand = Hand::default();
        (0..count).for_each(|_| hand.add(machine(size)));
        hand
    }

    pub fn add(&mut self, spec: MachineSpec) {
        let id = MachineId(self.board.machine_slots() as u32);
        let facts = MachineFacts {
            spec: &spec,
            up: true,
            draining: false,
            short: false,
            retained_disk: 0,
            ephemeral: &[],
            packages: &[],
        };
        self.board.put_machine(id, &facts);
    }

    fn put_job(&mut self, user: u32, spec: JobSpec, set: Option<JobId>) -> (JobId, Arc<JobSpec>) {
        let (id, spec) = (JobId(self.jobs), Arc::new(spec));
        self.jobs += 1;
        let facts = JobFacts {
            user: UserId(user),
            spec: &spec,
            version: 0,
            alloc_set: set,
            budget: spec.max_down,
            absent: 0,
        };
        self.board.put_job(id, &facts);
        (id, spec)
    }

    /// A job all of whose tasks wait.
    pub fn submit(&mut self, user: u32, spec: JobSpec) -> Vec<TaskId> {
        self.submit_into(user, spec, None)
    }

    /// Same, for a job inside the alloc set `set`.
    pub fn submit_into(&mut self, user: u32, spec: JobSpec, set: Option<JobId>) -> Vec<TaskId> {
        let (job, spec) = self.put_job(user, spec, set);
        (0..spec.count)
            .map(|index| {
                let task = TaskId(self.tasks);
                self.tasks += 1;
                let facts = PendingFacts {
                    job,
                    index,
                    attempt: 0,
                    not_before: Time::ZERO,
                    reservation: None,
                    avoid: &[],
                };
                self.board.put_pending(task, &facts);
                task
            })
            .collect()
    }

    /// A job all of whose tasks run on `machine`.
    pub fn running(&mut self, user: u32, spec: JobSpec, machine: u32) -> Vec<TaskId> {
        let (job, spec) = self.put_job(user, spec, None);
        (0..spec.count)
            .map(|index| {
                let task = TaskId(self.tasks);
                self.tasks += 1;
                let facts = HeldFacts {
                    job,
                    index,
                    attempt: 1,
                    spec: &spec,
                    version: 0,
                    holding: Holding::Running,
                    machine: MachineId(machine),
                    alloc: None,
                    reservation: spec.limits_of(index),
                    ports: &spec.task.static_ports,
                    devices: &[],
                };
                self.board.put_held(task, &facts);
                task
            })
            .collect()
    }

    pub fn job_of(&self, task: TaskId) -> JobId {
        self.board.identity_of(task).unwrap().0
    }

    pub fn pass(&mut self, options: Options) -> Outcome {
        Solver::new(options).pass(&mut self.board, Time(1), 7)
    }

    /// Machine of a placed task.
    pub fn on(&self, task: TaskId) -> Option<u32> {
        self.board.place_of(task).and_then(|place| place.machine()).map(|m| m.0)
    }

    /// Same machine in the rack `rack`.
    pub fn in_rack(size: u64, rack: &str) -> MachineSpec {
        MachineSpec { rack: Some(token(rack)), ..machine(size) }
    }
}
