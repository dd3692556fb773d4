//! Leaders that die: how long until the next write is acknowledged, whether anything acknowledged
//! was lost, how long until scheduling goes on, and whether leaders stay when nothing is wrong.

use super::cell::{Cell, until};
use super::load::{Length, Load, Request, post};
use super::workload;
use crate::flags::Flags;
use crate::report::percentile;
use crate::section_report::Section;
use cellwright_api::client::{Client, JobFilter, PageRequest};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writes before each kill, so that the leader dies at work.
const WRITES: u32 = 20;
/// Rows of a page when everything is read back.
const PAGE: u32 = 1000;

pub async fn main(flags: Flags) -> io::Result<()> {
    let kills: u32 = flags.number("kills", 100)?;
    let mut section = Section::new(
        "Leader killed",
        "Three replicas, one client of the product that writes one job after the other and asks \
         again every 5 ms while it gets no answer. The leader is killed with SIGKILL between two \
         writes; timed from the kill to the acknowledgement of the next write. Then the dead \
         replica is started again and has to catch up before the next kill. At the end every \
         acknowledged job is looked for in a linearizable read.",
    );
    let mut cell = Cell::start("failover", 3).await?;
    let mut acknowledged = BTreeSet::new();
    let mut gaps = Vec::new();
    for kill in 0..kills {
        for number in 0..WRITES {
            write(&cell, format!("kill-{kill}-{number}"), &mut acknowledged).await?;
        }
        let (leader, _) = cell.leader().await?;
        let begun = Instant::now();
        cell.kill_replica(leader)?;
        write(&cell, format!("kill-{kill}-after"), &mut acknowledged).await?;
        gaps.push(begun.elapsed().as_secs_f64());
        cell.start_replica(leader)?;
        cell.replica_ready(leader).await?;
        cell.caught_up(leader).await?;
    }
    gaps.sort_by(f64::total_cmp);
    let work = format!("{kills} kills, next acknowledged write, p50");
    section.row(&work, percentile(&gaps, 0.5), "s", "");
    section.row("... p99", percentile(&gaps, 0.99), "s", "≤ 0.7");
    section.row("... longest", percentile(&gaps, 1.0), "s", "");
    let present = jobs(cell.client()).await?;
    let lost = acknowledged.difference(&present).count();
    section.row("acknowledged writes", acknowledged.len() as f64, "jobs", "");
    section.row("... lost", lost as f64, "jobs", "0");
    section.limits(
        "the lease of the dead leader, 400 ms from its last sign of life, and the drawn 75 to 225 \
         ms after it; the lease cannot be much shorter without elections that nothing but a busy \
         machine asks for.",
    );
    section.save(&super::BOOK, "failover")
}

async fn write(cell: &Cell, name: String, acknowledged: &mut BTreeSet<String>) -> io::Result<()> {
    let spec = workload::job(&name, 1)?;
    let owner = workload::name(workload::OWNER)?;
    cell.client().submit_job(Some(&owner), &spec).await.map_err(io::Error::other)?;
    acknowledged.insert(name);
    Ok(())
}

/// Names of all jobs, read linearizably.
async fn jobs(client: &Client) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut after = None;
    loop {
        let page = PageRequest { limit: Some(PAGE), after, consistent: true };
        let answer = client.jobs(&JobFilter::default(), &page).await.map_err(io::Error::other)?;
        names.extend(answer.value.items.into_iter().map(|job| job.name.to_string()));
        after = answer.value.next;
        if after.is_none() {
            return Ok(names);
        }
    }
}

/// Clients that keep the cell busy during the soak.
const SOAKERS: usize = 64;

