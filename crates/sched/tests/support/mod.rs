//! A random cell that changes by the state machine's own commands, with a scheduler's mirror beside
//! it. Everything is drawn from one seed.
#![allow(dead_code)] // Every test file uses its own part.

pub mod manual_cluster;
pub mod specs;

use cellwright_cell::command::{Command, Done, Entry, EvictCause, Observed, Request};
use cellwright_cell::command::{ReservationChange, TaskReport, Verdict};
use cellwright_cell::ephemeral::{self, CapacityChange, NodeChoice};
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::{MachineStatus, ResourcePressureReport};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::plan::{Assignment, Plan};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::spec::JobKind;
use cellwright_cell::task::{ExitClass, Task, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::{Event, State};
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use specs::TestRng;

pub struct World {
    pub state: State,
    pub snapshot: ClusterSnapshot,
    pub rng: TestRng,
    pub now: u64,
    /// Events that the mirror has not seen yet, while it is not synced.
    unsynced_events: Option<Vec<Event>>,
    /// Whether running tasks get room on other machines as well.
    pub holds: bool,
    jobs: u32,
    machines: u32,
}

pub const USERS: [&str; 3] = ["ada", "bob", "cyd"];

impl World {
    /// Machines up and ready, users with quota, no jobs.
    pub fn new(seed: u64, machines: u32) -> World {
        let mut world = World {
            state: State::default(),
            snapshot: ClusterSnapshot::new(),
            rng: TestRng(seed),
            now: 1,
            unsynced_events: None,
            holds: false,
            jobs: 0,
            machines: 0,
        };
        (0..machines).for_each(|_| world.add_machine());
        for user in USERS {
            let name = Name::new(user).unwrap();
            world.apply_ok(Command::AddUser { name: name.clone() });
            let capabilities = Capability::ALL.into_iter().collect();
            world.apply_ok(Command::SetCapabilities {
                user: name.clone(),
                capabilities,
                expect: None,
            });
            for band in Band::ALL {
                let share = if band.is_prod() { 6 } else { 1 };
                let amount = if band.is_prod() {
                    Resources::from_array(
                        world.state.capacity().to_array().map(|total| total / share),
                    )
                } else {
                    Resources::new(1 << 40, 1 << 40, 1 << 40, 1 << 40)
                };
                let quota = Quota { amount, from: Time::ZERO, until: Time::NEVER };
                world.apply_ok(Command::SetQuota {
                    user: name.clone(),
                    band,
                    quota: Some(quota),
                    expect: None,
                });
            }
        }
        world
    }

    fn add_machine(&mut self) {
        self.machines += 1;
        let spec = specs::machine(&mut self.rng, &format!("m{}", self.machines));
        self.apply_ok(Command::AddMachine(spec));
        let machine = MachineId(self.machines - 1);
        self.apply_ok(Command::MachineUp { machine, incarnation: 1 });
        let packages = specs::packages(&mut self.rng).into_iter().collect();
        self.apply_ok(Command::SetMachinePackages { machine, packages });
    }

    /// Applies one command and lets the mirror follow.
    pub fn apply(&mut self, command: Command) -> Verdict {
        let mut events: Vec<Event> = Vec::new();
        let request = Request::from_default_sender(command, &self.state);
        let entry = Entry { now: Time(self.now), requests: vec![request] };
        let verdict = self.state.apply(&entry, &mut events).pop().unwrap();
        match &mut self.unsynced_events {
            Some(unsynced) => unsynced.extend(events),
            None => self.snapshot.sync(&self.state, &events),
        }
        verdict
    }

    /// Changes the cell while the mirror is not synced; it catches up at the end.
    pub fn without_sync(&mut self, live: impl FnOnce(&mut World)) {
        self.unsynced_events = Some(Vec::new());
        live(self);
        let events = self.unsynced_events.take().unwrap();
        self.snapshot.sync(&self.state, &events);
    }

    pub fn apply_ok(&mut self, command: Command) {
        let description = format!("{command:?}");
        let verdict = self.apply(command);
        assert!(verdict.is_ok(), "{verdict:?} to {description}");
    }

    /// Applies a command that the state may reject.
    pub fn apply_any(&mut self, command: Command) {
        drop(self.apply(command));
    }

    pub fn submit(&mut self) {
        self.jobs += 1;
        let owner = Name::new(self.rng.pick(&USERS)).unwrap();
        let sets = self.alloc_sets();
        let spec = specs::job(&mut self.rng, &format!("j{}", self.jobs), &owner, &sets);
        // Quota may reject it; then there is one job less.
        self.apply_any(Command::SubmitJob { owner, spec: Box::new(spec) });
    }

    fn alloc_sets(&self) -> Vec<cellwright_cell::name::JobKey> {
        let sets = self.state.jobs().iter().filter(|(_, job)| {
            job.spec().kind == cellwright_cell::spec::JobKind::AllocSet && !job.is_dead()
        });
        sets.filter_map(|(id, _)| self.state.job_key(id)).collect()
    }

    /// One pass on the mirror; the plan must be accepted whole.
    pub fn schedule(&mut self, options: Options, seed: u64) -> PassOutcome {
        let now = Time(self.now);
        let outcome = Solver::new(options).pass(&mut self.snapshot, now, seed);
        self.commit(outcome.plan.clone());
        outcome
    }

    pub fn commit(&mut self, plan: Plan) {
        let groups = plan.groups.clone();
        let mut tasks: Vec<TaskId> =
            groups.iter().flat_map(|g| &g.assignments).map(|a| a.task).collect();
        tasks.sort_unstable();
        assert!(tasks.windows(2).all(|pair| pair[0] < pair[1]), "planned twice: {groups:?}");
        let verdict = self.apply(Command::CommitPlan(plan));
        if let Ok(Done::Partly(rejected)) = &verdict {
            let (at, why) = &rejected[0];
            panic!("group refused: {why} in {:?}", groups[*at as usize]);
        }
        assert!(verdict.is_ok(), "{verdict:?}");
    }

    pub fn tasks_in(&self, wanted: impl Fn(TaskState) -> bool) -> Vec<TaskId> {
        let rows = self.state.tasks().iter().filter(|(_, task)| wanted(task.state));
        rows.map(|(id, _)| id).collect()
    }

    fn report(&mut self, task: TaskId, observed: Observed) {
        let row = self.state.tasks().get(task).unwrap().clone();
        let Some(machine) = row.machine() else { return };
        let incarnation = self.state.machines().get(machine).unwrap().incarnation;
        let reports = vec![TaskReport { task, attempt: row.attempt, what: observed }];
        self.apply_any(Command::TaskReports { machine, incarnation, reports });
    }

    fn report_some(&mut self, wanted: impl Fn(TaskState) -> bool, one_in: u64, observed: Observed) {
        for task in self.tasks_in(wanted) {
            if self.rng.one_in(one_in) {
                self.report(task, observed);
            }
        }
    }

    /// Changes the cell at random.
    pub fn step(&mut self) {
        self.now += self.rng.below(2000);
        if self.holds && self.rng.one_in(3) {
            return self.hold_step();
        }
        match self.rng.below(16) {
            0..=3 => (0..self.rng.below(4) + 1).for_each(|_| self.submit()),
            4 => self.report_some(|s| s == TaskState::Assigned, 1, Observed::Started),
            5 => self.report_some(|s| matches!(s, TaskState::Stopping(_)), 1, Observed::Stopped),
            6 => self.report_some(|s| s == TaskState::Running, 3, Observed::Finished),
            7 => {
                let crash = Observed::Failed(ExitClass::Code(1));
                self.report_some(|s| s == TaskState::Running, 3, crash);
            }
            8 => self.machine_step(),
            9 => self.reserve(),
            10 => self.change_job(),
            11 => self.evict_one(),
            12 => self.set_resource(),
            13 => self.apply_any(Command::Expire),
            14 => self.report_some(|s| s == TaskState::Running, 4, Observed::Unhealthy),
            _ => self.report_some(|s| s == TaskState::Assigned, 2, Observed::Started),
        }
    }

    /// Some of the running tasks reserve room elsewhere, or release it.
    fn hold_step(&mut self) {
        for task in self.tasks_in(|s| s == TaskState::Running) {
            let row = self.state.tasks().get(task).unwrap().clone();
            match row.holds.reserved() {
                Some(hold) if self.rng.one_in(4) => {
                    let (attempt, machine) = (row.attempt, hold.machine);
                    self.apply_ok(Command::ReleaseHold { task, attempt, machine });
                }
                None if self.rng.one_in(2) => self.reserve_hold(task, &row),
                _ => {}
            }
        }
    }

    fn reserve_hold(&mut self, task: TaskId, row: &Task) {
        let spec = self.state.spec_of(row).unwrap().clone();
        let candidate = Candidate { task: row, spec: &spec };
        let on = |(id, row): (TaskId, &Task)| Some((row.machine()?, Some(id)));
        let targets: Vec<(MachineId, Option<TaskId>)> = match spec.alloc_set {
            None => self.state.machines().iter().map(|(id, _)| (id, None)).collect(),
            Some(_) => self.state.tasks().iter().filter_map(on).collect(),
        };
        let fits = |(machine, alloc): &(MachineId, Option<TaskId>)| {
            let flagged = self.state.machines().get(*machine).unwrap().over_committed;
            !flagged
                && row.holds.on(*machine).is_none()
                && spec.kind == JobKind::Tasks
                && fit::infeasible_reason(&self.state, &candidate, *machine, *alloc).is_none()
        };
        let targets: Vec<(MachineId, Option<TaskId>)> = targets.into_iter().filter(fits).collect();
        if targets.is_empty() {
            return;
        }
        let (machine, alloc) = self.rng.pick(&targets);
        let machine_row = self.state.machines().get(machine).unwrap();
        let load = self.state.machine_load(machine).unwrap();
        let ports = fit::choose_ports(&spec, machine_row, load);
        let devices =
            fit::choose_devices(&machine_row.spec.devices, load, &spec.task.devices).unwrap();
        let attempt = row.attempt;
        let target = Assignment { task, attempt, machine, alloc, ports, devices };
        self.apply_ok(Command::ReserveHold(target));
    }

    /// Number of holds on machines where their tasks do not run.
    pub fn held_elsewhere(&self) -> usize {
        self.state.tasks().iter().filter(|(_, row)| row.holds.reserved().is_some()).count()
    }

    fn machine_step(&mut self) {
        let machines: Vec<MachineId> = self.state.machines().iter().map(|(id, _)| id).collect();
        let machine = self.rng.pick(&machines);
        let row = self.state.machines().get(machine).unwrap().clone();
        let name = row.spec.name.clone();
        match self.rng.below(6) {
            0 if row.status == MachineStatus::Up => {
                self.apply_any(Command::MachineDown { machine });
            }
            0 | 1 => {
                let incarnation = row.incarnation + 1;
                self.apply_any(Command::MachineUp { machine, incarnation });
            }
            2 if !row.draining => self.apply_any(Command::StartDrain { name, expect: None }),
            2 => self.apply_any(Command::StopDrain { name, expect: None }),
            3 => {
                let spec = specs::machine(&mut self.rng, name.as_str());
                self.apply_any(Command::UpdateMachine { spec, expect: None });
            }
            4 => {
                let lasted = Span::seconds(60);
                let report =
                    ResourcePressureReport { dimension: Dimension::Cpu, lasted, requested: 1 };
                let resource_pressure = if row.accepts_only_prod() { vec![] } else { vec![report] };
                let incarnation = row.incarnation;
                self.apply_any(Command::SetResourcePressure {
                    machine,
                    incarnation,
                    resource_pressure,
                });
            }
            _ => self.add_machine(),
        }
    }

    fn reserve(&mut self) {
        let running = self.tasks_in(|s| s == TaskState::Running);
        let mut changes = Vec::new();
        for task in running {
            let row = self.state.tasks().get(task).unwrap().clone();
            let limits = self.state.spec_of(&row).unwrap().limits_of(row.index);
            let part = self.rng.below(4) + 1;
            let reservation = Resources::from_array(limits.to_array().map(|l| l * part / 4));
            changes.push(ReservationChange { task, attempt: row.attempt, reservation });
        }
        self.apply_any(Command::SetReservations(changes));
    }

    fn change_job(&mut self) {
        let live: Vec<JobId> =
            self.state.jobs().iter().filter(|(_, job)| !job.is_dead()).map(|(id, _)| id).collect();
        if live.is_empty() {
            return;
        }
        let id = self.rng.pick(&live);
        let (job, key) = (self.state.jobs().get(id).unwrap(), self.state.job_key(id).unwrap());
        let mut spec = job.spec().as_ref().clone();
        match self.rng.below(5) {
            0 => self.apply_any(Command::StopJob { job: key, expect: None }),
            1 => {
                let count = self.rng.below(8) as u32 + 1;
                self.apply_any(Command::ResizeJob {
                    job: key,
                    size: JobSize::tasks(count),
                    expect: None,
                });
            }
            2 if job.is_daemon() => self.apply_any(Command::MatchMachines { job: key }),
            2 => self.apply_any(Command::CloseUpdate { job: key, expect: None }),
            3 => {
                let index = self.rng.below(u64::from(spec.count)) as u32;
                self.apply_any(Command::StepUpdate { job: key, index });
            }
            _ => {
                spec.task.limits = specs::limits(&mut self.rng, false);
                spec.overrides.clear();
                if spec.retain_disk.is_some() {
                    spec.retain_disk = None;
                }
                let owner = key.user;
                self.apply_any(Command::UpdateJob { owner, spec: Box::new(spec), expect: None });
            }
        }
    }

    fn evict_one(&mut self) {
        let held = self.tasks_in(|s| s == TaskState::Running);
        if held.is_empty() {
            return;
        }
        let task = self.rng.pick(&held);
        let attempt = self.state.tasks().get(task).unwrap().attempt;
        let causes = [EvictCause::Drain, EvictCause::OverCommit, EvictCause::Rebalance];
        let cause = self.rng.pick(&causes);
        self.apply_any(Command::Evict { task, attempt, cause });
    }

    fn set_resource(&mut self) {
        let machines: Vec<MachineId> = self.state.machines().iter().map(|(id, _)| id).collect();
        let mut changes = Vec::new();
        for machine in machines {
            if self.rng.one_in(3) {
                let change = match self.rng.below(4) {
                    0 => CapacityChange::Unbounded,
                    1 => CapacityChange::Remove,
                    _ => CapacityChange::Add(self.rng.below(6) as i64 - 1),
                };
                let Some(row) = self.state.machines().get(machine) else { continue };
                changes.push((NodeChoice::Node(row.spec.name.clone()), change));
            }
        }
        let set = ephemeral::Command::Set {
            namespace: Token::new("app").unwrap(),
            name: Token::new("slot").unwrap(),
            lease: Span(50_000),
            changes,
        };
        self.apply_any(set.into());
    }
}
