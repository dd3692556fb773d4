//! Events and the audit log as readers see them.

use cellwright_cell::event::EventKind;
use cellwright_cell::reason::Reason;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One change of the state (B5, B19).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventView {
    /// Send this as `after` to get the events that followed.
    pub cursor: String,
    pub index: u64,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    /// The object of the event: `user/job/index`, `user/job`, or the name of a machine or user.
    pub object: String,
    /// The event in a sentence.
    pub text: String,
    /// What happened to the object: the sentence without its name.
    pub happened: String,
    /// The machine that it is about, or on which it happened.
    pub machine: Option<String>,
    /// The actor: `user:ann`, `operator`, `agent:n1`, `scheduler:s1`, `controller:drain`,
    /// `replica:m1`.
    pub actor: String,
    /// Stable code of the reason.
    pub reason_code: String,
    pub kind: EventKind,
    pub reason: Reason,
}

/// A page of events, with how far back the feed reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventPage {
    pub items: Vec<EventView>,
    /// Send this as `after` to get the next page; always present, as more may come.
    pub next: String,
    /// Log index of the oldest event still kept.
    pub oldest: Option<u64>,
    /// Events between `after` and the first of these are missing on the replica that answers.
    pub gap: bool,
    /// The log index of this snapshot.
    pub index: u64,
}

/// One request of a user, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditView {
    /// Send this as `after` to get the lines that followed.
    pub cursor: String,
    pub index: u64,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    pub caller: String,
    /// The command: `submit_job`, `set_quota` …
    pub command: String,
    pub object: String,
    /// `done`, `unchanged`, or the code of the rejection.
    pub verdict: String,
    /// Lines between the one before and this one are missing on the replica that answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gap_before: bool,
}

/// A value in a query or in its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SqlValue {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
}

/// One SELECT over history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlQuery {
    /// SQLite's dialect; the tables are in the guide.
    #[schemars(length(min = 1, max = 65_536))]
    pub query: String,
    /// Values of the `?` in the query, in order. Left out: none.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub args: Vec<SqlValue>,
    /// Most rows of the answer. Left out: 1000.
    #[schemars(range(min = 1, max = 100_000))]
    pub limit: Option<u32>,
}

/// Most rows of one answer.
pub const MAX_SQL_ROWS: u32 = 100_000;
pub const DEFAULT_SQL_ROWS: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SqlAnswer {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<SqlValue>>,
    /// Whether there was more than the limit, or than fits into an answer.
    pub truncated: bool,
    /// Every event since is in history, in milliseconds since the Unix epoch; absent while there
    /// is none.
    pub reaches_back_to: Option<Time>,
    /// Whether the cell has an archive, where older days may be.
    #[serde(default)]
    pub archived: bool,
    /// The log index that history had reached.
    pub index: u64,
}
