//! Per-user limits on what all users share: rows and bytes of the replicated state, which every
//! replica holds in memory and writes into every checkpoint; the least that a task is charged; and
//! the number of tasks on a machine.
//!
//! Quota bounds what tasks use of machines; nothing in it bounds ten thousand dead jobs, a job of
//! eight mebibytes of environment, or a task that asks for nothing. The figures are an operator's,
//! and `apply` decides by them, so they are part of the state: the leading master writes those of
//! its configuration into the log. Rejected: checking them at the API. Two replicas with different
//! configurations would admit different requests, and jobs submitted by a schedule do not pass the
//! API.

use crate::name::Name;
use crate::notice::LongestNotice;
use crate::reason::Rejection;
use crate::resource::Resources;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The operator's limits as the log has them. A new state has no limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Quota counts every task as asking for at least this much.
    pub least_charge: Resources,
    /// Jobs on record of one user, ended ones included; the oldest of those make way.
    pub jobs: u64,
    /// Tasks of all jobs on record of one user.
    pub tasks: u64,
    /// Encoded bytes of the specs of one user's jobs and periodic jobs.
    pub spec_bytes: u64,
    pub crons: u64,
    /// Tokens of one kind and name.
    pub tokens: u64,
    /// Ephemeral resources of one user.
    pub resources: u64,
    /// Packages that one user added.
    pub packages: u64,
    /// Bytes of answers stored for one user's repeated requests.
    pub answer_bytes: u64,
    /// Tasks of all users that one machine may hold, including allocs and the tasks inside them: an
    /// agent pays for each of them, whatever it asks for.
    pub machine_tasks: u64,
    /// The longest notice that tasks of a band get; what a job asks for beyond it is cut.
    pub longest_notice: LongestNotice,
    /// Versions of one job on record. The specs of all old ones of a user may have as many bytes as
    /// those in use: `spec_bytes` once more.
    pub versions: u64,
    /// Bytes of disk that a task gets which says nothing of it; 0: it gets none.
    pub default_disk: u64,
}

/// Machines on which one task may hold room at once: where it runs, and the target of a move.
pub const MAX_HOLDS: usize = 2;

/// Bytes of answers stored for the cell's own parts, which are no users.
pub const SYSTEM_ANSWER_BYTES: u64 = 64 << 20;

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            least_charge: Resources::ZERO,
            jobs: u64::MAX,
            tasks: u64::MAX,
            spec_bytes: u64::MAX,
            crons: 1000,
            tokens: 64,
            resources: u64::MAX,
            packages: u64::MAX,
            answer_bytes: 1 << 20,
            machine_tasks: u64::MAX,
            longest_notice: LongestNotice::default(),
            versions: 10,
            default_disk: 0,
        }
    }
}

/// The kinds of bounds: what a user can have too many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    Jobs,
    Tasks,
    SpecBytes,
    Crons,
    Tokens,
    Resources,
    Packages,
}

impl BoundKind {
    /// The key of the master's configuration that sets the bound.
    #[must_use]
    pub fn config_key(self) -> &'static str {
        match self {
            BoundKind::Jobs => "jobs_per_user",
            BoundKind::Tasks => "tasks_per_user",
            BoundKind::SpecBytes => "spec_bytes_per_user",
            BoundKind::Crons => "crons_per_user",
            BoundKind::Tokens => "tokens_per_user",
            BoundKind::Resources => "resources_per_user",
            BoundKind::Packages => "packages_per_user",
        }
    }
}

impl fmt::Display for BoundKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BoundKind::Jobs => "jobs on record",
            BoundKind::Tasks => "tasks on record",
            BoundKind::SpecBytes => "bytes of job specs",
            BoundKind::Crons => "periodic jobs",
            BoundKind::Tokens => "tokens",
            BoundKind::Resources => "ephemeral resources",
            BoundKind::Packages => "packages",
        })
    }
}

/// How much a request adds to what its owner holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    pub jobs: u64,
    pub tasks: u64,
    pub spec_bytes: u64,
}

impl Bounds {
    /// What a task gets that says nothing of disk.
    #[must_use]
    pub fn default_disk(&self) -> Resources {
        Resources { disk: self.default_disk, ..Resources::ZERO }
    }

    /// # Errors
    /// [`Rejection::OverBound`] when `asked` more than the `held` are more than `most`. A request
    /// that adds nothing is not rejected for what is already held.
    pub(crate) fn check(
        user: &Name,
        what: BoundKind,
        (held, requested): (u64, u64),
        most: u64,
    ) -> Result<(), Rejection> {
        if requested == 0 || held.saturating_add(requested) <= most {
            return Ok(());
        }
        Err(Rejection::OverBound { user: user.clone(), what, held, requested, most })
    }
}

/// Encoded length of a value in a checkpoint.
pub(crate) fn encoded_bytes<T: Serialize>(value: &T) -> u64 {
    postcard::experimental::serialized_size(value).map_or(u64::MAX, |bytes| bytes as u64)
}
