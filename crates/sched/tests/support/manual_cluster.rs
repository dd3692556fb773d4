//! A snapshot made by hand, for tests of single rules: machines, users and jobs in a line each.

use super::specs::{plain, token};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::time::Time;
use cellwright_sched::cluster_snapshot::{
    JobInfo, MachineInfo, PendingTaskInfo, PlacedTaskInfo, TaskPhase,
};
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct ManualCluster {
    pub snapshot: ClusterSnapshot,
    jobs: u32,
    tasks: u32,
}

/// The same amount of CPU and memory.
pub fn amount(n: u64) -> Resources {
    Resources::new(n, n, 0, 0)
}

/// A job of tasks that request `size` of CPU and memory.
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

impl ManualCluster {
    /// `count` machines of the same size.
    pub fn machines(count: u32, size: u64) -> ManualCluster {
        let mut cluster = ManualCluster::default();
        (0..count).for_each(|_| cluster.add(machine(size)));
        cluster
    }

    pub fn add(&mut self, spec: MachineSpec) {
        let id = MachineId(self.snapshot.machine_slots() as u32);
        let info = MachineInfo {
            spec: &spec,
            up: true,
            draining: false,
            under_pressure: false,
            retained_disk: 0,
            ephemeral: &[],
            packages: &[],
        };
        self.snapshot.put_machine(id, &info);
    }

    fn put_job(&mut self, user: u32, spec: JobSpec, set: Option<JobId>) -> (JobId, Arc<JobSpec>) {
        self.put_job_on(user, spec, set, BTreeMap::new())
    }

    fn put_job_on(
        &mut self,
        user: u32,
        spec: JobSpec,
        set: Option<JobId>,
        machines: BTreeMap<u32, MachineId>,
    ) -> (JobId, Arc<JobSpec>) {
        let (id, spec) = (JobId(self.jobs), Arc::new(spec));
        self.jobs += 1;
        let info = JobInfo {
            user: UserId(user),
            spec: &spec,
            version: 0,
            alloc_set: set,
            machines: &Arc::new(machines),
            budget: spec.max_down,
            in_transition: 0,
        };
        self.snapshot.put_job(id, &info);
        (id, spec)
    }

    /// A job all of whose tasks are pending.
    pub fn submit(&mut self, user: u32, spec: JobSpec) -> Vec<TaskId> {
        self.submit_into(user, spec, None)
    }

    /// The same, for a job inside the alloc set `set`.
    pub fn submit_into(&mut self, user: u32, spec: JobSpec, set: Option<JobId>) -> Vec<TaskId> {
        let (job, spec) = self.put_job(user, spec, set);
        self.put_pending(job, 0..spec.count)
    }

    /// A daemon whose tasks, for these machines by index, are all pending.
    pub fn submit_daemon(
        &mut self,
        spec: JobSpec,
        machines: &BTreeMap<u32, MachineId>,
    ) -> Vec<TaskId> {
        let spec = JobSpec { kind: JobKind::Daemon, ..spec };
        let (job, _) = self.put_job_on(1, spec, None, machines.clone());
        self.put_pending(job, machines.keys().copied())
    }

    fn put_pending(&mut self, job: JobId, indices: impl Iterator<Item = u32>) -> Vec<TaskId> {
        indices
            .map(|index| {
                let task = TaskId(self.tasks);
                self.tasks += 1;
                let info = PendingTaskInfo {
                    job,
                    index,
                    attempt: 0,
                    not_before: Time::ZERO,
                    reservation: None,
                    avoid: &[],
                };
                self.snapshot.put_pending(task, &info);
                task
            })
            .collect()
    }

    /// A job all of whose tasks run on `machine`.
    pub fn running(&mut self, user: u32, spec: JobSpec, machine: u32) -> Vec<TaskId> {
        let machines = vec![machine; spec.count as usize];
        self.running_on(user, spec, &machines)
    }

    /// A job that runs, each task on the machine of its position.
    pub fn running_on(&mut self, user: u32, spec: JobSpec, machines: &[u32]) -> Vec<TaskId> {
        let (job, spec) = self.put_job(user, spec, None);
        (0..spec.count)
            .zip(machines)
            .map(|(index, machine)| {
                let task = TaskId(self.tasks);
                self.tasks += 1;
                let info = PlacedTaskInfo {
                    job,
                    index,
                    attempt: 1,
                    spec: &spec,
                    version: 0,
                    limits: spec.limits_of(index),
                    phase: TaskPhase::Running,
                    machine: MachineId(*machine),
                    alloc: None,
                    reservation: spec.limits_of(index),
                    ports: &spec.task.static_ports,
                    devices: &[],
                };
                self.snapshot.put_placed(task, &info);
                task
            })
            .collect()
    }

    pub fn job_of(&self, task: TaskId) -> JobId {
        self.snapshot.identity_of(task).unwrap().0
    }

    pub fn pass(&mut self, options: Options) -> PassOutcome {
        Solver::new(options).pass(&mut self.snapshot, Time(1), 7)
    }

    /// Machine of a placed task.
    pub fn on(&self, task: TaskId) -> Option<u32> {
        self.snapshot.placement_of(task).and_then(|placement| placement.machine()).map(|m| m.0)
    }

    /// Same machine in the rack `rack`.
    pub fn in_rack(size: u64, rack: &str) -> MachineSpec {
        MachineSpec { rack: Some(token(rack)), ..machine(size) }
    }
}
