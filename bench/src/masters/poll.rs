//! Ten thousand machines on the line: how evenly they are polled, what a reader notices of it, and
//! what it costs the master.

use super::cell::{Cell, until};
use super::load::{Connection, get};
use super::workload;
use crate::flags::Flags;
use crate::process_usage::Usage;
use crate::report::percentile;
use crate::section_report::Section;
use std::io;
use std::time::{Duration, Instant};

/// Between two reads.
const READ_EVERY: Duration = Duration::from_millis(10);

pub async fn main(flags: Flags) -> io::Result<()> {
    let agents: u32 = flags.number("agents", 10_000)?;
    let tasks: u32 = flags.number("tasks", 50_000)?;
    let time = Duration::from_secs(flags.number("seconds", 60)?);
    let mut section = Section::new(
        "Machines polled",
        &format!(
            "Three replicas, one scheduler, {agents} virtual machines in one process, polled \
             every 5 s over connections of their own, and a job of {tasks} tasks running on them. \
             Reads come from one client every 10 ms on the leader, in turn: a page of 100 \
             machines, a job, and the same job linearizably. Intervals are those between two \
             polls of one machine from its first one on, the time in which tasks are placed \
             included."
        ),
    );
    let mut cell = Cell::start("poll", 3).await?;
    cell.start_scheduler()?;
    let mut fleet = cell.start_agents(agents)?;
    cell.machines_up(agents).await?;
    let owner = workload::name(workload::OWNER)?;
    let submitted = cell.client().submit_job(Some(&owner), &workload::job("poll", tasks)?).await;
    submitted.map_err(io::Error::other)?;
    until("all tasks run", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let job = cell.client().job(&workload::key("poll").ok()?).await.ok()?.value.item;
        (job.tasks.running == tasks).then_some(())
    })
    .await?;
    let before = usages(&cell)?;
    let begun = Instant::now();
    let reads = read(&cell, time).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let after = usages(&cell)?;
    let summary: serde_json::Value =
        serde_json::from_str(&fleet.request("")?).map_err(io::Error::other)?;
    add_poll_rows(&mut section, &summary);
    for (what, mut millis) in reads {
        millis.sort_by(f64::total_cmp);
        section.row(&format!("{what}, p50"), percentile(&millis, 0.5), "ms", "");
        section.row("... p99", percentile(&millis, 0.99), "ms", "< 100");
    }
    add_cost_rows(&mut section, &cell, seconds, &before, &after).await?;
    section.limits(
        "the 10,000 machines themselves use the same two cores; with room to spare the master \
         would answer sooner, not use less.",
    );
    section.save(&super::BOOK, "poll")
}

/// `summary` is what [`cellwright_sim::simulated_agents::PollSummary`] says of itself.
fn add_poll_rows(section: &mut Section, summary: &serde_json::Value) {
    let number = |key: &str| summary[key].as_f64().unwrap_or(f64::NAN);
    section.row("machines answered", number("connected"), "", "");
    section.row("interval between polls, p50", number("interval_p50") / 1e3, "s", "");
    section.row("... p95", number("interval_p95") / 1e3, "s", "< 6");
    section.row("... longest", number("interval_max") / 1e3, "s", "");
    section.row("polls that failed", number("failures"), "", "");
}

fn usages(cell: &Cell) -> io::Result<Vec<Usage>> {
    cell.pids().into_iter().map(Usage::of).collect()
}

async fn add_cost_rows(
    section: &mut Section,
    cell: &Cell,
    seconds: f64,
    before: &[Usage],
    after: &[Usage],
) -> io::Result<()> {
    let (leader, _) = cell.leader().await?;
    let mut sum = 0.0;
    for (at, (before, after)) in before.iter().zip(after).enumerate() {
        let cores = (after.cpu_seconds - before.cpu_seconds) / seconds;
        sum += cores;
        let role = if at == leader { "leader" } else { "follower" };
        section.row(&format!("processor, {role}"), cores, "cores", "≤ 1");
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        section.row(&format!("resident memory, {role}"), mib(after.rss_bytes), "MiB", "≤ 2,048");
        section.row("... at most", mib(after.peak_bytes), "MiB", "");
    }
    section.row("processor, all replicas", sum, "cores", "");
    Ok(())
}

/// What is read, each with its milliseconds.
type Reads = Vec<(&'static str, Vec<f64>)>;

async fn read(cell: &Cell, time: Duration) -> io::Result<Reads> {
    let (leader, _) = cell.leader().await?;
    let mut connection = Connection::open(cell.member(leader)).await?;
    let job = format!("/v1/jobs/{}/poll", workload::OWNER);
    let questions = [
        ("a page of 100 machines", "/v1/machines?limit=100".to_owned()),
        ("a job", job.clone()),
        ("a job, linearizably", format!("{job}?consistent=true")),
    ];
    let mut reads: Reads = questions.iter().map(|(what, _)| (*what, Vec::new())).collect();
    let mut ticks = tokio::time::interval(READ_EVERY);
    let begun = Instant::now();
    for turn in (0..questions.len()).cycle() {
        if begun.elapsed() > time {
            break;
        }
        let mut request = Vec::new();
        get(&mut request, &questions[turn].1);
        let due = ticks.tick().await;
        let answer = connection.exchange(&request).await?;
        if answer.status != 200 {
            let body = String::from_utf8_lossy(answer.body).into_owned();
            return Err(io::Error::other(format!("{}: {body}", answer.status)));
        }
        // From when it was due: a read that waited for the one before it was slow too.
        reads[turn].1.push(due.elapsed().as_secs_f64() * 1e3);
    }
    Ok(reads)
}
