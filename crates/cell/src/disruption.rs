//! Disruption limits (B41): how often the cell may choose to disrupt a job, as at most so many
//! tasks within any span of a given length; beside `max_down`, which bounds how many are down at
//! once. A job whose tasks start within a second keeps to `max_down: 1` and still loses all its
//! caches in a minute of drains.
//!
//! The times of past disruptions are in the job's row, the latest as many as the limit counts:
//! older ones cannot matter. Rejected: reading them from the rows of tasks, which say how the last
//! attempt ended. A task that is moved twice, or that crashes after it was moved, would count too
//! little.

#[cfg(feature = "schema")]
use crate::admit::MAX_SPAN;
use crate::id::{JobId, TaskId};
use crate::job::Job;
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::TaskState;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest `most` of a limit: each is a time in the job's row.
pub const MAX_DISRUPTIONS: u32 = 1000;

/// At most `most` tasks of the job are disrupted by choice of the system (drains, rebalancing)
/// within any span of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DisruptionLimit {
    /// Tasks.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_DISRUPTIONS)))]
    pub most: u32,
    /// Length of the span, in milliseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub within: Span,
}

impl DisruptionLimit {
    /// When `tasks` more may be disrupted at once after those at the times `earlier`, oldest first:
    /// `now` or later; [`Time::NEVER`] if the limit never allows that many at once.
    #[must_use]
    pub fn next_allowed_at(self, earlier: &[Time], tasks: u32, now: Time) -> Time {
        if tasks > self.most {
            return Time::NEVER;
        }
        // At most this many of the latest may lie within the span.
        let still_allowed = (self.most - tasks) as usize;
        let Some(last_blocking) = earlier.len().checked_sub(still_allowed + 1) else { return now };
        earlier[last_blocking].plus(self.within).max(now)
    }
}

impl Job {
    /// When the cell may choose to disrupt `tasks` of the job at once; `now` without a limit.
    #[must_use]
    pub fn next_disruption_at(&self, tasks: u32, now: Time) -> Time {
        let limit = self.spec().disruptions;
        limit.map_or(now, |limit| limit.next_allowed_at(&self.disrupted_at, tasks, now))
    }
}

/// Whether `tasks` more of a job may be down at once with the `down` that are. Tasks that are
/// paired with one alloc leave together or not at all: where they are more than the job allows,
/// they may leave when no other task of the job is down.
#[must_use]
pub fn within_max_down(spec: &JobSpec, down: u32, tasks: u32) -> bool {
    let Some(most) = spec.max_down else { return true };
    let leave_together = spec.paired_index(0).is_some() && most > 0 && down == 0;
    down.saturating_add(tasks) <= most || (leave_together && tasks > most)
}

/// Running tasks by job that go down with `task`; an alloc goes down with the tasks inside it.
/// Tasks that do not run are down already.
#[must_use]
pub fn disrupted_tasks(state: &State, task: TaskId) -> BTreeMap<JobId, u32> {
    let inner = state.alloc_load(task).map_or(&[][..], |load| &load.tasks);
    let mut stops = BTreeMap::new();
    for id in std::iter::once(&task).chain(inner) {
        let running = state.tasks().get(*id).filter(|row| row.state == TaskState::Running);
        if let Some(row) = running {
            *stops.entry(row.job).or_default() += 1;
        }
    }
    stops
}

/// The job whose disruption limit keeps the cell from moving `task` now, and until when; the one
/// that takes longest, if tasks of several jobs would go down with it.
#[must_use]
pub fn blocking_job(state: &State, task: TaskId, now: Time) -> Option<(JobId, Time)> {
    let turns = disrupted_tasks(state, task).into_iter().filter_map(|(job, tasks)| {
        let turn = state.jobs().get(job)?.next_disruption_at(tasks, now);
        (turn > now).then_some((job, turn))
    });
    turns.max_by_key(|(_, turn)| *turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_span_has_room_for() {
        let check = |most: u32, earlier: &[u64], tasks: u32, now: u64, want: Time| {
            let earlier: Vec<Time> = earlier.iter().copied().map(Time).collect();
            let limit = DisruptionLimit { most, within: Span(100) };
            let case = format!("{most} in 100 after {earlier:?}, {tasks} at {now}");
            assert_eq!(limit.next_allowed_at(&earlier, tasks, Time(now)), want, "{case}");
        };
        check(1, &[], 1, 50, Time(50));
        check(1, &[50], 1, 50, Time(150));
        check(1, &[50], 1, 149, Time(150));
        check(1, &[50], 1, 150, Time(150));
        check(1, &[50], 1, 500, Time(500));
        check(2, &[50], 1, 60, Time(60));
        check(2, &[50], 2, 60, Time(150));
        check(2, &[50, 60], 1, 70, Time(150));
        check(2, &[50, 60], 2, 70, Time(160));
        // More times are on record than the limit, which was lowered, counts.
        check(1, &[50, 60, 70], 1, 80, Time(170));
        check(2, &[], 3, 80, Time::NEVER);
    }
}
