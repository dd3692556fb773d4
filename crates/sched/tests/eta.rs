//! Estimates of when a pending task starts: exact where the ends are known, none where they are
//! not.

mod support;

use cellwright_cell::command::{Command, Observed, TaskReport};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::resource::Resources;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_sched::Options;
use cellwright_sched::eta::{
    EstimateBasis, EstimateQuery, MAX_WORK, NoEstimate, StartEstimate, estimate,
};
use support::World;
use support::specs;

const SEED: u64 = 7;

fn ada() -> Name {
    Name::new("ada").unwrap()
}

/// Machines of 1000 each, in a cell without jobs.
fn cell(machines: u32) -> World {
    let mut world = World::new(1, 0);
    for number in 0..machines {
        let mut machine = specs::machine(&mut world.rng, &format!("m{}", number + 1));
        machine.capacity = Resources::new(1000, 1000, 1 << 40, 1 << 40);
        machine.attributes.clear();
        world.apply_ok(Command::AddMachine(machine));
        world.apply_ok(Command::MachineUp { machine: MachineId(number), incarnation: 1 });
    }
    world
}

/// One task of `size`, submitted now.
fn submit(world: &mut World, name: &str, size: u64, max_run: Option<u64>) -> TaskId {
    let mut spec = specs::plain(name, 1, 100, Resources::new(size, size, 0, 0));
    spec.task.max_run = max_run.map(Span);
    spec.restart.max_failures = Some(0);
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(spec.clone()) });
    let job = world.state.job_named(&JobKey { user: ada(), job: spec.name }).unwrap();
    world.state.jobs().get(job).unwrap().tasks[0]
}

fn report(world: &mut World, task: TaskId, observed: Observed) {
    let row = world.state.tasks().get(task).unwrap();
    let (machine, attempt) = (row.machine().unwrap(), row.attempt);
    let reports = vec![TaskReport { task, attempt, what: observed }];
    world.apply_ok(Command::TaskReports { machine, incarnation: 1, reports });
}

/// The same, placed and started at `at`.
fn run(world: &mut World, at: u64, name: &str, size: u64, max_run: Option<u64>) -> TaskId {
    world.now = at;
    let task = submit(world, name, size, max_run);
    world.schedule(Options::exact(), SEED);
    report(world, task, Observed::Started);
    task
}

fn eta(world: &World, task: TaskId, now: u64) -> Result<StartEstimate, NoEstimate> {
    eta_within(world, task, now, MAX_WORK)
}

fn eta_within(
    world: &World,
    task: TaskId,
    now: u64,
    max_work: usize,
) -> Result<StartEstimate, NoEstimate> {
    let query = EstimateQuery { task, now: Time(now), fits_now: true, max_work };
    estimate(&world.state, &world.snapshot, query, Options::exact(), SEED)
}

/// `stays` for ever and `short_run` until 61,000 share the only machine.
fn full() -> (World, TaskId) {
    let mut world = cell(1);
    run(&mut world, 500, "stays", 500, None);
    let short_run = run(&mut world, 1000, "short", 500, Some(60_000));
    world.now = 2000;
    (world, short_run)
}

#[test]
fn a_task_starts_when_the_one_that_frees_its_room_has_to_end() {
    let (mut world, short_run) = full();
    let waits = submit(&mut world, "waits", 500, None);
    world.schedule(Options::exact(), SEED);
    let hash = world.state.clone().hash();
    let want = StartEstimate {
        at: Time(61_000),
        basis: EstimateBasis::Ends,
        machine: MachineId(0),
        freed_by: vec![short_run],
    };
    assert_eq!(eta(&world, waits, 5000), Ok(want.clone()));
    assert_eq!(world.state.clone().hash(), hash);
    // An overdue end counts as happening now.
    let late = eta(&world, waits, 70_000);
    assert_eq!(late, Ok(StartEstimate { at: Time(70_000), ..want }));
    // And that is what happens.
    world.now = 61_000;
    report(&mut world, short_run, Observed::Failed(ExitClass::TimedOut));
    world.schedule(Options::exact(), SEED);
    assert_eq!(world.state.tasks().get(waits).unwrap().state, TaskState::Assigned);
}

#[test]
fn who_stands_before_it_goes_first_and_may_end_in_turn() {
    let (mut world, _) = full();
    let first = submit(&mut world, "first", 500, Some(10_000));
    let second = submit(&mut world, "second", 500, None);
    let third = submit(&mut world, "third", 500, None);
    world.schedule(Options::exact(), SEED);
    let at = |task| eta(&world, task, 5000).map(|start| start.at);
    assert_eq!(at(first), Ok(Time(61_000)));
    assert_eq!(at(second), Ok(Time(71_000)));
    // The second one never ends.
    assert_eq!(at(third), Err(NoEstimate::NoRoomUntil { until: Time(71_000) }));
}

#[test]
fn room_on_two_machines_is_no_room_for_one_task() {
    let mut world = cell(2);
    run(&mut world, 1000, "a", 600, Some(10_000));
    run(&mut world, 1000, "b", 600, Some(20_000));
    run(&mut world, 1000, "c", 400, Some(90_000));
    run(&mut world, 1000, "d", 400, None);
    world.now = 2000;
    let waits = submit(&mut world, "waits", 900, None);
    world.schedule(Options::exact(), SEED);
    // Only the machine of `c` becomes free, whichever machine the two others share.
    let found = eta(&world, waits, 2000).unwrap();
    assert_eq!((found.at, found.basis), (Time(91_000), EstimateBasis::Ends));
    assert_eq!(found.freed_by.len(), 2, "{found:?}");
}

