//! Gangs that are not whole: they were placed together, and some of their tasks have lost their
//! places to a drain, an excess or a dead machine (B28, B32). Who is preempted goes as a whole at
//! once, see `apply/gang.rs`.
//!
//! A part of a gang computes nothing and holds room that others could use, so a gang has some time
//! to be made whole, its job's `repair`, and then gives back what it still holds and waits as a
//! whole. Gangs that each lack what another holds would all do so at once and be where they were:
//! of gangs that are broken at a time, the one that counts most gives back last. The others do so
//! when its time is over, or their own, and it has its time once more from then.
//!
//! Everything follows from the rows: since when a task waits, and why its last attempt ended.
//! Rejected: evicting all of a gang with the first of its tasks that is lost. Most losses are
//! mended within seconds on another machine, and the tasks that stayed have kept their work.
//! Rejected: one that gives back after the other until all others are whole. A rack that fails
//! breaks hundreds of gangs, and the last would hold its part for hours.

use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::priority::Priority;
use crate::reason::Reason;
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::{Task, TaskState};
use crate::time::{Span, Time};
use std::cmp::Reverse;

/// How long a gang may lack a task, unless its job says otherwise.
pub const REPAIR: Span = Span::seconds(60);

/// A gang that holds some of its places and waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenGang {
    pub job: JobId,
    /// When it gives back what it holds, as things are.
    pub gives_back_at: Time,
}

/// The gangs of `jobs` that are broken, with when each gives back. The rule looks at all gangs of
/// the cell, so `jobs` must name at least all that may be broken.
#[must_use]
pub fn broken_gangs(state: &State, jobs: impl IntoIterator<Item = JobId>) -> Vec<BrokenGang> {
    let rows = jobs.into_iter().filter_map(|id| Some((id, state.jobs().get(id)?)));
    let lacking: Vec<(JobId, &Job)> =
        rows.filter(|(id, job)| is_worth_a_look(state, *id, job)).collect();
    let broken: Vec<(JobId, &Job, Time)> = lacking
        .iter()
        .filter_map(|(id, job)| Some((*id, *job, broken_since(state, job)?)))
        .collect();
    let Some(last) = broken.iter().max_by_key(|(id, job, _)| rank(*id, job)).copied() else {
        return Vec::new();
    };
    let others = lacking.iter().filter(|(id, _)| *id != last.0);
    let given_back = others.filter_map(|(_, job)| gave_back_at(state, job)).max();
    let turn = turn_of_last(last, given_back);
    let end = |(id, job, since): (JobId, &Job, Time)| {
        let own = since.plus(repair(job.spec()));
        if id != last.0 {
            own.min(turn)
        } else if broken.len() > 1 {
            // The others go first.
            own.plus(repair(job.spec()))
        } else {
            turn
        }
    };
    broken.iter().map(|gang| BrokenGang { job: gang.0, gives_back_at: end(*gang) }).collect()
}

/// When the time is over of the gang that gives back last. It counts again from when another gang
/// gave back, once.
fn turn_of_last((_, job, since): (JobId, &Job, Time), given_back: Option<Time>) -> Time {
    let repair = repair(job.spec());
    let first = since.plus(repair);
    let again = given_back.filter(|at| *at >= since).map(|at| at.plus(repair));
    again.map_or(first, |again| again.min(first.plus(repair)))
}

/// When the gang gives back what it holds; nothing for a job that is no broken gang.
#[must_use]
pub fn gives_back_at(state: &State, id: JobId) -> Option<Time> {
    let job = state.jobs().get(id).filter(|job| is_worth_a_look(state, id, job))?;
    broken_since(state, job)?;
    let all = broken_gangs(state, state.jobs().iter().map(|(id, _)| id));
    all.into_iter().find(|gang| gang.job == id).map(|gang| gang.gives_back_at)
}

/// How many of the gang's tasks hold places, and how many wait for one.
#[must_use]
pub fn held_and_waiting(state: &State, job: &Job) -> (u32, u32) {
    let rows = job.tasks.iter().filter_map(|task| state.tasks().get(*task));
    rows.fold((0, 0), |(held, waiting), row| {
        let waits = row.state == TaskState::Pending;
        (held + u32::from(row.state.holds_resources()), waiting + u32::from(waits))
    })
}

/// Whether the job is a gang with tasks that wait: all others are whole, or wait for nothing.
fn is_worth_a_look(state: &State, id: JobId, job: &Job) -> bool {
    job.state == JobState::Active
        && state.job_load(id).is_some_and(|load| load.pending > 0)
        && job.spec().gang
}

/// Since when the gang has lacked a task that it waits for, while it holds others; nothing for one
/// that is whole, or waits as a whole. A back-off is a task's own and does not count.
fn broken_since(state: &State, job: &Job) -> Option<Time> {
    let rows = || job.tasks.iter().filter_map(|task| state.tasks().get(*task));
    let missing = rows().filter(|row| row.state == TaskState::Pending);
    let since = missing.map(|row| row.changed_at.max(row.not_before)).min()?;
    rows().any(|row| row.state.holds_resources()).then_some(since)
}

fn repair(spec: &JobSpec) -> Span {
    spec.repair.unwrap_or(REPAIR)
}

/// Higher priorities count more, then older jobs.
fn rank(id: JobId, job: &Job) -> (Priority, Reverse<(Time, JobId)>) {
    (job.spec().priority, Reverse((job.submitted_at, id)))
}

/// When the gang last gave back, as far as its tasks know.
fn gave_back_at(state: &State, job: &Job) -> Option<Time> {
    let at = |row: &Task| {
        row.last_end.as_ref().filter(|end| end.why == Reason::GangBroken).map(|end| end.at)
    };
    job.tasks.iter().filter_map(|task| at(state.tasks().get(*task)?)).max()
}
