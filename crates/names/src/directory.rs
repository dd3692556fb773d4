//! The directory: which tasks are reachable endpoints, on which machines and ports.
//!
//! A task has an address while it runs and is healthy on a machine that is up and has one; a task
//! that is stopping has none any more, so that traffic leaves before it does. The status of every
//! task is kept beside it ([`crate::task_status`]). The directory is kept up to date from the
//! events of each entry, at the cost of the changed tasks only; rebuilt from the state it is the
//! same, which is what the tests check.

use crate::task_status::{JobStatus, JobStatuses};
use cellwright_cell::event::{Event, EventKind, JobChange};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A reachable task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub task: TaskId,
    pub attempt: u32,
    pub machine: MachineId,
    pub address: IpAddr,
    /// The ports of the task: static ones first, then dynamic ones.
    pub ports: Vec<u16>,
}

type Tasks = BTreeMap<u32, Endpoint>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Log index of the directory's content.
    version: u64,
    /// Invariant: no job without an endpoint.
    jobs: BTreeMap<JobKey, Tasks>,
    /// Job and index of each task in `jobs`.
    task_locations: BTreeMap<TaskId, (JobKey, u32)>,
    machines: BTreeMap<MachineId, BTreeSet<TaskId>>,
    statuses: JobStatuses,
}

impl Directory {
    /// The directory for the state at log index `version`.
    #[must_use]
    pub fn from_state(state: &State, version: u64) -> Directory {
        let statuses = JobStatuses::from_state(state);
        let mut directory = Directory { version, statuses, ..Directory::default() };
        for (id, task) in state.tasks().iter() {
            directory.refresh_task(state, id, Some(task));
        }
        directory
    }

    /// Applies one entry: `events` are its events, `state` is the state after it.
    pub fn apply_events(&mut self, state: &State, events: &[Event], version: u64) {
        let (mut touched, mut jobs) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
            match &event.kind {
                EventKind::Task { task, .. } => drop(touched.insert(*task)),
                EventKind::Job { job, change } => {
                    jobs.insert(*job);
                    // While it was over, none of its tasks was here.
                    if *change == JobChange::StartedAgain {
                        let row = state.jobs().get(*job);
                        touched.extend(row.iter().flat_map(|row| row.tasks.iter().copied()));
                    }
                }
                EventKind::Machine { machine, .. } => {
                    touched.extend(self.machines.get(machine).into_iter().flatten());
                    touched.extend(state.machine_load(*machine).iter().flat_map(|l| &l.tasks));
                }
                _ => {}
            }
        }
        self.statuses.refresh(state, &jobs, &touched);
        for id in touched {
            self.refresh_task(state, id, state.tasks().get(id));
        }
        self.version = version;
    }

    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The healthy tasks of a job by index.
    #[must_use]
    pub fn job(&self, job: &JobKey) -> Option<&BTreeMap<u32, Endpoint>> {
        self.jobs.get(job)
    }

    pub fn jobs(&self) -> impl Iterator<Item = (&JobKey, &BTreeMap<u32, Endpoint>)> {
        self.jobs.iter()
    }

    /// The status of a job and its tasks; `None` for a job that is over.
    #[must_use]
    pub fn job_status(&self, job: &JobKey) -> Option<&JobStatus> {
        self.statuses.job(job)
    }

    /// Whether the user has a job that is not over.
    #[must_use]
    pub fn has_user(&self, user: &Name) -> bool {
        // No job's name sorts before this one: they begin with a digit or a letter.
        let Ok(job) = Name::new("0") else { return false };
        let first = JobKey { user: user.clone(), job };
        self.statuses.first_from(first).is_some_and(|key| key.user == *user)
    }

    fn refresh_task(&mut self, state: &State, id: TaskId, task: Option<&Task>) {
        self.remove_task(id);
        let Some(task) = task else { return };
        let Some(endpoint) = reachable_endpoint(state, id, task) else { return };
        let Some(job) = state.job_key(task.job) else { return };
        self.machines.entry(endpoint.machine).or_default().insert(id);
        self.task_locations.insert(id, (job.clone(), task.index));
        self.jobs.entry(job).or_default().insert(task.index, endpoint);
    }

    fn remove_task(&mut self, id: TaskId) {
        let Some((job, index)) = self.task_locations.remove(&id) else { return };
        let Some(tasks) = self.jobs.get_mut(&job) else { return };
        let Some(endpoint) = tasks.remove(&index) else { return };
        if tasks.is_empty() {
            self.jobs.remove(&job);
        }
        if let Some(on_machine) = self.machines.get_mut(&endpoint.machine) {
            on_machine.remove(&id);
            if on_machine.is_empty() {
                self.machines.remove(&endpoint.machine);
            }
        }
    }
}

/// The healthy tasks of a job by index, straight from a state.
#[must_use]
pub fn endpoints_of(state: &State, job: &JobKey) -> BTreeMap<u32, Endpoint> {
    let row = state.job_named(job).and_then(|id| state.jobs().get(id));
    let tasks = row.into_iter().flat_map(|row| row.tasks.iter());
    let found = tasks.filter_map(|id| {
        let task = state.tasks().get(*id)?;
        Some((task.index, reachable_endpoint(state, *id, task)?))
    });
    found.collect()
}

/// The size of a job and the health of its tasks: a client that balances load over 3 endpoints
/// needs to know whether there should be 10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSize {
    /// Tasks that the job should have.
    pub tasks: u32,
    /// Running and healthy.
    pub healthy: u32,
    /// Failed their health check, and have not started again.
    pub unhealthy: u32,
}

/// Straight from a state; a job that does not exist, or is an alloc set, has no tasks.
#[must_use]
pub fn job_size(state: &State, job: &JobKey) -> JobSize {
    let Some(row) = state.job_named(job).and_then(|id| state.jobs().get(id)) else {
        return JobSize::default();
    };
    if !row.spec().kind.runs_programs() {
        return JobSize::default();
    }
    let rows = row.tasks.iter().take(row.index_end() as usize);
    let rows = rows.filter_map(|id| state.tasks().get(*id));
    let mut size = JobSize { tasks: row.wanted(), ..JobSize::default() };
    for task in rows {
        size.healthy += u32::from(task.state == TaskState::Running && task.healthy);
        size.unhealthy += u32::from(task.state.is_on_machine() && !task.healthy);
    }
    size
}

fn reachable_endpoint(state: &State, id: TaskId, task: &Task) -> Option<Endpoint> {
    if task.state != TaskState::Running || !task.healthy {
        return None;
    }
    let is_program = state.spec_of(task).is_some_and(|spec| spec.kind.runs_programs());
    let machine = task.machine()?;
    let row = state.machines().get(machine)?;
    if !is_program || row.status != MachineStatus::Up {
        return None;
    }
    let address = row.spec.address?;
    let ports = task.ports().to_vec();
    Some(Endpoint { task: id, attempt: task.attempt, machine, address, ports })
}

#[cfg(test)]
mod tests;
