//! What-if answers are those of the real pass, and leave no trace.

mod support;

use cellwright_cell::explanation::FITS;
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::machine::Machine;
use cellwright_cell::name::Name;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use cellwright_sched::executor::Sequential;
use cellwright_sched::whatif::{self, WhatifJob, WhatifOptions};
use cellwright_sched::{ClusterSnapshot, Options, Solver};
use proptest::prelude::*;
use support::World;
use support::manual_cluster::{ManualCluster, amount, job};
use support::specs;

fn exact(preemption: bool) -> WhatifOptions {
    let solver = Options { preemption, ..Options::exact() };
    WhatifOptions { solver, max_tasks: 5000, ..WhatifOptions::default() }
}

/// A job that requests only room.
fn plain(limits: Resources, priority: u16) -> JobSpec {
    specs::plain("imagined", 1, priority, limits)
}

fn new(spec: &JobSpec) -> WhatifJob<'_> {
    WhatifJob::New { user: UserId(0), spec, alloc_set: None }
}

fn lived_in(seed: u64, machines: u32, steps: usize) -> World {
    let mut world = World::new(seed, machines);
    for _ in 0..steps {
        world.step();
        if world.rng.one_in(3) {
            world.schedule(Options::exact(), seed);
        }
    }
    world
}

/// How often a non-prod task with these limits fits into the free resources.
fn room_for(world: &World, limits: Resources) -> u32 {
    let times = |machine: MachineId| {
        let takes = |row: &Machine| row.is_schedulable() && !row.accepts_only_prod();
        let open = world.state.machines().get(machine).is_some_and(takes);
        let (_, free) = world.snapshot.free(machine);
        let pairs = free.to_array().into_iter().zip(limits.to_array());
        let times = pairs.filter(|(_, ask)| *ask > 0).map(|(free, ask)| free / ask).min();
        if open { times.unwrap_or(0) as u32 } else { 0 }
    };
    world.snapshot.machine_ids().map(times).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn as_many_fit_as_there_is_room_for(
        seed in any::<u64>(),
        machines in 1u32..9,
        steps in 5usize..40,
    ) {
        let mut world = lived_in(seed, machines, steps);
        let limits = specs::limits(&mut world.rng, true);
        let spec = plain(limits, 100);
        let before = world.snapshot.clone();
        let count_fits = |options: &WhatifOptions| {
            whatif::count_fits(&world.snapshot, new(&spec), &world.state, &Sequential, options)
        };
        let found = count_fits(&exact(false)).unwrap();
        prop_assert_eq!(found.count, room_for(&world, limits));
        prop_assert_eq!((found.evicted, found.reached_max), (0, false));
        let why = found.stopped_by.unwrap();
        prop_assert!(why.reasons.iter().all(|reason| reason.code != FITS));
        prop_assert!(world.snapshot.compare_with(&before).is_ok());
        prop_assert_eq!(world.snapshot.class_count(), before.class_count());
        let more = count_fits(&exact(true)).unwrap();
        prop_assert!(more.count >= found.count);
    }

    /// Submitting the job for real and running a pass over it gives the predicted result.
    #[test]
    fn adding_foretells_the_pass(
        seed in any::<u64>(),
        machines in 1u32..9,
        steps in 5usize..40,
    ) {
        let mut world = lived_in(seed, machines, steps);
        let owner = Name::new("ada").unwrap();
        let spec = specs::job(&mut world.rng, "imagined", &owner, &[]);
        let found = whatif::simulate_job(
            &world.snapshot, UserId(0), &spec, None, &world.state, &Sequential, &exact(true),
        ).unwrap();
        prop_assert_eq!(found.placed + found.pending, spec.count);
        prop_assert_eq!(found.pending > 0, found.explanation.is_some());
        prop_assert_eq!(found.placements.iter().map(|p| p.tasks).sum::<u32>(), found.placed);
        let mut alone = world.snapshot.clone();
        alone.pending().to_vec().into_iter().for_each(|task| alone.drop_task(task));
        let job = JobId(10_000);
        let arc = std::sync::Arc::new(spec.clone());
        let info = cellwright_sched::cluster_snapshot::JobInfo {
            user: UserId(0),
            spec: &arc,
            version: 1,
            alloc_set: None,
            machines: &std::sync::Arc::default(),
            budget: None,
            in_transition: 0,
        };
        alone.put_job(job, &info);
        for index in 0..spec.count {
            let info = cellwright_sched::cluster_snapshot::PendingTaskInfo {
                job, index, attempt: 0, not_before: Time::ZERO, reservation: None, avoid: &[],
            };
            alone.put_pending(TaskId(20_000 + index), &info);
        }
        let outcome = Solver::new(exact(true).solver).pass(&mut alone, Time::ZERO, 0);
        prop_assert_eq!(found.placed as usize, outcome.placed);
        prop_assert_eq!(found.victims.len(), outcome.preempted);
        for victim in &found.victims {
            prop_assert!(spec.priority.may_preempt(victim.priority), "{:?}", victim);
            let row = world.state.tasks().get(victim.task.id).unwrap();
            prop_assert_eq!(row.machine(), Some(victim.machine.id));
            prop_assert!(row.state.holds_resources());
        }
        let evicted = || found.victims.iter().chain(&found.evicted_in_turn);
        let (lost, again) = found
            .by_job
            .iter()
            .fold((0, 0), |(lost, again), job| (lost + job.evicted, again + job.placed_again));
        prop_assert_eq!(lost as usize, evicted().count());
        let placed_again = evicted().filter(|victim| victim.moves_to.is_some()).count();
        prop_assert_eq!(again as usize, placed_again);
        prop_assert!(found.by_job.iter().all(|job| job.evicted == job.placed_again + job.pending));
        if let Some(highest) = found.victims.iter().map(|victim| victim.priority).max() {
            for victim in &found.evicted_in_turn {
                prop_assert!(victim.priority < highest, "{:?}", victim);
            }
        }
    }
}

