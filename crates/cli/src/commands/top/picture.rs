//! What is on the screen, read from the cell.

use crate::commands::{pages, tell};
use crate::failure::Failure;
use crate::format;
use crate::reach::Cell;
use cellwright_api::client::{ClientError, JobFilter, PageAt, encode_query};
use cellwright_api::types::{JobView, Page};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::resource::Resources;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Machines, jobs or tasks that are read at once.
const AT_ONCE: u32 = 1000;
/// Jobs whose tasks are added up: as many as a screen shows, and some to scroll to.
const ADDED_UP: usize = 40;
/// Tasks of a job that are added up. Of a larger one nothing is said rather than a part.
const TASKS: u32 = 5000;

pub struct Picture {
    pub head: String,
    pub tasks: String,
    pub machines: Vec<Line>,
    pub jobs: Vec<Line>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub cpu: u64,
    pub ram: u64,
}

/// A machine or a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub name: String,
    pub state: String,
    pub tasks: u32,
    /// What all of it is measured against: capacity of a machine, limits of a job.
    pub whole: Sums,
    /// Absent where nobody has said so.
    pub used: Option<Sums>,
    pub reserved: Sums,
    pub limits: Sums,
}

/// The part of a machine that is shown. What it uses is known to newer masters alone.
#[derive(Deserialize)]
struct RawMachine {
    name: Name,
    status: MachineStatus,
    draining: bool,
    spec: RawSpec,
    reserved: Resources,
    limits: Resources,
    #[serde(default)]
    used: Option<Resources>,
    tasks: u32,
}

#[derive(Deserialize)]
struct RawSpec {
    capacity: Resources,
}

#[derive(Deserialize)]
struct RawTask {
    limits: Resources,
    reservation: Resources,
    #[serde(default)]
    used: Option<Resources>,
    machine: Option<Name>,
}

fn sums(amount: Resources) -> Sums {
    Sums { cpu: amount.cpu, ram: amount.ram }
}

impl Sums {
    fn add(&mut self, more: Resources) {
        self.cpu = self.cpu.saturating_add(more.cpu);
        self.ram = self.ram.saturating_add(more.ram);
    }
}

pub async fn read(cell: &Cell) -> Result<Picture, Failure> {
    let client = &cell.client;
    let filter = JobFilter { state: Some("live".into()), ..JobFilter::default() };
    let (status, machines, jobs) = tokio::join!(
        client.cluster_summary(),
        whole::<RawMachine>(cell, "/v1/machines"),
        pages::all(async |page| {
            let page = PageAt { consistent: false, ..page.clone() };
            Ok(client.jobs(&filter, &page).await?.value)
        }),
    );
    let (status, machines, jobs) = (status?.value, machines?, jobs?);
    let mut lines = Vec::with_capacity(jobs.len());
    for (position, job) in jobs.iter().enumerate() {
        lines.push(job_line(cell, job, position < ADDED_UP).await?);
    }
    Ok(Picture {
        head: format!(
            "cell at {}: {}, {} up; {}",
            client.preferred(),
            format::counted(u64::from(status.machines), "machine"),
            format::count(u64::from(status.machines_up)),
            format::counted(u64::from(status.jobs), "job"),
        ),
        tasks: tell::counts(&status.tasks),
        machines: machines.into_iter().map(machine_line).collect(),
        jobs: lines,
    })
}

/// A list in full, page by page.
async fn whole<T: DeserializeOwned>(cell: &Cell, path: &str) -> Result<Vec<T>, ClientError> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let pairs = [("limit", Some(AT_ONCE.to_string())), ("after", after)];
        let page: Page<T> =
            cell.client.get(&format!("{path}{}", encode_query(&pairs))).await?.value;
        items.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(items),
        }
    }
}

fn machine_line(machine: RawMachine) -> Line {
    let state = match (machine.status, machine.draining) {
        (MachineStatus::Down, _) => "down",
        (MachineStatus::Up, true) => "draining",
        (MachineStatus::Up, false) => "up",
    };
    Line {
        name: machine.name.to_string(),
        state: state.into(),
        tasks: machine.tasks,
        whole: sums(machine.spec.capacity),
        used: machine.used.map(sums),
        reserved: sums(machine.reserved),
        limits: sums(machine.limits),
    }
}

async fn job_line(cell: &Cell, job: &JobView, add_up: bool) -> Result<Line, Failure> {
    let limits = sums(job.spec.total_limits());
    let mut line = Line {
        name: format!("{}/{}", job.user, job.name),
        state: tell::job_state(job).into(),
        tasks: job.tasks.running,
        whole: limits,
        used: None,
        reserved: Sums::default(),
        limits: Sums::default(),
    };
    if job.tasks.pending > 0 {
        line.state = format!("{} wait", format::count(u64::from(job.tasks.pending)));
    }
    if !add_up || job.spec.count > TASKS {
        return Ok(line);
    }
    let key = JobKey { user: job.user.clone(), job: job.name.clone() };
    let path = format!("/v1/jobs/{}/{}/tasks", key.user, key.job);
    // A job may be gone by now; its line says what was known.
    let Ok(tasks) = whole::<RawTask>(cell, &path).await else { return Ok(line) };
    for task in tasks.iter().filter(|task| task.machine.is_some()) {
        line.limits.add(task.limits);
        line.reserved.add(task.reservation);
        if let Some(used) = task.used {
            line.used.get_or_insert_default().add(used);
        }
    }
    Ok(line)
}
