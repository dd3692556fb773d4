//! Property tests with random runs. Whatever is sent, every invariant holds after every entry;
//! replicas that apply the same entries are equal, hash by hash and byte by byte, also when one was
//! saved and loaded on the way; a repeated request changes nothing.
//!
//! Runs are the same each time; `CELL_SEED` selects others and `CELL_CASES` more of them.

use crate::build;
use crate::draw::Draw;
use crate::generate;
use crate::world::{World, entry};
use cellwright_cell::command::{Actor, Command, Done, RequestId};
use cellwright_cell::encode;
use cellwright_cell::observed::differences;
use cellwright_cell::reason::Rejection;
use cellwright_cell::replay_windows::WINDOW_SIZE;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs `check` on random lists of step seeds; a failing list is shrunk by leaving steps out.
pub fn for_random_runs(
    name: &str,
    cases: u32,
    most_steps: usize,
    check: impl Fn(&Run) -> Result<(), String>,
) {
    let seed = number("CELL_SEED").unwrap_or(0x5eed);
    let cases = number("CELL_CASES").map_or(cases, |n| n as u32);
    println!("{name}: CELL_SEED={seed} CELL_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let seed_of = || proptest::num::u64::ANY.no_shrink();
    let steps = proptest::collection::vec(seed_of(), 1..most_steps);
    let runs = (seed_of(), steps).prop_map(|(opening, steps)| Run { opening, steps });
    let outcome = runner.run(&runs, |run| check(&run).map_err(TestCaseError::fail));
    if let Err(error) = outcome {
        panic!("{name} fails (CELL_SEED={seed}): {error}");
    }
}

/// Seeds of a run: one for the beginning of the cell, and one for each step.
#[derive(Clone, Debug)]
pub struct Run {
    pub opening: u64,
    pub steps: Vec<u64>,
}

impl Run {
    /// A cell at its beginning; one in eight is empty.
    fn begin(&self) -> Result<World, String> {
        let mut world = World::default();
        if !self.opening.is_multiple_of(8) {
            for entry in generate::opening(&mut Draw::new(self.opening)) {
                world.apply(entry)?;
            }
        }
        Ok(world)
    }

    /// The whole run, all invariants checked after every entry.
    pub fn run_all(&self) -> Result<World, String> {
        let mut world = self.begin()?;
        for seed in &self.steps {
            let entry = generate::entry(&world.state, &world.entries, *seed);
            world.apply(entry)?;
        }
        Ok(world)
    }
}

#[test]
fn every_invariant_holds_after_every_entry() {
    for_random_runs("invariants", 400, 200, |run| run.run_all().map(drop));
}

fn equal(what: &str, left: &mut State, right: &mut State) -> Result<(), String> {
    let (a, b) = (left.hash(), right.hash());
    if a != b {
        return Err(format!("{what}: hashes {a:016x} and {b:016x}"));
    }
    if encode::save(left) == encode::save(right) {
        Ok(())
    } else {
        Err(format!("{what}: equal hashes, different bytes"))
    }
}

#[test]
fn replicas_that_apply_the_same_entries_are_equal_even_when_one_reloads() {
    for_random_runs("replicas", 100, 160, |run| {
        let world = run.run_all()?;
        let (mut steady, mut reloaded) = (State::default(), State::default());
        for (at, entry) in world.entries.iter().enumerate() {
            let (mut seen, mut seen_too) = (Vec::new(), Vec::new());
            let verdicts = steady.apply(entry, &mut seen);
            let verdicts_too = reloaded.apply(entry, &mut seen_too);
            if verdicts != verdicts_too || seen != seen_too {
                return Err(format!("entry {at}: answers or events differ after a reload"));
            }
            equal(&format!("entry {at}"), &mut steady, &mut reloaded)?;
            if at % 7 == 3 {
                let bytes = encode::save(&reloaded);
                let found = encode::load(&bytes).map_err(|error| format!("entry {at}: {error}"))?;
                reloaded = found;
                equal(&format!("reload after entry {at}"), &mut steady, &mut reloaded)?;
            }
            let record = encode::save_entry(entry);
            if encode::load_entry(&record).as_ref() != Ok(entry) {
                return Err(format!("entry {at} does not survive the log"));
            }
        }
        Ok(())
    });
}

#[test]
fn a_request_sent_again_gets_its_first_answer_and_changes_nothing() {
    for_random_runs("replays", 100, 120, |run| {
        let mut world = run.begin()?;
        for seed in &run.steps {
            let mut entry = generate::entry(&world.state, &world.entries, *seed);
            let sequence = world.state.applied() + 1;
            entry.requests.truncate(1);
            entry.requests.iter_mut().for_each(|request| {
                request.id = Some(RequestId { client: 77, sequence });
            });
            let first = world.apply(entry.clone())?;
            // The same moment, so that only the repeat itself could change anything.
            entry.now = world.state.now();
            let again = world.apply(entry)?;
            if again.verdicts != first.verdicts || !again.events.is_empty() {
                return Err(format!("{:?}, then {:?}", first.verdicts, again.verdicts));
            }
        }
        Ok(())
    });
}

/// Whatever an agent reports as held, logging it once is enough, and nothing of it is rejected.
#[test]
fn an_agents_full_state_makes_a_difference_once() {
    for_random_runs("differences", 100, 120, |run| {
        let mut world = run.begin()?;
        for seed in &run.steps {
            world.apply(generate::entry(&world.state, &world.entries, *seed))?;
            let mut draw = Draw::new(seed.rotate_left(7));
            let machines: Vec<_> = world.state.machines().iter().map(|(id, _)| id).collect();
            let Some(machine) = draw.pick(&machines).copied() else { continue };
            let incarnation = world.state.machines().get(machine).map_or(0, |m| m.incarnation);
            let seen = generate::observed_by_agent(&world.state, machine, &mut draw);
            let reports = differences(&world.state, machine, incarnation, &seen);
            let command = Command::TaskReports { machine, incarnation, reports };
            let by = Actor::agent_of(machine, &world.state);
            let sent = entry(world.state.now(), by, None, command);
            let outcome = world.apply(sent)?;
            if let Ok(Done::Partly(refused)) = &outcome.verdicts[0] {
                return Err(format!("{seen:?}: {refused:?}"));
            }
            let again = differences(&world.state, machine, incarnation, &seen);
            if !again.is_empty() {
                return Err(format!("{seen:?} still makes a difference: {again:?}"));
            }
        }
        Ok(())
    });
}

#[test]
fn a_window_remembers_its_latest_requests_and_refuses_older_ones() {
    let mut world = World::default();
    let mut send = |sequence: u64, times: u64| {
        let command = Command::AddUser { name: build::name(&format!("u{sequence}")) };
        let id = Some(RequestId { client: 9, sequence });
        let mut verdicts = Vec::new();
        for _ in 0..times {
            let sent = entry(Time(sequence), Actor::Operator, id, command.clone());
            let outcome = world.apply(sent).unwrap_or_else(|why| panic!("{why}"));
            verdicts.extend(outcome.verdicts);
        }
        verdicts
    };
    let window = WINDOW_SIZE as u64;
    for sequence in 1..=window + 40 {
        assert_eq!(send(sequence, 2), [Ok(Done::Applied), Ok(Done::Applied)]);
    }
    assert_eq!(send(40, 1), [Err(Rejection::RequestTooOld)]);
    assert_eq!(send(41, 1), [Ok(Done::Applied)]);
    assert_eq!(send(window + 40, 1), [Ok(Done::Applied)]);
}
