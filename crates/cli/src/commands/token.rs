//! `cell token create`: makes join tokens, each for one name and one use. `cell token revoke`:
//! makes a token worthless, or has masters reject a part of the cell until it joins again.

use super::parse::{duration, name};
use super::{Success, pagination};
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{Output, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{clock, format, table};
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{AddJoinToken, Changed, Joiner, NewToken, PartRevocation, TokenView};
use cellwright_cell::credential::{PartKind, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_identity::private_files::PrivateFile;
use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CREATE_USAGE: &str = "\
cell token create [OPTIONS]
       <--agent <MACHINE>|--replica <NAME>|--scheduler <NAME>>";
const REVOKE_USAGE: &str = "\
cell token revoke [OPTIONS]
       <ID|--agent <MACHINE>|--replica <NAME>|--scheduler <NAME>>";

/// Tokens: create, ls, revoke
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a join token for a machine, a replica of the master or a scheduler
    Create(CreateArgs),
    /// List the tokens, without their secrets
    Ls(LsArgs),
    /// Make a token worthless, or a part of the cell unwelcome until it joins again
    Revoke(RevokeArgs),
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
#[command(override_usage = REVOKE_USAGE)]
#[command(group = ArgGroup::new("whose").required(true)
    .args(["id", "agent", "replica", "scheduler"]))]
pub struct RevokeArgs {
    /// As `cell token ls` prints it: what stands before the dot in the token
    #[arg(value_name = "ID", value_parser = name)]
    id: Option<Name>,

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

impl LsArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let mut tokens: Vec<TokenView> = block_on(pagination::fetch_all(async |page| {
            Ok(cell.client.tokens(page).await?.value)
        }))?;
        if let Some(wanted_user) = &self.user {
            tokens.retain(
                |token| matches!(&token.kind, TokenKind::UserToken { user } if user == wanted_user),
            );
        }
        match self.output.output {
            Output::Json => print_json(&tokens)?,
            Output::Table if tokens.is_empty() => print_notice(if cell.open {
                "no tokens: an open master asks for none"
            } else {
                "no tokens; next: cell token create --agent MACHINE"
            }),
            Output::Table => print_prose(&render_list(&tokens))?,
        }
        Ok(Success::Done)
    }
}

impl RevokeArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let (part, name) = match (self.id, self.agent, self.replica, self.scheduler) {
            (Some(id), ..) => return revoke_token(&id, connection),
            (_, Some(machine), ..) => (PartKind::Agent, machine),
            (_, _, Some(replica), _) => (PartKind::Replica, replica),
            (_, _, _, Some(scheduler)) => (PartKind::Scheduler, scheduler),
            (None, None, None, None) => return Err(no_part_named()),
        };
        revoke_part(PartRevocation { part, name }, connection)
    }
}

fn revoke_token(id: &Name, connection: &ConnectionArgs) -> Result<Success, Failure> {
    let cell = connection.cell()?;
    let path = format!("/v1/tokens/{id}");
    let (none, change) = (None::<&()>, ChangeOptions::default());
    let _: Changed = block_on(async {
        Ok(cell.client.change(Method::DELETE, &path, none, &change).await?.value)
    })?;
    print_prose(&format!(
        "token {id} is worthless from now on, and so is every token that was made with it\n"
    ))?;
    Ok(Success::Done)
}

fn revoke_part(body: PartRevocation, connection: &ConnectionArgs) -> Result<Success, Failure> {
    let cell = connection.cell()?;
    let change = ChangeOptions::default();
    let done: Changed = block_on(async {
        let answer = cell.client.change(Method::POST, "/v1/revocations", Some(&body), &change);
        Ok(answer.await?.value)
    })?;
    let PartRevocation { part, name } = body;
    let again = if done.changed { "" } else { " already" };
    print_prose(&format!(
        "{part} {name} is revoked{again}\n\
         next, should it come back: cell token create --{part} {name}\n"
    ))?;
    Ok(Success::Done)
}

fn render_list(tokens: &[TokenView]) -> String {
    let now = clock::now();
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let subject = match &token.kind {
                TokenKind::UserToken { user } => format!("user {user}"),
                TokenKind::JoinAgent { machine } => format!("join of agent {machine}"),
                TokenKind::JoinReplica { name } => format!("join of replica {name}"),
                TokenKind::JoinScheduler { name } => format!("join of scheduler {name}"),
                TokenKind::Revocation { part, name } => format!("{part} {name} is revoked"),
            };
            let validity = match (token.used, token.expires > now) {
                (true, _) => "used".into(),
                (false, true) => {
                    format!("for {}", format::duration(Span(token.expires.0 - now.0)))
                }
                (false, false) => "expired".into(),
            };
            let parent = token.parent.as_ref().map_or_else(|| "none".into(), Name::to_string);
            vec![
                token.id.to_string(),
                format::elapsed(token.created, now),
                validity,
                parent,
                subject,
            ]
        })
        .collect();
    table::render_with_text_column(&["token", "age", "good", "made with", "whose"], &rows)
}

fn no_part_named() -> Failure {
    Failure::Usage {
        message: "the token is for nobody".into(),
        next: "--agent MACHINE, --replica NAME or --scheduler NAME".into(),
    }
}

fn write_failure(file: Option<&Path>, source: std::io::Error) -> Failure {
    let path_text = file.map_or_else(String::new, |file| file.display().to_string());
    Failure::Write { what: path_text, source }
}

/// A token that was written to a file is not printed.
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
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration)]
    valid_for: Span,

    /// Write the token to this new file, which only you can read, instead of showing it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

impl Token {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let args = match self {
            Token::Create(args) => args,
            Token::Ls(args) => return args.run(connection),
            Token::Revoke(args) => return args.run(connection),
        };
        let (joiner, next, name) = match (args.agent, args.replica, args.scheduler) {
            (Some(machine), _, _) => (Joiner::Agent, "agent join", machine),
            (_, Some(replica), _) => {
                (Joiner::Replica, "master join --advertise HOST:PORT", replica)
            }
            (_, _, Some(scheduler)) => (Joiner::Scheduler, "scheduler --join", scheduler),
            (None, None, None) => return Err(no_part_named()),
        };
        let cell = connection.cell()?;
        let body = AddJoinToken { joiner, name, valid_for: args.valid_for };
        // First, so that no token is created that cannot be written to its file.
        let file = args.token_file.as_deref().map(PrivateFile::create).transpose();
        let file = file.map_err(|source| write_failure(args.token_file.as_deref(), source))?;
        let made: NewToken = block_on(async {
            Ok(cell.client.create(Method::POST, "/v1/tokens/join", Some(&body)).await?.value)
        })?;
        let (token_text, token_file_flag) = match (&args.token_file, file) {
            (Some(path), Some(file)) => {
                let written = file.write(format!("{}\n", made.token).as_bytes());
                written.map_err(|source| write_failure(Some(path), source))?;
                let path = path.display();
                (format!("the token is in {path}"), format!(" --token-file {path}"))
            }
            _ => (made.token.clone(), String::new()),
        };
        match args.output.output {
            Output::Json => print_json(&as_json(&made, args.token_file.as_deref()))?,
            Output::Table => {
                print_prose(&format!(
                    "{token_text}\ngood once, until {}\n\
                     next, there: cell {next}{token_file_flag} --master {}\n",
                    format::utc(made.expires),
                    cell.client.preferred(),
                ))?;
            }
        }
        Ok(Success::Done)
    }
}
