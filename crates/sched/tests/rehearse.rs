//! A rehearsal foretells what the cell then does, and leaves no trace.

mod support;

use cellwright_cell::command::{Actor, Became, Command, Done, Observed, TaskReport, Verdict};
use cellwright_cell::constraint::{Constraint, Operator, Strength};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::reason::Refusal;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::TaskState;
use cellwright_sched::executor::Sequential;
use cellwright_sched::rehearse::{Fate, Rehearsal, Rehearsed};
use cellwright_sched::{Board, Options};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::World;
use support::specs;

const SEED: u64 = 7;

fn ada() -> Name {
    Name::new("ada").unwrap()
}

fn rehearse(world: &World, spec: &JobSpec) -> Rehearsed {
    let (state, board) = (world.state.clone(), world.board.clone());
    let mut rehearsal = Rehearsal::new(state, board, Options::exact(), SEED, &Sequential);
    rehearsal.job(&Actor::Operator, &ada(), spec)
}

/// A cell that has lived, in which nobody waits.
fn quiet(seed: u64, machines: u32, steps: usize) -> World {
    let mut world = World::new(seed, machines);
    for _ in 0..steps {
        world.step();
        world.schedule(Options::exact(), seed);
    }
    for task in world.board.pending().to_vec() {
        let job = world.board.identity_of(task).and_then(|(job, _)| world.state.job_key(job));
        if let Some(job) = job {
            world.may(Command::StopJob { job, expect: None });
        }
    }
    world
}

