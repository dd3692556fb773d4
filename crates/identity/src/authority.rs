//! The cell's certificate authority (CA): one key, made at `cell master init`, held by every
//! replica so that any leader can sign, and by nothing else.
//!
//! Leaf certificates are valid for a day. That makes a revocation list needless: a part that must
//! go is refused its next renewal. Schedulers and users get certificates for clients only. Agents
//! are servers too, identified by their SPIFFE id: only a master's certificate names hosts, so no
//! other part can impersonate a master to its clients.

use crate::enroll::{
    CertificateHolder, EnrollError, NOT_BEFORE_BACKDATE, alternative_names, key_fingerprint,
    subject,
};
use crate::secret::Secret;
use crate::spiffe::{Identity, Part};
use crate::task_identity::task_uri;
use crate::tls::{self, TlsError, certificates};
use cellwright_cell::credential::KeyFingerprint;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKey,
    PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

/// Ten years: renewing the authority means that every part and every context file is touched.
const AUTHORITY_LIFETIME: Span = Span::seconds(10 * 365 * 24 * 3600);
/// A replica whose clock is further than this from the log's time signs nothing: a certificate
/// valid by both clocks would outlive the record of revoked parts.
const MAX_CLOCK_SKEW: Span = Span::seconds(4 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("making or reading a certificate: {0}")]
    Crypto(#[from] rcgen::Error),
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{0} is not a time a certificate can carry")]
    Time(u64),
    #[error("the system's random source gave no bytes")]
    NoRandomness,
    #[error("the authority's certificate names no cell")]
    NoCell,
    #[error("the authority's key does not belong to its certificate")]
    KeyMismatch,
}

/// The certificate authority that signs in this cell's name. It implements neither `Debug` nor
/// `PartialEq`, because it holds the key.
pub struct Authority {
    cell: Name,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: Secret,
    issuer: Issuer<'static, KeyPair>,
}

/// A signing request (CSR) that parsed and is signed by its own key.
pub struct SigningRequest {
    /// The identity the certificate is requested for.
    pub identity: Identity,
    /// Names and addresses that a server wants to be reached at.
    pub hosts: Vec<String>,
    key: PublicKey,
}

impl SigningRequest {
    /// # Errors
    /// When it does not parse, is not signed by its own key, or does not name exactly one part.
    pub fn parse(pem: &str) -> Result<SigningRequest, AuthorityError> {
        let request = CertificateSigningRequestParams::from_pem(pem)?;
        let (mut identities, mut hosts) = (Vec::new(), Vec::new());
        for name in &request.params.subject_alt_names {
            match name {
                SanType::URI(uri) => identities.push(uri.as_str().to_owned()),
                SanType::DnsName(host) => hosts.push(host.as_str().to_owned()),
                SanType::IpAddress(address) => hosts.push(address.to_string()),
                _ => return Err(rcgen::Error::UnsupportedExtension.into()),
            }
        }
        let [uri] = &identities[..] else {
            return Err(EnrollError::AmbiguousIdentity { found: identities.len() }.into());
        };
        let identity =
            Identity::parse(uri).map_err(|why| EnrollError::Certificate(why.to_string()))?;
        Ok(SigningRequest { identity, hosts, key: request.public_key })
    }

    /// The fingerprint that people compare.
    #[must_use]
    pub fn key_fingerprint(&self) -> KeyFingerprint {
        key_fingerprint(self.key.der_bytes())
    }
}

