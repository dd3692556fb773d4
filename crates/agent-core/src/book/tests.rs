//! Counters in, entries out: whatever happens in between, each microsecond is in one entry.

use super::*;
use crate::reconcile::tests::work;
use crate::usage::Reading;
use cellwright_cell::id::TaskId;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A time of day at which no window ends.
const DAWN: u64 = 1_793_491_200_000 + 1000;

fn clocks(boot: u64) -> Clocks {
    Clocks { wall: Time(DAWN + boot), boot }
}

fn attempt(task: u32) -> Attempt {
    Attempt::new(TaskId(task), 1)
}

fn reading(at: u64, cpu_micros: u64, ram: u64) -> LatestReading {
    let reading = Reading { cpu: Duration::from_micros(cpu_micros), ram, ..Reading::default() };
    LatestReading { at, reading, disk: 0, ram_peak: ram }
}

fn last_words(started: u64, ended: u64, cpu_micros: u64) -> FinalReading {
    FinalReading { started, ended, cpu_micros, io_bytes: 0, ram_peak: 5 << 20 }
}

fn closed(book: &UsageBook) -> Vec<UsageEntry> {
    book.clone().report(u64::MAX, 0).closed
}

#[test]
fn a_task_that_nobody_looked_at_has_its_last_words() {
    let mut book = UsageBook::new(7);
    book.begin(attempt(1), "ann/web/0", &work(), 400, clocks(1000));
    book.end(attempt(1), Some(last_words(400, 450, 48_123)));
    let [entry] = &closed(&book)[..] else { panic!("{book:?}") };
    assert_eq!((entry.number, entry.begun, entry.millis), (1, Time(DAWN + 400), 50));
    assert_eq!((entry.cpu_micros, entry.cpu_max, entry.samples), (48_123, 962, 0));
    assert_eq!((entry.ram_avg, entry.ram_max), (5 << 20, 5 << 20));
    // An agent that restarts finds the end again.
    book.begin(attempt(1), "ann/web/0", &work(), 400, clocks(1500));
    book.end(attempt(1), Some(last_words(400, 450, 48_123)));
    assert_eq!(closed(&book).len(), 1, "and counts it once");
    book.forget(attempt(1));
    assert_eq!(book.ended, []);
}

#[test]
fn entries_end_with_their_window_and_wait_for_a_master() {
    let mut book = UsageBook::new(7);
    book.begin(attempt(1), "ann/web/0", &work(), 0, clocks(0));
    for minute in 1..=7_u64 {
        let at = minute * 60_000;
        book.observe(attempt(1), &work(), &reading(at, minute * 6_000_000, 1 << 20));
        book.close_due(clocks(at));
    }
    let [first] = &closed(&book)[..] else { panic!("{book:?}") };
    assert_eq!((first.millis, first.cpu_micros, first.ram_avg), (300_000, 30_000_000, 1 << 20));
    assert_eq!((first.samples, first.cpu_max), (5, 100));
    let report = book.report(0, 50_000);
    let open = &report.open.expect("it is told at first")[0];
    assert_eq!((open.begun, open.millis), (Time(DAWN + 300_000), 120_000), "where it ended");
    assert_eq!(report.closed, [], "not on disk yet");
    assert_eq!(book.report(0, 59_000).open, None, "and now and then");
    assert!(book.report(0, 60_000).open.is_some());
    book.confirm(UsageMark { book: 6, up_to: 1 });
    assert_eq!(closed(&book).len(), 1, "of another book");
    book.confirm(UsageMark { book: 7, up_to: 1 });
    assert_eq!(closed(&book), []);
}

#[test]
fn an_outage_is_one_long_entry_and_a_clock_that_is_set_is_followed() {
    let mut book = UsageBook::new(7);
    book.begin(attempt(1), "ann/web/0", &work(), 0, clocks(0));
    book.observe(attempt(1), &work(), &reading(1000, 1_000_000, 0));
    // The agent was away for an hour, and the clock was set by a day.
    let late = Clocks { wall: Time(DAWN + 3_600_000 + 86_400_000), boot: 3_600_000 };
    book.observe(attempt(1), &work(), &reading(3_600_000, 900_000_000, 0));
    book.close_due(late);
    let [entry] = &closed(&book)[..] else { panic!("{book:?}") };
    assert_eq!((entry.millis, entry.cpu_micros), (3_600_000, 900_000_000));
    assert_eq!(book.open[0].begun, late.wall);
}

#[test]
fn what_another_book_may_have_is_not_booked_again() {
    let mut book = UsageBook::new(8);
    book.begin_late(attempt(1), "ann/web/0", &work(), clocks(5000));
    book.observe(attempt(1), &work(), &reading(6000, 70_000_000, 0));
    book.observe(attempt(1), &work(), &reading(7000, 70_500_000, 0));
    book.end(attempt(1), None);
    let [entry] = &closed(&book)[..] else { panic!("{book:?}") };
    assert_eq!((entry.millis, entry.cpu_micros, entry.cpu_max), (2000, 500_000, 500));
}