/// Nothing fails; the term must stay.
pub async fn soak(flags: Flags) -> io::Result<()> {
    let seconds: u64 = flags.number("seconds", 600)?;
    let mut section = Section::new(
        "Elections nobody asked for",
        "Three replicas and 64 clients that resize jobs as fast as they are answered, so that the \
         log grows and the state does not. Nothing is killed; an election would show as a new \
         term.",
    );
    let cell = Cell::start("soak", 3).await?;
    for client in 0..SOAKERS {
        write(&cell, format!("soak-{client}"), &mut BTreeSet::new()).await?;
    }
    let (leader, before) = cell.leader().await?;
    let address = cell.member(leader).to_owned();
    let length = Length::For(Duration::from_secs(seconds));
    let done = Load { address, clients: SOAKERS, length, request: resize() }.run().await?;
    let (_, after) = cell.leader().await?;
    section.row("minutes under load", done.seconds / 60.0, "min", "10");
    section.row("elections", (after.term - before.term) as f64, "", "0");
    section.row("writes", done.rate(), "/s", "");
    section.row("... p50", done.latency(0.5), "ms", "");
    section.row("... p99", done.latency(0.99), "ms", "");
    section.row("... longest", done.latency(1.0), "ms", "");
    section.row("requests refused", done.rejected as f64, "", "");
    section.limits(
        "a leader that gets no processor time for 475 ms, as seen by a majority, is replaced.",
    );
    section.save(&super::BOOK, "soak")
}

/// Each client resizes a job of its own, to one task and to two in turn.
fn resize() -> Request {
    Arc::new(|client, round, out| {
        let path = format!("/v1/jobs/{}/soak-{client}/resize", workload::OWNER);
        let body = format!("{{\"count\":{}}}", round % 2 + 1);
        let key = format!("idempotency-key: {:016x}-{round}\r\n", client + 1);
        post(out, &path, &key, &body);
    })
}

/// The same with machines on the line: when does scheduling go on?
pub async fn resume(flags: Flags) -> io::Result<()> {
    let machines = flags.number("machines", 10_000)?;
    let kills: u32 = flags.number("kills", 30)?;
    let mut section = Section::new(
        "Leader killed, scheduling again",
        &format!(
            "Three replicas, one scheduler, {machines} virtual machines that poll every 5 s. The \
             leader is killed with SIGKILL; a job of one task is submitted at once; timed from the \
             kill until a read shows the task with a machine."
        ),
    );
    let mut cell = Cell::start("resume", 3).await?;
    cell.start_scheduler()?;
    let _agents = cell.start_agents(machines)?;
    cell.machines_up(machines).await?;
    let mut gaps = Vec::new();
    for kill in 0..kills {
        let (leader, _) = cell.leader().await?;
        let begun = Instant::now();
        cell.kill_replica(leader)?;
        let name = format!("resume-{kill}");
        write(&cell, name.clone(), &mut BTreeSet::new()).await?;
        placed(&cell, &name).await?;
        gaps.push(begun.elapsed().as_secs_f64());
        eprintln!("kill {}: {:.3} s", kill + 1, begun.elapsed().as_secs_f64());
        cell.start_replica(leader)?;
        cell.replica_ready(leader).await?;
        cell.caught_up(leader).await?;
    }
    gaps.sort_by(f64::total_cmp);
    let work = format!("{kills} kills, task submitted after it placed, p50");
    section.row(&work, percentile(&gaps, 0.5), "s", "≤ 2");
    section.row("... longest", percentile(&gaps, 1.0), "s", "≤ 2");
    let lost = cell.client().cluster_status().await.map_err(io::Error::other)?.value.failed.len();
    section.row("machines declared down by mistake", lost as f64, "", "0");
    section.limits(
        "the election, then the scheduler's retries; meanwhile a third of the machines look for \
         another replica on the same two cores.",
    );
    section.save(&super::BOOK, "resume")
}

/// Waits until the first task of a job has a machine.
async fn placed(cell: &Cell, job: &str) -> io::Result<()> {
    let key = workload::key(job)?;
    until(&format!("{job} placed"), async || {
        let job = cell.client().job(&key).await.ok()?.value.item;
        (job.tasks.assigned + job.tasks.running > 0).then_some(())
    })
    .await
}
