//! Which tasks of a job inside an alloc set go into which alloc (B9).
//!
//! By default they pair by index: server 2 and its log saver 2 are in alloc 2, wherever that is. A
//! job with more tasks than the set has allocs goes round, so that twice as many tasks are two in
//! each. A job whose tasks are all alike to it may say that any alloc with room will do.
//!
//! Rejected: any alloc by default, which puts two servers into one alloc and their savers into
//! another as soon as there is room; an alloc's own list of jobs, which would have to be known
//! before the jobs are.

use crate::id::TaskId;
use crate::spec::JobSpec;
use crate::state::State;
use serde::{Deserialize, Serialize};

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AllocPairing {
    /// Task 0 in alloc 0, task 1 in alloc 1, and round again if there are more tasks than allocs.
    #[default]
    Index,
    /// Each task in any alloc that has room for it.
    Any,
}

impl JobSpec {
    /// The index of the task, if it decides which alloc the task may enter.
    #[must_use]
    pub fn paired_index(&self, index: u32) -> Option<u32> {
        let pairs = self.alloc_set.is_some() && self.alloc_pairing == AllocPairing::Index;
        pairs.then_some(index)
    }

    /// Of an alloc set: the index of the alloc for tasks with this index.
    #[must_use]
    pub fn alloc_for(&self, index: u32) -> u32 {
        index % self.count.max(1)
    }

    /// Whether its task at `index` may be in `alloc`, which is one of its set.
    pub(crate) fn may_enter(&self, state: &State, index: u32, alloc: TaskId) -> bool {
        let Some(index) = self.paired_index(index) else { return true };
        let row = state.tasks().get(alloc);
        let set = row.and_then(|row| Some((row.index, state.jobs().get(row.job)?.spec())));
        set.is_some_and(|(at, set)| set.alloc_for(index) == at)
    }
}
