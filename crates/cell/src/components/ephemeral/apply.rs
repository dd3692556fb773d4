//! Ephemeral resources (E1): an application counts something of its own on machines, and its tasks
//! ask for it like for any resource. Capacity is changed by deltas, so two writers never undo each
//! other, and a name lives no longer than its lease.
//!
//! A namespace belongs to the user that has a resource in it, the same user for all of them; one
//! namespace is reserved for the cell's own parts, and an operator that writes into a user's
//! namespace does so in the owner's name. Who may write where is decided in `authorize.rs`.
//! Rejected: rows for namespaces. They would outlive their purpose, and need leases of their own.

use super::{AvailableNodes, CapacityChange, Event, NodeChoice, ResourceChange};
use crate::admit;
use crate::apply::Context;
use crate::bounds::BoundKind;
use crate::command::{Actor, Done, Verdict};
use crate::id::{MachineId, ResourceId, UserId};
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::name::Token;
use crate::named::{NamedAmount, ResourceName, UNBOUNDED};
use crate::reason::{Allowed, Given, Reason, Rejection, Storage};
use crate::resource::MAX_QUANTITY;
use crate::state::State;
use crate::time::{Span, Time};
use std::collections::BTreeMap;

/// The namespace that only the cell's own parts may write.
pub const SYSTEM_NAMESPACE: &str = "system";
/// Most ephemeral resources on one machine: the API returns all of them with the machine.
pub const MAX_PER_MACHINE: usize = 1024;

/// Capacity on each machine, `None` if the resource is not there.
type Capacities = BTreeMap<MachineId, Option<u64>>;

