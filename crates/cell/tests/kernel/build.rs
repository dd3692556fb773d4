//! Plain values to build tests from. Every field is spelt out once, here.

use cellwright_cell::constraint::{AttributeValue, Attributes};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::named::{NamedAmount, ResourceName};
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec, RestartPolicy, TaskSpec};
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

/// Cores, GiB of memory and disk; a disk rate nobody competes for.
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
    let milli = if count > 1 { WHOLE } else { milli };
    DeviceRequest { kind: token("gpu"), models: Vec::new(), count, milli }
}

pub fn task(limits: Resources) -> TaskSpec {
    TaskSpec {
        limits,
        ports: 0,
        static_ports: Vec::new(),
        named: Vec::new(),
        devices: Vec::new(),
        packages: Vec::new(),
        command: Vec::new(),
        env: BTreeMap::new(),
        notice: Span::seconds(10),
        health: None,
        max_run: None,
        files: BTreeMap::new(),
        user: None,
        logs: None,
        isolation: Default::default(),
        secrets: BTreeMap::new(),
    }
}

pub fn job(text: &str, priority: u16, count: u32, limits: Resources) -> JobSpec {
    JobSpec {
        name: name(text),
        kind: JobKind::Tasks,
        count,
        priority: Priority(priority),
        appclass: AppClass::Batch,
        labels: BTreeMap::new(),
        task: task(limits),
        overrides: BTreeMap::new(),
        constraints: Vec::new(),
        spread: Vec::new(),
        alloc_set: None,
        after: Vec::new(),
        gang: false,
        max_down: None,
        max_update_disruptions: None,
        restart: RestartPolicy {
            max_failures: None,
            retry: Default::default(),
            backoff: Span(0),
            backoff_max: Span::seconds(300),
            restart_on_success: false,
        },
        reclaimable: true,
        at_most_one: None,
        retain_disk: None,
        preemption_notice_max: None,
        disruptions: None,
    }
}
