//! Builders of plain values for tests. Every field is spelt out once, here.

use cellwright_cell::constraint::{AttributeValue, Attributes};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE_DEVICE};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::named::{NamedAmount, ResourceName};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

pub const GIB: u64 = 1 << 30;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("names in tests are valid")
}

pub fn token(text: &str) -> Token {
    Token::new(text).expect("tokens in tests are valid")
}

pub fn job_key(user: &str, job: &str) -> JobKey {
    JobKey { user: name(user), job: name(job) }
}

/// Cores, GiB of memory and disk; a disk rate that never runs out.
pub fn room(cores: u64, ram: u64, disk: u64) -> Resources {
    Resources::new(cores * 1000, ram * GIB, disk * GIB, 0)
}

pub fn resource(namespace: Option<&str>, text: &str) -> ResourceName {
    ResourceName { namespace: namespace.map(token), name: token(text) }
}

pub fn amount(namespace: Option<&str>, text: &str, amount: u64) -> NamedAmount {
    NamedAmount { name: resource(namespace, text), amount }
}

pub fn machine(text: &str, capacity: Resources) -> MachineSpec {
    MachineSpec {
        name: name(text),
        capacity,
        attributes: Attributes::new(),
        labels: BTreeMap::new(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange { first: 20_000, last: 20_019 },
        address: None,
    }
}

pub fn text(value: &str) -> AttributeValue {
    AttributeValue::Text(value.to_owned())
}

pub fn gpus(count: usize) -> Vec<Device> {
    vec![Device { kind: token("gpu"), model: token("a100") }; count]
}

/// One share of a GPU, or several whole ones.
pub fn gpu_request(count: u8, milli: u16) -> DeviceRequest {
    let milli = if count > 1 { WHOLE_DEVICE } else { milli };
    DeviceRequest { kind: token("gpu"), models: Vec::new(), count, milli }
}

pub fn job(text: &str, priority: u16, count: u32, limits: Resources) -> JobSpec {
    let mut spec = JobSpec::new(name(text), count, Priority(priority), limits);
    spec.restart.backoff = Span(0);
    spec
}
