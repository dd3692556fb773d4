//! Ephemeral resources (E1): named resources an application makes up to steer its own tasks.
//! They are matched and accounted like any named resource, belong to an owner, and end with a
//! lease. Capacity is changed by deltas only, so concurrent writers never lose each other's work;
//! it may fall below what is held: holders stay, nobody new matches.

use crate::encode::Rows;
use crate::id::{ResourceId, UserId};
use crate::name::Name;
use crate::named::{NamedAmount, ResourceName};
use crate::resource::Resources;
use crate::tables::TableRow;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// An interned resource name. Static names (of machines) have no owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResourceRow {
    pub id: ResourceId,
    pub name: ResourceName,
    /// `None` for operator-given resources, which applications cannot write.
    pub owner: Option<UserId>,
    /// When the resource disappears unless renewed.
    pub lease_until: Time,
}

/// What the resources of one namespace have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// `None` for the system's own.
    pub owner: Option<UserId>,
    /// Never 0: a namespace is free again when its last resource is gone.
    pub resources: u64,
}

impl TableRow for ResourceRow {
    const NOUN: &'static str = "resource";

    fn label(&self, _: &Rows) -> String {
        self.name.to_string()
    }
}

/// Which nodes a change is for. In the client's words, so that a request that is sent again is the
/// same one, whoever leads: the nodes are looked for when it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeChoice {
    /// The node of this name.
    Node(Name),
    /// Every node that has this much available now.
    Available(AvailableNodes),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AvailableNodes {
    /// Left out: nothing in particular.
    #[serde(default)]
    pub resources: Resources,
    /// Left out: nothing in particular.
    #[serde(default)]
    pub named: Vec<NamedAmount>,
    /// How many nodes, those with the smallest names first. Left out: all that match.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub num_nodes: Option<u32>,
}

/// Change of an ephemeral resource's capacity on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CapacityChange {
    /// Relative, so that two writers add up.
    Add(i64),
    /// As much as anybody asks for.
    Unbounded,
    /// Gone from this machine.
    Remove,
}
