//! The data of the screen, fetched from the cell.

use crate::commands::{pagination, status_text};
use crate::connection::Cell;
use crate::failure::Failure;
use crate::format;
use cellwright_api::client::{ClientError, JobFilter, PageRequest, encode_query};
use cellwright_api::types::{JobView, Page};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::resource::Resources;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The page size for machines, jobs and tasks.
const PAGE_SIZE: u32 = 1000;
/// The maximum number of jobs whose tasks are summed: as many as a screen shows, and some to scroll
/// to.
const MAX_SUMMED_JOBS: usize = 40;
/// The maximum number of tasks of a job that are summed. A larger job has no usage rather than a
/// partial one.
const MAX_SUMMED_TASKS: u32 = 5000;

pub struct ScreenData {
    pub header: String,
    pub tasks: String,
    pub machines: Vec<UsageRow>,
    pub jobs: Vec<UsageRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuAndRam {
    pub cpu: u64,
    pub ram: u64,
}

/// The usage of a machine or a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub name: String,
    pub state: String,
    pub tasks: u32,
    /// The total that usage is measured against: a machine's capacity, a job's limits.
    pub total: CpuAndRam,
    /// Absent without a measurement.
    pub used: Option<CpuAndRam>,
    pub reserved: CpuAndRam,
    pub limits: CpuAndRam,
}

/// The displayed part of a machine. Only newer masters report its usage.
#[derive(Deserialize)]
struct RawMachine {
    name: Name,
    status: MachineStatus,
    draining: bool,
    spec: RawSpec,
    reserved: Resources,
    limits: Resources,
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
    used: Option<Resources>,
    machine: Option<Name>,
}

fn cpu_and_ram(amount: Resources) -> CpuAndRam {
    CpuAndRam { cpu: amount.cpu, ram: amount.ram }
}

impl CpuAndRam {
    fn add(&mut self, more: Resources) {
        self.cpu = self.cpu.saturating_add(more.cpu);
        self.ram = self.ram.saturating_add(more.ram);
    }
}

pub async fn read(cell: &Cell) -> Result<ScreenData, Failure> {
    let client = &cell.client;
    let filter = JobFilter { state: Some("live".into()), ..JobFilter::default() };
    let (status, machines, jobs) = tokio::join!(
        client.cluster_summary(),
        fetch_all::<RawMachine>(cell, "/v1/machines"),
        pagination::fetch_all(async |page| {
            let page = PageRequest { consistent: false, ..page.clone() };
            Ok(client.jobs(&filter, &page).await?.value)
        }),
    );
    let (status, machines, jobs) = (status?.value, machines?, jobs?);
    let mut lines = Vec::with_capacity(jobs.len());
    for (position, job) in jobs.iter().enumerate() {
        lines.push(job_line(cell, job, position < MAX_SUMMED_JOBS).await?);
    }
    Ok(ScreenData {
        header: format!(
            "cell at {}: {}, {} up; {}",
            client.preferred(),
            format::pluralize(u64::from(status.machines), "machine"),
            format::count(u64::from(status.machines_up)),
            format::pluralize(u64::from(status.jobs), "job"),
        ),
        tasks: status_text::task_counts(&status.tasks),
        machines: machines.into_iter().map(machine_line).collect(),
        jobs: lines,
    })
}

/// Fetches a complete list, page by page.
async fn fetch_all<T: DeserializeOwned>(cell: &Cell, path: &str) -> Result<Vec<T>, ClientError> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let pairs = [("limit", Some(PAGE_SIZE.to_string())), ("after", after)];
        let page: Page<T> =
            cell.client.get(&format!("{path}{}", encode_query(&pairs))).await?.value;
        items.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(items),
        }
    }
}

fn machine_line(machine: RawMachine) -> UsageRow {
    let state = match (machine.status, machine.draining) {
        (MachineStatus::Down, _) => "down",
        (MachineStatus::Up, true) => "draining",
        (MachineStatus::Up, false) => "up",
    };
    UsageRow {
        name: machine.name.to_string(),
        state: state.into(),
        tasks: machine.tasks,
        total: cpu_and_ram(machine.spec.capacity),
        used: machine.used.map(cpu_and_ram),
        reserved: cpu_and_ram(machine.reserved),
        limits: cpu_and_ram(machine.limits),
    }
}

async fn job_line(cell: &Cell, job: &JobView, sums_tasks: bool) -> Result<UsageRow, Failure> {
    let limits = cpu_and_ram(job.spec.total_limits());
    let mut line = UsageRow {
        name: format!("{}/{}", job.user, job.name),
        state: status_text::job_state(job).into(),
        tasks: job.tasks.running,
        total: limits,
        used: None,
        reserved: CpuAndRam::default(),
        limits: CpuAndRam::default(),
    };
    if job.tasks.pending > 0 {
        line.state = format!("{} wait", format::count(u64::from(job.tasks.pending)));
    }
    if !sums_tasks || job.index_end() > MAX_SUMMED_TASKS {
        return Ok(line);
    }
    let key = JobKey { user: job.user.clone(), job: job.name.clone() };
    let path = format!("/v1/jobs/{}/{}/tasks", key.user, key.job);
    // A job may have been purged meanwhile; its line shows what was known.
    let Ok(tasks) = fetch_all::<RawTask>(cell, &path).await else { return Ok(line) };
    for task in tasks.iter().filter(|task| task.machine.is_some()) {
        line.limits.add(task.limits);
        line.reserved.add(task.reservation);
        if let Some(used) = task.used {
            line.used.get_or_insert_default().add(used);
        }
    }
    Ok(line)
}
