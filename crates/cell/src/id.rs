//! Identities. Those of rows are of the crate below, `cellwright-rows`; that of one try at running
//! a task is ours, for it is made from what a machine is told.

pub use cellwright_rows::id::{
    BlobId, CronId, JobId, MachineId, ResourceId, TaskId, TokenId, UserId,
};

use serde::{Deserialize, Serialize};
use std::fmt;

/// One try at running one task. What was told to an attempt, or held against it, says nothing about
/// the next one: that is another program in another place.
///
/// A saver that fetches what an attempt left behind runs under that attempt's name, with the number
/// of the run: it is no task of its own, and what it fetches is that attempt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub task: TaskId,
    pub number: u32,
    /// Which run of its saver this is, from 1; 0 for the attempt itself.
    pub saver: u32,
}

impl Attempt {
    #[must_use]
    pub const fn new(task: TaskId, number: u32) -> Attempt {
        Attempt { task, number, saver: 0 }
    }

    #[must_use]
    pub const fn is_saver(self) -> bool {
        self.saver > 0
    }

    /// Whose leavings a saver fetches; itself for all others.
    #[must_use]
    pub const fn without_saver(self) -> Attempt {
        Attempt { saver: 0, ..self }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task.0, self.number)?;
        match self.saver {
            0 => Ok(()),
            run => write!(f, "-{run}"),
        }
    }
}
