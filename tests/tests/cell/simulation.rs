//! Runs `cell sim` as a process: its output, its exit codes, and its errors for wrong command
//! lines.

use crate::support::{cell, repo, text};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

const EXAMPLE: [&str; 2] = ["--trace", "example:examples/small-cell"];

fn run_on_example(verb: &str, more: &[&str]) -> Output {
    let mut args = vec!["sim", verb];
    args.extend(EXAMPLE);
    args.extend(more);
    cell(&args)
}

/// The standard output of a successful run as JSON.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("output is JSON")
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {value}"))
}

/// Every wrong command line prints what is wrong and exits with the right code.
fn check_rejected(args: &[&str], code: i32, expected: &[&str]) {
    let output = cell(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for part in expected {
        assert!(error.contains(part), "{args:?}: no {part:?} in\n{error}");
    }
}

#[test]
fn help_and_version_are_there_for_strangers() {
    let version = cell(&["--version"]);
    assert_eq!(text(&version.stdout), format!("cell {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text(&cell(&["--help"]).stdout).contains("cell sim pack --trace "));
    let help = text(&cell(&["sim", "--help"]).stdout);
    assert!(help.contains("cell sim compact --trace "), "{help}");
    for verb in ["pack", "compact", "fits", "whatif"] {
        assert!(help.contains(verb), "{help}");
        let of_verb = cell(&["sim", verb, "--help"]);
        assert!(of_verb.status.success());
        assert!(text(&of_verb.stdout).contains(&format!("cell sim {verb} --trace ")), "{verb}");
    }
}

#[test]
fn the_example_is_packed_and_the_rest_explained() {
    let output = run_on_example("pack", &[]);
    let displayed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "40 machines",
        "60 jobs, 630 tasks",
        "625 placed, 5 pending, 0 preempted",
        "ci/riscv-port/0 and 3 like it",
        "arch = riscv64",
        "research/genome-assembly/0",
        "768 GiB",
    ] {
        assert!(displayed.contains(part), "no {part:?} in\n{displayed}");
    }
    assert!(displayed.lines().all(|line| line.chars().count() <= 80), "{displayed}");
    assert!(!displayed.contains('\u{1b}'), "no colours into a pipe");
}

#[test]
fn json_has_the_fields_that_programs_need() {
    let result = json(&run_on_example("pack", &["-o", "json", "--seed", "7"]));
    let counts = ["machines", "tasks", "placed", "pending", "preempted", "seed"];
    assert_eq!(counts.map(|field| number(&result, field)), [40.0, 630.0, 625.0, 5.0, 0.0, 7.0]);
    for field in ["load_seconds", "solve_seconds", "cpu_seconds", "peak_rss_bytes"] {
        assert!(number(&result, field) > 0.0, "{field}");
    }
    assert_eq!(result["placement_hash"].as_str().map(str::len), Some(16));
    assert_eq!(result["trace"]["rows_unusable"], 0);
    let classes = result["pending_reasons"]["classes"].as_array().expect("a list");
    assert_eq!(classes.len(), 2);
    for class in classes {
        let reasons = class["reasons"].as_array().expect("a list");
        let sum: f64 = reasons.iter().map(|reason| number(reason, "machines")).sum();
        assert_eq!(sum, 40.0, "{class}");
        assert!(class["counterfactual"].is_object(), "{class}");
    }
}

#[test]
fn placements_depend_on_the_seed_and_not_on_threads_or_techniques() {
    let hash = |more: &[&str]| {
        let mut args = vec!["-o", "json"];
        args.extend(more);
        json(&run_on_example("pack", &args))["placement_hash"].clone()
    };
    let first = hash(&["--seed", "1"]);
    assert_eq!(first, hash(&["--seed", "1"]));
    assert_eq!(first, hash(&["--seed", "1", "--threads", "4"]));
    // All machines of a cell this small are examined, so the plain reference search makes the same
    // choices.
    let plain = ["--seed", "1", "--no-score-cache", "--no-classes", "--no-randomization"];
    assert_eq!(first, hash(&plain));
    let others: Vec<Value> = ["2", "3", "4"].iter().map(|seed| hash(&["--seed", seed])).collect();
    assert!(others.iter().any(|other| *other != first));
    assert_ne!(first, hash(&["--seed", "1", "--score", "worst-fit"]));
}

#[test]
fn without_reclamation_less_fits() {
    let fitting = |more: &[&str]| {
        let mut args = vec!["-o", "json", "--job", "cpu=500m,ram=1GiB,priority=100"];
        args.extend(more);
        number(&json(&run_on_example("fits", &args)), "count")
    };
    let (limits, reservations) = (fitting(&["--at", "limits"]), fitting(&[]));
    assert!(limits < reservations, "{limits} at limits, {reservations} at reservations");
}

#[test]
fn compaction_of_the_example_is_bounded_and_drawn() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trials.svg");
    let path = svg.to_str().expect("a path in UTF-8");
    let args = ["--trials", "3", "--score", "all", "--svg", path, "-o", "json"];
    let result = json(&run_on_example("compact", &args));
    let scores = result["scores"].as_array().expect("a list");
    let names: Vec<&str> =
        scores.iter().filter_map(|score| score["techniques"]["score"].as_str()).collect();
    assert_eq!(names, ["hybrid", "best-fit", "worst-fit"]);
    for score in scores {
        let [bound, least, p90, most] = [
            "lower_bound_fraction",
            "machines_fraction_min",
            "machines_fraction_p90",
            "machines_fraction_max",
        ]
        .map(|field| number(score, field));
        assert!(0.0 < bound && bound <= least && least <= p90 && p90 <= most, "{score}");
        for trial in score["trials"].as_array().expect("a list") {
            assert!(number(trial, "pending") <= number(score, "may_pend"), "{trial}");
        }
    }
    let drawn = std::fs::read_to_string(&svg).expect("the chart was written");
    assert!(drawn.starts_with("<svg ") && drawn.contains("lower bound"));
    let threads = [&args[..], &["--threads", "2"]].concat();
    let again = json(&run_on_example("compact", &threads));
    let hashes = |result: &Value| -> Vec<Value> {
        let scores = result["scores"].as_array().expect("a list").clone();
        let trials =
            scores.iter().flat_map(|s| s["trials"].as_array().cloned().unwrap_or_default());
        trials.map(|trial| trial["placement_hash"].clone()).collect()
    };
    assert_eq!(hashes(&result), hashes(&again));
}

#[test]
fn questions_are_answered_with_reasons() {
    let fits = json(&run_on_example("fits", &["--job", "cpu=2,ram=8GiB", "-o", "json"]));
    assert!(number(&fits, "count") > 0.0);
    assert_eq!(fits["stopped_by"]["machines_total"], 40);
    let small = ["--job", "cpu=100m,ram=64MiB,priority=100,count=3"];
    let added = run_on_example("whatif", &small);
    assert_eq!(added.status.code(), Some(0));
    assert!(text(&added.stdout).contains("3 of 3 tasks placed"));
    let large = run_on_example("whatif", &["--job", "cpu=1,ram=2TiB"]);
    assert_eq!(large.status.code(), Some(3), "{}", text(&large.stderr));
    assert!(text(&large.stdout).contains("the largest has"), "{}", text(&large.stdout));
}

#[test]
fn a_prod_job_evicts_and_says_whom_and_where_they_go() {
    let job = ["--job", "cpu=8,ram=32GiB,count=30,priority=250"];
    let result = json(&run_on_example("whatif", &[&job[..], &["-o", "json"]].concat()));
    let victims = result["victims"].as_array().expect("a list");
    assert!(!victims.is_empty());
    assert!(victims.iter().all(|victim| number(victim, "priority") < 200.0), "{result}");
    let by_job = result["by_job"].as_array().expect("a list");
    let sum = |field: &str| by_job.iter().map(|job| number(job, field)).sum::<f64>();
    let in_turn = result["evicted_in_turn"].as_array().expect("a list");
    let everybody = || victims.iter().chain(in_turn);
    assert_eq!(sum("evicted"), everybody().count() as f64);
    let waiting = everybody().filter(|victim| victim["moves_to"].is_null()).count();
    assert_eq!((sum("pending"), sum("placed_again")), {
        (waiting as f64, (everybody().count() - waiting) as f64)
    });
    let displayed = text(&run_on_example("whatif", &job).stdout);
    for part in ["placed again", "left pending", "from", "to"] {
        assert!(displayed.contains(part), "no {part:?} in\n{displayed}");
    }
    assert!(displayed.lines().all(|line| line.chars().count() <= 80), "{displayed}");
}

#[test]
fn one_task_is_explained_by_name() {
    let explain = |task: &str| run_on_example("pack", &["--explain", task]);
    let pending = text(&explain("research/genome-assembly/0").stdout);
    assert!(pending.contains("needs 24 cores cpu and 768 GiB ram"), "{pending}");
    assert!(!pending.contains("ci/riscv-port/0"), "{pending}");
    let result = json(&run_on_example("pack", &["--explain", "ci/riscv-port/2", "-o", "json"]));
    let task = &result["explained_task"];
    assert_eq!((&task["task"], &task["state"]), (&"ci/riscv-port/2".into(), &"pending".into()));
    assert_eq!(task["explanation"]["machines_total"], 40);
    let all = json(&run_on_example("pack", &["-o", "json"]));
    assert!(all["explained_task"].is_null());
    let args = |task| ["sim", "pack", EXAMPLE[0], EXAMPLE[1], "--explain", task];
    check_rejected(&args("ci/riscv-port/4"), 2, &["no task ci/riscv-port/4", "from 0 to 3"]);
    check_rejected(&args("ci/nope/0"), 2, &["no task ci/nope/0", "ci/riscv-port", "next:"]);
    check_rejected(&args("nobody/nope/0"), 2, &["a user of this cell: ", "research"]);
    check_rejected(&args("riscv-port"), 2, &["USER/JOB/INDEX"]);
}

#[test]
fn a_placed_task_is_shown_with_its_machine() {
    let jobs = std::fs::read_to_string(repo().join("examples/small-cell/jobs.csv"));
    let jobs = jobs.expect("the example has jobs");
    let row = jobs.lines().find(|line| line.contains(",batch,")).expect("a batch job");
    let mut columns = row.split(',');
    let (job, user) = (columns.next().unwrap_or(""), columns.next().unwrap_or(""));
    let name = format!("{user}/{job}/0");
    let result = json(&run_on_example("pack", &["--explain", &name, "-o", "json"]));
    let task = &result["explained_task"];
    assert_eq!(task["state"], "placed", "{task}");
    let machine = task["machine"].as_str().expect("a machine");
    let displayed = text(&run_on_example("pack", &["--explain", &name]).stdout);
    assert!(displayed.contains(&format!("placed on {machine}.")), "{displayed}");
}

/// Compaction looks at all machines by default, packing samples by default.
#[test]
fn the_later_flag_decides_about_sampling() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sampling.svg");
    let svg = svg.to_str().expect("a path in UTF-8");
    let sample = |verb: &str, flags: &[&str]| {
        let compact = ["--trials", "1", "--svg", svg];
        let more: &[&str] = if verb == "compact" { &compact } else { &[] };
        let result = json(&run_on_example(verb, &[&["-o", "json"], more, flags].concat()));
        result["techniques"]["randomization"].as_u64()
    };
    assert_eq!((sample("compact", &[]), sample("pack", &[])), (None, Some(256)));
    assert_eq!(sample("compact", &["--randomization"]), Some(256));
    assert_eq!(sample("pack", &["--no-randomization"]), None);
    assert_eq!(sample("pack", &["--no-randomization", "--randomization"]), Some(256));
    assert_eq!(sample("compact", &["--randomization", "--no-randomization"]), None);
}

