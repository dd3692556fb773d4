//! `cell scheduler`: the scheduler as a process of its own. It owns nothing: killing it loses
//! nothing, and a second one with the same lane stands by.

use super::Success;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::{serve, told_to_stop};
use cellwright_api::client::{Client, Settings};
use cellwright_api::enroll::CERTIFICATE_LIFE;
use cellwright_api::spiffe::Part;
use cellwright_api::tls::{self, Shown, Trust};
use cellwright_cell::name::Name;
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::config::Config;
use cellwright_master::identity::authority::Authority;
use cellwright_master::identity::files::IdentityFiles;
use cellwright_scheduler::http_link::HttpLink;
use cellwright_scheduler::{Lane, Scheduler};
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;

const EXAMPLES: &str = "\
Examples:
  cell scheduler --master 127.0.0.1:7070
  cell scheduler --config /etc/cellwright/master.toml --name s2
  cell scheduler --config /etc/cellwright/master.toml --lane gpu

With --config it runs on a master's machine and signs its own certificate with the
cell's authority there. A lane takes the jobs whose label `scheduler` names it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SchedulerArgs {
    /// Configuration of the master on this machine, for its certificate
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Whose jobs: those whose label `scheduler` has this value [default: those without it]
    #[arg(long, value_name = "LANE", default_value = "")]
    lane: String,

    /// Who this is, in leases and metrics
    #[arg(long, value_name = "NAME", default_value = "scheduler",
          value_parser = super::parse::name)]
    name: Name,

    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Ends when whoever started it does
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

impl SchedulerArgs {
    /// For a cell in one process.
    pub fn in_process(name: Name) -> SchedulerArgs {
        let (config, lane) = (None, String::new());
        SchedulerArgs { config, lane, name, seed: 1, until_stdin_closes: false }
    }

    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let client = match &self.config {
            None => reach.cell()?.client,
            Some(_) => return serve(self.beside_master()),
        };
        serve(self.until_stopped(client))
    }

    async fn until_stopped(self, client: Client) -> Result<Success, Failure> {
        let with_parent = self.until_stdin_closes;
        print(&format!("scheduler {} works for {}\n", self.name, client.preferred()))?;
        tokio::select! {
            failed = run_scheduler(self, client) => failed?,
            told = told_to_stop() => told?,
            () = parent_gone(), if with_parent => {}
        }
        Ok(Success::Done)
    }

    async fn beside_master(self) -> Result<Success, Failure> {
        let file = self.config.clone().unwrap_or_default();
        let papers = Papers::load(&file, self.name.clone())?;
        let client = papers.client.clone();
        tokio::select! {
            done = self.until_stopped(client) => done,
            failed = papers.keep_fresh() => failed.map(|()| Success::Done),
        }
    }
}

/// Schedules until dropped.
pub async fn run_scheduler(args: SchedulerArgs, client: Client) -> Result<(), Failure> {
    let usage = |error: cellwright_scheduler::settings::BadSetting| Failure::Usage {
        message: error.to_string(),
        next: "correct --lane or --name".into(),
    };
    let lane = Lane::new(&args.lane).map_err(usage)?;
    let settings = cellwright_scheduler::Settings::new(args.name.as_str(), lane, args.seed);
    Scheduler::new(Arc::new(HttpLink::new(client)), settings).map_err(usage)?.run().await;
    Ok(())
}

/// Done when standard input ends.
async fn parent_gone() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    while stdin.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// A scheduler's certificate, signed with the authority of the master on this machine.
struct Papers {
    authority: Authority,
    part: Part,
    shown: Arc<Shown>,
    renew_in: Duration,
    client: Client,
}

const NEXT: &str = "run it as the user of the master, on the master's machine, with its --config";

impl Papers {
    fn load(file: &Path, name: Name) -> Result<Papers, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::work(error, NEXT);
        let config = Config::load(file).map_err(|error| failed(&error))?;
        let authority =
            IdentityFiles::in_data(&config.data_dir).authority().map_err(|error| failed(&error))?;
        let part = Part::Scheduler(name);
        let made = authority
            .equip(&part, &[], SystemClock.wall(), CERTIFICATE_LIFE)
            .map_err(|error| failed(&error))?;
        let shown = Shown::new(&made.certificate, &made.key).map_err(|error| failed(&error))?;
        let trust = Trust::Authority(authority.certificate_pem().to_owned());
        let tls = tls::client(&trust, Some(shown.clone())).map_err(|error| failed(&error))?;
        let settings = Settings::new(vec![config.advertise]);
        let client = Client::new(Settings { tls: Some(Arc::new(tls)), ..settings })?;
        // At two thirds of its life, as everybody's.
        let renew_in = Duration::from_millis(CERTIFICATE_LIFE.0 / 3 * 2);
        Ok(Papers { authority, part, shown, renew_in, client })
    }

    /// Shows a new certificate in time, for as long as the scheduler runs.
    async fn keep_fresh(&self) -> Result<(), Failure> {
        loop {
            tokio::time::sleep(self.renew_in).await;
            let made = self
                .authority
                .equip(&self.part, &[], SystemClock.wall(), CERTIFICATE_LIFE)
                .map_err(|error| Failure::work(&error, NEXT))?;
            self.shown
                .exchange(&made.certificate, &made.key)
                .map_err(|error| Failure::work(&error, NEXT))?;
        }
    }
}
