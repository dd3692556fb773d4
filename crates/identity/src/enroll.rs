//! How a part gets its certificate: once by a join token, afterwards by the certificate it holds.
//!
//! The private key is made where it is used and never travels. What travels is a signing request,
//! and the cell's authority takes from it only the public key, the name it must match and, for a
//! master, the hosts it answers at. A join token is good for one such request; its text carries the
//! fingerprint of the authority, so that the secret is only ever told to the right cell.
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

/// Where a join token is exchanged for a certificate; open to anyone who has one.
pub const JOIN_PATH: &str = "/internal/join";
/// Where a replica that was confirmed gets the authority's key.
pub const AUTHORITY_PATH: &str = "/internal/authority";
/// Where a part gets its next certificate.
pub const RENEW_PATH: &str = "/internal/renew";
/// Life of a part's certificate.
pub const CERTIFICATE_LIFETIME: Span = Span::seconds(24 * 3600);
/// How far certificates reach back before they were made, for clocks that lag behind.
pub const NOT_BEFORE_BACKDATE: Span = Span::seconds(2 * 3600);
/// A certificate that begins this much later than now, or ended this long ago, is still good: its
/// signer's clock may be ahead, or that of whoever looks at it.
pub const CLOCK_SKEW_TOLERANCE: Span = Span::seconds(3600);
/// Stands for the cell in a signing request that comes with a join token: its holder does not know
/// the cell's name yet, and the token's fingerprint says more than a name.
const UNKNOWN_CELL: &str = "joining";
/// First piece of a join token's text.
const JOIN_TOKEN_PREFIX: &str = "CELL-JOIN";

/// Why there is no key, no request or no identity.
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

/// What the holder of a join token asks at [`JOIN_PATH`].
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    pub protocol: u32,
    /// The whole text of the token.
    pub token: Secret,
    /// PEM.
    pub signing_request: String,
}

/// What it hears, once the token's use is in the log.
#[derive(Clone, Serialize, Deserialize)]
pub enum JoinReply {
    Certified(JoinAnswer),
    /// A replica is to ask again: an operator has not confirmed it yet.
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

/// A replica that waits for an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingConfirmation {
    pub cell: Name,
    /// As the cell has it; whoever waits shows its own.
    pub key: KeyFingerprint,
    /// Who is not confirmed by then joins with another token.
    pub until: Time,
}

/// What a replica that was confirmed asks at [`AUTHORITY_PATH`], on a connection that shows its
/// certificate: who does not have the key of that gets nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuthorityRequest {
    pub protocol: u32,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct AuthorityAnswer {
    /// PEM, so that any leader can sign.
    pub authority_key: Secret,
}

/// What a part with a certificate asks at [`RENEW_PATH`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    pub protocol: u32,
    /// PEM, for the very name of the certificate shown on the connection.
    pub signing_request: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// The certificate and its authority, PEM.
    pub certificate: String,
}

/// What a join token is good for.
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
    /// Of the authority's certificate.
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
    /// What is wrong with the text; never the text itself, which may be most of a good token.
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

    /// A fresh key and what to ask for with this token.
    ///
    /// # Errors
    /// When a host is not one, or the system has no randomness.
    pub fn generate_key(&self, hosts: &[String]) -> Result<NewKey, EnrollError> {
        let cell = Name::new(UNKNOWN_CELL).map_err(|_| EnrollError::Token("no cell"))?;
        NewKey::generate(&Identity { cell, part: self.part() }, hosts)
    }

    /// The part that the token makes of its holder.
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
    /// `hosts`: names and addresses at which a server will be reached; none for a client.
    ///
    /// # Errors
    /// When a host is not one, or the system has no randomness.
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

/// For people who look at a certificate; nothing is decided by it.
#[must_use]
pub fn subject(part: &Part) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, part.to_string());
    subject
}

/// The identity and the hosts, as they stand in a certificate.
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

/// The fingerprint of a public key, of its bits alone.
#[must_use]
pub fn key_fingerprint(public_key: &[u8]) -> KeyFingerprint {
    let digest = sha256(public_key);
    KeyFingerprint(std::array::from_fn(|at| digest[at]))
}

/// The fingerprint of the public half of a private key in PEM.
///
/// # Errors
/// When it is none.
pub fn own_key_fingerprint(key: &Secret) -> Result<KeyFingerprint, EnrollError> {
    let pair = KeyPair::from_pem(key.expose()).map_err(|e| EnrollError::Crypto(e.to_string()))?;
    Ok(key_fingerprint(pair.public_key_raw()))
}

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateHolder {
    pub identity: Identity,
    /// Of the key it is for.
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

    /// When to ask for the next certificate: at two thirds of this one's life, so that a cell may
    /// be away for eight hours before a part loses its identity.
    #[must_use]
    pub fn renew_at(&self) -> Time {
        let issued = issued_at(self.from, self.until);
        issued.plus(Span(self.until.since(issued).0 / 3 * 2))
    }

    /// Whether whoever signs for itself should do so now: in time, and when the clock says that it
    /// was signed in the future, for then it was signed by a clock that was ahead.
    #[must_use]
    pub fn is_renewal_due(&self, now: Time) -> bool {
        let ahead = issued_at(self.from, self.until).since(now);
        now >= self.renew_at() || ahead > Span::seconds(60)
    }

    /// Whether it opens nothing any more, clocks that differ allowed for.
    #[must_use]
    pub fn is_expired(&self, now: Time) -> bool {
        self.effective_expiry() <= now
    }

    /// When it opens nothing any more, clocks that differ allowed for.
    #[must_use]
    pub fn effective_expiry(&self) -> Time {
        self.until.plus(expiry_tolerance(self.from, self.until))
    }
}

/// For how long a certificate is taken after its end, by clocks that differ: as long as it lived,
/// and never longer than [`CLOCK_SKEW_TOLERANCE`]. One that was made for seconds is not good for an hour.
#[must_use]
pub fn expiry_tolerance(from: Time, until: Time) -> Span {
    until.since(issued_at(from, until)).min(CLOCK_SKEW_TOLERANCE)
}

/// When a certificate that says this was made: whoever renews in time counts from then.
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
