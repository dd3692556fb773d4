//! The copy is the master's state: at every index of a random log, from any snapshot on, and never
//! after a record that does not belong there.

mod support;

use cellwright_api::internal::LogRecord;
use cellwright_cell::command::{Command, Request};
use cellwright_cell::encode;
use cellwright_sched::{Board, Solver};
use cellwright_scheduler::CellCopy;
use cellwright_scheduler::copy::Broken;
use cellwright_scheduler::pass::Passer;
use support::life::{self, Draw};
use support::{Inside, Lane, OneMaster};

fn passer(seed: u64) -> Passer {
    let (solver, lane) = (Solver::default(), Lane::new("").unwrap());
    Passer { solver, lane, seed, chunk: 5 }
}

/// Lives for some entries, plans of a scheduler among them; the copy follows each.
fn live(seed: u64, entries: u32, mut look: impl FnMut(&Inside, &mut CellCopy)) {
    let master = OneMaster::with_machines(5, 100);
    let mut inside = master.inside();
    let mut draw = Draw(seed);
    let mut copy = CellCopy::default();
    for record in inside.records() {
        copy.follow(record).unwrap();
    }
    for _ in 0..entries {
        copy.sync();
        let requests = match draw.one_in(3) {
            true => {
                let plans = passer(seed).pass(&mut copy, inside.state.now()).chunks;
                let command = |plan| Command::CommitPlan(plan);
                let request = |command| Request::sent(command, &inside.state);
                // The last chunk is lost on the way.
                let sent = plans.len().saturating_sub(usize::from(draw.one_in(3)));
                plans.into_iter().take(sent).map(command).map(request).collect()
            }
            false => life::requests(&inside, &mut draw),
        };
        inside.apply(requests);
        copy.follow(inside.records().last().unwrap()).unwrap();
        look(&inside, &mut copy);
    }
}

#[test]
fn the_copy_equals_the_master_at_every_index() {
    for seed in 0..12 {
        let mut placed = 0;
        live(seed, 150, |inside, copy| {
            assert_eq!(copy.index(), inside.last(), "seed {seed}");
            assert_eq!(Some(&copy.hash()), inside.hashes.last(), "seed {seed}");
            copy.sync();
            let same = copy.board().same_as(&Board::from_state(&inside.state));
            assert_eq!(same, Ok(()), "seed {seed} at {}", inside.last());
            placed = inside.scheduled();
        });
        assert!(placed > 20, "seed {seed}: only {placed} placements, nothing was tried");
    }
}

#[test]
fn a_copy_from_a_snapshot_goes_on_like_the_first() {
    for seed in 20..24 {
        let mut late: Option<CellCopy> = None;
        live(seed, 60, |inside, copy| {
            match &mut late {
                Some(late) => late.follow(inside.records().last().unwrap()).unwrap(),
                None if inside.records().len() > 40 => {
                    let bytes = encode::save(&inside.state);
                    late = Some(CellCopy::load(inside.last(), copy.term(), &bytes).unwrap());
                }
                None => return,
            }
            let late = late.as_mut().unwrap();
            assert_eq!((late.index(), late.hash()), (copy.index(), copy.hash()), "seed {seed}");
            late.sync();
            assert_eq!(late.board().same_as(&Board::from_state(&inside.state)), Ok(()));
        });
        assert!(late.is_some());
    }
}

fn check(spoil: fn(&mut LogRecord), want: &str) {
    let master = OneMaster::with_machines(2, 10);
    let inside = master.inside();
    let mut copy = CellCopy::default();
    let (last, before) = inside.records().split_last().unwrap();
    before.iter().for_each(|record| copy.follow(record).unwrap());
    let (index, hash) = (copy.index(), copy.hash());
    let mut record = last.clone();
    spoil(&mut record);
    let said = match copy.follow(&record) {
        Ok(()) => "fine",
        Err(Broken::Gap { .. }) => "gap",
        Err(Broken::OlderTerm { .. }) => "older term",
        Err(Broken::Unreadable { .. }) => "unreadable",
    };
    assert_eq!(said, want);
    if want != "fine" {
        assert_eq!((copy.index(), copy.hash()), (index, hash), "nothing of it was applied");
        copy.follow(last).unwrap();
        assert_eq!(copy.index(), inside.last());
    }
}

#[test]
fn a_record_that_does_not_belong_there_is_refused() {
    check(|_| {}, "fine");
    check(|record| record.index += 3, "fine");
    check(|record| record.term += 1, "fine");
    check(|record| record.previous += 1, "gap");
    check(|record| record.previous -= 1, "gap");
    check(|record| record.index = record.previous, "gap");
    check(|record| record.term = 0, "older term");
    check(|record| record.entry.truncate(12), "unreadable");
    check(|record| *record.entry.last_mut().unwrap() ^= 1, "unreadable");
    let refused = CellCopy::load(1, 1, b"not a state");
    assert!(refused.is_err());
}

#[test]
fn only_what_may_help_is_news() {
    let master = OneMaster::with_machines(1, 10);
    let mut copy = CellCopy::default();
    let mut seen = 0;
    let mut check = |command: Option<Command>, want: bool| {
        let said = format!("{command:?}");
        command.into_iter().for_each(|command| master.must(command));
        let inside = master.inside();
        inside.records()[seen..].iter().for_each(|record| copy.follow(record).unwrap());
        seen = inside.records().len();
        copy.sync();
        assert_eq!(copy.take_news(), want, "{said}");
        let plans = passer(1).pass(&mut copy, inside.state.now()).chunks;
        copy.sync();
        plans.into_iter().next().map(Command::CommitPlan)
    };
    use cellwright_cell::id::MachineId;
    check(None, true);
    check(None, false);
    let submit = |spec| Some(Command::SubmitJob { owner: support::name("ada"), spec });
    let plan = check(submit(support::job("j1", 1, 4)), true);
    check(plan, false);
    check(Some(Command::AddUser { name: support::name("bob") }), false);
    check(Some(Command::StartDrain { name: support::name("m0"), expect: None }), false);
    check(Some(Command::StopDrain { name: support::name("m0"), expect: None }), true);
    check(Some(Command::StopJob { job: support::key("j1"), expect: None }), true);
    check(Some(Command::MachineDown { machine: MachineId(0) }), true);
}
