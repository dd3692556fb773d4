//! Controllers on a cell whose scheduler and agents work as they should, and on some where they do
//! not.

use super::testing::{Cell, all, job, key, machine, name};
use super::*;
use cellwright_cell::admit::MIN_RAM;
use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::command::{Done, EvictCause, Observed, TaskReport};
use cellwright_cell::disruption::DisruptionLimit;
use cellwright_cell::ephemeral;
use cellwright_cell::id::MachineId;
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::{MachineStatus, ResourcePressureReport};
use cellwright_cell::name::Token;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Dimension;
use cellwright_cell::rollout;
use cellwright_cell::spec::{JobKind, JobSpec};
use proptest::prelude::*;

fn new_program(spec: &JobSpec) -> JobSpec {
    let mut new = spec.clone();
    new.task.command = vec!["new".into()];
    new
}

fn update(spec: JobSpec) -> Command {
    Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None }
}

fn drain(machine: u32) -> Command {
    Command::StartDrain { name: name(&format!("m{machine}")), expect: None }
}

fn versions(cell: &Cell, job: &str, count: usize) -> Vec<u32> {
    (0..count).map(|index| cell.task(job, index).version).collect()
}

fn is_open(cell: &Cell, job: &str) -> bool {
    let id = cell.state.job_named(&key(job)).unwrap();
    cell.state.jobs().get(id).unwrap().update.is_some()
}

/// Runs controllers, agents and scheduler until the controllers issue nothing more; returns the
/// number of steps. No command may be rejected, and the jobs in `budgets` may never have more tasks
/// down than that.
fn run(cell: &mut Cell, budgets: &[(&str, u32)]) -> u32 {
    for steps in 0..200 {
        let verdicts = cell.control();
        for (command, verdict) in &verdicts {
            assert!(verdict.is_ok(), "{command:?}: {verdict:?}");
        }
        for (job, max_down) in budgets {
            assert!(
                cell.missing_tasks(job) <= *max_down,
                "{} of {job} down",
                cell.missing_tasks(job)
            );
        }
        if verdicts.is_empty() {
            return steps;
        }
        cell.place_and_start();
    }
    panic!("the controllers never rest");
}

/// `jfoo` of `count` tasks, running.
fn running(machines: u32, spec: &JobSpec) -> Cell {
    let mut cell = Cell::with_machines(machines);
    cell.submit(spec);
    cell.place_and_start();
    assert_eq!(cell.missing_tasks(spec.name.as_str()), 0);
    cell
}

#[test]
fn a_quiet_cell_is_left_alone() {
    let mut cell = running(2, &job("jfoo", 5));
    for _ in 0..10 {
        assert_eq!(cell.decide(), []);
    }
}

#[test]
fn an_update_rolls_within_its_budget_and_stays_open() {
    let spec = JobSpec { max_down: Some(2), ..job("jfoo", 9) };
    let mut cell = running(2, &spec);
    cell.ok(update(new_program(&spec)));
    let steps = run(&mut cell, &[("jfoo", 2)]);
    assert!((5..=6).contains(&steps), "two at a time, not {steps} steps");
    assert_eq!(versions(&cell, "jfoo", 9), [2; 9]);
    assert!(is_open(&cell, "jfoo"), "its owner may still undo it");
    cell.ok(Command::UndoUpdate { job: key("jfoo"), expect: None });
    run(&mut cell, &[("jfoo", 2)]);
    assert_eq!(versions(&cell, "jfoo", 9), [1; 9]);
    assert!(!is_open(&cell, "jfoo"), "nothing is left to return to");
}

fn attempts(cell: &Cell, job: &str, count: usize) -> Vec<u32> {
    (0..count).map(|index| cell.task(job, index).attempt).collect()
}

#[test]
fn a_restart_rolls_within_its_budget_and_each_task_once() {
    let spec = JobSpec { max_down: Some(2), ..job("jfoo", 9) };
    let mut cell = running(2, &spec);
    let machines: Vec<_> = (0..9).map(|index| cell.task("jfoo", index).machine()).collect();
    cell.ok(Command::RestartTasks { job: key("jfoo"), index: None });
    let steps = run(&mut cell, &[("jfoo", 2)]);
    assert!((5..=6).contains(&steps), "two at a time, not {steps} steps");
    assert_eq!(attempts(&cell, "jfoo", 9), [2; 9]);
    let after: Vec<_> = (0..9).map(|index| cell.task("jfoo", index).machine()).collect();
    assert_eq!(after, machines, "where they were");
    // One of them alone, and a new leader goes on with what the last one began.
    cell.ok(Command::RestartTasks { job: key("jfoo"), index: Some(4) });
    cell.controllers = Controllers::default();
    run(&mut cell, &[("jfoo", 1)]);
    assert_eq!(attempts(&cell, "jfoo", 9), [2, 2, 2, 2, 3, 2, 2, 2, 2]);
}

