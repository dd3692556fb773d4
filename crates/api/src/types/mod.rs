//! Types of the public API, other than the objects themselves, which come from `cell`.
//!
//! A view is a row with names instead of numbers and the sums that a reader would otherwise have to
//! compute. Nothing here decides anything.

mod alarm;
mod apply;
mod archive;
mod body;
mod cluster;
mod explain;
mod find;
mod job;
mod machine;
mod overview;
mod plan;
mod record;
mod scale;
mod shapes;
mod user;
mod version;

pub use alarm::*;
pub use apply::*;
pub use archive::*;
pub use body::*;
pub use cluster::*;
pub use explain::*;
pub use find::*;
pub use job::*;
pub use machine::*;
pub use overview::*;
pub use plan::*;
pub use record::*;
pub use scale::*;
pub use shapes::*;
pub use user::*;
pub use version::*;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Send this as `after` to get the next page; absent at the end.
    pub next: Option<String>,
    /// The log index of this snapshot.
    pub index: u64,
    /// Whether it includes everything acknowledged before the request.
    pub consistent: bool,
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Reply")]
pub struct One<T> {
    pub item: T,
    /// The log index of this snapshot.
    pub index: u64,
    /// Whether it includes everything acknowledged before the request.
    pub consistent: bool,
}