#[test]
fn errors_name_the_cause_and_the_next_step() {
    let pack = ["sim", "pack", "--trace"];
    let with = |trace: &'static str, more: &[&'static str]| [&pack[..], &[trace], more].concat();
    check_rejected(
        &with("example:no-such", &[]),
        1,
        &["cannot open no-such", "next: check the path"],
    );
    check_rejected(&with("borg:x", &[]), 2, &["trace kind \"borg\"", "google2011:DIR"]);
    let small = "example:examples/small-cell";
    let check = |more: &[&'static str], expected: &[&str]| {
        check_rejected(&with(small, more), 2, expected);
    };
    check(&["--usage-cpu", "1.5"], &["1.5", "0 to 1"]);
    check(&["--at", "limits", "--usage-cpu", "0.5"], &["--usage-cpu has no effect", "next:"]);
    check(&["--copies", "0"], &["0", "1..=64"]);
    check(&["--at-time", "700"], &["--at-time does not apply", "google2011"]);
    check(&["--load", "1.3"], &["--load does not apply", "openb:DIR"]);
    check(&["--pods", "default"], &["--pods does not apply", "openb:DIR"]);
    check(&["--score", "best"], &["best-fit"]);
    check(&["--frobnicate"], &["--frobnicate"]);
    let job = |job: &'static str, expected: &[&str]| {
        check_rejected(&["sim", "fits", EXAMPLE[0], EXAMPLE[1], "--job", job], 2, expected);
    };
    job("mem=1GiB", &["job field mem is unknown", "next:"]);
    job("cpu=0", &["job field cpu: value \"0\"", "more than 0", "next:"]);
    job("count=2", &["the job asks for nothing", "cpu, ram"]);
    job("cpu=1,constraints=arch", &["job field constraints", "ATTRIBUTE"]);
    job("no-such-file.json", &["cannot read the job file", "next:"]);
}
