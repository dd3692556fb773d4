//! Invariants of the tables of ephemeral resources.

use super::CapacityId;
use crate::id::{MachineId, ResourceId, UserId};
use crate::invariant::references::{NAME, unique};
use crate::invariant::sums_equal_parts::{equal, equal_map};
use crate::invariant::{Check, violation};
use crate::name::Token;
use crate::sorted_map::SortedMap;
use crate::state::State;
use crate::table::Key;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Names are unique, owners, resources and machines exist, and each pair of resource and machine
/// has one row.
pub(super) fn references(state: &State) -> Check {
    unique("resource", state.resources().iter().map(|(_, row)| &row.name))?;
    for (id, row) in state.resources().iter() {
        let owned = row.owner.is_none_or(|owner| state.users.get(owner).is_some());
        if row.id != id || !owned {
            let detail = format!("says it is {:?}, owner {:?}; it is {id:?}", row.id, row.owner);
            return Err(violation(NAME, &row.name, detail));
        }
    }
    let mut pairs = BTreeSet::new();
    for (id, row) in state.components.ephemeral.capacities.iter() {
        let known = state.resources().get(row.resource).is_some();
        if !known || state.machines.get(row.machine).is_none() {
            let detail =
                format!("is of {:?} on {:?}, not both of which exist", row.resource, row.machine);
            return Err(violation(NAME, format!("capacity row {}", id.0), detail));
        }
        if !pairs.insert((row.resource, row.machine)) {
            let detail = format!("{:?} has two on {:?}", row.resource, row.machine);
            return Err(violation(NAME, format!("capacity row {}", id.0), detail));
        }
    }
    Ok(())
}

type Pairs<A, B> = BTreeMap<A, BTreeMap<B, CapacityId>>;

/// Owners and sizes of namespaces, counts for each owner, leases, and the indexes of capacities.
pub(super) fn sums(state: &State) -> Check {
    let tables = &state.components.ephemeral;
    let mut namespaces: BTreeMap<Token, u64> = BTreeMap::new();
    let mut owners: BTreeMap<Option<UserId>, u64> = BTreeMap::new();
    for (_, row) in tables.resources.iter() {
        *owners.entry(row.owner).or_default() += 1;
        if let Some(namespace) = &row.name.namespace {
            *namespaces.entry(namespace.clone()).or_default() += 1;
            let kept = tables.namespaces.get(namespace).map(|known| known.owner);
            equal(format!("owner of namespace {namespace}"), &kept, &Some(row.owner))?;
        }
    }
    let kept = tables.namespaces.iter().map(|(k, v)| (k.clone(), v.resources)).collect();
    equal_map("resources of namespace", kept, &namespaces)?;
    let kept = tables.resource_counts.iter().map(|(k, v)| (*k, *v)).collect();
    equal_map("resources of owner", kept, &owners)?;
    let names = tables.resources.iter().map(|(id, row)| (row.name.clone(), id)).collect();
    let kept = tables.names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("resource name", kept, &names)?;
    let ends: BTreeSet<(Time, ResourceId)> =
        tables.resources.iter().map(|(id, row)| (row.lease_until, id)).collect();
    let kept: BTreeSet<(Time, ResourceId)> = tables.leases.iter().map(|(end, ())| *end).collect();
    equal("ends of leases".to_owned(), &kept, &ends)?;
    capacities(state)
}

fn capacities(state: &State) -> Check {
    let tables = &state.components.ephemeral;
    let mut machines_of: Pairs<ResourceId, MachineId> = BTreeMap::new();
    let mut resources_on: Pairs<MachineId, ResourceId> = BTreeMap::new();
    for (id, row) in tables.capacities.iter() {
        machines_of.entry(row.resource).or_default().insert(row.machine, id);
        resources_on.entry(row.machine).or_default().insert(row.resource, id);
    }
    equal_map("machines of resource", plain(&tables.machines_of), &machines_of)?;
    equal_map("resources on machine", plain(&tables.resources_on), &resources_on)?;
    let slots = (0..tables.capacities.slots()).map(CapacityId::from_slot);
    let vacant: BTreeSet<CapacityId> =
        slots.filter(|id| tables.capacities.get(*id).is_none()).collect();
    let kept: BTreeSet<CapacityId> = tables.vacant.iter().map(|(id, ())| *id).collect();
    equal("vacant rows of capacities".to_owned(), &kept, &vacant)
}

fn plain<A: Key + Ord, B: Key + Ord>(map: &SortedMap<A, SortedMap<B, CapacityId>>) -> Pairs<A, B> {
    let inner = |map: &SortedMap<B, CapacityId>| map.iter().map(|(k, id)| (*k, *id)).collect();
    map.iter().map(|(key, known)| (*key, inner(known))).collect()
}
