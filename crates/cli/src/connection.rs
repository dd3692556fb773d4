//! Which cell a command connects to, and how: an open master named on the command line, a context
//! of the contexts file, or the address in `CELL_ADDR`, which can be of either kind.

use crate::failure::Failure;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::masters::MastersFile;
use cellwright_cell::name::Name;
use cellwright_gateway::serve::DEV_USER;
use cellwright_identity::contexts::{Context, Contexts, default_path};
use clap::Args;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a command waits before it reports that no master answers.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a command retries when every master refuses the connection. An election is no reason to
/// wait longer, because then a master still accepts connections. A master that restarts refuses
/// them for a moment, so connections are retried for this long.
pub const REFUSED_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one master may take to answer a question that every master can answer by itself; of
/// this, connecting gets three seconds.
const PER_MASTER_TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which cell")]
pub struct ConnectionArgs {
    /// An open (--dev) master on this machine; repeat it for several [default: CELL_ADDR]
    #[arg(long = "master", value_name = "HOST:PORT", global = true)]
    pub masters: Vec<String>,

    /// A context of the contexts file [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,

    /// The file of contexts [default: ~/.config/cellwright/contexts.toml]
    #[arg(long, value_name = "FILE", global = true)]
    pub contexts: Option<PathBuf>,
}

/// Set once this process has received an answer: a master that refuses connections after that
/// existed, and may come back.
static HAS_ANSWERED: AtomicBool = AtomicBool::new(false);

/// Records that the cell has answered this process, which will ask it again.
pub fn mark_answered() {
    HAS_ANSWERED.store(true, Ordering::Relaxed);
}

fn refused_timeout() -> Duration {
    if HAS_ANSWERED.load(Ordering::Relaxed) { Duration::MAX } else { REFUSED_TIMEOUT }
}

/// A cell that requests can be sent to.
pub struct Cell {
    pub client: Client,
    /// Whether the master is open: callers do not authenticate.
    pub open: bool,
    /// The context from the contexts file; absent for an open master.
    pub context: Option<Context>,
}

impl ConnectionArgs {
    pub fn contexts_path(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.contexts {
            return Ok(path.clone());
        }
        let folder = |name: &str| env::var_os(name).map(PathBuf::from);
        let (config, home) = (folder("XDG_CONFIG_HOME"), folder("HOME"));
        default_path(config.as_deref(), home.as_deref()).ok_or_else(|| Failure::Usage {
            message: "neither HOME nor XDG_CONFIG_HOME says where the contexts are".into(),
            next: "the same command with --contexts FILE".into(),
        })
    }

    /// A follow-up command, with the flag that finds the same contexts file.
    pub fn with_contexts_flag(&self, next: &str) -> String {
        match (&self.contexts, next.strip_prefix("cell --context ")) {
            (Some(path), Some(rest)) => {
                format!("cell --contexts {} --context {rest}", path.display())
            }
            _ => next.to_owned(),
        }
    }

    pub fn load_contexts(&self) -> Result<(PathBuf, Contexts), Failure> {
        let path = self.contexts_path()?;
        let contexts = Contexts::load(&path).map_err(|error| {
            Failure::from_error(&error, "correct the file, or name another: --contexts FILE")
        })?;
        Ok((path, contexts))
    }

    pub fn cell(&self) -> Result<Cell, Failure> {
        self.cell_with_deadline(DEADLINE, refused_timeout())
    }

    /// For a component of the cell, which may be started before its masters.
    pub fn cell_for_daemon(&self) -> Result<Cell, Failure> {
        self.cell_with_deadline(DEADLINE, Duration::MAX)
    }

    /// For questions that any master can answer: no election is awaited, each master is only tried
    /// in turn.
    pub fn any_master(&self) -> Result<Cell, Failure> {
        let masters = self.cell()?.client.masters().len();
        let total_timeout =
            PER_MASTER_TIMEOUT.saturating_mul(u32::try_from(masters).unwrap_or(u32::MAX));
        self.cell_with_deadline(total_timeout.min(DEADLINE), refused_timeout())
    }

    /// A cell with a deadline for answers, and a timeout for refused connections.
    fn cell_with_deadline(
        &self,
        deadline: Duration,
        refused_timeout: Duration,
    ) -> Result<Cell, Failure> {
        let settings = |masters: Vec<String>| ApiClientConfig {
            deadline,
            refused_timeout,
            ..ApiClientConfig::new(masters)
        };
        if !self.masters.is_empty() {
            if self.context.is_some() {
                return Err(Failure::Usage {
                    message: "--master names an open master, --context a cell with identities"
                        .into(),
                    next: "the same command with one of the two".into(),
                });
            }
            return open_cell(settings(self.masters.clone()));
        }
        let addresses = match &self.context {
            Some(_) => Vec::new(),
            None => split_addresses(&env::var("CELL_ADDR").unwrap_or_default()),
        };
        let loaded = self.load_contexts();
        let context_of_addresses = |(_, contexts): &(PathBuf, Contexts)| {
            contexts.with_master(&addresses).map(str::to_owned)
        };
        let context_name = loaded.as_ref().ok().and_then(context_of_addresses);
        if !addresses.is_empty() && context_name.is_none() {
            return open_cell(settings(addresses));
        }
        let (path, contexts) = loaded?;
        let (name, context) = contexts
            .pick(self.context.as_deref().or(context_name.as_deref()))
            .map_err(|error| Failure::Usage {
                message: error.to_string(),
                next: choose_cell_hint(&path),
            })?;
        let tls = context.tls(name).map_err(|error| {
            Failure::from_error(
                &error,
                "correct the context, or have the cell's administrator make one",
            )
        })?;
        let open = tls.is_none();
        let mut settings = settings(context.masters.clone());
        settings.tls = tls.map(Arc::new);
        settings.token.clone_from(&context.token);
        // Where the masters file cannot be written next to the contexts file, it is not kept; that
        // is no error.
        let masters_file =
            |authority: &String| MastersFile::new(MastersFile::path_beside(&path), authority).ok();
        settings.masters_file = context.authority.as_ref().and_then(masters_file);
        let client = Client::new(settings)?;
        Ok(Cell { client, open, context: Some(context.clone()) })
    }
}

/// Addresses separated by commas, with or without a scheme, as other programs accept them.
fn split_addresses(text: &str) -> Vec<String> {
    let bare = |address: &str| {
        let address = address.trim().trim_end_matches('/');
        let bare = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
        bare.unwrap_or(address).to_owned()
    };
    text.split(',').map(bare).filter(|address| !address.is_empty()).collect()
}

fn open_cell(settings: ApiClientConfig) -> Result<Cell, Failure> {
    Ok(Cell { client: Client::new(settings)?, open: true, context: None })
}

impl Cell {
    /// The owner of a submitted job when the command line does not name one.
    pub fn job_owner(&self, given: Option<Name>) -> Option<Name> {
        given.or_else(|| Name::new(DEV_USER).ok().filter(|_| self.open))
    }
}

fn choose_cell_hint(path: &Path) -> String {
    format!(
        "for a cell of your own: cell dev; for one that runs: --master HOST:PORT (or CELL_ADDR), \
         or --context NAME with a context in {}",
        path.display()
    )
}
