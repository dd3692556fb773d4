//! `cell master join`: a further replica of a cell that runs.
//!
//! The replica makes its key here, and waits for an operator to confirm it; then it gets its
//! certificate and the authority's key. It asks for its vote when it is started. Its number in
//! the log is drawn from its token: a token is used once, so the number is never used again.

use super::PlaceArgs;
use super::admitted::admitted;
use crate::commands::Success;
use crate::commands::enrol::Waiting;
use crate::failure::Failure;
use crate::format;
use crate::output::{print, say};
use crate::reach::Reach;
use crate::server::ask;
use crate::token_input::TokenArgs;
use cellwright_gateway::config::host_of;
use cellwright_gateway::init::{InitError, Joining};
use cellwright_gateway::membership::remember_masters;
use cellwright_identity::enroll::{JoinKind, JoinToken};
use cellwright_identity::secret::sha256;
use clap::Args;
use std::net::SocketAddr;

/// Whether the token was used before, nobody has been asked by then.
const FREE: &str = "remove it, or choose --config and --data-dir; the token was not tried";
const NEXT: &str = "ask for a token: cell token create --replica NAME";

#[derive(Debug, Args)]
pub struct JoinArgs {
    #[command(flatten)]
    token: TokenArgs,

    #[command(flatten)]
    place: PlaceArgs,
}

impl JoinArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let failed = |error: InitError| Failure::work(&error, NEXT);
        let place = self.place.place();
        place.check_free().map_err(|error| Failure::work(&error, FREE))?;
        let token = self.token.token(NEXT)?;
        if token.kind != JoinKind::Replica {
            let message = format!("this token is for {}, not for a replica", token.part());
            return Err(Failure::Usage { message, next: NEXT.into() });
        }
        let waiting = Waiting::begin(&token, &self.hosts(), &place.config, NEXT)?;
        let joining = Joining::with_key(&token, waiting.made()).map_err(failed)?;
        // Its own, not what the cell says it is.
        let key = joining.key_print().map_err(failed)?;
        let (admitted, masters) = ask(admitted(&reach.masters, &joining, async |found| {
            print(&format!(
                "replica {name} asks to join cell {}; its fingerprint is\n  {key}\n\
                 an administrator of the cell confirms it, until {}, with\n  \
                 cell master confirm {name} {key}\n",
                found.cell,
                format::utc(found.until),
                name = token.name,
            ))
        }))?;
        let cell = admitted.answer.cell.clone();
        joining.complete(admitted, number(&token), &place).map_err(failed)?;
        remember_masters(&place.data_dir, &masters)?;
        waiting.done()?;
        say(&format!(
            "replica {} of cell {cell} is installed\nconfiguration {}, keys in {}\n\
             next:\n  cell master start --config {}\n  cell master status\n",
            token.name,
            place.config.display(),
            place.data_dir.display(),
            place.config.display(),
        ))?;
        Ok(Success::Done)
    }

    /// What the certificate is made out for, as a start with the same configuration would.
    fn hosts(&self) -> Vec<String> {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        hosts.push(host_of(&self.place.advertise).to_owned());
        let listen = self.place.listen.parse::<SocketAddr>().ok();
        hosts.extend(listen.filter(|at| !at.ip().is_unspecified()).map(|at| at.ip().to_string()));
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// The number in the log that a token stands for.
pub(super) fn number(token: &JoinToken) -> u64 {
    let digest = sha256(token.id.as_bytes());
    // The first replica of a cell is number one.
    2 + u64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}
