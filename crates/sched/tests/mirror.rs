//! The snapshot is a mirror: after any commands it equals a fresh one, and it agrees with the
//! cell's own definition of what fits, reason by reason.

mod support;

use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::{Command, Done};
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use cellwright_sched::feasible;
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use proptest::prelude::*;
use support::World;

fn agrees_with_fit(world: &World) -> Result<(), TestCaseError> {
    for task in world.tasks_in(|state| state == TaskState::Pending) {
        let Some(class) = world.snapshot.class_of(task) else { continue };
        let class = world.snapshot.class(class);
        let candidate = Candidate::of(&world.state, task).unwrap();
        for (machine, _) in world.state.machines().iter() {
            for target in feasible::targets_on(&world.snapshot, class, machine) {
                let want = fit::infeasible_reason(&world.state, &candidate, machine, target.alloc);
                let got = feasible::first_reason(&world.snapshot, class, &target);
                prop_assert_eq!(&got, &want, "task {:?} on {:?}", task, target);
                let all = feasible::all_reasons(&world.snapshot, class, &target);
                prop_assert_eq!(all.first(), want.as_ref(), "first of all: {:?}", &all);
                // Volumes were added late, and come right after constraints; full machines come
                // right before room.
                let is_volume = |m: &InfeasibleReason| matches!(m, InfeasibleReason::Volume(_));
                let (volumes, mut ordered): (Vec<_>, Vec<_>) =
                    all.iter().cloned().partition(is_volume);
                let is_room = |m: &InfeasibleReason| {
                    matches!(m, InfeasibleReason::Resource(_) | InfeasibleReason::ResourcePressure)
                };
                ordered.sort_by(|a, b| (is_room(a), a).cmp(&(is_room(b), b)));
                let last_constraint = InfeasibleReason::Constraint { position: u32::MAX };
                let at = ordered.partition_point(|m| *m <= last_constraint);
                ordered.splice(at..at, volumes);
                prop_assert_eq!(
                    all.iter().map(|m| m.code()).collect::<Vec<_>>(),
                    ordered.iter().map(|m| m.code()).collect::<Vec<_>>()
                );
            }
        }
    }
    Ok(())
}

fn matches_fresh_snapshot(world: &World) -> Result<(), TestCaseError> {
    let same = world.snapshot.compare_with(&ClusterSnapshot::from_state(&world.state));
    prop_assert!(same.is_ok(), "{}", same.unwrap_err());
    Ok(())
}

fn plan(world: &mut World, seed: u64) -> PassOutcome {
    let now = Time(world.now);
    Solver::new(Options::exact()).pass(&mut world.snapshot, now, seed)
}

/// Makes a plan; the cell changes meanwhile, and some groups get lost. Returns how many were
/// rejected.
fn lose_some(world: &mut World, seed: u64) -> usize {
    let mut plan = plan(world, seed).plan;
    let mut rejected = 0;
    world.without_sync(|world| {
        (0..world.rng.below(3)).for_each(|_| world.step());
        let rng = &mut world.rng;
        plan.groups.retain(|_| !rng.one_in(3));
        if let Ok(Done::Partly(groups)) = world.apply(Command::CommitPlan(plan)) {
            rejected = groups.len();
        }
    });
    rejected
}

/// Makes a plan and commits nothing: the next pass must find everything as it was.
fn lose_all(world: &mut World, seed: u64) -> Result<(), TestCaseError> {
    let lost = plan(world, seed);
    world.snapshot.sync(&world.state, &[]);
    matches_fresh_snapshot(world)?;
    let waits = |task| world.snapshot.pending().contains(&task);
    let all = lost.plan.groups.iter().flat_map(|g| &g.assignments).all(|a| waits(a.task));
    prop_assert!(all, "what was planned waits again");
    let now = Time(world.now);
    let mut snapshot = world.snapshot.clone();
    let second = Solver::new(Options::exact()).pass(&mut snapshot, now, seed);
    prop_assert_eq!(lost.placed > 0, second.placed > 0);
    Ok(())
}

#[test]
fn random_cells_refuse_some_groups() {
    let mut rejected = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, 2 + seed as u32 % 6);
        for _ in 0..30 {
            world.step();
            rejected += lose_some(&mut world, seed);
        }
    }
    assert!(rejected > 10, "{rejected}");
}

/// Pairs of a pending task and a machine that its volumes rule out.
fn blocked_by_volumes(world: &World) -> usize {
    let mut kept = 0;
    for task in world.tasks_in(|state| state == TaskState::Pending) {
        let Some(class) = world.snapshot.class_of(task) else { continue };
        let class = world.snapshot.class(class);
        for (machine, _) in world.state.machines().iter() {
            let targets = feasible::targets_on(&world.snapshot, class, machine);
            let all = targets
                .into_iter()
                .flat_map(|target| feasible::all_reasons(&world.snapshot, class, &target));
            kept += all
                .filter(|infeasible_reason| {
                    matches!(infeasible_reason, InfeasibleReason::Volume(_))
                })
                .count();
        }
    }
    kept
}

