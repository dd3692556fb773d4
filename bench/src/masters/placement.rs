//! From a submitted job to its last placement in the log: through the API, raft, the scheduler's
//! process and raft again.

use super::cell::Cell;
use super::load::{Length, Load};
use super::{workload, write};
use crate::flags::Flags;
use crate::section_report::Section;
use cellwright_api::client::Client;
use cellwright_api::types::{BatchItem, SubmitJob};
use cellwright_cell::command::Command;
use cellwright_cell::encode::load_entry;
use cellwright_cell::id::TaskId;
use cellwright_cell::time::Span;
use cellwright_messages::LogAnswer;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// How long all placements of one experiment may take.
const TIMEOUT: Duration = Duration::from_secs(300);
const JOBS: u32 = 10_000;
/// Jobs in one request of the batch route.
const BATCH: u32 = 1000;
/// Clients that submit single jobs.
const CLIENTS: usize = 200;

pub async fn main(flags: Flags) -> io::Result<()> {
    let machines = flags.number("machines", 5000)?;
    let mut section = Section::new(
        "Submit to durable placement",
        &format!(
            "Three replicas, one scheduler and {machines} virtual machines that poll every 5 s \
             and start what they are told to, each a process. Timed from the first request until \
             the last task's placement is flushed on a majority and applied, seen by following \
             the log of a replica; then the cell is asked whether every task really has a \
             machine. One after the other in one cell, so that the later ones meet a cell with \
             work in it."
        ),
    );
    let mut cell = Cell::start("place", 3).await?;
    cell.start_scheduler()?;
    let begun = Instant::now();
    let _agents = cell.start_agents(machines)?;
    cell.machines_up(machines).await?;
    let seconds = begun.elapsed().as_secs_f64();
    section.row(&format!("{machines} new machines until all are up"), seconds, "s", "");
    one_job(&cell, &mut section, "warm", 1000).await?;
    one_job(&cell, &mut section, "small", 10_000).await?;
    one_job(&cell, &mut section, "large", 100_000).await?;
    many_jobs(&cell, &mut section, true).await?;
    many_jobs(&cell, &mut section, false).await?;
    section.limits(
        "two cores for three replicas that each apply everything, the scheduler's copy that \
         applies it once more, and 5,000 machines that fetch their orders and report starts while \
         the rest is still being placed.",
    );
    section.save(&super::BOOK, "place")
}

async fn one_job(cell: &Cell, section: &mut Section, name: &str, tasks: u32) -> io::Result<()> {
    let client = cell.client();
    let follower = LogFollower::at_log_end(cell).await?;
    let spec = workload::job(name, tasks)?;
    let begun = Instant::now();
    let submitted = client.submit_job(Some(&workload::name(workload::OWNER)?), &spec).await;
    submitted.map_err(io::Error::other)?;
    follower.wait_for_placements(client, tasks as usize).await?;
    let seconds = begun.elapsed().as_secs_f64();
    all_placed(cell).await?;
    if name != "warm" {
        let work = format!("{tasks} tasks as one job");
        section.row(&work, seconds, "s", "");
        section.row("...", f64::from(tasks) / seconds, "tasks/s", "≥ 11,000");
    }
    Ok(())
}

async fn many_jobs(cell: &Cell, section: &mut Section, batched: bool) -> io::Result<()> {
    let client = cell.client();
    let follower = LogFollower::at_log_end(cell).await?;
    let (leader, _) = cell.leader().await?;
    let begun = Instant::now();
    let submitting = async {
        if batched {
            return submit_batches(client).await;
        }
        let address = cell.member(leader).to_owned();
        let (length, request) = (Length::Requests(u64::from(JOBS)), write::one_job("single"));
        Load { address, clients: CLIENTS, length, request }.run().await?.all_done()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let (submitted, placed) =
        tokio::join!(submitting, follower.wait_for_placements(client, JOBS as usize));
    let (submitted, ()) = (submitted?, placed?);
    let seconds = begun.elapsed().as_secs_f64();
    all_placed(cell).await?;
    let how = if batched { "1,000 a request" } else { "one a request, 200 clients" };
    section.row(&format!("{JOBS} tasks as {JOBS} jobs, {how}"), seconds, "s", "");
    section.row("... all submitted after", submitted, "s", "");
    section.row("...", f64::from(JOBS) / seconds, "jobs/s", "≥ 3,000");
    Ok(())
}

/// Returns how long it took.
async fn submit_batches(client: &Client) -> io::Result<f64> {
    let begun = Instant::now();
    for first in (0..JOBS).step_by(BATCH as usize) {
        let item = |number: u32| {
            let spec = workload::job(&format!("batched-{number}"), 1)?;
            Ok(BatchItem::SubmitJob(SubmitJob {
                owner: Some(workload::name(workload::OWNER)?),
                spec,
            }))
        };
        let items = (first..first + BATCH).map(item).collect::<io::Result<Vec<_>>>()?;
        workload::batch(client, items).await?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Reads the log for placements. It does not apply it: that would be one more replica on the same
/// cores. Whether what it counts was accepted is asked once at the end.
struct LogFollower {
    after: u64,
}

impl LogFollower {
    /// From where the log ends now.
    async fn at_log_end(cell: &Cell) -> io::Result<LogFollower> {
        Ok(LogFollower { after: cell.leader().await?.1.applied })
    }

    /// Done when so many different tasks were given a machine.
    async fn wait_for_placements(mut self, client: &Client, tasks: usize) -> io::Result<()> {
        let begun = Instant::now();
        let mut seen = BTreeSet::new();
        while seen.len() < tasks {
            if begun.elapsed() > TIMEOUT {
                let message = format!("{} of {tasks} tasks placed in time", seen.len());
                return Err(io::Error::other(message));
            }
            let news = client.log_after(self.after, Span::seconds(1)).await;
            let LogAnswer::Records(records) = news.map_err(io::Error::other)? else {
                return Err(io::Error::other("the log was cut while it was being followed"));
            };
            for record in records {
                self.after = record.index;
                let entry = load_entry(&record.entry).map_err(io::Error::other)?;
                let commands = entry.requests.into_iter().map(|request| request.command);
                commands.for_each(|command| placements(&command, &mut seen));
            }
        }
        Ok(())
    }
}

fn placements(command: &Command, seen: &mut BTreeSet<TaskId>) {
    let Command::CommitPlan(plan) = command else { return };
    let assignments = plan.groups.iter().flat_map(|group| &group.assignments);
    seen.extend(assignments.map(|assignment| assignment.task));
}

/// # Errors
/// When a task has no machine after all.
async fn all_placed(cell: &Cell) -> io::Result<()> {
    let status = cell.client().cluster_status().await.map_err(io::Error::other)?.value;
    match status.tasks.pending + status.tasks.deferred {
        0 => Ok(()),
        some => Err(io::Error::other(format!("{some} tasks still wait for a machine"))),
    }
}