#[test]
fn nothing_is_said_when_nothing_is_known() {
    let mut world = cell(1);
    run(&mut world, 1000, "stays", 1000, None);
    let waits = submit(&mut world, "waits", 500, None);
    world.schedule(Options::exact(), SEED);
    assert_eq!(eta(&world, waits, 5000), Err(NoEstimate::NoKnownEnd));
    let (state, snapshot) = (&world.state, &world.snapshot);
    let query = EstimateQuery { task: waits, now: Time(5000), fits_now: false, max_work: MAX_WORK };
    let quick = estimate(state, snapshot, query, Options::exact(), SEED);
    assert_eq!(quick, Err(NoEstimate::NoKnownEnd));
}

#[test]
fn what_has_room_starts_with_the_next_pass_or_after_its_back_off() {
    let mut world = cell(1);
    let waits = submit(&mut world, "waits", 500, None);
    let now = eta(&world, waits, 3000).unwrap();
    assert_eq!((now.at, now.basis), (Time(3000), EstimateBasis::Now));
    let mut spec = specs::plain("fails", 1, 100, Resources::new(100, 100, 0, 0));
    spec.restart.backoff = Span(3000);
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(spec.clone()) });
    let job = world.state.job_named(&JobKey { user: ada(), job: spec.name }).unwrap();
    let fails = world.state.jobs().get(job).unwrap().tasks[0];
    world.schedule(Options::exact(), SEED);
    report(&mut world, fails, Observed::Started);
    world.now = 4000;
    report(&mut world, fails, Observed::Failed(ExitClass::Code(1)));
    let later = eta(&world, fails, 5000).unwrap();
    assert_eq!((later.at, later.basis), (Time(7000), EstimateBasis::NotBefore));
}

#[test]
fn one_that_ran_too_long_comes_back_as_its_job_says() {
    let mut world = cell(1);
    let mut spec = specs::plain("again", 1, 200, Resources::new(1000, 1000, 0, 0));
    spec.task.max_run = Some(Span(10_000));
    spec.restart.backoff = Span(3000);
    world.now = 1000;
    world.apply_ok(Command::SetQuota {
        user: ada(),
        band: cellwright_cell::priority::Band::Production,
        quota: Some(cellwright_cell::quota::Quota {
            amount: Resources::new(1000, 1000, 0, 0),
            from: Time::ZERO,
            until: Time::NEVER,
        }),
        expect: None,
    });
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(spec.clone()) });
    world.schedule(Options::exact(), SEED);
    let running = world.tasks_in(|state| state == TaskState::Assigned)[0];
    report(&mut world, running, Observed::Started);
    world.now = 2000;
    // The first is placed during the back-off of the stronger one, and is evicted when that is
    // over.
    let first = submit(&mut world, "first", 1000, None);
    world.schedule(Options::exact(), SEED);
    assert_eq!(eta(&world, first, 2000).map(|start| start.at), Ok(Time(11_000)));
    let second = submit(&mut world, "second", 1000, None);
    world.schedule(Options::exact(), SEED);
    // Whenever the stronger one fails, the first goes before it. The 256th and last look is at the
    // 128th of its ends, 13,000 apart, and not at what comes after.
    let until = Time(11_000 + 127 * 13_000);
    assert_eq!(eta(&world, second, 2000), Err(NoEstimate::HorizonReached { until }));
}

#[test]
fn the_work_is_bounded_and_what_was_not_looked_at_is_not_named() {
    let mut world = cell(1);
    for number in 1..=5 {
        run(&mut world, 1000, &format!("t{number}"), 200, Some(number * 10_000));
    }
    world.now = 2000;
    let waits = submit(&mut world, "waits", 1000, None);
    world.schedule(Options::exact(), SEED);
    let at = |max_work| eta_within(&world, waits, 2000, max_work).map(|start| start.at);
    assert_eq!(at(MAX_WORK), Ok(Time(51_000)));
    let until = |until| Err(NoEstimate::HorizonReached { until: Time(until) });
    // A look costs 1, and so does an end; before an end there must be enough for the look after it.
    assert_eq!(at(6), until(21_000));
    assert_eq!(at(4), until(11_000));
    assert_eq!(at(0), until(2000), "the first pass is made in any case");
}

#[test]
fn a_long_queue_is_looked_at_less_often() {
    // Ended tasks come back, so that known events never run out.
    let mut world = cell(1);
    let mut rerun = specs::plain("again", 1, 100, Resources::new(1000, 1000, 0, 0));
    rerun.task.max_run = Some(Span(10_000));
    rerun.restart.backoff = Span(3000);
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(rerun) });
    world.now = 1000;
    world.schedule(Options::exact(), SEED);
    let running = world.tasks_in(|state| state == TaskState::Assigned)[0];
    report(&mut world, running, Observed::Started);
    let many = specs::plain("many", 2000, 90, Resources::new(2000, 2000, 0, 0));
    world.apply_ok(Command::SubmitJob { owner: ada(), spec: Box::new(many.clone()) });
    let job = world.state.job_named(&JobKey { user: ada(), job: many.name }).unwrap();
    let waits = world.state.jobs().get(job).unwrap().tasks[0];
    // Passes are at 1000, at each end and at the end of each back-off: six cost 12,030.
    let none = eta_within(&world, waits, 1000, 12_500);
    assert_eq!(none, Err(NoEstimate::HorizonReached { until: Time(37_000) }));
}
