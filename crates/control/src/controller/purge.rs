//! The purge controller: removes jobs that ended long ago. A command removes all that ended before
//! a time, so the oldest are gathered over a whole pass through the jobs and the time is chosen
//! between them, to remove about so many tasks and not the backlog of a week in one entry.
//!
//! A job whose disk is still retained, or whose lease may still run, outlives its time; the command
//! that would remove it changes nothing and is repeated later. Meanwhile the next time is tried, so
//! that one such job does not block all others.
//!
//! Where there is an archive, a job goes when it is in there. One that the archive does not take,
//! because its store is away, goes all the same once it has waited for as long as was configured:
//! the archive of a cell may cost it memory, and not its life.

use super::sweep::Cursor;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::JobId;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;

/// Jobs gathered in one pass.
const MAX_JOBS: usize = 4096;

#[derive(Debug, Default)]
pub struct Purge {
    cursor: Cursor,
    /// The oldest ended jobs seen in this pass, and how many tasks each has.
    oldest_ended: BTreeMap<(Time, JobId), usize>,
}

impl Controller for Purge {
    fn name(&self) -> ControllerName {
        ControllerName::Purge
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let (found, end) = self.cursor.advance(view.state.jobs(), view.settings.rows_per_step);
        for (id, job) in found {
            let old = |ended: &Time| is_due(view, *ended);
            if let Some(ended) = job.ended_at.filter(old) {
                self.oldest_ended.insert((ended, id), job.tasks.len());
            }
            if self.oldest_ended.len() > MAX_JOBS {
                self.oldest_ended.pop_last();
            }
        }
        if !end {
            return;
        }
        let times =
            purge_times(&std::mem::take(&mut self.oldest_ended), view.settings.tasks_per_purge);
        let mut commands =
            times.into_iter().map(|ended_before| Command::PurgeJobs { ended_before });
        if let Some(purge) = commands.find(|purge| draft.accepts(purge)) {
            draft.push(purge);
        }
    }
}

/// Whether a job that ended then may be forgotten.
fn is_due(view: &ControllerView<'_>, ended: Time) -> bool {
    let (age, keep) = (view.now.since(ended), view.settings.retain_dead_jobs);
    let has_waited =
        |wait: Span| ended < view.archived_before || age > Span(keep.0.saturating_add(wait.0));
    age > keep && view.settings.archive_wait.is_none_or(has_waited)
}

/// End times that divide the old jobs into batches of about `tasks` tasks each; the last time
/// covers all jobs.
fn purge_times(old: &BTreeMap<(Time, JobId), usize>, tasks: usize) -> Vec<Time> {
    let mut times = Vec::new();
    let mut gathered = 0;
    for ((ended, _), count) in old {
        gathered += count;
        if gathered >= tasks {
            times.push(Time(ended.0.saturating_add(1)));
            gathered = 0;
        }
    }
    times.extend(old.last_key_value().map(|((ended, _), _)| Time(ended.0.saturating_add(1))));
    times.dedup();
    times
}
