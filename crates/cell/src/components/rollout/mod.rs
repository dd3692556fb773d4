//! Rollouts: the versions of each job with who made them and when (B19), and what its owner asks of
//! an update beyond opening, undoing and closing it: going back to an older version, promoting
//! canaries, finishing what was skipped.
//!
//! A version is a row of its own. The spec of one that tasks run, or that an open update may return
//! to, is in the job's row; when the job drops it, it moves here. So no spec is in the state twice,
//! and a version without a spec of its own is one in use, which is never dropped.
//!
//! Rejected: reading old versions from the feed of events. It is bounded by time, and a master that
//! joined later has none of it; one cannot go back to what one replica may know.

mod apply;
mod command;
mod event;
mod invariant;
mod table;

pub use command::Command;
pub use event::{Event, RolloutChange};
pub(crate) use table::Tables;

use crate::actor::Actor;
use crate::admit;
use crate::encode::Rows;
use crate::encode::validate::{Checked, MAX_COUNTER, at_most, check_admitted};
use crate::id::JobId;
use crate::spec::{JobSpec, MAX_LIST};
use crate::state::State;
use crate::tables::TableRow;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

cellwright_rows::id!(
    /// A version of a job. Rows are used again; job and number identify a version.
    JobVersionId
);

/// How a version came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VersionOrigin {
    Submitted,
    /// Another spec than that of this version.
    Updated {
        from: u32,
    },
    /// Another number of tasks than in this version.
    Resized {
        from: u32,
    },
    /// The spec of an earlier version again.
    Reverted {
        from: u32,
        to: u32,
    },
}

impl VersionOrigin {
    /// The version that was the job's before.
    #[must_use]
    pub fn previous(self) -> Option<u32> {
        match self {
            VersionOrigin::Submitted => None,
            VersionOrigin::Updated { from }
            | VersionOrigin::Resized { from }
            | VersionOrigin::Reverted { from, .. } => Some(from),
        }
    }
}

/// The cell went back from a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RolledBack {
    pub at: Time,
    /// Attempts that had failed.
    pub failures: u32,
    /// Its owner has asked for it again since; until then a request for its spec is refused.
    pub retried: bool,
}

/// One version of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobVersion {
    pub job: JobId,
    pub version: u32,
    pub at: Time,
    pub by: Actor,
    pub origin: VersionOrigin,
    /// Fields that differ from the version before. Whether a secret differs is known to the owner
    /// alone: by anybody else it always does.
    pub changed: Vec<String>,
    /// Invariant: present exactly when the job itself has it no more.
    pub spec: Option<Arc<JobSpec>>,
    pub rolled_back: Option<RolledBack>,
}

impl TableRow for JobVersion {
    const NOUN: &'static str = "job version";
    const OWNED: bool = true;

    /// As tasks are called after their job, so that it is picked and taken out with its versions.
    fn label(&self, rows: &Rows) -> String {
        let job = rows.jobs.get(self.job.slot()).and_then(Option::as_ref);
        let job = job.map_or_else(|| format!("job#{}", self.job.0), |job| job.label(rows));
        format!("{job}/v{}", self.version)
    }

    fn check(&self, row: &str) -> Checked {
        at_most(row, "version", u64::from(self.version), MAX_COUNTER)?;
        at_most(row, "number of changed fields", self.changed.len() as u64, MAX_LIST as u64)?;
        self.spec.iter().try_for_each(|spec| check_admitted(row, admit::check_job(spec)))
    }
}

/// Reading.
impl State {
    /// The versions of a job that are on record, oldest first.
    pub fn versions_of(&self, job: JobId) -> impl Iterator<Item = &JobVersion> {
        self.components.rollout.of_job(job).iter().filter_map(move |id| self.versions().get(*id))
    }

    pub fn job_version(&self, job: JobId, version: u32) -> Option<&JobVersion> {
        self.versions().get(self.components.rollout.id_of(job, version)?)
    }

    /// The spec of a version that is on record.
    pub fn spec_of_version(&self, job: JobId, version: u32) -> Option<&Arc<JobSpec>> {
        let row = self.job_version(job, version)?;
        row.spec.as_ref().or_else(|| self.jobs().get(job)?.specs.get(&version))
    }
}
