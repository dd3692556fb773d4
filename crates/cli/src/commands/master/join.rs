//! `cell master join`: adds a replica to a running cell.
//!
//! The replica generates its key here, and waits for an operator to confirm it; then it gets its
//! certificate and the authority's key. It requests its vote when it is started. Its member id is
//! derived from its token: a token is used once, so the id is never used again.

use super::ReplicaLocationArgs;
use super::admission::request_admission;
use crate::commands::Success;
use crate::commands::join_request::PendingJoin;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{print, print_prose};
use crate::runtime::block_on;
use crate::token_input::TokenArgs;
use cellwright_gateway::config::host_of;
use cellwright_gateway::init::{InitError, Joining};
use cellwright_gateway::membership::remember_masters;
use cellwright_identity::enroll::{JoinKind, JoinToken};
use cellwright_identity::secret::sha256;
use clap::Args;
use std::net::SocketAddr;

/// The hint for existing files; no master has been contacted by then, so the token is still unused.
const CHOOSE_FREE_PATHS: &str =
    "remove it, or choose --config and --data-dir; the token was not tried";
const ASK_FOR_TOKEN: &str = "ask for a token: cell token create --replica NAME";

#[derive(Debug, Args)]
pub struct JoinArgs {
    #[command(flatten)]
    token: TokenArgs,

    #[command(flatten)]
    location: ReplicaLocationArgs,
}

impl JoinArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let failed = |error: InitError| Failure::from_error(&error, ASK_FOR_TOKEN);
        let location = self.location.location();
        location.check_vacant().map_err(|error| Failure::from_error(&error, CHOOSE_FREE_PATHS))?;
        let token = self.token.read_token(ASK_FOR_TOKEN)?;
        if token.kind != JoinKind::Replica {
            let message = format!("this token is for {}, not for a replica", token.part());
            return Err(Failure::Usage { message, next: ASK_FOR_TOKEN.into() });
        }
        let pending_join =
            PendingJoin::begin(&token, &self.certificate_hosts(), &location.config, ASK_FOR_TOKEN)?;
        let joining = Joining::with_key(&token, pending_join.new_key()).map_err(failed)?;
        // Computed from its own key, not taken from the cell's answer.
        let key = joining.key_print().map_err(failed)?;
        let (admitted, masters) =
            block_on(request_admission(&connection.masters, &joining, async |to_confirm| {
                print(&format!(
                    "replica {name} asks to join cell {}; its fingerprint is\n  {key}\n\
                 an administrator of the cell confirms it, until {}, with\n  \
                 cell master confirm {name} {key}\n",
                    to_confirm.cell,
                    format::utc(to_confirm.until),
                    name = token.name,
                ))
            }))?;
        let cell = admitted.answer.cell.clone();
        joining.complete(admitted, member_id(&token), &location).map_err(failed)?;
        remember_masters(&location.data_dir, &masters)?;
        pending_join.remove_saved_key()?;
        print_prose(&format!(
            "replica {} of cell {cell} is installed\nconfiguration {}, keys in {}\n\
             next:\n  cell master start --config {}\n  cell master status\n",
            token.name,
            location.config.display(),
            location.data_dir.display(),
            location.config.display(),
        ))?;
        Ok(Success::Done)
    }

    /// The host names in the certificate, as a start with the same configuration would request
    /// them.
    fn certificate_hosts(&self) -> Vec<String> {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        hosts.push(host_of(&self.location.advertise).to_owned());
        let listen = self.location.listen.parse::<SocketAddr>().ok();
        hosts.extend(listen.filter(|at| !at.ip().is_unspecified()).map(|at| at.ip().to_string()));
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// The member id derived from a token.
pub(super) fn member_id(token: &JoinToken) -> u64 {
    let digest = sha256(token.id.as_bytes());
    // Member id 1 is the first replica of a cell.
    2 + u64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}
