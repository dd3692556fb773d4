//! Users, their capabilities (B12) and their quota (B11).
//!
//! Only admission uses quota: it is charged by limits when a job is accepted and given back when
//! the job has ended; placement never looks at it.

use crate::name::Name;
use crate::priority::Band;
use crate::resource::Resources;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Privileges beyond one's own jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Stop, update and resize anybody's job.
    AdministrateJobs,
    /// Add, drain and remove machines.
    ManageMachines,
    /// Create users, grant quota and capabilities.
    ManageUsers,
    /// Submit jobs whose unused resources are not lent out.
    DisableReclamation,
    /// Submit in the monitoring band.
    UseMonitoringBand,
    /// Read the output of anybody's tasks.
    ReadOutput,
    /// Run commands in anybody's tasks.
    EnterTasks,
    /// Read the specs of anybody's jobs: commands, environment, files and packages.
    ReadSpecs,
}

impl Capability {
    pub const ALL: [Capability; 8] = [
        Capability::AdministrateJobs,
        Capability::ManageMachines,
        Capability::ManageUsers,
        Capability::DisableReclamation,
        Capability::UseMonitoringBand,
        Capability::ReadOutput,
        Capability::EnterTasks,
        Capability::ReadSpecs,
    ];
}

impl fmt::Display for Capability {
    /// The form used in requests and on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::AdministrateJobs => "administrate_jobs",
            Capability::ManageMachines => "manage_machines",
            Capability::ManageUsers => "manage_users",
            Capability::DisableReclamation => "disable_reclamation",
            Capability::UseMonitoringBand => "use_monitoring_band",
            Capability::ReadOutput => "read_output",
            Capability::EnterTasks => "enter_tasks",
            Capability::ReadSpecs => "read_specs",
        })
    }
}

/// The right to ask for up to `amount` at once in one band, from `from` until before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Quota {
    pub amount: Resources,
    /// Milliseconds since the Unix epoch. Left out: 0, valid at once.
    #[serde(default)]
    pub from: Time,
    /// Milliseconds since the Unix epoch. Left out: no end.
    #[serde(default = "no_end")]
    pub until: Time,
}

fn no_end() -> Time {
    Time::NEVER
}

impl Quota {
    #[must_use]
    pub fn is_valid_at(&self, now: Time) -> bool {
        self.from <= now && now < self.until
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct User {
    pub name: Name,
    /// Counts changes that were requested: of capabilities and quotas. Excess that comes and goes
    /// by itself does not count, or a client could never keep up.
    pub version: u32,
    pub capabilities: BTreeSet<Capability>,
    pub quota: BTreeMap<Band, Quota>,
    /// Bands in which more is charged than granted, because a quota was cut or expired.
    pub exceeded: BTreeSet<Band>,
}

impl User {
    /// Whether the user may read specs of other users' jobs. A user that may replace a spec may
    /// read it.
    #[must_use]
    pub fn can_read_specs(&self) -> bool {
        let rights = [Capability::ReadSpecs, Capability::AdministrateJobs];
        rights.iter().any(|right| self.capabilities.contains(right))
    }

    /// Quota of the user in `band` at `now`. Priority zero is never charged.
    #[must_use]
    pub fn granted(&self, band: Band, now: Time) -> Resources {
        match self.quota.get(&band) {
            Some(quota) if quota.is_valid_at(now) => quota.amount,
            _ => Resources::ZERO,
        }
    }
}
