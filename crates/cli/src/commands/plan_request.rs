//! Requests to plan and run job files, and the plan token that binds a run to its plan.

use super::file::{self, JobFile};
use super::package;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::output::print_notice;
use crate::runtime::block_on;
use cellwright_api::types::{PlanJobs, PlanToken, PlanView, SubmitJob};
use cellwright_cell::name::Name;
use cellwright_lang::Document;

/// The jobs of a file, or of standard input, to plan, with the packages that `cell` has for their
/// images. Periodic jobs are not placed before they are
/// due, and are reported as left out.
pub fn load_plan_request(
    cell: &Cell,
    file: &JobFile,
    owner: Option<&Name>,
) -> Result<PlanJobs, Failure> {
    let mut documents = file::load_valid(file, owner)?.documents;
    block_on(package::pin_images(cell, &mut documents))?;
    for document in &documents {
        if let Document::Cron(cron) = document {
            print_notice(&format!(
                "{} is a periodic job: each of its runs is placed when its time has come",
                cron.spec.name
            ));
        }
    }
    Ok(PlanJobs { jobs: submit_requests(&documents, owner) })
}

/// The submit requests for the jobs among `documents`.
pub fn submit_requests(documents: &[Document], owner: Option<&Name>) -> Vec<SubmitJob> {
    let job = |document: &Document| match document {
        Document::Job(job) => {
            Some(SubmitJob { owner: job.owner.as_ref().or(owner).cloned(), spec: job.spec.clone() })
        }
        Document::Cron(_) => None,
    };
    documents.iter().filter_map(job).collect()
}

/// Plans again and compares: a run goes on only if neither the file nor the jobs it names have
/// changed since `token` was printed. The result has the versions to expect, so that the cell
/// rejects the run if anything changes after this.
pub async fn verify_plan(
    cell: &Cell,
    jobs: &PlanJobs,
    token: PlanToken,
    file: &JobFile,
) -> Result<PlanView, Failure> {
    let plan = cell.client.plan(jobs).await?.value.item;
    let now: PlanToken = plan.token.parse().map_err(|error| {
        Failure::from_error(&error, "compare `cell --version` with the masters'")
    })?;
    let JobFile { name: file, options, .. } = file;
    let again = format!("look at what it would do now: cell plan {file}{options}");
    if now.specs != token.specs {
        let message = format!("{file} has changed since the plan {token} was made");
        return Err(Failure::Operation { message, next: again });
    }
    if now.base == token.base {
        return Ok(plan);
    }
    let found: Vec<String> = plan
        .jobs
        .iter()
        .map(|job| match job.version {
            Some(version) => format!("{}/{} is at version {version}", job.user, job.name),
            None => format!("{}/{} does not live", job.user, job.name),
        })
        .collect();
    let message = format!(
        "a job has changed since the plan {token} was made: {} now (stale-version)",
        found.join(", ")
    );
    Err(Failure::Operation { message, next: again })
}
