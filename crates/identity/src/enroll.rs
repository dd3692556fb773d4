//! Enrollment: a part gets its first certificate with a join token, and later ones with the
//! certificate it holds.
//!
//! The private key is generated where it is used and never travels. What travels is a signing
//! request (CSR), and the cell's authority uses only its public key, the name it must match and,
//! for a master, the hosts it is reached at. A join token is good for one such request; its text
//! carries the fingerprint of the authority, so that the secret is sent only to the right cell.
//!
//! Rejected: certificates made on the master and copied to machines. Copies of keys are what gets
//! stolen.

use crate::secret::{Secret, sha256, unhex32};
use crate::spiffe::{Identity, Part};
use crate::tls::{TlsError, certificates};
use cellwright_cell::credential::KeyFingerprint;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Exchanges a join token for a certificate; open to anyone who has a token.
pub const JOIN_PATH: &str = "/internal/join";
/// Gives the authority's key to a replica that was confirmed.
pub const AUTHORITY_PATH: &str = "/internal/authority";
/// Renews a part's certificate.
pub const RENEW_PATH: &str = "/internal/renew";
/// Lifetime of a part's certificate.
pub const CERTIFICATE_LIFETIME: Span = Span::seconds(24 * 3600);
/// How far a certificate's `not before` is backdated, for clocks that lag behind.
pub const NOT_BEFORE_BACKDATE: Span = Span::seconds(2 * 3600);
/// A certificate that begins this much later than now, or ended this long ago, is still accepted:
/// the signer's clock or the verifier's may be wrong.
pub const CLOCK_SKEW_TOLERANCE: Span = Span::seconds(3600);
/// Stands for the cell's name in a signing request that comes with a join token: its holder does
/// not know the name yet, and the token's fingerprint identifies the cell better than a name.
const UNKNOWN_CELL: &str = "joining";
/// First component of a join token's text.
const JOIN_TOKEN_PREFIX: &str = "CELL-JOIN";

/// Why enrollment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("making a key or signing request: {0}")]
    Crypto(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the certificate does not parse: {0}")]
    Certificate(String),
    #[error("the certificate names {found} parts of cells; allowed: exactly 1")]
    AmbiguousIdentity { found: usize },
    #[error("{host:?} is neither a host name nor an address")]
    InvalidHost { host: String },
    #[error("join token: {0}")]
    Token(&'static str),
}

/// Request at [`JOIN_PATH`], by the holder of a join token.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The whole text of the token.
    pub token: Secret,
    /// PEM.
    pub signing_request: String,
}

/// The answer, once the token's use is in the log.
#[derive(Clone, Serialize, Deserialize)]
pub enum JoinReply {
    Certified(JoinAnswer),
    /// A replica asks again later: an operator has not confirmed it yet.
    Waiting(PendingConfirmation),
}

#[derive(Clone, Serialize, Deserialize)]
pub struct JoinAnswer {
    pub cell: Name,
    /// The certificate and its authority, PEM.
    pub certificate: String,
    /// The authority alone, PEM.
    pub authority: String,
}

/// A replica that waits for an operator's confirmation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingConfirmation {
    pub cell: Name,
    /// The fingerprint as the cell knows it; the waiting replica prints its own for comparison.
    pub key: KeyFingerprint,
    /// A replica that is not confirmed by then joins with another token.
    pub until: Time,
}

/// Request at [`AUTHORITY_PATH`], by a replica that was confirmed. The connection presents its
/// certificate: without that certificate's key there is no answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuthorityRequest;

#[derive(Clone, Serialize, Deserialize)]
pub struct AuthorityAnswer {
    /// PEM; with it any leader can sign.
    pub authority_key: Secret,
}

/// Request at [`RENEW_PATH`], by a part with a certificate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// PEM, for exactly the name in the certificate presented on the connection.
    pub signing_request: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// The certificate and its authority, PEM.
    pub certificate: String,
}

/// The kind of part that a join token enrolls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    Agent,
    Replica,
    Scheduler,
}

/// A join token as handed to an operator: `CELL-JOIN.<kind>.<name>.<id>.<secret>.<fingerprint>`.
#[derive(Clone)]
pub struct JoinToken {
    pub kind: JoinKind,
    pub name: Name,
    pub id: String,
    pub secret: Secret,
    /// Fingerprint of the authority's certificate.
    pub fingerprint: String,
}

impl JoinToken {
    #[must_use]
    pub fn text(&self) -> Secret {
        let kind = match self.kind {
            JoinKind::Agent => "agent",
            JoinKind::Replica => "replica",
            JoinKind::Scheduler => "scheduler",
        };
        Secret::new(format!(
            "{JOIN_TOKEN_PREFIX}.{kind}.{}.{}.{}.{}",
            self.name,
            self.id,
            self.secret.expose(),
            self.fingerprint
        ))
    }