impl Authority {
    /// A new authority for a new cell.
    ///
    /// # Errors
    /// When the system has no randomness or `now` is no date.
    pub fn create(cell: &Name, now: Time) -> Result<Authority, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, cell.as_str());
        params.distinguished_name.push(DnType::CommonName, format!("authority of cell {cell}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(serial()?);
        (params.not_before, params.not_after) = validity(now.into(), AUTHORITY_LIFETIME)?;
        let certificate = params.self_signed(&key)?;
        Authority::assemble(cell.clone(), certificate.pem(), Secret::new(key.serialize_pem()))
    }

    /// The authority that was saved as two PEM texts.
    ///
    /// # Errors
    /// When they do not parse or do not belong together.
    pub fn from_pem(certificate: String, key: Secret) -> Result<Authority, AuthorityError> {
        let der = &certificates("authority", &certificate)?[0];
        let cell = cell_of(der).ok_or(AuthorityError::NoCell)?;
        Authority::assemble(cell, certificate, key)
    }

    fn assemble(
        cell: Name,
        certificate_pem: String,
        key_pem: Secret,
    ) -> Result<Authority, AuthorityError> {
        let certificate = certificates("authority", &certificate_pem)?.remove(0);
        let key = KeyPair::from_pem(key_pem.expose())?;
        if public_key_of(&certificate).as_deref() != Some(key.public_key_raw()) {
            return Err(AuthorityError::KeyMismatch);
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Authority { cell, certificate, certificate_pem, key_pem, issuer })
    }

    #[must_use]
    pub fn cell(&self) -> &Name {
        &self.cell
    }

    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key as PEM, for this replica's file and for a replica that joins.
    #[must_use]
    pub fn key_pem(&self) -> &Secret {
        &self.key_pem
    }

    #[must_use]
    pub fn fingerprint(&self) -> String {
        tls::fingerprint(&self.certificate)
    }

    /// A certificate for the key of `request`, together with the authority's, as PEM. The caller
    /// has checked the identity and the hosts; nothing else of the request is used. Only a master's
    /// certificate names hosts: other parts are identified by their SPIFFE id.
    ///
    /// # Errors
    /// When a host is not one, or `now` is no date.
    pub fn sign(
        &self,
        request: &SigningRequest,
        part: &Part,
        hosts: &[String],
        now: impl Into<IssueTime>,
        lifetime: Span,
    ) -> Result<String, AuthorityError> {
        let identity = Identity { cell: self.cell.clone(), part: part.clone() };
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(part);
        let hosts = if matches!(part, Part::Master(_)) { hosts } else { &[] };
        params.subject_alt_names = alternative_names(&identity, hosts)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(part, Part::Master(_) | Part::Agent(_)) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.serial_number = Some(serial()?);
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(now.into(), lifetime)?;
        let leaf = params.signed_by(&request.key, &self.issuer)?;
        Ok(format!("{}{}", leaf.pem(), self.certificate_pem))
    }

    /// A certificate for the task of this name (`user/job/index`) and the key of a request,
    /// together with the authority's, as PEM. Tasks dial each other, so it is valid for client and
    /// server authentication.
    ///
    /// # Errors
    /// When the request is not signed by its own key, or `now` is no date.
    pub fn sign_task(
        &self,
        signing_request: &str,
        name: &str,
        now: impl Into<IssueTime>,
        lifetime: Span,
    ) -> Result<String, AuthorityError> {
        let request = CertificateSigningRequestParams::from_pem(signing_request)?;
        let uri = task_uri(&self.cell, name);
        let bad = |_| EnrollError::InvalidHost { host: uri.clone() };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().map_err(bad)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.is_ca = IsCa::ExplicitNoCa;
        params.serial_number = Some(serial()?);
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(now.into(), lifetime)?;
        let leaf = params.signed_by(&request.public_key, &self.issuer)?;
        Ok(format!("{}{}", leaf.pem(), self.certificate_pem))
    }

    /// A key and certificate made here, for this replica and for a scheduler it supervises.
    ///
    /// # Errors
    /// As [`Authority::sign`].
    pub fn issue_credentials(
        &self,
        part: &Part,
        hosts: &[String],
        now: impl Into<IssueTime>,
        lifetime: Span,
    ) -> Result<Credentials, AuthorityError> {
        let identity = Identity { cell: self.cell.clone(), part: part.clone() };
        let fresh = crate::enroll::NewKey::generate(&identity, hosts)?;
        let request = SigningRequest::parse(&fresh.signing_request)?;
        let certificate = self.sign(&request, part, hosts, now, lifetime)?;
        Ok(Credentials { certificate, key: fresh.key })
    }
}

/// A part's certificate with its authority (PEM), and the key to it.
#[derive(Clone)]
pub struct Credentials {
    pub certificate: String,
    pub key: Secret,
}

impl Credentials {
    /// # Errors
    /// When the certificate is not one of a cell's parts.
    pub fn holder(&self) -> Result<CertificateHolder, EnrollError> {
        CertificateHolder::from_pem(&self.certificate)
    }
}

/// A random, positive serial number of 16 bytes.
fn serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| AuthorityError::NoRandomness)?;
    bytes[0] &= 0x7f;
    bytes[0] |= 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// The time of signing: one time, or two where this replica's clock and the log differ. The
/// certificate's validity covers both, so that it is valid whichever is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssueTime {
    /// The time by this replica's clock.
    pub wall: Time,
    earlier: Time,
    later: Time,
}

impl From<Time> for IssueTime {
    fn from(now: Time) -> IssueTime {
        IssueTime { wall: now, earlier: now, later: now }
    }
}

impl IssueTime {
    /// # Errors
    /// The difference of the two clocks, if it is too large to sign anything.
    pub fn from_clocks(wall: Time, log: Time) -> Result<IssueTime, Span> {
        if log == Time::ZERO {
            return Ok(wall.into());
        }
        let (earlier, later) = (wall.min(log), wall.max(log));
        match later.since(earlier) {
            skew if skew > MAX_CLOCK_SKEW => Err(skew),
            _ => Ok(IssueTime { wall, earlier, later }),
        }
    }
}

fn validity(
    issued: IssueTime,
    lifetime: Span,
) -> Result<(OffsetDateTime, OffsetDateTime), AuthorityError> {
    let date = |at: Time| {
        let seconds = i64::try_from(at.0 / 1000).map_err(|_| AuthorityError::Time(at.0))?;
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::Time(at.0))
    };
    let from = Time(issued.earlier.0.saturating_sub(NOT_BEFORE_BACKDATE.0));
    Ok((date(from)?, date(issued.later.plus(lifetime))?))
}

/// The cell's name is the subject of the authority's own certificate.
fn cell_of(certificate: &CertificateDer<'_>) -> Option<Name> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let cell = parsed.subject().iter_organization().next()?.as_str().ok()?;
    Name::new(cell).ok()
}

fn public_key_of(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.public_key().subject_public_key.data.to_vec())
}
