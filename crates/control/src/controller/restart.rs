//! The restart controller: tasks whose owner wants them restarted are, as many at a time as the
//! job's disruption budget allows; those of a job without one in waves, as updates roll. Tasks that
//! do not come up again stay down and use up the budget, so a restart that fails stops by itself.
//!
//! Which tasks are left is in their rows: a new leader goes on where the last one was.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::JobId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct RollingRestart {
    jobs: Sweep<JobId>,
    /// Index of the next task to check, by job.
    next_task: BTreeMap<JobId, usize>,
}

impl Controller for RollingRestart {
    fn name(&self) -> ControllerName {
        ControllerName::Restart
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let (state, settings) = (view.state, view.settings);
        let RollingRestart { jobs, next_task } = self;
        jobs.scan_by_key(state.jobs(), settings.rows_per_step, |id, _| {
            let to_restart = state.job_load(id).map_or(0, |load| load.to_restart);
            to_restart > 0 && !settings.bugs.skips_restarts
        });
        next_task.retain(|id, _| jobs.watched().contains(id));
        let share = settings.commands_per_step.div_ceil(jobs.watched().len().max(1));
        let mut rows_left = settings.rows_per_step;
        for id in jobs.in_turn() {
            if draft.is_full() || rows_left == 0 {
                return;
            }
            jobs.last_served(id);
            let next = next_task.entry(id).or_default();
            rows_left = rows_left.saturating_sub(steps(view, id, next, (rows_left, share), draft));
        }
    }
}

/// Restarts up to `share` tasks of the job, checking `rows_left` of them from `next` on; returns
/// how many were checked.
fn steps(
    view: &ControllerView<'_>,
    id: JobId,
    next: &mut usize,
    (rows_left, share): (usize, usize),
    draft: &mut CommandDraft<'_>,
) -> usize {
    let state = view.state;
    let (Some(job), Some(key)) = (state.jobs().get(id), state.job_key(id)) else { return 0 };
    let rows_left = rows_left.min(job.tasks.len());
    let limit = draft.commands.len() + share;
    let wave = view.settings.wave(job.wanted());
    for checked in 0..rows_left {
        if draft.is_full() || draft.commands.len() >= limit {
            return checked;
        }
        let at = *next % job.tasks.len();
        *next = at + 1;
        let task = job.tasks[at];
        let row = state.tasks().get(task).filter(|row| row.restart_due);
        let Some(index) = row.map(|row| row.index) else { continue };
        let step = Command::StepRestart { job: key.clone(), index };
        let bound = |other: JobId| (other == id).then_some(wave);
        if draft.accepts(&step) && draft.budgets.take(state, task, bound) {
            draft.push(step);
        }
    }
    rows_left
}
