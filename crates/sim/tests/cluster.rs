//! Simulation of whole cells under faults: masters with raft, store and scheduler as in the
//! product, on virtual time, network and disks. Each run is a function of its seed, which a failure
//! prints.
//!
//! `CELL_SEED=n` runs one seed, `CELL_SEEDS=from..to` a range; `cargo nextest run -p cellwright-sim
//! --test cluster` runs a thousand.

use cellwright_cell::state::HIGHEST_LEVEL;
use cellwright_sim::cluster::faults::Fault;
use cellwright_sim::cluster::{RunPlan, run};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

fn seeds() -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|e| panic!("{text}: {e}"));
    if let Ok(seed) = std::env::var("CELL_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let range = std::env::var("CELL_SEEDS").unwrap_or_else(|_| "0..1000".into());
    let (from, to) = range.split_once("..").unwrap_or_else(|| panic!("CELL_SEEDS is from..to"));
    number(from)..number(to)
}

#[test]
fn promises_hold_under_faults_and_every_cell_heals() {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return failed;
                }
                match run(RunPlan::of(seed)) {
                    Ok(summary) if seeds.end - seeds.start == 1 => println!("{summary:?}"),
                    Ok(_) => {}
                    Err(why) => failed.push(why),
                }
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        // A seed whose run panics counts as failed; a thread that panics fails the test.
        let joined = threads.into_iter().map(|thread| thread.join().expect("a thread of seeds"));
        joined.flatten().collect()
    });
    // A campaign searches for this line: a run of other seeds than it requested does not count.
    let (from, to, failed) = (seeds.start, seeds.end, failures.len());
    println!("seeds {from}..{to}: {} ran, {failed} failed", to - from);
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run(RunPlan::of(seed)), run(RunPlan::of(seed)));
    }
}

/// Replicas and schedulers become those of the next release one after another, while faults happen:
/// the log is written in its format once all can read it, and everybody goes on.
#[test]
fn a_cell_that_is_upgraded_under_faults_is_raised_to_the_next_format_and_heals() {
    let mut raised = 0;
    for seed in 0..24 {
        let mut plan = RunPlan::of(seed);
        plan.shape.upgrades = true;
        let summary = run(plan).unwrap_or_else(|why| panic!("{why}"));
        raised += u32::from(summary.level == HIGHEST_LEVEL);
    }
    // Not where a replica is gone for good: nobody knows what it would know.
    println!("{raised} of 24 cells were raised");
    assert!(raised >= 12, "{raised} of 24 cells were raised");
}

/// Each of these faults alone, and for long: no other fault hides its effect.
#[test]
fn faults_of_disks_members_and_strangers_alone_are_survived() {
    let disks_and_files = [Fault::LowDisk, Fault::CutLog];
    let members = [Fault::UnknownSender, Fault::RemoveMember, Fault::KillDuringChange];
    let others = [Fault::CutFollowerOff, Fault::ManyWatches];
    for fault in disks_and_files.into_iter().chain(members).chain(others) {
        for seed in 0..2 {
            let mut plan = RunPlan { only_fault: Some(fault), faults: 3, ..RunPlan::of(seed) };
            (plan.shape.masters, plan.checks_between_faults) = (3, (60, 80));
            run(plan).unwrap_or_else(|why| panic!("{fault:?}: {why}"));
        }
    }
}

/// Clocks of every kind of process, ahead and behind, for a while and for good; and machines that
/// come back without their data and with a clock that is behind.
#[test]
fn wrong_clocks_alone_are_survived() {
    let clocks = [
        Fault::ClockJump { for_good: false },
        Fault::ClockJump { for_good: true },
        Fault::ClockOfLeaderJumps,
        Fault::LoseData,
    ];
    for fault in clocks {
        for seed in 0..4 {
            let mut plan = RunPlan { only_fault: Some(fault), faults: 8, ..RunPlan::of(seed) };
            (plan.shape.masters, plan.checks_between_faults) = (3, (20, 40));
            run(plan).unwrap_or_else(|why| panic!("{fault:?}: {why}"));
        }
    }
}
