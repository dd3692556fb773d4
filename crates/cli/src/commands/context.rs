//! `cell context`: the contexts (known cells with credentials), and the current one.

use super::Success;
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::table;
use cellwright_identity::contexts::{ContextError, Contexts};
use cellwright_identity::dev_token;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// Contexts: ls, use, add, set, refresh, header
#[derive(Debug, Subcommand)]
pub enum Context {
    /// List the contexts
    Ls(LsArgs),
    /// Make a context the one that is meant when none is named
    Use(UseArgs),
    /// Take over the contexts of a file, such as `cell user add` prints
    Add(AddArgs),
    /// Name the folders of libraries that job files for a cell may import from
    Set(SetArgs),
    /// Ask the cell for its masters and take them all into the context
    Refresh,
    /// Print the header that shows who you are, for a file of your own: curl -H @FILE
    Header,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// A context without its secrets.
#[derive(Serialize)]
struct ContextRow<'a> {
    name: &'a str,
    current: bool,
    masters: &'a [String],
    libraries: &'a [PathBuf],
}

#[derive(Debug, Args)]
pub struct UseArgs {
    /// Which
    name: String,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// The file they are in
    file: PathBuf,

    /// What to call it here; for a file with one context
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Put it in the place of a context of the same name, whose token is then gone
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Which [default: the one that is meant]
    name: Option<String>,

    /// A folder that files may import from; repeat it for several, which are searched in order.
    /// Those that were named before are forgotten
    #[arg(short = 'J', long = "library", value_name = "DIR", required_unless_present = "none")]
    libraries: Vec<PathBuf>,

    /// No library
    #[arg(long = "no-libraries", conflicts_with = "libraries")]
    none: bool,
}

impl Context {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let failed = |error: ContextError| Failure::from_error(&error, "cell context ls");
        if let Context::Header = self {
            print(&header(&connection.cell()?)?)?;
            return Ok(Success::Done);
        }
        let (path, mut contexts) = connection.load_contexts()?;
        match self {
            Context::Ls(args) => {
                let listed: Vec<ContextRow<'_>> = contexts
                    .contexts
                    .iter()
                    .map(|(name, context)| ContextRow {
                        name,
                        current: contexts.current.as_ref() == Some(name),
                        masters: &context.masters,
                        libraries: &context.libraries,
                    })
                    .collect();
                match args.output.output {
                    Output::Json => print_json(&listed)?,
                    Output::Table if listed.is_empty() => {
                        print_notice("no contexts; next: cell context add FILE");
                    }
                    Output::Table => print_prose(&render_list(&listed))?,
                }
            }
            Context::Use(args) => {
                let name = contexts.pick(Some(&args.name)).map_err(failed)?.0.to_owned();
                contexts.current = Some(name.clone());
                contexts.save(&path).map_err(failed)?;
                print_prose(&format!(
                    "context {name} is meant when none is named\nnext: cell status\n"
                ))?;
            }
            Context::Add(args) => {
                let names = args.add(&mut contexts)?;
                contexts.save(&path).map_err(failed)?;
                for name in names {
                    print_prose(&format!("context {name} is in {}\n", path.display()))?;
                }
            }
            Context::Set(args) => {
                let named = args.name.as_deref().or(connection.context()?);
                let name = contexts.pick(named).map_err(failed)?.0.to_owned();
                let libraries = args.folders()?;
                print_prose(&set_text(&name, &libraries))?;
                if let Some(context) = contexts.contexts.get_mut(&name) {
                    context.libraries = libraries;
                }
                contexts.save(&path).map_err(failed)?;
            }
            // Needs no contexts file, and was handled above.
            Context::Header => {}
            Context::Refresh => {
                let name = contexts.pick(connection.context()?).map_err(failed)?.0.to_owned();
                let masters = block_on(masters(&connection.cell()?))?;
                print_prose(&format!("context {name}: {}\n", masters.join(" ")))?;
                if let Some(context) = contexts.contexts.get_mut(&name) {
                    context.masters = masters;
                }
                contexts.save(&path).map_err(failed)?;
            }
        }
        Ok(Success::Done)
    }
}

