//! The update controller: rolls updates out (B7). The next tasks of each open update are moved to
//! the new spec, as many at once as the job's disruption budget allows. A job without a budget
//! rolls in waves of a part of its tasks: its owner set no bound, and still does not expect all of
//! it to vanish at once. Tasks of the new version that do not come up stay down and use up the
//! budget, so a bad update stops by itself and waits for its owner.
//!
//! Where canaries try the new version, only they are moved. It is promoted here once they have been
//! well for as long as the job asks for; without such a span its owner promotes it. That a version
//! fails too often is decided where failures are reported (`cell`'s `apply/update/rollback.rs`).
//!
//! An update stays open until its owner closes it, because until then it can be undone. One that
//! was undone and has rolled all the way back is closed here: there is nothing left to return to,
//! and it would block the next update. So is one that changes limits alone.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::{Job, Update};
use cellwright_cell::name::JobKey;
use cellwright_cell::rollout;
use cellwright_cell::task::{Task, TaskState};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct RollingUpdate {
    open: Sweep<JobId>,
    /// Index of the next task to check, by job.
    next_task: BTreeMap<JobId, usize>,
}

impl Controller for RollingUpdate {
    fn name(&self) -> ControllerName {
        ControllerName::Update
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let settings = view.settings;
        let RollingUpdate { open, next_task: next } = self;
        open.scan(view.state.jobs(), settings.rows_per_step, |job| job.update.is_some());
        next.retain(|id, _| open.watched().contains(id));
        let share = settings.commands_per_step.div_ceil(open.watched().len().max(1));
        let mut rows_left = settings.rows_per_step;
        for id in open.in_turn().into_iter().take(settings.rows_per_step) {
            if draft.is_full() || rows_left == 0 {
                return;
            }
            open.last_served(id);
            let Some(rollout) = Rollout::of(view, id) else { continue };
            rollout.promote(draft);
            if rollout.all_at_version() {
                rollout.close_complete(draft);
                continue;
            }
            let next = next.entry(id).or_default();
            rows_left = rows_left.saturating_sub(rollout.steps(next, rows_left, share, draft));
        }
    }
}

/// One open update.
struct Rollout<'a> {
    view: &'a ControllerView<'a>,
    id: JobId,
    key: JobKey,
    job: &'a Job,
    update: &'a Update,
}

impl<'a> Rollout<'a> {
    fn of(view: &'a ControllerView<'a>, id: JobId) -> Option<Rollout<'a>> {
        let job = view.state.jobs().get(id)?;
        let update = job.update.as_ref()?;
        Some(Rollout { view, id, key: view.state.job_key(id)?, job, update })
    }

    fn all_at_version(&self) -> bool {
        let load = self.view.state.job_load(self.id);
        load.is_some_and(|load| load.at_version.keys().all(|v| *v == self.job.version))
    }

    /// Its canaries were well for long enough.
    fn promote(&self, draft: &mut CommandDraft<'_>) {
        let bugs = self.view.settings.bugs;
        let due = self.view.state.promotion_due(self.job);
        let is_due = due.is_some_and(|due| due <= self.view.now || bugs.promotes_at_once);
        if !is_due || bugs.never_promotes {
            return;
        }
        let (job, expect) = (self.key.clone(), Some(self.job.version));
        let promote = rollout::Command::Promote { job, expect }.into();
        if draft.accepts(&promote) {
            draft.push(promote);
        }
    }

    /// Nobody waits for the end of an update that was undone, or that is about limits alone.
    fn close_complete(&self, draft: &mut CommandDraft<'_>) {
        let ends_itself = self.update.undoing || self.update.limits_only;
        let over = ends_itself && self.update.skipped.is_empty();
        let (job, expect) = (self.key.clone(), Some(self.job.version));
        let close = Command::CloseUpdate { job, expect };
        if over && draft.accepts(&close) {
            draft.push(close);
        }
    }

    /// Steps up to `share` tasks, checking `rows_left` of them, from `next` on; returns how many
    /// were checked.
    fn steps(
        &self,
        next: &mut usize,
        rows_left: usize,
        share: usize,
        draft: &mut CommandDraft<'_>,
    ) -> usize {
        let tasks = &self.job.tasks;
        let rows_left = rows_left.min(tasks.len());
        let limit = draft.commands.len() + share;
        for checked in 0..rows_left {
            if draft.is_full() || draft.commands.len() >= limit {
                return checked;
            }
            let at = *next % tasks.len();
            *next = at + 1;
            let row = tasks.get(at).and_then(|id| self.view.state.tasks().get(*id));
            if let Some(row) = row.filter(|row| self.is_behind(row)) {
                self.step(row, tasks[at], draft);
            }
        }
        rows_left
    }

    fn is_behind(&self, task: &Task) -> bool {
        let is_left = self.update.undoing && self.view.settings.bugs.leaves_undone_updates;
        task.version != self.job.version
            && !is_left
            && !self.update.skipped.contains(&task.index)
            && !self.update.waits_for_promotion(task.index)
    }

    /// Whether tasks inside the alloc are about to give back room. They may not fit into the
    /// smaller alloc until they have, and need not move for it.
    fn waits_for_inner(&self, alloc: TaskId) -> bool {
        let state = self.view.state;
        let inner = state.alloc_load(alloc).map_or(&[][..], |load| &load.tasks);
        let mut rows = inner.iter().filter_map(|id| state.tasks().get(*id));
        rows.any(|row| row.limits_in_force.is_some())
    }

    fn step(&self, row: &Task, id: TaskId, draft: &mut CommandDraft<'_>) {
        if self.waits_for_inner(id) {
            return;
        }
        let step = Command::StepUpdate { job: self.key.clone(), index: row.index };
        let limit = self.job.update_bound();
        // Beyond its bound of disruptions an update only records the tasks that it skips.
        let notes_only = limit.is_some_and(|most| self.update.disruptions >= most);
        let free = row.state != TaskState::Running || notes_only;
        let state = self.view.state;
        if draft.accepts(&step) && (free || draft.budgets.take(state, id, |job| self.wave(job))) {
            draft.push(step);
        }
    }

    /// The bound for jobs without a budget. Jobs inside an alloc that restarts with its set have
    /// nothing to do with this update, and only their own budgets count.
    fn wave(&self, job: JobId) -> Option<u32> {
        (job == self.id).then(|| self.view.settings.wave(self.job.wanted()))
    }
}
