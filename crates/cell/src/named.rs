//! Named countable resources: software licences, tokens, anything an operator or an application
//! counts per machine. Ephemeral resources (E1) are the same thing with an owner and a lease.
//! Amounts are kept as a sorted list: a task names a handful at most.

use crate::name::Token;
use serde::{Deserialize, Serialize};

/// Capacity without limit: satisfies any request and is never used up.
pub const UNBOUNDED: u64 = u64::MAX;

/// `namespace/name`: names of one application never collide with those of another. Names without a
/// namespace belong to the operator and come with the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourceName {
    pub namespace: Option<Token>,
    pub name: Token,
}

impl std::fmt::Display for ResourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// One entry of a request or a capacity. Lists of these are sorted by name, names unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NamedAmount {
    pub name: ResourceName,
    pub amount: u64,
}
