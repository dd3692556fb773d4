//! Users, their quota, tokens and crons as readers see them.

use cellwright_cell::credential::TokenKind;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a user may reserve in one band, and what is charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaView {
    pub band: Band,
    /// Absent: never granted; there may still be a charge after a reduction.
    pub quota: Option<Quota>,
    pub charged: Resources,
    /// More is charged than granted: nothing new is admitted in this band.
    pub exceeded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserView {
    pub name: Name,
    /// Send it back as `If-Match` to change only what you have seen.
    pub version: u32,
    pub capabilities: BTreeSet<Capability>,
    pub quota: Vec<QuotaView>,
    pub live_jobs: u32,
}

/// A token without its secret, which only its holder knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenView {
    pub id: Name,
    pub kind: TokenKind,
    /// Milliseconds since the Unix epoch.
    pub created: Time,
    pub expires: Time,
    /// Of join tokens: whether it has been used.
    pub used: bool,
    /// The token with which it was made, and with which it is revoked.
    pub parent: Option<Name>,
}

/// A new token. Its text is returned only this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    pub id: Name,
    /// The text that its holder sends or types.
    pub token: String,
    /// Milliseconds since the Unix epoch.
    pub expires: Time,
    /// The log index at which it was made.
    pub index: u64,
}

/// A periodic job (B42).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CronView {
    pub user: Name,
    pub name: Name,
    /// Send it back as `If-Match` to change only what you have seen.
    pub version: u32,
    pub spec: CronSpec,
    /// The spec is redacted: what the runs do is for the owner and for users with read_specs or
    /// administrate_jobs.
    pub redacted: bool,
    /// Latest slot handled; milliseconds since the Unix epoch.
    pub last_slot: Time,
    /// The job it started last.
    pub last_job: Option<JobKey>,
    /// Absent when paused, or when no slot will ever come.
    pub next_slot: Option<Time>,
}
