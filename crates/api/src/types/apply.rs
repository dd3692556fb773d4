//! The result of applying or resizing a job, or of its dry run.

use super::FieldDiff;
use cellwright_cell::command::ApplyOutcome;
use cellwright_cell::job::ChangeClass;
use cellwright_cell::name::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was done to make the job, or its size, as requested. With `dry_run`: what would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The log index at which it is durable; of a dry run, that of the state it was tried on.
    pub index: u64,
    /// The owner of the job.
    pub user: Name,
    pub name: Name,
    pub became: ApplyOutcome,
    /// The version the job is at now.
    pub version: u32,
    /// The version of an update that was complete and was closed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_update: Option<u32>,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Of a dry run: the version the job is at, 0 if none lives. Sent as `expect`, exactly this is
    /// done or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u32>,
    /// Of a dry run: every field that differs; empty for a new job.
    pub changes: Vec<FieldDiff>,
    /// Of a dry run: the strongest class of the changes; absent for a new job and for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ChangeClass>,
    /// What the job asks for and does not get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
