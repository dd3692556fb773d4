//! `cell token create`: join tokens, each for one name and one use; `cell token dismiss`: the other
//! way round, nobody listens to a part until it joins again.

use super::Success;
use super::parse::{name, span};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::client::Change;
use cellwright_api::types::{AddJoinToken, Changed, Dismiss, Joiner, NewToken};
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;

/// Tokens: create, dismiss
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a join token for a machine, a replica of the master or a scheduler
    Create(CreateArgs),
    /// Stop listening to an agent, a replica or a scheduler until it joins again
    Dismiss(DismissArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("part").required(true).args(["agent", "replica", "scheduler"]))]
pub struct DismissArgs {
    /// The agent of a machine that was never part of the cell, or is not any more
    #[arg(long, value_name = "MACHINE", value_parser = name)]
    agent: Option<Name>,

    /// The replica of this name, once it is removed
    #[arg(long, value_name = "NAME", value_parser = name)]
    replica: Option<Name>,

    /// The scheduler of this name
    #[arg(long, value_name = "NAME", value_parser = name)]
    scheduler: Option<Name>,
}

impl DismissArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let (part, name) = match (self.agent, self.replica, self.scheduler) {
            (Some(machine), _, _) => (PartKind::Agent, machine),
            (_, Some(replica), _) => (PartKind::Replica, replica),
            (_, _, Some(scheduler)) => (PartKind::Scheduler, scheduler),
            (None, None, None) => return Err(nobody()),
        };
        let cell = reach.cell()?;
        let body = Dismiss { part, name };
        let change = Change::default();
        let done: Changed = ask(async {
            Ok(cell
                .client
                .change(Method::POST, "/v1/dismissals", Some(&body), &change)
                .await?
                .value)
        })?;
        let Dismiss { part, name } = body;
        let again = if done.changed { "" } else { " already" };
        print(&format!(
            "{part} {name} is dismissed{again}\n\
             next, should it come back: cell token create --{part} {name}\n"
        ))?;
        Ok(Success::Done)
    }
}

fn nobody() -> Failure {
    Failure::Usage {
        message: "the token is for nobody".into(),
        next: "--agent MACHINE, --replica NAME or --scheduler NAME".into(),
    }
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
        let args = match self {
            Token::Create(args) => args,
            Token::Dismiss(args) => return args.run(reach),
        };
        let (joiner, next, name) = match (args.agent, args.replica, args.scheduler) {
            (Some(machine), _, _) => (Joiner::Agent, "agent join TOKEN", machine),
            (_, Some(replica), _) => {
                (Joiner::Replica, "master join TOKEN --advertise HOST:PORT", replica)
            }
            (_, _, Some(scheduler)) => (Joiner::Scheduler, "scheduler --join TOKEN", scheduler),
            (None, None, None) => return Err(nobody()),
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
