//! A scaled job on a cell whose scheduler and agents work as they should.

use super::super::testing::{Cell, all, job, key};
use super::*;
use cellwright_cell::command::{Done, Verdict};
use cellwright_cell::components;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::Token;
use cellwright_cell::scale::{
    MetricKind, MetricSeries, MetricSource, MetricTarget, ScaleRule, ScaleVeto, ScheduledMinimum,
    SignalName,
};
use std::collections::BTreeMap;

/// `jfoo` of two tasks of ten each, scaled between one and eight by half of its CPU.
fn scaled(change: impl FnOnce(&mut ScalePolicy)) -> JobSpec {
    let mut policy = ScalePolicy::between(1, 8);
    policy.target.cpu = Some(50);
    change(&mut policy);
    JobSpec { scale: Some(policy), ..job("jfoo", 2) }
}

fn cell(change: impl FnOnce(&mut ScalePolicy)) -> Cell {
    let mut cell = Cell::with_machines(2);
    cell.submit(&scaled(change));
    cell.place_and_start();
    // A day after the beginning of time, where nothing is near zero.
    cell.now = 24 * 60 * MINUTE;
    cell
}

fn count(cell: &Cell) -> u32 {
    let id = cell.state.job_named(&key("jfoo")).unwrap();
    cell.state.jobs().get(id).unwrap().spec().count
}

fn last(cell: &Cell) -> Decision {
    let id = cell.state.job_named(&key("jfoo")).unwrap();
    cell.state.scaling_of(id).unwrap().1.decision.clone().unwrap()
}

/// A minute in which each task uses so much CPU; then the controllers, scheduler and agents.
fn minute(cell: &mut Cell, feed: &mut LoadFeed, each: u64) -> Vec<(Command, Verdict)> {
    cell.now += MINUTE;
    let used = |_: MachineId, _: TaskId, _: u32| Some(Resources::new(each, 5, 0, 0));
    for _ in 0..4 {
        feed.sample(&cell.state, used, |_, _, _, _| None);
    }
    for command in feed.report(&cell.state, Time(cell.now)) {
        cell.ok(command);
    }
    let mut all = Vec::new();
    for _ in 0..8 {
        let verdicts = cell.control();
        for (command, verdict) in &verdicts {
            assert!(verdict.is_ok(), "{command:?}: {verdict:?}");
        }
        all.extend(verdicts);
        cell.place_and_start();
    }
    // Other controllers have their own rounds.
    all.retain(|(command, _)| is_scaling(command));
    all
}

fn is_scaling(command: &Command) -> bool {
    matches!(command, Command::Component(components::Command::Scaling(_)))
}

#[test]
fn a_job_follows_its_load_up_at_once_and_down_late() {
    let mut cell = cell(|_| ());
    let mut feed = LoadFeed::default();
    minute(&mut cell, &mut feed, 5);
    assert_eq!(count(&cell), 2);
    // Twice its target: four would do, at the load that it has.
    minute(&mut cell, &mut feed, 10);
    assert_eq!(count(&cell), 4);
    // One step for each measurement, and then nothing more to say.
    let steady = minute(&mut cell, &mut feed, 5);
    assert_eq!(count(&cell), 4);
    assert!(steady.len() <= 1, "{steady:?}");
    minute(&mut cell, &mut feed, 1);
    assert_eq!((count(&cell), last(&cell).vetoes), (4, vec![ScaleVeto::CoolDown]));
    for _ in 0..22 {
        minute(&mut cell, &mut feed, 1);
    }
    assert_eq!(count(&cell), 1);
    let more = cell.decide();
    assert!(!more.iter().any(is_scaling), "nothing is decided without news: {more:?}");
}

#[test]
fn a_schedule_needs_no_measure_and_no_news() {
    let mut cell = cell(|policy| {
        policy.target.cpu = None;
        policy.schedule = vec![ScheduledMinimum {
            from: "30 0 * * *".to_owned().try_into().unwrap(),
            lasts: Span(10 * MINUTE),
            min: 5,
        }];
    });
    let mut feed = LoadFeed::default();
    minute(&mut cell, &mut feed, 5);
    assert_eq!(count(&cell), 1, "nothing asks for two");
    for _ in 0..29 {
        minute(&mut cell, &mut feed, 5);
    }
    assert_eq!((count(&cell), last(&cell).rule), (5, ScaleRule::Schedule));
    for _ in 0..12 {
        minute(&mut cell, &mut feed, 5);
    }
    assert_eq!(count(&cell), 1);
}

#[test]
fn advice_is_given_once_and_a_job_that_ended_is_forgotten() {
    let mut cell = cell(|policy| policy.advise = true);
    let mut feed = LoadFeed::default();
    minute(&mut cell, &mut feed, 10);
    assert_eq!((count(&cell), last(&cell).want.count), (2, 4));
    assert_eq!(last(&cell).vetoes, [ScaleVeto::Advise]);
    assert!(minute(&mut cell, &mut feed, 10).is_empty(), "it was said");
    cell.ok(Command::StopJob { job: key("jfoo"), expect: None });
    cell.place_and_start();
    let gone = minute(&mut cell, &mut feed, 10);
    let forget = Command::from(scaling::Command::Forget { job: JobId(0) });
    assert!(gone.contains(&(forget, Ok(Done::Applied))), "{gone:?}");
    assert!(cell.state.scalings().is_empty());
}

