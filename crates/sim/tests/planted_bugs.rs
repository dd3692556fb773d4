//! The simulator is proved by planting known bugs and seeing each of them caught. What a bug breaks
//! depends on the seed, so several are tried; a bug that no seed shows fails the test.

use cellwright_sim::agent::AgentBugs;
use cellwright_sim::cluster::disk::DiskBugs;
use cellwright_sim::cluster::faults::Fault;
use cellwright_sim::cluster::net::NetBugs;
use cellwright_sim::cluster::watches::FlowBugs;
use cellwright_sim::cluster::{Bugs, Panics, Plan, run};
use cellwright_store::StoreBugs;

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
fn a_log_that_lost_whole_records_at_its_end() {
    let bugs = disk(DiskBugs { cuts_log: true, ..DiskBugs::default() });
    caught(bugs, &["the log ends before entry"]);
}

#[test]
fn an_event_log_that_is_silently_shorter() {
    let bugs = Bugs { hides_gaps: true, ..Bugs::default() };
    caught_in(bugs, &["and says nothing"], |plan| {
        plan.faults = 12;
        plan.only = Some(Fault::DamageRecords);
    });
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

fn store(bugs: StoreBugs) -> Bugs {
    Bugs { store: bugs, ..Bugs::default() }
}

/// Leaders die with entries that followers have flushed and they have not.
fn lose_unflushed(plan: &mut Plan) {
    (plan.faults, plan.looks, plan.only) = (4, (5, 15), Some(Fault::LoseUnflushed));
}

#[test]
fn an_acknowledgement_before_the_flush_of_the_leader() {
    let bugs = store(StoreBugs { applies_unflushed: true, ..StoreBugs::default() });
    caught_in(bugs, &["lost", "misses", "rewritten", "another state"], lose_unflushed);
}

#[test]
fn a_commit_that_counts_a_leader_that_has_not_flushed() {
    let bugs = store(StoreBugs { announces_unflushed: true, ..StoreBugs::default() });
    caught_in(bugs, &["lost", "misses", "rewritten", "another state"], lose_unflushed);
}

#[test]
fn a_leader_that_goes_on_in_a_term_whose_entries_it_lost() {
    let bugs = store(StoreBugs { resumes_term: true, ..StoreBugs::default() });
    caught_in(
        bugs,
        &["lost", "misses", "rewritten", "another state", "fresh read"],
        lose_unflushed,
    );
}

/// What these bugs are caught by is not there without them.
#[test]
fn leaders_that_lose_what_they_had_not_flushed_break_no_promise() {
    for seed in 0..20 {
        let mut plan = Plan::of(seed);
        lose_unflushed(&mut plan);
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn a_stale_read_sold_as_fresh() {
    caught(Bugs { reads_stale: true, ..Bugs::default() }, &["fresh read"]);
}

#[test]
fn a_request_repeated_under_a_new_id() {
    let bugs = Bugs { forgets_request_id: true, ..Bugs::default() };
    // It takes an answer that is lost after the request took effect, of one request in ten.
    caught_in(bugs, &["counter"], |plan| {
        (plan.clients, plan.faults, plan.only) = (8, 12, Some(Fault::Loss));
    });
}

#[test]
fn an_agent_that_keeps_what_is_not_listed() {
    let bugs = agent(AgentBugs { keeps_unlisted: true, ..AgentBugs::default() });
    caught(bugs, &["tasks run", "runs on machines", "though it is ordered away"]);
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
    caught_in(bugs, &["before those had left"], |plan| {
        (plan.shape.machines, plan.clients, plan.faults) = (2, 8, 12);
    });
}

#[test]
fn an_agent_that_obeys_a_replica_left_behind() {
    let bugs = agent(AgentBugs { obeys_old_orders: true, ..AgentBugs::default() });
    caught(bugs, &["obeyed older orders"]);
}

/// Nothing goes wrong but the bug, for long enough to be seen.
fn quiet(plan: &mut Plan) {
    (plan.looks, plan.faults, plan.only) = ((100, 120), 3, Some(Fault::Heal));
}

#[test]
fn an_end_that_is_forgotten_before_newer_orders_drop_it() {
    let bugs = agent(AgentBugs { forgets_ends: true, ..AgentBugs::default() });
    caught(bugs, &["a report says nothing of"]);
}

#[test]
fn an_attempt_that_begins_twice() {
    let bugs = agent(AgentBugs { begins_twice: true, ..AgentBugs::default() });
    caught(bugs, &["began twice"]);
}

#[test]
fn a_task_that_outlives_its_max_run() {
    let bugs = agent(AgentBugs { ignores_max_run: true, ..AgentBugs::default() });
    caught_in(bugs, &["runs longer than its max_run"], quiet);
}

#[test]
fn a_task_over_its_limit_of_memory_that_is_spared() {
    let bugs = agent(AgentBugs { spares_condemned: true, ..AgentBugs::default() });
    caught_in(bugs, &["holds more memory than its limit"], quiet);
}

#[test]
fn an_illness_that_is_not_reported() {
    let bugs = agent(AgentBugs { hides_illness: true, ..AgentBugs::default() });
    caught_in(bugs, &["is ill, and a report calls it healthy"], quiet);
}

#[test]
fn a_reservation_that_falls_below_what_is_used() {
    let bugs = agent(AgentBugs { hides_usage: true, ..AgentBugs::default() });
    caught_in(bugs, &["and reserves"], quiet);
}

#[test]
fn a_reservation_by_what_another_task_uses() {
    let bugs = agent(AgentBugs { swaps_usage: true, ..AgentBugs::default() });
    caught_in(bugs, &["and reserves"], quiet);
}

/// What the bugs of reclamation and relief are caught by is not there without them.
#[test]
fn cells_in_which_nothing_goes_wrong_keep_every_rule_of_usage() {
    for seed in 0..6 {
        let mut plan = Plan::of(seed);
        quiet(&mut plan);
        (plan.shape.machines, plan.clients) = (2, 6);
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

fn net(bugs: NetBugs) -> Bugs {
    Bugs { net: bugs, ..Bugs::default() }
}

/// Only this goes wrong, and for long.
fn only(fault: Fault) -> impl Fn(&mut Plan) {
    move |plan| {
        (plan.looks, plan.faults, plan.clients) = ((140, 160), 3, 3);
        plan.only = Some(fault);
    }
}

#[test]
fn an_election_without_asking_first() {
    let bugs = net(NetBugs { skips_pre_vote: true, ..NetBugs::default() });
    caught_in(bugs, &["is at term"], only(Fault::CutFollowerOff));
}

#[test]
fn a_leader_that_keeps_the_lead_without_room() {
    let bugs = net(NetBugs { hides_room: true, ..NetBugs::default() });
    caught_in(bugs, &["leads without room"], only(Fault::ShortDisk));
}

#[test]
fn a_stranger_that_is_believed() {
    let bugs = net(NetBugs { believes_strangers: true, ..NetBugs::default() });
    caught_in(bugs, &["is at term"], only(Fault::Stranger));
}

#[test]
fn machines_declared_down_in_haste() {
    caught(Bugs { hasty: true, ..Bugs::default() }, &["more than half"]);
}

#[test]
fn a_lease_counted_from_the_clock_of_the_leader() {
    let bugs = Bugs { leases_by_clock: true, ..Bugs::default() };
    caught_in(bugs, &["was refused", "ms left"], |plan| {
        (plan.faults, plan.looks, plan.only) = (6, (10, 30), Some(Fault::ClockOfLeaderJumps));
    });
}

#[test]
fn an_agent_that_numbers_its_life_by_its_clock() {
    let bugs = agent(AgentBugs { life_by_clock: true, ..AgentBugs::default() });
    // The first loss of data gives a number by the clock, a later one with a clock behind a lower.
    caught_in(bugs, &["machines are up"], |plan| {
        (plan.faults, plan.looks, plan.only) = (12, (10, 30), Some(Fault::LoseData));
    });
}

fn flow(bugs: FlowBugs) -> Bugs {
    Bugs { flow: bugs, ..Bugs::default() }
}

/// Many watches, for a moment each: whoever has them goes when all is healed.
fn many_watches(plan: &mut Plan) {
    (plan.faults, plan.looks, plan.only) = (2, (3, 15), Some(Fault::ManyWatches));
}

#[test]
fn streams_of_one_user_that_nobody_counts() {
    let bugs = flow(FlowBugs { unbounded_streams: true, ..FlowBugs::default() });
    caught_in(bugs, &["one user has 1000 streams"], many_watches);
}

#[test]
fn streams_that_the_first_user_takes_all_of() {
    let bugs = flow(FlowBugs { first_takes_all: true, ..FlowBugs::default() });
    caught_in(bugs, &["a watch of another user got 429"], many_watches);
}

#[test]
fn streams_that_are_counted_after_their_end() {
    let bugs = flow(FlowBugs { keeps_seats: true, ..FlowBugs::default() });
    caught_in(bugs, &["still counts who has gone"], many_watches);
}

#[test]
fn a_replica_that_starts_with_a_log_cut_short() {
    let bugs = Bugs { forgets_applied: true, ..Bugs::default() };
    caught_in(bugs, &["starts with a log that was cut short"], |plan| {
        (plan.faults, plan.looks, plan.only) = (3, (30, 60), Some(Fault::CutLog));
    });
}

/// Whoever panics is named with the seed, by the first run: none of it is a matter of luck.
fn panic_is_told(who: Panics, as_whose: &str) {
    panic_is_told_in(Plan::of(1), who, as_whose);
}

/// The same in a run that suits it.
fn panic_is_told_in(plan: Plan, who: Panics, as_whose: &str) {
    let plan = Plan { bugs: Bugs { panics: Some(who), ..Bugs::default() }, ..plan };
    let told = run(plan).expect_err("a run that swallows a panic");
    assert!(told.starts_with("seed 1: ") && told.contains(as_whose), "{told}");
    assert!(told.contains(&format!("planted in {who:?}")), "{told}");
}

#[test]
fn a_panic_of_a_core_loop() {
    panic_is_told(Panics::Core, "the core loop panicked");
}

#[test]
fn a_panic_of_a_task_of_consensus() {
    panic_is_told(Panics::Apply, "consensus panicked");
}

#[test]
fn a_panic_of_an_agent() {
    panic_is_told(Panics::Agent, "an agent panicked");
}

#[test]
fn a_panic_of_a_scheduler() {
    panic_is_told(Panics::Scheduler, "a scheduler panicked");
}

#[test]
fn a_panic_of_a_client() {
    panic_is_told(Panics::Client, "a client panicked");
}

#[test]
fn a_panic_of_the_run_itself() {
    panic_is_told(Panics::Checker, "the run panicked");
}

#[test]
fn a_panic_of_whoever_changes_the_members() {
    let mut plan = Plan { only: Some(Fault::DropMember), ..Plan::of(1) };
    plan.looks = (30, 40);
    panic_is_told_in(plan, Panics::Members, "a change of members panicked");
}

/// Nobody but the recorder of all panics notices: the caller takes it for a call that was lost.
#[test]
fn a_panic_of_a_call_that_is_taken_for_lost() {
    let plan = Plan { only: Some(Fault::Heal), faults: 3, ..Plan::of(1) };
    panic_is_told_in(plan, Panics::Call, "a task panicked");
}

#[test]
fn a_panic_on_the_way_out() {
    let plan = Plan { only: Some(Fault::KillMaster), looks: (30, 40), ..Plan::of(1) };
    panic_is_told_in(plan, Panics::Leaving, "panicked");
}

#[test]
fn an_agent_that_never_tries_another_master() {
    let bugs = agent(AgentBugs { knows_one_master: true, ..AgentBugs::default() });
    caught_in(bugs, &["machines are up"], |plan| {
        (plan.faults, plan.only) = (1, Some(Fault::LoseMaster));
    });
}

/// What the bug is caught by is not there without it.
#[test]
fn agents_and_schedulers_that_joined_by_a_master_that_is_lost_go_on_with_the_others() {
    for seed in 0..10 {
        let mut plan = Plan { faults: 1, only: Some(Fault::LoseMaster), ..Plan::of(seed) };
        plan.shape.masters = 3;
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}
