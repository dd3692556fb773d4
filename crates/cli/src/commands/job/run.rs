//! `cell job run`: a job from a file, new or as an update of the one that lives when it is held to
//! a plan.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::commands::parse::name;
use crate::commands::planned;
use crate::commands::target::typed;
use crate::commands::wait::AttendArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::Change;
use cellwright_api::types::{Changed, PlanAction, PlanJobs, PlanToken, SubmitJob};
use cellwright_cell::name::Name;
use clap::Args;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Jobs in Jsonnet, JSON or YAML; - for standard input
    #[arg(value_name = "FILE|-")]
    file: String,

    /// Whose job it is [default: yours; on an open master dev's]
    #[arg(long, value_name = "USER", value_parser = name)]
    owner: Option<Name>,

    /// Do just what `cell plan` showed, or nothing if the job has changed since
    #[arg(long, value_name = "TOKEN")]
    plan: Option<PlanToken>,

    #[command(flatten)]
    attend: AttendArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl RunArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let owner = cell.owner(self.owner.clone());
        let jobs = planned::load(&self.file, owner.as_ref())?;
        let sent = ask(self.send(&cell, &jobs))?;
        for (job, done) in jobs.jobs.iter().zip(&sent) {
            match self.output.output {
                Output::Json => print_json(done)?,
                Output::Table => print(&said(job, done))?,
            }
        }
        if !self.attend.is_asked() {
            return Ok(Success::Done);
        }
        let keys = ask(async {
            let mut keys = Vec::new();
            for job in &jobs.jobs {
                // Without an owner the cell is asked whose it is.
                let typed = typed(&called(job)).map_err(|message| Failure::Usage {
                    message,
                    next: "the same command with --owner USER".into(),
                })?;
                keys.push(typed.resolve(&cell).await?.job);
            }
            Ok(keys)
        })?;
        self.attend.attend(&cell, &keys)
    }

    /// All of them, in the order of the file.
    async fn send(&self, cell: &Cell, jobs: &PlanJobs) -> Result<Vec<Changed>, Failure> {
        let plans = match self.plan {
            Some(token) => planned::hold(cell, jobs, token, &self.file).await?.jobs,
            None => Vec::new(),
        };
        let mut sent = Vec::new();
        for (at, SubmitJob { owner, spec }) in jobs.jobs.iter().enumerate() {
            let updated = plans.get(at).filter(|plan| plan.action == PlanAction::Update);
            let done = match updated {
                Some(plan) => {
                    let change = Change { expect: plan.version, ..Change::default() };
                    cell.client.update_job(&plan.user, spec, &change).await?
                }
                None => cell.client.submit_job(owner.as_ref(), spec).await?,
            };
            sent.push(done.value);
        }
        Ok(sent)
    }
}

/// Without an owner it is the caller's, whom only the cell knows.
fn called(SubmitJob { owner, spec }: &SubmitJob) -> String {
    match owner {
        Some(owner) => format!("{owner}/{}", spec.name),
        None => spec.name.to_string(),
    }
}

fn said(job: &SubmitJob, done: &Changed) -> String {
    let SubmitJob { owner, spec } = job;
    let name = called(job);
    let of = owner.as_ref().map_or(String::new(), |_| format!(" {name}"));
    let what = match done.changed {
        true => format!("is in the log at {}", done.index),
        false => "was there already, just like this".to_owned(),
    };
    let tasks = crate::format::counted(u64::from(spec.count), "task");
    format!("job {name} of {tasks} {what}\nnext: cell status{of}\n")
}
