//! `cell token create`: join tokens, each for one name and one use; `cell token dismiss`: the other
//! way round, nobody listens to a part until it joins again.

use super::parse::{name, span};
use super::{Success, pages};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::output::{Output, aside, print_json, say};
use crate::reach::Reach;
use crate::server::ask;
use crate::{clock, format, table};
use cellwright_api::client::Change;
use cellwright_api::types::{AddJoinToken, Changed, Dismiss, Joiner, NewToken, TokenView};
use cellwright_cell::credential::{PartKind, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_identity::private::PrivateFile;
use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CREATE_USAGE: &str = "\
cell token create [OPTIONS]
       <--agent <MACHINE>|--replica <NAME>|--scheduler <NAME>>";
const DISMISS_USAGE: &str = "\
cell token dismiss [OPTIONS]
       <--agent <MACHINE>|--replica <NAME>|--scheduler <NAME>>";

/// Tokens: create, ls, revoke, dismiss
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a join token for a machine, a replica of the master or a scheduler
    Create(CreateArgs),
    /// List the tokens, without their secrets
    Ls(LsArgs),
    /// Make a token worthless from the next request on
    Revoke(RevokeArgs),
    /// Stop listening to an agent, a replica or a scheduler until it joins again
    Dismiss(DismissArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only those of this user
    #[arg(long, value_name = "USER", value_parser = name)]
    user: Option<Name>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// As `cell token ls` prints it: what stands before the dot in the token
    #[arg(value_name = "ID", value_parser = name)]
    id: Name,
}

impl LsArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let mut tokens: Vec<TokenView> =
            ask(pages::all(async |page| Ok(cell.client.tokens(page).await?.value)))?;
        if let Some(wanted) = &self.user {
            tokens.retain(
                |token| matches!(&token.kind, TokenKind::UserToken { user } if user == wanted),
            );
        }
        match self.output.output {
            Output::Json => print_json(&tokens)?,
            Output::Table if tokens.is_empty() => aside(match cell.open {
                true => "no tokens: an open master asks for none",
                false => "no tokens; next: cell token create --agent MACHINE",
            }),
            Output::Table => say(&list(&tokens))?,
        }
        Ok(Success::Done)
    }
}

impl RevokeArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let path = format!("/v1/tokens/{}", self.id);
        let (none, change) = (None::<&()>, Change::default());
        let _: Changed = ask(async {
            Ok(cell.client.change(Method::DELETE, &path, none, &change).await?.value)
        })?;
        say(&format!(
            "token {} is worthless from now on, and so is every token that was made with it\n",
            self.id
        ))?;
        Ok(Success::Done)
    }
}

fn list(tokens: &[TokenView]) -> String {
    let now = clock::now();
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let whose = match &token.kind {
                TokenKind::UserToken { user } => format!("user {user}"),
                TokenKind::JoinAgent { machine } => format!("join of agent {machine}"),
                TokenKind::JoinReplica { name } => format!("join of replica {name}"),
                TokenKind::JoinScheduler { name } => format!("join of scheduler {name}"),
                TokenKind::Dismissed { part, name } => format!("{part} {name} was sent away"),
            };
            let good = match (token.used, token.expires > now) {
                (true, _) => "used".into(),
                (false, true) => {
                    format!("for {}", format::span(Span(token.expires.0 - now.0)))
                }
                (false, false) => "expired".into(),
            };
            let parent = token.parent.as_ref().map_or_else(|| "none".into(), Name::to_string);
            vec![token.id.to_string(), format::since(token.created, now), good, parent, whose]
        })
        .collect();
    table::render_told(&["token", "age", "good", "made with", "whose"], &rows)
}

#[derive(Debug, Args)]
#[command(override_usage = DISMISS_USAGE)]
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
        say(&format!(
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

fn cannot_write(file: Option<&Path>, source: std::io::Error) -> Failure {
    let what = file.map_or_else(String::new, |file| file.display().to_string());
    Failure::Write { what, source }
}

/// A token that was written to a file is shown nowhere else.
fn as_json(made: &NewToken, file: Option<&Path>) -> Value {
    let NewToken { id, token, expires, index } = made;
    match file {
        Some(file) => json!({ "id": id, "token_file": file, "expires": expires, "index": index }),
        None => json!({ "id": id, "token": token, "expires": expires, "index": index }),
    }
}

#[derive(Debug, Args)]
#[command(override_usage = CREATE_USAGE)]
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

    /// How long it is good for, at most 15m
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = span)]
    valid_for: Span,

    /// Write the token to this new file, which only you can read, instead of showing it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

impl Token {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let args = match self {
            Token::Create(args) => args,
            Token::Ls(args) => return args.run(reach),
            Token::Revoke(args) => return args.run(reach),
            Token::Dismiss(args) => return args.run(reach),
        };
        let (joiner, next, name) = match (args.agent, args.replica, args.scheduler) {
            (Some(machine), _, _) => (Joiner::Agent, "agent join", machine),
            (_, Some(replica), _) => {
                (Joiner::Replica, "master join --advertise HOST:PORT", replica)
            }
            (_, _, Some(scheduler)) => (Joiner::Scheduler, "scheduler --join", scheduler),
            (None, None, None) => return Err(nobody()),
        };
        let cell = reach.cell()?;
        let body = AddJoinToken { joiner, name, valid_for: args.valid_for };
        // First: a token that cannot be written down is one that lies about.
        let file = args.token_file.as_deref().map(PrivateFile::create).transpose();
        let file = file.map_err(|source| cannot_write(args.token_file.as_deref(), source))?;
        let made: NewToken = ask(async {
            Ok(cell.client.make(Method::POST, "/v1/tokens/join", Some(&body)).await?.value)
        })?;
        let (shown, how) = match (&args.token_file, file) {
            (Some(path), Some(file)) => {
                let written = file.fill(format!("{}\n", made.token).as_bytes());
                written.map_err(|source| cannot_write(Some(path), source))?;
                let path = path.display();
                (format!("the token is in {path}"), format!(" --token-file {path}"))
            }
            _ => (made.token.clone(), String::new()),
        };
        match args.output.output {
            Output::Json => print_json(&as_json(&made, args.token_file.as_deref()))?,
            Output::Table => {
                say(&format!(
                    "{shown}\ngood once, until {}\nnext, there: cell {next}{how} --master {}\n",
                    format::utc(made.expires),
                    cell.client.preferred(),
                ))?;
            }
        }
        Ok(Success::Done)
    }
}
