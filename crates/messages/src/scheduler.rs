//! What a scheduler and a master tell each other: the log, proposals, leases.

use cellwright_cell::command::{Request, Verdict};
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// One log entry as a follower of the log (a scheduler's cached copy) gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    pub index: u64,
    /// Index of the record before this one. The log also holds raft's own entries, so indices have
    /// gaps; a follower whose copy is not at `previous` has missed something.
    pub previous: u64,
    pub term: u64,
    /// As encoded by [`cellwright_cell::encode::save_entry`].
    pub entry: Vec<u8>,
}

/// Request for the log after an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    pub after: u64,
    /// How long the request may hang when there is nothing yet.
    pub wait: Span,
}

/// Answer to a [`LogRequest`]. Hangs until there is something, or the wait is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogAnswer {
    Records(Vec<LogRecord>),
    /// The log no longer reaches back that far: start from this checkpoint.
    Snapshot {
        index: u64,
        term: u64,
        state: Vec<u8>,
    },
}

/// Commands that a trusted part proposes. Each gets its own verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalAnswer {
    pub index: u64,
    pub verdicts: Vec<Verdict>,
}

/// A scheduler requests the lease of a scheduler shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    pub scheduler: String,
    /// The shard: jobs whose label `scheduler` has this value; empty: all jobs without that label.
    pub scheduler_shard: String,
    /// Statistics of the passes since the last request, for the metrics page.
    pub passes: PassStatistics,
    /// The scheduler's clock when the request was sent.
    pub wall: Time,
    /// The newest level of the cell that its build knows: schedulers read the log as masters do.
    pub level: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    pub granted: bool,
    pub holder: String,
    pub length: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassStatistics {
    pub passes: u64,
    pub placed: u64,
    pub rejected: u64,
    pub preempted: u64,
    pub pending: u64,
    /// Sum over the passes.
    pub micros: u64,
    pub longest_micros: u64,
    pub evaluations: u64,
}

impl PassStatistics {
    /// Adds a later report to this one.
    pub fn merge(&mut self, later: &PassStatistics) {
        self.passes += later.passes;
        self.placed += later.placed;
        self.rejected += later.rejected;
        self.preempted += later.preempted;
        self.pending = later.pending;
        self.micros += later.micros;
        self.longest_micros = self.longest_micros.max(later.longest_micros);
        self.evaluations += later.evaluations;
    }
}