#[test]
fn a_job_without_a_budget_restarts_in_waves() {
    let mut cell = running(4, &job("jfoo", 30));
    cell.ok(Command::RestartTasks { job: key("jfoo"), index: None });
    let steps = run(&mut cell, &[("jfoo", 3)]);
    assert!((10..=11).contains(&steps), "a tenth at a time, not {steps} steps");
    assert_eq!(attempts(&cell, "jfoo", 30), [2; 30]);
}

#[test]
fn a_restart_that_does_not_come_up_stops_by_itself() {
    let mut cell = running(2, &JobSpec { max_down: Some(2), ..job("jfoo", 9) });
    cell.ok(Command::RestartTasks { job: key("jfoo"), index: None });
    let issued: usize = (0..50).map(|_| cell.control().len()).sum();
    assert_eq!((issued, cell.missing_tasks("jfoo")), (2, 2));
}

#[test]
fn a_gang_that_lost_a_task_has_its_time_and_then_waits_as_a_whole() {
    let mut cell = Cell::with_machines(2);
    let spec = JobSpec { gang: true, repair: Some(Span(50)), ..job("jfoo", 2) };
    cell.submit(&spec);
    cell.place_gang("jfoo", &[0, 1]);
    cell.run_agents();
    cell.ok(Command::MachineDown { machine: MachineId(1) });
    assert_eq!(cell.decide(), [], "it may be whole again in time");
    cell.now = cell.task("jfoo", 1).changed_at.0 + 50;
    assert_eq!(cell.control(), [(Command::GiveBack { job: key("jfoo") }, Ok(Done::Applied))]);
    assert!(cell.control().is_empty());
    cell.run_agents();
    assert_eq!(cell.missing_tasks("jfoo"), 2);
}

#[test]
fn of_gangs_that_wait_for_each_other_only_the_youngest_gives_back_at_first() {
    let mut cell = Cell::with_machines(2);
    for name in ["jold", "jnew"] {
        cell.submit(&JobSpec { gang: true, repair: Some(Span(50)), ..job(name, 2) });
        cell.place_gang(name, &[0, 1]);
    }
    cell.run_agents();
    cell.ok(Command::MachineDown { machine: MachineId(1) });
    let since = cell.task("jold", 1).changed_at.0;
    cell.now = since + 50;
    assert_eq!(cell.control(), [(Command::GiveBack { job: key("jnew") }, Ok(Done::Applied))]);
    cell.run_agents();
    assert!(cell.control().is_empty());
    cell.now = since + 110;
    assert_eq!(cell.control(), [(Command::GiveBack { job: key("jold") }, Ok(Done::Applied))]);
}

#[test]
fn a_job_without_a_budget_rolls_in_waves() {
    let spec = job("jfoo", 30);
    let mut cell = running(4, &spec);
    cell.ok(update(new_program(&spec)));
    let steps = run(&mut cell, &[("jfoo", 3)]);
    assert!((10..=11).contains(&steps), "a tenth at a time, not {steps} steps");
    assert_eq!(versions(&cell, "jfoo", 30), [2; 30]);
}

#[test]
fn an_update_that_does_not_come_up_stops_by_itself() {
    let spec = JobSpec { max_down: Some(2), ..job("jfoo", 9) };
    let mut cell = running(2, &spec);
    cell.ok(update(new_program(&spec)));
    let issued: usize = (0..50).map(|_| cell.control().len()).sum();
    assert_eq!(issued, 2, "nothing is asked for that the budget does not allow");
    assert_eq!(cell.missing_tasks("jfoo"), 2);
}

#[test]
fn what_an_update_may_not_disrupt_is_noted_and_left() {
    let spec = JobSpec { max_update_disruptions: Some(2), ..job("jfoo", 5) };
    let mut cell = running(1, &spec);
    cell.ok(update(new_program(&spec)));
    run(&mut cell, &[("jfoo", 1)]);
    assert_eq!(versions(&cell, "jfoo", 5), [2, 2, 1, 1, 1]);
    cell.ok(Command::CloseUpdate { job: key("jfoo"), expect: None });
}

