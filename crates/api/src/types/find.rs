//! Objects that a name can refer to: the answer to a person who types a name without its kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FoundKind {
    Job,
    AllocSet,
    Task,
    Machine,
    User,
    Cron,
}

/// An object of this name, or whose name begins with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundView {
    pub kind: FoundKind,
    /// `user/job/index`, `user/job`, or the name of a machine or user.
    pub name: String,
}
