//! Ephemeral resources (E1): an application counts something of its own on machines, and its tasks
//! ask for it like for any resource. Capacity moves by deltas, so two writers never undo each
//! other, and a name lives no longer than its lease.
//!
//! A namespace belongs to whoever has a resource in it, the same one for all of them; the system
//! has one reserved, and where it writes into another's namespace it writes in the owner's name.
//! Keeping rows for namespaces was rejected: they would outlive what they are for, and need leases
//! of their own.

use super::Context;
use crate::admit;
use crate::bounds::Holding;
use crate::command::{Actor, Done, Verdict};
use crate::ephemeral::{AvailableNodes, CapacityChange, NodeChoice};
use crate::event::{ResourceChange, What};
use crate::id::{MachineId, ResourceId, UserId};
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::name::{Name, Token};
use crate::named::{NamedAmount, ResourceName, UNBOUNDED};
use crate::reason::{Reason, Refusal};
use crate::resource::MAX_QUANTITY;
use crate::time::{Span, Time};
use std::collections::BTreeMap;

/// The namespace only the cell's own parts write.
pub const SYSTEM_NAMESPACE: &str = "system";
/// Most ephemeral resources on one machine: its row is copied when it changes.
pub const MAX_PER_MACHINE: usize = 1024;

/// Capacity on one machine, `None` where the resource is not.
type Capacities = BTreeMap<MachineId, Option<u64>>;