impl Context<'_> {
    pub(super) fn set_resource(
        &mut self,
        namespace: &Token,
        name: &Token,
        lease: Span,
        changes: &[(NodeChoice, CapacityChange)],
    ) -> Verdict {
        let owner = self.namespace_owner(namespace)?;
        let name = ResourceName { namespace: Some(namespace.clone()), name: name.clone() };
        if lease == Span::ZERO || lease > admit::MAX_SPAN {
            let allowed = Allowed::LengthRange { least: Span(1), most: admit::MAX_SPAN };
            return Err(Rejection::bad_field("lease", Given::text(lease.0), allowed));
        }
        let lease_until = self.now.plus(lease);
        let wanted = self.new_capacities(&name, changes)?;
        let known = self.state.resource_named(&name);
        if known.is_none() {
            let own =
                self.state.components.ephemeral.resource_counts.get(&owner).copied().unwrap_or(0);
            self.check_one_more(BoundKind::Resources, own as usize, self.state.bounds.resources)?;
        }
        let tables = &self.state.components.ephemeral;
        if known.is_none() && !tables.resources.has_room_for(1) {
            return Err(Rejection::Full(Storage::Resources));
        }
        if !tables.has_room_for(wanted.len()) {
            return Err(Rejection::Full(Storage::Capacities));
        }
        let events = self.events.len();
        let resource = match known {
            Some(resource) => self.renew(resource, lease_until),
            None => self.create(&name, owner, lease_until),
        };
        for (machine, capacity) in wanted {
            self.set_capacity(resource, machine, capacity);
        }
        if self.events.len() > events { Ok(Done::Applied) } else { Ok(Done::Unchanged) }
    }

    pub(super) fn delete_resource(&mut self, namespace: &Token, name: &Token) -> Verdict {
        let name = ResourceName { namespace: Some(namespace.clone()), name: name.clone() };
        let Some(resource) = self.state.resource_named(&name) else {
            return Err(Rejection::NoSuchResource(name));
        };
        self.drop_resources(&[resource], &Reason::Requested);
        Ok(Done::Applied)
    }

    /// Deletes resources whose lease has ended. Costs those leases.
    pub(super) fn expire_leases(&mut self) {
        let leases = self.state.components.ephemeral.leases.iter();
        let over = leases.take_while(|((until, _), ())| *until <= self.now);
        let over: Vec<ResourceId> = over.map(|((_, resource), ())| *resource).collect();
        self.drop_resources(&over, &Reason::LeaseExpired);
    }

    /// Deletes resources everywhere. Their holders stay. Costs the machines that have them.
    fn drop_resources(&mut self, resources: &[ResourceId], reason: &Reason) {
        let named = |id: &ResourceId| Some((self.state.resources().get(*id)?.name.clone(), *id));
        let names: BTreeMap<ResourceName, ResourceId> =
            resources.iter().filter_map(named).collect();
        // By machine, and by name on each: the order of events.
        let mut gone: BTreeMap<(MachineId, &ResourceName), ResourceId> = BTreeMap::new();
        for (name, resource) in &names {
            let machines = self.state.capacities_of(*resource);
            gone.extend(machines.map(|(machine, _)| ((machine, name), *resource)));
        }
        for ((machine, _), resource) in gone {
            self.state.components.ephemeral.set_capacity(resource, machine, None);
            let change = ResourceChange::RemovedFromMachine;
            self.resource_event(resource, Some(machine), change, reason.clone());
        }
        for resource in names.into_values() {
            self.state.components.ephemeral.remove_resource(resource);
            self.resource_event(resource, None, ResourceChange::Deleted, reason.clone());
        }
    }

    /// The resulting capacities, by machine; several changes on one machine add up in order.
    fn new_capacities(
        &self,
        name: &ResourceName,
        changes: &[(NodeChoice, CapacityChange)],
    ) -> Result<Capacities, Rejection> {
        let mut wanted = Capacities::new();
        let known = self.state.resource_named(name);
        for (position, (nodes, change)) in changes.iter().enumerate() {
            for machine in self.resolve_nodes(nodes)? {
                let row = self.machine_row(machine)?;
                let before = match wanted.get(&machine) {
                    Some(capacity) => *capacity,
                    None => known.and_then(|id| self.state.capacity_of(id, machine)),
                };
                let here = self.state.components.ephemeral.resources_on.get(&machine);
                let is_full = here.is_some_and(|here| here.len() >= MAX_PER_MACHINE);
                if before.is_none() && is_full {
                    return Err(Rejection::Full(Storage::ResourcesOn(row.spec.name.clone())));
                }
                wanted.insert(machine, changed_capacity(position, before, *change)?);
            }
        }
        Ok(wanted)
    }

    /// Resolves the nodes of a change in the present state.
    fn resolve_nodes(&self, nodes: &NodeChoice) -> Result<Vec<MachineId>, Rejection> {
        let wanted = match nodes {
            NodeChoice::Node(name) => {
                let found = self.state.machine_named(name);
                return found
                    .map(|id| vec![id])
                    .ok_or_else(|| Rejection::NoSuchMachine(name.clone()));
            }
            NodeChoice::Available(wanted) => wanted,
        };
        if wanted.num_nodes == Some(0) {
            let field = "nodes.available.num_nodes";
            return Err(Rejection::bad_field(field, Given::text(0), Allowed::AtLeast(1)));
        }
        first_nodes(self.state, wanted.num_nodes, |id, row| self.has_available(id, row, wanted))
    }

    /// Whether the machine has this much available.
    fn has_available(&self, id: MachineId, row: &Machine, wanted: &AvailableNodes) -> bool {
        let none = MachineLoad::default();
        let load = self.state.machine_load(id).unwrap_or(&none);
        let has = |requested: &NamedAmount| match self.state.named_capacity(id, &requested.name) {
            UNBOUNDED => true,
            all => requested.amount <= all.saturating_sub(load.named_used(&requested.name)),
        };
        row.is_schedulable()
            && wanted.resources.within(row.available(load))
            && wanted.named.iter().all(has)
    }

    fn renew(&mut self, resource: ResourceId, lease_until: Time) -> ResourceId {
        // Other agents may have the resource too: a shorter lease from one agent would end theirs.
        let lease_until = match self.by {
            Actor::Agent(_) => {
                let known = self.state.components.ephemeral.resources.get(resource);
                known.map_or(lease_until, |row| row.lease_until.max(lease_until))
            }
            _ => lease_until,
        };
        if self.state.components.ephemeral.renew(resource, lease_until) {
            self.resource_event(resource, None, ResourceChange::Renewed, Reason::Requested);
        }
        resource
    }

    fn create(
        &mut self,
        name: &ResourceName,
        owner: Option<UserId>,
        lease_until: Time,
    ) -> ResourceId {
        let tables = &mut self.state.components.ephemeral;
        let resource = tables.insert_resource(name.clone(), owner, lease_until);
        self.resource_event(resource, None, ResourceChange::Created, Reason::Requested);
        resource
    }

    fn set_capacity(&mut self, resource: ResourceId, machine: MachineId, capacity: Option<u64>) {
        let known = self.state.capacity_of(resource, machine);
        if known == capacity {
            return;
        }
        let change = match (known, capacity) {
            (_, Some(capacity)) => ResourceChange::CapacityChanged { capacity },
            (_, None) => ResourceChange::RemovedFromMachine,
        };
        self.state.components.ephemeral.set_capacity(resource, machine, capacity);
        self.resource_event(resource, Some(machine), change, Reason::Requested);
    }

    fn resource_event(
        &mut self,
        resource: ResourceId,
        machine: Option<MachineId>,
        change: ResourceChange,
        reason: Reason,
    ) {
        self.emit(Event { resource, machine, change }, reason);
    }
}

