//! Rolling updates forward (B7): the next tasks of each open update are told to take the new spec,
//! as many at once as the job's disruption budget allows. A job without a budget rolls in waves of
//! a part of its tasks: its owner set no bound, and still does not expect all of it to vanish at
//! once. Tasks of the new version that do not come up stay down and use up the budget, so a bad
//! update stops by itself and waits for its owner.
//!
//! An update stays open until its owner closes it, because until then it can be undone. One that
//! was undone and has rolled all the way back is closed here: there is nothing left to return to,
//! and it would keep the next update waiting.

use super::sweep::Sweep;
use super::{Controller, Draft, Look};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::JobId;
use cellwright_cell::job::{Job, Update};
use cellwright_cell::name::JobKey;
use cellwright_cell::task::{Task, TaskState};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct RollingUpdate {
    open: Sweep<JobId>,
    /// Index of the task to look at next, by job.
    next: BTreeMap<JobId, usize>,
}

impl Controller for RollingUpdate {
    fn name(&self) -> ControllerName {
        ControllerName::Update
    }

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let settings = look.settings;
        let RollingUpdate { open, next } = self;
        open.look(look.state.jobs(), settings.rows, |job| job.update.is_some());
        next.retain(|id, _| open.watched().contains(id));
        let share = settings.commands.div_ceil(open.watched().len().max(1));
        let mut looks = settings.rows;
        for id in open.in_turn().into_iter().take(settings.rows) {
            if draft.is_full() || looks == 0 {
                return;
            }
            open.served(id);
            let Some(roll) = Roll::of(look, id) else { continue };
            if roll.all_at_version() {
                roll.close_undone(draft);
                continue;
            }
            let next = next.entry(id).or_default();
            looks = looks.saturating_sub(roll.steps(next, looks, share, draft));
        }
    }
}

/// One open update.
struct Roll<'a> {
    look: &'a Look<'a>,
    id: JobId,
    key: JobKey,
    job: &'a Job,
    update: &'a Update,
}

impl<'a> Roll<'a> {
    fn of(look: &'a Look<'a>, id: JobId) -> Option<Roll<'a>> {
        let job = look.state.jobs().get(id)?;
        let update = job.update.as_ref()?;
        Some(Roll { look, id, key: look.state.job_key(id)?, job, update })
    }

    fn all_at_version(&self) -> bool {
        let load = self.look.state.job_load(self.id);
        load.is_some_and(|load| load.at_version.keys().all(|v| *v == self.job.version))
    }

    fn close_undone(&self, draft: &mut Draft<'_>) {
        let over = self.update.undoing && self.update.skipped.is_empty();
        let (job, expect) = (self.key.clone(), Some(self.job.version));
        let close = Command::CloseUpdate { job, expect };
        if over && draft.takes(&close) {
            draft.push(close);
        }
    }

    /// Steps up to `share` tasks, looking at `looks` of them, from `next` on; how many were looked
    /// at.
    fn steps(&self, next: &mut usize, looks: usize, share: usize, draft: &mut Draft<'_>) -> usize {
        let tasks = &self.job.tasks;
        let looks = looks.min(tasks.len());
        let most = draft.commands.len() + share;
        for looked in 0..looks {
            if draft.is_full() || draft.commands.len() >= most {
                return looked;
            }
            let at = *next % tasks.len();
            *next = at + 1;
            let row = tasks.get(at).and_then(|id| self.look.state.tasks().get(*id));
            if let Some(row) = row.filter(|row| self.is_behind(row)) {
                self.step(row, tasks[at], draft);
            }
        }
        looks
    }

    fn is_behind(&self, task: &Task) -> bool {
        task.version != self.job.version && !self.update.skipped.contains(&task.index)
    }

    fn step(&self, row: &Task, id: cellwright_cell::id::TaskId, draft: &mut Draft<'_>) {
        let step = Command::StepUpdate { job: self.key.clone(), index: row.index };
        let most = self.job.spec().max_update_disruptions;
        // Beyond its bound of disruptions an update only takes note of those it leaves alone.
        let notes_only = most.is_some_and(|most| self.update.disruptions >= most);
        let free = row.state != TaskState::Running || notes_only;
        let state = self.look.state;
        if draft.takes(&step) && (free || draft.budgets.take(state, id, |job| self.wave(job))) {
            draft.push(step);
        }
    }

    /// What bounds jobs without a budget. Jobs inside an alloc that restarts with its set have
    /// nothing to do with this update, and their own budgets alone count.
    fn wave(&self, job: JobId) -> Option<u32> {
        let count = u64::from(self.job.spec().count);
        let part = count * u64::from(self.look.settings.wave_permille) / 1000;
        (job == self.id).then_some(u32::try_from(part).unwrap_or(u32::MAX).max(1))
    }
}
