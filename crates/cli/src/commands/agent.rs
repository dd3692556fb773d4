//! `cell agent join`: a machine gets its certificate. `cell agent start`: its agent, in the
//! foreground.

use super::Success;
use super::enrol::{Waiting, certified};
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::{ask, serve};
use crate::token_input::TokenArgs;
use cellwright_agent::config::Config;
use cellwright_agent::identity::Identity;
use cellwright_agent::listen::Access;
use cellwright_agent::main_loop::{Agent as Machine, AgentError, Farewell};
use cellwright_agent::shim_program::ShimProgram;
use cellwright_api::client::{Client, Settings};
use cellwright_api::context::{Context, Contexts};
use cellwright_cell::name::Name;
use cellwright_identity::enroll::JoinKind;
use cellwright_identity::tls::Trust;
use cellwright_supervise::Supervisor;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const NEXT: &str = "ask for a token: cell token create --agent MACHINE";

/// The agent of a machine
#[derive(Debug, Subcommand)]
pub enum Agent {
    /// Exchange a join token for this machine's certificate
    Join(JoinArgs),
    /// Run this machine's agent in the foreground
    Start(StartArgs),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// The agent's configuration, as `cell agent join` wrote it
    #[arg(long, value_name = "FILE", default_value = "/etc/cellwright/agent.toml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    #[command(flatten)]
    token: TokenArgs,

    /// The configuration to write; masters, authority, certificate and key go beside it, into a
    /// file of the same name that ends in .identity
    #[arg(long, value_name = "FILE", default_value = "/etc/cellwright/agent.toml")]
    config: PathBuf,
}

impl Agent {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        match self {
            Agent::Join(args) => args.run(reach),
            Agent::Start(args) => args.run(reach),
        }
    }
}

impl JoinArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::work(error, NEXT);
        let token = self.token.token(NEXT)?;
        if token.kind != JoinKind::Agent {
            return Err(Failure::Usage {
                message: format!("this token is for {}, not for a machine", token.part()),
                next: NEXT.into(),
            });
        }
        let kept = self.kept(&token.name)?;
        let is_kept = kept.is_some();
        let identity = kept.map_or_else(|| self.identity(), Ok)?;
        let waiting = Waiting::begin(&token, &[], &identity, NEXT)?;
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        let (answer, masters) = ask(certified(&reach.masters, &trust, &waiting.request))?;
        let mut file = Contexts::default();
        file.put(
            answer.cell.as_str(),
            Context {
                masters,
                authority: Some(answer.authority),
                token: None,
                certificate: Some(answer.certificate),
                key: Some(waiting.key()),
            },
        );
        file.save(&identity).map_err(|error| failed(&error))?;
        let shown = self.config.display();
        if !is_kept {
            std::fs::write(&self.config, Config::template(&token.name, &identity))
                .map_err(|source| Failure::Write { what: shown.to_string(), source })?;
        }
        waiting.done()?;
        let how = if is_kept { "stays" } else { "is" };
        print(&format!(
            "machine {} may poll cell {}: its configuration {how} {shown}\n\
             next: cell agent start --config {shown}\n",
            token.name, answer.cell,
        ))?;
        Ok(Success::Done)
    }

    /// Where the configuration that is there already wants the certificate, should it be one of
    /// this machine: one that was removed and comes back keeps what its operator settled.
    fn kept(&self, name: &Name) -> Result<Option<PathBuf>, Failure> {
        if !self.config.exists() {
            return Ok(None);
        }
        let shown = self.config.display();
        let refused = |message: String| Failure::Usage {
            message,
            next: "mend it, remove it, or write elsewhere with --config".into(),
        };
        let config = Config::load(&self.config).map_err(AgentError::from)?;
        if config.name.as_ref() != Some(name) {
            let found = config.name.map_or("no machine by name".into(), |name| name.to_string());
            return Err(refused(format!(
                "{shown} is there already and is for {found}, not {name}"
            )));
        }
        match config.identity {
            Some(identity) => Ok(Some(identity)),
            None => Err(refused(format!("{shown} is there already and names no identity"))),
        }
    }

    /// Where the certificate and key go. Absolute, for the agent may start elsewhere.
    fn identity(&self) -> Result<PathBuf, Failure> {
        let beside = self.config.with_extension("identity");
        std::path::absolute(&beside)
            .map_err(|source| Failure::Write { what: beside.display().to_string(), source })
    }
}

impl StartArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        serve(async move |mut stop| {
            let config = Config::load(&self.config).map_err(AgentError::from)?;
            let line = Line::open(&config, reach)?;
            let mut agent = open(config)?;
            if let Some(identity) = &line.identity {
                identity.check_name(&agent.machine().name)?;
            }
            let access = match &line.identity {
                Some(identity) => identity.access(&line.client)?,
                None => Access::Open(line.client.masters()),
            };
            let masters = line.client.masters();
            if stop.unless_told(agent.listen(access, &masters)).await?.is_none() {
                return Ok(Success::Done);
            }
            let masters = masters.join(", ");
            print(&format!("cell agent of {} polls {masters}\n", agent.machine().name))?;
            if let Some(identity) = line.identity {
                let fresh = identity.keep_fresh(line.client.clone());
                Supervisor::default().essential("the renewal of the certificate", fresh);
            }
            let stop = async {
                stop.told().await;
                Farewell::LeaveTasks
            };
            agent.run(line.client, stop).await;
            Ok(Success::Done)
        })
    }
}

/// The agent of this machine, with the drivers this program has.
pub fn open(config: Config) -> Result<Machine, Failure> {
    Ok(Machine::open(config, ShimProgram::installed())?)
}

/// How the agent reaches its masters: by its certificate, or an open one in the clear.
struct Line {
    client: Client,
    identity: Option<Identity>,
}

impl Line {
    fn open(config: &Config, reach: &Reach) -> Result<Line, Failure> {
        if let Some(path) = &config.identity {
            let identity = Identity::load(path)?;
            let client = identity.client()?;
            return Ok(Line { client, identity: Some(identity) });
        }
        if reach.masters.is_empty() {
            return Err(Failure::Usage {
                message: "the configuration names no identity".into(),
                next: "cell agent join, or --master HOST:PORT of an open master".into(),
            });
        }
        let client = Client::new(Settings::new(reach.masters.clone()))?;
        Ok(Line { client, identity: None })
    }
}
