//! Keeps the cluster snapshot in step with a state: it is built whole, then updated by the state's
//! events. An event only says *which* rows to read again; their values are read from the state, so
//! that a misread event cannot make the mirror drift. Rows that a pass wrote are read again as
//! well: a rejected plan has no events.

use super::{
    AssumedChanges, ClusterSnapshot, Hold, JobInfo, MachineInfo, PendingTaskInfo, PlacedTaskInfo,
    TaskPhase,
};
use cellwright_cell::components;
use cellwright_cell::event::{Event, EventKind, JobChange};
use cellwright_cell::id::{JobId, MachineId, ResourceId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::spec::{JobKind, PackageRef};
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use std::collections::BTreeSet;

/// Rows to read again from the state.
#[derive(Debug, Default)]
struct DirtyRows {
    machines: BTreeSet<MachineId>,
    /// Capacities of named resources on machines that are otherwise unchanged.
    capacities: BTreeSet<(ResourceId, MachineId)>,
    jobs: BTreeSet<JobId>,
    /// Jobs all of whose tasks are read again.
    whole_jobs: BTreeSet<JobId>,
    tasks: Vec<TaskId>,
}

impl DirtyRows {
    fn from_events(events: &[Event]) -> DirtyRows {
        let mut touched = DirtyRows::default();
        for event in events {
            match &event.kind {
                EventKind::Task { task, job, .. } => {
                    touched.tasks.push(*task);
                    touched.jobs.insert(*job);
                }
                EventKind::Job { job, change } => {
                    touched.jobs.insert(*job);
                    // A submission's tasks have events of their own.
                    if !matches!(change, JobChange::Submitted | JobChange::Accepted) {
                        touched.whole_jobs.insert(*job);
                    }
                }
                EventKind::Machine { machine, .. } => {
                    touched.machines.insert(*machine);
                }
                // Capacity changes name their machine; an event without one concerns leases and
                // names.
                EventKind::Component(components::Event::Ephemeral(event)) => {
                    let at = event.machine.map(|machine| (event.resource, machine));
                    touched.capacities.extend(at);
                }
                // No other component is part of the snapshot.
                EventKind::Component(_)
                | EventKind::JobRejected { .. }
                | EventKind::User { .. }
                | EventKind::LevelRaised { .. }
                | EventKind::BoundsChanged
                | EventKind::Token { .. }
                | EventKind::Blob { .. } => {}
            }
        }
        touched
    }

    fn add(&mut self, assumed: AssumedChanges) {
        self.tasks.extend(assumed.tasks);
        self.jobs.extend(assumed.jobs);
        self.machines.extend(assumed.machines);
    }
}

impl ClusterSnapshot {
    /// The snapshot of a state: all tasks that are pending or hold resources.
    #[must_use]
    pub fn from_state(state: &State) -> ClusterSnapshot {
        let mut snapshot = ClusterSnapshot {
            max_tasks_per_machine: max_tasks_per_machine(state),
            ..ClusterSnapshot::new()
        };
        for (id, _) in state.machines().iter() {
            snapshot.refresh_machine(state, id);
        }
        for (id, _) in state.jobs().iter() {
            snapshot.refresh_job(state, id);
        }
        // Allocs before those inside them.
        let inside = |task: &Task| task.alloc().is_some();
        for (id, task) in state.tasks().iter().filter(|(_, t)| !inside(t)) {
            snapshot.refresh_task(state, id, Some(task));
        }
        for (id, task) in state.tasks().iter().filter(|(_, t)| inside(t)) {
            snapshot.refresh_task(state, id, Some(task));
        }
        snapshot.made_at = state.applied();
        snapshot.assumed = Some(AssumedChanges::default());
        snapshot
    }

    /// Applies the changes of `events`; `state` is the state after them. Rows written by a pass are
    /// replaced by what the state has, so a plan must be committed before the next sync.
    pub fn sync(&mut self, state: &State, events: &[Event]) {
        // The limit changes the meaning of every machine's row. It happens when operators change a
        // setting: nothing that depended on the old meaning is worth keeping.
        if self.max_tasks_per_machine != max_tasks_per_machine(state) {
            *self = ClusterSnapshot { passes: self.passes, ..ClusterSnapshot::from_state(state) };
            return;
        }
        let mut touched = DirtyRows::from_events(events);
        let moved_sets = self.jobs_of_changed_sets(state, &touched);
        touched.jobs.extend(moved_sets.iter().copied());
        touched.whole_jobs.extend(moved_sets);
        touched.add(self.assumed.replace(AssumedChanges::default()).unwrap_or_default());
        // Crash avoidance ends by the clock alone, without an event.
        while self.crash_avoidance_ends.first().is_some_and(|(until, _)| *until <= state.now()) {
            touched.tasks.extend(self.crash_avoidance_ends.pop_first().map(|(_, task)| task));
        }
        for job in &touched.whole_jobs {
            let tasks = state.jobs().get(*job).map(|row| row.tasks.clone()).unwrap_or_default();
            touched.tasks.extend(tasks.iter());
        }
        touched.tasks.sort_unstable();
        touched.tasks.dedup();
        // Tasks that left free their room before any other task is placed there.
        let left = |task: &TaskId| !state.tasks().get(*task).is_some_and(is_holding);
        touched.tasks.iter().copied().filter(left).for_each(|task| self.drop_task(task));
        if !self.reserved.is_empty() {
            touched.tasks.iter().for_each(|task| self.drop_stale_reserved(state, *task));
        }
        touched.machines.iter().for_each(|machine| self.refresh_machine(state, *machine));
        let others = |machine: &MachineId| !touched.machines.contains(machine);
        let capacities = touched.capacities.iter().filter(|(_, machine)| others(machine));
        capacities
            .for_each(|(resource, machine)| self.refresh_capacity(state, *resource, *machine));
        touched.jobs.iter().for_each(|job| self.refresh_job(state, *job));
        let inside = |task: &TaskId| state.tasks().get(*task).is_some_and(|t| t.alloc().is_some());
        let (inner, outer): (Vec<TaskId>, Vec<TaskId>) =
            touched.tasks.into_iter().partition(inside);
        for task in outer.into_iter().chain(inner) {
            self.refresh_task(state, task, state.tasks().get(task));
        }
        for job in touched.jobs {
            if state.jobs().get(job).is_none_or(|row| row.is_dead()) {
                self.remove_job(job);
            }
        }
        self.made_at = state.applied();
    }

    /// Jobs whose alloc set is now another one, or none.
    fn jobs_of_changed_sets(&self, state: &State, touched: &DirtyRows) -> Vec<JobId> {
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

    fn refresh_machine(&mut self, state: &State, id: MachineId) {
        let Some(row) = state.machines().get(id) else { return self.remove_machine(id) };
        let packages: Vec<PackageRef> = row.packages.iter().cloned().collect();
        let retained_disk = row.retained.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
        let info = MachineInfo {
            spec: &row.spec,
            up: row.status == MachineStatus::Up,
            draining: row.draining,
            under_pressure: row.accepts_only_prod(),
            retained_disk,
            ephemeral: &state.ephemeral_on(id),
            packages: &packages,
        };
        self.put_machine(id, &info);
    }

    /// Reads one capacity of a machine; the others, and the tasks there, stay as they are. A
    /// resource that is gone has no name any more, so its machine is read as a whole.
    fn refresh_capacity(&mut self, state: &State, resource: ResourceId, machine: MachineId) {
        match state.resources().get(resource).map(|row| &row.name) {
            Some(name) if state.machines().get(machine).is_some() => {
                let capacity = state.capacity_of(resource, machine).unwrap_or(0);
                self.put_capacity(machine, name, capacity);
            }
            _ => self.refresh_machine(state, machine),
        }
    }

    fn refresh_job(&mut self, state: &State, id: JobId) {
        let Some(row) = state.jobs().get(id).filter(|row| !row.is_dead()) else { return };
        let spec = row.spec();
        let load = state.job_load(id);
        let down = load.map_or(0, |load| load.down());
        let absent = load.map_or(0, |load| load.deferred + load.stopping);
        let info = JobInfo {
            user: row.user,
            spec,
            version: row.version,
            alloc_set: spec.alloc_set.as_ref().and_then(|set| state.job_named(set)),
            machines: &row.machines,
            budget: spec.max_down.map(|max| max.saturating_sub(down)),
            in_transition: absent,
        };
        self.put_job(id, &info);
    }

    /// A reservation elsewhere that the state no longer has frees its room before tasks are placed
    /// there.
    fn drop_stale_reserved(&mut self, state: &State, id: TaskId) {
        if self.reserved_of(id).is_some()
            && self.reserved_of(id) != state.tasks().get(id).and_then(reserved_hold).as_ref()
        {
            self.unreserve(id);
        }
    }

    fn refresh_task(&mut self, state: &State, id: TaskId, row: Option<&Task>) {
        let job = row.and_then(|task| state.jobs().get(task.job));
        let (Some(task), Some(job)) = (row, job) else { return self.drop_task(id) };
        if let (true, Some(hold)) = (is_holding(task), task.primary()) {
            let spec = job.spec_of(task.version);
            let info = PlacedTaskInfo {
                job: task.job,
                index: task.index,
                attempt: task.attempt,
                spec,
                version: task.version,
                limits: task.counted_limits(spec.limits_of(task.index)),
                phase: match task.state {
                    TaskState::Assigned => TaskPhase::Assigned,
                    TaskState::Running => TaskPhase::Running,
                    _ => TaskPhase::Restarting,
                },
                machine: hold.machine,
                alloc: hold.alloc,
                reservation: task.reservation,
                ports: hold.ports(),
                devices: hold.devices(),
            };
            self.put_placed(id, &info);
            return self.put_reserved(id, reserved_hold(task));
        }
        if task.state != TaskState::Pending || job.state != JobState::Active {
            return self.drop_task(id);
        }
        let crashed = || task.crashed_on.iter().filter(|p| task.avoids(p.machine, state.now()));
        let avoid: Vec<MachineId> = crashed().map(|pair| pair.machine).collect();
        self.crash_avoidance_ends.extend(crashed().map(|pair| (pair.until, id)));
        let info = PendingTaskInfo {
            job: task.job,
            index: task.index,
            attempt: task.attempt,
            not_before: task.not_before,
            reservation: Some(task.reservation),
            avoid: &avoid,
        };
        self.put_pending(id, &info);
    }
}

fn max_tasks_per_machine(state: &State) -> Option<u64> {
    Some(state.bounds().machine_tasks).filter(|limit| *limit < u64::MAX)
}

fn is_holding(task: &Task) -> bool {
    task.state.holds_resources() && task.machine().is_some()
}

/// What the task holds on a machine where it does not run.
fn reserved_hold(task: &Task) -> Option<Hold> {
    let hold = task.holds.reserved().filter(|_| task.state.holds_resources())?;
    Some(Hold {
        machine: hold.machine,
        alloc: hold.alloc,
        reservation: task.reservation,
        ports: hold.ports().to_vec(),
        devices: hold.devices().to_vec(),
    })
}
