//! User names and passwords for registries, from a file that `docker login` or `podman login`
//! wrote. Never from the command line, which every process of the machine can read.
//!
//! A file is read only when it is named. Credential helpers (`credHelpers`) are not started: the
//! error says instead that such an entry exists.

use super::reference::{DOCKER_HUB, Reference};
use cellwright_identity::secret::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

const MAX_FILE: u64 = 1 << 20;

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct BadCredentials {
    pub path: String,
    pub why: String,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

/// For one registry: the value of the `Basic` scheme.
#[derive(Clone)]
pub struct Login(Secret);

impl Login {
    pub(super) fn basic(&self) -> String {
        format!("Basic {}", self.0.expose())
    }
}

/// The file's entry for the image; nothing if it has none.
///
/// # Errors
/// When the file cannot be read, or has an entry for the registry that cannot be used here.
pub fn read(path: &Path, reference: &Reference) -> Result<Option<Login>, BadCredentials> {
    let bad = |why: String| BadCredentials { path: path.display().to_string(), why };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|why| bad(why.to_string()))?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|why| bad(why.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(bad(format!("it has more than {MAX_FILE} bytes")));
    }
    let file: File = serde_json::from_str(&text).map_err(|why| {
        // The text around the error may be a password.
        bad(format!(
            "line {} is not as in {{\"auths\": {{\"HOST\": {{\"auth\": \"…\"}}}}}}",
            why.line()
        ))
    })?;
    login(&file, reference).map_err(bad)
}

fn login(file: &File, reference: &Reference) -> Result<Option<Login>, String> {
    let repository = format!("{}/{}", reference.host(), reference.name());
    // The most specific entry: one of a part of the registry goes before one of all of it.
    let found = file.auths.iter().map(|(key, entry)| (normalized_key(key), entry));
    let found = found
        .filter(|(key, _)| matches_reference(key, &repository))
        .max_by_key(|(key, _)| key.len());
    let host = reference.host();
    if let Some((key, entry)) = &found {
        if !entry.auth.is_empty() {
            let decoded = decode(&entry.auth).filter(|pair| pair.contains(&b':'));
            let decoded = decoded.ok_or(format!("auth of {key} is not base64 of USER:PASSWORD"))?;
            return Ok(Some(Login(Secret::new(encode(&decoded)))));
        }
        if !entry.username.is_empty() {
            let pair = format!("{}:{}", entry.username, entry.password);
            return Ok(Some(Login(Secret::new(encode(pair.as_bytes())))));
        }
        if !entry.identity_token.is_empty() {
            return Err(format!(
                "{key} has an identitytoken; allowed: auth, or username and \
                                password"
            ));
        }
    }
    let helper =
        file.helpers.iter().find(|(key, _)| matches_reference(&normalized_key(key), &repository));
    let store = file.store.as_ref().filter(|_| found.is_some());
    let helper_program = helper.map(|(_, program)| program).or(store);
    match helper_program {
        Some(program) => Err(format!(
            "the password for {host} is kept by docker-credential-{program}; allowed: auth in the \
             file, as from `podman login --authfile FILE {host}`"
        )),
        None => Ok(None),
    }
}

/// Keys are hosts, hosts with a path, or addresses of Docker's first protocol.
fn normalized_key(key: &str) -> String {
    let bare = key.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    match bare.split_once('/').unwrap_or((bare, "")) {
        ("index.docker.io" | "registry-1.docker.io", "") => DOCKER_HUB.to_owned(),
        (host, "") => host.to_ascii_lowercase(),
        (host, path) => format!("{}/{path}", host.to_ascii_lowercase()),
    }
}

fn matches_reference(key: &str, repository: &str) -> bool {
    repository.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = (at(0) << 16) | (at(1) << 8) | at(2);
        for place in 0..4 {
            if place <= group.len() {
                out.push(char::from(ALPHABET[((bits >> (18 - 6 * place)) & 63) as usize]))
            } else {
                out.push('=')
            }
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|letter| *letter == byte)?;
        bits = (bits << 6) | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from((bits >> count) & 255).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, image: &str) -> Result<Option<String>, String> {
        let file: File = serde_json::from_str(file).unwrap();
        let reference: Reference = image.parse().unwrap();
        login(&file, &reference).map(|login| login.map(|login| login.basic()))
    }

    #[test]
    fn base64_of_every_length_goes_both_ways() {
        for (plain, coded) in [("", ""), ("u", "dQ=="), ("u:", "dTo="), ("u:p", "dTpw")] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).unwrap(), plain.as_bytes());
        }
        assert_eq!(decode("d!"), None);
    }

    #[test]
    fn the_entry_that_says_most_is_taken_and_nobody_elses() {
        let file = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHVi OnB3"},
            "quay.io": {"username": "u", "password": "p"},
            "quay.io/org": {"auth": "bzpw"},
            "localhost:5000": {"auth": "bDpw"}}}"#
            .replace(' ', "");
        for (image, login) in [
            ("docker://alpine", Some("Basic aHViOnB3")),
            ("docker://quay.io/a/b", Some("Basic dTpw")),
            ("docker://quay.io/org/b", Some("Basic bzpw")),
            ("docker://quay.io/organ/b", Some("Basic dTpw")),
            ("docker://localhost:5000/b", Some("Basic bDpw")),
            ("docker://localhost:5001/b", None),
            ("docker://quay.io.evil.example/a", None),
        ] {
            assert_eq!(found(&file, image).unwrap().as_deref(), login, "{image}");
        }
    }

    #[test]
    fn entries_of_no_use_are_named() {
        let helper = r#"{"credHelpers": {"gcr.io": "gcloud"}}"#;
        assert!(found(helper, "docker://gcr.io/a").unwrap_err().contains("credential-gcloud"));
        assert_eq!(found(helper, "docker://ghcr.io/a"), Ok(None));
        let store = r#"{"auths": {"ghcr.io": {}}, "credsStore": "desktop"}"#;
        assert!(found(store, "docker://ghcr.io/a").unwrap_err().contains("credential-desktop"));
        let token = r#"{"auths": {"ghcr.io": {"identitytoken": "x"}}}"#;
        assert!(found(token, "docker://ghcr.io/a").unwrap_err().contains("identitytoken"));
        let broken = r#"{"auths": {"ghcr.io": {"auth": "dXNlcg=="}}}"#;
        assert!(found(broken, "docker://ghcr.io/a").unwrap_err().contains("USER:PASSWORD"));
    }
}
