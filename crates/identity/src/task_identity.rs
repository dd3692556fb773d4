//! Identity of a task towards other programs: a certificate with
//! `spiffe://<cell>/<user>/<job>/<index>` in it, with which tasks authenticate each other over TLS
//! (X9). The agent of the task's machine generates the key and requests the certificate from a
//! master; masters sign only for tasks that are placed on that machine, with the name that the cell
//! has for the task.
//!
//! Its SPIFFE id has one component more than that of a part of the cell, and names are matched
//! whole: a task cannot impersonate a master, an agent or a person.

use crate::enroll::{EnrollError, issued_at};
use crate::secret::Secret;
use crate::tls::certificates;
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Where an agent requests the certificate of a task.
pub const TASK_IDENTITY_PATH: &str = "/internal/task-identity";

/// Request of an agent at [`TASK_IDENTITY_PATH`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskIdentityRequest {
    pub task: TaskId,
    pub attempt: u32,
    /// PEM. Only its key counts: the cell knows the task's name.
    pub signing_request: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskIdentityAnswer {
    /// The certificate and its authority, PEM.
    pub certificate: String,
    /// The authority alone, PEM.
    pub authority: String,
}

/// The SPIFFE id of a task; `name` is `user/job/index`.
#[must_use]
pub fn task_uri(cell: &Name, name: &str) -> String {
    format!("spiffe://{cell}/{name}")
}

/// A new key for a task, PEM.
///
/// # Errors
/// When the system has no randomness.
pub fn new_key() -> Result<Secret, EnrollError> {
    let key = KeyPair::generate().map_err(|why| EnrollError::Crypto(why.to_string()))?;
    Ok(Secret::new(key.serialize_pem()))
}

/// The signing request for a key, PEM.
///
/// # Errors
/// When `key` is not a private key.
pub fn signing_request(key: &Secret) -> Result<String, EnrollError> {
    let crypto = |why: rcgen::Error| EnrollError::Crypto(why.to_string());
    let key = KeyPair::from_pem(key.expose()).map_err(crypto)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serialize_request(&key).and_then(|request| request.pem()).map_err(crypto)
}

/// A task's certificate, as far as its agent needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskCertificate {
    pub uri: String,
    pub from: Time,
    pub until: Time,
}

impl TaskCertificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// When it does not parse, or does not name exactly one URI.
    pub fn from_pem(pem: &str) -> Result<TaskCertificate, EnrollError> {
        let text = |why: &dyn std::fmt::Display| EnrollError::Certificate(why.to_string());
        let chain = certificates("certificate", pem)?;
        let (_, certificate) = X509Certificate::from_der(&chain[0]).map_err(|w| text(&w))?;
        let names = certificate.subject_alternative_name().map_err(|w| text(&w))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let uris: Vec<String> = names
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some((*uri).to_owned()),
                _ => None,
            })
            .collect();
        let [uri] = &uris[..] else {
            return Err(EnrollError::AmbiguousIdentity { found: uris.len() });
        };
        let validity = certificate.validity();
        let time = |seconds: i64| Time(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
        Ok(TaskCertificate {
            uri: uri.clone(),
            from: time(validity.not_before.timestamp()),
            until: time(validity.not_after.timestamp()),
        })
    }

    /// When to renew: at half of its lifetime, so that masters may be away for half an hour before
    /// a task loses its identity.
    #[must_use]
    pub fn renew_at(&self) -> Time {
        let issued = issued_at(self.from, self.until);
        issued.plus(Span(self.until.since(issued).0 / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiffe::Identity;

    #[test]
    fn no_task_is_a_part_of_the_cell_whatever_it_is_called() {
        let cell = Name::new("aa").unwrap();
        for name in ["ann/web/0", "master/m1/0", "agent/n1/7", "user/ann/0"] {
            let uri = task_uri(&cell, name);
            assert!(Identity::parse(&uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_key_asks_for_its_certificate_and_what_is_no_key_does_not() {
        let request = signing_request(&new_key().unwrap()).unwrap();
        assert!(request.contains("CERTIFICATE REQUEST"), "{request}");
        assert!(signing_request(&Secret::new("no key".into())).is_err());
        assert!(TaskCertificate::from_pem(&request).is_err());
    }
}
