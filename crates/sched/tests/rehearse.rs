//! A dry run predicts what the cell then does, and leaves no trace.

mod support;

use cellwright_cell::command::{Actor, ApplyOutcome, Command, Done, Observed, TaskReport, Verdict};
use cellwright_cell::constraint::{Constraint, Operator, Strength};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::TaskState;
use cellwright_sched::dry_run::{DryRun, DryRunResult, TaskEffect};
use cellwright_sched::executor::Sequential;
use cellwright_sched::{ClusterSnapshot, Options};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::World;
use support::specs;

const SEED: u64 = 7;

fn ada() -> Name {
    Name::new("ada").unwrap()
}

fn dry_run(world: &World, spec: &JobSpec) -> DryRunResult {
    let (state, snapshot) = (world.state.clone(), world.snapshot.clone());
    let mut dry_run = DryRun::new(state, snapshot, Options::exact(), SEED, &Sequential);
    dry_run.apply_job(&Actor::Operator, &ada(), spec)
}

/// A cell with a history, in which no task is pending.
fn quiet(seed: u64, machines: u32, steps: usize) -> World {
    let mut world = World::new(seed, machines);
    for _ in 0..steps {
        world.step();
        world.schedule(Options::exact(), seed);
    }
    for task in world.snapshot.pending().to_vec() {
        let job = world.snapshot.identity_of(task).and_then(|(job, _)| world.state.job_key(job));
        if let Some(job) = job {
            world.apply_any(Command::StopJob { job, expect: None });
        }
    }
    world
}

/// Machines by the index of the tasks of `key` that hold one.
fn machines_by_index(world: &World, key: &JobKey) -> BTreeMap<u32, MachineId> {
    let job = world.state.jobs().get(world.state.job_named(key).unwrap()).unwrap();
    let rows = job.tasks.iter().filter_map(|task| world.state.tasks().get(*task));
    rows.filter_map(|row| Some((row.index, row.machine()?))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A plan made by a dry run, then executed in a cell without other changes: the same
    /// placements, victims and pending tasks; and the reasons of the pending ones add up to the
    /// machines.
    #[test]
    fn what_is_rehearsed_comes_true(
        seed in any::<u64>(),
        machines in 1u32..9,
        steps in 5usize..30,
    ) {
        let mut world = quiet(seed, machines, steps);
        let spec = specs::job(&mut world.rng, "planned", &ada(), &[]);
        let hash = world.state.clone().hash();
        let before = world.snapshot.clone();
        let result = dry_run(&world, &spec);
        prop_assert_eq!(world.state.clone().hash(), hash);
        prop_assert!(world.snapshot.compare_with(&before).is_ok());
        let (owner, expect) = (ada(), None);
        let boxed = Box::new(spec.clone());
        let verdict = world.apply(Command::ApplyJob { owner, spec: boxed, expect, again: false });
        prop_assert_eq!(&result.verdict, &verdict);
        if verdict.is_err() {
            return Ok(());
        }
        let key = JobKey { user: ada(), job: spec.name.clone() };
        // As many as the spec says, or as a daemon has machines.
        let job = world.state.job_named(&key).and_then(|id| world.state.jobs().get(id));
        let wanted = job.map_or(0, |job| job.wanted());
        prop_assert_eq!(result.effects.count(TaskEffect::Added), wanted);
        prop_assert_eq!((result.placed.len() + result.pending.len()) as u32, wanted);
        let outcome = world.schedule(Options::exact(), SEED);
        let want: BTreeMap<u32, MachineId> =
            result.placed.iter().map(|placed| (placed.index, placed.machine.id)).collect();
        prop_assert_eq!(machines_by_index(&world, &key), want);
        prop_assert_eq!(result.victims.len(), outcome.preempted);
        for victim in &result.victims {
            let row = world.state.tasks().get(victim.task.id).unwrap();
            prop_assert!(!row.state.holds_resources(), "{:?}", victim);
        }
        let lost: u32 = result.by_job.iter().map(|loss| loss.evicted).sum();
        prop_assert_eq!(lost as usize, result.victims.len() + result.evicted_in_turn.len());
        prop_assert_eq!(result.explanation.is_some(), !result.pending.is_empty());
        if let Some(why) = result.explanation {
            prop_assert_eq!(why.machines_total, world.snapshot.machine_count() as u32);
            let sum: u32 = why.reasons.iter().map(|reason| reason.machines).sum();
            prop_assert_eq!(sum, why.machines_total);
        }
    }
}

fn amount(n: u64) -> Resources {
    Resources::new(n, n, 0, 0)
}

/// Three tasks of `ada/web` that run on the only two machines; each is half of one.
fn running() -> (World, JobSpec) {
    let mut world = World::new(1, 0);
    for number in 1..=2u32 {
        let mut machine = specs::machine(&mut world.rng, &format!("m{number}"));
        machine.capacity = Resources::new(1000, 1000, 1 << 40, 1 << 40);
        machine.attributes.clear();
        world.apply_ok(Command::AddMachine(machine));
        let id = MachineId(number - 1);
        world.apply_ok(Command::MachineUp { machine: id, incarnation: 1 });
    }
    let spec = specs::plain("web", 3, 100, amount(500));
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(spec.clone()) });
    world.schedule(Options::exact(), SEED);
    let tasks = world.tasks_in(|state| state == TaskState::Assigned);
    tasks.into_iter().for_each(|task| start(&mut world, task));
    assert_eq!(world.tasks_in(|state| state == TaskState::Running).len(), 3);
    (world, spec)
}

