//! Files of jobs on their way to the cell, and the token that holds a run to its plan.

use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::types::{PlanJobs, PlanToken, PlanView, SubmitJob};
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use std::io::{self, Read};

/// Largest file: a few times what the master takes.
const MOST_BYTES: u64 = 64 << 20;

/// The jobs of a file, or of standard input.
pub fn load(file: &str, owner: Option<&Name>) -> Result<PlanJobs, Failure> {
    let text = text(file).map_err(|error| Failure::Usage {
        message: format!("cannot read the job from {file}: {error}"),
        next: "name a file that can be read, or - for standard input".into(),
    })?;
    let spec: JobSpec = serde_json::from_str(&text).map_err(|error| Failure::Usage {
        message: format!("{file} is not a job: {error}"),
        next: "compare it with examples/hello.json, or with JobSpec in /v1/openapi.json".into(),
    })?;
    Ok(PlanJobs { jobs: vec![SubmitJob { owner: owner.cloned(), spec }] })
}

fn text(file: &str) -> io::Result<String> {
    let mut text = String::new();
    let mut source: Box<dyn Read> = match file {
        "-" => Box::new(io::stdin().lock()),
        path => Box::new(std::fs::File::open(path)?),
    };
    source.as_mut().take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        let why = format!("it has more than {MOST_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}

/// Plans again and compares: a run goes on only if neither the file nor the jobs it names have
/// changed since `token` was printed. The versions to expect are in what is returned, so that what
/// changes from here on is refused by the cell.
pub async fn hold(
    cell: &Cell,
    jobs: &PlanJobs,
    token: PlanToken,
    file: &str,
) -> Result<PlanView, Failure> {
    let plan = cell.client.plan(jobs).await?.value.item;
    let now: PlanToken = plan
        .token
        .parse()
        .map_err(|error| Failure::work(&error, "compare `cell --version` with the masters'"))?;
    let again = format!("look at what it would do now: cell plan {file}");
    if now.specs != token.specs {
        let message = format!("{file} has changed since the plan {token} was made");
        return Err(Failure::Work { message, next: again });
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
    Err(Failure::Work { message, next: again })
}
