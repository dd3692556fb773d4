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

    /// A context of the contexts file [default: the current one]; run, plan and validate take
    /// several, one after the other
    #[arg(long = "context", value_name = "NAME", global = true)]
    pub context_names: Vec<String>,

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

    /// The context that was named, by commands that are about one cell.
    pub fn context(&self) -> Result<Option<&str>, Failure> {
        match self.context_names.as_slice() {
            [] => Ok(None),
            [name] => Ok(Some(name)),
            [first, ..] => Err(Failure::Usage {
                message: format!("{} contexts; allowed: one here", self.context_names.len()),
                next: format!("one after the other, first with --context {first} alone"),
            }),
        }
    }

    /// One for each cell that is meant, in the order in which they were named.
    pub fn each_context(&self) -> Result<Vec<ConnectionArgs>, Failure> {
        if self.context_names.len() < 2 {
            return Ok(vec![self.clone()]);
        }
        let names = &self.context_names;
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name))
        {
            return Err(Failure::Usage {
                message: format!("the context {} is named twice; allowed: once each", twice.1),
                next: "the same command with each context once".into(),
            });
        }
        let alone =
            |name: &String| ConnectionArgs { context_names: vec![name.clone()], ..self.clone() };
        Ok(names.iter().map(alone).collect())
    }

    /// The cell that a file is evaluated for; without asking it, or that there has to be one.
    pub fn environment(&self) -> Result<Environment, Failure> {
        let open = Environment { cell: DEV_CELL.to_owned(), libraries: Vec::new() };
        match self.choose() {
            Ok(Chosen::Open(_)) => Ok(open),
            Ok(Chosen::Context { name, context, .. }) => {
                Ok(Environment { cell: name, libraries: context.libraries })
            }
            Err(_) if self.context_names.is_empty() && self.contexts.is_none() => Ok(open),
            Err(failure) => Err(failure),
        }
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
        let (path, name, context) = match self.choose()? {
            Chosen::Open(addresses) => return open_cell(settings(addresses)),
            Chosen::Context { path, name, context } => (path, name, context),
        };
        let tls = context.tls(&name).map_err(|error| {
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
        Ok(Cell { client, open, context: Some(context) })
    }

    /// Which cell the options, the environment and the contexts file name.
    fn choose(&self) -> Result<Chosen, Failure> {
        let named = self.context()?;
        if !self.masters.is_empty() {
            if named.is_some() {
                return Err(Failure::Usage {
                    message: "--master names an open master, --context a cell with identities"
                        .into(),
                    next: "the same command with one of the two".into(),
                });
            }
            return Ok(Chosen::Open(self.masters.clone()));
        }
        let addresses = match named {
            Some(_) => Vec::new(),
            None => split_addresses(&env::var("CELL_ADDR").unwrap_or_default()),
        };
        let loaded = self.load_contexts();
        let context_of_addresses = |(_, contexts): &(PathBuf, Contexts)| {
            contexts.with_master(&addresses).map(str::to_owned)
        };
        let context_name = loaded.as_ref().ok().and_then(context_of_addresses);
        if !addresses.is_empty() && context_name.is_none() {
            return Ok(Chosen::Open(addresses));
        }
        let (path, contexts) = loaded?;
        let picked = contexts.pick(named.or(context_name.as_deref()));
        let (name, context) = picked.map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: choose_cell_hint(&path),
        })?;
        let (name, context) = (name.to_owned(), context.clone());
        Ok(Chosen::Context { path, name, context })
    }
}

/// Which cell is meant.
enum Chosen {
    /// Open masters at these addresses.
    Open(Vec<String>),
    Context {
        path: PathBuf,
        name: String,
        context: Context,
    },
}

/// What a job file may know of the cell that it is evaluated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The name of the context; of an open master, which has none, [`DEV_CELL`].
    pub cell: String,
    pub libraries: Vec<PathBuf>,
}

/// The name that files see of an open master, which is one for trying things out.
const DEV_CELL: &str = "dev";

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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionArgs,
    }

    fn read(words: &[&str]) -> ConnectionArgs {
        Line::try_parse_from([&["cell"], words].concat()).unwrap().connection
    }

    #[test]
    fn several_contexts_are_taken_one_after_the_other_or_refused() {
        let two = read(&["--context", "staging", "--context", "production"]);
        let each = two.each_context().unwrap();
        let names: Vec<Option<&str>> = each.iter().map(|one| one.context().unwrap()).collect();
        assert_eq!(names, [Some("staging"), Some("production")]);
        let error = two.context().unwrap_err().to_string();
        assert_eq!(error, "2 contexts; allowed: one here");
        assert_eq!(two.cell().err().map(|error| error.to_string()), Some(error));
        let twice = read(&["--context", "a", "--context", "a"]).each_context().unwrap_err();
        assert!(twice.to_string().contains("named twice"), "{twice}");
        assert_eq!(read(&[]).each_context().unwrap().len(), 1);
    }

    #[test]
    fn a_file_knows_its_cell_by_the_name_of_the_context() {
        let path = std::env::temp_dir().join(format!("cell-contexts-{}", std::process::id()));
        let mut contexts = Contexts::default();
        let context = Context {
            masters: vec!["127.0.0.1:7070".into()],
            authority: None,
            token: None,
            certificate: None,
            key: None,
            libraries: vec!["/srv/jobs".into()],
        };
        contexts.put("staging", context);
        contexts.save(&path).unwrap();
        let file = path.display().to_string();
        let found = read(&["--contexts", &file, "--context", "staging"]).environment().unwrap();
        let libraries = vec![PathBuf::from("/srv/jobs")];
        assert_eq!(found, Environment { cell: "staging".into(), libraries });
        let unknown = read(&["--contexts", &file, "--context", "other"]).environment();
        assert!(unknown.unwrap_err().to_string().contains("there is no context \"other\""));
        let open = read(&["--master", "127.0.0.1:7070"]).environment().unwrap();
        assert_eq!((open.cell.as_str(), open.libraries.len()), ("dev", 0));
        std::fs::remove_file(&path).unwrap();
    }
}