#[test]
fn canaries_are_rolled_alone_and_promoted_when_they_were_well_for_long_enough() {
    let mut spec = job("jfoo", 5);
    spec.update.canaries = 2;
    spec.update.promote_after = Some(Span(60_000));
    let mut cell = running(1, &spec);
    cell.ok(update(new_program(&spec)));
    run(&mut cell, &[("jfoo", 1)]);
    assert_eq!(versions(&cell, "jfoo", 5), [2, 2, 1, 1, 1]);
    cell.now += 60_000;
    run(&mut cell, &[("jfoo", 1)]);
    assert_eq!(versions(&cell, "jfoo", 5), [2; 5]);
}

#[test]
fn what_was_skipped_is_rolled_when_its_owner_asks_for_it() {
    let spec = JobSpec { max_update_disruptions: Some(2), ..job("jfoo", 5) };
    let mut cell = running(1, &spec);
    cell.ok(update(new_program(&spec)));
    run(&mut cell, &[("jfoo", 1)]);
    let finish = rollout::Command::Finish { job: key("jfoo"), expect: None };
    cell.ok(finish.into());
    run(&mut cell, &[("jfoo", 1)]);
    assert_eq!(versions(&cell, "jfoo", 5), [2; 5]);
}

#[test]
fn open_updates_take_turns() {
    let mut cell = Cell::with_machines(8);
    cell.settings.commands_per_step = 2;
    for number in 0..5 {
        let spec = JobSpec { max_down: Some(5), ..job(&format!("j{number}"), 5) };
        cell.submit(&spec);
        cell.place_and_start();
        cell.ok(update(new_program(&spec)));
    }
    (0..3).for_each(|_| drop(cell.control()));
    let started = (0..5).filter(|n| versions(&cell, &format!("j{n}"), 5).contains(&2)).count();
    assert_eq!(started, 5);
}