#[test]
fn a_quota_bounds_growth() {
    let mut cell = cell(|_| ());
    let user = super::super::testing::name("ubar");
    let quota =
        cellwright_cell::quota::Quota { amount: all(30), from: Time::ZERO, until: Time::NEVER };
    let band = cellwright_cell::priority::Band::Batch;
    cell.ok(Command::SetQuota { user, band, quota: Some(quota), expect: None });
    let mut feed = LoadFeed::default();
    minute(&mut cell, &mut feed, 10);
    assert_eq!((count(&cell), last(&cell).vetoes), (3, vec![ScaleVeto::Quota]));
}

#[test]
fn what_is_not_reported_is_missing() {
    let mut cell = cell(|_| ());
    let mut feed = LoadFeed::default();
    let only = |_: MachineId, task: TaskId, _: u32| (task.0 == 0).then(|| all(4));
    feed.sample(&cell.state, only, |_, _, _, _| None);
    let commands = feed.report(&cell.state, Time(cell.now));
    let [Command::Component(_)] = &commands[..] else { panic!("{commands:?}") };
    cell.ok(commands[0].clone());
    let row = cell.state.scaling_of(JobId(0)).unwrap().1;
    assert_eq!(row.measured.as_ref().map(|last| (last.need, last.missing)), Some((800, 1)));
    assert_eq!(row.memory.peaks.last().map(|day| (day.cpu, day.ram)), Some((4, 4)));
    assert!(feed.report(&cell.state, Time(cell.now)).is_empty(), "it was reported");
}

/// `jfoo` scaled by a number alone, of which each task is meant for ten.
fn by_number() -> (Cell, LoadFeed) {
    let cell = cell(|policy| {
        policy.target.cpu = None;
        policy.target.metrics = vec![MetricTarget {
            name: Token::new("queue").unwrap(),
            per_task: 10_000,
            kind: MetricKind::Value,
            labels: BTreeMap::new(),
        }];
        policy.metrics = Some(MetricSource::File("queue".into()));
    });
    (cell, LoadFeed::default())
}

/// A minute in which each task tells what `told` says of it in each of four samples.
fn minute_of_numbers(
    cell: &mut Cell,
    feed: &mut LoadFeed,
    told: impl Fn(u32, TaskId) -> Option<u64>,
) {
    cell.now += MINUTE;
    for sample in 0..4 {
        let number = |_: MachineId, task: TaskId, _: u32, series: &MetricSeries| {
            assert_eq!(series.name.as_str(), "queue");
            told(sample, task)
        };
        let used = |_: MachineId, _: TaskId, _: u32| Some(Resources::new(1, 1, 0, 0));
        feed.sample(&cell.state, used, number);
    }
    for command in feed.report(&cell.state, Time(cell.now)) {
        cell.ok(command);
    }
    for _ in 0..8 {
        cell.control();
        cell.place_and_start();
    }
}

#[test]
fn a_number_that_tasks_tell_sizes_the_job_and_is_named() {
    let (mut cell, mut feed) = by_number();
    let by = || ScaleRule::Target(SignalName::Metric(Token::new("queue").unwrap()));
    minute_of_numbers(&mut cell, &mut feed, |_, _| Some(25_000));
    assert_eq!((count(&cell), last(&cell).rule), (5, by()));
    minute_of_numbers(&mut cell, &mut feed, |_, _| Some(10_000));
    assert_eq!(count(&cell), 5);
    // One of them falls silent: what it has to do is not known, and not nothing.
    for _ in 0..30 {
        minute_of_numbers(&mut cell, &mut feed, |_, task| (task.0 > 0).then_some(100));
    }
    let frozen = last(&cell);
    assert_eq!((count(&cell), frozen.rule), (5, by()));
    assert_eq!(frozen.vetoes, [ScaleVeto::NotTold { tasks: 1, of: 5 }]);
    for _ in 0..30 {
        minute_of_numbers(&mut cell, &mut feed, |_, _| None);
    }
    assert_eq!(count(&cell), 5);
    let row = cell.state.scaling_of(JobId(0)).unwrap().1;
    assert_eq!(row.measured, None);
    assert_eq!(row.untold.as_ref().map(|untold| (untold.tasks, untold.of)), Some((5, 5)));
    // Told again, of which one sample of a minute is enough.
    for _ in 0..30 {
        minute_of_numbers(&mut cell, &mut feed, |sample, _| (sample == 2).then_some(100));
    }
    assert_eq!(count(&cell), 1);
}

#[test]
fn a_part_of_what_is_told_may_ask_for_more() {
    let (mut cell, mut feed) = by_number();
    minute_of_numbers(&mut cell, &mut feed, |_, task| (task.0 == 0).then_some(40_000));
    assert_eq!(count(&cell), 4);
    let row = cell.state.scaling_of(JobId(0)).unwrap().1;
    assert!(row.memory.recent.is_empty(), "a part is nothing to remember: {row:?}");
}
