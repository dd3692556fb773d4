//! Notice (B8): how long a task that is told to stop has until it is killed.
//!
//! A job says how much it would like. Whoever waits for the room is not to wait for as long as
//! another user pleases, so the cell has a longest notice for each band, an operator's setting like
//! the other [`Bounds`](crate::bounds::Bounds); a preemptor, the deadline of a drain and whoever
//! stops the task at once may shorten it further. Cut when it is used and not when the job is
//! submitted: the job keeps what it asked for, and gets it where an operator allows more.

use crate::id::TaskId;
use crate::priority::Band;
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::{Task, TaskState};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The longest notice of each band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LongestNotice {
    pub best_effort: Span,
    pub batch: Span,
    pub production: Span,
    pub monitoring: Span,
}

impl Default for LongestNotice {
    /// A new state has no limits.
    fn default() -> LongestNotice {
        LongestNotice::same(Span(u64::MAX))
    }
}

impl LongestNotice {
    /// The same for all bands.
    #[must_use]
    pub fn same(most: Span) -> LongestNotice {
        LongestNotice { best_effort: most, batch: most, production: most, monitoring: most }
    }

    #[must_use]
    pub fn of(&self, band: Band) -> Span {
        match band {
            Band::BestEffort => self.best_effort,
            Band::Batch => self.batch,
            Band::Production => self.production,
            Band::Monitoring => self.monitoring,
        }
    }
}

/// The notice that a task of this job gets from the cell, if nothing shortens it.
#[must_use]
pub fn notice_of_job(state: &State, spec: &JobSpec) -> Span {
    spec.task.notice.min(state.bounds().longest_notice.of(spec.priority.band()))
}

/// What the job asks for and the cell does not give: the wish and the longest notice of its band.
#[must_use]
pub fn cut_notice(state: &State, spec: &JobSpec) -> Option<(Span, Span)> {
    let (asked, given) = (spec.task.notice, notice_of_job(state, spec));
    (given < asked).then_some((asked, given))
}

/// The notice of a task that is told to stop.
#[must_use]
pub fn notice_of_task(state: &State, row: &Task, spec: &JobSpec) -> Span {
    let notice = notice_of_job(state, spec);
    row.notice_max.map_or(notice, |most| notice.min(most))
}

/// When a stopping task is killed at the latest, counted from when it was told to; for an alloc,
/// when the last task inside it is. Nothing for a task that is not stopping.
#[must_use]
pub fn killed_at(state: &State, task: TaskId) -> Option<Time> {
    let own = |id: &TaskId| {
        let row = state.tasks().get(*id)?;
        let told = row.last_end.as_ref().filter(|end| end.attempt == row.attempt)?.at;
        let stops = matches!(row.state, TaskState::Stopping(_));
        stops.then_some(told.plus(notice_of_task(state, row, state.spec_of(row)?)))
    };
    let inner = state.alloc_load(task).map_or(&[][..], |load| &load.tasks);
    let at = own(&task)?;
    Some(inner.iter().filter_map(own).max().map_or(at, |inner| inner.max(at)))
}
