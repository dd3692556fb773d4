//! A master that starts with a large cell on its disk: how long until it serves.

use super::cell::{Cell, until};
use super::load::{Length, Load};
use super::{workload, write};
use crate::flags::Flags;
use crate::report::percentile;
use crate::section_report::Section;
use std::io;
use std::time::{Duration, Instant};

/// Starts of each kind.
const STARTS: usize = 5;
/// Jobs submitted one by one after the snapshot.
const REPLAYED: u64 = 20_000;
const CLIENTS: usize = 16;

pub async fn main(flags: Flags) -> io::Result<()> {
    let machines: u32 = flags.number("machines", 12_500)?;
    let tasks: u32 = flags.number("tasks", 150_000)?;
    let mut section = Section::new(
        "Restart",
        &format!(
            "One replica whose cell was built through the API, the scheduler and {machines} \
             virtual machines: {tasks} tasks that run. A snapshot is taken, the process killed \
             with SIGKILL and started again; timed from the start of the process until `/readyz` \
             says yes, the process's own start, the snapshot's checksum and every index derived \
             from it included. Then the same with {REPLAYED} jobs of one task in the log after \
             the snapshot."
        ),
    );
    let mut cell = Cell::start("restart", 1).await?;
    build(&mut cell, machines, tasks).await?;
    let index = cell.snapshot(0)?;
    let times = starts(&mut cell).await?;
    let size = cell.snapshot_bytes()? as f64 / f64::from(1 << 20);
    section.row("snapshot", size, "MiB", "");
    report(&mut section, "from the snapshot", &times, "≤ 3");
    let address = cell.member(0).to_owned();
    let (length, request) = (Length::Requests(REPLAYED), write::one_job("later"));
    Load { address, clients: CLIENTS, length, request }.run().await?.all_done()?;
    let status = cell.status_of(0).await?;
    if status.snapshot > index {
        println!("a newer snapshot was taken at {}", status.snapshot);
    }
    let entries = status.last_log - status.snapshot;
    section.row("entries in the log after the snapshot", entries as f64, "", "");
    let times = starts(&mut cell).await?;
    report(&mut section, "from the snapshot and those entries", &times, "");
    verify_state(&cell, machines, tasks).await?;
    section.limits("decoding the snapshot and applying the entries, both on one core.");
    section.save(&super::BOOK, "restart")
}

/// The cell with its machines up and its tasks running. The machines are gone afterwards, which the
/// master takes a while to believe.
async fn build(cell: &mut Cell, machines: u32, tasks: u32) -> io::Result<()> {
    cell.start_scheduler()?;
    let agents = cell.start_agents(machines)?;
    cell.machines_up(machines).await?;
    let owner = workload::name(workload::OWNER)?;
    let half = tasks / 2;
    for (name, count) in [("first", half), ("second", tasks - half)] {
        let spec = workload::job(name, count)?;
        cell.client().submit_job(Some(&owner), &spec).await.map_err(io::Error::other)?;
        let key = workload::key(name)?;
        until(&format!("{count} tasks run"), async || {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let job = cell.client().job(&key).await.ok()?.value.item;
            (job.tasks.running == count).then_some(())
        })
        .await?;
    }
    cell.stop_schedulers();
    drop(agents);
    Ok(())
}

async fn starts(cell: &mut Cell) -> io::Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        cell.kill_replica(0)?;
        let begun = Instant::now();
        cell.start_replica(0)?;
        cell.replica_ready(0).await?;
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn report(section: &mut Section, what: &str, times: &[f64], target: &str) {
    section.row(&format!("{what}, median of {STARTS}"), percentile(times, 0.5), "s", target);
    section.row("... longest", percentile(times, 1.0), "s", target);
}

/// # Errors
/// When the cell that came back is not the one that was there.
async fn verify_state(cell: &Cell, machines: u32, tasks: u32) -> io::Result<()> {
    let status = cell.client().cluster_status().await.map_err(io::Error::other)?.value;
    let held = status.tasks.running + status.tasks.assigned;
    if status.machines == machines && held >= tasks {
        Ok(())
    } else {
        let message = format!("{} machines and {held} tasks came back", status.machines);
        Err(io::Error::other(message))
    }
}
