//! `cell user`: users who may submit work, and the contexts they use.

use super::context::masters;
use super::enum_words::{enum_text, parse_enum};
use super::parse::{duration, name};
use super::{Success, pagination};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::table;
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{AddUser, AddUserToken, Changed, NewToken, SetCapabilities, UserView};
use cellwright_cell::name::Name;
use cellwright_cell::quota::Capability;
use cellwright_cell::time::Span;
use cellwright_cell::units::pluralize;
use cellwright_identity::contexts::{Context, Contexts};
use cellwright_identity::secret::Secret;
use clap::{Args, Subcommand};
use hyper::Method;
use std::collections::BTreeSet;

/// Users: add, token, ls, show, grant, revoke, rm
#[derive(Debug, Subcommand)]
pub enum User {
    /// Add a user and print a context for them, token included: hand it over privately
    Add(AddArgs),
    /// Print one more context for a user who is there, with a token of its own
    Token(TokenArgs),
    /// List the users with their capabilities and quota
    Ls(LsArgs),
    /// One user with their quota and what is charged
    Show(ShowArgs),
    /// Let a user do more: capabilities as in `cell user add --help`
    Grant(CapabilityArgs),
    /// Take capabilities away from a user
    Revoke(CapabilityArgs),
    /// Take a user out: their tokens are worthless at once, their dead jobs are forgotten
    Rm(UserArgs),
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    target: UserArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct UserArgs {
    /// Their name, as `cell user ls` shows it
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,
}

#[derive(Debug, Args)]
pub struct CapabilityArgs {
    /// Who
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,

    /// administrate_jobs, manage_machines, manage_users, disable_reclamation,
    /// use_monitoring_band, read_output, enter_tasks or read_specs
    #[arg(value_name = "CAPABILITY", value_parser = parse_capability, required = true)]
    capabilities: Vec<Capability>,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// What they are called
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,

    /// What they may do beside submitting jobs: administrate_jobs, manage_machines, manage_users,
    /// disable_reclamation, use_monitoring_band, read_output, enter_tasks, read_specs; repeat it
    /// for several
    #[arg(long = "capability", value_name = "CAPABILITY", value_parser = parse_capability)]
    capabilities: Vec<Capability>,

    /// How long the token is good for
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration)]
    valid_for: Span,
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Who
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,

    /// How long the token is good for
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration)]
    valid_for: Span,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_capability(text: &str) -> Result<Capability, String> {
    parse_enum(text, &Capability::ALL)
}

impl User {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        match self {
            User::Add(args) => {
                let text = block_on(args.add(&cell, connection))?;
                print(&text)?;
            }
            User::Token(args) => {
                let text = block_on(async {
                    // An unknown name is a separate error.
                    cell.client.user(&args.user).await?;
                    new_context(&cell, connection, &args.user, args.valid_for).await
                })?;
                print(&text.unwrap_or_else(|| "an open master asks for no token\n".into()))?;
            }
            User::Ls(args) => {
                let all =
                    pagination::fetch_all(async |page| Ok(cell.client.users(page).await?.value));
                let users: Vec<UserView> = block_on(all)?;
                match args.output.output {
                    Output::Json => print_json(&users)?,
                    Output::Table if users.is_empty() => {
                        print_notice("no users; next: cell user add NAME")
                    }
                    Output::Table => print_prose(&render_list(&users))?,
                }
            }
            User::Show(args) => {
                let name = &args.target.user;
                let user = block_on(async { Ok(cell.client.user(name).await?.value.item) })?;
                match args.output.output {
                    Output::Json => print_json(&user)?,
                    Output::Table => print_prose(&super::status::shown_user(&user))?,
                }
            }
            User::Grant(args) => args.change(&cell, true)?,
            User::Revoke(args) => args.change(&cell, false)?,
            User::Rm(args) => remove(&cell, &args.user)?,
        }
        Ok(Success::Done)
    }
}

impl CapabilityArgs {
    fn change(&self, cell: &Cell, grant: bool) -> Result<(), Failure> {
        let (now, revoked) = block_on(async {
            let user = cell.client.user(&self.user).await?.value.item;
            let mut capabilities = user.capabilities;
            for capability in &self.capabilities {
                if grant {
                    capabilities.insert(*capability)
                } else {
                    capabilities.remove(capability)
                };
            }
            let body = SetCapabilities { capabilities };
            let path = format!("/v1/users/{}/capabilities", self.user);
            // Fails if another change was made between reading and writing.
            let change = ChangeOptions { expect: Some(user.version), ..ChangeOptions::default() };
            let done: Changed =
                cell.client.change(Method::PUT, &path, Some(&body), &change).await?.value;
            Ok((body.capabilities, done.tokens_revoked))
        })?;
        if let Some(tokens) = revoked {
            let tokens = pluralize(u64::from(tokens), "token");
            print_notice(&format!(
                "revoked with it: {tokens} that {} had made by that right",
                self.user
            ));
        }
        let list: Vec<String> = now.iter().map(enum_text).collect();
        let list = if list.is_empty() { "none".into() } else { list.join(", ") };
        print(&table::wrap(&format!("user {} has now: ", self.user), "  ", &list))
    }
}

