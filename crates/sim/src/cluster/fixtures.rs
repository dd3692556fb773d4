//! Plain machines and jobs for simulated cells.

use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::Name;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::ScalePolicy;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

/// A machine with `cpu` milli-cores and plenty of the rest.
#[must_use]
pub fn machine(name: &str, cpu: u64) -> MachineSpec {
    MachineSpec {
        name: valid_name(name),
        capacity: Resources { cpu, ram: 64 << 30, disk: 1 << 40, disk_rate: 1 << 30 },
        attributes: BTreeMap::default(),
        labels: BTreeMap::default(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange { first: 20_000, last: 29_999 },
        address: None,
    }
}

/// A job of priority zero, which needs no quota: each task takes `cpu` milli-cores and runs
/// `command`.
#[must_use]
pub fn job(name: &str, count: u32, cpu: u64, command: &[&str]) -> JobSpec {
    let limits = Resources { cpu, ram: 1 << 20, disk: 0, disk_rate: 0 };
    let mut spec = crate::convert::plain_job(valid_name(name), count, Priority(0), limits);
    spec.task.command = command.iter().map(|word| (*word).to_owned()).collect();
    spec.task.notice = Span(100);
    spec.restart.backoff = Span(100);
    spec.restart.backoff_max = Span(400);
    spec
}

/// Between so many tasks by half of their CPU limit, without delays: runs are short.
#[must_use]
pub fn scale_policy(min: u32, max: u32) -> ScalePolicy {
    let mut policy = ScalePolicy::between(min, max);
    policy.target.cpu = Some(50);
    (policy.pace.stabilise, policy.pace.cool_down) = (Span::ZERO, Span::ZERO);
    policy
}

/// Names here are made from numbers and letters; a bad one is a bug of the simulation.
fn valid_name(name: &str) -> Name {
    Name::new(name).unwrap_or_else(|bad| panic!("{bad}"))
}
