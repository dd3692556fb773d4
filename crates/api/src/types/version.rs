//! Versions of a job, and what differs between two of them.

use super::FieldDiff;
use cellwright_cell::job::ChangeClass;
use cellwright_cell::name::Name;
use cellwright_cell::rollout::{RolledBack, VersionOrigin};
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One version of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionView {
    pub version: u32,
    /// When it was made; milliseconds since the Unix epoch.
    pub at: Time,
    /// Who made it, as `user:ann`.
    pub by: String,
    /// What it changed, in words: `created`, `task.env`, `back to version 2: task.env`.
    pub change: String,
    pub origin: VersionOrigin,
    /// The job's version now.
    pub current: bool,
    /// Tasks that run it, or will when they start.
    pub tasks: u32,
    /// The cell went back from it, because too many attempts at it failed.
    pub rolled_back: Option<RolledBack>,
}

/// The versions of a job that are kept, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobVersions {
    pub user: Name,
    pub name: Name,
    pub versions: Vec<VersionView>,
}

/// What differs between two versions of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionDiff {
    pub user: Name,
    pub name: Name,
    pub from: u32,
    pub to: u32,
    /// Every field that differs. Values of secrets are hidden.
    pub changes: Vec<FieldDiff>,
    /// The strongest class of the changes; absent if there are none.
    pub class: Option<ChangeClass>,
    /// What the tasks run is left out: it is for the owner and for users with read_specs or
    /// administrate_jobs.
    pub redacted: bool,
}

/// Which version a job is to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevertJob {
    #[schemars(range(min = 1))]
    pub version: u32,
}

/// The newest version of a job was rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolledBackView {
    pub version: u32,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    /// Attempts that had failed.
    pub failures: u32,
}
