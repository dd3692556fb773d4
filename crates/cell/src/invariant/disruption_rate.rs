//! Voluntary moves never disrupt more tasks of a job within a span than the job allows, each such
//! task leaves a time in the job's row, and nothing else does. Counted over the tasks' rows and the
//! times before the step.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::disruption::MAX_DISRUPTIONS;
use crate::id::JobId;
use crate::job::Job;
use crate::state::State;
use crate::task::TaskState;
use crate::time::Time;

const NAME: &str = "disruption_rate";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter() {
        let times = &job.disrupted_at;
        let ahead = times.last().is_some_and(|last| *last > state.now);
        if ahead || !times.is_sorted() || times.len() > MAX_DISRUPTIONS as usize {
            let detail = format!("disrupted at {times:?}, now {:?}", state.now);
            return Err(violation(NAME, name(state, id), detail));
        }
    }
    Ok(())
}

pub(super) fn check_step(step: &Step<'_>) -> Check {
    let Some((command, _)) = step.only_command() else { return Ok(()) };
    let by_choice = matches!(command, Command::Evict { .. }) && step.voluntary_command().is_some();
    for (id, before) in step.before.jobs.iter() {
        let Some(after) = step.after.jobs.get(id) else { continue };
        let stopped = if by_choice { stopped(step, before) } else { 0 };
        check_job(before, after, stopped, step.after.now)
            .map_err(|detail| violation(NAME, name(step.after, id), detail))?;
    }
    Ok(())
}

fn check_job(before: &Job, after: &Job, stopped: usize, now: Time) -> Result<(), String> {
    let (old, new) = (&before.disrupted_at, &after.disrupted_at);
    let limit = before.spec().disruptions.filter(|_| stopped > 0);
    let Some(limit) = limit else {
        return if old == new {
            Ok(())
        } else {
            Err(format!("times of disruptions went from {old:?} to {new:?} for nothing"))
        };
    };
    let in_span = old.iter().filter(|at| now.since(**at) < limit.within).count();
    if in_span + stopped > limit.most as usize {
        let (most, within) = (limit.most, limit.within.0);
        return Err(format!(
            "{stopped} stopped and {in_span} before within {within} ms; at most {most} allowed"
        ));
    }
    let mut want = old.clone();
    want.resize(old.len() + stopped, now);
    let kept = want.len().min(limit.most as usize);
    if want.ends_with(new) && new.len() >= kept {
        Ok(())
    } else {
        Err(format!("{stopped} stopped, and times went from {old:?} to {new:?}"))
    }
}

/// Number of tasks that ran before the step and do not run after it.
fn stopped(step: &Step<'_>, job: &Job) -> usize {
    let ran = |state: &State, task| {
        state.tasks.get(task).is_some_and(|row| row.state == TaskState::Running)
    };
    let rows = job.tasks.iter();
    rows.filter(|task| ran(step.before, **task) && !ran(step.after, **task)).count()
}

fn name(state: &State, job: JobId) -> String {
    state.job_key(job).map_or_else(String::new, |key| key.to_string())
}
