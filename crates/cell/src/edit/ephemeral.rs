//! Writers of ephemeral resources. Whose a namespace is, how many resources an owner has and which
//! machines have one are kept beside the rows, so that a change costs what it changes; walking over
//! all resources and machines at each write cost more the more of them there were.

use crate::ephemeral::{Namespace, ResourceRow};
use crate::id::{MachineId, ResourceId, UserId};
use crate::machine::Machine;
use crate::named::{NamedAmount, ResourceName};
use crate::state::State;
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

impl State {
    pub(crate) fn insert_resource(
        &mut self,
        name: ResourceName,
        owner: Option<UserId>,
        lease_until: Time,
    ) -> ResourceId {
        let id = self.resources.next_key();
        let row = ResourceRow { id, name, owner, lease_until };
        self.count_resource(&row, true);
        self.resources.push(row)
    }

    /// Name, namespace and number of a resource; its machines are counted by
    /// [`State::count_ephemeral`].
    pub(crate) fn count_resource(&mut self, row: &ResourceRow, add: bool) {
        let owned = self.resource_counts.get(&row.owner).copied().unwrap_or(0);
        let owned = if add { owned + 1 } else { owned.saturating_sub(1) };
        match owned {
            0 => self.resource_counts.remove(&row.owner),
            _ => self.resource_counts.insert(row.owner, owned),
        };
        match add {
            true => self.resource_names.insert(row.name.clone(), row.id),
            false => self.resource_names.remove(&row.name),
        };
        let Some(namespace) = &row.name.namespace else { return };
        let inside = self.namespaces.get(namespace).map_or(0, |known| known.resources);
        let resources = if add { inside + 1 } else { inside.saturating_sub(1) };
        let owner = self.namespaces.get(namespace).map_or(row.owner, |known| known.owner);
        match resources {
            0 => self.namespaces.remove(namespace),
            _ => self.namespaces.insert(namespace.clone(), Namespace { owner, resources }),
        };
    }

    /// Notes on which resources the machine's capacities are, or that they are gone.
    pub(crate) fn count_ephemeral(&mut self, machine: MachineId, row: &Machine, add: bool) {
        for entry in &row.ephemeral {
            if let Some(resource) = self.resource_names.get(&entry.name).copied() {
                self.note_capacity(resource, machine, add);
            }
        }
    }

    fn note_capacity(&mut self, resource: ResourceId, machine: MachineId, add: bool) {
        if let Some(set) = self.resource_machines.get_mut(&resource) {
            let set = Arc::make_mut(set);
            match add {
                true => set.insert(machine),
                false => set.remove(&machine),
            };
            if set.is_empty() {
                self.resource_machines.remove(&resource);
            }
        } else if add {
            self.resource_machines.insert(resource, Arc::new(BTreeSet::from([machine])));
        }
    }

    /// Sets the capacity of a resource on one machine, or takes it away. Nothing else of the
    /// machine is looked at.
    pub(crate) fn set_capacity(
        &mut self,
        resource: ResourceId,
        name: &ResourceName,
        machine: MachineId,
        capacity: Option<u64>,
    ) {
        let Some(row) = self.machines.get_mut(machine) else { return };
        match (row.ephemeral.binary_search_by(|entry| entry.name.cmp(name)), capacity) {
            (Ok(at), Some(amount)) => row.ephemeral[at].amount = amount,
            (Err(at), Some(amount)) => {
                row.ephemeral.insert(at, NamedAmount { name: name.clone(), amount });
            }
            (Ok(at), None) => drop(row.ephemeral.remove(at)),
            (Err(_), None) => {}
        }
        self.note_capacity(resource, machine, capacity.is_some());
    }

    /// Forgets a resource no machine has any more.
    pub(crate) fn remove_resource(&mut self, id: ResourceId) {
        if let Some(row) = self.resources.remove(id) {
            self.count_resource(&row, false);
        }
    }
}
