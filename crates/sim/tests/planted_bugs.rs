//! Tests of the simulator itself: known bugs are injected, and each of them must be caught. What a
//! bug breaks depends on the seed, so several are tried; a bug that no seed exposes fails the test.

use cellwright_control::controller::ControllerBugs;
use cellwright_sim::agent::AgentBugs;
use cellwright_sim::cluster::disk::DiskBugs;
use cellwright_sim::cluster::faults::Fault;
use cellwright_sim::cluster::net::NetBugs;
use cellwright_sim::cluster::scenario::Scenario;
use cellwright_sim::cluster::watches::FlowBugs;
use cellwright_sim::cluster::{PanicPoint, PlantedBugs, RunPlan, run};
use cellwright_store::StoreBugs;

const SEEDS: u64 = 100;

/// The bug is caught with one of the seeds, and the report of it contains one of `words`.
fn assert_caught(bugs: PlantedBugs, words: &[&str]) {
    assert_caught_in(bugs, words, |plan| plan.faults = 12);
}

/// The same in runs that suit the bug.
fn assert_caught_in(bugs: PlantedBugs, words: &[&str], adjust: impl Fn(&mut RunPlan)) {
    let mut seen = Vec::new();
    for seed in 0..SEEDS {
        let mut plan = RunPlan { bugs, ..RunPlan::of(seed) };
        plan.shape.masters = 3;
        adjust(&mut plan);
        if let Err(why) = run(plan) {
            if words.iter().any(|word| why.contains(word)) {
                return;
            }
            seen.push(why);
        }
    }
    panic!("not caught as {words:?} in {SEEDS} seeds; other findings:\n{}", seen.join("\n"));
}

fn disk(bugs: DiskBugs) -> PlantedBugs {
    PlantedBugs { disk: bugs, ..PlantedBugs::default() }
}

fn agent(bugs: AgentBugs) -> PlantedBugs {
    PlantedBugs { agent: bugs, ..PlantedBugs::default() }
}

#[test]
fn a_skipped_fsync() {
    let bugs = disk(DiskBugs { skips_sync: true, ..DiskBugs::default() });
    assert_caught(bugs, &["lost", "misses", "rewritten", "another state", "damaged", "stands at"]);
}

#[test]
fn a_flipped_bit() {
    assert_caught(disk(DiskBugs { flips_bits: true, ..DiskBugs::default() }), &["damaged"]);
}

#[test]
fn a_log_that_lost_whole_records_at_its_end() {
    let bugs = disk(DiskBugs { cuts_log: true, ..DiskBugs::default() });
    assert_caught(bugs, &["the log ends before entry"]);
}

#[test]
fn an_event_log_that_is_silently_shorter() {
    let bugs = PlantedBugs { hides_gaps: true, ..PlantedBugs::default() };
    assert_caught_in(bugs, &["and says nothing"], |plan| {
        plan.faults = 12;
        plan.only_fault = Some(Fault::DamageRecords);
    });
}

#[test]
fn a_replica_that_comes_back_without_its_disk() {
    let bugs = PlantedBugs { loses_disk: true, ..PlantedBugs::default() };
    assert_caught(
        bugs,
        &["lost", "misses", "rewritten", "another state", "stands at", "not at rest"],
    );
}

#[test]
fn a_replica_that_applies_something_else() {
    assert_caught(PlantedBugs { diverges: true, ..PlantedBugs::default() }, &["another state"]);
}

#[test]
fn an_acknowledgement_before_the_log() {
    assert_caught(PlantedBugs { acks_early: true, ..PlantedBugs::default() }, &["lost", "misses"]);
}

#[test]
fn limits_that_are_reported_before_they_are_in_force() {
    let bugs = agent(AgentBugs { confirms_early: true, ..AgentBugs::default() });
    assert_caught(bugs, &["may use more than a report says"]);
}

fn store(bugs: StoreBugs) -> PlantedBugs {
    PlantedBugs { store: bugs, ..PlantedBugs::default() }
}

/// Leaders crash with entries that followers have flushed and they have not.
fn lose_unflushed(plan: &mut RunPlan) {
    (plan.faults, plan.checks_between_faults, plan.only_fault) =
        (4, (5, 15), Some(Fault::LoseUnflushedLeader));
}