fn start(world: &mut World, task: TaskId) {
    observe(world, task, Observed::Started);
}

fn observe(world: &mut World, task: TaskId, observed: Observed) {
    let row = world.state.tasks().get(task).unwrap();
    let (machine, attempt) = (row.machine().unwrap(), row.attempt);
    let reports = vec![TaskReport { task, attempt, what: observed }];
    world.apply_ok(Command::TaskReports { machine, incarnation: 1, reports });
}

fn done(became: ApplyOutcome, version: u32, closed: Option<u32>) -> Verdict {
    Ok(Done::Job { became, version, closed })
}

/// The effect of the change on the tasks of [`running`], how many disruptions, and how many stay
/// pending.
fn check(change: fn(&mut JobSpec), want: &[TaskEffect], disruptions: u32, pending: usize) {
    let (world, spec) = running();
    let mut new = spec.clone();
    change(&mut new);
    let result = dry_run(&world, &new);
    assert_eq!(result.verdict, done(ApplyOutcome::Updated, 2, None));
    assert_eq!(result.effects.by_index, want);
    assert_eq!(result.effects.disruptions, disruptions);
    assert_eq!(result.pending.len(), pending);
    assert_eq!(result.current.unwrap().version, 1);
}

#[test]
fn every_task_has_the_fate_that_the_update_gives_it() {
    use TaskEffect::{Added, InPlace, Moved, Removed, Resized, Restarted, Skipped};
    check(|s| s.priority.0 = 101, &[InPlace; 3], 0, 0);
    check(|s| s.count = 4, &[InPlace, InPlace, InPlace, Added], 0, 0);
    check(|s| s.count = 5, &[InPlace, InPlace, InPlace, Added, Added], 0, 1);
    check(|s| s.count = 1, &[InPlace, Removed, Removed], 0, 0);
    let command = |s: &mut JobSpec| s.task.command = vec!["new".into()];
    check(command, &[Restarted; 3], 3, 0);
    let bounded = |s: &mut JobSpec| {
        s.task.command = vec!["new".into()];
        s.max_update_disruptions = Some(1);
        s.max_down = Some(1);
    };
    check(bounded, &[Restarted, Skipped, Skipped], 1, 0);
    check(|s| s.task.static_ports = vec![80], &[Moved; 3], 3, 1);
    let larger = |s: &mut JobSpec| s.task.limits = amount(600);
    let (world, spec) = running();
    let mut new = spec;
    larger(&mut new);
    let result = dry_run(&world, &new);
    // Two share a machine: one of them has to leave, and finds no other.
    let counts = [Resized, Moved].map(|fate| result.effects.count(fate));
    assert_eq!((counts, result.pending.len()), ([2, 1], 1), "{:?}", result.effects);
    assert_eq!(result.explanation.unwrap().machines_total, 2);
}

#[test]
fn a_refusal_and_nothing_to_do_are_told_as_the_cell_would() {
    let (world, spec) = running();
    let same = dry_run(&world, &spec);
    assert_eq!(
        (same.verdict, same.effects.by_index.len()),
        (done(ApplyOutcome::Unchanged, 1, None), 0)
    );
    let gang = JobSpec { gang: true, ..spec.clone() };
    let rejection = dry_run(&world, &gang).verdict.unwrap_err();
    assert!(
        matches!(&rejection, Rejection::BadField { field, .. } if field.path == "gang"),
        "{rejection}"
    );
    let constraint = Constraint {
        attribute: specs::token("no-such"),
        operator: Operator::Exists,
        strength: Strength::Hard,
    };
    let nowhere = JobSpec { constraints: vec![constraint], ..spec };
    let result = dry_run(&world, &nowhere);
    assert_eq!((result.effects.count(TaskEffect::Moved), result.pending.len()), (3, 3));
    let reasons = result.explanation.unwrap().reasons;
    assert_eq!((reasons[0].code, reasons[0].machines), ("constraint", 2));
}

