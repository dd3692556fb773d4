//! The board is a mirror: after any commands it says what a fresh one says, and it agrees with the
//! cell's own definition of what fits, reason by reason.

mod support;

use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::task::TaskState;
use cellwright_sched::feasible;
use cellwright_sched::{Board, Options};
use proptest::prelude::*;
use support::World;

fn agrees_with_fit(world: &World) -> Result<(), TestCaseError> {
    for task in world.tasks_in(|state| state == TaskState::Pending) {
        let Some(class) = world.board.class_of(task) else { continue };
        let class = world.board.class(class);
        let candidate = Candidate::of(&world.state, task).unwrap();
        for (machine, _) in world.state.machines().iter() {
            for spot in feasible::spots(&world.board, class, machine) {
                let want = fit::misfit(&world.state, &candidate, machine, spot.alloc);
                let got = feasible::first(&world.board, class, &spot);
                prop_assert_eq!(&got, &want, "task {:?} on {:?}", task, spot);
                let all = feasible::all(&world.board, class, &spot);
                prop_assert_eq!(all.first(), want.as_ref(), "first of all: {:?}", &all);
                let mut ordered = all.clone();
                ordered.sort();
                prop_assert_eq!(
                    all.iter().map(|m| m.code()).collect::<Vec<_>>(),
                    ordered.iter().map(|m| m.code()).collect::<Vec<_>>()
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn follows_the_state_and_its_plans_are_accepted(
        seed in any::<u64>(),
        machines in 1u32..10,
        steps in 5usize..60,
    ) {
        let mut world = World::new(seed, machines);
        for step in 0..steps {
            world.step();
            if world.draw.one_in(3) {
                let options = match step % 3 {
                    0 => Options { randomization: Some(3), ..Options::default() },
                    _ => Options::exact(),
                };
                world.schedule(options, seed);
            }
            let fresh = Board::from_state(&world.state);
            let same = world.board.same_as(&fresh);
            prop_assert!(same.is_ok(), "after step {step}: {}", same.unwrap_err());
        }
        agrees_with_fit(&world)?;
    }
}
