//! `cell plan`: a dry run of a job file; shows what running it would change.

pub mod render;

use super::Success;
use super::parse::name;
use super::plan_request;
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json, print_prose};
use crate::runtime::block_on;
use crate::style;
use cellwright_api::types::{PlanAction, PlanView};
use cellwright_cell::name::Name;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell plan examples/hello.json
  cell plan web.json --detailed-exitcode -o json

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
    output: OutputArgs,
}

impl PlanArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let owner = cell.job_owner(self.owner.clone());
        let jobs = plan_request::load_plan_request(&self.file, owner.as_ref())?;
        if jobs.jobs.is_empty() {
            // `load_plan_request` has reported each periodic job; the cell plans no periodic jobs.
            match self.output.output {
                Output::Json => print_json(&serde_json::json!({ "jobs": [] }))?,
                Output::Table => print("nothing to plan\n")?,
            }
            return Ok(Success::Done);
        }
        let plan = block_on(async { Ok(cell.client.plan(&jobs).await?.value.item) })?;
        let next = self.next(&plan);
        match self.output.output {
            Output::Json => print_json(&plan)?,
            Output::Table => {
                print_prose(&render::render_plan(&plan, next.as_deref(), style::for_stdout()))?
            }
        }
        let rejected = plan.jobs.iter().find_map(|job| {
            let error = job.rejected.as_ref()?;
            Some((format!("{}/{}", job.user, job.name), error))
        });
        if let Some((job, error)) = rejected {
            let message = format!("the cell would refuse {job}: {error}");
            return Err(Failure::Operation { message, next: error.hint.clone() });
        }
        Ok(self.verdict(&plan))
    }

    fn verdict(&self, plan: &PlanView) -> Success {
        let changes = |action: PlanAction| action != PlanAction::Nothing;
        if plan.jobs.iter().any(|job| job.pending > 0) {
            Success::DoesNotFit
        } else if self.detailed_exitcode && plan.jobs.iter().any(|job| changes(job.action)) {
            Success::WouldChange
        } else {
            Success::Done
        }
    }

    /// The command that applies the plan, if it changes anything and would be accepted; obstacles
    /// are reported as an error.
    fn next(&self, plan: &PlanView) -> Option<String> {
        if plan.jobs.iter().any(|job| job.rejected.is_some()) {
            return None;
        }
        let idle = plan.jobs.iter().all(|job| job.action == PlanAction::Nothing);
        if idle {
            return Some("nothing to do: the cell has it already".into());
        }
        let owner = self.owner.as_ref().map_or(String::new(), |owner| format!(" --owner {owner}"));
        Some(format!("cell run {}{owner} --plan {}", self.file, plan.token))
    }
}
