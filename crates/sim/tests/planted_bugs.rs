//! The simulator is proved by planting known bugs and seeing each of them caught. What a bug breaks
//! depends on the seed, so several are tried; a bug that no seed shows fails the test.

use cellwright_sim::agent::AgentBugs;
use cellwright_sim::cluster::disk::DiskBugs;
use cellwright_sim::cluster::faults::Fault;
use cellwright_sim::cluster::{Bugs, Plan, run};

const SEEDS: u64 = 100;

/// The bug is caught by one of the seeds, and the report of it holds one of `words`.
fn caught(bugs: Bugs, words: &[&str]) {
    caught_in(bugs, words, |plan| plan.faults = 12);
}

/// The same in runs that suit the bug.
fn caught_in(bugs: Bugs, words: &[&str], suit: impl Fn(&mut Plan)) {
    let mut seen = Vec::new();
    for seed in 0..SEEDS {
        let mut plan = Plan { bugs, ..Plan::of(seed) };
        plan.shape.masters = 3;
        suit(&mut plan);
        if let Err(why) = run(plan) {
            if words.iter().any(|word| why.contains(word)) {
                return;
            }
            seen.push(why);
        }
    }
    panic!("not caught as {words:?} in {SEEDS} seeds; other findings:\n{}", seen.join("\n"));
}

fn disk(bugs: DiskBugs) -> Bugs {
    Bugs { disk: bugs, ..Bugs::default() }
}

fn agent(bugs: AgentBugs) -> Bugs {
    Bugs { agent: bugs, ..Bugs::default() }
}

#[test]
fn a_skipped_fsync() {
    let bugs = disk(DiskBugs { skips_sync: true, ..DiskBugs::default() });
    caught(bugs, &["lost", "misses", "rewritten", "another state", "damaged", "stands at"]);
}

#[test]
fn a_flipped_bit() {
    caught(disk(DiskBugs { flips_bits: true, ..DiskBugs::default() }), &["damaged"]);
}

#[test]
fn a_replica_that_comes_back_without_its_disk() {
    let bugs = Bugs { forgets_disk: true, ..Bugs::default() };
    caught(bugs, &["lost", "misses", "rewritten", "another state", "stands at", "not at rest"]);
}

#[test]
fn a_replica_that_applies_something_else() {
    caught(Bugs { differs: true, ..Bugs::default() }, &["another state"]);
}

#[test]
fn an_acknowledgement_before_the_log() {
    caught(Bugs { acks_early: true, ..Bugs::default() }, &["lost", "misses"]);
}

#[test]
fn a_stale_read_sold_as_fresh() {
    caught(Bugs { reads_stale: true, ..Bugs::default() }, &["fresh read"]);
}

#[test]
fn a_request_repeated_under_a_new_id() {
    caught(Bugs { forgets_request_id: true, ..Bugs::default() }, &["counter"]);
}

#[test]
fn an_agent_that_keeps_what_is_not_listed() {
    let bugs = agent(AgentBugs { keeps_unlisted: true, ..AgentBugs::default() });
    caught(bugs, &["tasks run", "runs on machines", "holds more than it has"]);
}

#[test]
fn an_agent_that_ignores_its_lease() {
    let bugs = agent(AgentBugs { ignores_lease: true, ..AgentBugs::default() });
    // Long enough for the machine to be given up and the lease to be waited out.
    caught_in(bugs, &["runs on machines"], |plan| {
        (plan.looks, plan.faults, plan.clients) = ((180, 220), 1, 3);
        plan.only = Some(Fault::CutSomeAgents);
    });
}

#[test]
fn an_agent_that_starts_before_there_is_room() {
    let bugs = agent(AgentBugs { starts_early: true, ..AgentBugs::default() });
    // A small cell with many clients: nearly every start waits for somebody to leave.
    caught_in(bugs, &["holds more than it has"], |plan| {
        (plan.shape.machines, plan.clients, plan.faults) = (2, 8, 12);
    });
}

#[test]
fn an_agent_that_obeys_a_replica_left_behind() {
    let bugs = agent(AgentBugs { obeys_old_orders: true, ..AgentBugs::default() });
    caught(bugs, &["obeyed older orders"]);
}

#[test]
fn machines_declared_down_in_haste() {
    caught(Bugs { hasty: true, ..Bugs::default() }, &["more than half"]);
}