/// Machines by the index of the tasks of `key` that hold one.
fn places(world: &World, key: &JobKey) -> BTreeMap<u32, MachineId> {
    let job = world.state.jobs().get(world.state.job_named(key).unwrap()).unwrap();
    let rows = job.tasks.iter().filter_map(|task| world.state.tasks().get(*task));
    rows.filter_map(|row| Some((row.index, row.machine()?))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Planned, then run on a cell where nothing else happens: the same places, the same victims,
    /// the same waiting; and the reasons of those who wait add up to the machines.
    #[test]
    fn what_is_rehearsed_comes_true(
        seed in any::<u64>(),
        machines in 1u32..9,
        steps in 5usize..30,
    ) {
        let mut world = quiet(seed, machines, steps);
        let spec = specs::job(&mut world.draw, "planned", &ada(), &[]);
        let hash = world.state.clone().hash();
        let before = world.board.clone();
        let told = rehearse(&world, &spec);
        prop_assert_eq!(world.state.clone().hash(), hash);
        prop_assert!(world.board.same_as(&before).is_ok());
        let (owner, expect) = (ada(), None);
        let verdict = world.apply(Command::ApplyJob { owner, spec: spec.clone(), expect });
        prop_assert_eq!(&told.verdict, &verdict);
        if verdict.is_err() {
            return Ok(());
        }
        prop_assert_eq!(told.fates.count(Fate::Added), spec.count);
        prop_assert_eq!((told.placed.len() + told.pending.len()) as u32, spec.count);
        let outcome = world.schedule(Options::exact(), SEED);
        let key = JobKey { user: ada(), job: spec.name.clone() };
        let want: BTreeMap<u32, MachineId> =
            told.placed.iter().map(|placed| (placed.index, placed.machine.id)).collect();
        prop_assert_eq!(places(&world, &key), want);
        prop_assert_eq!(told.victims.len(), outcome.preempted);
        for victim in &told.victims {
            let row = world.state.tasks().get(victim.task.id).unwrap();
            prop_assert!(!row.state.holds_resources(), "{:?}", victim);
        }
        let lost: u32 = told.by_job.iter().map(|loss| loss.evicted).sum();
        prop_assert_eq!(lost as usize, told.victims.len() + told.evicted_in_turn.len());
        prop_assert_eq!(told.explanation.is_some(), !told.pending.is_empty());
        if let Some(why) = told.explanation {
            prop_assert_eq!(why.machines_total, world.board.machine_count() as u32);
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
        let mut machine = specs::machine(&mut world.draw, &format!("m{number}"));
        machine.capacity = Resources::new(1000, 1000, 1 << 40, 1 << 40);
        machine.attributes.clear();
        world.must(Command::AddMachine(machine));
        let id = MachineId(number - 1);
        world.must(Command::MachineUp { machine: id, incarnation: 1 });
    }
    let spec = specs::plain("web", 3, 100, amount(500));
    world.must(Command::SubmitJob { owner: ada(), spec: spec.clone() });
    world.schedule(Options::exact(), SEED);
    let tasks = world.tasks_in(|state| state == TaskState::Assigned);
    tasks.into_iter().for_each(|task| start(&mut world, task));
    assert_eq!(world.tasks_in(|state| state == TaskState::Running).len(), 3);
    (world, spec)
}

fn start(world: &mut World, task: TaskId) {
    see(world, task, Observed::Started);
}

fn see(world: &mut World, task: TaskId, what: Observed) {
    let row = world.state.tasks().get(task).unwrap();
    let (machine, attempt) = (row.machine().unwrap(), row.attempt);
    let reports = vec![TaskReport { task, attempt, what }];
    world.must(Command::TaskReports { machine, incarnation: 1, reports });
}

fn done(became: Became, version: u32, closed: Option<u32>) -> Verdict {
    Ok(Done::Job { became, version, closed })
}

/// What the change does to the tasks of [`running`], how many run on, and how many find no place.
fn check(change: fn(&mut JobSpec), want: &[Fate], disruptions: u32, pending: usize) {
    let (world, spec) = running();
    let mut new = spec.clone();
    change(&mut new);
    let told = rehearse(&world, &new);
    assert_eq!(told.verdict, done(Became::Updated, 2, None));
    assert_eq!(told.fates.of, want);
    assert_eq!(told.fates.disruptions, disruptions);
    assert_eq!(told.pending.len(), pending);
    assert_eq!(told.before.unwrap().version, 1);
}

#[test]
fn every_task_has_the_fate_that_the_update_gives_it() {
    use Fate::{Added, InPlace, Moved, Removed, Restarted, Skipped};
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
    let told = rehearse(&world, &new);
    // Two share a machine: one of them has to leave, and finds nothing.
    let counts = [Restarted, Moved].map(|fate| told.fates.count(fate));
    assert_eq!((counts, told.pending.len()), ([2, 1], 1), "{:?}", told.fates);
    assert_eq!(told.explanation.unwrap().machines_total, 2);
}

#[test]
fn a_refusal_and_nothing_to_do_are_told_as_the_cell_would() {
    let (world, spec) = running();
    let same = rehearse(&world, &spec);
    assert_eq!((same.verdict, same.fates.of.len()), (done(Became::Unchanged, 1, None), 0));
    let gang = JobSpec { gang: true, ..spec.clone() };
    let refused = rehearse(&world, &gang).verdict.unwrap_err();
    assert!(matches!(&refused, Refusal::BadField { field, .. } if field == "gang"), "{refused}");
    let constraint = Constraint {
        attribute: specs::token("no-such"),
        operator: Operator::Exists,
        strength: Strength::Hard,
    };
    let nowhere = JobSpec { constraints: vec![constraint], ..spec };
    let told = rehearse(&world, &nowhere);
    assert_eq!((told.fates.count(Fate::Moved), told.pending.len()), (3, 3));
    let reasons = told.explanation.unwrap().reasons;
    assert_eq!((reasons[0].code, reasons[0].machines), ("constraint", 2));
}

#[test]
fn an_update_that_is_complete_is_closed_before_the_next() {
    let (mut world, spec) = running();
    let second = JobSpec { count: 2, ..spec.clone() };
    world.must(Command::UpdateJob { owner: ada(), spec: second.clone(), expect: None });
    // The third is told to stop, and has not gone yet.
    let waits = rehearse(&world, &spec);
    assert_eq!(waits.closes, None);
    assert!(matches!(waits.verdict, Err(Refusal::WrongState { .. })), "{:?}", waits.verdict);
    let leaving = world.tasks_in(|state| matches!(state, TaskState::Stopping(_)));
    leaving.into_iter().for_each(|task| see(&mut world, task, Observed::Stopped));
    assert_eq!(rehearse(&world, &second).closes, None, "nothing is asked for");
    let told = rehearse(&world, &spec);
    assert_eq!((told.closes, told.verdict), (Some(2), done(Became::Updated, 3, Some(2))));
    assert!(world.apply(Command::UpdateJob { owner: ada(), spec, expect: None }).is_err());
}

#[test]
fn victims_are_named_with_where_they_go() {
    let (mut world, _) = running();
    let mut strong = specs::plain("strong", 1, 150, amount(1000));
    // The other machine is full: whoever is evicted waits.
    let told = rehearse(&world, &strong);
    assert_eq!((told.placed.len(), told.victims.len()), (1, 1), "{:?}", told.victims);
    assert!(told.victims[0].lands_on.is_none(), "{:?}", told.victims);
    assert_eq!(told.victims[0].task.name.rsplit_once('/').unwrap().0, "ada/web");
    strong.count = 2;
    let told = rehearse(&world, &strong);
    assert_eq!((told.placed.len(), told.victims.len()), (2, 3));
    let loss = &told.by_job[0];
    assert_eq!((loss.evicted, loss.placed_again, loss.pending), (3, 0, 3));
    // A machine too small for the strong one has room for whom it evicts.
    let mut small = specs::machine(&mut world.draw, "m3");
    small.capacity = Resources::new(600, 600, 1 << 40, 1 << 40);
    small.attributes.clear();
    world.must(Command::AddMachine(small));
    world.must(Command::MachineUp { machine: MachineId(2), incarnation: 1 });
    strong.count = 1;
    let told = rehearse(&world, &strong);
    let landed = told.victims[0].lands_on.as_ref().map(|machine| machine.name.as_str());
    assert_eq!(landed, Some("m3"), "{:?}", told.victims);
}

#[test]
fn the_quota_is_told_before_and_after() {
    let (world, mut spec) = running();
    spec.count = 4;
    let quota = rehearse(&world, &spec).quota;
    let [shift] = quota.as_slice() else { panic!("{quota:?}") };
    assert_eq!((shift.before, shift.after), (amount(1500), amount(2000)));
}

/// Jobs of one file see each other: an alloc set, and a job inside it.
#[test]
fn one_change_after_the_other_is_tried_on_the_same_copy() {
    use cellwright_cell::spec::JobKind;
    let (world, _) = running();
    let (state, board) = (world.state.clone(), Board::from_state(&world.state));
    let mut rehearsal = Rehearsal::new(state, board, Options::exact(), SEED, &Sequential);
    let mut set = specs::plain("boxes", 1, 100, amount(400));
    set.kind = JobKind::AllocSet;
    set.task.command.clear();
    let told = rehearsal.job(&Actor::Operator, &ada(), &set);
    assert_eq!((told.verdict, told.placed.len()), (done(Became::Created, 1, None), 1));
    let mut inner = specs::plain("inner", 1, 100, amount(300));
    inner.alloc_set = Some(JobKey { user: ada(), job: set.name.clone() });
    let told = rehearsal.job(&Actor::Operator, &ada(), &inner);
    assert_eq!((told.verdict, told.placed.len()), (done(Became::Created, 1, None), 1));
    assert!(world.state.job_named(&inner.alloc_set.unwrap()).is_none());
}