/// The machines that satisfy `has_available`: all of them, or the given number of those with the
/// smallest names. Looks at no more machines than it takes to find these.
pub(super) fn first_nodes(
    state: &State,
    num_nodes: Option<u32>,
    mut has: impl FnMut(MachineId, &Machine) -> bool,
) -> Result<Vec<MachineId>, Rejection> {
    let mut matches = |id: &MachineId| state.machines.get(*id).is_some_and(|row| has(*id, row));
    let mut ids: Vec<MachineId> = match num_nodes {
        Some(most) => {
            let by_name = state.machine_names.in_order().map(|(_, id)| *id);
            by_name.filter(|id| matches(id)).take(most as usize).collect()
        }
        None => state.machines.iter().map(|(id, _)| id).filter(|id| matches(id)).collect(),
    };
    let (matching, requested) = (ids.len() as u64, u64::from(num_nodes.unwrap_or(1)));
    if matching < requested {
        return Err(Rejection::TooFewNodes { matching, requested });
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Capacity after one change. It may fall below what is held, never below zero.
fn changed_capacity(
    position: usize,
    before: Option<u64>,
    change: CapacityChange,
) -> Result<Option<u64>, Rejection> {
    let by = match change {
        CapacityChange::Remove => return Ok(None),
        CapacityChange::Unbounded => return Ok(Some(UNBOUNDED)),
        CapacityChange::Add(by) => by,
    };
    let bad = |held: Option<u64>, allowed: Allowed| {
        Rejection::bad_field(format!("changes[{position}]"), Given::Added { by, held }, allowed)
    };
    let held = before.unwrap_or(0);
    if held == UNBOUNDED {
        return Err(bad(None, Allowed::ChangeOfUnbounded));
    }
    match held.checked_add_signed(by) {
        Some(sum) if sum <= MAX_QUANTITY => Ok(Some(sum)),
        _ => Err(bad(Some(held), Allowed::CapacitySum)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, name};
    use crate::command::Command;
    use crate::components::ephemeral;
    use crate::words;
    use CapacityChange::{Add, Remove, Unbounded};

    const LEASE: Span = Span(1000);

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    /// Machine 0 is `m1`.
    fn set(changes: &[(u32, CapacityChange)], lease: Span) -> ephemeral::Command {
        let node = |m: u32| NodeChoice::Node(name(&format!("m{}", m + 1)));
        let changes = changes.iter().map(|(m, change)| (node(*m), *change)).collect();
        ephemeral::Command::Set { namespace: token("app"), name: token("slot"), lease, changes }
    }

    fn apply_and_render(cell: &mut Cell, by: &str, command: impl Into<Command>) -> String {
        let verdict = cell.send_as(by, command);
        words::verdict(&cell.state, &verdict)
    }

    fn capacity(cell: &Cell, machine: u32) -> Option<u64> {
        cell.state.ephemeral_on(MachineId(machine)).first().map(|entry| entry.amount)
    }

    /// Changes on `m1`, one command after the other: the events of the last one, and the capacity.
    fn check(commands: &[&[(u32, CapacityChange)]], want: &str, left: Option<u64>) {
        let mut cell = Cell::with_machines(2);
        let mut message = String::new();
        for changes in commands {
            message = apply_and_render(&mut cell, "ubar", set(changes, LEASE));
        }
        assert!(message.contains(want), "{commands:?}: {message}");
        assert_eq!(capacity(&cell, 0), left, "{commands:?}");
    }

    #[test]
    fn deltas_add_up_and_never_go_below_zero() {
        check(&[&[]], "done", None);
        check(&[&[], &[]], "done", None);
        check(&[&[(0, Add(3))]], "done", Some(3));
        check(&[&[(0, Add(3))], &[(0, Add(-2))]], "done", Some(1));
        check(&[&[(0, Add(3)), (0, Add(-2)), (1, Add(9))]], "done", Some(1));
        check(&[&[(0, Add(0))]], "done", Some(0));
        check(&[&[(0, Add(3))], &[(0, Add(0))]], "done", Some(3));
        check(&[&[(0, Add(3))], &[(0, Remove)]], "done", None);
        check(&[&[(0, Remove)]], "done", None);
        check(&[&[(0, Unbounded)]], "done", Some(UNBOUNDED));
        check(&[&[(0, Unbounded)], &[(0, Remove), (0, Add(2))]], "done", Some(2));
        let below = "changes[1]: value add -4 to a capacity of 3 is not valid; allowed: a sum of 0";
        check(&[&[(0, Add(3))], &[(1, Add(1)), (0, Add(-4))]], below, Some(3));
        check(&[&[(0, Unbounded)], &[(0, Add(1))]], "unbounded", Some(UNBOUNDED));
        check(&[&[(0, Add(i64::MAX))]], "a sum of 0 to", None);
        check(&[&[(0, Add(i64::MIN))]], "a sum of 0 to", None);
        check(&[&[(0, Add(1)), (9, Add(1))]], "no machine m10", None);
    }

    #[test]
    fn a_namespace_belongs_to_its_first_writer_while_anything_is_in_it() {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::AddUser { name: name("uother") });
        assert_eq!(apply_and_render(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        let foreign = "refused: user uother does not own the resource namespace app";
        assert_eq!(apply_and_render(&mut cell, "uother", set(&[(0, Add(1))], LEASE)), foreign);
        let (namespace, name) = (token("app"), token("else"));
        let beside = ephemeral::Command::Set { namespace, name, lease: LEASE, changes: vec![] };
        assert_eq!(apply_and_render(&mut cell, "uother", beside), foreign);
        let delete = || ephemeral::Command::Delete { namespace: token("app"), name: token("slot") };
        assert_eq!(apply_and_render(&mut cell, "uother", delete()), foreign);
        assert_eq!(apply_and_render(&mut cell, "ubar", delete()), "done");
        assert_eq!(cell.event_lines.len(), 2, "{:?}", cell.event_lines);
        assert_eq!(capacity(&cell, 0), None);
        let gone = "refused: there is no resource app/slot";
        assert_eq!(apply_and_render(&mut cell, "ubar", delete()), gone);
        assert_eq!(apply_and_render(&mut cell, "uother", set(&[(0, Add(1))], LEASE)), "done");
        for namespace in ["system", "a/b"] {
            let (namespace, name) = (token(namespace), token("slot"));
            let command =
                ephemeral::Command::Set { namespace, name, lease: LEASE, changes: vec![] };
            assert!(apply_and_render(&mut cell, "ubar", command).starts_with("refused"));
        }
        assert_eq!(
            apply_and_render(&mut cell, "unobody", delete()),
            "refused: there is no user unobody"
        );
    }

    /// An operator writes beside a user's resources, before and after them in the order of rows.
    #[test]
    fn an_operator_writes_into_a_namespace_in_its_owners_name() {
        let mut cell = Cell::with_machines(1);
        let set = |namespace: &str, name: &str| ephemeral::Command::Set {
            namespace: token(namespace),
            name: token(name),
            lease: LEASE,
            changes: vec![],
        };
        assert_eq!(apply_and_render(&mut cell, "ubar", set("app", "slot")), "done");
        cell.ok(set("app", "data"));
        let owner = |cell: &Cell, text: &str| {
            let name = ResourceName { namespace: Some(token("app")), name: token(text) };
            let id = cell.state.resource_named(&name).unwrap();
            cell.state.resources().get(id).unwrap().owner
        };
        assert!(owner(&cell, "data").is_some());
        assert_eq!(owner(&cell, "data"), owner(&cell, "slot"));
        cell.ok(ephemeral::Command::Delete { namespace: token("app"), name: token("slot") });
        assert_eq!(apply_and_render(&mut cell, "ubar", set("app", "third")), "done");
        cell.ok(set("other", "slot"));
        let foreign = "refused: user ubar does not own the resource namespace other";
        assert_eq!(apply_and_render(&mut cell, "ubar", set("other", "slot")), foreign);
    }

    #[test]
    fn a_lease_has_a_length_is_renewed_and_ends_by_command() {
        let mut cell = Cell::with_machines(2);
        for wrong in [Span::ZERO, Span(admit::MAX_SPAN.0 + 1)] {
            let message = apply_and_render(&mut cell, "ubar", set(&[], wrong));
            assert!(message.contains("field lease"), "{message}");
        }
        apply_and_render(&mut cell, "ubar", set(&[(0, Add(1)), (1, Add(2))], Span(500)));
        assert_eq!(apply_and_render(&mut cell, "ubar", set(&[], LEASE)), "done");
        cell.now += LEASE.0 - 2;
        assert_eq!(cell.ok(Command::Expire), Done::Unchanged);
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        assert_eq!(cell.event_lines.len(), 3, "{:?}", cell.event_lines);
        assert_eq!((capacity(&cell, 0), capacity(&cell, 1)), (None, None));
        assert_eq!(cell.state.resources().len(), 0);
    }

    #[test]
    fn nodes_are_chosen_when_the_command_is_applied() {
        let mut cell = Cell::with_machines(3);
        let set_on_available = |ram, num_nodes| ephemeral::Command::Set {
            namespace: token("app"),
            name: token("slot"),
            lease: LEASE,
            changes: vec![(
                NodeChoice::Available(AvailableNodes {
                    resources: crate::resource::Resources { ram, ..Default::default() },
                    named: Vec::new(),
                    num_nodes,
                }),
                Add(1),
            )],
        };
        assert_eq!(apply_and_render(&mut cell, "ubar", set_on_available(1, Some(2))), "done");
        let at = [0, 1, 2].map(|machine| capacity(&cell, machine));
        assert_eq!(at, [Some(1), Some(1), None], "the smallest names");
        let few = "refused: 3 nodes have that much available, 4 are asked";
        assert_eq!(apply_and_render(&mut cell, "ubar", set_on_available(1, Some(4))), few);
        assert!(
            apply_and_render(&mut cell, "ubar", set_on_available(u64::MAX, None))
                .contains("0 nodes have")
        );
        assert!(
            apply_and_render(&mut cell, "ubar", set_on_available(1, Some(0)))
                .contains("num_nodes: value 0")
        );
        assert_eq!(apply_and_render(&mut cell, "ubar", set_on_available(1, None)), "done");
        assert_eq!([0, 1, 2].map(|m| capacity(&cell, m)), [Some(2), Some(2), Some(1)]);
    }

    #[test]
    fn a_user_has_so_many_resources() {
        let mut cell = Cell::with_machines(1);
        let bounds = crate::bounds::Bounds { resources: 1, ..Default::default() };
        cell.ok(Command::SetBounds(bounds));
        assert_eq!(apply_and_render(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        assert_eq!(apply_and_render(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        let (namespace, name) = (token("app"), token("else"));
        let more = ephemeral::Command::Set { namespace, name, lease: LEASE, changes: vec![] };
        assert!(
            apply_and_render(&mut cell, "ubar", more)
                .contains("1 ephemeral resources and asks for 1 more")
        );
    }

    #[test]
    fn holders_stay_when_the_capacity_falls_below_what_they_hold() {
        let mut cell = Cell::with_machines(1);
        apply_and_render(&mut cell, "ubar", set(&[(0, Add(2))], LEASE));
        let mut spec = job("jfoo", 2, 100);
        let name = ResourceName { namespace: Some(token("app")), name: token("slot") };
        spec.task.named = vec![NamedAmount { name, amount: 1 }];
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        assert_eq!(apply_and_render(&mut cell, "ubar", set(&[(0, Add(-2))], LEASE)), "done");
        assert!(!cell.state.machines().get(MachineId(0)).unwrap().over_committed);
        let candidate = crate::fit::Candidate::of(&cell.state, cell.task_id("jfoo", 1)).unwrap();
        let infeasible = crate::fit::infeasible_reason(&cell.state, &candidate, MachineId(0), None);
        assert_eq!(infeasible.map(|m| m.code()), Some("named-resource"));
    }
}
