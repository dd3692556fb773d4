//! `cell run`: make the cell have what a file says. What is not there is submitted, what is there
//! and differs is updated, task by task, and what is there just like this is left alone.

use super::{Success, file, parse};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::{Change, ClientError};
use cellwright_api::error::Code;
use cellwright_api::types::{Changed, CronView, One};
use cellwright_cell::job::JobState;
use cellwright_cell::name::{JobKey, Name};
use cellwright_lang::{CronDocument, Document, JobDocument};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  cell run examples/hello.json
  cell run examples/service.jsonnet
  cell run jobs.yaml --owner ads

Files are Jsonnet, JSON or YAML: see the guide on the job language, or start with `cell init`.";

/// Run what a file says: submit what is not there, update what differs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Jobs in Jsonnet, JSON or YAML; - for standard input
    #[arg(value_name = "FILE|-")]
    file: String,

    /// Whose jobs they are that name no owner [default: yours; on an open master dev's]
    #[arg(long, value_name = "USER", value_parser = parse::name)]
    owner: Option<Name>,

    #[command(flatten)]
    output: OutputArgs,
}

/// What became of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    Created,
    Updated,
    Unchanged,
}

/// One job or periodic job of the file, as the cell has it now.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// `job` or `cron`.
    pub kind: &'static str,
    /// Absent when it is the caller's, whom only the cell knows.
    pub owner: Option<Name>,
    pub name: Name,
    pub became: Became,
    pub tasks: u32,
    /// The log index at which it is durable.
    pub index: u64,
    pub version: Option<u32>,
}

impl RunArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let owner = cell.owner(self.owner.clone());
        let documents = file::loaded(&self.file, owner.clone())?.documents;
        let table = self.output.output == Output::Table;
        let mut done = Vec::new();
        for document in &documents {
            match ask(run_document(&cell, owner.as_ref(), document)) {
                Ok(ran) if table => {
                    print(&ran.shown())?;
                    done.push(ran);
                }
                Ok(ran) => done.push(ran),
                Err(failure) => {
                    if !table {
                        print_json(&done)?;
                    }
                    return Err(failure);
                }
            }
        }
        match table {
            true => print(&next(&done))?,
            false => print_json(&done)?,
        }
        Ok(Success::Done)
    }
}

impl Ran {
    /// `user/job`, or the name alone.
    pub fn full_name(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{owner}/{}", self.name),
            None => self.name.to_string(),
        }
    }

    fn shown(&self) -> String {
        let what = match (self.became, self.version) {
            (Became::Created, _) => "created".to_owned(),
            (Became::Updated, Some(version)) => format!("being updated to version {version}"),
            (Became::Updated, None) => "being updated".to_owned(),
            (Became::Unchanged, _) => "unchanged".to_owned(),
        };
        let tasks = format::counted(u64::from(self.tasks), "task");
        let word = if self.kind == "cron" { "periodic job" } else { "job" };
        format!("{word} {} of {tasks}: {what}\n", self.full_name())
    }
}

/// What to type next, about what was run.
fn next(done: &[Ran]) -> String {
    let jobs: Vec<&Ran> = done.iter().filter(|ran| ran.kind == "job").collect();
    match jobs[..] {
        [one] if one.owner.is_some() => format!("next: cell job status {}\n", one.full_name()),
        _ => "next: cell job status\n".to_owned(),
    }
}

/// Has the cell have `document`; `owner` owns what names no owner, the caller if absent.
pub async fn run_document(
    cell: &Cell,
    owner: Option<&Name>,
    document: &Document,
) -> Result<Ran, Failure> {
    let owner = document.owner().or(owner);
    match document {
        Document::Job(job) => run_job(cell, owner, job).await,
        Document::Cron(cron) => run_cron(cell, owner, cron).await,
    }
}

async fn run_job(cell: &Cell, owner: Option<&Name>, job: &JobDocument) -> Result<Ran, Failure> {
    let spec = &job.spec;
    let ran = |became: Became, changed: &Changed| Ran {
        kind: "job",
        owner: owner.cloned(),
        name: spec.name.clone(),
        became: if changed.changed { became } else { Became::Unchanged },
        tasks: spec.count,
        index: changed.index,
        version: changed.version,
    };
    if let Some(owner) = owner
        && let Some(version) = live_version(cell, owner, &spec.name).await?
    {
        // Only what was seen is changed: whoever else changes it meanwhile is not overrun.
        let change = Change { expect: Some(version), ..Change::default() };
        let changed = cell.client.update_job(owner, spec, &change).await?.value;
        return Ok(ran(Became::Updated, &changed));
    }
    match cell.client.submit_job(owner, spec).await {
        Ok(reply) => Ok(ran(Became::Created, &reply.value)),
        Err(ClientError::Api(error)) if error.code == Code::Exists && owner.is_none() => {
            Err(Failure::Work {
                message: error.to_string(),
                next: "say whose job is to be updated: the same command with --owner USER".into(),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The version of a job that has not ended; its name is free otherwise.
async fn live_version(cell: &Cell, owner: &Name, job: &Name) -> Result<Option<u32>, Failure> {
    let key = JobKey { user: owner.clone(), job: job.clone() };
    match cell.client.job(&key).await {
        Ok(reply) => {
            let view = reply.value.item;
            Ok((!matches!(view.state, JobState::Dead(_))).then_some(view.version))
        }
        Err(ClientError::Api(error)) if error.code == Code::NoSuchJob => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn run_cron(cell: &Cell, owner: Option<&Name>, cron: &CronDocument) -> Result<Ran, Failure> {
    let spec = &cron.spec;
    let Some(owner) = owner else {
        return Err(Failure::Usage {
            message: format!("whose is the periodic job {}?", spec.name),
            next: "the same command with --owner USER, or an `owner` in the file".into(),
        });
    };
    let path = format!("/v1/crons/{owner}/{}", spec.name);
    let there: Option<One<CronView>> = match cell.client.get(&path).await {
        Ok(reply) => Some(reply.value),
        Err(ClientError::Api(error)) if error.code == Code::NoSuchCron => None,
        Err(error) => return Err(error.into()),
    };
    let expect = Some(there.as_ref().map_or(0, |cron| cron.item.version));
    let change = Change { expect, ..Change::default() };
    let changed: Changed =
        cell.client.change(hyper::Method::PUT, &path, Some(spec), &change).await?.value;
    let became = if there.is_some() { Became::Updated } else { Became::Created };
    Ok(Ran {
        kind: "cron",
        owner: Some(owner.clone()),
        name: spec.name.clone(),
        became: if changed.changed { became } else { Became::Unchanged },
        tasks: spec.job.count,
        index: changed.index,
        version: changed.version,
    })
}
