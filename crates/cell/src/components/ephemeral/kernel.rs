//! Ephemeral resources in the tests of the kernel (`tests/kernel`, of which this is a module):
//! samples for the pinned bytes, random commands, and their words in transcripts.

use crate::build::{self, name, token};
use crate::draw::Draw;
use crate::generate::{some_machine, user_name};
use crate::options::seconds;
use crate::wire::{Pins, every_variant};
use cellwright_cell::command;
use cellwright_cell::ephemeral::{
    AvailableNodes, CapacityChange, Command, Event, NodeChoice, ResourceChange,
};
use cellwright_cell::id::{MachineId, ResourceId};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_cell::time::Span;

pub fn commands() -> Vec<Command> {
    vec![
        Command::Set {
            namespace: token("app"),
            name: token("slot"),
            lease: Span(5000),
            changes: vec![(NodeChoice::Node(name("m1")), CapacityChange::Add(4))],
        },
        Command::Delete { namespace: token("app"), name: token("slot") },
    ]
}

/// One event of each change.
pub fn events() -> Vec<Event> {
    let changes = [
        ResourceChange::Created,
        ResourceChange::CapacityChanged { capacity: 10 },
        ResourceChange::Renewed,
        ResourceChange::RemovedFromMachine,
        ResourceChange::Deleted,
    ];
    let machine = Some(MachineId(2));
    changes.map(|change| Event { resource: ResourceId(3), machine, change }).to_vec()
}

pub fn pin(pins: &mut Pins) {
    every_variant(pins, "ResourceCommand", &commands());
    let changes: Vec<ResourceChange> = events().into_iter().map(|event| event.change).collect();
    every_variant(pins, "ResourceChange", &changes);
    every_variant(
        pins,
        "CapacityChange",
        &[CapacityChange::Add(-2), CapacityChange::Unbounded, CapacityChange::Remove],
    );
}

/// The owner of the namespace, which may be any user.
pub fn owner(_: &Command) -> Option<Name> {
    None
}

pub fn random(state: &State, draw: &mut Draw) -> command::Command {
    let namespace = token(&user_name(draw));
    let name = token(if draw.one_in(2) { "slot" } else { "data" });
    if draw.one_in(6) {
        return Command::Delete { namespace, name }.into();
    }
    let changes = (0..1 + draw.below(3)).map(|_| change(state, draw));
    let changes = changes.collect();
    let lease = match draw.below(6) {
        0 => Span(u64::MAX),
        1 => Span::ZERO,
        _ => Span::seconds(draw.below(3_000)),
    };
    Command::Set { namespace, name, lease, changes }.into()
}

fn change(state: &State, draw: &mut Draw) -> (NodeChoice, CapacityChange) {
    let change = match draw.below(10) {
        0 => CapacityChange::Unbounded,
        1 => CapacityChange::Remove,
        2 => CapacityChange::Add(-(draw.below(4) as i64)),
        3 => CapacityChange::Add(i64::MIN),
        4 => CapacityChange::Add(i64::MAX),
        _ => CapacityChange::Add(draw.below(5) as i64),
    };
    let machine = some_machine(state, draw);
    let known = state.machines().get(machine).map(|row| row.spec.name.clone());
    let nodes = match draw.below(5) {
        0 => NodeChoice::Available(AvailableNodes {
            resources: Resources::new(draw.below(20), draw.below(20), 0, 0),
            named: Vec::new(),
            num_nodes: draw.one_in(2).then(|| draw.below(4) as u32),
        }),
        _ => NodeChoice::Node(known.unwrap_or_else(|| name("nowhere"))),
    };
    (nodes, change)
}

/// Parses commands of transcripts.
pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<command::Command>, String> {
    let command = match (verb, rest) {
        ("resource", [name, lease, changes @ ..]) => parse_set(name, lease, changes)?,
        ("delete-resource", [name]) => {
            let (namespace, name) = name.split_once('/').ok_or("NAMESPACE/NAME")?;
            Command::Delete { namespace: token(namespace), name: token(name) }
        }
        _ => return Ok(None),
    };
    Ok(Some(command.into()))
}

/// Parses `m1:+2`, `m1:-1`, `m1:unbounded`, `m1:gone`.
fn parse_set(name: &str, lease: &str, changes: &[&str]) -> Result<Command, String> {
    let (namespace, name) = name.split_once('/').ok_or("NAMESPACE/NAME")?;
    let span = lease.strip_prefix("for=").ok_or("for=SECONDSs")?;
    let change = |text: &&str| {
        let (machine, change) = text.split_once(':').ok_or("MACHINE:CHANGE")?;
        let change = match change {
            "unbounded" => CapacityChange::Unbounded,
            "gone" => CapacityChange::Remove,
            delta => CapacityChange::Add(delta.parse().map_err(|_| "a change")?),
        };
        Ok::<_, String>((NodeChoice::Node(build::name(machine)), change))
    };
    Ok(Command::Set {
        namespace: token(namespace),
        name: token(name),
        lease: seconds(span)?,
        changes: changes.iter().map(change).collect::<Result<_, _>>()?,
    })
}
