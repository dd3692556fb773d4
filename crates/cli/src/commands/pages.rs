//! Whole lists of the API, which gives them in pages.

use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::client::{ClientError, JobFilter, PageAt};
use cellwright_api::types::{JobView, MachineView, Page, TaskView};
use cellwright_cell::name::JobKey;

/// As many at once as the API gives.
const AT_ONCE: u32 = 1000;

/// Everything, page by page.
pub async fn all<T>(
    mut page_at: impl AsyncFnMut(&PageAt) -> Result<Page<T>, ClientError>,
) -> Result<Vec<T>, Failure> {
    let mut items = Vec::new();
    let mut page = PageAt { limit: Some(AT_ONCE), consistent: true, after: None };
    loop {
        let part = page_at(&page).await?;
        items.extend(part.items);
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(items),
        }
    }
}

pub async fn jobs(cell: &Cell, filter: &JobFilter) -> Result<Vec<JobView>, Failure> {
    all(async |page| Ok(cell.client.jobs(filter, page).await?.value)).await
}

pub async fn tasks(cell: &Cell, job: &JobKey) -> Result<Vec<TaskView>, Failure> {
    all(async |page| Ok(cell.client.tasks(job, page).await?.value)).await
}

pub async fn machines(cell: &Cell) -> Result<Vec<MachineView>, Failure> {
    all(async |page| Ok(cell.client.machines(page).await?.value)).await
}
