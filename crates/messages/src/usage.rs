//! The book of a machine: what its tasks used, entry by entry, as the agent tells the masters.
//!
//! An entry is final once it is closed, and on the agent's disk before it is sent. It is sent with
//! every poll until a master has written it to its own disk and says so, so a crash of either side
//! costs nothing; and it says the same every time, so the masters know a repeat of it.
//!
//! Rejected: rates that a master multiplies with the time since the report before. A task that is
//! shorter than a poll has no rate, and the time between two masters belongs to neither.

use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use serde::{Deserialize, Serialize};

/// What one attempt used from one moment to another.
///
/// It names its task and does not number it: when it arrives after a long outage, the masters may
/// have forgotten the task, and its number may be another's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageEntry {
    /// Its place in the book, from 1.
    pub number: u64,
    /// `user/job/index`.
    pub name: String,
    pub attempt: u32,
    pub priority: Priority,
    /// When it begins, by the machine's clock.
    pub begun: Time,
    /// How long it is.
    pub millis: u64,
    /// Times at which memory and disk were read.
    pub samples: u64,
    /// CPU time, in microseconds, from the kernel's own count.
    pub cpu_micros: u64,
    /// Milli-cores used at most between two readings.
    pub cpu_max: u64,
    /// Bytes of memory on average, and at most.
    pub ram_avg: u64,
    pub ram_max: u64,
    pub disk_max: u64,
    /// Bytes read from and written to disks.
    pub io_bytes: u64,
    /// What the masters had reserved for it, and what it had asked for.
    pub reserved: Resources,
    pub limit: Resources,
}

/// The part of an agent's book that goes with a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Which book: a machine that lost its data begins another one.
    pub book: u64,
    /// Closed entries that no master has confirmed, the oldest first. There may be more.
    pub closed: Vec<UsageEntry>,
    /// What is measured and not closed yet: for readers of the present, and not to be kept. Their
    /// numbers are 0. Absent: as it was told before, which was not long ago.
    pub open: Option<Vec<UsageEntry>>,
}

/// Every entry up to this one is on the disk of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageMark {
    pub book: u64,
    pub up_to: u64,
}
