//! The board as a mirror of a state: built whole, then kept up by the state's events. An event only
//! says *which* rows to read again; what they say is read from the state, so that a missed meaning
//! of an event cannot make the mirror drift. Rows that a pass wrote are read again as well: a plan
//! that was refused has no events.

use super::{Board, Held, HeldFacts, Holding, JobFacts, MachineFacts, PendingFacts, Written};
use cellwright_cell::components;
use cellwright_cell::event::{Event, JobChange, What};
use cellwright_cell::id::{JobId, MachineId, ResourceId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::spec::{JobKind, PackageRef};
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use std::collections::BTreeSet;

/// Rows to read again.
#[derive(Debug, Default)]
struct Touched {
    machines: BTreeSet<MachineId>,
    /// Of named resources on machines that are otherwise as they were.
    capacities: BTreeSet<(ResourceId, MachineId)>,
    jobs: BTreeSet<JobId>,
    /// Jobs all of whose tasks are read again.
    whole_jobs: BTreeSet<JobId>,
    tasks: Vec<TaskId>,
}

impl Touched {
    fn by(events: &[Event]) -> Touched {
        let mut touched = Touched::default();
        for event in events {
            match &event.what {
                What::Task { task, job, .. } => {
                    touched.tasks.push(*task);
                    touched.jobs.insert(*job);
                }
                What::Job { job, change } => {
                    touched.jobs.insert(*job);
                    // A submission's tasks have events of their own.
                    if !matches!(change, JobChange::Submitted | JobChange::Accepted) {
                        touched.whole_jobs.insert(*job);
                    }
                }
                What::Machine { machine, .. } => {
                    touched.machines.insert(*machine);
                }
                // Capacity changes name their machine; what names none concerns leases and names.
                What::Component(components::Event::Ephemeral(event)) => {
                    let at = event.machine.map(|machine| (event.resource, machine));
                    touched.capacities.extend(at);
                }
                // Nothing else of components is on the board.
                What::Component(_)
                | What::JobRejected { .. }
                | What::User { .. }
                | What::LevelRaised { .. }
                | What::BoundsChanged
                | What::Token { .. }
                | What::Blob { .. } => {}
            }
        }
        touched
    }

    fn add(&mut self, written: Written) {
        self.tasks.extend(written.tasks);
        self.jobs.extend(written.jobs);
        self.machines.extend(written.machines);
    }
}

impl Board {
    /// The board of a state: everything that waits or holds.
    #[must_use]
    pub fn from_state(state: &State) -> Board {
        let mut board = Board { machine_tasks: machine_tasks(state), ..Board::new() };
        for (id, _) in state.machines().iter() {
            board.read_machine(state, id);
        }
        for (id, _) in state.jobs().iter() {
            board.read_job(state, id);
        }
        // Allocs before those inside them.
        let inside = |task: &Task| task.alloc().is_some();
        for (id, task) in state.tasks().iter().filter(|(_, t)| !inside(t)) {
            board.read_task(state, id, Some(task));
        }
        for (id, task) in state.tasks().iter().filter(|(_, t)| inside(t)) {
            board.read_task(state, id, Some(task));
        }
        board.made_at = state.applied();
        board.written = Some(Written::default());
        board
    }

    /// Takes over what `events` say has changed; `state` is the state after them. What a pass wrote
    /// becomes what the state says of it, so a plan is to be committed before the next sync.
    pub fn sync(&mut self, state: &State, events: &[Event]) {
        // Every machine means something else now. It happens when operators change a setting:
        // nothing that depended on the old meaning is worth keeping.
        if self.machine_tasks != machine_tasks(state) {
            *self = Board { passes: self.passes, ..Board::from_state(state) };
            return;
        }
        let mut touched = Touched::by(events);
        let moved_sets = self.jobs_of_changed_sets(state, &touched);
        touched.jobs.extend(moved_sets.iter().copied());
        touched.whole_jobs.extend(moved_sets);
        touched.add(self.written.replace(Written::default()).unwrap_or_default());
        // A crash is forgotten by the clock alone, without an event.
        while self.crashes_end.first().is_some_and(|(until, _)| *until <= state.now()) {
            touched.tasks.extend(self.crashes_end.pop_first().map(|(_, task)| task));
        }
        for job in &touched.whole_jobs {
            let tasks = state.jobs().get(*job).map(|row| row.tasks.clone()).unwrap_or_default();
            touched.tasks.extend(tasks.iter());
        }
        touched.tasks.sort_unstable();
        touched.tasks.dedup();
        // What left frees its place before anybody else is put there.
        let left = |task: &TaskId| !state.tasks().get(*task).is_some_and(holds);
        touched.tasks.iter().copied().filter(left).for_each(|task| self.drop_task(task));
        if !self.reserved.is_empty() {
            touched.tasks.iter().for_each(|task| self.drop_old_reserved(state, *task));
        }
        touched.machines.iter().for_each(|machine| self.read_machine(state, *machine));
        let others = |machine: &MachineId| !touched.machines.contains(machine);
        let capacities = touched.capacities.iter().filter(|(_, machine)| others(machine));
        capacities.for_each(|(resource, machine)| self.read_capacity(state, *resource, *machine));
        touched.jobs.iter().for_each(|job| self.read_job(state, *job));
        let inside = |task: &TaskId| state.tasks().get(*task).is_some_and(|t| t.alloc().is_some());
        let (inner, outer): (Vec<TaskId>, Vec<TaskId>) =
            touched.tasks.into_iter().partition(inside);
        for task in outer.into_iter().chain(inner) {
            self.read_task(state, task, state.tasks().get(task));
        }
        for job in touched.jobs {
            if state.jobs().get(job).is_none_or(|row| row.is_dead()) {
                self.remove_job(job);
            }
        }
        self.made_at = state.applied();
    }

    /// Jobs whose alloc set is now another one, or none.
    fn jobs_of_changed_sets(&self, state: &State, touched: &Touched) -> Vec<JobId> {
        let is_set = |job: &JobId| {
            let kind = state.jobs().get(*job).map(|row| row.spec().kind);
            kind.or_else(|| self.job(*job).map(|row| row.spec.kind)) == Some(JobKind::AllocSet)
        };
        if !touched.jobs.iter().any(is_set) {
            return Vec::new();
        }
        let jobs = self.jobs.iter().enumerate().filter_map(|(slot, row)| {
            let set = row.as_ref()?.spec.alloc_set.as_ref()?;
            let moved = state.job_named(set) != row.as_ref()?.alloc_set;
            moved.then_some(JobId(slot as u32))
        });
        jobs.collect()
    }

    fn read_machine(&mut self, state: &State, id: MachineId) {
        let Some(row) = state.machines().get(id) else { return self.remove_machine(id) };
        let packages: Vec<PackageRef> = row.packages.iter().cloned().collect();
        let retained_disk = row.retained.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
        let facts = MachineFacts {
            spec: &row.spec,
            up: row.status == MachineStatus::Up,
            draining: row.draining,
            short: row.takes_only_prod(),
            retained_disk,
            ephemeral: &state.ephemeral_on(id),
            packages: &packages,
        };
        self.put_machine(id, &facts);
    }

    /// One capacity of a machine; the others, and who is there, stay as they are. A resource that
    /// is gone has no name any more, so its machine is read as a whole.
    fn read_capacity(&mut self, state: &State, resource: ResourceId, machine: MachineId) {
        match state.resources().get(resource).map(|row| &row.name) {
            Some(name) if state.machines().get(machine).is_some() => {
                let capacity = state.capacity_of(resource, machine).unwrap_or(0);
                self.put_capacity(machine, name, capacity);
            }
            _ => self.read_machine(state, machine),
        }
    }

    fn read_job(&mut self, state: &State, id: JobId) {
        let Some(row) = state.jobs().get(id).filter(|row| !row.is_dead()) else { return };
        let spec = row.spec();
        let load = state.job_load(id);
        let down = load.map_or(0, |load| load.down());
        let absent = load.map_or(0, |load| load.deferred + load.stopping);
        let facts = JobFacts {
            user: row.user,
            spec,
            version: row.version,
            alloc_set: spec.alloc_set.as_ref().and_then(|set| state.job_named(set)),
            budget: spec.max_down.map(|max| max.saturating_sub(down)),
            absent,
        };
        self.put_job(id, &facts);
    }

    /// What the state no longer says is held elsewhere frees its place before others are put there.
    fn drop_old_reserved(&mut self, state: &State, id: TaskId) {
        if self.reserved_of(id).is_some()
            && self.reserved_of(id) != state.tasks().get(id).and_then(reserved).as_ref()
        {
            self.unreserve(id);
        }
    }

    fn read_task(&mut self, state: &State, id: TaskId, row: Option<&Task>) {
        let job = row.and_then(|task| state.jobs().get(task.job));
        let (Some(task), Some(job)) = (row, job) else { return self.drop_task(id) };
        if let (true, Some(hold)) = (holds(task), task.primary()) {
            let facts = HeldFacts {
                job: task.job,
                index: task.index,
                attempt: task.attempt,
                spec: job.spec_of(task.version),
                version: task.version,
                holding: match task.state {
                    TaskState::Assigned => Holding::Assigned,
                    TaskState::Running => Holding::Running,
                    _ => Holding::Restarting,
                },
                machine: hold.machine,
                alloc: hold.alloc,
                reservation: task.reservation,
                ports: hold.ports(),
                devices: hold.devices(),
            };
            self.put_held(id, &facts);
            return self.put_reserved(id, reserved(task));
        }
        if task.state != TaskState::Pending || job.state != JobState::Active {
            return self.drop_task(id);
        }
        let crashed = || task.crashed_on.iter().filter(|p| task.avoids(p.machine, state.now()));
        let avoid: Vec<MachineId> = crashed().map(|pair| pair.machine).collect();
        self.crashes_end.extend(crashed().map(|pair| (pair.until, id)));
        let facts = PendingFacts {
            job: task.job,
            index: task.index,
            attempt: task.attempt,
            not_before: task.not_before,
            reservation: Some(task.reservation),
            avoid: &avoid,
        };
        self.put_pending(id, &facts);
    }
}

fn machine_tasks(state: &State) -> Option<u64> {
    Some(state.bounds().machine_tasks).filter(|most| *most < u64::MAX)
}

fn holds(task: &Task) -> bool {
    task.state.holds_resources() && task.machine().is_some()
}

/// What the task holds beside where it runs.
fn reserved(task: &Task) -> Option<Held> {
    let hold = task.holds.reserved().filter(|_| task.state.holds_resources())?;
    Some(Held {
        machine: hold.machine,
        alloc: hold.alloc,
        reservation: task.reservation,
        ports: hold.ports().to_vec(),
        devices: hold.devices().to_vec(),
    })
}
