//! `cell scheduler`: the scheduler as a separate process. It has no state of its own: killing it
//! loses nothing, and a second one with the same shard is a standby.

use super::Success;
use super::join_request::{PendingJoin, request_certificate};
use crate::args::Score;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::{ShutdownSignal, serve};
use crate::token_input::TokenArgs;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::masters::MastersFile;
use cellwright_cell::name::Name;
use cellwright_gateway::config::Config;
use cellwright_identity::authority::Authority;
use cellwright_identity::enroll::{CERTIFICATE_LIFETIME, CertificateHolder, JoinKind, JoinToken};
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, CertificateResolver, Trust};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_sched::Options;
use cellwright_scheduler::SchedulerShard;
use cellwright_scheduler::credentials;
use cellwright_scheduler::http_link::schedule;
use cellwright_supervise::exit_fatal;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;

const EXAMPLES: &str = "\
Examples:
  cell scheduler --master 127.0.0.1:7070
  cell scheduler --config /etc/cellwright/master.toml --name s2
  cell scheduler --config /etc/cellwright/master.toml --shard gpu
  cell scheduler --join --token-file s2.token --master master-1.example:7070
  cell scheduler --identity /etc/cellwright/scheduler.toml

With --config it runs on a master's machine and signs its own certificate with
the cell's authority there. Elsewhere it joins once, with a token made by `cell
token create --scheduler NAME`, and has its certificate in a file afterwards. A
shard takes the jobs whose label `scheduler` names it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SchedulerArgs {
    /// Configuration of the master on this machine, for its certificate
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Exchange a join token, made by `cell token create --scheduler NAME`, for a certificate
    #[arg(long, conflicts_with = "config")]
    join: bool,

    #[command(flatten)]
    token: TokenArgs,

    /// The file of this scheduler's certificate: written by --join, read without it
    /// [default with --join: /etc/cellwright/scheduler.toml]
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    identity: Option<PathBuf>,

    /// Whose jobs: those whose label `scheduler` has this value [default: those without it]
    #[arg(long, value_name = "LANE", default_value = "")]
    shard: String,

    /// Who this is, in leases and metrics [default: as its certificate says, else `scheduler`]
    #[arg(long, value_name = "NAME", value_parser = super::parse::name)]
    name: Option<Name>,

    /// Seed of all random choices; with another than usual, `cell plan` may name other machines
    /// of those that are equally good
    #[arg(long, value_name = "N", default_value_t = cellwright_sched::DEFAULT_SEED)]
    seed: u64,

    #[command(flatten)]
    techniques: Techniques,

    /// Ends when whoever started it does
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

/// How machines are found and compared, for those who try out what a technique is worth.
#[derive(Clone, Copy, Debug, Args)]
struct Techniques {
    /// How machines are compared
    #[arg(long, value_enum, default_value = "hybrid")]
    score: Score,

    /// Score machines anew every time instead of keeping scores until a machine changes
    #[arg(long)]
    no_score_cache: bool,

    /// Look at every task by itself instead of once per class of equal tasks
    #[arg(long)]
    no_classes: bool,

    /// Look at all machines for the best one instead of enough of them in a random order
    #[arg(long)]
    no_randomization: bool,
}

impl Techniques {
    const DEFAULT: Techniques = Techniques {
        score: Score::Hybrid,
        no_score_cache: false,
        no_classes: false,
        no_randomization: false,
    };

    fn options(self) -> Options {
        let defaults = Options::default();
        Options {
            classes: !self.no_classes,
            score_cache: !self.no_score_cache,
            randomization: defaults.randomization.filter(|_| !self.no_randomization),
            model: self.score.model(),
            ..defaults
        }
    }
}

impl SchedulerArgs {
    /// The arguments for a cell in one process.
    pub fn in_process(name: Name) -> SchedulerArgs {
        SchedulerArgs {
            config: None,
            join: false,
            token: TokenArgs::none(),
            identity: None,
            shard: String::new(),
            name: Some(name),
            seed: cellwright_sched::DEFAULT_SEED,
            techniques: Techniques::DEFAULT,
            until_stdin_closes: false,
        }
    }

    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        if self.config.is_some() {
            return serve(async move |stop| self.run_beside_master(stop).await);
        }
        if self.token.is_given() && !self.join {
            return Err(Failure::Usage {
                message: "--token-file is for joining".into(),
                next: "the same command with --join, or without --token-file".into(),
            });
        }
        if self.join || self.identity.is_some() {
            // Read before anything is served: the user may cancel the prompt for the token.
            let token = self.join.then(|| self.token.read_token(ASK_FOR_TOKEN)).transpose()?;
            return serve(async move |mut stop| {
                match stop.run_unless_requested(self.load_or_join(token, connection)).await? {
                    Some(credentials) => self.run_with_credentials(credentials, stop).await,
                    None => Ok(Success::Done),
                }
            });
        }
        serve(async move |stop| {
            self.run_until_stopped(connection.cell_for_daemon()?.client, stop).await
        })
    }

    fn scheduler_name(&self) -> Result<Name, Failure> {
        let unnamed =
            |bad: cellwright_cell::name::InvalidName| Failure::from_error(&bad, "give a --name");
        self.name.clone().map_or_else(|| Name::new(DEFAULT_NAME).map_err(unnamed), Ok)
    }

    /// The scheduler's own certificate, requested with a token or loaded from a file.
    async fn load_or_join(
        &self,
        token: Option<JoinToken>,
        connection: &ConnectionArgs,
    ) -> Result<credentials::PartCredentials, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::from_error(error, ASK_FOR_TOKEN);
        let now = SystemClock.wall_time();
        let fallback = || PathBuf::from(DEFAULT_IDENTITY);
        let file = self.identity.clone().unwrap_or_else(fallback);
        let Some(token) = token else {
            return credentials::PartCredentials::load(&file, now).map_err(|error| failed(&error));
        };
        if token.kind != JoinKind::Scheduler {
            let message = format!("this token is for {}, not for a scheduler", token.part());
            return Err(Failure::Usage { message, next: ASK_FOR_TOKEN.into() });
        }
        // Checked before the token is used up.
        if file.exists() {
            return Err(Failure::Usage {
                message: format!("{} is there already", file.display()),
                next: "start it without --join; or remove the file, or choose another --identity"
                    .into(),
            });
        }
        let pending_join = PendingJoin::begin(&token, &[], &file, ASK_FOR_TOKEN)?;
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        let (answer, masters) =
            request_certificate(&connection.masters, &trust, &pending_join.request).await?;
        let saved =
            credentials::PartCredentials::create(&file, &masters, answer, pending_join.key(), now);
        let saved = saved.map_err(|error| failed(&error))?;
        pending_join.remove_saved_key()?;
        Ok(saved)
    }

    /// Runs on a separate machine, under the name in its certificate.
    async fn run_with_credentials(
        mut self,
        credentials: credentials::PartCredentials,
        stop: ShutdownSignal,
    ) -> Result<Success, Failure> {
        let certified = match &credentials.identity().part {
            Part::Scheduler(name) => name.clone(),
            other => {
                let message = format!("the certificate is for {other}, not for a scheduler");
                return Err(Failure::Usage { message, next: ASK_FOR_TOKEN.into() });
            }
        };
        if let Some(name) = self.name.as_ref().filter(|name| **name != certified) {
            let message = format!("--name is {name}, the certificate is for {certified}");
            return Err(Failure::Usage { message, next: "leave out --name".into() });
        }
        self.name = Some(certified);
        let client = credentials.client().clone();
        let on_error = |error: &credentials::CredentialsError| {
            tracing::warn!(%error, "no new certificate yet; trying again");
        };
        tokio::select! {
            done = self.run_until_stopped(client, stop) => done,
            () = credentials.run_renewal(|| SystemClock.wall_time(), on_error) => {
                exit_fatal("the renewal of the certificate ended");
            }
        }
    }

    async fn run_until_stopped(
        self,
        client: Client,
        mut stop: ShutdownSignal,
    ) -> Result<Success, Failure> {
        let with_parent = self.until_stdin_closes;
        print(&format!("scheduler {} works for {}\n", self.scheduler_name()?, client.preferred()))?;
        tokio::select! {
            // The scheduler ends only with an error.
            ended = run_scheduler(self, client) => {
                ended?;
                exit_fatal("the scheduler ended");
            }
            () = stop.requested() => {}
            () = parent_gone(), if with_parent => {}
        }
        Ok(Success::Done)
    }

    async fn run_beside_master(self, stop: ShutdownSignal) -> Result<Success, Failure> {
        let file = self.config.clone().unwrap_or_default();
        let credentials = MasterCredentials::load(&file, self.scheduler_name()?)?;
        let client = credentials.client.clone();
        tokio::select! {
            done = self.run_until_stopped(client, stop) => done,
            failed = credentials.keep_fresh() => failed.map(|()| Success::Done),
        }
    }
}

/// Runs the scheduling loop until dropped.
pub async fn run_scheduler(args: SchedulerArgs, client: Client) -> Result<(), Failure> {
    let usage = |error: cellwright_scheduler::config::InvalidConfig| Failure::Usage {
        message: error.to_string(),
        next: "correct --shard or --name".into(),
    };
    let shard = SchedulerShard::new(&args.shard).map_err(usage)?;
    let name = args.scheduler_name()?;
    let mut settings = cellwright_scheduler::SchedulerConfig::new(name, shard, args.seed);
    settings.options = args.techniques.options();
    schedule(client, settings).map_err(usage)?.await;
    Ok(())
}

/// Completes when standard input ends.
async fn parent_gone() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    while stdin.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// A scheduler's certificate, signed by the authority of the master on this machine.
struct MasterCredentials {
    authority: Authority,
    part: Part,
    resolver: Arc<CertificateResolver>,
    holder: CertificateHolder,
    client: Client,
}

/// Where a scheduler that joins stores its certificate.
const DEFAULT_IDENTITY: &str = "/etc/cellwright/scheduler.toml";
/// The file in the master's `data_dir` with the masters that a scheduler beside a master knows.
const MASTERS_FILE: &str = "scheduler.masters.toml";
/// The default name of a scheduler.
const DEFAULT_NAME: &str = "scheduler";
const ASK_FOR_TOKEN: &str = "ask for a token: cell token create --scheduler NAME";

/// The interval at which the clock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

const RUN_AS_MASTER_HINT: &str =
    "run it as the user of the master, on the master's machine, with its --config";

impl MasterCredentials {
    fn load(file: &Path, name: Name) -> Result<MasterCredentials, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::from_error(error, RUN_AS_MASTER_HINT);
        let config = Config::load(file).map_err(|error| failed(&error))?;
        let authority = IdentityFiles::in_data_dir(&config.data_dir)
            .load_authority()
            .map_err(|error| failed(&error))?;
        let part = Part::Scheduler(name);
        let signed = authority
            .issue_credentials(&part, &[], SystemClock.wall_time(), CERTIFICATE_LIFETIME)
            .map_err(|error| failed(&error))?;
        let resolver = CertificateResolver::new(&signed.certificate, &signed.key)
            .map_err(|error| failed(&error))?;
        let trust = Trust::Authority(authority.certificate_pem().to_owned());
        let tls =
            tls::client_config(&trust, Some(resolver.clone())).map_err(|error| failed(&error))?;
        // Its own master comes first; the others are for when that one is gone for good.
        let masters_file =
            MastersFile::new(config.data_dir.join(MASTERS_FILE), authority.certificate_pem());
        let masters_file = Some(masters_file.map_err(|error| failed(&error))?);
        let settings = ApiClientConfig::new(vec![config.advertise]);
        let client =
            Client::new(ApiClientConfig { tls: Some(Arc::new(tls)), masters_file, ..settings })?;
        let holder = signed.holder().map_err(|error| failed(&error))?;
        Ok(MasterCredentials { authority, part, resolver, holder, client })
    }

    /// Renews the certificate in time, and when the clock was set back, as long as the scheduler
    /// runs.
    async fn keep_fresh(&self) -> Result<(), Failure> {
        let mut holder = self.holder.clone();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if !holder.is_renewal_due(SystemClock.wall_time()) {
                continue;
            }
            let signed = self
                .authority
                .issue_credentials(&self.part, &[], SystemClock.wall_time(), CERTIFICATE_LIFETIME)
                .map_err(|error| Failure::from_error(&error, RUN_AS_MASTER_HINT))?;
            self.resolver
                .replace(&signed.certificate, &signed.key)
                .map_err(|error| Failure::from_error(&error, RUN_AS_MASTER_HINT))?;
            holder =
                signed.holder().map_err(|error| Failure::from_error(&error, RUN_AS_MASTER_HINT))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_sched::score::packing::PackingModel;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        scheduler: SchedulerArgs,
    }

    fn options(words: &[&str]) -> Options {
        let command_line = Typed::try_parse_from([&["scheduler"], words].concat()).unwrap();
        command_line.scheduler.techniques.options()
    }

    #[test]
    fn what_is_typed_is_how_it_schedules() {
        assert_eq!(options(&[]), Options::default());
        assert_eq!(options(&["--score", "worst-fit"]).model, PackingModel::WorstFit);
        let plain = options(&["--no-score-cache", "--no-classes", "--no-randomization"]);
        assert!(!plain.score_cache && !plain.classes && plain.randomization.is_none());
        assert!(Options::default().randomization.is_some(), "else the switch would do nothing");
    }
}
