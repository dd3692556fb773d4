//! Random specs for random commands: jobs and machines small enough to compete, with every feature
//! now and then, and hostile ones.

use crate::build;
use crate::draw::Draw;
use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::constraint::{Constraint, Operator, Strength};
use cellwright_cell::disruption::DisruptionLimit;
use cellwright_cell::isolation::{
    HOST_VOLUME_READ_ONLY, HOST_VOLUME_WRITABLE, Volume, host_volume_attribute,
};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::retry::Retries;
use cellwright_cell::scale::{MetricKind, MetricSource, MetricTarget, ScalePolicy};
use cellwright_cell::spec::{
    Domain, JobDependency, JobKind, JobSpec, PackageRef, RetainDisk, SpreadLimit, TaskOverride,
};
use cellwright_cell::time::Span;
use cellwright_cell::update_policy::{RollbackLimit, UpdatePolicy};

pub fn machine(name: &str, draw: &mut Draw) -> MachineSpec {
    let mut spec = build::machine(name, build::room(4 + draw.below(5), 8 + draw.below(9), 100));
    spec.rack = draw.one_in(2).then(|| build::token(&format!("r{}", draw.below(2))));
    spec.power = draw.one_in(2).then(|| build::token("p0"));
    spec.devices = build::gpus(draw.below(4) as usize);
    if draw.one_in(2) {
        spec.attributes.insert(build::token("os"), build::text("debian"));
    }
    if draw.one_in(3) {
        let count = if draw.one_in(3) { UNBOUNDED } else { draw.below(4) };
        spec.named = vec![build::amount(None, "licence", count)];
    }
    // Derived from earlier draws, so that the other draws stay what they were.
    let how = match spec.capacity.cpu % 3 {
        0 => Some(HOST_VOLUME_WRITABLE),
        1 => Some(HOST_VOLUME_READ_ONLY),
        _ => None,
    };
    if let Some((how, name)) = how.zip(host_volume_attribute("/srv").ok()) {
        spec.attributes.insert(name, build::text(how));
    }
    if draw.one_in(40) {
        spec.capacity.ram = u64::MAX;
    }
    spec
}

pub fn changed_machine(old: &MachineSpec, draw: &mut Draw) -> MachineSpec {
    let mut spec = old.clone();
    match draw.below(5) {
        0 => spec.capacity.cpu = spec.capacity.cpu / 2 + 1,
        3 => {
            if let Some(device) = spec.devices.first_mut() {
                device.model = build::token(if draw.one_in(2) { "t4" } else { "a100" });
            }
        }
        1 => spec.capacity = build::room(8, 16, 100),
        2 => spec.devices = build::gpus(draw.below(3) as usize),
        _ => spec.rack = draw.one_in(2).then(|| build::token("r1")),
    }
    spec
}

pub fn packages(draw: &mut Draw) -> impl Iterator<Item = PackageRef> {
    let count = draw.below(3);
    (0..count).map(|i| PackageRef {
        name: build::token(&format!("package{i}")),
        digest: build::token("0a1b"),
        bytes: 1 << 20,
    })
}

fn limits(draw: &mut Draw) -> Resources {
    build::room(1 + draw.below(3), 1 + draw.below(5), draw.below(20))
}

fn priority(draw: &mut Draw) -> Priority {
    let all = [0, 0, 50, 100, 120, 150, 200, 200, 220, 250, 300];
    Priority(*draw.pick(&all).unwrap_or(&100))
}

pub fn job(name: &str, draw: &mut Draw) -> JobSpec {
    let mut spec = build::job(name, priority(draw).0, 1 + draw.below(4) as u32, limits(draw));
    spec.reclaimable = !draw.one_in(10);
    spec.task.command = vec!["server".to_owned()];
    policies(&mut spec, draw);
    match draw.below(10) {
        0 | 1 => alloc_set(&mut spec, draw),
        2 | 3 => {
            let (user, set) = (draw.below(3), draw.below(5));
            spec.alloc_set = Some(build::job_key(&format!("u{user}"), &format!("j{set}")));
            let any = spec.count > 2;
            spec.alloc_pairing = if any { AllocPairing::Any } else { AllocPairing::Index };
            spec.task.limits = build::room(1, 1, 0);
            spec.retain_disk = None;
        }
        _ => {
            needs(&mut spec, draw);
            // Derived from earlier draws, so that the other draws stay what they were.
            let mut own = Draw::new(spec.task.limits.to_array().iter().sum::<u64>() ^ 0xdae);
            if own.one_in(5) {
                daemon(&mut spec);
            }
        }
    }
    if draw.one_in(30) {
        hostile(&mut spec, draw);
    }
    while !spec.after.is_empty() && draw.one_in(2) {
        spec.after.push(predecessor(draw));
    }
    let bound = draw.one_in(4).then(|| Span::seconds(draw.below(20)));
    spec.preemption_notice_max = bound.filter(|_| spec.priority.is_prod());
    spec
}

