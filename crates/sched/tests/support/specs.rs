//! Random machines and jobs, small enough that everything is short of something.

use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE};
use cellwright_cell::isolation::{LENT_READ_ONLY, LENT_WRITABLE, Volume, lent_attribute};
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
pub struct Draw(pub u64);

impl Draw {
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

pub fn packages(draw: &mut Draw) -> Vec<PackageRef> {
    let all = ["web", "db", "tool"].map(|name| PackageRef {
        name: token(name),
        digest: token("d1"),
        bytes: 100 + name.len() as u64 * 50,
    });
    all.into_iter().filter(|_| draw.one_in(2)).collect()
}

pub fn machine(draw: &mut Draw, name: &str) -> MachineSpec {
    let size = draw.pick(&[50, 100, 100, 200]);
    let mut attributes = BTreeMap::new();
    if draw.one_in(2) {
        let kernel = draw.pick(&["6.1", "6.9", "6.10"]);
        attributes.insert(token("kernel"), AttributeValue::Text(kernel.into()));
    }
    attributes.insert(token("disks"), AttributeValue::Integer(draw.below(4) as i64));
    for (path, one_in) in [("/srv", 4), ("/srv/data", 2)] {
        if draw.one_in(one_in) {
            let how = draw.pick(&[LENT_WRITABLE, LENT_READ_ONLY]);
            let name = lent_attribute(path).unwrap();
            attributes.insert(name, AttributeValue::Text(how.into()));
        }
    }
    let model = |draw: &mut Draw| token(draw.pick(&["a100", "t4"]));
    let devices = match draw.below(3) {
        0 => {
            (0..draw.below(4)).map(|_| Device { kind: token("gpu"), model: model(draw) }).collect()
        }
        _ => Vec::new(),
    };
    let licence = ResourceName { namespace: None, name: token("licence") };
    let named = match draw.below(3) {
        0 => vec![NamedAmount { name: licence, amount: draw.below(4) }],
        _ => Vec::new(),
    };
    MachineSpec {
        name: Name::new(name).unwrap(),
        capacity: Resources::new(size, size + draw.below(40), 100, 100),
        attributes,
        labels: BTreeMap::new(),
        rack: (!draw.one_in(4)).then(|| token(draw.pick(&["r1", "r2", "r3"]))),
        power: (!draw.one_in(4)).then(|| token(draw.pick(&["p1", "p2"]))),
        devices,
        named,
        ports: PortRange { first: 8000, last: 8003 },
        address: None,
    }
}

pub fn limits(draw: &mut Draw, small: bool) -> Resources {
    let most = if small { 20 } else { draw.pick(&[15, 40, 80]) };
    Resources::new(
        draw.below(most) + 1,
        draw.below(most) + 1,
        draw.below(20),
        if draw.one_in(3) { draw.below(30) } else { 0 },
    )
}

fn constraints(draw: &mut Draw) -> Vec<Constraint> {
    let operators = [
        (token("kernel"), Operator::VersionAtLeast("6.9".into())),
        (token("kernel"), Operator::Matches("6\\.1.*".into())),
        (token("kernel"), Operator::Exists),
        (token("disks"), Operator::Greater(1)),
        (token("disks"), Operator::NotEqual(AttributeValue::Integer(0))),
    ];
    (0..draw.below(3))
        .map(|_| {
            let (attribute, operator) = draw.pick(&operators);
            let strength = match draw.below(2) {
                0 => Strength::Hard,
                _ => Strength::Soft(draw.below(100) as u8 + 1),
            };
            Constraint { attribute, operator, strength }
        })
        .collect()
}

/// Now and then the same folder twice.
fn volumes(draw: &mut Draw) -> Vec<Volume> {
    (0..draw.below(3))
        .map(|number| Volume {
            source: draw.pick(&["/srv", "/srv/data", "/srv/data/sub"]).into(),
            target: format!("/v{number}"),
            writable: draw.one_in(2),
        })
        .collect()
}

fn spread(draw: &mut Draw) -> Vec<SpreadLimit> {
    let domains = [Domain::Machine, Domain::Rack, Domain::Power];
    domains
        .into_iter()
        .filter(|_| draw.one_in(2))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|domain| SpreadLimit { domain, limit: draw.below(3) as u32 + 1 })
        .collect()
}

