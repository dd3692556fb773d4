//! The tables of ephemeral resources and their readers. A capacity of a resource on a machine is a
//! row of its own, indexed from both sides: changing one touches neither the machine's row nor
//! other capacities of the resource.

use super::{Capacity, CapacityId, Command, ResourceRow, invariant, one_owner_per_namespace};
use crate::apply::Context;
use crate::bounds::BoundKind;
use crate::command::Verdict;
use crate::components::Component;
use crate::id::{MachineId, ResourceId, UserId};
use crate::index::Index;
use crate::invariant::Check;
use crate::name::Token;
use crate::named::{NamedAmount, ResourceName};
use crate::sorted_map::SortedMap;
use crate::state::State;
use crate::table::{Key, Table};
use crate::tables::{RowRef, TableName};
use crate::time::Time;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub resources: Table<ResourceId, ResourceRow>,
    pub capacities: Table<CapacityId, Capacity>,
    // Derived.
    pub names: Index<ResourceName, ResourceId>,
    /// Owner of each namespace, and its number of resources.
    pub namespaces: Index<Token, Namespace>,
    /// Resources by owner.
    pub resource_counts: Index<Option<UserId>, u64>,
    /// Machines of each resource, and its capacity there. Resources without machines are not here,
    /// and vice versa below.
    pub machines_of: SortedMap<ResourceId, SortedMap<MachineId, CapacityId>>,
    pub resources_on: SortedMap<MachineId, SortedMap<ResourceId, CapacityId>>,
    /// By their end.
    pub leases: SortedMap<(Time, ResourceId), ()>,
    /// Vacant rows of capacities; the smallest is used next, so that replicas agree after a reload.
    pub vacant: SortedMap<CapacityId, ()>,
}

/// Data common to the resources of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// `None` for the system's own namespace.
    pub owner: Option<UserId>,
    /// Never 0: a namespace is free again when its last resource is gone.
    pub resources: u64,
}

impl Component for Tables {
    type Command = Command;

    fn apply(context: &mut Context<'_>, command: &Command) -> Verdict {
        match command {
            Command::Set { namespace, name, lease, changes } => {
                context.set_resource(namespace, name, *lease, changes)
            }
            Command::Delete { namespace, name } => context.delete_resource(namespace, name),
        }
    }

    fn derive(state: &mut State) {
        let tables = &mut state.components.ephemeral;
        for (_, row) in tables.resources.clone().iter() {
            tables.account_resource(row, true);
        }
        let capacities = tables.capacities.clone();
        for id in (0..capacities.slots()).map(CapacityId::from_slot) {
            match capacities.get(id) {
                Some(row) => tables.account_capacity(id, row, true),
                None => drop(tables.vacant.insert(id, ())),
            }
        }
    }

    fn references(state: &State) -> Check {
        invariant::references(state)
    }

    fn check_state(state: &State) -> Check {
        one_owner_per_namespace::check(state)?;
        invariant::sums(state)
    }

    fn expire(context: &mut Context<'_>) {
        context.expire_leases();
    }

    fn blocks_user_removal(&self, user: UserId) -> Option<(BoundKind, u64)> {
        let owned = self.resource_counts.get(&Some(user)).copied().unwrap_or(0);
        (owned > 0).then_some((BoundKind::Resources, owned))
    }

    fn forget_machine(&mut self, machine: MachineId) {
        self.clear_machine(machine);
    }

    fn removed_with(&self, row: RowRef) -> Option<RowRef> {
        let is_capacity = row.table == TableName::Capacities;
        let capacity = is_capacity.then(|| self.capacities.get(CapacityId(row.slot)))??;
        Some(capacity.machine.into())
    }
}

impl Tables {
    pub(super) fn capacity_id(
        &self,
        resource: ResourceId,
        machine: MachineId,
    ) -> Option<CapacityId> {
        self.machines_of.get(&resource)?.get(&machine).copied()
    }
}

/// Reading.
impl State {
    pub fn resources(&self) -> &Table<ResourceId, ResourceRow> {
        &self.components.ephemeral.resources
    }

    pub fn resource_named(&self, name: &ResourceName) -> Option<ResourceId> {
        self.components.ephemeral.names.get(name).copied()
    }

    /// The machines that have some of this resource, by id, and how much.
    pub fn capacities_of(
        &self,
        resource: ResourceId,
    ) -> impl Iterator<Item = (MachineId, u64)> + '_ {
        let tables = &self.components.ephemeral;
        let machines = tables.machines_of.get(&resource).into_iter().flat_map(SortedMap::iter);
        machines.filter_map(|(machine, id)| Some((*machine, tables.capacities.get(*id)?.amount)))
    }

    /// Capacity of a resource on a machine; `None` if it is not there.
    pub fn capacity_of(&self, resource: ResourceId, machine: MachineId) -> Option<u64> {
        let tables = &self.components.ephemeral;
        let id = tables.capacity_id(resource, machine)?;
        tables.capacities.get(id).map(|row| row.amount)
    }

    /// The ephemeral resources of a machine, sorted by name.
    pub fn ephemeral_on(&self, machine: MachineId) -> Vec<NamedAmount> {
        let tables = &self.components.ephemeral;
        let resources = tables.resources_on.get(&machine).into_iter().flat_map(SortedMap::iter);
        let amounts = resources.filter_map(|(resource, id)| {
            let name = tables.resources.get(*resource)?.name.clone();
            Some(NamedAmount { name, amount: tables.capacities.get(*id)?.amount })
        });
        let mut list: Vec<NamedAmount> = amounts.collect();
        list.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        list
    }

    /// Capacity of a named resource on a machine: operator-given or ephemeral, zero when unknown.
    pub fn named_capacity(&self, machine: MachineId, name: &ResourceName) -> u64 {
        let found = match name.namespace {
            Some(_) => self.resource_named(name).and_then(|id| self.capacity_of(id, machine)),
            None => self.machines.get(machine).map(|row| row.spec.configured_capacity(name)),
        };
        found.unwrap_or(0)
    }
}
