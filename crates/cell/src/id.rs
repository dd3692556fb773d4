//! Ids. Ids of rows come from the crate below, `cellwright-rows`; the id of one attempt at running
//! a task is defined here, because it is made from what a machine is ordered to run.

pub use cellwright_rows::id::{
    BlobId, CronId, JobId, MachineId, ResourceId, TaskId, TokenId, UserId,
};

use serde::{Deserialize, Serialize};
use std::fmt;

/// One attempt at running one task. Orders to an attempt, and failures of it, say nothing about the
/// next one: that is another program on another machine.
///
/// A log saver that fetches what an attempt left behind runs under that attempt's name, with the
/// number of the run: it is no task of its own, and its work belongs to that attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub task: TaskId,
    pub number: u32,
    /// The run of the log saver, from 1; 0 for the attempt itself.
    pub log_saver_run: u32,
}

impl Attempt {
    #[must_use]
    pub const fn new(task: TaskId, number: u32) -> Attempt {
        Attempt { task, number, log_saver_run: 0 }
    }

    #[must_use]
    pub const fn is_log_saver(self) -> bool {
        self.log_saver_run > 0
    }

    /// The attempt whose data a log saver fetches; the attempt itself for all others.
    #[must_use]
    pub const fn without_log_saver(self) -> Attempt {
        Attempt { log_saver_run: 0, ..self }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task.0, self.number)?;
        match self.log_saver_run {
            0 => Ok(()),
            run => write!(f, "-{run}"),
        }
    }
}