fn alloc_set(spec: &mut JobSpec, draw: &mut Draw) {
    spec.scale = None;
    spec.kind = JobKind::AllocSet;
    spec.restart.retry = Retries::default();
    if let Some(retain) = &mut spec.retain_disk {
        retain.log_saver = draw.one_in(2).then(|| build::name(&format!("j{}", draw.below(5))));
    }
    spec.task.command.clear();
    spec.task.limits = build::room(3, 6, 20);
}

fn daemon(spec: &mut JobSpec) {
    (spec.kind, spec.count, spec.gang) = (JobKind::Daemon, 1, false);
    spec.after.clear();
    spec.spread.clear();
    spec.overrides.clear();
}

fn policies(spec: &mut JobSpec, draw: &mut Draw) {
    spec.gang = draw.one_in(8);
    spec.repair = (spec.gang && draw.one_in(2)).then(|| Span(1 + draw.below(20_000)));
    spec.max_down = draw.one_in(3).then(|| draw.below(3) as u32);
    spec.max_update_disruptions = draw.one_in(4).then(|| draw.below(2) as u32);
    spec.restart.max_failures = draw.one_in(2).then(|| draw.below(3) as u32);
    spec.restart.backoff = Span::seconds(draw.below(3));
    // Derived from earlier draws, so that the other draws stay what they were.
    let limits = spec.task.limits.to_array().into_iter();
    let mut own = Draw::new(limits.fold(u64::from(spec.count), |sum, amount| {
        sum.rotate_left(7) ^ amount ^ spec.restart.backoff.0
    }));
    if own.one_in(3) {
        spec.restart.retry = retries(&mut own);
    }
    if own.one_in(4) {
        let (source, target) = ("/srv/data".into(), "/data".into());
        spec.task.isolation.volumes = vec![Volume { source, target, writable: own.one_in(2) }];
    }
    spec.appclass = match own.below(4) {
        0 => Some(AppClass::Batch),
        1 => Some(AppClass::LatencySensitive),
        _ => None,
    };
    if own.one_in(3) {
        let (most, within) = (1 + own.below(3) as u32, Span::seconds(1 + own.below(600)));
        spec.disruptions = Some(DisruptionLimit { most, within });
    }
    spec.update = update_policy(&mut own);
    if !spec.gang && own.one_in(3) {
        let min = 1 + own.below(3) as u32;
        let mut policy = ScalePolicy::between(min, min + own.below(4) as u32);
        policy.advise = own.one_in(6);
        if own.one_in(3) {
            policy.target.metrics = vec![MetricTarget {
                name: cellwright_cell::name::Token::new("queue").expect("a token"),
                per_task: 1 + own.below(5000),
                kind: if own.one_in(2) { MetricKind::Rate } else { MetricKind::Value },
                labels: Default::default(),
            }];
            policy.metrics = Some(MetricSource::File("queue".into()));
        }
        spec.scale = Some(policy);
    }
    spec.restart.restart_on_success = draw.one_in(3);
    spec.at_most_one = draw.one_in(8).then_some(Span::seconds(30));
    spec.after = draw.one_in(6).then(|| predecessor(draw)).into_iter().collect();
    let keep = Span::seconds(draw.below(600));
    let bytes = spec.task.limits.disk / 2;
    spec.retain_disk = draw.one_in(4).then_some(RetainDisk { bytes, keep, log_saver: None });
}

/// Canaries and rollbacks, each for some jobs.
fn update_policy(draw: &mut Draw) -> UpdatePolicy {
    let back = RollbackLimit {
        failures: 1 + draw.below(2) as u32,
        within: Span::seconds(1 + draw.below(600)),
    };
    UpdatePolicy {
        canaries: if draw.one_in(4) { 1 + draw.below(2) as u32 } else { 0 },
        promote_after: draw.one_in(2).then(|| Span::seconds(1 + draw.below(20))),
        rollback: draw.one_in(3).then_some(back),
    }
}

