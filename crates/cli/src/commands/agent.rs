//! `cell agent join` gets a certificate for a machine. `cell agent start` runs its agent in the
//! foreground.

use super::Success;
use super::join_request::{PendingJoin, request_certificate};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::{block_on, serve};
use crate::token_input::TokenArgs;
use cellwright_agent::config::Config;
use cellwright_agent::identity::Identity;
use cellwright_agent::listen::Access;
use cellwright_agent::main_loop::{Agent as Machine, AgentError, ShutdownMode};
use cellwright_agent::shim_program::ShimProgram;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_cell::name::Name;
use cellwright_identity::contexts::{Context, Contexts};
use cellwright_identity::enroll::JoinKind;
use cellwright_identity::tls::Trust;
use cellwright_supervise::Supervisor;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const ASK_FOR_TOKEN: &str = "ask for a token: cell token create --agent MACHINE";

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
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Agent::Join(args) => args.run(connection),
            Agent::Start(args) => args.run(connection),
        }
    }
}

impl JoinArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::from_error(error, ASK_FOR_TOKEN);
        let token = self.token.read_token(ASK_FOR_TOKEN)?;
        if token.kind != JoinKind::Agent {
            return Err(Failure::Usage {
                message: format!("this token is for {}, not for a machine", token.part()),
                next: ASK_FOR_TOKEN.into(),
            });
        }
        let existing_path = self.existing_identity_path(&token.name)?;
        let keeps_config = existing_path.is_some();
        let identity = existing_path.map_or_else(|| self.identity_path(), Ok)?;
        let pending_join = PendingJoin::begin(&token, &[], &identity, ASK_FOR_TOKEN)?;
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        let (answer, masters) =
            block_on(request_certificate(&connection.masters, &trust, &pending_join.request))?;
        let mut file = Contexts::default();
        file.put(
            answer.cell.as_str(),
            Context {
                masters,
                authority: Some(answer.authority),
                token: None,
                certificate: Some(answer.certificate),
                key: Some(pending_join.key()),
                libraries: Vec::new(),
            },
        );
        file.save(&identity).map_err(|error| failed(&error))?;
        let config_path = self.config.display();
        if !keeps_config {
            std::fs::write(&self.config, Config::template(&token.name, &identity))
                .map_err(|source| Failure::Write { what: config_path.to_string(), source })?;
        }
        pending_join.remove_saved_key()?;
        let verb = if keeps_config { "stays" } else { "is" };
        print(&format!(
            "machine {} may poll cell {}: its configuration {verb} {config_path}\n\
             next: cell agent start --config {config_path}\n",
            token.name, answer.cell,
        ))?;
        Ok(Success::Done)
    }

    /// The identity path in an existing configuration file, if it belongs to this machine: a
    /// machine that was removed and joins again keeps its operator's settings.
    fn existing_identity_path(&self, name: &Name) -> Result<Option<PathBuf>, Failure> {
        if !self.config.exists() {
            return Ok(None);
        }
        let config_path = self.config.display();
        let unusable_config = |message: String| Failure::Usage {
            message,
            next: "mend it, remove it, or write elsewhere with --config".into(),
        };
        let config = Config::load(&self.config).map_err(AgentError::from)?;
        if config.name.as_ref() != Some(name) {
            let found = config.name.map_or("no machine by name".into(), |name| name.to_string());
            return Err(unusable_config(format!(
                "{config_path} is there already and is for {found}, not {name}"
            )));
        }
        match config.identity {
            Some(identity) => Ok(Some(identity)),
            None => Err(unusable_config(format!(
                "{config_path} is there already and names no identity"
            ))),
        }
    }

    /// Where the certificate and key are written. Absolute, because the agent may be started from
    /// another directory.
    fn identity_path(&self) -> Result<PathBuf, Failure> {
        let identity_file = self.config.with_extension("identity");
        std::path::absolute(&identity_file)
            .map_err(|source| Failure::Write { what: identity_file.display().to_string(), source })
    }
}

impl StartArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        serve(async move |mut stop| {
            let config = Config::load(&self.config).map_err(AgentError::from)?;
            let link = MasterLink::connect(&config, connection)?;
            let mut agent = open_agent(config)?;
            if let Some(identity) = &link.identity {
                identity.check_name(&agent.machine().name)?;
            }
            let access = match &link.identity {
                Some(identity) => identity.access(&link.client)?,
                None => Access::Open(link.client.masters()),
            };
            let masters = link.client.masters();
            if stop.run_unless_requested(agent.listen(access, &masters)).await?.is_none() {
                return Ok(Success::Done);
            }
            let masters = masters.join(", ");
            print(&format!("cell agent of {} polls {masters}\n", agent.machine().name))?;
            if let Some(identity) = link.identity {
                let fresh = identity.keep_fresh(link.client.clone());
                Supervisor::default().spawn_essential("the renewal of the certificate", fresh);
            }
            let stop = async {
                stop.requested().await;
                ShutdownMode::LeaveTasks
            };
            agent.run(link.client, stop).await;
            Ok(Success::Done)
        })
    }
}

/// Opens the agent of this machine, with the drivers in this program.
pub fn open_agent(config: Config) -> Result<Machine, Failure> {
    Ok(Machine::open(config, ShimProgram::installed())?)
}

/// How the agent connects to its masters: with its certificate, or unencrypted to an open master.
struct MasterLink {
    client: Client,
    identity: Option<Identity>,
}

impl MasterLink {
    fn connect(config: &Config, connection: &ConnectionArgs) -> Result<MasterLink, Failure> {
        if let Some(path) = &config.identity {
            let identity = Identity::load(path)?;
            let client = identity.client()?;
            return Ok(MasterLink { client, identity: Some(identity) });
        }
        if connection.masters.is_empty() {
            return Err(Failure::Usage {
                message: "the configuration names no identity".into(),
                next: "cell agent join, or --master HOST:PORT of an open master".into(),
            });
        }
        let client = Client::new(ApiClientConfig::new(connection.masters.clone()))?;
        Ok(MasterLink { client, identity: None })
    }
}
