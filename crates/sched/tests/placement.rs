//! Which of several machines that would do is chosen: spread before packages before packing, and
//! production mixed with other work. Every rule is checked with the default, the exact and the
//! reference scheduler.

mod support;

use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::AppClass;
use cellwright_cell::spec::{Domain, JobKind, JobSpec, PackageRef, SpreadLimit};
use cellwright_sched::cluster_snapshot::MachineInfo;
use cellwright_sched::{ClusterSnapshot, Options};
use std::collections::{BTreeMap, BTreeSet};
use support::manual_cluster::{ManualCluster, job, machine};
use support::specs::token;

fn always(rule: impl Fn(Options)) {
    for options in [Options::default(), Options::exact(), Options::reference()] {
        rule(options);
    }
}

fn package(bytes: u64) -> PackageRef {
    PackageRef { name: token("program"), digest: token("d"), bytes }
}

fn put(snapshot: &mut ClusterSnapshot, id: u32, spec: &MachineSpec, packages: &[PackageRef]) {
    let info = MachineInfo {
        spec,
        up: true,
        draining: false,
        under_pressure: false,
        retained_disk: 0,
        ephemeral: &[],
        packages,
    };
    snapshot.put_machine(MachineId(id), &info);
}

/// Six machines on two racks and two power domains; the first of them has `packages`.
fn two_racks(packages: &[PackageRef]) -> ManualCluster {
    let mut cluster = ManualCluster::default();
    for id in 0..6 {
        let domain = if id < 3 { "a" } else { "b" };
        let spec =
            MachineSpec { rack: Some(token(domain)), power: Some(token(domain)), ..machine(1000) };
        put(&mut cluster.snapshot, id, &spec, if id == 0 { packages } else { &[] });
    }
    cluster
}

fn service(count: u32, priority: u16, bytes: u64) -> JobSpec {
    let mut spec =
        JobSpec { appclass: Some(AppClass::LatencySensitive), ..job(count, priority, 10) };
    spec.task.packages = vec![package(bytes)];
    spec
}

/// How many of the tasks are on each machine.
fn counts(cluster: &ManualCluster, tasks: &[TaskId]) -> BTreeMap<u32, usize> {
    tasks.iter().fold(BTreeMap::new(), |mut counts, task| {
        *counts.entry(cluster.on(*task).unwrap()).or_default() += 1;
        counts
    })
}

#[test]
fn services_of_every_band_are_spread_whoever_has_their_packages() {
    for (priority, bytes) in [(200, 4 << 10), (200, 40 << 30), (100, 4 << 10), (0, 40 << 30)] {
        always(|options| {
            let mut cluster = two_racks(&[package(bytes)]);
            let tasks = cluster.submit(1, service(6, priority, bytes));
            cluster.pass(options);
            let on = counts(&cluster, &tasks);
            assert_eq!(on.len(), 6, "priority {priority}, {bytes} bytes: {on:?}");
        });
    }
}

#[test]
fn what_is_started_again_whenever_it_ends_is_a_service() {
    always(|options| {
        let mut cluster = two_racks(&[]);
        let mut spec = job(2, 100, 10);
        spec.restart.restart_on_success = true;
        let tasks = cluster.submit(1, spec);
        cluster.pass(options);
        let racks: BTreeSet<bool> = tasks.iter().map(|t| cluster.on(*t) < Some(3)).collect();
        assert_eq!(racks.len(), 2);
    });
}

/// Where a batch task goes whose package of `bytes` machine 0 has, or none.
fn fetches(bytes: u64, is_there: bool, options: Options) -> Option<u32> {
    let there = [package(bytes)];
    let mut cluster = two_racks(if is_there { &there } else { &[] });
    let mut spec = job(1, 100, 10);
    spec.task.packages = vec![package(bytes)];
    let tasks = cluster.submit(1, spec);
    cluster.pass(options);
    cluster.on(tasks[0])
}

#[test]
fn packages_count_by_the_seconds_that_they_take() {
    always(|options| {
        for bytes in [4 << 10, (64 << 20) - 1] {
            let elsewhere = fetches(bytes, false, options);
            assert_ne!(elsewhere, Some(0), "the test needs another favourite");
            assert_eq!(fetches(bytes, true, options), elsewhere, "nobody waits for {bytes} bytes");
        }
        for bytes in [64 << 20, u64::MAX] {
            assert_eq!(fetches(bytes, true, options), Some(0), "{bytes} bytes take a second");
        }
    });
}

/// CPU held by production and by the rest, by machine.
fn shares(cluster: &ManualCluster, tasks: &[&[TaskId]], size: u64) -> BTreeMap<u32, Vec<u64>> {
    let mut held: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (kind, tasks) in tasks.iter().enumerate() {
        for task in *tasks {
            let on = held.entry(cluster.on(*task).unwrap()).or_insert(vec![0; 2]);
            on[kind] += size;
        }
    }
    held
}

#[test]
fn production_and_the_rest_share_machines() {
    always(|options| {
        let mut cluster = ManualCluster::machines(4, 100);
        let prod = cluster.submit(1, job(20, 200, 10));
        let rest = cluster.submit(2, job(16, 100, 10));
        cluster.pass(options);
        let held = shares(&cluster, &[&prod, &rest], 10);
        assert!(held.values().all(|by| by[0] <= 75 && by[1] <= 75), "{held:?}");
        assert!(held.len() <= 4, "{held:?}");
    });
}