/// Half of the kinds with a small number of their own.
fn retries(draw: &mut Draw) -> Retries {
    let mut number = || draw.one_in(2).then(|| draw.below(3) as u32);
    Retries {
        exit: number().map(|times| (1, times)).into_iter().collect(),
        failed: number(),
        out_of_memory: number(),
        over_disk_limit: number(),
        timed_out: number(),
        could_not_start: number(),
        unhealthy: number(),
        out_of_memory_bystander: number(),
        lost: number(),
        evicted: number(),
    }
}

/// Sometimes the same twice, which admission rejects.
fn predecessor(draw: &mut Draw) -> JobDependency {
    JobDependency {
        job: build::job_key(&format!("u{}", draw.below(3)), &format!("j{}", draw.below(5))),
        require_success: draw.one_in(2),
    }
}

fn needs(spec: &mut JobSpec, draw: &mut Draw) {
    spec.task.ports = if draw.one_in(3) { draw.below(4) as u8 } else { 0 };
    if draw.one_in(6) {
        spec.task.static_ports = vec![if draw.one_in(2) { 80 } else { 20_003 }];
    }
    if draw.one_in(5) {
        let request = build::gpu_request(1 + draw.below(2) as u8, 250 * (1 + draw.below(4)) as u16);
        spec.task.devices = vec![request];
    }
    spec.task.named = match draw.below(8) {
        0 => vec![build::amount(None, "licence", 1 + draw.below(2))],
        1 => vec![build::amount(Some("u0"), "slot", 1)],
        _ => Vec::new(),
    };
    if draw.one_in(5) {
        let domain =
            *draw.pick(&[Domain::Machine, Domain::Rack, Domain::Cell]).unwrap_or(&Domain::Power);
        spec.spread = vec![SpreadLimit { domain, limit: 1 + draw.below(2) as u32 }];
    }
    if draw.one_in(6) {
        spec.constraints = vec![Constraint {
            attribute: build::token("os"),
            operator: Operator::Equal(build::text("debian")),
            strength: if draw.one_in(2) { Strength::Hard } else { Strength::Soft(10) },
        }];
    }
    if draw.one_in(5) {
        let limits = Some(limits(draw).into());
        let small = spec.retain_disk.is_none();
        let change = TaskOverride { limits, ..TaskOverride::default() };
        spec.overrides.extend(small.then_some((0, change)));
    }
}

fn hostile(spec: &mut JobSpec, draw: &mut Draw) {
    match draw.below(7) {
        0 => spec.count = 0,
        1 => spec.count = u32::MAX,
        2 => spec.priority = Priority(u16::MAX),
        3 => spec.task.limits.cpu = u64::MAX,
        4 => spec.task.static_ports = vec![0, 0],
        5 => spec.restart.backoff = Span(u64::MAX),
        _ => spec.overrides.extend([(u32::MAX, TaskOverride::default())]),
    }
}

/// The same job, changed in one or two ways: some take effect at once, some restart, some move.
pub fn changed_job(old: &JobSpec, draw: &mut Draw) -> JobSpec {
    let mut spec = old.clone();
    for _ in 0..1 + draw.below(2) {
        match draw.below(9) {
            0 => spec.priority = priority(draw),
            1 => spec.max_down = draw.one_in(2).then(|| draw.below(3) as u32),
            2 if spec.kind == JobKind::Tasks => {
                spec.task.command = vec!["server".to_owned(), draw.below(9).to_string()];
            }
            3 if spec.kind == JobKind::AllocSet => spec.task.limits = build::room(1, 1, 20),
            3 => spec.task.limits = limits(draw),
            4 => spec.task.limits.cpu /= 2,
            5 if spec.alloc_set.is_none() => spec.task.devices = vec![build::gpu_request(1, 500)],
            6 => spec.count = 1 + draw.below(5) as u32,
            7 => spec.max_update_disruptions = Some(draw.below(3) as u32),
            _ if spec.kind == JobKind::Tasks => spec.task.ports = draw.below(3) as u8,
            _ => spec.labels.extend([(build::token("tier"), "front".to_owned())]),
        }
    }
    let least = spec.overrides.keys().map(|i| spec.limits_of(*i).disk);
    let least = least.fold(spec.task.limits.disk, u64::min);
    spec.retain_disk = spec.retain_disk.map(|r| RetainDisk { bytes: r.bytes.min(least), ..r });
    spec
}
