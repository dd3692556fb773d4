//! The same board, options, time and seed give the same outcome: run after run, on any executor.

mod support;

use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::time::Time;
use cellwright_sched::executor::{Executor, Sequential};
use cellwright_sched::queue::Queue;
use cellwright_sched::{Board, Options, Outcome, Solver};
use support::hand::{Hand, job, machine};
use support::specs::Draw;

/// Last part first.
struct Backwards;

impl Executor for Backwards {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..parts).rev().for_each(work);
    }
}

/// A thread for every part.
struct Threads;

impl Executor for Threads {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            (0..parts).for_each(|part| drop(scope.spawn(move || work(part))));
        });
    }
}

/// Enough machines for several parts of a scan, and more work than fits.
fn cell() -> Board {
    let mut draw = Draw(3);
    let mut hand = Hand::default();
    (0..9000).for_each(|_| hand.add(machine(40 + 20 * draw.below(4))));
    for m in 0..9000 {
        hand.running(1, job(1, 0, draw.below(40)), m);
    }
    for user in 0..60 {
        let priority = draw.pick(&[0, 100, 200, 300]);
        let size = draw.below(70) + 5;
        let spread = match draw.below(3) {
            0 => vec![SpreadLimit { domain: Domain::Machine, limit: 1 }],
            _ => Vec::new(),
        };
        hand.submit(user % 7, JobSpec { spread, ..job(40, priority, size) });
    }
    hand.board
}

fn pass(board: &Board, options: Options, seed: u64, executor: &dyn Executor) -> Outcome {
    let mut board = board.clone();
    let queue = Queue::new(&board, options.order, Time(1), seed);
    Solver::new(options).pass_with(&mut board, queue, seed, executor)
}

#[test]
fn outcomes_depend_on_the_seed_and_on_nothing_else() {
    let board = cell();
    for options in [Options::default(), Options::exact()] {
        let first = pass(&board, options, 5, &Sequential);
        assert!(first.placed > 500, "{} placed", first.placed);
        assert_eq!(first, pass(&board, options, 5, &Sequential), "again");
        assert_eq!(first, pass(&board, options, 5, &Backwards), "parts in another order");
        assert_eq!(first, pass(&board, options, 5, &Threads), "parts on threads");
        assert_ne!(first.plan, pass(&board, options, 6, &Sequential).plan, "another seed");
    }
}

#[test]
fn a_second_pass_over_what_is_left_changes_nothing() {
    let mut board = cell();
    let solver = Solver::new(Options::exact());
    let first = solver.pass(&mut board, Time(1), 5);
    let second = solver.pass(&mut board, Time(1), 5);
    assert_eq!(second.placed, 0);
    assert_eq!(second.pending.len(), first.pending.len());
}
