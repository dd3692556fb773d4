//! What an agent costs while its tasks do nothing.

use super::BOOK;
use super::cell::{Cell, Driver, descendants};
use crate::flags::Flags;
use crate::process_usage::Usage;
use crate::section_report::Section;
use cellwright_cell::task::TaskState;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

pub async fn main(flags: Flags) -> io::Result<()> {
    let tasks: usize = flags.number("tasks", 100)?;
    let seconds: u64 = flags.number("seconds", 30)?;
    let mut section = Section::new(
        "Agent at rest",
        &format!(
            "{tasks} tasks that sleep, on one machine, polled every few seconds and looked at \
             every second; over {seconds} s. A shim's memory is its proportional share (PSS): all \
             shims are one program, whose code is in memory once."
        ),
    );
    for driver in Driver::ALL {
        let mut cell = Cell::start("rest").await?;
        let agent = cell.agent("m1", driver, "").await?;
        let spec = json!({
            "name": "rest", "count": tasks, "priority": 150,
            "task": {
                "limits": { "cpu": 10, "ram": driver.min_ram() },
                "command": ["sleep", "100000"], "notice": 0,
            },
        });
        let job = cell.submit(spec).await?;
        cell.wait_for_tasks(&job, tasks, |task| task.state == TaskState::Running).await?;
        let (before, begun) = (Usage::of(agent)?, Instant::now());
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = Usage::of(agent)?;
        let cpu = (after.cpu_seconds - before.cpu_seconds) / begun.elapsed().as_secs_f64();
        let shims: Vec<(u64, u64)> =
            descendants(agent).into_iter().filter(|pid| is_shim(*pid)).filter_map(memory).collect();
        let mean = |part: fn(&(u64, u64)) -> u64| {
            shims.iter().map(part).sum::<u64>() as f64 / shims.len() as f64 / 1024.0
        };
        let name = driver.name();
        section.row(&format!("{name}: agent, of one core"), cpu * 100.0, "%", "≤ 1");
        section.row("... memory", after.rss_bytes as f64 / 1_048_576.0, "MiB", "≤ 60");
        section.row("... shims seen", shims.len() as f64, "", "");
        section.row("... each, memory (PSS)", mean(|m| m.0), "MiB", "≤ 3");
        section.row("... each, memory of its own", mean(|m| m.1), "MiB", "");
        cell.stop_and_wait(&job).await?;
    }
    section.limits("reading the kernel's accounts of every task once a second.");
    section.save(&BOOK, "rest")
}

fn is_shim(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"shim")
}

/// Proportional and private memory, in KiB.
fn memory(pid: u32) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let sum = |keys: &[&str]| -> u64 {
        let lines = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
        lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    Some((sum(&["Pss:"]), sum(&["Private_Clean:", "Private_Dirty:"])))
}
