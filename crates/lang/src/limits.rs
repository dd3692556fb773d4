//! Resource limits for the evaluation of a file. A configuration that loops or grows without end is
//! a common mistake; each limit ends it with an error that names the limit.

use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time, which does not depend on the load of the machine: a hundred times what a large
    /// file takes, and not too long to wait for.
    pub cpu_seconds: u64,
    /// Address space that the evaluation may add to its process.
    pub memory_bytes: u64,
    /// Wall-clock time, for a process that waits instead of working.
    pub wall: Duration,
    /// The maximum depth of calls.
    pub depth: usize,
    /// The maximum size of the resulting JSON.
    pub output_bytes: u64,
    /// The maximum size of each file that is read.
    pub file_bytes: u64,
    /// The maximum number of jobs and periodic jobs in one file.
    pub documents: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            cpu_seconds: 5,
            memory_bytes: 1 << 30,
            wall: Duration::from_secs(60),
            depth: 500,
            output_bytes: 64 << 20,
            file_bytes: 16 << 20,
            documents: 10_000,
        }
    }
}
