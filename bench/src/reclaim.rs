//! What the estimator logs: entries per task-hour on the kinds of usage that tasks have, and how
//! much of the limit is reclaimed.

use crate::report::Report;
use cellwright_cell::reclaim::{Estimate, ReclaimConfig, Sample};
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;

const LIMIT: u64 = 16_000;
const HOURS: u64 = 72;
const STEP_S: u64 = 5;
const TASKS: u64 = 200;

/// A small mixer: equal everywhere, no state to carry along.
fn noise(task: u64, step: u64, span: u64) -> u64 {
    let mut x = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 31;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 29)) % span.max(1)
}

fn usage(shape: &str, task: u64, s: u64) -> u64 {
    let jitter = noise(task, s / STEP_S, 800);
    match shape {
        "steady" => 5_000 + jitter,
        "diurnal" => {
            let phase = (s + task * 431) % 86_400;
            2_000 + phase.min(86_400 - phase) * 9_000 / 43_200 + jitter
        }
        "sawtooth" => 2_000 + (s % 1_800) * 4 + jitter,
        // One sample in about 700 triples.
        _ => 4_000 + jitter + if noise(task, s, 700) == 0 { 8_000 } else { 0 },
    }
}

struct Outcome {
    entries: u64,
    reserved: u128,
    used: u128,
    samples: u64,
    surprises: u64,
}

fn run(settings: &ReclaimConfig, shape: &str) -> Outcome {
    let mut out = Outcome { entries: 0, reserved: 0, used: 0, samples: 0, surprises: 0 };
    for task in 0..TASKS {
        let mut estimate = Estimate::new(Resources::new(LIMIT, 0, 0, 0), Time::ZERO);
        for s in (STEP_S..=HOURS * 3600).step_by(STEP_S as usize) {
            let used = usage(shape, task, s);
            out.surprises += u64::from(used > estimate.logged().cpu);
            let sample = Sample { at: Time(s * 1000), usage: Resources::new(used, 0, 0, 0) };
            out.entries += u64::from(estimate.sample(settings, sample).is_some());
            out.reserved += u128::from(estimate.logged().cpu);
            out.used += u128::from(used);
            out.samples += 1;
        }
    }
    out
}

pub fn main() -> std::io::Result<()> {
    let mut report = Report::new(
        "reclaim",
        "The reclamation estimator on synthetic CPU usage of 200 tasks over 72 hours, a sample \
         every 5 s. Entries are what reaches the replicated log; a surprise is a sample above the \
         reservation in force.",
        0,
    );
    let named = [
        ("baseline", ReclaimConfig::BASELINE),
        ("medium", ReclaimConfig::MEDIUM),
        ("aggressive", ReclaimConfig::AGGRESSIVE),
    ];
    for shape in ["steady", "diurnal", "sawtooth", "spiky"] {
        for (name, settings) in &named {
            let out = run(settings, shape);
            let task_hours = (TASKS * HOURS) as f64;
            let label = format!("{shape}, {name}");
            let per_hour = out.entries as f64 / task_hours;
            report.row(&format!("{label}: entries"), per_hour, "per task-hour", "");
            let limit = f64::from(LIMIT as u32) * out.samples as f64;
            let reclaimed = 100.0 * (1.0 - out.reserved as f64 / limit);
            report.row(&format!("{label}: reclaimed"), reclaimed, "% of limit", "");
            let idle = 100.0 * (1.0 - out.used as f64 / limit);
            report.row(&format!("{label}: not used"), idle, "% of limit", "");
            let surprises = 1e6 * out.surprises as f64 / out.samples as f64;
            report.row(&format!("{label}: surprises"), surprises, "per million samples", "");
        }
    }
    report.save()
}