#[test]
fn an_acknowledgement_before_the_flush_of_the_leader() {
    let bugs = store(StoreBugs { applies_unflushed: true, ..StoreBugs::default() });
    assert_caught_in(bugs, &["lost", "misses", "rewritten", "another state"], lose_unflushed);
}

#[test]
fn a_commit_that_counts_a_leader_that_has_not_flushed() {
    let bugs = store(StoreBugs { announces_unflushed: true, ..StoreBugs::default() });
    assert_caught_in(bugs, &["lost", "misses", "rewritten", "another state"], lose_unflushed);
}

#[test]
fn a_leader_that_goes_on_in_a_term_whose_entries_it_lost() {
    let bugs = store(StoreBugs { resumes_term: true, ..StoreBugs::default() });
    assert_caught_in(
        bugs,
        &["lost", "misses", "rewritten", "another state", "fresh read"],
        lose_unflushed,
    );
}

/// Without these bugs, the checks that catch them find nothing.
#[test]
fn leaders_that_lose_what_they_had_not_flushed_break_no_promise() {
    for seed in 0..20 {
        let mut plan = RunPlan::of(seed);
        lose_unflushed(&mut plan);
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn a_stale_read_sold_as_fresh() {
    assert_caught(PlantedBugs { reads_stale: true, ..PlantedBugs::default() }, &["fresh read"]);
}

#[test]
fn a_request_repeated_under_a_new_id() {
    let bugs = PlantedBugs { forgets_request_id: true, ..PlantedBugs::default() };
    // It takes an answer that is lost after the request took effect, in one request of ten.
    assert_caught_in(bugs, &["counter"], |plan| {
        (plan.clients, plan.faults, plan.only_fault) = (8, 12, Some(Fault::Loss));
    });
}

#[test]
fn an_agent_that_keeps_what_is_not_listed() {
    let bugs = agent(AgentBugs { keeps_unlisted: true, ..AgentBugs::default() });
    assert_caught(bugs, &["tasks run", "runs on machines", "though it is ordered away"]);
}

#[test]
fn an_agent_that_ignores_its_lease() {
    let bugs = agent(AgentBugs { ignores_lease: true, ..AgentBugs::default() });
    // Long enough for the machine to be declared down and the lease to run out.
    assert_caught_in(bugs, &["runs on machines"], |plan| {
        (plan.checks_between_faults, plan.faults, plan.clients) = ((180, 220), 1, 3);
        plan.only_fault = Some(Fault::CutSomeAgents);
    });
}

#[test]
fn an_agent_that_starts_before_there_is_room() {
    let bugs = agent(AgentBugs { starts_early: true, ..AgentBugs::default() });
    // A small cell with many clients: nearly every start waits for another task to leave.
    assert_caught_in(bugs, &["before those had left"], |plan| {
        (plan.shape.machines, plan.clients, plan.faults) = (2, 8, 12);
    });
}

#[test]
fn an_agent_that_obeys_a_replica_left_behind() {
    let bugs = agent(AgentBugs { applies_stale_orders: true, ..AgentBugs::default() });
    assert_caught(bugs, &["obeyed older orders"]);
}

/// Nothing goes wrong except the bug, for long enough to be noticed.
fn no_faults(plan: &mut RunPlan) {
    (plan.checks_between_faults, plan.faults, plan.only_fault) = ((100, 120), 3, Some(Fault::Heal));
}

#[test]
fn an_end_that_is_forgotten_before_newer_orders_drop_it() {
    let bugs = agent(AgentBugs { reports_ends_once: true, ..AgentBugs::default() });
    assert_caught(bugs, &["a report says nothing of"]);
}

#[test]
fn an_attempt_that_begins_twice() {
    let bugs = agent(AgentBugs { restarts_ended: true, ..AgentBugs::default() });
    assert_caught(bugs, &["began twice"]);
}

#[test]
fn a_task_that_outlives_its_max_run() {
    let bugs = agent(AgentBugs { ignores_max_run: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["runs longer than its max_run"], no_faults);
}

#[test]
fn a_task_over_its_limit_of_memory_that_is_spared() {
    let bugs = agent(AgentBugs { ignores_kills: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["holds more memory than its limit"], no_faults);
}

#[test]
fn an_illness_that_is_not_reported() {
    let bugs = agent(AgentBugs { hides_unhealthy: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["is ill, and a report calls it healthy"], no_faults);
}

#[test]
fn a_reservation_that_falls_below_what_is_used() {
    let bugs = agent(AgentBugs { hides_usage: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["and reserves"], no_faults);
}

#[test]
fn a_reservation_by_what_another_task_uses() {
    let bugs = agent(AgentBugs { swaps_usage: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["and reserves"], no_faults);
}

#[test]
fn an_agent_that_tells_usage_anew_is_billed_twice() {
    let bugs = agent(AgentBugs { tells_usage_anew: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["of CPU, and history has"], no_faults);
}

/// Without the bugs of reclamation and pressure eviction, the checks that catch them find nothing.
#[test]
fn cells_in_which_nothing_goes_wrong_keep_every_rule_of_usage() {
    for seed in 0..6 {
        let mut plan = RunPlan::of(seed);
        no_faults(&mut plan);
        (plan.shape.machines, plan.clients) = (2, 6);
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// The bug is caught in a run in which this happens and nothing else does, which does not depend
/// on luck.
fn assert_caught_in_scenario(bugs: PlantedBugs, scenario: Scenario, words: &str) {
    let why = run(RunPlan { bugs, ..RunPlan::of_scenario(scenario) }).err();
    assert!(why.as_ref().is_some_and(|why| why.contains(words)), "not {words}: {why:?}");
}

fn controllers(bugs: ControllerBugs) -> PlantedBugs {
    PlantedBugs { controllers: bugs, ..PlantedBugs::default() }
}

/// Without a bug, the checks that catch them there find nothing.
#[test]
fn what_happens_in_scenarios_breaks_no_rule() {
    for scenario in Scenario::ALL {
        run(RunPlan::of_scenario(scenario)).unwrap_or_else(|why| panic!("{scenario:?}: {why}"));
    }
}

#[test]
fn a_shortage_of_cpu_that_is_not_reported() {
    let bugs = agent(AgentBugs { hides_pressure: true, ..AgentBugs::default() });
    let words = "is short of CPU, and the cell does not know";
    assert_caught_in_scenario(bugs, Scenario::CpuPressure, words);
}

#[test]
fn a_broken_gang_that_gives_nothing_back() {
    let bugs = ControllerBugs { keeps_broken_gangs: true, ..ControllerBugs::default() };
    let words = "the gang ubar/directed is broken, and gives nothing back";
    assert_caught_in_scenario(controllers(bugs), Scenario::BrokenGang, words);
}

#[test]
fn a_gang_that_is_to_give_back_before_its_time_is_over() {
    let bugs = ControllerBugs { gives_back_at_once: true, ..ControllerBugs::default() };
    let words = "ubar/directed is asked to give back";
    assert_caught_in_scenario(controllers(bugs), Scenario::BrokenGang, words);
}

#[test]
fn a_daemon_that_forgets_a_machine_that_came_back() {
    let bugs = ControllerBugs { forgets_returned_machines: true, ..ControllerBugs::default() };
    let words = "the daemon ubar/directed lacks a task on machine-1";
    assert_caught_in_scenario(controllers(bugs), Scenario::ReturningMachine, words);
}

#[test]
fn a_restart_that_is_never_stepped() {
    let bugs = ControllerBugs { skips_restarts: true, ..ControllerBugs::default() };
    let words = "2 tasks of ubar/directed are to be restarted, and are not";
    assert_caught_in_scenario(controllers(bugs), Scenario::Restart, words);
}

#[test]
fn canaries_that_are_promoted_at_once() {
    let bugs = ControllerBugs { promotes_at_once: true, ..ControllerBugs::default() };
    assert_caught_in_scenario(controllers(bugs), Scenario::Canary, "is asked to be promoted");
}

#[test]
fn canaries_that_are_never_promoted() {
    let bugs = ControllerBugs { never_promotes: true, ..ControllerBugs::default() };
    let words = "version 2 of ubar/directed is to be promoted, and is not";
    assert_caught_in_scenario(controllers(bugs), Scenario::Canary, words);
}

#[test]
fn an_update_that_was_undone_and_rolls_nothing_back() {
    let bugs = ControllerBugs { leaves_undone_updates: true, ..ControllerBugs::default() };
    let words = "ubar/directed goes back to version 1, and 2 tasks do not";
    assert_caught_in_scenario(controllers(bugs), Scenario::FailedUpdate, words);
}

#[test]
fn a_size_beyond_the_quota() {
    let bugs = ControllerBugs { ignores_quota: true, ..ControllerBugs::default() };
    let words = "the cell asks for more than the quota has room for";
    assert_caught_in_scenario(controllers(bugs), Scenario::NarrowQuota, words);
}

#[test]
fn a_job_that_shrinks_because_nothing_was_measured() {
    let bugs = ControllerBugs { takes_silence_for_rest: true, ..ControllerBugs::default() };
    let words = "it shrinks, and nothing was measured";
    assert_caught_in_scenario(controllers(bugs), Scenario::UnmeasuredTasks, words);
}

#[test]
fn a_job_that_shrinks_below_what_unmeasured_tasks_may_need() {
    let bugs = ControllerBugs { forgets_unmeasured_tasks: true, ..ControllerBugs::default() };
    let words = "it shrinks below what 2 unmeasured tasks may need";
    assert_caught_in_scenario(controllers(bugs), Scenario::UnmeasuredTasks, words);
}

fn net(bugs: NetBugs) -> PlantedBugs {
    PlantedBugs { net: bugs, ..PlantedBugs::default() }
}

/// Only this fault is injected, for a long time.
fn only_fault(fault: Fault) -> impl Fn(&mut RunPlan) {
    move |plan| {
        (plan.checks_between_faults, plan.faults, plan.clients) = ((140, 160), 3, 3);
        plan.only_fault = Some(fault);
    }
}

#[test]
fn an_election_without_asking_first() {
    let bugs = net(NetBugs { skips_pre_vote: true, ..NetBugs::default() });
    assert_caught_in(bugs, &["is at term"], only_fault(Fault::CutFollowerOff));
}

#[test]
fn a_leader_that_keeps_the_lead_without_room() {
    let bugs = net(NetBugs { hides_disk_space: true, ..NetBugs::default() });
    assert_caught_in(bugs, &["leads without room"], only_fault(Fault::LowDisk));
}

#[test]
fn a_stranger_that_is_believed() {
    let bugs = net(NetBugs { accepts_unknown_senders: true, ..NetBugs::default() });
    assert_caught_in(bugs, &["is at term"], only_fault(Fault::UnknownSender));
}

#[test]
fn machines_declared_down_in_haste() {
    assert_caught(
        PlantedBugs { declares_down_early: true, ..PlantedBugs::default() },
        &["more than half"],
    );
}

#[test]
fn a_lease_counted_from_the_clock_of_the_leader() {
    let bugs = PlantedBugs { leases_by_clock: true, ..PlantedBugs::default() };
    assert_caught_in(bugs, &["was refused", "ms left"], |plan| {
        (plan.faults, plan.checks_between_faults, plan.only_fault) =
            (6, (10, 30), Some(Fault::ClockOfLeaderJumps));
    });
}

#[test]
fn an_agent_that_numbers_its_life_by_its_clock() {
    let bugs = agent(AgentBugs { incarnation_by_clock: true, ..AgentBugs::default() });
    // The first loss of data gives a number by the clock; a later one with a slow clock gives a
    // lower one.
    assert_caught_in(bugs, &["machines are up"], |plan| {
        (plan.faults, plan.checks_between_faults, plan.only_fault) =
            (12, (10, 30), Some(Fault::LoseData));
    });
}

fn flow(bugs: FlowBugs) -> PlantedBugs {
    PlantedBugs { flow: bugs, ..PlantedBugs::default() }
}

/// Many watches, each for a moment: they are closed when all is healed.
fn many_watches(plan: &mut RunPlan) {
    (plan.faults, plan.checks_between_faults, plan.only_fault) =
        (2, (3, 15), Some(Fault::ManyWatches));
}

#[test]
fn streams_of_one_user_that_nobody_counts() {
    let bugs = flow(FlowBugs { ignores_stream_limit: true, ..FlowBugs::default() });
    assert_caught_in(bugs, &["one user has 1000 streams"], many_watches);
}

#[test]
fn streams_that_the_first_user_takes_all_of() {
    let bugs = flow(FlowBugs { ignores_user_share: true, ..FlowBugs::default() });
    assert_caught_in(bugs, &["a watch of another user got 429"], many_watches);
}

#[test]
fn streams_that_are_counted_after_their_end() {
    let bugs = flow(FlowBugs { leaks_permits: true, ..FlowBugs::default() });
    assert_caught_in(bugs, &["still counts who has gone"], many_watches);
}

#[test]
fn a_replica_that_starts_with_a_log_cut_short() {
    let bugs = PlantedBugs { forgets_applied: true, ..PlantedBugs::default() };
    assert_caught_in(bugs, &["starts with a log that was cut short"], |plan| {
        (plan.faults, plan.checks_between_faults, plan.only_fault) =
            (3, (30, 60), Some(Fault::CutLog));
    });
}

/// The panicking part is reported with the seed, in the first run: it does not depend on luck.
fn assert_panic_reported(point: PanicPoint, reporter: &str) {
    assert_panic_reported_in(RunPlan::of(1), point, reporter);
}

/// The same in a run that is adjusted for it.
fn assert_panic_reported_in(plan: RunPlan, point: PanicPoint, reporter: &str) {
    let plan =
        RunPlan { bugs: PlantedBugs { panics: Some(point), ..PlantedBugs::default() }, ..plan };
    let report = run(plan).expect_err("a run that swallows a panic");
    assert!(report.starts_with("seed 1: ") && report.contains(reporter), "{report}");
    assert!(report.contains(&format!("planted in {point:?}")), "{report}");
}

#[test]
fn a_panic_of_a_core_loop() {
    assert_panic_reported(PanicPoint::Core, "the core loop panicked");
}

#[test]
fn a_panic_of_a_task_of_consensus() {
    // Without a fault: a replica that is started again applies its log before consensus begins.
    let plan = RunPlan { only_fault: Some(Fault::Heal), faults: 3, ..RunPlan::of(1) };
    assert_panic_reported_in(plan, PanicPoint::Apply, "consensus panicked");
}

#[test]
fn a_panic_of_an_agent() {
    assert_panic_reported(PanicPoint::Agent, "an agent panicked");
}

#[test]
fn a_panic_of_a_scheduler() {
    assert_panic_reported(PanicPoint::Scheduler, "a scheduler panicked");
}

#[test]
fn a_panic_of_a_client() {
    assert_panic_reported(PanicPoint::Client, "a client panicked");
}

#[test]
fn a_panic_of_the_run_itself() {
    assert_panic_reported(PanicPoint::Checker, "the run panicked");
}

#[test]
fn a_panic_of_whoever_changes_the_members() {
    let mut plan = RunPlan { only_fault: Some(Fault::RemoveMember), ..RunPlan::of(1) };
    plan.checks_between_faults = (30, 40);
    assert_panic_reported_in(plan, PanicPoint::Members, "a change of members panicked");
}

/// Only the recorder of all panics notices: the caller takes it for a call that was lost.
#[test]
fn a_panic_of_a_call_that_is_taken_for_lost() {
    let plan = RunPlan { only_fault: Some(Fault::Heal), faults: 3, ..RunPlan::of(1) };
    assert_panic_reported_in(plan, PanicPoint::Call, "a task panicked");
}

#[test]
fn a_panic_on_the_way_out() {
    let plan = RunPlan {
        only_fault: Some(Fault::KillMaster),
        checks_between_faults: (30, 40),
        ..RunPlan::of(1)
    };
    assert_panic_reported_in(plan, PanicPoint::Teardown, "panicked");
}

#[test]
fn an_agent_that_never_tries_another_master() {
    let bugs = agent(AgentBugs { knows_one_master: true, ..AgentBugs::default() });
    assert_caught_in(bugs, &["machines are up"], |plan| {
        (plan.faults, plan.only_fault) = (1, Some(Fault::LoseMaster));
    });
}

/// Without the bug, the check that catches it finds nothing.
#[test]
fn agents_and_schedulers_that_joined_by_a_master_that_is_lost_go_on_with_the_others() {
    for seed in 0..10 {
        let mut plan =
            RunPlan { faults: 1, only_fault: Some(Fault::LoseMaster), ..RunPlan::of(seed) };
        plan.shape.masters = 3;
        run(plan).unwrap_or_else(|why| panic!("{why}"));
    }
}