#[test]
fn more_of_a_job_respects_the_tasks_it_has() {
    let mut world = World::new(11, 6);
    let mut spec = plain(Resources::new(1, 1, 0, 0), 100);
    spec.name = Name::new("apart").unwrap();
    spec.count = 2;
    spec.spread = vec![SpreadLimit { domain: Domain::Machine, limit: 1 }];
    let owner = Name::new("ada").unwrap();
    let submit =
        cellwright_cell::command::Command::SubmitJob { owner, spec: Box::new(spec.clone()) };
    assert!(world.apply(submit).is_ok());
    world.schedule(Options::exact(), 1);
    assert!(world.tasks_in(|state| state == TaskState::Pending).is_empty());
    let (job, _) = world.state.jobs().iter().next().unwrap();
    let ask = |whatif_job| {
        whatif::count_fits(&world.snapshot, whatif_job, &world.state, &Sequential, &exact(false))
    };
    assert_eq!(ask(WhatifJob::More(job)).unwrap().count, 4);
    assert_eq!(ask(new(&spec)).unwrap().count, 6);
    let why = ask(WhatifJob::More(job)).unwrap().stopped_by.unwrap();
    assert_eq!((why.reasons[0].code, why.reasons[0].machines), ("spread", 6));
    assert!(matches!(ask(WhatifJob::More(JobId(99))), Err(Rejection::NoSuchRow(_))));
}

#[test]
fn the_count_stops_at_the_most_that_was_asked_for() {
    let world = World::new(3, 8);
    let spec = plain(Resources::new(1, 1, 0, 0), 100);
    let options = WhatifOptions { max_tasks: 100, ..exact(false) };
    let found =
        whatif::count_fits(&world.snapshot, new(&spec), &world.state, &Sequential, &options)
            .unwrap();
    assert_eq!((found.count, found.reached_max, found.stopped_by), (100, true, None));
}

