//! Fetches complete lists from the API, which returns them in pages.

use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::client::{ClientError, JobFilter, PageRequest};
use cellwright_api::types::{JobView, MachineView, Page, TaskView};
use cellwright_cell::name::{JobKey, Name};

/// The largest page that the API returns.
const PAGE_SIZE: u32 = 1000;

/// Fetches all items, page by page.
pub async fn fetch_all<T>(
    mut fetch_page: impl AsyncFnMut(&PageRequest) -> Result<Page<T>, ClientError>,
) -> Result<Vec<T>, Failure> {
    let mut items = Vec::new();
    let mut page = PageRequest { limit: Some(PAGE_SIZE), consistent: true, after: None };
    loop {
        let part = fetch_page(&page).await?;
        items.extend(part.items);
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(items),
        }
    }
}

pub async fn jobs(cell: &Cell, filter: &JobFilter) -> Result<Vec<JobView>, Failure> {
    fetch_all(async |page| Ok(cell.client.jobs(filter, page).await?.value)).await
}

pub async fn tasks(cell: &Cell, job: &JobKey) -> Result<Vec<TaskView>, Failure> {
    fetch_all(async |page| Ok(cell.client.tasks(job, page).await?.value)).await
}

/// What is bound to a machine.
pub async fn machine_tasks(cell: &Cell, machine: &Name) -> Result<Vec<TaskView>, Failure> {
    fetch_all(async |page| Ok(cell.client.machine_tasks(machine, page).await?.value)).await
}

pub async fn machines(cell: &Cell) -> Result<Vec<MachineView>, Failure> {
    fetch_all(async |page| Ok(cell.client.machines(page).await?.value)).await
}
