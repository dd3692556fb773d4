//! The copy is the master's state: at every index of a random log, from any snapshot on, and never
//! after a record that does not follow.

mod support;

use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::encode;
use cellwright_cell::name::Name;
use cellwright_cell::state::LEVEL;
use cellwright_cell::time::Time;
use cellwright_messages::LogRecord;
use cellwright_sched::{ClusterSnapshot, Solver};
use cellwright_scheduler::CellCopy;
use cellwright_scheduler::cell_copy::FollowError;
use cellwright_scheduler::pass::PassRunner;
use support::random_cell::{self, TestRng};
use support::{InMemoryMaster, MasterState, SchedulerShard};

fn pass_runner(seed: u64) -> PassRunner {
    let (solver, shard) = (Solver::default(), SchedulerShard::new("").unwrap());
    PassRunner { solver, shard, seed, chunk_size: 5 }
}

/// Runs the cell for some entries, plans of a scheduler among them; the copy follows each.
fn run_random_cell(seed: u64, entries: u32, mut inspect: impl FnMut(&MasterState, &mut CellCopy)) {
    let master = InMemoryMaster::with_machines(5, 100);
    let mut master_state = master.state();
    let mut rng = TestRng(seed);
    let mut copy = CellCopy::default();
    for record in master_state.records() {
        copy.apply_record(record).unwrap();
    }
    for _ in 0..entries {
        copy.sync();
        let requests = if rng.one_in(3) {
            let plans = pass_runner(seed).pass(&mut copy, master_state.state.now()).chunks;
            let command = |plan| Command::CommitPlan(plan);
            let request = |command| Request::from_default_sender(command, &master_state.state);
            // The last chunk may be lost in flight.
            let sent = plans.len().saturating_sub(usize::from(rng.one_in(3)));
            plans.into_iter().take(sent).map(command).map(request).collect()
        } else {
            random_cell::requests(&master_state, &mut rng)
        };
        master_state.apply(requests);
        copy.apply_record(master_state.records().last().unwrap()).unwrap();
        inspect(&master_state, &mut copy);
    }
}

#[test]
fn the_copy_equals_the_master_at_every_index() {
    for seed in 0..12 {
        let mut placed = 0;
        run_random_cell(seed, 150, |master_state, copy| {
            assert_eq!(copy.index(), master_state.last(), "seed {seed}");
            assert_eq!(Some(&copy.hash()), master_state.hashes.last(), "seed {seed}");
            copy.sync();
            let same =
                copy.snapshot().compare_with(&ClusterSnapshot::from_state(&master_state.state));
            assert_eq!(same, Ok(()), "seed {seed} at {}", master_state.last());
            placed = master_state.scheduled();
        });
        assert!(placed > 20, "seed {seed}: only {placed} placements, nothing was tried");
    }
}

#[test]
fn a_copy_from_a_snapshot_goes_on_like_the_first() {
    for seed in 20..24 {
        let mut late: Option<CellCopy> = None;
        run_random_cell(seed, 60, |master_state, copy| {
            match &mut late {
                Some(late) => late.apply_record(master_state.records().last().unwrap()).unwrap(),
                None if master_state.records().len() > 40 => {
                    let bytes = encode::save(&master_state.state);
                    late = Some(CellCopy::load(master_state.last(), copy.term(), &bytes).unwrap());
                }
                None => return,
            }
            let late = late.as_mut().unwrap();
            assert_eq!((late.index(), late.hash()), (copy.index(), copy.hash()), "seed {seed}");
            late.sync();
            assert_eq!(
                late.snapshot().compare_with(&ClusterSnapshot::from_state(&master_state.state)),
                Ok(())
            );
        });
        assert!(late.is_some());
    }
}

fn check(spoil: impl Fn(&mut LogRecord), want: &str) {
    let master = InMemoryMaster::with_machines(2, 10);
    let master_state = master.state();
    let mut copy = CellCopy::default();
    let (last, before) = master_state.records().split_last().unwrap();
    before.iter().for_each(|record| copy.apply_record(record).unwrap());
    let (index, hash) = (copy.index(), copy.hash());
    let mut record = last.clone();
    spoil(&mut record);
    let error = match copy.apply_record(&record) {
        Ok(()) => "fine",
        Err(FollowError::Gap { .. }) => "gap",
        Err(FollowError::OlderTerm { .. }) => "older term",
        Err(FollowError::Unreadable { .. }) => "unreadable",
        Err(FollowError::UnknownLevel { .. }) => "unknown level",
    };
    assert_eq!(error, want);
    if want != "fine" {
        assert_eq!((copy.index(), copy.hash()), (index, hash), "nothing of it was applied");
        copy.apply_record(last).unwrap();
        assert_eq!(copy.index(), master_state.last());
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
    // What a newer build writes, and the entry that tells of it.
    let raise = |at: u32| {
        let by = Actor::Replica(Name::new("m1").unwrap());
        let command = Command::RaiseLevel { level: LEVEL + 1 };
        let requests = vec![Request { by, id: None, command }];
        encode::save_entry_at(&Entry { now: Time(9_999_999), requests }, at).unwrap()
    };
    check(|record| record.entry = raise(LEVEL), "unknown level");
    check(|record| record.entry = raise(LEVEL + 1), "unreadable");
    let rejected = CellCopy::load(1, 1, b"not a state");
    assert!(rejected.is_err());
}

#[test]
fn only_what_may_help_is_news() {
    let master = InMemoryMaster::with_machines(1, 10);
    let mut copy = CellCopy::default();
    let mut seen = 0;
    let mut check = |command: Option<Command>, want: bool| {
        let error = format!("{command:?}");
        command.into_iter().for_each(|command| master.apply_ok(command));
        let master_state = master.state();
        master_state.records()[seen..].iter().for_each(|record| copy.apply_record(record).unwrap());
        seen = master_state.records().len();
        copy.sync();
        assert_eq!(copy.take_changes(), want, "{error}");
        let plans = pass_runner(1).pass(&mut copy, master_state.state.now()).chunks;
        copy.sync();
        plans.into_iter().next().map(Command::CommitPlan)
    };
    use cellwright_cell::id::MachineId;
    check(None, true);
    check(None, false);
    let submit = |spec| Some(Command::SubmitJob { owner: support::name("ada"), spec });
    let plan = check(submit(Box::new(support::job("j1", 1, 4))), true);
    check(plan, false);
    check(Some(Command::AddUser { name: support::name("bob") }), false);
    check(Some(Command::StartDrain { name: support::name("m0"), expect: None }), false);
    check(Some(Command::StopDrain { name: support::name("m0"), expect: None }), true);
    check(Some(Command::StopJob { job: support::key("j1"), expect: None }), true);
    check(Some(Command::MachineDown { machine: MachineId(0) }), true);
}
