//! Exchanges a join token for a certificate, for masters, agents and schedulers that join.
//!
//! A token is used up by the first request that the cell commits. The requester may not learn
//! whether it was: the answer was lost, or the masters had no majority. So the key is kept until
//! the certificate has arrived, and the same command typed again sends the same key, which the cell
//! answers as it did the first time.

use crate::connection::REFUSED_TIMEOUT;
use crate::failure::Failure;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_identity::enroll::{
    JOIN_PATH, JoinAnswer, JoinReply, JoinRequest, JoinToken, NewKey,
};
use cellwright_identity::private_files::write_private;
use cellwright_identity::secret::Secret;
use cellwright_identity::tls::{self, Trust};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Requests the certificate. The masters prove by `trust` that they belong to the token's cell
/// before they receive its secret. Also returns the addresses of masters to use from here on: those
/// that were named and all others of the cell, because a joined component must not depend on the
/// one master that it joined through.
pub async fn request_certificate(
    masters: &[String],
    trust: &Trust,
    request: &JoinRequest,
) -> Result<(JoinAnswer, Vec<String>), Failure> {
    let client = joining_client(masters, trust)?;
    match client.call_internal(JOIN_PATH, request).await? {
        JoinReply::Certified(answer) => Ok((answer, known_masters(masters, &client))),
        JoinReply::Waiting(waiting) => Err(Failure::Operation {
            message: format!("cell {} wants to have this part confirmed", waiting.cell),
            next: "ask for a token of its own kind: cell token create --help".into(),
        }),
    }
}

/// The masters that were named, and those that the cell has reported.
pub fn known_masters(masters: &[String], client: &Client) -> Vec<String> {
    let mut all = masters.to_vec();
    all.extend(client.masters().into_iter().filter(|learned| !masters.contains(learned)));
    all
}

/// A client without a certificate, for the masters that the token belongs to.
pub fn joining_client(masters: &[String], trust: &Trust) -> Result<Client, Failure> {
    let tls = tls::client_config(trust, None)
        .map_err(|error| Failure::from_error(&error, "copy the token whole and run it again"))?;
    tls_client(masters, tls)
}

pub fn tls_client(masters: &[String], tls: ClientConfig) -> Result<Client, Failure> {
    if masters.is_empty() {
        return Err(Failure::Usage {
            message: "no master of the cell is named".into(),
            next: "the same command with --master HOST:PORT of a master that runs".into(),
        });
    }
    let tls = Some(Arc::new(tls));
    let settings = ApiClientConfig {
        tls,
        refused_timeout: REFUSED_TIMEOUT,
        ..ApiClientConfig::new(masters.to_vec())
    };
    Ok(Client::new(settings)?)
}

/// A key that waits for its certificate, in a file beside the certificate's future path.
pub struct PendingJoin {
    file: PathBuf,
    key: Secret,
    pub request: JoinRequest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedKey {
    /// The part of the token that is not secret.
    token: String,
    key: String,
    signing_request: String,
}

impl PendingJoin {
    /// The key of an earlier attempt with this token, or a new one, which is saved. `hosts`: the
    /// addresses of a replica. `identity`: the future path of the certificate.
    pub fn begin(
        token: &JoinToken,
        hosts: &[String],
        identity: &Path,
        next: &str,
    ) -> Result<PendingJoin, Failure> {
        let file = identity.with_extension("joining");
        let saved = match load_saved_key(token, &file)? {
            Some(saved) => saved,
            None => {
                let created =
                    token.generate_key(hosts).map_err(|error| Failure::from_error(&error, next))?;
                let NewKey { key, signing_request } = created;
                let key = key.expose().to_owned();
                let saved = SavedKey { token: token.id.clone(), key, signing_request };
                save_key(&saved, &file).map_err(|source| write_failure(&file, source))?;
                saved
            }
        };
        let SavedKey { key, signing_request, .. } = saved;
        let request = JoinRequest { token: token.text(), signing_request };
        Ok(PendingJoin { file, key: Secret::new(key), request })
    }

    /// Removes the saved key, once the certificate and the key are written.
    pub fn remove_saved_key(&self) -> Result<(), Failure> {
        std::fs::remove_file(&self.file).map_err(|source| write_failure(&self.file, source))
    }

    /// The key and the names it is to be certified for.
    pub fn new_key(&self) -> NewKey {
        let signing_request = self.request.signing_request.clone();
        NewKey { key: self.key.clone(), signing_request }
    }

    pub fn key(&self) -> Secret {
        self.key.clone()
    }
}

fn write_failure(file: &Path, source: io::Error) -> Failure {
    Failure::Write { what: file.display().to_string(), source }
}

/// The key of an earlier attempt with the same token; one of another token is ignored.
fn load_saved_key(token: &JoinToken, file: &Path) -> Result<Option<SavedKey>, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(write_failure(file, source)),
    };
    let saved = serde_json::from_str(&text).ok().filter(|saved: &SavedKey| saved.token == token.id);
    if saved.is_none() {
        std::fs::remove_file(file).map_err(|source| write_failure(file, source))?;
    }
    Ok(saved)
}

fn save_key(saved: &SavedKey, file: &Path) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
    }
    write_private(file, serde_json::to_string(saved).map_err(io::Error::other)?.as_bytes())
}
