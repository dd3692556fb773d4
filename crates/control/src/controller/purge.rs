//! Forgetting jobs that ended long ago. A command forgets all that ended before a time, so the
//! oldest are gathered over a whole pass through the jobs and the time is chosen between them, to
//! forget about so many tasks and not the backlog of a week in one entry.
//!
//! A job whose disk is still kept, or whose lease may still run, outlives its time; the command
//! that would forget it changes nothing and is asked again later. Meanwhile the next time is tried,
//! so that one such job does not keep all others.

use super::sweep::Cursor;
use super::{Controller, Draft, Look};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::JobId;
use cellwright_cell::time::Time;
use std::collections::BTreeMap;

/// Jobs gathered in one pass.
const MOST_JOBS: usize = 4096;

#[derive(Debug, Default)]
pub struct Purge {
    cursor: Cursor,
    /// The oldest ended jobs seen in this pass, and how many tasks each has.
    old: BTreeMap<(Time, JobId), usize>,
}

impl Controller for Purge {
    fn name(&self) -> ControllerName {
        ControllerName::Purge
    }

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let (found, end) = self.cursor.advance(look.state.jobs(), look.settings.rows);
        for (id, job) in found {
            let old = |ended: &Time| look.now.since(*ended) > look.settings.keep_jobs;
            if let Some(ended) = job.ended_at.filter(old) {
                self.old.insert((ended, id), job.tasks.len());
            }
            if self.old.len() > MOST_JOBS {
                self.old.pop_last();
            }
        }
        if !end {
            return;
        }
        let times = cuts(&std::mem::take(&mut self.old), look.settings.purged_tasks);
        let mut commands =
            times.into_iter().map(|ended_before| Command::PurgeJobs { ended_before });
        if let Some(purge) = commands.find(|purge| draft.takes(purge)) {
            draft.push(purge);
        }
    }
}

/// Times before which ended, each time, about `tasks` more tasks; the last takes in all.
fn cuts(old: &BTreeMap<(Time, JobId), usize>, tasks: usize) -> Vec<Time> {
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