impl Context<'_> {
    pub(super) fn set_resource(
        &mut self,
        namespace: &Token,
        name: &Token,
        lease: Span,
        changes: &[(NodeChoice, CapacityChange)],
    ) -> Verdict {
        let owner = self.may_write(namespace)?;
        let name = ResourceName { namespace: Some(namespace.clone()), name: name.clone() };
        if lease == Span::ZERO || lease > admit::MAX_SPAN {
            return Err(Refusal::BadField {
                field: "lease".into(),
                value: lease.0.to_string(),
                allowed: format!("1 to {} ms", admit::MAX_SPAN.0),
            });
        }
        let lease_until = self.now.plus(lease);
        let wanted = self.capacities(&name, changes)?;
        let known = self.state.resource_named(&name);
        if known.is_none() {
            let own = self.state.resource_counts.get(&owner).copied().unwrap_or(0);
            self.one_more(Holding::Resources, own as usize, self.state.bounds.resources)?;
        }
        if known.is_none() && !self.state.resources.has_room_for(1) {
            return Err(Refusal::Full("resources".into()));
        }
        let events = self.events.len();
        let resource = match known {
            Some(resource) => self.renew(resource, lease_until),
            None => self.create(&name, owner, lease_until),
        };
        for (machine, capacity) in wanted {
            self.set_capacity(resource, &name, machine, capacity);
        }
        match self.events.len() > events {
            true => Ok(Done::Applied),
            false => Ok(Done::Unchanged),
        }
    }

    pub(super) fn delete_resource(&mut self, namespace: &Token, name: &Token) -> Verdict {
        self.may_write(namespace)?;
        let name = ResourceName { namespace: Some(namespace.clone()), name: name.clone() };
        let Some(resource) = self.state.resource_named(&name) else {
            return Err(Refusal::NoSuchResource(name));
        };
        self.drop_resources(&[resource], &Reason::Requested);
        Ok(Done::Applied)
    }

    /// Deletes resources everywhere. Holders stay. Costs the machines that have them.
    pub(super) fn drop_resources(&mut self, resources: &[ResourceId], reason: &Reason) {
        let named = |id: &ResourceId| Some((self.state.resources.get(*id)?.name.clone(), *id));
        let names: BTreeMap<ResourceName, ResourceId> =
            resources.iter().filter_map(named).collect();
        // By machine, and by name on each: events are told in this order.
        let mut gone: BTreeMap<(MachineId, &ResourceName), ResourceId> = BTreeMap::new();
        for (name, resource) in &names {
            let machines = self.state.machines_with(*resource);
            gone.extend(machines.map(|machine| ((machine, name), *resource)));
        }
        for ((machine, name), resource) in gone {
            self.state.set_capacity(resource, name, machine, None);
            let change = ResourceChange::RemovedFromMachine;
            self.resource_event(resource, Some(machine), change, reason.clone());
        }
        for resource in names.into_values() {
            self.state.remove_resource(resource);
            self.resource_event(resource, None, ResourceChange::Deleted, reason.clone());
        }
    }

    /// Whose the namespace is, or becomes: the acting user's, who has it or finds it free, or that
    /// of the user the system acts for; `None` for the system's own.
    fn may_write(&self, namespace: &Token) -> Result<Option<UserId>, Refusal> {
        if namespace.as_str().contains('/') {
            return Err(Refusal::BadField {
                field: "namespace".into(),
                value: namespace.to_string(),
                allowed: "a token without /".into(),
            });
        }
        let known = self.state.namespaces.get(namespace).map(|known| known.owner);
        let Actor::User(name) = self.by else { return Ok(known.flatten()) };
        let Some(user) = self.state.user_named(name) else {
            return Err(Refusal::NoSuchUser(name.clone()));
        };
        if namespace.as_str() == SYSTEM_NAMESPACE {
            return Err(foreign(name, namespace));
        }
        match known {
            None => Ok(Some(user)),
            Some(owner) if owner == Some(user) => Ok(Some(user)),
            Some(_) => Err(foreign(name, namespace)),
        }
    }

    /// What the changes come to, machine by machine; several on one machine add up in order.
    fn capacities(
        &self,
        name: &ResourceName,
        changes: &[(NodeChoice, CapacityChange)],
    ) -> Result<Capacities, Refusal> {
        let mut wanted = Capacities::new();
        for (position, (nodes, change)) in changes.iter().enumerate() {
            for machine in self.chosen(nodes)? {
                let row = self.machine_row(machine)?;
                let before = match wanted.get(&machine) {
                    Some(capacity) => *capacity,
                    None => find(&row.ephemeral, name).ok().map(|at| row.ephemeral[at].amount),
                };
                if before.is_none() && row.ephemeral.len() >= MAX_PER_MACHINE {
                    return Err(Refusal::Full(format!("resources on machine {}", row.spec.name)));
                }
                wanted.insert(machine, changed(position, before, *change)?);
            }
        }
        Ok(wanted)
    }

    /// The nodes that a change is for, as the cell stands now.
    fn chosen(&self, nodes: &NodeChoice) -> Result<Vec<MachineId>, Refusal> {
        let wanted = match nodes {
            NodeChoice::Node(name) => {
                let found = self.state.machine_named(name);
                return found
                    .map(|id| vec![id])
                    .ok_or_else(|| Refusal::NoSuchMachine(name.clone()));
            }
            NodeChoice::Available(wanted) => wanted,
        };
        if wanted.num_nodes == Some(0) {
            return Err(Refusal::BadField {
                field: "nodes.available.num_nodes".into(),
                value: "0".into(),
                allowed: "1 or more".into(),
            });
        }
        let rows = self.state.machines.iter().filter(|(id, row)| self.has(*id, row, wanted));
        let mut found: Vec<(&Name, MachineId)> =
            rows.map(|(id, row)| (&row.spec.name, id)).collect();
        let least = wanted.num_nodes.map_or(1, |n| n as usize);
        if found.len() < least {
            let (matching, asked) = (found.len() as u64, least as u64);
            return Err(Refusal::TooFewNodes { matching, asked });
        }
        if let Some(most) = wanted.num_nodes {
            found.sort_unstable();
            found.truncate(most as usize);
        }
        let mut ids: Vec<MachineId> = found.into_iter().map(|(_, id)| id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Whether the machine has this much available.
    fn has(&self, id: MachineId, row: &Machine, wanted: &AvailableNodes) -> bool {
        let none = MachineLoad::default();
        let load = self.state.machine_load(id).unwrap_or(&none);
        let has = |asked: &NamedAmount| match row.named_capacity(&asked.name) {
            UNBOUNDED => true,
            all => asked.amount <= all.saturating_sub(load.named_used(&asked.name)),
        };
        row.schedulable()
            && wanted.resources.within(row.available(load))
            && wanted.named.iter().all(has)
    }

    fn renew(&mut self, resource: ResourceId, lease_until: Time) -> ResourceId {
        let known = self.state.resources.get(resource).map(|row| row.lease_until);
        if known != Some(lease_until)
            && let Some(row) = self.state.resources.get_mut(resource)
        {
            row.lease_until = lease_until;
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
        let resource = self.state.insert_resource(name.clone(), owner, lease_until);
        self.resource_event(resource, None, ResourceChange::Created, Reason::Requested);
        resource
    }

    fn set_capacity(
        &mut self,
        resource: ResourceId,
        name: &ResourceName,
        machine: MachineId,
        capacity: Option<u64>,
    ) {
        let Some(row) = self.state.machines.get(machine) else { return };
        let place = find(&row.ephemeral, name);
        let change = match (place, capacity) {
            (Err(_), None) => return,
            (Ok(at), Some(capacity)) if row.ephemeral[at].amount == capacity => return,
            (_, Some(capacity)) => ResourceChange::CapacityChanged { capacity },
            (_, None) => ResourceChange::RemovedFromMachine,
        };
        self.state.set_capacity(resource, name, machine, capacity);
        self.resource_event(resource, Some(machine), change, Reason::Requested);
    }

    fn resource_event(
        &mut self,
        resource: ResourceId,
        machine: Option<MachineId>,
        change: ResourceChange,
        reason: Reason,
    ) {
        self.emit(What::Resource { resource, machine, change }, reason);
    }
}

fn foreign(user: &Name, namespace: &Token) -> Refusal {
    Refusal::ForeignNamespace { user: user.clone(), namespace: namespace.clone() }
}

fn find(list: &[NamedAmount], name: &ResourceName) -> Result<usize, usize> {
    list.binary_search_by(|entry| entry.name.cmp(name))
}

/// Capacity after one change. It may fall below what is held, never below zero.
fn changed(
    position: usize,
    before: Option<u64>,
    change: CapacityChange,
) -> Result<Option<u64>, Refusal> {
    let by = match change {
        CapacityChange::Remove => return Ok(None),
        CapacityChange::Unbounded => return Ok(Some(UNBOUNDED)),
        CapacityChange::Add(by) => by,
    };
    let bad = |value: String, allowed: &str| Refusal::BadField {
        field: format!("changes[{position}]"),
        value,
        allowed: allowed.into(),
    };
    let held = before.unwrap_or(0);
    if held == UNBOUNDED {
        let value = format!("add {by} to an unbounded capacity");
        return Err(bad(value, "remove it first, or leave it unbounded"));
    }
    match held.checked_add_signed(by) {
        Some(sum) if sum <= MAX_QUANTITY => Ok(Some(sum)),
        _ => {
            let value = format!("add {by} to a capacity of {held}");
            Err(bad(value, &format!("a sum of 0 to {MAX_QUANTITY}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, name};
    use crate::command::Command;
    use crate::render;
    use CapacityChange::{Add, Remove, Unbounded};

    const LEASE: Span = Span(1000);

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    /// Machine 0 is `m1`.
    fn set(changes: &[(u32, CapacityChange)], lease: Span) -> Command {
        let node = |m: u32| NodeChoice::Node(name(&format!("m{}", m + 1)));
        let changes = changes.iter().map(|(m, change)| (node(*m), *change)).collect();
        Command::SetResource { namespace: token("app"), name: token("slot"), lease, changes }
    }

    fn say(cell: &mut Cell, by: &str, command: Command) -> String {
        let verdict = cell.by(by, command);
        render::verdict(&cell.state, &verdict)
    }

    fn capacity(cell: &Cell, machine: u32) -> Option<u64> {
        let row = cell.state.machines().get(MachineId(machine)).unwrap();
        row.ephemeral.first().map(|entry| entry.amount)
    }

    /// Changes on `m1` one command after the other: what was said of the last, and the capacity.
    fn check(commands: &[&[(u32, CapacityChange)]], want: &str, left: Option<u64>) {
        let mut cell = Cell::with_machines(2);
        let mut said = String::new();
        for changes in commands {
            said = say(&mut cell, "ubar", set(changes, LEASE));
        }
        assert!(said.contains(want), "{commands:?}: {said}");
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
        assert_eq!(say(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        let foreign = "refused: user uother does not own the resource namespace app";
        assert_eq!(say(&mut cell, "uother", set(&[(0, Add(1))], LEASE)), foreign);
        let (namespace, name) = (token("app"), token("else"));
        let beside = Command::SetResource { namespace, name, lease: LEASE, changes: vec![] };
        assert_eq!(say(&mut cell, "uother", beside), foreign);
        let delete = || Command::DeleteResource { namespace: token("app"), name: token("slot") };
        assert_eq!(say(&mut cell, "uother", delete()), foreign);
        assert_eq!(say(&mut cell, "ubar", delete()), "done");
        assert_eq!(cell.said.len(), 2, "{:?}", cell.said);
        assert_eq!(capacity(&cell, 0), None);
        let gone = "refused: there is no resource app/slot";
        assert_eq!(say(&mut cell, "ubar", delete()), gone);
        assert_eq!(say(&mut cell, "uother", set(&[(0, Add(1))], LEASE)), "done");
        for namespace in ["system", "a/b"] {
            let (namespace, name) = (token(namespace), token("slot"));
            let command = Command::SetResource { namespace, name, lease: LEASE, changes: vec![] };
            assert!(say(&mut cell, "ubar", command).starts_with("refused"));
        }
        assert_eq!(say(&mut cell, "unobody", delete()), "refused: there is no user unobody");
    }

    /// The system writes beside what a user has, before and after it in the order of rows.
    #[test]
    fn the_system_writes_into_a_namespace_in_its_owners_name() {
        let mut cell = Cell::with_machines(1);
        let set = |namespace: &str, name: &str| Command::SetResource {
            namespace: token(namespace),
            name: token(name),
            lease: LEASE,
            changes: vec![],
        };
        assert_eq!(say(&mut cell, "ubar", set("app", "slot")), "done");
        cell.ok(set("app", "data"));
        let owner = |cell: &Cell, text: &str| {
            let name = ResourceName { namespace: Some(token("app")), name: token(text) };
            let id = cell.state.resource_named(&name).unwrap();
            cell.state.resources().get(id).unwrap().owner
        };
        assert!(owner(&cell, "data").is_some());
        assert_eq!(owner(&cell, "data"), owner(&cell, "slot"));
        cell.ok(Command::DeleteResource { namespace: token("app"), name: token("slot") });
        assert_eq!(say(&mut cell, "ubar", set("app", "third")), "done");
        cell.ok(set("other", "slot"));
        let foreign = "refused: user ubar does not own the resource namespace other";
        assert_eq!(say(&mut cell, "ubar", set("other", "slot")), foreign);
    }

    #[test]
    fn a_lease_has_a_length_is_renewed_and_ends_by_command() {
        let mut cell = Cell::with_machines(2);
        for wrong in [Span::ZERO, Span(admit::MAX_SPAN.0 + 1)] {
            let said = say(&mut cell, "ubar", set(&[], wrong));
            assert!(said.contains("field lease"), "{said}");
        }
        say(&mut cell, "ubar", set(&[(0, Add(1)), (1, Add(2))], Span(500)));
        assert_eq!(say(&mut cell, "ubar", set(&[], LEASE)), "done");
        cell.now += LEASE.0 - 2;
        assert_eq!(cell.ok(Command::Expire), Done::Unchanged);
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        assert_eq!(cell.said.len(), 3, "{:?}", cell.said);
        assert_eq!((capacity(&cell, 0), capacity(&cell, 1)), (None, None));
        assert_eq!(cell.state.resources().len(), 0);
    }

    #[test]
    fn nodes_are_chosen_when_the_command_is_applied() {
        let mut cell = Cell::with_machines(3);
        let ask = |ram, num_nodes| Command::SetResource {
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
        assert_eq!(say(&mut cell, "ubar", ask(1, Some(2))), "done");
        let at = [0, 1, 2].map(|machine| capacity(&cell, machine));
        assert_eq!(at, [Some(1), Some(1), None], "the smallest names");
        let few = "refused: 3 nodes have that much available, 4 are asked";
        assert_eq!(say(&mut cell, "ubar", ask(1, Some(4))), few);
        assert!(say(&mut cell, "ubar", ask(u64::MAX, None)).contains("0 nodes have"));
        assert!(say(&mut cell, "ubar", ask(1, Some(0))).contains("num_nodes: value 0"));
        assert_eq!(say(&mut cell, "ubar", ask(1, None)), "done");
        assert_eq!([0, 1, 2].map(|m| capacity(&cell, m)), [Some(2), Some(2), Some(1)]);
    }

    #[test]
    fn a_user_has_so_many_resources() {
        let mut cell = Cell::with_machines(1);
        let bounds = crate::bounds::Bounds { resources: 1, ..Default::default() };
        cell.ok(Command::SetBounds(bounds));
        assert_eq!(say(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        assert_eq!(say(&mut cell, "ubar", set(&[(0, Add(1))], LEASE)), "done");
        let (namespace, name) = (token("app"), token("else"));
        let more = Command::SetResource { namespace, name, lease: LEASE, changes: vec![] };
        assert!(say(&mut cell, "ubar", more).contains("1 ephemeral resources and asks for 1 more"));
    }

    #[test]
    fn holders_stay_when_the_capacity_falls_below_what_they_hold() {
        let mut cell = Cell::with_machines(1);
        say(&mut cell, "ubar", set(&[(0, Add(2))], LEASE));
        let mut spec = job("jfoo", 2, 100);
        let name = ResourceName { namespace: Some(token("app")), name: token("slot") };
        spec.task.named = vec![NamedAmount { name, amount: 1 }];
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        assert_eq!(say(&mut cell, "ubar", set(&[(0, Add(-2))], LEASE)), "done");
        assert!(!cell.state.machines().get(MachineId(0)).unwrap().over_committed);
        let candidate = crate::fit::Candidate::of(&cell.state, cell.task_id("jfoo", 1)).unwrap();
        let misfit = crate::fit::misfit(&cell.state, &candidate, MachineId(0), None);
        assert_eq!(misfit.map(|m| m.code()), Some("named-resource"));
    }
}
