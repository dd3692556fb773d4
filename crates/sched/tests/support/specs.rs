//! Random machines and jobs, small enough that everything is short of something.

use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE_DEVICE};
use cellwright_cell::isolation::{
    HOST_VOLUME_READ_ONLY, HOST_VOLUME_WRITABLE, Volume, host_volume_attribute,
};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::named::{NamedAmount, ResourceName};
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{
    Domain, JobKind, JobSpec, PackageRef, RestartPolicy, RetainDisk, SpreadLimit, TaskOverride,
    TaskSpec,
};
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

/// A stream of draws.
pub struct TestRng(pub u64);

impl TestRng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }
}

pub fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

pub fn packages(rng: &mut TestRng) -> Vec<PackageRef> {
    let all = ["web", "db", "tool"].map(|name| PackageRef {
        name: token(name),
        digest: token("d1"),
        bytes: 100 + name.len() as u64 * 50,
    });
    all.into_iter().filter(|_| rng.one_in(2)).collect()
}

pub fn machine(rng: &mut TestRng, name: &str) -> MachineSpec {
    let size = rng.pick(&[50, 100, 100, 200]);
    let mut attributes = BTreeMap::new();
    if rng.one_in(2) {
        let kernel = rng.pick(&["6.1", "6.9", "6.10"]);
        attributes.insert(token("kernel"), AttributeValue::Text(kernel.into()));
    }
    attributes.insert(token("disks"), AttributeValue::Integer(rng.below(4) as i64));
    for (path, one_in) in [("/srv", 4), ("/srv/data", 2)] {
        if rng.one_in(one_in) {
            let how = rng.pick(&[HOST_VOLUME_WRITABLE, HOST_VOLUME_READ_ONLY]);
            let name = host_volume_attribute(path).unwrap();
            attributes.insert(name, AttributeValue::Text(how.into()));
        }
    }
    let model = |rng: &mut TestRng| token(rng.pick(&["a100", "t4"]));
    let devices = match rng.below(3) {
        0 => (0..rng.below(4)).map(|_| Device { kind: token("gpu"), model: model(rng) }).collect(),
        _ => Vec::new(),
    };
    let licence = ResourceName { namespace: None, name: token("licence") };
    let named = match rng.below(3) {
        0 => vec![NamedAmount { name: licence, amount: rng.below(4) }],
        _ => Vec::new(),
    };
    MachineSpec {
        name: Name::new(name).unwrap(),
        capacity: Resources::new(size, size + rng.below(40), 100, 100),
        attributes,
        labels: if rng.one_in(2) {
            BTreeMap::from([(token("team"), rng.pick(&["search", "ads"]).to_owned())])
        } else {
            BTreeMap::new()
        },
        rack: (!rng.one_in(4)).then(|| token(rng.pick(&["r1", "r2", "r3"]))),
        power: (!rng.one_in(4)).then(|| token(rng.pick(&["p1", "p2"]))),
        devices,
        named,
        ports: PortRange { first: 8000, last: 8003 },
        address: None,
    }
}

pub fn limits(rng: &mut TestRng, small: bool) -> Resources {
    let max = if small { 20 } else { rng.pick(&[15, 40, 80]) };
    Resources::new(
        rng.below(max) + 1,
        rng.below(max) + 1,
        rng.below(20),
        if rng.one_in(3) { rng.below(30) } else { 0 },
    )
}

fn constraints(rng: &mut TestRng) -> Vec<Constraint> {
    let operators = [
        (token("kernel"), Operator::VersionAtLeast("6.9".into())),
        (token("team"), Operator::NotEqual(AttributeValue::Text("ads".into()))),
        (token("rack"), Operator::In(vec![AttributeValue::Text("r1".into())])),
        (token("machine"), Operator::Matches("m[1-9]*[13579]".into())),
        (token("kernel"), Operator::Matches("6\\.1.*".into())),
        (token("kernel"), Operator::Exists),
        (token("disks"), Operator::Greater(1)),
        (token("disks"), Operator::NotEqual(AttributeValue::Integer(0))),
    ];
    (0..rng.below(3))
        .map(|_| {
            let (attribute, operator) = rng.pick(&operators);
            let strength = match rng.below(2) {
                0 => Strength::Hard,
                _ => Strength::Soft(rng.below(100) as u8 + 1),
            };
            Constraint { attribute, operator, strength }
        })
        .collect()
}

/// Sometimes the same directory twice.
fn volumes(rng: &mut TestRng) -> Vec<Volume> {
    (0..rng.below(3))
        .map(|number| Volume {
            source: rng.pick(&["/srv", "/srv/data", "/srv/data/sub"]).into(),
            target: format!("/v{number}"),
            writable: rng.one_in(2),
        })
        .collect()
}