#[test]
fn a_machine_that_nobody_hears_keeps_no_more_than_it_may() {
    let mut book = UsageBook::new(7);
    book.begin(attempt(1), "ann/web/0", &work(), 0, clocks(0));
    for window in 1..=MAX_WAITING as u64 + 100 {
        let at = window * WINDOW.0;
        book.observe(attempt(1), &work(), &reading(at, at, 0));
        book.close_due(clocks(at));
    }
    assert_eq!(book.closed.len(), MAX_WAITING);
    book.end(attempt(1), None);
    let all: u64 = book.closed.iter().map(|entry| entry.cpu_micros).sum();
    assert_eq!(all, (MAX_WAITING as u64 + 100) * WINDOW.0, "and all of it is there");
}

#[test]
fn a_clock_that_is_far_off_is_corrected_and_a_master_without_a_time_is_not_asked() {
    let mut correction = ClockCorrection::default();
    let (cell, hour) = (Time(DAWN), 3_600_000);
    correction.observe(Time(DAWN + 200_000), cell);
    assert_eq!(correction.correct(Time(5)), Time(5), "within what is believed");
    correction.observe(Time(DAWN - hour), cell);
    assert_eq!(correction.correct(Time(5)), Time(5 + hour));
    correction.observe(Time(DAWN - hour), Time::ZERO);
    assert_eq!(correction.correct(Time(5)), Time(5 + hour));
    correction.observe(Time(DAWN + hour), cell);
    assert_eq!(correction.correct(Time(DAWN + hour)), cell);
}

#[derive(Clone, Debug)]
enum Step {
    Work {
        task: u32,
        micros: u64,
    },
    Look {
        task: u32,
    },
    Wait {
        millis: u64,
    },
    Cut,
    /// Killed: what is on disk is what the next one has.
    Crash,
    Write,
    Send {
        heard: bool,
    },
    End {
        task: u32,
        is_read: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let task = 1..4_u32;
    prop_oneof![
        (task.clone(), 1..900_000_u64).prop_map(|(task, micros)| Step::Work { task, micros }),
        task.clone().prop_map(|task| Step::Look { task }),
        (1..200_000_u64).prop_map(|millis| Step::Wait { millis }),
        Just(Step::Cut),
        Just(Step::Crash),
        Just(Step::Write),
        any::<bool>().prop_map(|heard| Step::Send { heard }),
        (task, any::<bool>()).prop_map(|(task, is_read)| Step::End { task, is_read }),
    ]
}

proptest! {
    /// A master keeps each entry once, by task and beginning, as history does.
    #[test]
    fn nothing_is_lost_and_nothing_is_twice(steps in proptest::collection::vec(step(), 0..80)) {
        let mut now = 1000;
        let (mut book, mut disk) = (UsageBook::new(7), UsageBook::new(7));
        let mut totals: BTreeMap<u32, u64> = BTreeMap::new();
        let mut ended: BTreeMap<u32, FinalReading> = BTreeMap::new();
        let mut kept: BTreeMap<(String, Time), UsageEntry> = BTreeMap::new();
        let begin_all = |book: &mut UsageBook, now: u64| {
            for task in 1..4 {
                book.begin(attempt(task), &format!("u/j{task}/0"), &work(), 1000, clocks(now));
            }
        };
        begin_all(&mut book, now);
        let mut send = |book: &mut UsageBook, written: u64, heard: bool| {
            let report = book.report(written, 0);
            for entry in &report.closed {
                let key = (entry.name.clone(), entry.begun);
                let before = kept.entry(key).or_insert_with(|| entry.clone());
                assert_eq!(before, entry, "told differently");
            }
            if let Some(last) = report.closed.last().filter(|_| heard) {
                book.confirm(UsageMark { book: report.book, up_to: last.number });
            }
        };
        for step in steps {
            match step {
                Step::Work { task, micros } if !ended.contains_key(&task) => {
                    *totals.entry(task).or_default() += micros;
                }
                Step::Look { task } if !ended.contains_key(&task) => {
                    let total = totals.get(&task).copied().unwrap_or(0);
                    book.observe(attempt(task), &work(), &reading(now, total, 1));
                }
                Step::Wait { millis } => now += millis,
                Step::Cut => book.close_due(clocks(now)),
                Step::Write => disk = book.clone(),
                Step::Crash => {
                    book = disk.clone();
                    begin_all(&mut book, now);
                    for (task, words) in &ended {
                        book.end(attempt(*task), Some(*words));
                    }
                }
                Step::Send { heard } => send(&mut book, disk.last(), heard),
                Step::End { task, is_read } => {
                    let total = totals.get(&task).copied().unwrap_or(0);
                    let words = *ended.entry(task).or_insert_with(|| last_words(1000, now, total));
                    if is_read {
                        book.end(attempt(task), Some(words));
                    }
                }
                Step::Work { .. } | Step::Look { .. } => {}
            }
        }
        for task in 1..4 {
            let total = totals.get(&task).copied().unwrap_or(0);
            let words = ended.get(&task).copied().unwrap_or(last_words(1000, now, total));
            book.end(attempt(task), Some(words));
        }
        send(&mut book, u64::MAX, true);
        for task in 1..4_u32 {
            let name = format!("u/j{task}/0");
            let of = kept.values().filter(|entry| entry.name == name);
            let booked: u64 = of.map(|entry| entry.cpu_micros).sum();
            prop_assert_eq!(booked, totals.get(&task).copied().unwrap_or(0), "{}", name);
        }
    }
}
