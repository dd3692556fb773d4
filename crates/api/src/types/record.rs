//! Events and the audit log as readers see them.

use cellwright_cell::event::What;
use cellwright_cell::reason::Reason;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One change of the state (B5, B19).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventView {
    /// Give this as `after` to get what followed.
    pub cursor: String,
    pub index: u64,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    /// What it happened to: `user/job/index`, `user/job`, or the name of a machine or user.
    pub object: String,
    /// The event in a sentence.
    pub text: String,
    /// Stable code of the reason.
    pub reason_code: String,
    pub what: What,
    pub reason: Reason,
}

/// A page of events also says how far back the feed reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventPage {
    pub items: Vec<EventView>,
    /// Give this as `after` to get the next part; always present, as more may come.
    pub next: String,
    /// Log index of the oldest event still kept.
    pub oldest: Option<u64>,
    /// The log index this is a picture of.
    pub index: u64,
}

/// One request of a user, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditView {
    /// Give this as `after` to get what followed.
    pub cursor: String,
    pub index: u64,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    pub caller: String,
    /// What was asked for: `submit_job`, `set_quota` …
    pub command: String,
    pub object: String,
    /// `done`, `unchanged`, or the code of the refusal.
    pub verdict: String,
}
