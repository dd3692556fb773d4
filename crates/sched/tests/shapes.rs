//! The available shapes are those that a real pass would place, and the query leaves no trace.

mod support;

use cellwright_cell::constraint::{Constraint, Operator, Strength};
use cellwright_cell::id::UserId;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_sched::available_shapes::{
    AvailableShapes, ShapeQuery, TaskShape, available_shapes, easier_shape,
};
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::names::SnapshotNames;
use cellwright_sched::whatif::{self, WhatifJob, WhatifOptions};
use cellwright_sched::{ClusterSnapshot, Options};
use proptest::prelude::*;
use support::World;
use support::manual_cluster::{ManualCluster, amount, job};
use support::specs;

fn ask(
    snapshot: &ClusterSnapshot,
    priority: u16,
    constraints: &[Constraint],
    easy_percent: u32,
) -> AvailableShapes {
    let query = ShapeQuery {
        priority: Priority(priority),
        constraints,
        host_volumes: &[],
        includes: &|_| true,
        easy_percent,
        limits: Some(amount(70)),
    };
    available_shapes(snapshot, &SnapshotNames(snapshot), &query)
}

fn has_kernel() -> Constraint {
    let strength = Strength::Hard;
    Constraint { attribute: specs::token("kernel"), operator: Operator::Exists, strength }
}

/// How many tasks of the shape a pass over nothing else places, and on how many machines.
fn placed(
    world: &World,
    shape: &TaskShape,
    priority: u16,
    constraints: &[Constraint],
) -> (u64, u32) {
    let mut spec: JobSpec = specs::plain("imagined", 1, priority, shape.limits);
    spec.constraints = constraints.to_vec();
    let solver = Options { preemption: false, ..Options::exact() };
    let options = WhatifOptions { solver, max_tasks: 20_000, ..WhatifOptions::default() };
    let job = WhatifJob::New { user: UserId(0), spec: &spec, alloc_set: None };
    let fits =
        whatif::count_fits(&world.snapshot, job, &world.state, &Sequential, &options).unwrap();
    assert!(!fits.reached_max);
    (u64::from(fits.count), fits.machines)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_pass_places_as_many_of_a_shape_as_is_said(
        seed in any::<u64>(),
        machines in 1u32..12,
        steps in 5usize..40,
        prod in any::<bool>(),
        constrained in any::<bool>(),
    ) {
        let mut world = World::new(seed, machines);
        for _ in 0..steps {
            world.step();
            if world.rng.one_in(3) {
                world.schedule(Options::exact(), seed);
            }
        }
        let priority = if prod { 200 } else { 100 };
        let constraints = if constrained { vec![has_kernel()] } else { vec![] };
        let before = world.snapshot.clone();
        let available = ask(&world.snapshot, priority, &constraints, 25);
        prop_assert!(world.snapshot.compare_with(&before).is_ok());
        prop_assert_eq!(world.snapshot.class_count(), before.class_count());
        for shape in available.ladder.iter().chain(&available.requested) {
            let want = placed(&world, shape, priority, &constraints);
            prop_assert_eq!((shape.tasks, shape.machines), want, "{:?}", shape);
            prop_assert_eq!(shape.easy, shape.machines >= available.easy_threshold);
        }
        // One task of the largest fits, and no more of either.
        for largest in &available.largest {
            let shape = TaskShape { limits: largest.limits, tasks: 0, machines: 0, easy: false };
            prop_assert!(placed(&world, &shape, priority, &constraints).0 >= 1);
        }
        if let Some(most) = available.largest.first() {
            let limits = Resources { cpu: most.limits.cpu + 1, ..most.limits };
            let shape = TaskShape { limits, tasks: 0, machines: 0, easy: false };
            prop_assert_eq!(placed(&world, &shape, priority, &constraints).0, 0);
        }
    }
}

/// Ten machines, of which five have 400 of 1000 left.
fn half_used() -> ManualCluster {
    let mut cluster = ManualCluster::machines(10, 1000);
    (0..5).for_each(|m| drop(cluster.running(0, job(1, 100, 600), m)));
    cluster
}

#[test]
fn the_ladder_is_made_of_what_machines_have_free() {
    let cluster = half_used();
    let available = ask(&cluster.snapshot, 100, &[], 60);
    assert_eq!((available.machines, available.easy_threshold), (10, 6));
    let of = |cpu, ram, tasks, machines, easy| TaskShape {
        limits: Resources::new(cpu, ram, 0, 0),
        tasks,
        machines,
        easy,
    };
    // 400 and 1000 free, rounded down to figures that people write: bytes in quarters of a power of
    // two.
    let want = [
        of(400, 384, 15, 10, true),
        of(400, 896, 5, 5, false),
        of(1000, 384, 5, 5, false),
        of(1000, 896, 5, 5, false),
    ];
    assert_eq!(available.ladder, want);
    assert_eq!(available.requested, Some(of(70, 70, 5 * 14 + 5 * 5, 10, true)));
    let [largest] = &available.largest[..] else { panic!("{:?}", available.largest) };
    assert_eq!((largest.limits, largest.machine.name.as_str()), (amount(1000), "machine#5"));
}

#[test]
fn only_machines_that_are_meant_are_counted_and_a_full_cell_has_no_shapes() {
    let cluster = half_used();
    let among = |m: cellwright_cell::id::MachineId| m.0 < 5;
    let query = ShapeQuery {
        priority: Priority(100),
        constraints: &[],
        host_volumes: &[],
        includes: &among,
        easy_percent: 25,
        limits: Some(amount(500)),
    };
    let available = available_shapes(&cluster.snapshot, &SnapshotNames(&cluster.snapshot), &query);
    assert_eq!((available.machines, available.ladder.len()), (5, 1));
    assert_eq!(available.requested.map(|shape| (shape.tasks, shape.easy)), Some((0, false)));
    let mut full = ManualCluster::machines(2, 1000);
    (0..2).for_each(|m| drop(full.running(0, job(1, 100, 1000), m)));
    let available = ask(&full.snapshot, 100, &[], 25);
    assert_eq!((available.ladder.len(), available.largest.len(), available.machines), (0, 0, 2));
}

#[test]
fn an_easier_shape_is_the_nearest_that_many_machines_take() {
    let mut cluster = ManualCluster::machines(10, 1000);
    (0..2).for_each(|m| drop(cluster.running(0, job(1, 100, 550), m)));
    (2..10).for_each(|m| drop(cluster.running(0, job(1, 100, 700), m)));
    let mut spec = job(1, 100, 500);
    spec.task.limits.ram = 200;
    let task = cluster.submit(1, spec)[0];
    let class = cluster.snapshot.class_of(task).unwrap();
    let found = easier_shape(&cluster.snapshot, class, 25).unwrap();
    assert_eq!(found.limits, Resources::new(300, 200, 0, 0));
    assert_eq!((found.machines, found.eligible, found.permille), (10, 10, 400));
    // Two machines are enough where a fifth of them is required.
    let found = easier_shape(&cluster.snapshot, class, 20).unwrap();
    assert_eq!((found.limits.cpu, found.machines), (450, 2));
    let small = cluster.submit(1, job(1, 100, 100))[0];
    let class = cluster.snapshot.class_of(small).unwrap();
    assert_eq!(easier_shape(&cluster.snapshot, class, 25), None, "it fits as it is");
}
