//! `cell job stop`.

use crate::commands::Success;
use crate::commands::parse::job;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::client::Change;
use cellwright_cell::name::JobKey;
use clap::Args;

#[derive(Debug, Args)]
pub struct StopArgs {
    #[arg(value_name = "USER/JOB", value_parser = job)]
    job: JobKey,
}

impl StopArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let done =
            ask(async { Ok(cell.client.stop_job(&self.job, &Change::default()).await?.value) })?;
        let what = if done.changed { "is told to stop" } else { "was stopping already" };
        print(&format!("job {} {what}\nnext: cell job status {0}\n", self.job))?;
        Ok(Success::Done)
    }
}
