//! Writers of ephemeral resources. Owners of namespaces, the number of resources of an owner and
//! the machines of a resource are indexed beside the rows, so that a change costs only what it
//! changes; walking over all resources and machines at each write would cost more the more of them
//! there are.

use super::table::{Namespace, Tables};
use super::{Capacity, CapacityId, ResourceRow};
use crate::id::{MachineId, ResourceId, UserId};
use crate::named::ResourceName;
use crate::sorted_map::SortedMap;
use crate::table::Key;
use crate::time::Time;

impl Tables {
    pub(super) fn insert_resource(
        &mut self,
        name: ResourceName,
        owner: Option<UserId>,
        lease_until: Time,
    ) -> ResourceId {
        let id = self.resources.next_key();
        let row = ResourceRow { id, name, owner, lease_until };
        self.account_resource(&row, true);
        self.resources.push(row)
    }

    /// False when the lease ends at that time already.
    pub(super) fn renew(&mut self, resource: ResourceId, lease_until: Time) -> bool {
        let known = self.resources.get(resource).map(|row| row.lease_until);
        if known.is_none() || known == Some(lease_until) {
            return false;
        }
        if let Some(row) = self.resources.get_mut(resource) {
            self.leases.remove(&(row.lease_until, resource));
            row.lease_until = lease_until;
            self.leases.insert((lease_until, resource), ());
        }
        true
    }

    /// Adds a resource to the indexes of names, namespaces, counts and leases, or removes it; its
    /// machines are indexed by [`Tables::account_capacity`].
    pub(super) fn account_resource(&mut self, row: &ResourceRow, add: bool) {
        let owned = self.resource_counts.get(&row.owner).copied().unwrap_or(0);
        let owned = if add { owned + 1 } else { owned.saturating_sub(1) };
        match owned {
            0 => self.resource_counts.remove(&row.owner),
            _ => self.resource_counts.insert(row.owner, owned),
        };
        if add {
            self.names.insert(row.name.clone(), row.id)
        } else {
            self.names.remove(&row.name)
        };
        if add {
            self.leases.insert((row.lease_until, row.id), ())
        } else {
            self.leases.remove(&(row.lease_until, row.id))
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

    pub(super) fn account_capacity(&mut self, id: CapacityId, row: &Capacity, add: bool) {
        let id = add.then_some(id);
        index_capacity(&mut self.machines_of, row.resource, row.machine, id);
        index_capacity(&mut self.resources_on, row.machine, row.resource, id);
    }

    /// Sets the capacity of a resource on one machine, or removes it.
    pub(super) fn set_capacity(
        &mut self,
        resource: ResourceId,
        machine: MachineId,
        amount: Option<u64>,
    ) {
        match (self.capacity_id(resource, machine), amount) {
            (Some(id), Some(amount)) => {
                if let Some(row) = self.capacities.get_mut(id) {
                    row.amount = amount;
                }
            }
            (None, Some(amount)) => self.insert_capacity(Capacity { resource, machine, amount }),
            (Some(id), None) => self.remove_capacity(id),
            (None, None) => {}
        }
    }

    fn insert_capacity(&mut self, row: Capacity) {
        let id = match self.vacant.first().copied() {
            Some(id) => {
                self.vacant.remove(&id);
                self.capacities.refill(id, row);
                id
            }
            None => self.capacities.push(row),
        };
        self.account_capacity(id, &row, true);
    }

    fn remove_capacity(&mut self, id: CapacityId) {
        if let Some(row) = self.capacities.remove(id) {
            self.account_capacity(id, &row, false);
            self.vacant.insert(id, ());
        }
    }

    /// Removes all capacities on a machine.
    pub(super) fn clear_machine(&mut self, machine: MachineId) {
        let Some(resources) = self.resources_on.get(&machine).cloned() else { return };
        resources.iter().for_each(|(_, id)| self.remove_capacity(*id));
    }

    /// Removes a resource that no machine has any more.
    pub(super) fn remove_resource(&mut self, id: ResourceId) {
        if let Some(row) = self.resources.remove(id) {
            self.account_resource(&row, false);
        }
    }

    /// Whether this many more capacities can get ids.
    pub(super) fn has_room_for(&self, capacities: usize) -> bool {
        self.capacities.has_room_for(capacities.saturating_sub(self.vacant.len()))
    }
}

/// Adds a capacity to the index of one end under the other, or removes it.
fn index_capacity<A: Key + Ord, B: Key + Ord>(
    map: &mut SortedMap<A, SortedMap<B, CapacityId>>,
    key: A,
    other: B,
    id: Option<CapacityId>,
) {
    match (map.get_mut(&key), id) {
        (Some(known), Some(id)) => drop(known.insert(other, id)),
        (Some(known), None) => {
            known.remove(&other);
            if known.is_empty() {
                map.remove(&key);
            }
        }
        (None, Some(id)) => {
            let mut first = SortedMap::default();
            first.insert(other, id);
            map.insert(key, first);
        }
        (None, None) => {}
    }
}
