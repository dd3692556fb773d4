//! The fast exact scheduler makes the same choices as the plain reference, in random cells with
//! everything mixed in, cold and warm, with every packing model and order.

mod support;

use cellwright_cell::time::Time;
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sched::{Options, PassOutcome, Solver};
use proptest::prelude::*;
use support::World;

fn pass(world: &mut World, options: Options, seed: u64) -> PassOutcome {
    let mut outcome = Solver::new(options).pass(&mut world.snapshot, Time(world.now), seed);
    outcome.stats = Default::default();
    outcome
}

/// The same pass on a copy of the snapshot.
fn pass_aside(world: &World, options: Options, seed: u64) -> PassOutcome {
    let mut snapshot = world.snapshot.clone();
    let mut outcome = Solver::new(options).pass(&mut snapshot, Time(world.now), seed);
    outcome.stats = Default::default();
    outcome
}

fn exact_is_reference(
    seed: u64,
    machines: u32,
    steps: usize,
    model: PackingModel,
    order: QueueOrder,
) -> Result<(), TestCaseError> {
    let mut world = World::new(seed, machines);
    let options = Options { model, order, ..Options::exact() };
    for step in 0..steps {
        world.step();
        if !world.rng.one_in(3) {
            continue;
        }
        let reference = Options { model, order, ..Options::reference() };
        let want = pass_aside(&world, reference, seed);
        // A small cell is scanned in full whatever the sample; each technique alone is exact too.
        let others = [
            Options { randomization: Some(256), ..options },
            Options { classes: false, ..options },
            Options { score_cache: false, ..options },
        ];
        for other in others {
            prop_assert_eq!(&pass_aside(&world, other, seed), &want, "{:?}, step {}", other, step);
        }
        let got = pass(&mut world, options, seed);
        prop_assert_eq!(&got, &want, "step {}", step);
        world.commit(got.plan);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn exact_makes_the_choices_of_the_reference(
        seed in any::<u64>(),
        machines in prop_oneof![1u32..8, 1u32..40],
        steps in 5usize..50,
        model in prop_oneof![
            Just(PackingModel::Hybrid),
            Just(PackingModel::BestFit),
            Just(PackingModel::WorstFit),
        ],
        order in prop_oneof![3 => Just(QueueOrder::Fair), 1 => Just(QueueOrder::Arrival)],
    ) {
        exact_is_reference(seed, machines, steps, model, order)?;
    }
}

/// The property above means little unless the random cells reach every kind of decision.
#[test]
fn random_cells_reach_every_kind_of_decision() {
    let mut reached = [0usize; 9];
    for seed in 0..60 {
        let mut world = World::new(seed, 2 + seed as u32 % 12);
        for _ in 0..60 {
            world.step();
            if !world.rng.one_in(3) {
                continue;
            }
            let outcome = pass(&mut world, Options::exact(), seed);
            let groups = &outcome.plan.groups;
            let assignments = || groups.iter().flat_map(|g| &g.assignments);
            let now = [
                outcome.placed,
                outcome.pending.len(),
                outcome.preempted,
                outcome.not_yet,
                groups.iter().filter(|g| g.assignments.len() > 1).count(),
                groups.iter().filter(|g| g.assignments.len() > 1 && !g.victims.is_empty()).count(),
                assignments().filter(|a| a.alloc.is_some()).count(),
                assignments().filter(|a| !a.ports.is_empty()).count(),
                assignments().filter(|a| !a.devices.is_empty()).count(),
            ];
            reached.iter_mut().zip(now).for_each(|(sum, n)| *sum += n);
            world.commit(outcome.plan);
        }
    }
    println!("{reached:?}");
    assert!(reached.iter().all(|count| *count > 10), "{reached:?}");
}