fn task(draw: &mut Draw, limits: Resources, plain: bool) -> TaskSpec {
    let rarely = |draw: &mut Draw| !plain && draw.one_in(5);
    let mut named = Vec::new();
    if rarely(draw) {
        let name = ResourceName { namespace: None, name: token("licence") };
        named.push(NamedAmount { name, amount: draw.below(3) });
    }
    if rarely(draw) {
        let name = ResourceName { namespace: Some(token("app")), name: token("slot") };
        named.push(NamedAmount { name, amount: draw.below(3) + 1 });
    }
    let mut devices = Vec::new();
    for _ in 0..2 {
        if rarely(draw) {
            let count = draw.below(2) as u8 + 1;
            let milli = if count > 1 { WHOLE } else { draw.pick(&[250, 500, 700, WHOLE]) };
            let models = if draw.one_in(2) { vec![token("t4")] } else { Vec::new() };
            devices.push(DeviceRequest { kind: token("gpu"), models, count, milli });
        }
    }
    TaskSpec {
        ports: if rarely(draw) { draw.below(3) as u8 } else { 0 },
        static_ports: if rarely(draw) { vec![draw.pick(&[80, 8001, 8002])] } else { Vec::new() },
        named,
        devices,
        packages: if rarely(draw) { packages(draw) } else { Vec::new() },
        ..self::plain("task", 1, 0, limits).task
    }
}

/// A job of batch tasks that ask for room alone: what all other specs of the tests differ from.
pub fn plain(name: &str, count: u32, priority: u16, limits: Resources) -> JobSpec {
    let mut spec = JobSpec::new(Name::new(name).unwrap(), count, Priority(priority), limits);
    spec.task.notice = Span::seconds(1);
    (spec.restart.backoff, spec.restart.backoff_max) = (Span(100), Span(4000));
    spec
}

/// A job of any kind: tasks, a gang, an alloc set, tasks inside one of `sets`.
pub fn job(draw: &mut Draw, name: &str, owner: &Name, sets: &[JobKey]) -> JobSpec {
    let kind = if draw.one_in(8) { JobKind::AllocSet } else { JobKind::Tasks };
    let own: Vec<&JobKey> = sets.iter().filter(|set| set.user == *owner).collect();
    let inside = kind == JobKind::Tasks && !own.is_empty() && draw.one_in(2);
    let asks_for_room_alone = inside || kind == JobKind::AllocSet || draw.one_in(2);
    let limits = limits(draw, inside);
    let count = draw.below(6) as u32 + 1;
    let priority = draw.pick(&[0, 0, 50, 90, 100, 120, 150, 199, 200, 200, 250, 300]);
    let plain = plain(name, count, priority, limits);
    let mut spec = JobSpec {
        kind,
        appclass: draw.pick(&[AppClass::LatencySensitive, AppClass::Batch]),
        task: task(draw, limits, asks_for_room_alone),
        constraints: if draw.one_in(3) { constraints(draw) } else { Vec::new() },
        spread: if !inside && draw.one_in(4) { spread(draw) } else { Vec::new() },
        alloc_set: inside.then(|| draw.pick(&own).clone()),
        gang: draw.one_in(6),
        max_down: draw.one_in(3).then(|| draw.below(4) as u32),
        restart: RestartPolicy { restart_on_success: draw.one_in(2), ..plain.restart.clone() },
        ..plain
    };
    if draw.one_in(4) {
        spec.task.isolation.volumes = volumes(draw);
    }
    if inside && draw.one_in(3) {
        spec.task.ports = draw.below(2) as u8 + 1;
    }
    if !inside && draw.one_in(5) {
        let bytes = spec.task.limits.disk / 2;
        spec.retain_disk = Some(RetainDisk { bytes, keep: Span(3000), saver: None });
    } else if draw.one_in(4) {
        let other = TaskOverride { limits: Some(self::limits(draw, true)), ..Default::default() };
        spec.overrides.insert(draw.below(u64::from(count)) as u32, other);
    }
    spec
}
