//! The status of the cell: machines, their free capacity, tasks by state, pending jobs, and alarms.

use crate::commands::alarms::Alarms;
use crate::commands::machine::first_machine_hint;
use crate::commands::status_text::task_counts;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::table::wrap;
use crate::{format, style, table};
use cellwright_api::client::{JobFilter, PageRequest};
use cellwright_api::types::{AlarmView, ClusterStatus, DriverView, JobView};
use cellwright_sim::experiment::load::Units;
use serde::Serialize;

/// The maximum number of pending jobs that are named.
const MAX_WAITING_JOBS: u32 = 10;

#[derive(Serialize)]
pub struct CellStatus {
    #[serde(flatten)]
    status: ClusterStatus,
    /// Jobs with pending tasks, the oldest first; at most ten.
    waiting: Vec<WaitingJob>,
    /// Alarms that need attention.
    alarms: Vec<AlarmView>,
    /// The master that answered.
    master: String,
    /// Whether any master leads.
    is_led: bool,
    /// The hint for a cell without machines.
    #[serde(skip)]
    first_machine: &'static str,
}

impl CellStatus {
    pub fn is_led(&self) -> bool {
        self.is_led
    }
}

#[derive(Serialize)]
struct WaitingJob {
    job: String,
    pending: u32,
    tasks: u32,
}

pub async fn read(cell: &Cell) -> Result<CellStatus, Failure> {
    let client = &cell.client;
    let filter = JobFilter { state: Some("waiting".into()), ..JobFilter::default() };
    let page = PageRequest { limit: Some(MAX_WAITING_JOBS), ..PageRequest::default() };
    let (status, waiting, alarms) = tokio::join!(
        client.cluster_summary(),
        client.jobs(&filter, &page),
        Alarms::from_leader(cell)
    );
    let waits = |job: &JobView| WaitingJob {
        job: format!("{}/{}", job.user, job.name),
        pending: job.tasks.pending,
        tasks: job.index_end(),
    };
    Ok(CellStatus {
        status: status?.value,
        waiting: waiting?.value.items.iter().map(waits).collect(),
        is_led: !alarms.is_leaderless,
        alarms: alarms.items,
        master: client.preferred(),
        first_machine: first_machine_hint(cell),
    })
}

pub fn render(cell_status: &CellStatus) -> String {
    let CellStatus { status, waiting, alarms, master, .. } = cell_status;
    let style = style::for_stdout();
    let mut out = format!(
        "cell at {master}: {}, {} up{}{}; {}\n",
        format::pluralize(u64::from(status.machines), "machine"),
        format::count(u64::from(status.machines_up)),
        count_suffix(status.machines_draining, "draining"),
        count_suffix(status.failed.len() as u32, "down"),
        format::pluralize(u64::from(status.users), "user"),
    );
    out.push_str(&format!(
        "{}: {}\n",
        format::pluralize(u64::from(status.jobs), "job"),
        task_counts(&status.tasks)
    ));
    if status.machines > 0 {
        out.push('\n');
        out.push_str(&render_capacity(status));
    }
    for driver in &status.drivers {
        out.push_str(&driver_text(driver));
    }
    for alarm in alarms {
        out.push_str(&wrap(&style.bad("alarm "), "  ", &alarm.message));
    }
    if !waiting.is_empty() {
        out.push('\n');
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|job| {
                let tasks = format::pluralize(u64::from(job.tasks), "task");
                let of = format!("{} of {tasks}", format::count(u64::from(job.pending)));
                vec![job.job.clone(), of]
            })
            .collect();
        out.push_str(&table::render(&["waits", "pending"], &rows));
    }
    out.push_str(&next_hint(cell_status));
    out
}

fn count_suffix(count: u32, word: &str) -> String {
    match count {
        0 => String::new(),
        _ => format!(", {} {word}", format::count(u64::from(count))),
    }
}

fn render_capacity(status: &ClusterStatus) -> String {
    let amount =
        |dimension: &str, amount: u64| format::amount(Units::CoresAndBytes, dimension, amount);
    let (free, all) = (status.available, status.capacity);
    let row = |name: &str, free: u64, all: u64| {
        let share = free.saturating_mul(100).checked_div(all).unwrap_or(0);
        vec![name.to_owned(), amount(name, free), amount(name, all), format!("{share} %")]
    };
    let rows = [
        row("cpu", free.cpu, all.cpu),
        row("ram", free.ram, all.ram),
        row("disk", free.disk, all.disk),
    ];
    table::render(&["room", "free", "of", ""], &rows)
}

/// The driver that a machine runs tasks with, and which features are off there and why.
fn driver_text(driver: &DriverView) -> String {
    let machines = format::pluralize(u64::from(driver.machines), "machine");
    let text = match (&driver.driver, &driver.off) {
        (None, _) => format!("{machines}: virtual, nothing is run there"),
        (Some(name), None) => format!("{machines}: tasks run by the {name} driver"),
        (Some(name), Some(why)) => {
            format!("{machines}: tasks run by the {name} driver; containers are off: {why}")
        }
    };
    wrap("driver ", "  ", &text)
}

fn next_hint(cell_status: &CellStatus) -> String {
    let next = match &cell_status.waiting[..] {
        _ if !cell_status.is_led => "cell master status".into(),
        [first, ..] => format!("cell status {}, or why it waits: cell explain {0}", first.job),
        [] if cell_status.status.machines == 0 => cell_status.first_machine.into(),
        [] if cell_status.status.jobs == 0 => "cell run examples/hello.json".into(),
        [] => "cell job status".into(),
    };
    format!("\nnext: {next}\n")
}
