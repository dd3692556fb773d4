//! Ephemeral resources (E1): named resources that an application creates to steer its own tasks.
//! They are matched and accounted like any named resource, belong to an owner, and end with a
//! lease. Capacity is changed by deltas only, so concurrent writers never lose each other's work;
//! it may fall below what is held: holders stay, and no new task fits.

mod apply;
mod command;
#[cfg(test)]
mod cost;
mod edit;
mod event;
mod invariant;
mod one_owner_per_namespace;
mod table;

pub(crate) use apply::SYSTEM_NAMESPACE;
pub use command::Command;
pub use event::{Event, ResourceChange};
pub(crate) use table::Tables;

use crate::encode::Rows;
use crate::encode::validate::{Checked, at_most};
use crate::id::{MachineId, ResourceId, UserId};
use crate::name::Name;
use crate::named::{NamedAmount, ResourceName, UNBOUNDED};
use crate::resource::{MAX_QUANTITY, Resources};
use crate::state::State;
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
    /// When the resource is deleted unless renewed.
    pub lease_until: Time,
}

cellwright_rows::id!(
    /// The capacity of one resource on one machine. Rows are reused; a pair of resource and machine
    /// identifies a capacity.
    CapacityId
);

/// Capacity of a resource on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capacity {
    pub resource: ResourceId,
    pub machine: MachineId,
    /// It may be less than what is held.
    pub amount: u64,
}

impl TableRow for ResourceRow {
    const NOUN: &'static str = "resource";

    fn label(&self, _: &Rows) -> String {
        self.name.to_string()
    }

    fn name(&self, _: &State) -> Option<String> {
        Some(self.name.to_string())
    }
}

impl TableRow for Capacity {
    const NOUN: &'static str = "capacity";
    const LABEL_OF_OTHERS: bool = true;

    fn label(&self, rows: &Rows) -> String {
        let resource = rows.resources.get(self.resource.slot()).and_then(Option::as_ref);
        let name = resource.map(|row| row.name.to_string());
        let name = name.unwrap_or_else(|| format!("resource#{}", self.resource.0));
        match rows.machines.get(self.machine.slot()).and_then(Option::as_ref) {
            Some(machine) => format!("{name} on {}", machine.spec.name),
            None => format!("{name} on machine#{}", self.machine.0),
        }
    }

    fn is_of_machine(&self, rows: &Rows, machine: &Name) -> bool {
        let row = rows.machines.get(self.machine.slot()).and_then(Option::as_ref);
        row.is_some_and(|row| row.spec.name == *machine)
    }

    fn check(&self, row: &str) -> Checked {
        match self.amount {
            UNBOUNDED => Ok(()),
            amount => at_most(row, "amount", amount, MAX_QUANTITY),
        }
    }
}

/// The nodes that a change is for. In the client's words, so that a repeated request is the same
/// one, whichever master leads: the nodes are resolved when it is applied.
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
    /// As much as any task asks for.
    Unbounded,
    /// Removed from this machine.
    Remove,
}