#[test]
fn drains_empty_their_machines_in_turn_and_within_budgets() {
    let spec = JobSpec { max_down: Some(3), ..job("jfoo", 18) };
    let mut cell = running(4, &spec);
    cell.settings.max_draining = 2;
    cell.ok(drain(0));
    cell.ok(drain(1));
    let first = cell.control();
    let from = |(command, _): &(Command, Verdict)| match command {
        Command::Evict { task, cause: EvictCause::Drain, .. } => {
            cell.state.tasks().get(*task).unwrap().machine()
        }
        other => panic!("{other:?}"),
    };
    let machines: Vec<_> = first.iter().map(from).collect();
    assert_eq!(machines, [Some(MachineId(0)), Some(MachineId(1))], "one of each");
    assert_eq!(cell.control().len(), 0, "as many as may leave at once are leaving");
    cell.place_and_start();
    run(&mut cell, &[("jfoo", 2)]);
    for machine in [MachineId(0), MachineId(1)] {
        assert!(cell.state.machine_load(machine).unwrap().tasks.is_empty());
    }
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

#[test]
fn a_drain_with_nowhere_to_go_keeps_to_the_budget_and_rests() {
    let spec = JobSpec { max_down: Some(1), ..job("jfoo", 20) };
    let mut cell = running(2, &spec);
    cell.ok(drain(0));
    let issued: usize = (0..50).map(|_| (cell.control().len(), cell.place_and_start()).0).sum();
    assert_eq!((issued, cell.missing_tasks("jfoo")), (1, 1));
}

/// Steps a second apart until machine `m0` is empty; returns when tasks were evicted from it. No
/// command may be rejected.
fn leaving_times(cell: &mut Cell) -> Vec<u64> {
    let mut times = Vec::new();
    for _ in 0..100 {
        for (command, verdict) in cell.control() {
            assert_eq!(verdict, Ok(Done::Applied), "{command:?}");
            times.push(cell.now);
        }
        cell.place_and_start();
        cell.now += 1000;
        if cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty() {
            return times;
        }
    }
    panic!("the machine never gets empty: {times:?}");
}

const EVERY: u64 = 10_000;

fn rate(max: u32) -> Option<DisruptionLimit> {
    Some(DisruptionLimit { most: max, within: Span(EVERY) })
}

#[test]
fn a_drain_takes_as_many_in_a_span_as_the_job_allows_and_goes_on_then() {
    let mut cell = running(2, &JobSpec { disruptions: rate(2), ..job("jfoo", 6) });
    cell.ok(drain(0));
    let times = leaving_times(&mut cell);
    assert_eq!(times.len(), 6);
    for pair in times.windows(3) {
        let interval = pair[2] - pair[0];
        assert!((EVERY..EVERY + 2000).contains(&interval), "neither early nor late: {times:?}");
    }
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

#[test]
fn the_tasks_of_an_alloc_leave_one_by_one_as_their_job_allows() {
    let mut cell = drained_alloc(JobSpec { disruptions: rate(1), ..job("jfoo", 4) });
    let times = leaving_times(&mut cell);
    assert_eq!(times.len(), 4, "the alloc takes the last of them along: {times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= EVERY), "{times:?}");
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

/// Three allocs on three machines, all four tasks of `inner` in the first, and the machine drains.
fn drained_alloc(inner: JobSpec) -> Cell {
    let mut cell = Cell::with_machines(3);
    let mut set = JobSpec { kind: JobKind::AllocSet, ..job("set", 3) };
    set.task.limits = all(60);
    cell.submit(&set);
    let alloc_pairing = AllocPairing::Any;
    cell.submit(&JobSpec { alloc_set: Some(key("set")), alloc_pairing, ..inner });
    cell.place_and_start();
    assert_eq!((cell.missing_tasks("set"), cell.missing_tasks("jfoo")), (0, 0));
    let together = (0..4).all(|index| cell.task("jfoo", index).machine() == Some(MachineId(0)));
    assert!(together, "all four are in the first alloc");
    cell.ok(drain(0));
    cell
}

#[test]
fn an_alloc_leaves_when_its_tasks_allow_it_one_by_one() {
    let mut cell = drained_alloc(JobSpec { max_down: Some(1), ..job("jfoo", 4) });
    run(&mut cell, &[("jfoo", 1)]);
    assert!(cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty());
    assert_eq!(cell.missing_tasks("jfoo"), 0);
    assert_eq!(cell.missing_tasks("set"), 1, "the machines that are left hold one alloc each");
}

/// Two allocs on three machines, and two tasks paired with each.
fn drained_pairs(max_down: u32) -> Cell {
    let mut cell = Cell::with_machines(3);
    let mut set = JobSpec { kind: JobKind::AllocSet, ..job("set", 2) };
    set.task.limits = all(60);
    cell.submit(&set);
    let inner = JobSpec { max_down: Some(max_down), ..job("jfoo", 4) };
    cell.submit(&JobSpec { alloc_set: Some(key("set")), ..inner });
    cell.place_and_start();
    assert_eq!((cell.missing_tasks("set"), cell.missing_tasks("jfoo")), (0, 0));
    cell.ok(drain(0));
    cell
}

#[test]
fn tasks_that_are_paired_with_one_alloc_leave_together_when_nobody_else_is_down() {
    let mut cell = drained_pairs(1);
    run(&mut cell, &[("jfoo", 2)]);
    assert!(cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty());
    assert_eq!((cell.missing_tasks("set"), cell.missing_tasks("jfoo")), (0, 0));
    let attempts: Vec<u32> = (0..4).map(|index| cell.task("jfoo", index).attempt).collect();
    assert_eq!(attempts, [2, 1, 2, 1]);
    // A job that spares none keeps its alloc.
    let mut cell = drained_pairs(0);
    run(&mut cell, &[("jfoo", 0)]);
    assert!(!cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty());
}

#[test]
fn a_drain_ends_though_the_scheduler_would_rather_have_tasks_back_in_their_alloc() {
    let mut cell = drained_alloc(JobSpec { max_down: Some(1), ..job("jfoo", 4) });
    cell.ignores_drain = true;
    run(&mut cell, &[("jfoo", 1)]);
    assert!(cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty());
    let attempts: Vec<u32> = (0..4).map(|index| cell.task("jfoo", index).attempt).collect();
    assert_eq!(attempts, [2; 4], "each moved once");
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

#[test]
fn tasks_for_which_no_other_alloc_has_room_stay_in_theirs() {
    let mut cell = Cell::with_machines(2);
    let mut set = JobSpec { kind: JobKind::AllocSet, ..job("set", 1) };
    set.task.limits = all(60);
    cell.submit(&set);
    let inner = JobSpec { alloc_pairing: AllocPairing::Any, ..job("jfoo", 4) };
    cell.submit(&JobSpec { alloc_set: Some(key("set")), max_down: Some(1), ..inner });
    cell.place_and_start();
    cell.ok(drain(0));
    run(&mut cell, &[("jfoo", 1)]);
    let attempts: Vec<u32> = (0..4).map(|index| cell.task("jfoo", index).attempt).collect();
    assert_eq!(
        (attempts, cell.missing_tasks("jfoo")),
        (vec![1; 4], 0),
        "nobody is down for nothing"
    );
    // Room elsewhere, and they go one by one.
    cell.ok(Command::ResizeJob { job: key("set"), size: JobSize::tasks(2), expect: None });
    cell.place_and_start();
    run(&mut cell, &[("jfoo", 1)]);
    assert!(cell.state.machine_load(MachineId(0)).unwrap().tasks.is_empty());
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

/// Reports these limits in force for all tasks of the job.
fn confirm(cell: &mut Cell, name: &str, count: u32, amount: u64) {
    for index in 0..count {
        let row = cell.task(name, index as usize);
        let (machine, attempt, resizes) = (row.machine().unwrap(), row.attempt, row.resizes);
        let task = cell.task_id(name, index as usize);
        let what = Observed::LimitsInForce { resizes, limits: all(amount) };
        let incarnation = cell.state.machines().get(machine).unwrap().incarnation;
        let reports = vec![TaskReport { task, attempt, what }];
        cell.ok(Command::TaskReports { machine, incarnation, reports });
    }
}

fn limits(name: &str, amount: u64) -> Command {
    Command::ResizeLimits { job: key(name), limits: all(amount).into(), expect: None }
}

#[test]
fn an_alloc_shrinks_when_its_tasks_have_given_back_their_room() {
    let mut cell = Cell::with_machines(1);
    let mut set = JobSpec { kind: JobKind::AllocSet, ..job("set", 1) };
    set.task.limits = all(40 * MIN_RAM);
    let mut inner = job("jfoo", 2);
    inner.task.limits = all(20 * MIN_RAM);
    cell.ok(Command::UpdateMachine { spec: machine(0, 100 * MIN_RAM), expect: None });
    let quota = Quota { amount: all(1000 * MIN_RAM), from: Time::ZERO, until: Time::NEVER };
    let (user, quota) = (name("ubar"), Some(quota));
    cell.ok(Command::SetQuota { user, band: Band::Batch, quota, expect: None });
    cell.submit(&set);
    cell.submit(&JobSpec { alloc_set: Some(key("set")), ..inner });
    cell.place_and_start();
    cell.ok(limits("jfoo", 10 * MIN_RAM));
    cell.ok(limits("set", 20 * MIN_RAM));
    assert_eq!(cell.control(), [], "it waits for its tasks");
    confirm(&mut cell, "jfoo", 2, 10 * MIN_RAM);
    run(&mut cell, &[("jfoo", 0), ("set", 0)]);
    let id = cell.state.job_named(&key("set")).unwrap();
    let row = cell.state.jobs().get(id).unwrap();
    assert!(row.update.is_none(), "it was about limits alone, and is over");
    assert_eq!(cell.task("set", 0).attempt, 1);
    let counted = cell.state.machine_load(MachineId(0)).unwrap().limits;
    assert_eq!(counted, all(40 * MIN_RAM), "its agent has not reported it yet");
}

#[test]
fn a_machine_that_holds_too_much_sheds_what_it_must() {
    let spec = JobSpec { max_down: Some(0), ..job("jfoo", 10) };
    let mut cell = running(1, &spec);
    cell.ok(Command::UpdateMachine { spec: machine(0, 75), expect: None });
    let verdicts = cell.control();
    let cause = |(command, _): &(Command, Verdict)| match command {
        Command::Evict { cause, .. } => *cause,
        other => panic!("{other:?}"),
    };
    let causes: Vec<EvictCause> = verdicts.iter().map(cause).collect();
    assert_eq!(causes, [EvictCause::OverCommit; 3]);
    assert!(verdicts.iter().all(|(_, verdict)| *verdict == Ok(Done::Applied)));
    assert!(!cell.state.machines().get(MachineId(0)).unwrap().over_committed);
    assert_eq!(cell.control().len(), 0);
}

/// The report of the agent of `m0` in one incarnation of its machine.
fn report_pressure(cell: &Cell, request_count: u32) -> Command {
    let machine = MachineId(0);
    let incarnation = cell.state.machines().get(machine).unwrap().incarnation;
    let (dimension, lasted) = (Dimension::Cpu, Span::seconds(60));
    let resource_pressure =
        vec![ResourcePressureReport { dimension, lasted, requested: request_count }];
    Command::SetResourcePressure { machine, incarnation, resource_pressure }
}

#[test]
fn a_machine_that_is_short_gives_one_task_away_each_time_it_asks() {
    let spec = JobSpec { max_down: Some(0), ..job("jfoo", 3) };
    let mut cell = running(2, &spec);
    let on_m0 = |cell: &Cell| cell.state.machine_load(MachineId(0)).unwrap().tasks.len();
    assert_eq!(on_m0(&cell), 3, "the first machine is filled first");
    for (request_number, left) in [(1, 2), (2, 1), (3, 0)] {
        cell.ok(report_pressure(&cell, request_number));
        let verdicts = cell.control();
        let [(Command::Evict { cause, .. }, Ok(Done::Applied))] = &verdicts[..] else {
            panic!("{verdicts:?}")
        };
        assert_eq!(*cause, EvictCause::ResourcePressure(Dimension::Cpu));
        assert_eq!(cell.control(), [], "before it asks again");
        cell.place_and_start();
        assert_eq!(
            (on_m0(&cell), cell.missing_tasks("jfoo")),
            (left, 0),
            "it runs on the other machine"
        );
    }
    cell.ok(report_pressure(&cell, 4));
    assert_eq!(cell.control(), [], "nobody is left");
}

#[test]
fn nobody_leaves_a_machine_that_has_become_well() {
    let mut cell = running(2, &job("jfoo", 3));
    cell.ok(report_pressure(&cell, 1));
    let late = cell.decide();
    assert_eq!(late.len(), 1);
    cell.ok(report_pressure(&cell, 0));
    assert_eq!(cell.decide(), []);
    assert!(cell.apply_all(&late)[0].is_err(), "what was decided before is refused");
    assert_eq!(cell.missing_tasks("jfoo"), 0);
}

const MINUTE: u64 = 60_000;

fn tick() -> Command {
    let spec = serde_json::json!({
        "name": "tick", "schedule": "*/10 * * * *", "job": job("tick", 1), "missed": "run_once",
    });
    let spec = serde_json::from_value(spec).unwrap();
    cellwright_cell::cron::Command::Set { owner: name("ubar"), spec: Box::new(spec), expect: None }
        .into()
}

#[test]
fn a_slot_fires_once_over_any_number_of_leaders() {
    let mut cell = Cell::with_machines(1);
    cell.now = 60 * MINUTE;
    cell.ok(tick());
    assert!(cell.control().is_empty());
    cell.now = 70 * MINUTE;
    let before = cell.decide();
    let slot = Time(70 * MINUTE);
    let fire = cellwright_cell::cron::Command::Fire { cron: key("tick"), slot };
    assert_eq!(before, [Command::from(fire)]);
    // Another leader sees the same state and decides the same; the log accepts both.
    cell.controllers = Controllers::default();
    let after = cell.decide();
    let verdicts = cell.apply_all(&[before, after].concat());
    assert_eq!(verdicts, [Ok(Done::Applied), Ok(Done::Unchanged)]);
    assert_eq!(cell.state.jobs().len(), 1);
    cell.controllers = Controllers::default();
    assert_eq!(cell.decide(), []);
    // Two slots missed, one run makes up for them.
    cell.now = 95 * MINUTE;
    assert_eq!(cell.control().len(), 1);
    assert_eq!((cell.control().len(), cell.state.jobs().len()), (0, 2));
}

#[test]
fn expiry_is_asked_for_when_something_is_due() {
    let mut cell = Cell::with_machines(1);
    let token = |text| Token::new(text).unwrap();
    let (namespace, name) = (token("n"), token("r"));
    let lease = Span(9_000);
    cell.now = 999;
    let changes = Vec::new();
    cell.ok(ephemeral::Command::Set { namespace, name, lease, changes }.into());
    assert_eq!(cell.decide(), []);
    cell.now = 9_998;
    assert!(cell.control().is_empty());
    cell.now = 10_000;
    assert_eq!(cell.control(), [(Command::Expire, Ok(Done::Applied))]);
    assert_eq!(cell.control(), [], "what was due is gone");
    // Rarely, for windows that cannot be seen from here.
    cell.now += cell.settings.expire_every.0;
    assert_eq!(cell.control(), [(Command::Expire, Ok(Done::Unchanged))]);
    assert!(cell.control().is_empty());
}

#[test]
fn a_quota_that_ends_is_noticed_once() {
    let mut cell = running(1, &job("jfoo", 2));
    let band = cellwright_cell::priority::Band::Batch;
    let amount = all(1_000);
    let quota = cellwright_cell::quota::Quota { amount, from: Time::ZERO, until: Time(5_000) };
    let (user, quota) = (name("ubar"), Some(quota));
    cell.ok(Command::SetQuota { user, band, quota, expect: None });
    assert_eq!(cell.decide(), []);
    cell.now = 5_000;
    assert_eq!(cell.control(), [(Command::Expire, Ok(Done::Applied))]);
    assert!(cell.control().is_empty());
}

#[test]
fn old_jobs_are_forgotten_in_portions_and_young_ones_kept() {
    let mut cell = Cell::with_machines(1);
    cell.settings.retain_dead_jobs = Span(1_000);
    cell.settings.tasks_per_purge = 4;
    for number in 0..5 {
        cell.submit(&job(&format!("j{number}"), 2));
        let job = key(&format!("j{number}"));
        cell.ok(Command::StopJob { job, expect: None });
    }
    assert!(cell.control().is_empty());
    cell.now += 1_000;
    cell.submit(&job("young", 2));
    cell.ok(Command::StopJob { job: key("young"), expect: None });
    let left = |cell: &mut Cell| (cell.control(), cell.state.jobs().len()).1;
    let mut left: Vec<usize> = (0..10).map(|_| left(&mut cell)).collect();
    left.dedup();
    assert_eq!(left, [6, 4, 2, 1]);
    assert!(cell.state.job_named(&key("young")).is_some());
}

#[test]
fn a_job_is_forgotten_when_it_is_in_the_archive_or_the_archive_is_away_for_too_long() {
    let mut cell = Cell::with_machines(1);
    cell.settings.retain_dead_jobs = Span(1_000);
    cell.settings.archive_wait = Some(Span(60_000));
    for name in ["first", "second"] {
        cell.submit(&job(name, 1));
        cell.ok(Command::StopJob { job: key(name), expect: None });
    }
    let ended = |cell: &Cell, name: &str| {
        let id = cell.state.job_named(&key(name)).unwrap();
        cell.state.jobs().get(id).unwrap().ended_at.unwrap()
    };
    let [first, second] = ["first", "second"].map(|name| ended(&cell, name));
    assert!(first < second);
    cell.now += 30_000;
    let left = |cell: &mut Cell| (0..4).map(|_| (cell.control(), cell.state.jobs().len()).1).last();
    assert_eq!(left(&mut cell), Some(2), "the archive has nothing yet");
    // Everything before a time is in there, and what ended at that time may not be.
    cell.archived_before = first;
    assert_eq!(left(&mut cell), Some(2));
    cell.archived_before = second;
    assert_eq!(left(&mut cell), Some(1));
    assert_eq!(ended(&cell, "second"), second);
    cell.archived_before = Time::ZERO;
    assert_eq!(left(&mut cell), Some(1), "a new leader knows nothing of the archive at first");
    cell.now += 40_000;
    assert_eq!(left(&mut cell), Some(0), "it has waited for long enough");
}

#[test]
fn a_refused_command_is_not_asked_for_at_every_step() {
    let spec = JobSpec { max_down: Some(2), ..job("jfoo", 9) };
    let mut cell = running(2, &spec);
    cell.ok(drain(0));
    let mut issued = 0;
    for _ in 0..64 {
        let commands = cell.decide();
        issued += commands.len();
        // The drain was called off after the controller's decision and before the log.
        let called_off = Command::StopDrain { name: name("m0"), expect: None };
        let verdicts = cell.try_all(&[vec![called_off], commands].concat());
        cell.controllers.on_verdicts(&verdicts[1..]);
    }
    // Nine tasks, each requested in rounds that are 4, 8, 16 and so on apart.
    assert!(issued <= 9 * 5, "{issued} commands in 64 steps");
    assert!(issued >= 9, "they are asked for again");
}

/// An action of users or of the environment on a cell.
#[derive(Clone, Debug)]
enum Action {
    Drain(u32),
    StopDrain(u32),
    Update(u8),
    Undo(u8),
    Down(u32),
    Shrink(u32),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0..6u32).prop_map(Action::Drain),
        (0..6u32).prop_map(Action::StopDrain),
        (0..3u8).prop_map(Action::Update),
        (0..3u8).prop_map(Action::Undo),
        (0..6u32).prop_map(Action::Down),
        (0..6u32).prop_map(Action::Shrink),
    ]
}

fn spec_of(job_number: u8, generation: u32) -> JobSpec {
    let max_down = [None, Some(1), Some(3)][usize::from(job_number)];
    let mut spec = JobSpec { max_down, ..job(&format!("j{job_number}"), 6) };
    spec.task.command = vec![generation.to_string()];
    spec
}

fn apply_action(cell: &mut Cell, action: &Action, generation: u32) {
    let named = |machine: &u32| name(&format!("m{machine}"));
    let command = match action {
        Action::Drain(machine) => Command::StartDrain { name: named(machine), expect: None },
        Action::StopDrain(machine) => Command::StopDrain { name: named(machine), expect: None },
        Action::Update(number) => update(spec_of(*number, generation)),
        Action::Undo(number) => {
            Command::UndoUpdate { job: key(&format!("j{number}")), expect: None }
        }
        Action::Down(machine) => Command::MachineDown { machine: MachineId(*machine) },
        Action::Shrink(number) => {
            Command::UpdateMachine { spec: machine(*number, 40), expect: None }
        }
    };
    // Some are rejected: an update that is still open, an undo without one.
    drop(cell.apply_all(&[command]));
}

/// Everything requested of the cell has been done, or cannot be.
fn check_settled(cell: &Cell) {
    for (id, row) in cell.state.jobs().iter() {
        let outdated = row.tasks.iter().filter_map(|task| cell.state.tasks().get(*task));
        let outdated = outdated.filter(|task| task.version != row.version).count();
        let waiting = cell.state.job_load(id).unwrap().down() > 0;
        assert!(outdated == 0 || waiting, "an update of {} stands still", row.name);
        assert!(row.update.as_ref().is_none_or(|update| !update.undoing || outdated > 0));
    }
    for (id, row) in cell.state.machines().iter() {
        assert!(!row.over_committed, "{} holds too much", row.spec.name);
        let load = cell.state.machine_load(id).unwrap();
        let is_short = cell.state.jobs().iter().any(|(id, job)| {
            let down = cell.state.job_load(id).unwrap().down();
            job.spec().max_down.is_some_and(|max| down >= max)
        });
        assert!(!row.draining || load.tasks.is_empty() || is_short, "{} stays full", row.spec.name);
        assert!(row.status == MachineStatus::Up || load.tasks.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens: no command of a controller is rejected while nothing interferes, and the
    /// controllers settle with everything done.
    #[test]
    fn controllers_finish_what_was_begun(actions in prop::collection::vec(action(), 1..12)) {
        let mut cell = Cell::with_machines(6);
        (0..3).for_each(|number| cell.submit(&spec_of(number, 0)));
        cell.place_and_start();
        for (generation, action) in (1u32..).zip(&actions) {
            apply_action(&mut cell, action, generation);
            for (command, verdict) in cell.control() {
                prop_assert!(verdict.is_ok(), "{command:?}: {verdict:?}");
            }
            cell.place_and_start();
        }
        run(&mut cell, &[]);
        check_settled(&cell);
    }
}

#[test]
fn what_each_controller_gave_is_counted_under_a_name_of_its_own() {
    let mut cell = running(2, &job("jfoo", 4));
    let count = cell.controllers.list.len();
    assert_eq!(cell.controllers.commands_issued().len(), count, "two have the same name");
    assert!(cell.controllers.commands_issued().values().all(|given| *given == 0));
    cell.ok(drain(0));
    let issued = cell.control().len() as u64;
    assert!(issued > 0);
    assert_eq!(cell.controllers.commands_issued()["drain"], issued);
    assert_eq!(cell.controllers.commands_issued().values().sum::<u64>(), issued);
}

/// Its owner allows no disruption: what leaves with its machine is none.
#[test]
fn daemons_follow_the_machines_and_hold_up_no_drain() {
    let spec = JobSpec { kind: JobKind::Daemon, max_down: Some(0), ..job("jdae", 1) };
    let mut cell = running(2, &spec);
    cell.submit(&job("jfoo", 3));
    cell.place_and_start();
    cell.ok(drain(0));
    let left = |cell: &Cell| cell.state.machine_load(MachineId(0)).unwrap().tasks.len();
    assert!(left(&cell) > 1);
    // The others are told to leave first.
    for (command, _) in cell.control() {
        assert!(matches!(command, Command::Evict { .. }), "{command:?}");
    }
    cell.place_and_start();
    run(&mut cell, &[]);
    assert_eq!((left(&cell), cell.missing_tasks("jfoo")), (0, 0));
    cell.ok(Command::AddMachine(machine(2, 100)));
    cell.up(2);
    cell.ok(Command::StopDrain { name: name("m0"), expect: None });
    run(&mut cell, &[]);
    let id = cell.state.job_named(&key("jdae")).unwrap();
    let job = cell.state.jobs().get(id).unwrap().clone();
    let places = job.tasks.iter().map(|task| cell.state.tasks().get(*task).unwrap().machine());
    let want = [0, 1, 2].map(|machine| Some(MachineId(machine)));
    assert_eq!(places.collect::<Vec<_>>(), want);
    cell.ok(Command::MachineDown { machine: MachineId(1) });
    run(&mut cell, &[]);
    assert_eq!(cell.missing_tasks("jdae"), 0);
    assert_eq!(cell.state.job_load(id).unwrap().running, 2);
}