fn spread(rng: &mut TestRng) -> Vec<SpreadLimit> {
    let domains = [Domain::Machine, Domain::Rack, Domain::Power, Domain::Cell];
    domains
        .into_iter()
        .filter(|domain| rng.one_in(if *domain == Domain::Cell { 6 } else { 2 }))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|domain| SpreadLimit { domain, limit: rng.below(3) as u32 + 1 })
        .collect()
}

fn task(rng: &mut TestRng, limits: Resources, plain: bool) -> TaskSpec {
    let rarely = |rng: &mut TestRng| !plain && rng.one_in(5);
    let mut named = Vec::new();
    if rarely(rng) {
        let name = ResourceName { namespace: None, name: token("licence") };
        named.push(NamedAmount { name, amount: rng.below(3) });
    }
    if rarely(rng) {
        let name = ResourceName { namespace: Some(token("app")), name: token("slot") };
        named.push(NamedAmount { name, amount: rng.below(3) + 1 });
    }
    let mut devices = Vec::new();
    for _ in 0..2 {
        if rarely(rng) {
            let count = rng.below(2) as u8 + 1;
            let milli =
                if count > 1 { WHOLE_DEVICE } else { rng.pick(&[250, 500, 700, WHOLE_DEVICE]) };
            let models = if rng.one_in(2) { vec![token("t4")] } else { Vec::new() };
            devices.push(DeviceRequest { kind: token("gpu"), models, count, milli });
        }
    }
    TaskSpec {
        ports: if rarely(rng) { rng.below(3) as u8 } else { 0 },
        static_ports: if rarely(rng) { vec![rng.pick(&[80, 8001, 8002])] } else { Vec::new() },
        named,
        devices,
        packages: if rarely(rng) { packages(rng) } else { Vec::new() },
        ..self::plain("task", 1, 0, limits).task
    }
}

/// A job of batch tasks that request only room: all other specs of the tests are variations of it.
pub fn plain(name: &str, count: u32, priority: u16, limits: Resources) -> JobSpec {
    let mut spec = JobSpec::new(Name::new(name).unwrap(), count, Priority(priority), limits);
    spec.task.notice = Span::seconds(1);
    (spec.restart.backoff, spec.restart.backoff_max) = (Span(100), Span(4000));
    spec
}

/// A job of any kind: tasks, a gang, a daemon, an alloc set, tasks inside one of `sets`.
pub fn job(rng: &mut TestRng, name: &str, owner: &Name, sets: &[JobKey]) -> JobSpec {
    let kind = if rng.one_in(8) { JobKind::AllocSet } else { JobKind::Tasks };
    let own: Vec<&JobKey> = sets.iter().filter(|set| set.user == *owner).collect();
    let inside = kind == JobKind::Tasks && !own.is_empty() && rng.one_in(2);
    let asks_for_room_alone = inside || kind == JobKind::AllocSet || rng.one_in(2);
    let limits = limits(rng, inside);
    let count = rng.below(6) as u32 + 1;
    let priority = rng.pick(&[0, 0, 50, 90, 100, 120, 150, 199, 200, 200, 250, 300]);
    let plain = plain(name, count, priority, limits);
    let alloc_pairing = rng.pick(&[AllocPairing::Index, AllocPairing::Any]);
    let mut spec = JobSpec {
        kind,
        appclass: rng.pick(&[Some(AppClass::LatencySensitive), Some(AppClass::Batch)]),
        task: task(rng, limits, asks_for_room_alone),
        constraints: if rng.one_in(3) { constraints(rng) } else { Vec::new() },
        alloc_pairing,
        spread: if (!inside || alloc_pairing == AllocPairing::Any) && rng.one_in(4) {
            spread(rng)
        } else {
            Vec::new()
        },
        alloc_set: inside.then(|| rng.pick(&own).clone()),
        gang: rng.one_in(6),
        max_down: rng.one_in(3).then(|| rng.below(4) as u32),
        restart: RestartPolicy { restart_on_success: rng.one_in(2), ..plain.restart.clone() },
        ..plain
    };
    if rng.one_in(4) {
        spec.task.isolation.volumes = volumes(rng);
    }
    if inside && rng.one_in(3) {
        spec.task.ports = rng.below(2) as u8 + 1;
    }
    if !inside && rng.one_in(5) {
        let bytes = spec.task.limits.disk / 2;
        spec.retain_disk = Some(RetainDisk { bytes, keep: Span(3000), log_saver: None });
    } else if rng.one_in(4) {
        let other =
            TaskOverride { limits: Some(self::limits(rng, true).into()), ..Default::default() };
        spec.overrides.insert(rng.below(u64::from(count)) as u32, other);
    }
    // Not drawn, so that the other draws stay what they were.
    if spec.kind == JobKind::Tasks && !inside && !spec.gang && count == 6 {
        (spec.kind, spec.count) = (JobKind::Daemon, 1);
        spec.spread.clear();
        spec.overrides.clear();
    }
    spec
}
