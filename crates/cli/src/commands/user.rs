//! `cell user`: who may submit work, and the context they do it with.

use super::Success;
use super::context::masters;
use super::parse::{name, span};
use super::words::word;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::table;
use cellwright_api::client::{Change, PageAt};
use cellwright_api::context::{Context, Contexts};
use cellwright_api::secret::Secret;
use cellwright_api::types::{AddUser, AddUserToken, Changed, NewToken, SetCapabilities, UserView};
use cellwright_cell::name::Name;
use cellwright_cell::quota::Capability;
use cellwright_cell::time::Span;
use clap::{Args, Subcommand};
use hyper::Method;
use std::collections::BTreeSet;

/// Users: add, ls
#[derive(Debug, Subcommand)]
pub enum User {
    /// Add a user and print a context for them, token included: hand it over privately
    Add(AddArgs),
    /// List the users with their capabilities and quota
    Ls(LsArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,

    /// What they may do beside submitting jobs: administrate_jobs, manage_machines, manage_users,
    /// disable_reclamation, use_monitoring_band, read_output, enter_tasks; repeat it for several
    #[arg(long = "capability", value_name = "CAPABILITY", value_parser = capability)]
    capabilities: Vec<Capability>,

    /// How long the token is good for
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = span)]
    valid_for: Span,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    output: OutputArgs,
}

fn capability(text: &str) -> Result<Capability, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

impl User {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        match self {
            User::Add(args) => {
                let text = ask(args.add(&cell, reach))?;
                print(&text)?;
            }
            User::Ls(args) => {
                let users = ask(all(&cell))?;
                match args.output.output {
                    Output::Json => print_json(&users)?,
                    Output::Table => print(&list(&users))?,
                }
            }
        }
        Ok(Success::Done)
    }
}

impl AddArgs {
    async fn add(&self, cell: &Cell, reach: &Reach) -> Result<String, Failure> {
        let body = AddUser { name: self.user.clone() };
        let change = Change::default();
        let client = &cell.client;
        let _: Changed =
            client.change(Method::POST, "/v1/users", Some(&body), &change).await?.value;
        if !self.capabilities.is_empty() {
            let capabilities: BTreeSet<Capability> = self.capabilities.iter().copied().collect();
            let body = SetCapabilities { capabilities };
            let path = format!("/v1/users/{}/capabilities", self.user);
            let _: Changed = client.change(Method::PUT, &path, Some(&body), &change).await?.value;
        }
        let Some(own) = cell.context.as_ref().filter(|_| !cell.open) else {
            return Ok(format!("user {} is added; an open master asks for no token\n", self.user));
        };
        let body = AddUserToken { valid_for: self.valid_for };
        let path = format!("/v1/users/{}/tokens", self.user);
        let made: NewToken = client.make(Method::POST, &path, Some(&body)).await?.value;
        let masters = masters(cell).await?;
        context_text(own, masters, &context_name(reach)?, made)
    }
}

/// The name under which the caller knows the cell is as good as any for the new user.
fn context_name(reach: &Reach) -> Result<String, Failure> {
    let (_, contexts) = reach.load_contexts()?;
    let picked = contexts.pick(reach.context.as_deref());
    let (name, _) = picked.map_err(|error| Failure::work(&error, "cell context ls"))?;
    Ok(name.to_owned())
}

/// The file of the new user, ready to be saved.
fn context_text(
    own: &Context,
    masters: Vec<String>,
    name: &str,
    made: NewToken,
) -> Result<String, Failure> {
    let mut contexts = Contexts::default();
    let context = Context {
        masters,
        authority: own.authority.clone(),
        token: Some(Secret::new(made.token)),
        certificate: None,
        key: None,
    };
    contexts.put(name, context);
    let text = toml::to_string_pretty(&contexts)
        .map_err(|error| Failure::work(&error, "make the token apart: cell token"))?;
    Ok(format!(
        "# Save this as a file and run: cell context add FILE\n\
         # The token is good until {}.\n{text}",
        crate::format::utc(made.expires)
    ))
}

async fn all(cell: &Cell) -> Result<Vec<UserView>, Failure> {
    let mut users = Vec::new();
    let mut page = PageAt { limit: Some(1000), consistent: true, after: None };
    loop {
        let part = cell.client.users(&page).await?.value;
        users.extend(part.items);
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(users),
        }
    }
}

fn list(users: &[UserView]) -> String {
    let rows: Vec<Vec<String>> = users
        .iter()
        .map(|user| {
            let capabilities: Vec<String> = user.capabilities.iter().map(word).collect();
            let quota: Vec<String> = user.quota.iter().map(|quota| word(&quota.band)).collect();
            let or_none = |list: Vec<String>| match list.is_empty() {
                true => "none".to_owned(),
                false => list.join(", "),
            };
            vec![
                user.name.to_string(),
                user.live_jobs.to_string(),
                or_none(quota),
                or_none(capabilities),
            ]
        })
        .collect();
    table::render(&["user", "live jobs", "quota in", "capabilities"], &rows)
}
