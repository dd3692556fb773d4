//! A gang gets its places and loses them as a whole, as far as the system chooses: a plan that
//! places a task of a gang leaves none of the gang's tasks pending, one that preempts a task of a
//! gang leaves none of it in its place, and a gang that gives back what it holds keeps nothing and
//! was not whole. What the world takes (a machine, a task that fails) may leave a part of a gang.

use super::{Check, Step, violation};
use crate::command::{Command, Done};
use crate::event::EventKind;
use crate::id::JobId;
use crate::job::Job;
use crate::name::JobKey;
use crate::reason::Reason;
use crate::state::State;
use crate::task::TaskState;
use std::collections::BTreeSet;

const NAME: &str = "gang_whole";

pub(super) fn check(step: &Step<'_>) -> Check {
    match step.only_command() {
        Some((Command::CommitPlan(_), _)) => {
            placed_whole(step)?;
            preempted_whole(step)
        }
        Some((Command::GiveBack { job }, Ok(Done::Applied))) => given_back_whole(step, job),
        _ => Ok(()),
    }
}

fn placed_whole(step: &Step<'_>) -> Check {
    for (id, job) in step.after.jobs.iter().filter(|(_, job)| job.spec().gang) {
        let waited = waiting(step.before, job);
        let left = waiting(step.after, job);
        if left < waited && left > 0 {
            let row = format!("job row {} ({})", id.0, job.name);
            let detail = format!("{waited} tasks waited, {left} were left waiting");
            return Err(violation(NAME, row, detail));
        }
    }
    Ok(())
}

fn preempted_whole(step: &Step<'_>) -> Check {
    let preempted = step.events.iter().filter_map(|event| match (&event.kind, &event.reason) {
        (EventKind::Task { job, .. }, Reason::Preempted { .. }) => Some(*job),
        _ => None,
    });
    let jobs: BTreeSet<JobId> = preempted.collect();
    for (id, job) in jobs.into_iter().filter_map(|id| Some((id, step.after.jobs.get(id)?))) {
        let kept = holding(step.after, job);
        if job.spec().gang && kept > 0 {
            let row = format!("job row {} ({})", id.0, job.name);
            let detail = format!("preempted, and {kept} of its tasks are still in place");
            return Err(violation(NAME, row, detail));
        }
    }
    Ok(())
}

fn given_back_whole(step: &Step<'_>, key: &JobKey) -> Check {
    let Some(job) = step.after.job_named(key).and_then(|id| step.after.jobs.get(id)) else {
        return Err(violation(NAME, key, "gave back, and is no job"));
    };
    let (held, lacked) = (holding(step.before, job), waiting(step.before, job));
    let kept = holding(step.after, job);
    if kept == 0 && held > 0 && lacked > 0 && job.spec().gang {
        return Ok(());
    }
    let detail = format!("gave back: {held} tasks held room, {lacked} waited, {kept} still hold");
    Err(violation(NAME, key, detail))
}

fn waiting(state: &State, job: &Job) -> usize {
    count(state, job, |state| state == TaskState::Pending)
}

fn holding(state: &State, job: &Job) -> usize {
    count(state, job, TaskState::holds_resources)
}

fn count(state: &State, job: &Job, counts: impl Fn(TaskState) -> bool) -> usize {
    let rows = job.tasks.iter().filter_map(|task| state.tasks.get(*task));
    rows.filter(|row| counts(row.state)).count()
}
