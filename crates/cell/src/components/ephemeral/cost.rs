//! Tests of the cost of changes of ephemeral resources, counted in pieces of tables that are copied
//! and in machines that are looked at: as much in a small cell as in a large one.

use super::apply::first_nodes;
use super::{AvailableNodes, CapacityChange, Command, NodeChoice, Tables};
use crate::apply::fixture::{machine, name};
use crate::command::{self, Actor, Done, Entry, Request};
use crate::id::MachineId;
use crate::name::Token;
use crate::sorted_map::SortedMap;
use crate::state::State;
use crate::time::{Span, Time};

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn apply(state: &mut State, command: impl Into<command::Command>) -> Done {
    let command = command.into();
    let by = Actor::default_sender(&command, state);
    let request = Request { by, id: None, command };
    let entry = Entry { now: Time(state.now().0 + 1), requests: vec![request] };
    state.apply(&entry, &mut Vec::new()).remove(0).unwrap()
}

fn set(resource: &str, nodes: NodeChoice, change: CapacityChange) -> Command {
    let (namespace, name, lease) = (token("app"), token(resource), Span::seconds(60));
    Command::Set { namespace, name, lease, changes: vec![(nodes, change)] }
}

fn on(machine: u32) -> NodeChoice {
    NodeChoice::Node(name(&format!("m{machine}")))
}

fn first(num_nodes: u32) -> NodeChoice {
    let num_nodes = Some(num_nodes);
    NodeChoice::Available(AvailableNodes { num_nodes, ..AvailableNodes::default() })
}

/// A cell with this many machines, each with some of every one of this many resources, and one more
/// resource on machine 7 alone.
fn cell(machines: u32, resources: u32) -> State {
    let mut state = State::default();
    for number in 0..machines {
        apply(&mut state, command::Command::AddMachine(machine(&format!("m{number}"), 100)));
        let machine = MachineId(number);
        apply(&mut state, command::Command::MachineUp { machine, incarnation: 1 });
    }
    for number in 0..resources {
        let all = NodeChoice::Available(AvailableNodes::default());
        apply(&mut state, set(&format!("r{number}"), all, CapacityChange::Add(5)));
    }
    apply(&mut state, set("lone", on(7), CapacityChange::Add(5)));
    state
}

/// Number of pieces of all tables of the component not shared with an older clone. Inner maps of
/// maps count too.
fn copied(old: &Tables, new: &Tables) -> usize {
    fn inner<A: Ord + Clone, B: Ord + Clone, C: Clone>(
        old: &SortedMap<A, SortedMap<B, C>>,
        new: &SortedMap<A, SortedMap<B, C>>,
    ) -> usize {
        let empty = SortedMap::default();
        let pieces =
            |(key, map): (&A, &SortedMap<B, C>)| map.copied_since(old.get(key).unwrap_or(&empty));
        new.copied_since(old) + new.iter().map(pieces).sum::<usize>()
    }
    new.resources.copied_since(&old.resources)
        + new.capacities.copied_since(&old.capacities)
        + new.names.copied_since(&old.names)
        + new.namespaces.copied_since(&old.namespaces)
        + new.resource_counts.copied_since(&old.resource_counts)
        + new.leases.copied_since(&old.leases)
        + new.vacant.copied_since(&old.vacant)
        + inner(&old.machines_of, &new.machines_of)
        + inner(&old.resources_on, &new.resources_on)
}

/// Pieces that a command copies while a reader holds the earlier state.
fn cost(state: &State, command: impl Into<command::Command>) -> usize {
    let mut after = state.clone();
    assert_eq!(apply(&mut after, command), Done::Applied);
    assert_eq!(after.machines.copied_since(&state.machines), 0, "no machine's row changes");
    assert_eq!(after.machine_loads.copied_since(&state.machine_loads), 0);
    copied(&state.components.ephemeral, &after.components.ephemeral)
}

#[test]
fn a_write_costs_what_it_changes_however_large_the_cell() {
    use CapacityChange::{Add, Remove};
    let (small, large) = (cell(100, 3), cell(2000, 90));
    let lone = || Command::Delete { namespace: token("app"), name: token("lone") };
    let check = |command: &dyn Fn() -> Command, most: usize| {
        for state in [&small, &large] {
            let pieces = cost(state, command());
            assert!(pieces <= most, "{:?} copies {pieces} pieces, not {most}", command());
        }
    };
    // The row of the resource and the end of its lease, and the row of a capacity.
    check(&|| set("r1", on(42), Add(1)), 5);
    // Also the entries of the capacity in the indexes by resource and by machine.
    check(&|| set("r1", on(42), Remove), 10);
    check(&|| set("lone", on(42), Add(1)), 10);
    // Also its name, its namespace and its owner's count.
    check(&|| set("new", on(42), Add(1)), 13);
    check(&lone, 13);
    // Three capacities, each in a piece of its own at worst.
    check(&|| set("r1", first(3), Add(1)), 3 + 5);
}

#[test]
fn expiry_costs_the_leases_that_are_over() {
    let mut state = cell(500, 20);
    let now = state.now();
    let short = Command::Set {
        namespace: token("app"),
        name: token("brief"),
        lease: Span(10),
        changes: vec![(on(3), CapacityChange::Add(1))],
    };
    apply(&mut state, short);
    state.now = now.plus(Span::seconds(5));
    let pieces = cost(&state, command::Command::Expire);
    assert!(pieces <= 13, "{pieces}");
}

#[test]
fn nodes_are_looked_at_until_enough_are_found() {
    let state = cell(1000, 0);
    let mut looked = 0;
    let found = first_nodes(&state, Some(3), |_, _| {
        looked += 1;
        looked % 2 == 0
    });
    assert_eq!((found.unwrap().len(), looked), (3, 6));
}

/// The capacities of a resource or a machine are found by its own entries.
#[test]
fn both_ends_of_a_capacity_lead_to_it() {
    let state = cell(40, 2);
    let lone = state.resource_named(&crate::named::ResourceName {
        namespace: Some(token("app")),
        name: token("lone"),
    });
    let lone = lone.unwrap();
    assert_eq!(state.capacities_of(lone).collect::<Vec<_>>(), [(MachineId(7), 5)]);
    let names = |machine| {
        let amounts = state.ephemeral_on(MachineId(machine));
        amounts.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(7), ["app/lone", "app/r0", "app/r1"]);
    assert_eq!(names(8), ["app/r0", "app/r1"]);
    let mut without = state.clone();
    let name = name("m7");
    apply(&mut without, command::Command::RemoveMachine { name, expect: None });
    assert_eq!(without.capacities_of(lone).count(), 0);
    crate::invariant::check_state(&without).unwrap();
}