impl AddArgs {
    /// Adds the contexts of a file and returns their names. An existing context of the same name
    /// may hold the only copy of an administrator's token, so it is not overwritten.
    fn add(&self, contexts: &mut Contexts) -> Result<Vec<String>, Failure> {
        let more = Contexts::load(&self.file)
            .map_err(|error| Failure::from_error(&error, "a file as `cell user add` prints it"))?;
        if self.name.is_some() && more.contexts.len() != 1 {
            return Err(Failure::Usage {
                message: format!("--name is for one context, the file has {}", more.contexts.len()),
                next: "the same without --name".into(),
            });
        }
        let mut names = Vec::new();
        for (name, mut context) in more.contexts {
            let name = self.name.clone().unwrap_or(name);
            let token = |of: &cellwright_identity::contexts::Context| {
                of.token.as_ref().map(|token| token.expose().to_owned())
            };
            let existing = contexts.contexts.get(&name);
            if existing.is_some_and(|here| token(here) != token(&context)) && !self.replace {
                let file = self.file.display();
                return Err(Failure::Usage {
                    message: format!("there is a context \"{name}\" already, with another token"),
                    next: format!("keep both: cell context add {file} --name OTHER; or --replace"),
                });
            }
            if let Some(here) = existing.filter(|_| context.libraries.is_empty()) {
                context.libraries.clone_from(&here.libraries);
            }
            contexts.put(&name, context);
            names.push(name);
        }
        Ok(names)
    }
}

impl SetArgs {
    /// The folders as they can be found from everywhere.
    fn folders(&self) -> Result<Vec<PathBuf>, Failure> {
        let real = |folder: &PathBuf| {
            let real = folder.canonicalize();
            real.ok().filter(|real| real.is_dir()).ok_or_else(|| Failure::Usage {
                message: format!("{} is no folder that can be read", folder.display()),
                next: "name a folder with .libsonnet files, or --no-libraries".into(),
            })
        };
        self.libraries.iter().map(real).collect()
    }
}

fn set_text(name: &str, libraries: &[PathBuf]) -> String {
    match libraries {
        [] => format!("files for {name} import from their own folder alone\n"),
        some => format!("files for {name} may import from {}\n", folder_list(some)),
    }
}

fn folder_list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" ")
}

fn render_list(contexts: &[ContextRow<'_>]) -> String {
    let row = |context: &ContextRow<'_>| {
        let mark = if context.current { "current" } else { "" };
        let libraries = folder_list(context.libraries);
        vec![context.name.to_owned(), mark.to_owned(), context.masters.join(" "), libraries]
    };
    let rows: Vec<Vec<String>> = contexts.iter().map(row).collect();
    table::render(&["context", "", "masters", "libraries"], &rows)
}

/// The addresses of all masters of a cell, the leader first, so that no redirect is needed.
pub async fn masters(cell: &Cell) -> Result<Vec<String>, Failure> {
    let mut members = cell.client.master_status().await?.value.members;
    members.sort_by_key(|member| (!member.leader, member.id));
    Ok(members.into_iter().map(|member| member.address).collect())
}

/// The authorization header with the context's token, or for an open master.
fn header(cell: &Cell) -> Result<String, Failure> {
    let own = cell.context.as_ref().and_then(|context| context.token.clone());
    let found = own.or_else(|| dev_token::token_for(&[cell.client.preferred()]));
    let token = found.ok_or_else(|| Failure::Operation {
        message: "there is no token for this cell here".into(),
        next: "ask as the account that started it, or with a context that has a token".into(),
    })?;
    Ok(format!("authorization: Bearer {}\n", token.expose()))
}
