//! Runs `cell sim` on the public traces and checks counts, not times. Skipped with a message where
//! the traces are not on this machine.

use crate::support::{cell, repo, text};
use serde_json::Value;
use std::path::PathBuf;

/// The folder of one trace, if it exists.
fn trace(kind: &str) -> Option<PathBuf> {
    let folder =
        std::env::var_os("CELL_TRACES").map_or_else(|| "../shared/traces".into(), PathBuf::from);
    let folder = repo().join(folder).join(kind);
    if !folder.is_dir() {
        eprintln!("skipped: no {} (set CELL_TRACES)", folder.display());
        return None;
    }
    Some(folder)
}

fn json(verb: &str, trace: &str, more: &[&str]) -> Value {
    let output = cell(&[&["sim", verb, "--trace", trace, "-o", "json"], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("output is JSON")
}

#[test]
fn the_2011_cell_is_packed_whole_and_twice_the_same() {
    let Some(folder) = trace("google2011") else { return };
    let source = format!("google2011:{}", folder.display());
    let result = json("pack", &source, &["--seed", "5"]);
    assert_eq!((&result["machines"], &result["tasks"]), (&12_477.into(), &144_339.into()));
    let counted = result["placed"].as_u64().zip(result["pending"].as_u64());
    assert_eq!(counted.map(|(placed, pending)| placed + pending), Some(144_339));
    assert_eq!(result["trace"]["rows_unusable"], 0);
    assert!(result["notes"].to_string().contains("--usage-cpu"));
    let again = json("pack", &source, &["--seed", "5", "--threads", "2"]);
    assert_eq!(result["placement_hash"], again["placement_hash"]);
}

#[test]
fn prod_of_the_2011_cell_fits_at_limits() {
    let Some(folder) = trace("google2011") else { return };
    let source = format!("google2011:{}", folder.display());
    let result = json("pack", &source, &["--prod-only", "--at", "limits"]);
    assert_eq!((&result["tasks"], &result["pending"]), (&56_054.into(), &0.into()));
    let cpu = &result["utilisation"][0];
    let percent = |of: &str| cpu[of].as_f64().unwrap_or_default();
    // Production of the batch class is packed by reservations alone.
    let (by_limits, all) = (percent("prod_limits_percent"), percent("reserved_percent"));
    assert!(0.0 < by_limits && by_limits <= all, "{cpu}");
}

#[test]
fn values_the_trace_does_not_have_are_answered_with_those_it_has() {
    let check = |kind: &str, more: &[&str], expected: &[&str]| {
        let Some(folder) = trace(kind) else { return };
        let source = format!("{kind}:{}", folder.display());
        let output = cell(&[&["sim", "pack", "--trace", &source], more].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        for part in expected {
            assert!(error.contains(part), "no {part:?} in\n{error}");
        }
    };
    check("openb", &["--pods", "nope"], &["no pod list \"nope\"", "gpushare40", "--pods all"]);
    let expected = ["999999 s after the start", "0 to 5611", "--at-time 5611"];
    check("google2011", &["--at-time", "999999"], &expected);
}

#[test]
fn gpu_pods_arrive_beside_the_published_figures() {
    let Some(folder) = trace("openb") else { return };
    let source = format!("openb:{}", folder.display());
    let args = ["--pods", "default", "--load", "1.3", "--seeds", "2"];
    let result = json("pack", &source, &args);
    assert_eq!(result["published"]["fgd"], 95.391);
    let runs = result["gpu_allocated_percent"].as_array().expect("a list");
    let values: Vec<f64> = runs.iter().filter_map(Value::as_f64).collect();
    assert!(values.len() == 2 && values.iter().all(|v| (50.0..=100.0).contains(v)), "{values:?}");
    let mean = result["gpu_allocated_percent_mean"].as_f64().expect("a mean");
    assert!((mean - (values[0] + values[1]) / 2.0).abs() < 1e-9);
    let arrived = result["runs"][0]["gpu_arrived_percent"].as_f64().expect("a number");
    assert!((129.0..=130.0).contains(&arrived));
    let again = json("pack", &source, &[&args[..], &["--threads", "2"]].concat());
    assert_eq!(result["gpu_allocated_percent"], again["gpu_allocated_percent"]);
}
