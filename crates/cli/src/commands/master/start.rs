//! `cell master start`: runs one replica in the foreground.

use crate::commands::dev::DevArgs;
use crate::commands::{DEFAULT_CONFIG, Success};
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::{ShutdownSignal, serve};
use cellwright_gateway::config::Config;
use cellwright_gateway::serve::{AccessMode, run_master};
use cellwright_master::child_process::ChildCommand;
use clap::Args;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct StartArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG, conflicts_with = "dev")]
    config: PathBuf,

    /// An open master for trying things out: loopback only, and for this account alone
    #[arg(long, requires = "data_dir")]
    dev: bool,

    /// Where an open master keeps its cell
    #[arg(long, value_name = "DIR", requires = "dev")]
    data_dir: Option<PathBuf>,

    /// Where an open master listens
    #[arg(long, value_name = "ADDRESS:PORT", requires = "dev", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
}

impl StartArgs {
    pub fn run(self) -> Result<Success, Failure> {
        if let Some(data_dir) = self.data_dir.filter(|_| self.dev) {
            return DevArgs::without_machines(data_dir, self.listen).run();
        }
        serve(async move |stop| run(self.config, stop).await)
    }
}

const CONFIG_HINT: &str =
    "correct the file, name another with --config, or make a cell: cell master init";

async fn run(file: PathBuf, mut stop: ShutdownSignal) -> Result<Success, Failure> {
    let config = Config::load(&file)
        .map_err(|error| Failure::Usage { message: error.to_string(), next: CONFIG_HINT.into() })?;
    let scheduler = supervised_scheduler(&config, &file)?;
    let name = config.name.clone();
    let starting = run_master(config, AccessMode::Authenticated, scheduler);
    let Some(running) = stop.run_unless_requested(starting).await? else {
        return Ok(Success::Done);
    };
    print(&format!("replica {name} serves {}\n", running.url()))?;
    stop.requested().await;
    running.stop().await;
    Ok(Success::Done)
}

/// The command that runs this program as a scheduler, with credentials from the same configuration.
fn supervised_scheduler(config: &Config, file: &Path) -> Result<Option<ChildCommand>, Failure> {
    if !config.supervise_scheduler {
        return Ok(None);
    }
    let program = std::env::current_exe().map_err(|error| {
        Failure::from_error(
            &error,
            "set supervise_scheduler = false and run `cell scheduler` apart",
        )
    })?;
    let fixed_arguments =
        ["scheduler", "--until-stdin-closes", "--name", config.name.as_str(), "--config"];
    let mut arguments: Vec<OsString> = fixed_arguments.iter().map(OsString::from).collect();
    arguments.push(file.into());
    Ok(Some(ChildCommand { program, arguments }))
}
