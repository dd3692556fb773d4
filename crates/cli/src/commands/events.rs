//! `cell events`: what happened, oldest first, and with --follow what happens.

use super::Success;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::types::EventView;
use clap::Args;

/// Events asked for at once.
const PAGE: u32 = 1000;

/// What happened in the cell
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on
    #[arg(long, short)]
    follow: bool,

    /// Only what came after this cursor, as printed with -o json
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

impl EventsArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(self.show(&cell))?;
        Ok(Success::Done)
    }

    async fn show(&self, cell: &Cell) -> Result<(), Failure> {
        let mut after = self.after.clone();
        let mut first = true;
        loop {
            let page = cell.client.events(after.clone(), PAGE).await?.value;
            if let Some(oldest) = page.oldest.filter(|_| first && self.plain()) {
                eprintln!("events are kept from log index {oldest} on");
            }
            first = false;
            let done = page.items.is_empty();
            page.items.iter().try_for_each(|event| self.line(event))?;
            after = Some(page.next);
            if done {
                break;
            }
        }
        if !self.follow {
            return Ok(());
        }
        let mut watch = cell.client.watch_events(after);
        loop {
            if let Some(event) = watch.next().await?.data {
                self.line(&event)?;
            }
        }
    }

    fn plain(&self) -> bool {
        self.output.output == Output::Table
    }

    /// One line for each event; JSON too, so that a follower can read as they come.
    fn line(&self, event: &EventView) -> Result<(), Failure> {
        match self.output.output {
            Output::Table => print(&format!("{}  {}\n", format::utc(event.at), event.text)),
            Output::Json => {
                let text = serde_json::to_string(event)
                    .map_err(|error| Failure::work(&error, "the same without -o json"))?;
                print(&format!("{text}\n"))
            }
        }
    }
}
