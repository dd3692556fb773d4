//! `cell token create`: join tokens, each for one name and one use.

use super::Success;
use super::parse::{name, span};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::types::{AddJoinToken, Joiner, NewToken};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;

/// Tokens: create
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a join token for a machine, a replica of the master or a scheduler
    Create(CreateArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("joiner").required(true).args(["agent", "replica", "scheduler"]))]
pub struct CreateArgs {
    /// For the agent of this machine
    #[arg(long, value_name = "MACHINE", value_parser = name)]
    agent: Option<Name>,

    /// For a replica of this name
    #[arg(long, value_name = "NAME", value_parser = name)]
    replica: Option<Name>,

    /// For a scheduler of this name that runs apart from the masters
    #[arg(long, value_name = "NAME", value_parser = name)]
    scheduler: Option<Name>,

    /// How long it is good for
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = span)]
    valid_for: Span,

    #[command(flatten)]
    output: OutputArgs,
}

impl Token {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let Token::Create(args) = self;
        let (joiner, next, name) = match (args.agent, args.replica, args.scheduler) {
            (Some(machine), _, _) => (Joiner::Agent, "agent join TOKEN", machine),
            (_, Some(replica), _) => {
                (Joiner::Replica, "master join TOKEN --advertise HOST:PORT", replica)
            }
            (_, _, Some(scheduler)) => (Joiner::Scheduler, "scheduler --join TOKEN", scheduler),
            (None, None, None) => {
                return Err(Failure::Usage {
                    message: "the token is for nobody".into(),
                    next: "--agent MACHINE, --replica NAME or --scheduler NAME".into(),
                });
            }
        };
        let cell = reach.cell()?;
        let body = AddJoinToken { joiner, name, valid_for: args.valid_for };
        let made: NewToken = ask(async {
            Ok(cell.client.make(Method::POST, "/v1/tokens/join", Some(&body)).await?.value)
        })?;
        match args.output.output {
            Output::Json => print_json(&made)?,
            Output::Table => {
                print(&format!(
                    "{}\ngood once, until {}\n\
                     next, there: cell {next} --master {}\n",
                    made.token,
                    format::utc(made.expires),
                    cell.client.preferred(),
                ))?;
            }
        }
        Ok(Success::Done)
    }
}