    /// # Errors
    /// What is wrong with the text; never the text itself, which may be most of a valid token.
    pub fn parse(text: &str) -> Result<JoinToken, EnrollError> {
        let pieces: Vec<&str> = text.trim().split('.').collect();
        let [JOIN_TOKEN_PREFIX, kind, name, id, secret, fingerprint] = pieces[..] else {
            return Err(EnrollError::Token(
                "must be CELL-JOIN.<kind>.<name>.<id>.<secret>.<fingerprint>, copied whole",
            ));
        };
        let kind = match kind {
            "agent" => JoinKind::Agent,
            "replica" => JoinKind::Replica,
            "scheduler" => JoinKind::Scheduler,
            _ => {
                let allowed = "its kind is none of agent, replica and scheduler";
                return Err(EnrollError::Token(allowed));
            }
        };
        let name = Name::new(name).map_err(|_| EnrollError::Token("its name is not a name"))?;
        if id.is_empty() || secret.is_empty() || unhex32(fingerprint).is_none() {
            return Err(EnrollError::Token("its id, secret or fingerprint is cut short"));
        }
        let (id, fingerprint) = (id.to_owned(), fingerprint.to_owned());
        Ok(JoinToken { kind, name, id, secret: Secret::new(secret.to_owned()), fingerprint })
    }

    /// Generates a key and the signing request for this token.
    ///
    /// # Errors
    /// When a host is not valid, or the system has no randomness.
    pub fn generate_key(&self, hosts: &[String]) -> Result<NewKey, EnrollError> {
        let cell = Name::new(UNKNOWN_CELL).map_err(|_| EnrollError::Token("no cell"))?;
        NewKey::generate(&Identity { cell, part: self.part() }, hosts)
    }

    /// The part that this token enrolls.
    #[must_use]
    pub fn part(&self) -> Part {
        match self.kind {
            JoinKind::Agent => Part::Agent(self.name.clone()),
            JoinKind::Replica => Part::Master(self.name.clone()),
            JoinKind::Scheduler => Part::Scheduler(self.name.clone()),
        }
    }
}

/// A fresh private key and the request to certify it.
pub struct NewKey {
    pub key: Secret,
    /// PEM.
    pub signing_request: String,
}

impl NewKey {
    /// `hosts`: names and addresses at which a server is reached; none for a client.
    ///
    /// # Errors
    /// When a host is not valid, or the system has no randomness.
    pub fn generate(identity: &Identity, hosts: &[String]) -> Result<NewKey, EnrollError> {
        let crypto = |why: rcgen::Error| EnrollError::Crypto(why.to_string());
        let key = KeyPair::generate().map_err(crypto)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&identity.part);
        params.subject_alt_names = alternative_names(identity, hosts)?;
        let request = params.serialize_request(&key).map_err(crypto)?;
        let signing_request = request.pem().map_err(crypto)?;
        Ok(NewKey { key: Secret::new(key.serialize_pem()), signing_request })
    }
}

/// The subject, for people who read a certificate; no decision depends on it.
#[must_use]
pub fn subject(part: &Part) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, part.to_string());
    subject
}

/// The identity and the hosts as subject alternative names.
///
/// # Errors
/// When a host is neither a host name nor an address.
pub fn alternative_names(
    identity: &Identity,
    hosts: &[String],
) -> Result<Vec<SanType>, EnrollError> {
    let bad = |host: &str| EnrollError::InvalidHost { host: host.chars().take(260).collect() };
    let uri = identity.to_string();
    let mut names = vec![SanType::URI(uri.as_str().try_into().map_err(|_| bad(&uri))?)];
    for host in hosts {
        names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if is_host_name(host) => {
                SanType::DnsName(host.as_str().try_into().map_err(|_| bad(host))?)
            }
            Err(_) => return Err(bad(host)),
        });
    }
    Ok(names)
}

/// Labels of letters, digits and inner dashes. No wildcards.
fn is_host_name(host: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(label)
}

/// The fingerprint of a public key, computed from its bits alone.
#[must_use]
pub fn key_fingerprint(public_key: &[u8]) -> KeyFingerprint {
    let digest = sha256(public_key);
    KeyFingerprint(std::array::from_fn(|at| digest[at]))
}

/// The fingerprint of the public half of a private key in PEM.
///
/// # Errors
/// When the text is not a private key.
pub fn own_key_fingerprint(key: &Secret) -> Result<KeyFingerprint, EnrollError> {
    let pair = KeyPair::from_pem(key.expose()).map_err(|e| EnrollError::Crypto(e.to_string()))?;
    Ok(key_fingerprint(pair.public_key_raw()))
}