fn remove(cell: &Cell, user: &Name) -> Result<(), Failure> {
    let (path, none, change) = (format!("/v1/users/{user}"), None::<&()>, ChangeOptions::default());
    block_on(async {
        cell.client.change::<_, Changed>(Method::DELETE, &path, none, &change).await?;
        Ok(())
    })?;
    print_prose(&format!(
        "user {user} is not part of the cell any more; their tokens are worthless from now on\n"
    ))
}

impl AddArgs {
    async fn add(&self, cell: &Cell, connection: &ConnectionArgs) -> Result<String, Failure> {
        let body = AddUser { name: self.user.clone() };
        let change = ChangeOptions::default();
        let client = &cell.client;
        let added: Changed =
            client.change(Method::POST, "/v1/users", Some(&body), &change).await?.value;
        if !added.changed {
            return Err(self.already_exists_failure());
        }
        if !self.capabilities.is_empty() {
            let capabilities: BTreeSet<Capability> = self.capabilities.iter().copied().collect();
            let body = SetCapabilities { capabilities };
            let path = format!("/v1/users/{}/capabilities", self.user);
            let _: Changed = client.change(Method::PUT, &path, Some(&body), &change).await?.value;
        }
        let text = new_context(cell, connection, &self.user, self.valid_for).await?;
        Ok(text.unwrap_or_else(|| {
            format!("user {} is added; an open master asks for no token\n", self.user)
        }))
    }
}

/// The context of a user with a new token; nothing where no token is requested.
async fn new_context(
    cell: &Cell,
    connection: &ConnectionArgs,
    user: &Name,
    valid_for: Span,
) -> Result<Option<String>, Failure> {
    let Some(caller_context) = cell.context.as_ref().filter(|_| !cell.open) else {
        return Ok(None);
    };
    let body = AddUserToken { valid_for };
    let path = format!("/v1/users/{user}/tokens");
    let made: NewToken = cell.client.create(Method::POST, &path, Some(&body)).await?.value;
    let masters = masters(cell).await?;
    context_text(caller_context, masters, &current_context_name(connection)?, made).map(Some)
}

impl AddArgs {
    /// The failure for a user that exists: the options given with it have verbs of their own.
    fn already_exists_failure(&self) -> Failure {
        let user = &self.user;
        let next = if self.capabilities.is_empty() {
            format!("cell user show {user}; one more token: cell user token {user}")
        } else {
            let list: Vec<String> = self
                .capabilities
                .iter()
                .map(|capability| enum_text(capability).replace(' ', "_"))
                .collect();
            format!("cell user grant {user} {}", list.join(" "))
        };
        Failure::Operation { message: format!("user {user} exists already"), next }
    }
}

/// The new user's context is named as the caller's.
fn current_context_name(connection: &ConnectionArgs) -> Result<String, Failure> {
    let (_, contexts) = connection.load_contexts()?;
    let picked = contexts.pick(connection.context()?);
    let (name, _) = picked.map_err(|error| Failure::from_error(&error, "cell context ls"))?;
    Ok(name.to_owned())
}

/// The contexts file of the new user, as text.
fn context_text(
    caller_context: &Context,
    masters: Vec<String>,
    name: &str,
    made: NewToken,
) -> Result<String, Failure> {
    let mut contexts = Contexts::default();
    let context = Context {
        masters,
        authority: caller_context.authority.clone(),
        token: Some(Secret::new(made.token)),
        certificate: None,
        key: None,
        libraries: Vec::new(),
    };
    contexts.put(name, context);
    let text = toml::to_string_pretty(&contexts)
        .map_err(|error| Failure::from_error(&error, "make the token apart: cell token"))?;
    Ok(format!(
        "# Save this as a file and run: cell context add FILE\n\
         # The token is good until {}.\n{text}",
        crate::format::utc(made.expires)
    ))
}

fn render_list(users: &[UserView]) -> String {
    let rows: Vec<Vec<String>> = users
        .iter()
        .map(|user| {
            let capabilities: Vec<String> = user.capabilities.iter().map(enum_text).collect();
            let quota: Vec<String> =
                user.quota.iter().map(|quota| enum_text(&quota.band)).collect();
            let or_none = |list: Vec<String>| {
                if list.is_empty() { "none".to_owned() } else { list.join(", ") }
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
