//! A join token against a certificate: what masters, agents and schedulers that join share.
//!
//! A token is used up by the first request that the cell commits. Whether it did so may not be
//! known to who asked: the answer was lost, or the masters had no majority just then. So the key
//! is kept until the certificate is there, and the same command typed again asks with the same key,
//! which the cell answers as it did the first time.

use crate::failure::Failure;
use crate::reach::REFUSED;
use cellwright_api::client::{Client, Settings};
use cellwright_api::internal::PROTOCOL;
use cellwright_identity::enroll::{
    JOIN_PATH, JoinAnswer, JoinReply, JoinRequest, JoinToken, NewKey,
};
use cellwright_identity::private::write_private;
use cellwright_identity::secret::Secret;
use cellwright_identity::tls::{self, Trust};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Asks for the certificate. The masters prove by `trust` that they are the token's cell before
/// they are told its secret. Also returns where masters are found from here on: those that were
/// named, and all others the cell has, for whoever joins through one must not depend on it.
pub async fn certified(
    masters: &[String],
    trust: &Trust,
    request: &JoinRequest,
) -> Result<(JoinAnswer, Vec<String>), Failure> {
    let client = asking(masters, trust)?;
    match client.call_internal(JOIN_PATH, request).await? {
        JoinReply::Certified(answer) => Ok((answer, known(masters, &client))),
        JoinReply::Waiting(waiting) => Err(Failure::Work {
            message: format!("cell {} wants to have this part confirmed", waiting.cell),
            next: "ask for a token of its own kind: cell token create --help".into(),
        }),
    }
}

/// The masters that were named, and those that the cell has told of.
pub fn known(masters: &[String], client: &Client) -> Vec<String> {
    let mut all = masters.to_vec();
    all.extend(client.masters().into_iter().filter(|learned| !masters.contains(learned)));
    all
}

/// A client without a certificate, to the masters that the token is of.
pub fn asking(masters: &[String], trust: &Trust) -> Result<Client, Failure> {
    let tls = tls::client(trust, None)
        .map_err(|error| Failure::work(&error, "copy the token whole and run it again"))?;
    client(masters, tls)
}

pub fn client(masters: &[String], tls: ClientConfig) -> Result<Client, Failure> {
    if masters.is_empty() {
        return Err(Failure::Usage {
            message: "no master of the cell is named".into(),
            next: "the same command with --master HOST:PORT of a master that runs".into(),
        });
    }
    let tls = Some(Arc::new(tls));
    let settings = Settings { tls, refused_for: REFUSED, ..Settings::new(masters.to_vec()) };
    Ok(Client::new(settings)?)
}

/// A key that waits for its certificate, in a file beside where that will be.
pub struct Waiting {
    file: PathBuf,
    key: Secret,
    pub request: JoinRequest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The part of the token that is no secret.
    token: String,
    key: String,
    signing_request: String,
}

impl Waiting {
    /// The key of an earlier try with this token, or a new one, which is kept. `hosts`: where a
    /// replica answers. `identity`: where the certificate will be.
    pub fn begin(
        token: &JoinToken,
        hosts: &[String],
        identity: &Path,
        next: &str,
    ) -> Result<Waiting, Failure> {
        let file = identity.with_extension("joining");
        let kept = match earlier(token, &file)? {
            Some(kept) => kept,
            None => {
                let made = token.signing_key(hosts).map_err(|error| Failure::work(&error, next))?;
                let NewKey { key, signing_request } = made;
                let key = key.expose().to_owned();
                let kept = Kept { token: token.id.clone(), key, signing_request };
                keep(&kept, &file).map_err(|source| unwritten(&file, source))?;
                kept
            }
        };
        let Kept { key, signing_request, .. } = kept;
        let request = JoinRequest { protocol: PROTOCOL, token: token.text(), signing_request };
        Ok(Waiting { file, key: Secret::new(key), request })
    }

    /// The certificate and the key are where they belong.
    pub fn done(&self) -> Result<(), Failure> {
        std::fs::remove_file(&self.file).map_err(|source| unwritten(&self.file, source))
    }

    /// The key and what it was to be certified by.
    pub fn made(&self) -> NewKey {
        let signing_request = self.request.signing_request.clone();
        NewKey { key: self.key.clone(), signing_request }
    }

    pub fn key(&self) -> Secret {
        self.key.clone()
    }
}

fn unwritten(file: &Path, source: io::Error) -> Failure {
    Failure::Write { what: file.display().to_string(), source }
}

/// What an earlier try left; of another token it is of no use any more.
fn earlier(token: &JoinToken, file: &Path) -> Result<Option<Kept>, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(unwritten(file, source)),
    };
    let kept = serde_json::from_str(&text).ok().filter(|kept: &Kept| kept.token == token.id);
    if kept.is_none() {
        std::fs::remove_file(file).map_err(|source| unwritten(file, source))?;
    }
    Ok(kept)
}

fn keep(kept: &Kept, file: &Path) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
    }
    write_private(file, serde_json::to_string(kept).map_err(io::Error::other)?.as_bytes())
}
