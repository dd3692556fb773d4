//! Settling: the consequences of a command once it is done. Machines become over-committed or
//! recover, jobs whose tasks have all ended end, dependent jobs are released, quotas are exceeded
//! or recover. Runs after every command, on what the command touched.

use super::Context;
use crate::event::{EventKind, JobChange, MachineChange, TaskChange, UserChange};
use crate::id::{JobId, MachineId, TaskId, UserId};
use crate::job::{Job, JobOutcome, JobState};
use crate::priority::Band;
use crate::reason::Reason;
use crate::task::{TaskOutcome, TaskState};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn settle(&mut self) {
        // Ending a job can release others; releasing one whose dependency failed ends it.
        while let Some(job) = self.maybe_ended.pop() {
            self.settle_job(job);
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|machine| self.settle_machine(machine));
        let mut charged = std::mem::take(&mut self.charged);
        charged.sort_unstable();
        charged.dedup();
        charged.into_iter().for_each(|(user, band)| self.settle_quota(user, band));
    }

    /// Keeps the over-commitment flag equal to what the sums say.
    fn settle_machine(&mut self, machine: MachineId) {
        self.release_for_excess(machine);
        let Some(row) = self.state.machines.get(machine) else { return };
        let Some(load) = self.state.machine_loads.get(machine) else { return };
        let exceeds = load.exceeds(row);
        if exceeds == row.over_committed {
            return;
        }
        self.state.edit_machine(machine, |m| m.over_committed = exceeds);
        let (change, reason) = if exceeds {
            (MachineChange::OverCommitted, Reason::Excess)
        } else {
            (MachineChange::Recovered, Reason::ExcessGone)
        };
        self.emit(EventKind::Machine { machine, change }, reason);
    }

    pub(super) fn settle_quota(&mut self, user: UserId, band: Band) {
        let Some(row) = self.state.users.get(user) else { return };
        let granted = row.granted(band, self.now);
        let charged = self
            .state
            .user_loads
            .get(user)
            .and_then(|l| l.charged.get(&band).copied())
            .unwrap_or_default();
        let exceeded = !charged.within(granted);
        if exceeded == row.exceeded.contains(&band) {
            return;
        }
        if let Some(row) = self.state.users.get_mut(user) {
            if exceeded {
                row.exceeded.insert(band)
            } else {
                row.exceeded.remove(&band)
            };
        }
        let (change, reason) = if exceeded {
            (UserChange::QuotaExceeded { band }, Reason::Excess)
        } else {
            (UserChange::QuotaRecovered { band }, Reason::ExcessGone)
        };
        self.emit(EventKind::User { user, change }, reason);
    }

    fn settle_job(&mut self, id: JobId) {
        self.drop_unused_versions(id);
        let Some(job) = self.state.jobs.get(id) else { return };
        let Some(load) = self.state.job_loads.get(id) else { return };
        // A daemon goes on without tasks: the next machine may be one of its own.
        let goes_on = job.is_daemon() && job.state == JobState::Active;
        if job.is_dead() || load.live() > 0 || goes_on {
            return;
        }
        let failed = |fate: TaskOutcome| matches!(fate, TaskOutcome::Failed(_));
        let killed = |fate: TaskOutcome| fate == TaskOutcome::Killed;
        let outcome = match job.state {
            JobState::Stopping => JobOutcome::Killed,
            _ if load.failed > 0 && self.any_wanted_task(job, failed) => JobOutcome::Failed,
            _ if load.killed > 0 && self.any_wanted_task(job, killed) => JobOutcome::Killed,
            JobState::Deferred => JobOutcome::DependencyFailed,
            _ => JobOutcome::Succeeded,
        };
        self.end_job(id, outcome);
    }

    /// Tasks that a shrink removed do not count for the outcome of the job.
    fn any_wanted_task(&self, job: &Job, ended: fn(TaskOutcome) -> bool) -> bool {
        let mut wanted = (0u32..).zip(job.tasks.iter()).filter(|(index, _)| job.wants(*index));
        let state = |id: &TaskId| self.state.tasks.get(*id).map(|task| task.state);
        wanted.any(|(_, id)| matches!(state(id), Some(TaskState::Dead(fate)) if ended(fate)))
    }

    fn end_job(&mut self, id: JobId, outcome: JobOutcome) {
        let now = self.now;
        self.touch_quotas(id);
        self.state.edit_job(id, |job| {
            job.state = JobState::Dead(outcome);
            job.ended_at = Some(now);
            job.waits_for.clear();
            job.update = None;
            (job.machines, job.machines_left_out) = (Arc::default(), 0);
        });
        self.drop_unused_versions(id);
        let change = match outcome {
            JobOutcome::Succeeded => JobChange::Succeeded,
            JobOutcome::Failed => JobChange::Failed,
            JobOutcome::Killed => JobChange::Killed,
            JobOutcome::DependencyFailed => JobChange::NeverRan,
        };
        let reason = match outcome {
            JobOutcome::DependencyFailed => {
                let needed =
                    self.state.jobs.get(id).and_then(|job| self.state.failed_dependency(job));
                needed.map_or(Reason::AllTasksEnded, |job| Reason::DependencyFailed { job })
            }
            _ => Reason::AllTasksEnded,
        };
        self.emit(EventKind::Job { job: id, change }, reason);
        let waiting = self.state.dependents.get(&id).cloned().unwrap_or_default();
        for dependent in waiting {
            self.release_dependent(dependent, id, outcome);
        }
    }

    /// Quotas that the job draws on, at any version, are checked when the command is done.
    pub(super) fn touch_quotas(&mut self, id: JobId) {
        let Some(job) = self.state.jobs.get(id) else { return };
        let bands = job.specs.values().map(|spec| spec.priority.band());
        self.charged.extend(bands.map(|band| (job.user, band)));
    }

    /// Drops specs that no task runs and no open update may return to.
    pub(super) fn drop_unused_versions(&mut self, id: JobId) {
        if self.state.jobs.get(id).is_none_or(|job| job.specs.len() <= 1) {
            return;
        }
        // A task may have left an old version that others still run: it is charged less now.
        self.touch_quotas(id);
        let Some(job) = self.state.jobs.get(id) else { return };
        let Some(load) = self.state.job_loads.get(id) else { return };
        let mut keep: BTreeSet<u32> = load.at_version.keys().copied().collect();
        keep.insert(job.version);
        keep.extend(job.update.iter().flat_map(|update| [update.from, update.to]));
        if job.specs.keys().all(|version| keep.contains(version)) {
            return;
        }
        let dropped = job.specs.iter().filter(|(version, _)| !keep.contains(*version));
        let dropped = dropped.map(|(version, spec)| (*version, spec.clone())).collect();
        self.state.edit_job(id, |job| job.specs.retain(|version, _| keep.contains(version)));
        self.keep_dropped_specs(id, dropped);
    }

    /// The job `on`, for which `id` waited, has ended with `outcome` (B6). The last one to end
    /// releases it; one that had to succeed and did not ends the wait for all.
    pub(super) fn release_dependent(&mut self, id: JobId, on: JobId, outcome: JobOutcome) {
        let Some(job) = self.state.jobs.get(id).cloned() else { return };
        if !job.waits_for.contains(&on) {
            return;
        }
        let key = self.state.job_key(on);
        let mut dependencies =
            job.spec().after.iter().filter(|after| Some(&after.job) == key.as_ref());
        let strict = dependencies.any(|after| after.require_success);
        if strict && outcome != JobOutcome::Succeeded {
            self.state.edit_job(id, |job| job.waits_for.clear());
            for task in self.deferred_tasks(&job) {
                let why = Reason::DependencyFailed { job: on };
                self.mark_dead(task, TaskOutcome::DependencyFailed, TaskChange::NeverRan, why);
            }
            return;
        }
        let left = job.waits_for.len() as u32 - 1;
        self.state.edit_job(id, |job| {
            job.waits_for.remove(&on);
            if left == 0 {
                job.state = JobState::Active;
            }
        });
        if left > 0 {
            return self.job_event(id, JobChange::StillWaits { left }, Reason::DependencyMet);
        }
        self.emit(EventKind::Job { job: id, change: JobChange::Released }, Reason::DependencyMet);
        for task in self.deferred_tasks(&job) {
            self.set_task(task, |t| t.state = TaskState::Pending);
            self.task_event(task, TaskChange::Released, Reason::DependencyMet);
        }
    }

    /// Tasks that still wait with their job; a resize may have ended others meanwhile.
    fn deferred_tasks(&self, job: &Job) -> Vec<TaskId> {
        let waits = |id: &&TaskId| {
            self.state.tasks.get(**id).is_some_and(|t| t.state == TaskState::Deferred)
        };
        job.tasks.iter().filter(waits).copied().collect()
    }
}
