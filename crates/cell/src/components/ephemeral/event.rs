//! Events of ephemeral resources, and their text.

use crate::components::ComponentEvent;
use crate::id::{MachineId, ResourceId};
use crate::state::State;
use crate::tables::RowRef;
use crate::words;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub resource: ResourceId,
    /// The machine of a change of capacity.
    pub machine: Option<MachineId>,
    pub change: ResourceChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResourceChange {
    Created,
    CapacityChanged { capacity: u64 },
    Renewed,
    RemovedFromMachine,
    Deleted,
}

impl ComponentEvent for Event {
    fn kind(&self) -> &'static str {
        "resource"
    }

    fn row(&self) -> RowRef {
        self.resource.into()
    }

    fn related_row(&self) -> Option<RowRef> {
        self.machine.map(RowRef::from)
    }

    fn removes_row(&self) -> bool {
        self.change == ResourceChange::Deleted
    }

    fn label_and_detail(&self) -> (&'static str, Option<String>) {
        match self.change {
            ResourceChange::Created => ("created", None),
            ResourceChange::CapacityChanged { capacity } => {
                ("capacity-changed", Some(format!("capacity {capacity}")))
            }
            ResourceChange::Renewed => ("renewed", None),
            ResourceChange::RemovedFromMachine => ("removed-from-machine", None),
            ResourceChange::Deleted => ("deleted", None),
        }
    }

    fn object_name(&self, state: &State) -> String {
        let row = state.resources().get(self.resource);
        row.map_or_else(|| format!("resource#{}", self.resource.0), |row| row.name.to_string())
    }

    fn describe(&self, state: &State) -> String {
        let location = self.machine.map(|m| format!("on {} ", words::machine_name(state, m)));
        let change = match self.change {
            ResourceChange::Created => "created".into(),
            ResourceChange::CapacityChanged { capacity: u64::MAX } => "is now unbounded".into(),
            ResourceChange::CapacityChanged { capacity } => format!("has now {capacity}"),
            ResourceChange::Renewed => "renewed".into(),
            ResourceChange::RemovedFromMachine => "gone".into(),
            ResourceChange::Deleted => "deleted".to_owned(),
        };
        format!("{}{change}", location.unwrap_or_default())
    }

    /// An event with a machine is about the capacity there.
    fn changed_rows(&self, before: &State, after: &State) -> Vec<RowRef> {
        let Some(machine) = self.machine else { return vec![self.row()] };
        let found = [before, after].into_iter().filter_map(|state| {
            let id = state.components.ephemeral.capacity_id(self.resource, machine)?;
            Some(RowRef::from(id))
        });
        found.collect()
    }

    fn may_free_room(&self) -> bool {
        true
    }
}
