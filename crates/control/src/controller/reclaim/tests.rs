//! One machine, tasks that use more or less than before.

use super::*;
use crate::controller::testing::{Cell, job, key};
use cellwright_cell::command::Command;
use cellwright_cell::spec::RetainDisk;

const M0: MachineId = MachineId(0);
const LIMIT: u64 = 96;

fn cpu(amount: u64) -> Resources {
    Resources::new(amount, 0, 0, 0)
}

/// A cell in which `jfoo` runs one task, polled every 10 s.
struct World {
    cell: Cell,
    feed: ReclaimFeed,
    at: u64,
    /// Whether requested changes reach the log.
    log_works: bool,
}

impl World {
    fn new(change: impl FnOnce(&mut JobSpec)) -> World {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1);
        spec.task.limits = cpu(LIMIT);
        change(&mut spec);
        cell.submit(&spec);
        cell.place_and_start();
        World { cell, feed: ReclaimFeed::default(), at: 0, log_works: true }
    }

    fn usage(&self, used: Resources) -> TaskUsage {
        let row = self.cell.task("jfoo", 0);
        TaskUsage { task: self.cell.task_id("jfoo", 0), attempt: row.attempt, used }
    }

    fn reserved(&self) -> u64 {
        self.cell.task("jfoo", 0).reservation.cpu
    }

    /// Uses `amount` for some seconds; returns when which reservation was requested.
    fn run(&mut self, seconds: u64, amount: u64) -> Vec<(u64, u64)> {
        let mut requested = Vec::new();
        for second in (10..=seconds).step_by(10) {
            self.at += 10_000;
            self.cell.now += 10_000;
            let usage = [self.usage(cpu(amount))];
            let changes = self.feed.on_usage(&self.cell.state, M0, &usage, Span(self.at));
            requested.extend(changes.iter().map(|change| (second, change.reservation.cpu)));
            if self.log_works && !changes.is_empty() {
                self.cell.ok(Command::SetReservations(changes));
            }
        }
        requested
    }
}

#[test]
fn decays_are_gathered_and_a_rise_is_not() {
    let mut world = World::new(|_| ());
    assert_eq!(world.run(290, 10), [], "the limit is reserved while it warms up");
    let decays = world.run(7_200, 10);
    assert!(decays.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 30), "{decays:?}");
    assert!(decays.windows(2).all(|pair| pair[1].1 < pair[0].1), "{decays:?}");
    // 10 and a margin of 30 %, rounded up to a sixteenth of the limit.
    assert_eq!(world.reserved(), 18);
    let rise = world.run(10, 60);
    assert_eq!(rise, [(10, 78)], "with the first sample");
    assert_eq!(world.reserved(), 78);
}

#[test]
fn a_shard_that_meets_a_task_late_starts_from_what_is_reserved() {
    let mut world = World::new(|_| ());
    world.run(7_200, 40);
    assert_eq!(world.reserved(), 54);
    world.feed = ReclaimFeed::default();
    world.at = 5;
    assert_eq!(world.run(600, 5), [], "neither back to the limit nor down at once");
    world.run(14_400, 5);
    assert_eq!(world.reserved(), 12, "in time it learns");
    world.feed = ReclaimFeed::default();
    assert_eq!(world.run(10, 90), [(10, LIMIT)], "a rise needs no past");
}

#[test]
fn a_change_that_was_lost_is_asked_for_again() {
    let mut world = World::new(|_| ());
    world.log_works = false;
    let requested = world.run(7_200, 10);
    // With every sample, but only when decays have gathered.
    assert!(requested.windows(2).all(|pair| pair[1].0 - pair[0].0 == 30), "{requested:?}");
    assert!(requested.len() > 100, "{}", requested.len());
    world.log_works = true;
    world.run(60, 10);
    assert_eq!(world.reserved(), 18);
}

#[test]
fn what_is_said_by_others_or_of_the_past_is_ignored() {
    let mut world = World::new(|_| ());
    world.run(7_200, 10);
    let at = Span(world.at + 10_000);
    let state = world.cell.state.clone();
    let high = world.usage(cpu(90));
    let mut take = |machine, usage| world.feed.on_usage(&state, machine, &[usage], at);
    assert_eq!(take(MachineId(7), high), []);
    assert_eq!(take(M0, TaskUsage { attempt: high.attempt + 1, ..high }), []);
    assert_eq!(take(M0, TaskUsage { task: TaskId(99), ..high }), []);
    assert_eq!(take(M0, high).len(), 1);
}

#[test]
fn jobs_that_lend_nothing_out_keep_their_limits() {
    let mut world = World::new(|spec| spec.reclaimable = false);
    assert_eq!(world.run(7_200, 10), []);
    assert!(world.feed.tasks.is_empty());
}

#[test]
fn disk_that_will_be_retained_stays_reserved() {
    let keep = Span::seconds(60);
    let mut world = World::new(|spec| {
        spec.task.limits.disk = 10;
        spec.retain_disk = Some(RetainDisk { bytes: 7, keep, log_saver: None });
    });
    world.run(36_000, 10);
    assert_eq!((world.reserved(), world.cell.task("jfoo", 0).reservation.disk), (18, 7));
}

#[test]
fn a_task_that_runs_no_more_is_forgotten() {
    let mut world = World::new(|_| ());
    world.run(400, 10);
    assert_eq!(world.feed.tasks.len(), 1);
    world.cell.ok(Command::StopJob { job: key("jfoo"), expect: None });
    world.feed.on_usage(&world.cell.state, M0, &[], Span(world.at));
    assert!(world.feed.tasks.is_empty() && world.feed.decays.is_empty());
}
