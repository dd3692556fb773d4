//! Cgroups: one per task, in every hierarchy that the machine has, so that limits, usage, freezing
//! and killing cover the task and all it ever forked.
//!
//! The version (v1, v2) is a property of a controller, not of a machine: on a "hybrid" machine
//! limits live in v1 hierarchies while the unified one, though it has no controllers, still counts
//! members, kills and freezes, and does that better than v1 can. So each operation uses the best
//! mount that [`Layout`] found. Rejected: a back end per machine, which would leave a hybrid
//! machine with the worst of both; a library crate, which would decide on layouts for us.

mod group_path;
mod join;
mod kill;
mod layout;
mod limits;
mod tree;
mod v1;
mod v2;

pub use cellwright_agent_core::cpus::CpuList;
pub use group_path::GroupPath;
pub use join::SELF_PID;
pub use layout::{Controller, ControllerMount, Layout, LayoutKind};
pub(crate) use limits::parse_cpus;
pub use limits::{BlockDevice, Limits, MAX_WEIGHT, cpu_weight};
pub use tree::{Group, Tree};

use std::time::Duration;

/// What a cgroup has used since it was created, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    pub cpu: Duration,
    /// Time in which the cgroup was throttled by its CPU cap.
    pub cpu_throttled: Duration,
    /// Time in which some of its threads waited for a CPU; `None` where the kernel does not report
    /// it.
    pub cpu_stalled: Option<Duration>,
    /// Bytes charged, file cache included.
    pub memory: u64,
    /// Bytes charged less the file cache that can be reclaimed without loss.
    pub working_set: u64,
    /// `None` where the kernel does not record it.
    pub memory_peak: Option<u64>,
    pub oom: OomCounts,
    pub io_read: u64,
    pub io_written: u64,
    /// `None` where they are not counted.
    pub threads: Option<u64>,
}

/// How often memory ran out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomCounts {
    /// Allocations that failed because this cgroup, or one inside it, was at its own limit.
    pub own_limit: u64,
    /// Processes of the cgroup that the kernel killed for memory, whichever limit was hit.
    pub kills: u64,
}

/// Why the kernel killed processes of a cgroup, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomVerdict {
    None,
    /// The task wanted more than its limit.
    OwnLimit,
    /// Memory was short elsewhere: on the machine, or in the alloc around the task.
    Bystander,
}

impl OomCounts {
    /// What happened between an earlier reading and this one.
    #[must_use]
    pub fn since(self, earlier: OomCounts) -> OomVerdict {
        if self.kills <= earlier.kills {
            OomVerdict::None
        } else if self.own_limit > earlier.own_limit {
            OomVerdict::OwnLimit
        } else {
            OomVerdict::Bystander
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oom_kill_is_blamed_on_the_limit_only_when_the_limit_was_met() {
        let counts = |own_limit, kills| OomCounts { own_limit, kills };
        let check = |now: OomCounts, expected| assert_eq!(now.since(counts(2, 1)), expected);
        check(counts(2, 1), OomVerdict::None);
        check(counts(3, 1), OomVerdict::None);
        check(counts(3, 2), OomVerdict::OwnLimit);
        check(counts(2, 2), OomVerdict::Bystander);
    }
}
