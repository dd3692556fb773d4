//! What is in the archive of a cell, and how the archive is doing.

use super::{JobView, TaskView, VersionView};
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::{Span, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of [`ArchivedJob`] that is written; a newer one is refused by its reader.
pub const ARCHIVED_JOB_FORMAT: u32 = 1;

/// The version of the lines of an archived log.
pub const ARCHIVED_LOG_FORMAT: u32 = 1;

/// A job of the archive, as one row of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedJobRow {
    pub user: Name,
    pub name: Name,
    /// Milliseconds since the Unix epoch.
    pub submitted_at: Time,
    pub ended_at: Time,
    /// Of the object, compressed.
    pub bytes: u64,
}

/// A job as it was when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedJob {
    /// Version of this form.
    pub format: u32,
    pub cell: String,
    /// Its spec has `(hidden)` in place of the values of secrets.
    pub job: JobView,
    /// Its versions that were still kept, oldest first.
    pub versions: Vec<ArchivedVersion>,
    /// Every task, with how its last attempt ended.
    pub tasks: Vec<TaskView>,
}

/// A version of an archived job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedVersion {
    #[serde(flatten)]
    pub version: VersionView,
    /// Without the values of secrets; absent where it was not kept.
    pub spec: Option<JobSpec>,
}

/// The output of one attempt in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedLogRow {
    /// `user/job/index`.
    pub task: String,
    pub attempt: u32,
    /// Of the job; milliseconds since the Unix epoch.
    pub submitted_at: Time,
    /// Of the object, compressed.
    pub bytes: u64,
}

/// A line of an archived log, before its parts: whose output follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedLogHead {
    /// Version of this form.
    pub format: u32,
    /// `user/job/index`.
    pub task: String,
    pub attempt: u32,
    /// Where it ran.
    pub machine: Option<String>,
    /// Why there is nothing, or no more.
    pub note: Option<String>,
}

/// A day of history in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedDay {
    /// The table of `cell sql`.
    pub table: String,
    /// `2026-11-19`; of a day in several parts `2026-11-19.2`.
    pub day: String,
    pub bytes: u64,
}

/// Which days of history are to be there again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreHistory {
    /// The first day, `2026-11-19`.
    pub from: String,
    /// The last day.
    pub to: String,
    /// For how many milliseconds. Left out: a day.
    #[serde(default)]
    pub keep: Option<Span>,
}

/// Days of history that are there again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RestoredHistory {
    pub from: String,
    pub to: String,
    /// Until then; milliseconds since the Unix epoch.
    pub until: Time,
    pub files: u32,
    pub bytes: u64,
}

/// How the archive is doing, as the leading master knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchiveStatus {
    /// Where it is; absent where the cell has none.
    pub place: Option<String>,
    /// Every job that ended before this time is in there; milliseconds since the Unix epoch.
    pub archived_before: Option<Time>,
    /// Jobs that ended and are not in there yet.
    pub jobs_waiting: u32,
    /// Attempts whose output is not in there yet.
    pub logs_waiting: u32,
    /// Files of history that are not in there yet.
    pub days_waiting: u32,
    /// When something was last written or looked at with success.
    pub last_success: Option<Time>,
    /// Since when it fails; absent while it works.
    pub failing_since: Option<Time>,
    pub last_error: Option<String>,
    /// Since this master leads: what was written, removed because it was old enough, and forgotten
    /// before the archive took it.
    pub jobs_archived: u64,
    pub logs_archived: u64,
    pub days_archived: u64,
    pub removed: u64,
    pub lost: u64,
}
