//! `cell agent join`: a machine gets its certificate. The agent that will use it is still to be
//! built; until then virtual ones stand in for it (`cell sim agents`).

use super::Success;
use super::enrol::enrol;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::context::{Context, Contexts};
use cellwright_api::enroll::{JoinKind, JoinRequest, JoinToken};
use cellwright_api::internal::PROTOCOL;
use cellwright_api::tls::Trust;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const NEXT: &str = "ask for a token: cell token create --agent MACHINE";

/// The agent of a machine
#[derive(Debug, Subcommand)]
pub enum Agent {
    /// Exchange a join token for this machine's certificate
    Join(JoinArgs),
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A join token, made by `cell token create --agent MACHINE`
    token: String,

    /// The file to write: masters, authority, certificate and key
    #[arg(long, value_name = "FILE", default_value = "/etc/cellwright/agent.toml")]
    config: PathBuf,
}

impl Agent {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let Agent::Join(args) = self;
        args.run(reach)
    }
}

impl JoinArgs {
    fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::work(error, NEXT);
        let token = JoinToken::parse(&self.token).map_err(|error| failed(&error))?;
        if token.kind != JoinKind::Agent {
            return Err(Failure::Usage {
                message: "this token is for a replica of the master, not for a machine".into(),
                next: "cell master join TOKEN, or another token: cell token create --agent \
                       MACHINE"
                    .into(),
            });
        }
        if self.config.exists() {
            return Err(Failure::Usage {
                message: format!("{} is there already", self.config.display()),
                next: "remove it, or write elsewhere with --config".into(),
            });
        }
        let key = token.signing_key(&[]).map_err(|error| failed(&error))?;
        let request = JoinRequest {
            protocol: PROTOCOL,
            token: token.text(),
            signing_request: key.signing_request,
        };
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        let answer = ask(enrol(&reach.masters, &trust, &request))?;
        let mut file = Contexts::default();
        file.put(
            answer.cell.as_str(),
            Context {
                masters: reach.masters.clone(),
                authority: Some(answer.authority),
                token: None,
                certificate: Some(answer.certificate),
                key: Some(key.key),
            },
        );
        file.save(&self.config).map_err(|error| failed(&error))?;
        print(&format!(
            "machine {} may poll cell {}: certificate and key in {}\n\
             the agent itself is still to come; `cell sim agents` stands in for it\n",
            token.name,
            answer.cell,
            self.config.display(),
        ))?;
        Ok(Success::Done)
    }
}