#[test]
fn a_spec_no_cell_would_admit_is_refused_by_field() {
    let world = World::new(3, 1);
    let mut spec = plain(Resources::new(1, 1, 0, 0), 100);
    spec.count = 0;
    let found =
        whatif::count_fits(&world.snapshot, new(&spec), &world.state, &Sequential, &exact(false));
    let Err(Rejection::BadField { field, .. }) = found else { panic!("{found:?}") };
    assert_eq!(field.path, "count");
}

/// The next task does not fit by the cell's own definition either, once the others are there.
#[test]
fn what_stops_the_next_one_is_the_definitions_reason() {
    let mut world = World::new(5, 5);
    let limits = Resources::new(30, 1, 0, 0);
    let mut spec = plain(limits, 100);
    let ask = |snapshot: &ClusterSnapshot, spec: &JobSpec, state: &cellwright_cell::State| {
        whatif::count_fits(snapshot, new(spec), state, &Sequential, &exact(false)).unwrap()
    };
    let found = ask(&world.snapshot, &spec, &world.state);
    spec.count = found.count + 1;
    let owner = Name::new("ada").unwrap();
    let submit =
        cellwright_cell::command::Command::SubmitJob { owner, spec: Box::new(spec.clone()) };
    assert!(world.apply(submit).is_ok());
    let outcome = world.schedule(Options::exact(), 0);
    assert_eq!((outcome.placed as u32, outcome.pending.len()), (found.count, 1));
    let candidate = Candidate::of(&world.state, outcome.pending[0].task).unwrap();
    let machines = world.state.machines().iter();
    let codes: Vec<&str> = machines
        .map(|(m, _)| fit::infeasible_reason(&world.state, &candidate, m, None).unwrap().code())
        .collect();
    let reasons = found.stopped_by.unwrap().reasons;
    assert!(codes.iter().all(|code| *code == "resource"));
    assert_eq!(reasons.iter().map(|r| r.machines).sum::<u32>(), 5);
    assert!(reasons.iter().all(|r| r.code == "resource"));
}

/// Two machines: the large one has a batch task that the job evicts; it moves to the small one,
/// where it evicts a task of the lowest priority, for which no room is left.
#[test]
fn evicted_tasks_land_elsewhere_and_evict_in_turn() {
    let mut cluster = ManualCluster::default();
    cluster.add(support::manual_cluster::machine(100));
    cluster.add(support::manual_cluster::machine(40));
    cluster.running(0, job(1, 120, 40), 0);
    cluster.running(1, job(1, 20, 30), 1);
    let spec = plain(amount(80), 200);
    let names = cellwright_sched::explain::names::SnapshotNames(&cluster.snapshot);
    let ask = |options: &WhatifOptions| {
        whatif::simulate_job(
            &cluster.snapshot,
            UserId(9),
            &spec,
            None,
            &names,
            &Sequential,
            options,
        )
        .unwrap()
    };
    let found = ask(&exact(true));
    assert_eq!((found.placed, found.pending), (1, 0));
    let [victim] = found.victims.as_slice() else { panic!("{found:?}") };
    assert_eq!((victim.priority.0, victim.machine.id), (120, MachineId(0)));
    assert_eq!(victim.moves_to.as_ref().map(|m| m.id), Some(MachineId(1)));
    let [next] = found.evicted_in_turn.as_slice() else { panic!("{found:?}") };
    assert_eq!((next.priority.0, next.machine.id), (20, MachineId(1)));
    assert_eq!(next.moves_to, None);
    let sums: Vec<(u16, u32, u32, u32)> = found
        .by_job
        .iter()
        .map(|job| (job.priority.0, job.evicted, job.placed_again, job.pending))
        .collect();
    assert_eq!(sums, [(120, 1, 1, 0), (20, 1, 0, 1)]);
}
