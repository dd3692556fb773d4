//! The size of jobs and the status of their tasks, by name.
//!
//! A client that finds three addresses needs to know whether there should be ten, and one that
//! finds none whether the job is gone or only unhealthy: so every job of tasks that is not over is
//! here, with every one of its tasks, reachable or not. Kept up to date like the directory, at the
//! cost of the changes only: counting a job's tasks for each query would let any client make us
//! count thousands.

use crate::directory::JobSize;
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use std::collections::{BTreeMap, BTreeSet};

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    pub state: &'static str,
    /// Running and healthy.
    pub healthy: bool,
    /// Failed its health check, and has not started again.
    pub unhealthy: bool,
}

impl TaskStatus {
    fn of(task: &Task) -> TaskStatus {
        TaskStatus {
            state: match task.state {
                TaskState::Deferred => "deferred",
                TaskState::Pending => "pending",
                TaskState::Assigned => "assigned",
                TaskState::Running => "running",
                TaskState::Stopping(_) => "stopping",
                TaskState::Dead(_) => "dead",
            },
            healthy: task.state == TaskState::Running && task.healthy,
            unhealthy: task.state.is_on_machine() && !task.healthy,
        }
    }
}

/// The tasks of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    key: JobKey,
    tasks: BTreeMap<u32, (TaskId, TaskStatus)>,
    /// Indices below this are of tasks that the job should have; of a daemon some of them are of
    /// machines that left.
    end: u32,
    /// Invariant: counts those of `tasks` with such an index.
    size: JobSize,
}

impl JobStatus {
    fn new(key: JobKey) -> JobStatus {
        JobStatus { key, tasks: BTreeMap::new(), end: 0, size: JobSize::default() }
    }

    #[must_use]
    pub fn size(&self) -> JobSize {
        self.size
    }

    #[must_use]
    pub fn task(&self, index: u32) -> Option<TaskStatus> {
        self.tasks.get(&index).map(|(_, status)| *status)
    }

    fn resize(&mut self, end: u32, tasks: u32) {
        if (end, tasks) == (self.end, self.size.tasks) {
            return;
        }
        self.end = end;
        let all = || self.tasks.range(..end).map(|(_, (_, status))| status);
        let healthy = all().filter(|status| status.healthy).count() as u32;
        let unhealthy = all().filter(|status| status.unhealthy).count() as u32;
        self.size = JobSize { tasks, healthy, unhealthy };
    }

    fn insert(&mut self, index: u32, id: TaskId, status: TaskStatus) {
        let before = self.tasks.insert(index, (id, status));
        self.count(index, before.map(|(_, status)| status), Some(status));
    }

    /// Removes a task, unless another has its index by now.
    fn remove(&mut self, index: u32, id: TaskId) {
        if self.tasks.get(&index).is_some_and(|(holder, _)| *holder == id) {
            let before = self.tasks.remove(&index);
            self.count(index, before.map(|(_, status)| status), None);
        }
    }

    fn count(&mut self, index: u32, before: Option<TaskStatus>, after: Option<TaskStatus>) {
        if index < self.end {
            let counts = |status: Option<TaskStatus>| {
                status.map_or((0, 0), |s| (u32::from(s.healthy), u32::from(s.unhealthy)))
            };
            let (less, more) = (counts(before), counts(after));
            self.size.healthy = self.size.healthy + more.0 - less.0;
            self.size.unhealthy = self.size.unhealthy + more.1 - less.1;
        }
    }
}

/// All jobs of tasks that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatuses {
    jobs: BTreeMap<JobId, JobStatus>,
    /// Invariant: exactly the names of `jobs`.
    ids: BTreeMap<JobKey, JobId>,
    /// Job and index of each task in `jobs`.
    task_locations: BTreeMap<TaskId, (JobId, u32)>,
}

impl JobStatuses {
    #[must_use]
    pub fn from_state(state: &State) -> JobStatuses {
        let mut statuses = JobStatuses::default();
        let jobs = state.jobs().iter().map(|(id, _)| id).collect();
        let tasks = state.tasks().iter().map(|(id, _)| id).collect();
        statuses.refresh(state, &jobs, &tasks);
        statuses
    }

    /// Reads these jobs and tasks again.
    pub fn refresh(&mut self, state: &State, jobs: &BTreeSet<JobId>, tasks: &BTreeSet<TaskId>) {
        // Removals before additions: a name passes from one row to another.
        for id in jobs {
            if let Some(old) = self.jobs.get(id)
                && live_job(state, *id).is_none_or(|(key, _)| key != old.key)
            {
                self.drop_job(*id);
            }
        }
        for id in jobs {
            if let Some((key, job)) = live_job(state, *id) {
                let ids = &mut self.ids;
                let status = self.jobs.entry(*id).or_insert_with(|| {
                    ids.insert(key.clone(), *id);
                    JobStatus::new(key)
                });
                status.resize(job.index_end(), job.wanted());
            }
        }
        for id in tasks {
            self.refresh_task(state, *id);
        }
    }

    #[must_use]
    pub fn job(&self, job: &JobKey) -> Option<&JobStatus> {
        self.jobs.get(self.ids.get(job)?)
    }

    /// The first job at or after this one.
    #[must_use]
    pub fn first_from(&self, job: JobKey) -> Option<&JobKey> {
        self.ids.range(job..).next().map(|(key, _)| key)
    }

    fn refresh_task(&mut self, state: &State, id: TaskId) {
        let task = state.tasks().get(id);
        let place = task.map(|task| (task.job, task.index));
        if let Some(old) = self.task_locations.get(&id).copied()
            && Some(old) != place
        {
            self.task_locations.remove(&id);
            if let Some(status) = self.jobs.get_mut(&old.0) {
                status.remove(old.1, id);
            }
        }
        let Some(task) = task else { return };
        let Some(status) = self.jobs.get_mut(&task.job) else { return };
        status.insert(task.index, id, TaskStatus::of(task));
        self.task_locations.insert(id, (task.job, task.index));
    }

    fn drop_job(&mut self, id: JobId) {
        let Some(status) = self.jobs.remove(&id) else { return };
        self.ids.remove(&status.key);
        for (task, _) in status.tasks.into_values() {
            self.task_locations.remove(&task);
        }
    }
}

fn live_job(state: &State, id: JobId) -> Option<(JobKey, &Job)> {
    let is_served = |job: &&Job| !job.is_dead() && job.spec().kind.runs_programs();
    let job = state.jobs().get(id).filter(is_served)?;
    Some((state.job_key(id)?, job))
}
