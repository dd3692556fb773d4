//! `cell plan`: a dry run of a job file; shows what running it would change.

pub mod render;

use super::Success;
use super::file::JobFile;
use super::file_inputs::InputArgs;
use super::parse::name;
use super::plan_request;
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json, print_prose};
use crate::runtime::block_on;
use crate::style;
use cellwright_api::types::{JobPlan, PlanAction, PlanView};
use cellwright_cell::name::Name;
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  cell plan examples/hello.json
  cell plan web.json --detailed-exitcode -o json
  cell --context staging --context production plan web.jsonnet

Nothing is changed. Exit codes: 0 the plan is made, 1 the cell would refuse or
cannot be asked, 2 wrong usage, 3 not all tasks would find a place. With
--detailed-exitcode, 0 means that running the file would change nothing, and 4
that it would.";

/// Say what running a file would do: changes, restarts, places, victims, quota
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// The jobs, or - for standard input
    #[arg(value_name = "FILE|-")]
    file: String,

    /// Whose jobs they are [default: yours; on an open master dev's]
    #[arg(long, value_name = "USER", value_parser = name)]
    owner: Option<Name>,

    /// Exit with 4 when running the file would change something
    #[arg(long)]
    detailed_exitcode: bool,

    #[command(flatten)]
    inputs: InputArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// The plan for one of several cells.
#[derive(Serialize)]
struct PlanOfContext {
    context: String,
    #[serde(flatten)]
    plan: PlanView,
}

impl PlanArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let connections = connection.each_context()?;
        let [alone] = connections.as_slice() else { return self.plan_each(&connections) };
        let file = self.inputs.file(&self.file, alone)?;
        let Some(plan) = self.plan(alone, &file)? else {
            // Each periodic job was reported; the cell plans none.
            match self.output.output {
                Output::Json => print_json(&serde_json::json!({ "jobs": [] }))?,
                Output::Table => print("nothing to plan\n")?,
            }
            return Ok(Success::Done);
        };
        match self.output.output {
            Output::Json => print_json(&plan)?,
            Output::Table => self.print(&plan, &file, None)?,
        }
        self.verdict(&plan)
    }

    /// The plans for several cells. The file is evaluated for all of them first, and what one cell
    /// says does not keep the others from being asked; the answer is the first that is not good.
    fn plan_each(&self, connections: &[ConnectionArgs]) -> Result<Success, Failure> {
        let mut files = Vec::new();
        for connection in connections {
            let name = connection.context()?.unwrap_or_default().to_owned();
            files.push((name, connection, self.inputs.file(&self.file, connection)?));
        }
        let (mut plans, mut verdict) = (Vec::new(), Ok(Success::Done));
        for (context, connection, file) in files {
            let plan =
                self.plan(connection, &file).map_err(|error| error.with_context(&context))?;
            let Some(plan) = plan else { continue };
            if self.output.output == Output::Table {
                self.print(&plan, &file, Some(&context))?;
            }
            if matches!(verdict, Ok(Success::Done)) {
                verdict = self.verdict(&plan).map_err(|error| error.with_context(&context));
            }
            plans.push(PlanOfContext { context, plan });
        }
        match self.output.output {
            Output::Json => print_json(&plans)?,
            Output::Table if plans.is_empty() => print("nothing to plan\n")?,
            Output::Table => {}
        }
        verdict
    }

    /// The cell's plan for the file, unless there are no jobs to plan in it.
    fn plan(
        &self,
        connection: &ConnectionArgs,
        file: &JobFile,
    ) -> Result<Option<PlanView>, Failure> {
        let cell = connection.cell()?;
        let owner = cell.job_owner(self.owner.clone());
        let jobs = plan_request::load_plan_request(&cell, file, owner.as_ref())?;
        if jobs.jobs.is_empty() {
            return Ok(None);
        }
        block_on(async { Ok(Some(cell.client.plan(&jobs).await?.value.item)) })
    }

    fn print(&self, plan: &PlanView, file: &JobFile, context: Option<&str>) -> Result<(), Failure> {
        let style = style::for_stdout();
        if let Some(context) = context {
            print_prose(&format!("{}\n\n", style.strong(&format!("context {context}"))))?;
        }
        let next = self.next(plan, file, context);
        print_prose(&render::render_plan(plan, next.as_deref(), style))?;
        if context.is_some() { print("\n") } else { Ok(()) }
    }

    /// How the command ends: with a failure where the cell would refuse a job.
    fn verdict(&self, plan: &PlanView) -> Result<Success, Failure> {
        let rejected = plan.jobs.iter().find_map(|job| {
            let error = job.rejected.as_ref()?;
            Some((format!("{}/{}", job.user, job.name), error))
        });
        if let Some((job, error)) = rejected {
            let message = format!("the cell would refuse {job}: {error}");
            return Err(Failure::Operation { message, next: error.hint.clone() });
        }
        let changes = |action: PlanAction| action != PlanAction::Nothing;
        let is_change = plan.jobs.iter().any(|job| changes(job.action));
        Ok(if plan.jobs.iter().any(|job| job.pending > 0) {
            Success::DoesNotFit
        } else if self.detailed_exitcode && is_change {
            Success::WouldChange
        } else {
            Success::Done
        })
    }

    /// The command that applies the plan, if it changes anything and would be accepted; obstacles
    /// are reported as an error.
    fn next(&self, plan: &PlanView, file: &JobFile, context: Option<&str>) -> Option<String> {
        if plan.jobs.iter().any(|job| job.rejected.is_some()) {
            return None;
        }
        let idle = plan.jobs.iter().all(|job| job.action == PlanAction::Nothing);
        if idle {
            let behind = plan.jobs.iter().find(|job| job.outdated > 0);
            return Some(match behind {
                Some(JobPlan { user, name, .. }) => format!("cell update finish {user}/{name}"),
                None => "nothing to do: the cell has it already".into(),
            });
        }
        let owner = self.owner.as_ref().map_or(String::new(), |owner| format!(" --owner {owner}"));
        let context = context.map_or(String::new(), |name| format!("--context {name} "));
        let JobFile { name, options, .. } = file;
        Some(format!("cell {context}run {name}{options}{owner} --plan {}", plan.token))
    }
}