#[test]
fn an_update_that_is_complete_is_closed_before_the_next() {
    let (mut world, spec) = running();
    let second = JobSpec { count: 2, ..spec.clone() };
    world.apply_ok(Command::UpdateJob {
        owner: ada(),
        spec: Box::new(second.clone()),
        expect: None,
    });
    // The third is asked to stop, and has not stopped yet.
    let waits = dry_run(&world, &spec);
    assert_eq!(waits.closes_update_to, None);
    assert!(matches!(waits.verdict, Err(Rejection::WrongState(_))), "{:?}", waits.verdict);
    let leaving = world.tasks_in(|state| matches!(state, TaskState::Stopping(_)));
    leaving.into_iter().for_each(|task| observe(&mut world, task, Observed::Stopped));
    assert_eq!(dry_run(&world, &second).closes_update_to, None, "nothing is asked for");
    let result = dry_run(&world, &spec);
    assert_eq!(
        (result.closes_update_to, result.verdict),
        (Some(2), done(ApplyOutcome::Updated, 3, Some(2)))
    );
    assert!(
        world
            .apply(Command::UpdateJob { owner: ada(), spec: Box::new(spec), expect: None })
            .is_err()
    );
}

#[test]
fn victims_are_named_with_where_they_go() {
    let (mut world, _) = running();
    let mut strong = specs::plain("strong", 1, 150, amount(1000));
    // The other machine is full: an evicted task stays pending.
    let result = dry_run(&world, &strong);
    assert_eq!((result.placed.len(), result.victims.len()), (1, 1), "{:?}", result.victims);
    assert!(result.victims[0].moves_to.is_none(), "{:?}", result.victims);
    assert_eq!(result.victims[0].task.name.rsplit_once('/').unwrap().0, "ada/web");
    strong.count = 2;
    let result = dry_run(&world, &strong);
    assert_eq!((result.placed.len(), result.victims.len()), (2, 3));
    let loss = &result.by_job[0];
    assert_eq!((loss.evicted, loss.placed_again, loss.pending), (3, 0, 3));
    // A machine too small for the strong one has room for the task that it evicts.
    let mut small = specs::machine(&mut world.rng, "m3");
    small.capacity = Resources::new(600, 600, 1 << 40, 1 << 40);
    small.attributes.clear();
    world.apply_ok(Command::AddMachine(small));
    world.apply_ok(Command::MachineUp { machine: MachineId(2), incarnation: 1 });
    strong.count = 1;
    let result = dry_run(&world, &strong);
    let moves_to = result.victims[0].moves_to.as_ref().map(|machine| machine.name.as_str());
    assert_eq!(moves_to, Some("m3"), "{:?}", result.victims);
}

#[test]
fn the_quota_is_told_before_and_after() {
    let (world, mut spec) = running();
    spec.count = 4;
    let quota = dry_run(&world, &spec).quota;
    let [shift] = quota.as_slice() else { panic!("{quota:?}") };
    assert_eq!((shift.before, shift.after), (amount(1500), amount(2000)));
}

/// Jobs of one file see each other: an alloc set, and a job inside it.
#[test]
fn one_change_after_the_other_is_tried_on_the_same_copy() {
    use cellwright_cell::spec::JobKind;
    let (world, _) = running();
    let (state, snapshot) = (world.state.clone(), ClusterSnapshot::from_state(&world.state));
    let mut dry_run = DryRun::new(state, snapshot, Options::exact(), SEED, &Sequential);
    let mut set = specs::plain("boxes", 1, 100, amount(400));
    set.kind = JobKind::AllocSet;
    set.task.command.clear();
    let result = dry_run.apply_job(&Actor::Operator, &ada(), &set);
    assert_eq!((result.verdict, result.placed.len()), (done(ApplyOutcome::Created, 1, None), 1));
    let mut inner = specs::plain("inner", 1, 100, amount(300));
    inner.alloc_set = Some(JobKey { user: ada(), job: set.name.clone() });
    let result = dry_run.apply_job(&Actor::Operator, &ada(), &inner);
    assert_eq!((result.verdict, result.placed.len()), (done(ApplyOutcome::Created, 1, None), 1));
    assert!(world.state.job_named(&inner.alloc_set.unwrap()).is_none());
}
