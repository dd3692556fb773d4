//! What a file may cost. A configuration that loops or grows without end is a mistake somebody
//! makes every week; each limit ends it with an error that names the limit.

use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processor time, which a busy machine does not shorten: a hundred times what a large file
    /// takes, and not too long to wait for.
    pub cpu_seconds: u64,
    /// What the evaluation adds to the address space of its process.
    pub memory_bytes: u64,
    /// Time by the clock, for what waits instead of working.
    pub wall: Duration,
    /// Calls within calls.
    pub depth: usize,
    /// Of the JSON that comes out.
    pub output_bytes: u64,
    /// Of each file that is read.
    pub file_bytes: u64,
    /// Jobs and periodic jobs of one file.
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
