//! The same snapshot, options, time and seed give the same outcome: run after run, on any executor.

mod support;

use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::time::Time;
use cellwright_sched::executor::{Executor, Sequential};
use cellwright_sched::queue::Queue;
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use support::manual_cluster::{ManualCluster, job, machine};
use support::specs::TestRng;

/// Last part first.
struct Backwards;

impl Executor for Backwards {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..parts).rev().for_each(work);
    }
}

/// A thread for every part.
struct Threads;

impl Executor for Threads {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            (0..parts).for_each(|part| drop(scope.spawn(move || work(part))));
        });
    }
}

/// Enough machines for several parts of a scan, and more work than fits.
fn cell() -> ClusterSnapshot {
    let mut rng = TestRng(3);
    let mut cluster = ManualCluster::default();
    (0..9000).for_each(|_| cluster.add(machine(40 + 20 * rng.below(4))));
    for m in 0..9000 {
        cluster.running(1, job(1, 0, rng.below(40)), m);
    }
    for user in 0..60 {
        let priority = rng.pick(&[0, 100, 200, 300]);
        let size = rng.below(70) + 5;
        let spread = match rng.below(3) {
            0 => vec![SpreadLimit { domain: Domain::Machine, limit: 1 }],
            _ => Vec::new(),
        };
        cluster.submit(user % 7, JobSpec { spread, ..job(40, priority, size) });
    }
    cluster.snapshot
}

fn pass(
    snapshot: &ClusterSnapshot,
    options: Options,
    seed: u64,
    executor: &dyn Executor,
) -> PassOutcome {
    let mut snapshot = snapshot.clone();
    let queue = Queue::new(&snapshot, options.order, Time(1), seed);
    Solver::new(options).pass_with_executor(&mut snapshot, queue, seed, executor)
}

#[test]
fn outcomes_depend_on_the_seed_and_on_nothing_else() {
    let snapshot = cell();
    for options in [Options::default(), Options::exact()] {
        let first = pass(&snapshot, options, 5, &Sequential);
        assert!(first.placed > 500, "{} placed", first.placed);
        assert_eq!(first, pass(&snapshot, options, 5, &Sequential), "again");
        assert_eq!(first, pass(&snapshot, options, 5, &Backwards), "parts in another order");
        assert_eq!(first, pass(&snapshot, options, 5, &Threads), "parts on threads");
        assert_ne!(first.plan, pass(&snapshot, options, 6, &Sequential).plan, "another seed");
    }
}

#[test]
fn a_second_pass_over_what_is_left_changes_nothing() {
    let mut snapshot = cell();
    let solver = Solver::new(Options::exact());
    let first = solver.pass(&mut snapshot, Time(1), 5);
    let second = solver.pass(&mut snapshot, Time(1), 5);
    assert_eq!(second.placed, 0);
    assert_eq!(second.pending.len(), first.pending.len());
}
