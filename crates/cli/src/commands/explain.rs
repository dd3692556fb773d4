//! `cell explain`: why a task waits, and what would let it run.

use super::Success;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_sim::experiment::pending::TaskName;
use clap::Args;

/// Say why a task waits
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[arg(value_name = "USER/JOB/INDEX")]
    task: TaskName,

    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let TaskName { job, index } = &self.task;
        let said = ask(async { Ok(cell.client.explain(job, *index).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&said)?,
            Output::Table => print(&format!("{}\n", said.text.trim_end()))?,
        }
        Ok(Success::Done)
    }
}
