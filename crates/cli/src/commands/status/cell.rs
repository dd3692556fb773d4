//! The cell at a glance: machines, what is left of them, tasks by state, what waits, and what is
//! the matter.

use crate::commands::machine::first_machine;
use crate::commands::silence::Alarms;
use crate::commands::tell::counts;
use crate::failure::Failure;
use crate::reach::Cell;
use crate::table::wrapped;
use crate::{format, style, table};
use cellwright_api::client::{JobFilter, PageAt};
use cellwright_api::types::{AlarmView, ClusterStatus, DriverView, JobView};
use cellwright_sim::experiment::load::Units;
use serde::Serialize;

/// Jobs that wait which are named.
const NAMED: u32 = 10;

#[derive(Serialize)]
pub struct Standing {
    #[serde(flatten)]
    status: ClusterStatus,
    /// Jobs with pending tasks, the oldest first; at most ten.
    waiting: Vec<Waiting>,
    /// What a person should look at.
    alarms: Vec<AlarmView>,
    /// The master that answered.
    master: String,
    /// Whether any master leads.
    is_led: bool,
    /// What to do about it when there is no machine.
    #[serde(skip)]
    first_machine: &'static str,
}

impl Standing {
    pub fn is_led(&self) -> bool {
        self.is_led
    }
}

#[derive(Serialize)]
struct Waiting {
    job: String,
    pending: u32,
    tasks: u32,
}

pub async fn read(cell: &Cell) -> Result<Standing, Failure> {
    let client = &cell.client;
    let filter = JobFilter { state: Some("waiting".into()), ..JobFilter::default() };
    let page = PageAt { limit: Some(NAMED), ..PageAt::default() };
    let (status, waiting, alarms) = tokio::join!(
        client.cluster_summary(),
        client.jobs(&filter, &page),
        Alarms::of_leader(cell)
    );
    let waits = |job: &JobView| Waiting {
        job: format!("{}/{}", job.user, job.name),
        pending: job.tasks.pending,
        tasks: job.spec.count,
    };
    Ok(Standing {
        status: status?.value,
        waiting: waiting?.value.items.iter().map(waits).collect(),
        is_led: !alarms.is_leaderless,
        alarms: alarms.items,
        master: client.preferred(),
        first_machine: first_machine(cell),
    })
}

pub fn shown(standing: &Standing) -> String {
    let Standing { status, waiting, alarms, master, .. } = standing;
    let style = style::for_stdout();
    let mut out = format!(
        "cell at {master}: {}, {} up{}{}; {}\n",
        format::counted(u64::from(status.machines), "machine"),
        format::count(u64::from(status.machines_up)),
        some(status.machines_draining, "draining"),
        some(status.failed.len() as u32, "down"),
        format::counted(u64::from(status.users), "user"),
    );
    out.push_str(&format!(
        "{}: {}\n",
        format::counted(u64::from(status.jobs), "job"),
        counts(&status.tasks)
    ));
    if status.machines > 0 {
        out.push('\n');
        out.push_str(&room(status));
    }
    for driver in &status.drivers {
        out.push_str(&driven(driver));
    }
    for alarm in alarms {
        out.push_str(&wrapped(&style.bad("alarm "), "  ", &alarm.message));
    }
    if !waiting.is_empty() {
        out.push('\n');
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|job| {
                let tasks = format::counted(u64::from(job.tasks), "task");
                let of = format!("{} of {tasks}", format::count(u64::from(job.pending)));
                vec![job.job.clone(), of]
            })
            .collect();
        out.push_str(&table::render(&["waits", "pending"], &rows));
    }
    out.push_str(&next(standing));
    out
}

fn some(count: u32, word: &str) -> String {
    match count {
        0 => String::new(),
        _ => format!(", {} {word}", format::count(u64::from(count))),
    }
}

fn room(status: &ClusterStatus) -> String {
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

/// How machines run tasks, and what is off there and why.
fn driven(driver: &DriverView) -> String {
    let machines = format::counted(u64::from(driver.machines), "machine");
    let text = match (&driver.driver, &driver.off) {
        (None, _) => format!("{machines}: virtual, nothing is run there"),
        (Some(name), None) => format!("{machines}: tasks run by the {name} driver"),
        (Some(name), Some(why)) => {
            format!("{machines}: tasks run by the {name} driver; containers are off: {why}")
        }
    };
    wrapped("driver ", "  ", &text)
}

fn next(standing: &Standing) -> String {
    let next = match &standing.waiting[..] {
        _ if !standing.is_led => "cell master status".into(),
        [first, ..] => format!("cell status {}, or why it waits: cell explain {0}", first.job),
        [] if standing.status.machines == 0 => standing.first_machine.into(),
        [] if standing.status.jobs == 0 => "cell run examples/hello.json".into(),
        [] => "cell job status".into(),
    };
    format!("\nnext: {next}\n")
}