#[test]
fn machines_are_filled_by_one_kind_where_there_is_no_other_or_no_other_room() {
    always(|options| {
        let mut cluster = ManualCluster::machines(4, 100);
        let alone = cluster.submit(1, job(10, 200, 10));
        cluster.pass(options);
        assert_eq!(counts(&cluster, &alone).len(), 1, "nothing to mix with");

        let mut cluster = ManualCluster::machines(2, 100);
        let prod = cluster.submit(1, job(18, 200, 10));
        let rest = cluster.submit(2, job(4, 100, 10));
        assert_eq!(cluster.pass(options).placed, 20, "mixing keeps nobody out");
        assert!(prod.iter().all(|task| cluster.on(*task).is_some()));
        assert!(rest.iter().filter(|task| cluster.on(**task).is_some()).count() == 2);
    });
}

/// Allocs of a set of `count`, each on a machine of its own, and the set.
fn alloc_set(cluster: &mut ManualCluster, count: u32) -> (Vec<TaskId>, JobId) {
    let kind = JobKind::AllocSet;
    let allocs = cluster.submit(1, JobSpec { kind, ..job(count, 200, 60) });
    let set = cluster.job_of(allocs[0]);
    (allocs, set)
}

fn inside(count: u32, size: u64) -> JobSpec {
    let key = JobKey { user: Name::new("ada").unwrap(), job: Name::new("job").unwrap() };
    JobSpec { alloc_set: Some(key), ..job(count, 200, size) }
}

fn allocs_of(cluster: &ManualCluster, tasks: &[TaskId]) -> Vec<Option<TaskId>> {
    let placed = tasks.iter().map(|task| cluster.snapshot.placement_of(*task));
    placed.map(|placement| placement.and_then(|placement| placement.alloc())).collect()
}

#[test]
fn jobs_inside_an_alloc_set_pair_with_its_allocs_by_index() {
    always(|options| {
        let mut cluster = ManualCluster::machines(4, 100);
        let (allocs, set) = alloc_set(&mut cluster, 3);
        let servers = cluster.submit_into(1, inside(3, 20), Some(set));
        let savers = cluster.submit_into(1, inside(6, 10), Some(set));
        assert_eq!(cluster.pass(options).pending, []);
        let by_index: Vec<Option<TaskId>> = allocs.iter().copied().map(Some).collect();
        assert_eq!(allocs_of(&cluster, &servers), by_index);
        assert_eq!(allocs_of(&cluster, &savers), [&by_index[..], &by_index].concat());
        // Room in another alloc is not theirs.
        let greedy = cluster.submit_into(1, inside(1, 30), Some(set));
        assert_eq!(cluster.pass(options).pending.len(), 1);
        assert_eq!(allocs_of(&cluster, &greedy), [None]);
    });
}

#[test]
fn jobs_that_take_any_alloc_may_be_kept_apart_in_them() {
    always(|options| {
        let mut cluster = ManualCluster::machines(3, 100);
        let (_, set) = alloc_set(&mut cluster, 3);
        let limit = SpreadLimit { domain: Domain::Machine, limit: 1 };
        let any = JobSpec { alloc_pairing: AllocPairing::Any, ..inside(4, 10) };
        let apart = cluster.submit_into(1, JobSpec { spread: vec![limit], ..any }, Some(set));
        assert_eq!(cluster.pass(options).pending.len(), 1, "there are three machines");
        let placed: BTreeSet<u32> = apart.iter().filter_map(|task| cluster.on(*task)).collect();
        assert_eq!(placed.len(), 3);
    });
}

fn on(cluster: &ManualCluster, tasks: &[TaskId]) -> Vec<Option<u32>> {
    tasks.iter().map(|task| cluster.on(*task)).collect()
}

/// Four machines of 100: each task of a daemon goes to its own and nowhere else, and evicts there
/// whom it may.
#[test]
fn tasks_of_a_daemon_go_to_their_machines_alone() {
    always(|options| {
        let mut cluster = ManualCluster::machines(4, 100);
        let low = cluster.submit(1, job(4, 100, 95));
        assert_eq!(cluster.pass(options).pending, []);
        let machines = BTreeMap::from([(0, MachineId(2)), (1, MachineId(0)), (3, MachineId(3))]);
        let tasks = cluster.submit_daemon(job(1, 50, 30), &machines);
        assert_eq!(cluster.pass(options).pending.len(), 3, "of lower priority: they wait");
        assert!(low.iter().all(|task| cluster.on(*task).is_some()));
        let urgent = cluster.submit_daemon(job(1, 200, 5), &machines);
        cluster.pass(options);
        assert_eq!(on(&cluster, &urgent), [Some(2), Some(0), Some(3)]);
        assert_eq!(on(&cluster, &tasks), [None; 3]);
        let top = cluster.submit_daemon(job(1, 210, 50), &machines);
        let outcome = cluster.pass(options);
        assert_eq!(outcome.preempted, 3);
        assert_eq!(on(&cluster, &top), [Some(2), Some(0), Some(3)]);
        assert_eq!(on(&cluster, &tasks), on(&cluster, &top), "there is room for them now");
        assert_eq!(low.iter().filter(|task| cluster.on(**task).is_some()).count(), 1);
    });
}
