//! Errors of a registry: which image, what was requested, the result, and what the user can do.
//!
//! Texts from the other side are truncated and with control characters escaped, since they end up
//! on a terminal.

use crate::error::PackageError;
pub(super) use crate::path::printable;

/// Why an image could not be pulled.
#[derive(Debug, thiserror::Error)]
#[error("{reference}: {requested}: {why}")]
pub struct RegistryError {
    pub reference: String,
    /// The part of the image that was requested.
    pub requested: String,
    pub why: RegistryFailure,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryFailure {
    #[error("{0}")]
    Unreachable(String),
    #[error("the connection is not to be trusted: {0}")]
    Untrusted(String),
    #[error("{host} would be spoken to in plain text; allowed: https, and http on loopback")]
    PlainText { host: String },
    #[error("{host} asks for credentials in plain text")]
    PlainCredentials { host: String },
    #[error("broke off {attempts} times, the last time: {last}")]
    BrokeOff { attempts: u32, last: String },
    #[error("access is denied: {detail}")]
    Denied { detail: String, credentials: Credentials },
    #[error("the registry has no such thing: {0}")]
    Missing(String),
    #[error("the registry has no time: {0}")]
    Busy(String),
    #[error("the registry answered {status}: {detail}")]
    Answered { status: u16, detail: String },
    /// Not what was announced: by digest, length, kind or protocol.
    #[error("{0}")]
    Untrue(String),
    #[error(transparent)]
    Package(#[from] PackageError),
}

/// The credentials in use when access was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// No file was given, or it has no entry for this registry.
    None,
    Shown,
    /// There are some, but they were not sent, because the authorization server is not the
    /// registry's.
    Withheld,
}

impl RegistryError {
    /// What the user can do about it.
    #[must_use]
    pub fn next(&self) -> &'static str {
        match &self.why {
            RegistryFailure::Unreachable(_) => {
                "check the host's name, its port and that the registry is reachable from here; \
                 through a proxy if HTTPS_PROXY names one"
            }
            RegistryFailure::Untrusted(_) => {
                "give the certificate of the registry's authority with --ca FILE; TLS 1.2 and 1.3 \
                 are spoken"
            }
            RegistryFailure::PlainText { .. } => {
                "the same command with --insecure-http, if the network in between is your own"
            }
            RegistryFailure::PlainCredentials { .. } => {
                "have the registry speak https, or take no credentials"
            }
            RegistryFailure::Denied { credentials: Credentials::None, .. } => {
                "check the name; for a private image the same command with --credentials FILE, a \
                 file as `docker login` or `podman login --authfile FILE` writes it"
            }
            RegistryFailure::Denied { credentials: Credentials::Shown, .. } => {
                "check the name, and that the credentials for this registry may read it"
            }
            RegistryFailure::Denied { credentials: Credentials::Withheld, .. } => {
                "credentials go only to the registry's own domain; fetch it with skopeo: \
                 skopeo copy docker://NAME oci-archive:FILE, then cell package import FILE"
            }
            RegistryFailure::Missing(_) => {
                "check name and tag: `skopeo list-tags docker://NAME` lists them"
            }
            RegistryFailure::Busy(_) => {
                "try again later; some registries allow more with --credentials FILE"
            }
            RegistryFailure::BrokeOff { .. } => "run it again; nothing was kept of it",
            RegistryFailure::Answered { .. } => "see the registry's log, then run it again",
            RegistryFailure::Untrue(_) => {
                "nothing was kept; compare with what others get: skopeo inspect docker://NAME"
            }
            RegistryFailure::Package(PackageError::Image(_)) => {
                "see what the image has: skopeo inspect --raw docker://NAME"
            }
            RegistryFailure::Package(PackageError::Io { .. }) => {
                "check the path, the permissions and the free space"
            }
            RegistryFailure::Package(_) => "see what the image has: skopeo inspect docker://NAME",
        }
    }
}
