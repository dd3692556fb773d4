//! How large jobs are and how their tasks stand, for those who ask by name.
//!
//! Who finds three addresses needs to know whether there should be ten, and who finds none whether
//! the job is gone or only ill: so every job of tasks that is not over is here, with every task of
//! it, reached or not. Kept up to date like the directory, at the price of what changed: counting a
//! job's tasks for each question would let a stranger make us count thousands.

use crate::directory::Size;
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobKind;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use std::collections::{BTreeMap, BTreeSet};

/// How a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub state: &'static str,
    /// Running and healthy.
    pub healthy: bool,
    /// Failed its health check, and has not started again.
    pub ill: bool,
}

impl Standing {
    fn of(task: &Task) -> Standing {
        Standing {
            state: match task.state {
                TaskState::Deferred => "deferred",
                TaskState::Pending => "pending",
                TaskState::Assigned => "assigned",
                TaskState::Running => "running",
                TaskState::Stopping(_) => "stopping",
                TaskState::Dead(_) => "dead",
            },
            healthy: task.state == TaskState::Running && task.healthy,
            ill: task.state.on_machine() && !task.healthy,
        }
    }
}

/// The tasks of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    tasks: BTreeMap<u32, (TaskId, Standing)>,
    /// Invariant: counts those of `tasks` that the job shall have.
    size: Size,
}

impl Roll {
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    #[must_use]
    pub fn task(&self, index: u32) -> Option<Standing> {
        self.tasks.get(&index).map(|(_, standing)| *standing)
    }

    fn resize(&mut self, tasks: u32) {
        if tasks == self.size.tasks {
            return;
        }
        let all = || self.tasks.range(..tasks).map(|(_, (_, standing))| standing);
        let healthy = all().filter(|standing| standing.healthy).count() as u32;
        let ill = all().filter(|standing| standing.ill).count() as u32;
        self.size = Size { tasks, healthy, ill };
    }

    fn insert(&mut self, index: u32, id: TaskId, standing: Standing) {
        self.tasks.insert(index, (id, standing));
        if index < self.size.tasks {
            self.size.healthy += u32::from(standing.healthy);
            self.size.ill += u32::from(standing.ill);
        }
    }

    fn remove(&mut self, index: u32) {
        let Some((_, standing)) = self.tasks.remove(&index) else { return };
        if index < self.size.tasks {
            self.size.healthy -= u32::from(standing.healthy);
            self.size.ill -= u32::from(standing.ill);
        }
    }
}

/// All jobs of tasks that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    jobs: BTreeMap<JobKey, Roll>,
    keys: BTreeMap<JobId, JobKey>,
    /// Where in `jobs` a task is.
    places: BTreeMap<TaskId, (JobKey, u32)>,
}

impl Standings {
    #[must_use]
    pub fn from_state(state: &State) -> Standings {
        let mut standings = Standings::default();
        let jobs = state.jobs().iter().map(|(id, _)| id).collect();
        let tasks = state.tasks().iter().map(|(id, _)| id).collect();
        standings.follow(state, &jobs, &tasks);
        standings
    }

    /// Looks again at these.
    pub fn follow(&mut self, state: &State, jobs: &BTreeSet<JobId>, tasks: &BTreeSet<TaskId>) {
        // All that go before any that comes: a name passes from one row to another.
        for id in jobs {
            let now = alive(state, *id).map(|(key, _)| key);
            if self.keys.get(id) != now.as_ref() {
                self.drop_job(*id);
            }
        }
        for id in jobs {
            if let Some((key, job)) = alive(state, *id) {
                self.keys.insert(*id, key.clone());
                self.jobs.entry(key).or_default().resize(job.spec().count);
            }
        }
        for id in tasks {
            self.look(state, *id);
        }
    }

    #[must_use]
    pub fn job(&self, job: &JobKey) -> Option<&Roll> {
        self.jobs.get(job)
    }

    /// The first job at or after this one.
    #[must_use]
    pub fn from(&self, job: JobKey) -> Option<&JobKey> {
        self.jobs.range(job..).next().map(|(key, _)| key)
    }

    fn look(&mut self, state: &State, id: TaskId) {
        if let Some((job, index)) = self.places.remove(&id)
            && let Some(roll) = self.jobs.get_mut(&job)
        {
            roll.remove(index);
        }
        let Some(task) = state.tasks().get(id) else { return };
        let Some(key) = self.keys.get(&task.job) else { return };
        let Some(roll) = self.jobs.get_mut(key) else { return };
        roll.insert(task.index, id, Standing::of(task));
        self.places.insert(id, (key.clone(), task.index));
    }

    fn drop_job(&mut self, id: JobId) {
        let roll = self.keys.remove(&id).and_then(|key| self.jobs.remove(&key));
        for (task, _) in roll.into_iter().flat_map(|roll| roll.tasks.into_values()) {
            self.places.remove(&task);
        }
    }
}

fn alive(state: &State, id: JobId) -> Option<(JobKey, &Job)> {
    let is_told = |job: &&Job| !job.is_dead() && job.spec().kind == JobKind::Tasks;
    let job = state.jobs().get(id).filter(is_told)?;
    Some((state.job_key(id)?, job))
}
