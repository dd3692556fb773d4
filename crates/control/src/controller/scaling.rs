//! The scaling controller: decides on the sizes of jobs (B42). What was measured and remembered is
//! in the job's row, the rules are in the crate `scale`; here is what a decision is made from, and
//! that there is one for each measurement at most: a step is bounded, and its length is a minute.
//!
//! What is measured reaches the log through [`LoadFeed`], which the leading master feeds.

mod load_feed;

pub use load_feed::LoadFeed;

use super::sweep::Cursor;
use super::{CommandDraft, Controller, ControllerBugs, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::JobId;
use cellwright_cell::job::{Job, JobState};
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::{Decision, ScaleMode, ScalePolicy, ScaleSize, SignalName};
use cellwright_cell::scaling::{self, Scaling as Row};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_scale::{MINUTE, Measured, Situation, decide};

/// A decision reads all tasks of its job.
const ROWS_PER_JOB: usize = 16;

#[derive(Debug, Default)]
pub struct Scaling {
    cursor: Cursor,
}

impl Controller for Scaling {
    fn name(&self) -> ControllerName {
        ControllerName::Scaling
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let max = (view.settings.rows_per_step / ROWS_PER_JOB).max(1).min(draft.room().max(1));
        let (found, _) = self.cursor.advance(view.state.scalings(), max);
        for (_, row) in found {
            let command = command(view.state, row, view.now, view.settings.bugs);
            let Some(command) = command.map(Command::from) else { continue };
            if draft.accepts(&command) {
                draft.push(command);
            }
        }
    }
}

/// What is to be done about one scaled job, if anything.
fn command(state: &State, row: &Row, now: Time, bugs: ControllerBugs) -> Option<scaling::Command> {
    let job = state.jobs().get(row.job).filter(|job| !job.is_dead());
    let Some((job, policy)) = job.and_then(|job| Some((job, job.spec().scale.as_ref()?))) else {
        return Some(scaling::Command::Forget { job: row.job });
    };
    if job.state != JobState::Active || !is_due(row, now) {
        return None;
    }
    let seen = situation(state, row.job, job, policy, row, now)?;
    let decision = decide(&with_bugs(seen, bugs));
    let says_more = row.decision.as_ref().is_none_or(|last| decision.differs_from(last));
    let is_news =
        says_more && (decision.changes_size() || row.decision.is_some() || has_more(&decision));
    is_news.then_some(scaling::Command::Decide { job: row.job, decision })
}

/// The first decision on a job that needs nothing is no news.
fn has_more(decision: &Decision) -> bool {
    decision.want != decision.from || !decision.vetoes.is_empty()
}

/// Once for each measurement, or for each minute in which there is none.
fn is_due(row: &Row, now: Time) -> bool {
    let memory = &row.memory;
    let last = memory.grown_at.max(memory.shrunk_at).max(memory.limits_at);
    let measured = row.measured.as_ref().is_some_and(|measured| measured.at > last);
    last == Time::ZERO || measured || now >= last.plus(Span(MINUTE))
}

/// What the rules say now. `None`: the job has no owner any more.
#[must_use]
pub fn decision(
    state: &State,
    id: JobId,
    job: &Job,
    policy: &ScalePolicy,
    row: &Row,
    now: Time,
) -> Option<Decision> {
    situation(state, id, job, policy, row, now).map(|seen| decide(&seen))
}

/// The situation as a controller with these bugs sees it.
fn with_bugs(mut seen: Situation<'_>, bugs: ControllerBugs) -> Situation<'_> {
    if bugs.ignores_quota {
        seen.room = None;
    }
    if bugs.forgets_unmeasured_tasks {
        seen.measured.iter_mut().for_each(|measured| measured.missing = 0);
    }
    if bugs.takes_silence_for_rest {
        let nothing = Measured { at: seen.now, by: SignalName::Cpu, need: 0, missing: 0 };
        seen.measured.get_or_insert(nothing);
    }
    seen
}

/// What a decision about the job is made from.
fn situation<'a>(
    state: &'a State,
    id: JobId,
    job: &Job,
    policy: &'a ScalePolicy,
    row: &'a Row,
    now: Time,
) -> Option<Situation<'a>> {
    let spec = job.spec();
    let load = state.job_load(id)?;
    let mode = match (row.manual, policy.advise) {
        (true, _) => ScaleMode::Manual,
        (false, true) => ScaleMode::Advise,
        (false, false) => ScaleMode::Auto,
    };
    let failing = job.tasks.iter().filter_map(|task| state.tasks().get(*task));
    let failing = failing.filter(|task| task.failures_in_row > 0 && !task.state.is_dead()).count();
    let last_own = spec.overrides.last_key_value().map_or(0, |(index, _)| index.saturating_add(1));
    // The same decision of a minute is the same command.
    let minute = Time(now.0 - now.0 % MINUTE);
    Some(Situation {
        now: minute.max(row.measured.as_ref().map_or(Time::ZERO, |measured| measured.at)),
        policy,
        mode,
        size: ScaleSize::of(spec),
        fewest: last_own.max(1),
        failing: u32::try_from(failing).unwrap_or(u32::MAX),
        update_open: job.update.is_some() && !job.update_is_complete(load),
        memory: &row.memory,
        measured: row.measured.as_ref().map(|measured| Measured {
            at: measured.at,
            by: measured.by.clone(),
            need: measured.need,
            missing: measured.missing,
        }),
        untold: row.untold.as_ref(),
        room: quota_left(state, job, spec, now),
    })
}

/// What the owner's quota has left for the job. `None`: it is charged nothing.
fn quota_left(state: &State, job: &Job, spec: &JobSpec, now: Time) -> Option<Resources> {
    if spec.alloc_set.is_some() || spec.priority.0 == 0 {
        return None;
    }
    let band = spec.priority.band();
    let granted = state.users().get(job.user)?.granted(band, now);
    let charged = state.user_load(job.user).and_then(|load| load.charged.get(&band).copied());
    Some(granted.minus(charged.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
