//! References to images in registries: `docker://HOST[:PORT]/NAME[:TAG|@sha256:…]`.
//!
//! The scheme is required, as in skopeo and podman: without it `alpine` could be a file or an
//! image, depending on the working directory. After it the short names of Docker Hub work, because
//! that is what people copy from web pages.

use crate::digest::PackageDigest;
use crate::path::truncate;
use std::fmt;
use std::str::FromStr;

/// The prefix of a reference.
pub const SCHEME: &str = "docker://";
const ALLOWED: &str = "docker://HOST[:PORT]/NAME[:TAG|@sha256:DIGEST], or docker://NAME[:TAG] for \
                       Docker Hub";
/// Docker Hub as references spell it, and its address.
pub(super) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_ADDRESS: &str = "registry-1.docker.io";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `HOST[:PORT]` in lower case.
    host: String,
    name: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(String),
    Digest(PackageDigest),
}

/// Why a text is not a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no image: {why}; allowed: {ALLOWED}")]
pub struct BadReference {
    pub text: String,
    pub why: String,
}

impl Reference {
    /// `HOST[:PORT]` as the reference has it; `docker.io` for Docker Hub.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `HOST[:PORT]` to connect to.
    pub(super) fn connect_address(&self) -> &str {
        if self.host == DOCKER_HUB { DOCKER_HUB_ADDRESS } else { &self.host }
    }

    /// The repository below the host.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last part of the name: the default file name for the image.
    #[must_use]
    pub fn stem(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Tag or digest, for the request of a manifest.
    pub(super) fn version(&self) -> String {
        match &self.version {
            Version::Tag(tag) => tag.clone(),
            Version::Digest(digest) => format!("sha256:{digest}"),
        }
    }

    pub(super) fn digest(&self) -> Option<PackageDigest> {
        match self.version {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(digest),
        }
    }

    /// The same repository, with the digest that a tag stood for.
    pub(super) fn with_digest(&self, digest: PackageDigest) -> Reference {
        Reference { version: Version::Digest(digest), ..self.clone() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.host, self.name)?;
        match &self.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@sha256:{digest}"),
        }
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Reference, BadReference> {
        let bad = |why: String| BadReference { text: truncate(text), why };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad(format!("no {SCHEME}")))?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (host, path) = match rest.split_once('/') {
            Some((first, path)) if is_host(first) => (first.to_ascii_lowercase(), path),
            _ => (DOCKER_HUB.to_owned(), rest),
        };
        let host = if host == "index.docker.io" || host == DOCKER_HUB_ADDRESS {
            DOCKER_HUB.into()
        } else {
            host
        };
        check_host(&host).map_err(|why| bad(format!("host {host:?}: {why}")))?;
        let (name, tag) = match path.rsplit_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (path, None),
        };
        let name = if host == DOCKER_HUB && !name.contains('/') {
            format!("library/{name}")
        } else {
            name.to_owned()
        };
        if name.len() > MAX_NAME || !name.split('/').all(is_part) {
            let why = "parts of a-z and 0-9 with single ., _ or - between, at most 255 in all";
            return Err(bad(format!("name {:?} is not {why}", truncate(&name))));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            let why = "1 to 128 of a-z, A-Z, 0-9, _, . and -, not starting with . or -";
            return Err(bad(format!("the tag is not {why}")));
        }
        let version = match digest {
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
            Some(digest) => {
                let digits = digest.strip_prefix("sha256:").and_then(PackageDigest::parse);
                let why = || bad("the digest is not sha256: and 64 digits 0-9 and a-f".into());
                Version::Digest(digits.ok_or_else(why)?)
            }
        };
        Ok(Reference { host, name, version })
    }
}

/// Whether the first part is a host and not the owner of a repository on Docker Hub.
fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost"
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = split_host(host).ok_or("the port is not a number from 1 to 65535")?;
    if port == Some(0) {
        return Err("the port is not a number from 1 to 65535");
    }
    let is_address = host.starts_with('[') && name.parse::<std::net::Ipv6Addr>().is_ok();
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    if is_address || (!name.is_empty() && name.len() <= 253 && name.bytes().all(letter)) {
        Ok(())
    } else {
        Err("it is no host name and no address")
    }
}

/// Host without brackets, and port if there is one.
pub(super) fn split_host(host: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((address, Some(port.parse().ok()?))),
            None => after.is_empty().then_some((address, None)),
        };
    }
    match host.split_once(':') {
        Some((name, port)) => Some((name, Some(port.parse().ok()?))),
        None => Some((host, None)),
    }
}

/// One part of a repository's name.
fn is_part(part: &str) -> bool {
    let bytes = part.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain);
    let inner = bytes.iter().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'));
    edges && inner && !part.contains("..") && !part.contains("___")
}

fn is_tag(tag: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=MAX_TAG).contains(&tag.len()) && tag.bytes().all(letter) && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_understood() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (typed, means, address) in [
            ("docker://alpine", "docker.io/library/alpine:latest", "registry-1.docker.io"),
            ("docker://alpine:3.20", "docker.io/library/alpine:3.20", "registry-1.docker.io"),
            ("docker://grafana/grafana", "docker.io/grafana/grafana:latest", DOCKER_HUB_ADDRESS),
            ("docker://index.docker.io/a/b:c", "docker.io/a/b:c", DOCKER_HUB_ADDRESS),
            ("docker://localhost/app", "localhost/app:latest", "localhost"),
            ("docker://localhost:5000/a/b/c:v1", "localhost:5000/a/b/c:v1", "localhost:5000"),
            ("docker://[::1]:5000/app", "[::1]:5000/app:latest", "[::1]:5000"),
            ("docker://GHCR.io/org/app_x:1", "ghcr.io/org/app_x:1", "ghcr.io"),
        ] {
            let reference: Reference = typed.parse().unwrap();
            assert_eq!(reference.to_string(), format!("docker://{means}"), "{typed}");
            assert_eq!(reference.connect_address(), address, "{typed}");
        }
        let both: Reference = format!("docker://quay.io/a/b:tag@{digest}").parse().unwrap();
        assert_eq!(both.to_string(), format!("docker://quay.io/a/b@{digest}"));
        assert_eq!((both.version(), both.stem()), (digest, "b"));
    }

    #[test]
    fn what_names_no_image_says_why_and_what_would() {
        for (typed, part) in [
            ("alpine", "no docker://"),
            ("docker://", "name \"library/\""),
            ("docker://Alpine", "name \"library/Alpine\""),
            ("docker://a.b/../c", "name \"../c\""),
            ("docker://a.b/c//d", "name \"c//d\""),
            ("docker://a.b:port/c", "the port is not a number"),
            ("docker://a.b:0/c", "the port is not a number"),
            ("docker://a.b?x/c", "no host name"),
            ("docker://user:pw/c", "the port is not a number"),
            ("docker://a.b/c:-x", "the tag is not"),
            ("docker://a.b/c@sha256:12", "the digest is not"),
            ("docker://a.b/c@md5:12", "the digest is not"),
            ("docker://user:pw@a.b/c", "the digest is not"),
        ] {
            let error = typed.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("allowed: docker://"), "{error}");
        }
    }
}
