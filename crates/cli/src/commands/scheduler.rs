//! `cell scheduler`: the scheduler as a process of its own. It owns nothing: killing it loses
//! nothing, and a second one with the same lane stands by.

use super::Success;
use super::enrol::{Waiting, certified};
use crate::args::Score;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::{Stop, serve};
use crate::token_input::TokenArgs;
use cellwright_api::client::{Client, Settings};
use cellwright_api::masters::MastersFile;
use cellwright_api::papers;
use cellwright_cell::name::Name;
use cellwright_gateway::config::Config;
use cellwright_identity::authority::Authority;
use cellwright_identity::enroll::{CERTIFICATE_LIFE, Holder, JoinKind, JoinToken};
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, Shown, Trust};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_sched::Options;
use cellwright_scheduler::Lane;
use cellwright_scheduler::http_link::schedule;
use cellwright_supervise::give_up;
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
  cell scheduler --join --token-file s2.token --master master-1.example:7070
  cell scheduler --identity /etc/cellwright/scheduler.toml

With --config it runs on a master's machine and signs its own certificate with
the cell's authority there. Elsewhere it joins once, with a token made by `cell
token create --scheduler NAME`, and has its certificate in a file afterwards. A
lane takes the jobs whose label `scheduler` names it.";

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
    lane: String,

    /// Who this is, in leases and metrics [default: as its certificate says, else `scheduler`]
    #[arg(long, value_name = "NAME", value_parser = super::parse::name)]
    name: Option<Name>,

    /// Seed of all random choices; with another than usual, `cell plan` may name other machines
    /// of those that are equally good
    #[arg(long, value_name = "N", default_value_t = cellwright_sched::SEED)]
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
    const USUAL: Techniques = Techniques {
        score: Score::Hybrid,
        no_score_cache: false,
        no_classes: false,
        no_randomization: false,
    };

    fn options(self) -> Options {
        let usual = Options::default();
        Options {
            classes: !self.no_classes,
            score_cache: !self.no_score_cache,
            randomization: usual.randomization.filter(|_| !self.no_randomization),
            model: self.score.model(),
            ..usual
        }
    }
}

impl SchedulerArgs {
    /// For a cell in one process.
    pub fn in_process(name: Name) -> SchedulerArgs {
        SchedulerArgs {
            config: None,
            join: false,
            token: TokenArgs::none(),
            identity: None,
            lane: String::new(),
            name: Some(name),
            seed: cellwright_sched::SEED,
            techniques: Techniques::USUAL,
            until_stdin_closes: false,
        }
    }

    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        if self.config.is_some() {
            return serve(async move |stop| self.beside_master(stop).await);
        }
        if self.token.is_given() && !self.join {
            return Err(Failure::Usage {
                message: "--token-file is for joining".into(),
                next: "the same command with --join, or without --token-file".into(),
            });
        }
        if self.join || self.identity.is_some() {
            // Before it serves: whoever is asked for a token may give up as anywhere else.
            let token = self.join.then(|| self.token.token(ASK)).transpose()?;
            return serve(async move |mut stop| {
                match stop.unless_told(self.papers(token, reach)).await? {
                    Some(papers) => self.apart(papers, stop).await,
                    None => Ok(Success::Done),
                }
            });
        }
        serve(async move |stop| self.until_stopped(reach.as_part()?.client, stop).await)
    }

    fn name(&self) -> Result<Name, Failure> {
        let unnamed = |bad: cellwright_cell::name::BadName| Failure::work(&bad, "give a --name");
        self.name.clone().map_or_else(|| Name::new(UNNAMED).map_err(unnamed), Ok)
    }

    /// Its own certificate, got with a token or kept from before.
    async fn papers(
        &self,
        token: Option<JoinToken>,
        reach: &Reach,
    ) -> Result<papers::Papers, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::work(error, ASK);
        let now = SystemClock.wall();
        let fallback = || PathBuf::from(IDENTITY);
        let file = self.identity.clone().unwrap_or_else(fallback);
        let Some(token) = token else {
            return papers::Papers::load(&file, now).map_err(|error| failed(&error));
        };
        if token.kind != JoinKind::Scheduler {
            let message = format!("this token is for {}, not for a scheduler", token.part());
            return Err(Failure::Usage { message, next: ASK.into() });
        }
        // Looked at before the token is used up.
        if file.exists() {
            return Err(Failure::Usage {
                message: format!("{} is there already", file.display()),
                next: "start it without --join; or remove the file, or choose another --identity"
                    .into(),
            });
        }
        let waiting = Waiting::begin(&token, &[], &file, ASK)?;
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        let (answer, masters) = certified(&reach.masters, &trust, &waiting.request).await?;
        let kept = papers::Papers::keep(&file, &masters, answer, waiting.key(), now);
        let kept = kept.map_err(|error| failed(&error))?;
        waiting.done()?;
        Ok(kept)
    }

    /// Runs on a machine of its own, under the name its certificate is for.
    async fn apart(mut self, papers: papers::Papers, stop: Stop) -> Result<Success, Failure> {
        let certified = match &papers.identity().part {
            Part::Scheduler(name) => name.clone(),
            other => {
                let message = format!("the certificate is for {other}, not for a scheduler");
                return Err(Failure::Usage { message, next: ASK.into() });
            }
        };
        if let Some(name) = self.name.as_ref().filter(|name| **name != certified) {
            let message = format!("--name is {name}, the certificate is for {certified}");
            return Err(Failure::Usage { message, next: "leave out --name".into() });
        }
        self.name = Some(certified);
        let client = papers.client().clone();
        let told = |error: &papers::PapersError| {
            tracing::warn!(%error, "no new certificate yet; trying again");
        };
        tokio::select! {
            done = self.until_stopped(client, stop) => done,
            () = papers.keep_fresh(|| SystemClock.wall(), told) => {
                give_up("the renewal of the certificate ended");
            }
        }
    }

    async fn until_stopped(self, client: Client, mut stop: Stop) -> Result<Success, Failure> {
        let with_parent = self.until_stdin_closes;
        print(&format!("scheduler {} works for {}\n", self.name()?, client.preferred()))?;
        tokio::select! {
            // Nothing but a failure ends it.
            ended = run_scheduler(self, client) => {
                ended?;
                give_up("the scheduler ended");
            }
            () = stop.told() => {}
            () = parent_gone(), if with_parent => {}
        }
        Ok(Success::Done)
    }

    async fn beside_master(self, stop: Stop) -> Result<Success, Failure> {
        let file = self.config.clone().unwrap_or_default();
        let papers = Papers::load(&file, self.name()?)?;
        let client = papers.client.clone();
        tokio::select! {
            done = self.until_stopped(client, stop) => done,
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
    let name = args.name()?;
    let mut settings = cellwright_scheduler::Settings::new(name, lane, args.seed);
    settings.options = args.techniques.options();
    schedule(client, settings).map_err(usage)?.await;
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
    holder: Holder,
    client: Client,
}

/// Where a scheduler that joins keeps its certificate.
const IDENTITY: &str = "/etc/cellwright/scheduler.toml";
/// The masters that a scheduler beside a master has learned of, in the master's `data_dir`.
const MASTERS: &str = "scheduler.masters.toml";
/// Of a scheduler that nobody named.
const UNNAMED: &str = "scheduler";
const ASK: &str = "ask for a token: cell token create --scheduler NAME";

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_secs(2);

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
        // Its own master first; should that one be gone for good, there are the others.
        let kept = MastersFile::new(config.data_dir.join(MASTERS), authority.certificate_pem());
        let kept = Some(kept.map_err(|error| failed(&error))?);
        let settings = Settings::new(vec![config.advertise]);
        let client = Client::new(Settings { tls: Some(Arc::new(tls)), kept, ..settings })?;
        let holder = made.holder().map_err(|error| failed(&error))?;
        Ok(Papers { authority, part, shown, holder, client })
    }

    /// Shows a new certificate in time, and when the clock was set back, for as long as the
    /// scheduler runs.
    async fn keep_fresh(&self) -> Result<(), Failure> {
        let mut holder = self.holder.clone();
        loop {
            tokio::time::sleep(LOOK).await;
            if !holder.is_stale(SystemClock.wall()) {
                continue;
            }
            let made = self
                .authority
                .equip(&self.part, &[], SystemClock.wall(), CERTIFICATE_LIFE)
                .map_err(|error| Failure::work(&error, NEXT))?;
            self.shown
                .exchange(&made.certificate, &made.key)
                .map_err(|error| Failure::work(&error, NEXT))?;
            holder = made.holder().map_err(|error| Failure::work(&error, NEXT))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_sched::score::packing::Model;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        scheduler: SchedulerArgs,
    }

    fn options(words: &[&str]) -> Options {
        let typed = Typed::try_parse_from([&["scheduler"], words].concat()).unwrap();
        typed.scheduler.techniques.options()
    }

    #[test]
    fn what_is_typed_is_how_it_schedules() {
        assert_eq!(options(&[]), Options::default());
        assert_eq!(options(&["--score", "worst-fit"]).model, Model::WorstFit);
        let plain = options(&["--no-score-cache", "--no-classes", "--no-randomization"]);
        assert!(!plain.score_cache && !plain.classes && plain.randomization.is_none());
        assert!(Options::default().randomization.is_some(), "else the switch would do nothing");
    }
}