/// Number of tasks that hold something on each machine.
fn tasks_held(world: &World) -> Vec<u64> {
    let loads = world.state.machines().iter().filter_map(|(m, _)| world.state.machine_load(m));
    loads.map(|load| load.holder_count()).collect()
}

#[test]
fn no_machine_is_given_more_tasks_than_it_may_hold() {
    let mut full = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        let limit = 1 + seed % 5;
        let bounds = Bounds { machine_tasks: limit, ..Bounds::default() };
        world.apply_ok(Command::SetBounds(bounds));
        for _ in 0..20 {
            world.step();
            world.schedule(Options::exact(), seed);
            agrees_with_fit(&world).unwrap();
            matches_fresh_snapshot(&world).unwrap();
            assert!(tasks_held(&world).iter().all(|held| *held <= limit), "seed {seed}");
            full += tasks_held(&world).iter().filter(|held| **held == limit).count();
        }
        world.apply_ok(Command::SetBounds(Bounds::default()));
        matches_fresh_snapshot(&world).unwrap();
        agrees_with_fit(&world).unwrap();
    }
    assert!(full > 50, "{full}");
}

#[test]
fn volumes_keep_tasks_from_machines_that_do_not_lend_them() {
    let mut kept = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, 4);
        (0..20).for_each(|_| world.step());
        world.schedule(Options::exact(), seed);
        (0..5).for_each(|_| world.submit());
        matches_fresh_snapshot(&world).unwrap();
        agrees_with_fit(&world).unwrap();
        kept += blocked_by_volumes(&world);
        world.schedule(Options::exact(), seed);
        matches_fresh_snapshot(&world).unwrap();
    }
    assert!(kept > 10, "{kept}");
}

/// Room held for moves is counted in the mirror as in the cell, plans made while it is held are
/// accepted, and preemption removes it with its task.
#[test]
fn room_held_for_moves_is_mirrored() {
    let (mut held, mut preempted, mut given_up) = (0, 0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed, 2 + seed as u32 % 5);
        world.holds = true;
        if seed % 3 == 0 {
            let bounds = Bounds { machine_tasks: 3 + seed % 5, ..Bounds::default() };
            world.apply_ok(Command::SetBounds(bounds));
        }
        for step in 0..40 {
            world.step();
            matches_fresh_snapshot(&world).unwrap();
            if step % 3 == 0 {
                let before = world.held_elsewhere();
                let outcome = world.schedule(Options::exact(), seed);
                preempted += outcome.preempted;
                given_up += before.saturating_sub(world.held_elsewhere());
                matches_fresh_snapshot(&world).unwrap();
            }
            held += world.held_elsewhere();
        }
        agrees_with_fit(&world).unwrap();
    }
    assert!(held > 500 && preempted > 20 && given_up > 2, "{held} {preempted} {given_up}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn follows_the_state_and_its_plans_are_accepted(
        seed in any::<u64>(),
        machines in 1u32..10,
        steps in 5usize..60,
        holds in any::<bool>(),
    ) {
        let mut world = World::new(seed, machines);
        world.holds = holds;
        for step in 0..steps {
            world.step();
            if world.rng.one_in(3) {
                let options = match step % 3 {
                    0 => Options { randomization: Some(3), ..Options::default() },
                    _ => Options::exact(),
                };
                world.schedule(options, seed);
            }
            let fresh = ClusterSnapshot::from_state(&world.state);
            let same = world.snapshot.compare_with(&fresh);
            prop_assert!(same.is_ok(), "after step {step}: {}", same.unwrap_err());
        }
        agrees_with_fit(&world)?;
    }

    #[test]
    fn what_was_lost_or_refused_leaves_no_trace(
        seed in any::<u64>(),
        machines in 1u32..8,
        steps in 5usize..40,
        holds in any::<bool>(),
    ) {
        let mut world = World::new(seed, machines);
        world.holds = holds;
        for _ in 0..steps {
            world.step();
            match world.rng.below(3) {
                0 => lose_all(&mut world, seed)?,
                1 => drop(lose_some(&mut world, seed)),
                _ => {}
            }
            matches_fresh_snapshot(&world)?;
        }
        // A snapshot that kept stale rows would have a group rejected here.
        world.schedule(Options::exact(), seed);
        matches_fresh_snapshot(&world)?;
    }
}
