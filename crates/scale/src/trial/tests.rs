//! What the rules promise, on loads that are made up here and on recorded ones.

use super::*;
use crate::MINUTE;
use cellwright_cell::time::Time;

const DAY: usize = 24 * 60;

/// A small mixer: equal everywhere.
fn noise(seed: u64, minute: usize, span: u64) -> u64 {
    let mut x = seed ^ (minute as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 31;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 29)) % span
}

/// Days with a quiet night and a busy evening, and a programme at eight that brings half as many
/// again within two minutes.
fn days(seed: u64, days: usize) -> Vec<u64> {
    let rate = |minute: usize| {
        let of_day = minute % DAY;
        let from_night = of_day.abs_diff(DAY / 6).min(DAY - of_day.abs_diff(DAY / 6)) as u64;
        let half_day = DAY as u64 / 2;
        let base = 200 + from_night * from_night * 9000 / (half_day * half_day);
        let since = of_day.saturating_sub(20 * 60).min(2) as u64;
        let programme = if (20 * 60..21 * 60).contains(&of_day) { base * since / 4 } else { 0 };
        base + programme + noise(seed, minute, base / 12)
    };
    (0..days * DAY).map(rate).collect()
}

fn scenario(seed: u64) -> Scenario {
    Scenario { target: 75, ..Scenario::new(days(seed, 14), Time(0)) }
}

fn named<'a>(all: &'a [Outcome], name: &str) -> &'a Outcome {
    all.iter().find(|outcome| outcome.name == name).expect("one of this name")
}

const RULES: &str = "rules";
const FIXED: &str = "fixed";

fn summary(all: &[Outcome]) -> String {
    let line = |o: &Outcome| {
        format!(
            "{:<28} {:>7} core-hours, {:>7} task-hours, late {:>6} ppm, {:>5} + {:>5} changes, {:>5} reversals, \
             {:>5} opposed, at most {:>3} tasks\n",
            o.name,
            o.core_hours(),
            o.tasks / 60,
            o.late_ppm(),
            o.count_changes,
            o.limit_changes,
            o.reversals,
            o.opposed,
            o.most_tasks
        )
    };
    all.iter().map(line).collect()
}

#[test]
fn the_promise_is_kept_with_a_third_less() {
    for seed in 1..4 {
        let scenario = scenario(seed);
        let all = compare(&scenario);
        let text = format!("seed {seed}\n{}", summary(&all));
        println!("{text}");
        let (rules, fixed) = (named(&all, RULES), named(&all, FIXED));
        assert!(fixed.keeps(scenario.late_ppm) && rules.keeps(scenario.late_ppm), "{text}");
        assert!(rules.saved_permille(fixed) >= 300, "{text}");
        // The same run again gives the same figures.
        assert_eq!(
            run(&scenario, RULES, &mut sizers::Rules::new(scenario.policy()), fixed.most_tasks),
            *rules
        );
    }
}

#[test]
fn the_two_dimensions_do_not_fight_and_two_controllers_do() {
    let scenario = scenario(7);
    let all = compare(&scenario);
    let text = summary(&all);
    let (rules, separate) = (named(&all, RULES), named(&all, "two controllers"));
    assert_eq!(rules.opposed, 0, "{text}");
    // Smaller limits look like more load: as many tasks as may be, each with next to nothing.
    assert!(separate.most_tasks == scenario.max && separate.tasks > rules.tasks * 2, "{text}");
    let changes = |outcome: &Outcome| outcome.count_changes + outcome.limit_changes;
    assert!(changes(separate) > changes(rules) * 3, "{text}");
    assert!(separate.reversals > rules.reversals * 2, "{text}");
}

#[test]
fn each_part_is_worth_something() {
    let all = compare(&scenario(11));
    let text = summary(&all);
    println!("{text}");
    let rules = named(&all, RULES);
    // Earlier days know the programme.
    assert!(named(&all, "no forecast").late > rules.late, "{text}");
    assert!(named(&all, "no stabilising").reversals > rules.reversals * 2, "{text}");
    // Limits follow where two tasks are too much; they alone cannot follow far.
    assert!(named(&all, "tasks alone").held >= rules.held, "{text}");
    assert!(named(&all, "limits alone").held > rules.held, "{text}");
}

/// Traces that are recorded, where the folder of `CELL_TRACES` has them.
#[test]
fn the_promise_is_kept_on_recorded_days() {
    let Some(folder) = std::env::var_os("CELL_TRACES") else {
        return eprintln!("skipped: CELL_TRACES names no folder of traces");
    };
    let path = std::path::Path::new(&folder).join("nab/elb_request_count_8c0756.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return eprintln!("skipped: {} is not there", path.display());
    };
    // A count for every five minutes, drawn as lines between their middles.
    let counts: Vec<u64> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.rsplit(',').next()?.split('.').next()?.parse().ok())
        .collect();
    assert!(counts.len() > 4000, "{} of {}", counts.len(), path.display());
    let minutes = counts
        .windows(2)
        .flat_map(|pair| (0..5).map(move |at| (pair[0] * (5 - at) + pair[1] * at) * 100 / 5));
    let scenario = Scenario::new(minutes.collect(), Time(1_397_088_000 * 1000 / MINUTE * MINUTE));
    let all = compare(&scenario);
    let text = summary(&all);
    println!("{text}");
    let (rules, fixed) = (named(&all, RULES), named(&all, FIXED));
    assert!(rules.saved_permille(fixed) >= 300, "{text}");
}