/// The holder of a certificate, as the certificate states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateHolder {
    pub identity: Identity,
    /// Fingerprint of the certificate's key.
    pub key: KeyFingerprint,
    pub from: Time,
    pub until: Time,
}

impl CertificateHolder {
    /// # Errors
    /// When the certificate does not parse, or does not name exactly one part of a cell.
    pub fn from_certificate(
        certificate: &CertificateDer<'_>,
    ) -> Result<CertificateHolder, EnrollError> {
        let text = |why: &dyn std::fmt::Display| EnrollError::Certificate(why.to_string());
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|w| text(&w))?;
        let names = certificate.subject_alternative_name().map_err(|w| text(&w))?;
        let uris: Vec<&str> = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        let [uri] = uris[..] else {
            return Err(EnrollError::AmbiguousIdentity { found: uris.len() });
        };
        let identity = Identity::parse(uri).map_err(|w| text(&w))?;
        let validity = certificate.validity();
        let time = |seconds: i64| Time(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
        let from = time(validity.not_before.timestamp());
        let key = key_fingerprint(&certificate.public_key().subject_public_key.data);
        Ok(CertificateHolder { identity, key, from, until: time(validity.not_after.timestamp()) })
    }

    /// # Errors
    /// As [`CertificateHolder::from_certificate`], for the first certificate of a PEM text.
    pub fn from_pem(pem: &str) -> Result<CertificateHolder, EnrollError> {
        CertificateHolder::from_certificate(&certificates("certificate", pem)?[0])
    }

    /// When to renew: at two thirds of the certificate's lifetime, so that the cell may be away for
    /// eight hours before a part loses its identity.
    #[must_use]
    pub fn renew_at(&self) -> Time {
        let issued = issued_at(self.from, self.until);
        issued.plus(Span(self.until.since(issued).0 / 3 * 2))
    }

    /// Whether a replica that signs for itself should renew now: at the usual time, and also when
    /// the certificate is dated in the future, because then the clock that signed it was ahead.
    #[must_use]
    pub fn is_renewal_due(&self, now: Time) -> bool {
        let ahead = issued_at(self.from, self.until).since(now);
        now >= self.renew_at() || ahead > Span::seconds(60)
    }

    /// Whether it is no longer accepted, clock skew allowed for.
    #[must_use]
    pub fn is_expired(&self, now: Time) -> bool {
        self.effective_expiry() <= now
    }

    /// When it is no longer accepted, clock skew allowed for.
    #[must_use]
    pub fn effective_expiry(&self) -> Time {
        self.until.plus(expiry_tolerance(self.from, self.until))
    }
}

/// For how long a certificate is accepted after its end, because clocks differ: as long as its
/// lifetime, and never longer than [`CLOCK_SKEW_TOLERANCE`]. A certificate issued for seconds is
/// not accepted for an hour.
#[must_use]
pub fn expiry_tolerance(from: Time, until: Time) -> Span {
    until.since(issued_at(from, until)).min(CLOCK_SKEW_TOLERANCE)
}

/// When a certificate with this validity was issued; renewal counts from then.
#[must_use]
pub fn issued_at(from: Time, until: Time) -> Time {
    from.plus(NOT_BEFORE_BACKDATE).min(until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::hex;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn token() -> JoinToken {
        JoinToken {
            kind: JoinKind::Agent,
            name: name("m7"),
            id: "k1".into(),
            secret: Secret::new("abc".into()),
            fingerprint: hex(&sha256(b"authority")),
        }
    }

    #[test]
    fn a_join_token_survives_its_text() {
        let back = JoinToken::parse(token().text().expose()).unwrap();
        assert_eq!(back.part(), Part::Agent(name("m7")));
        assert_eq!((back.id.as_str(), back.secret.expose()), ("k1", "abc"));
        assert_eq!(back.fingerprint, token().fingerprint);
    }

    #[test]
    fn a_damaged_join_token_is_refused_without_repeating_its_secret() {
        let good = token().text().expose().to_owned();
        let cut = &good[..good.len() - 1];
        let other_kind = good.replace(".agent.", ".user.");
        for wrong in ["", "CELL-JOIN", cut, &other_kind, &good.replace("m7", "M7")] {
            let Err(error) = JoinToken::parse(wrong) else { panic!("accepted {wrong}") };
            assert!(!error.to_string().contains("abc"), "{error}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        let identity = Identity { cell: name("aa"), part: Part::Master(name("m1")) };
        let hosts = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|h| (*h).to_owned()).collect();
            alternative_names(&identity, &list)
        };
        assert_eq!(hosts(&["master.example", "10.0.0.1", "::1"]).unwrap().len(), 4);
        for wrong in ["*.example", "", "a b", "-x", "a..b", "host:80"] {
            assert!(hosts(&[wrong]).is_err(), "{wrong}");
        }
    }
}
