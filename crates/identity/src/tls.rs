//! TLS between the parts of the cell: TLS 1.3 only, one certificate authority per cell,
//! certificates on both sides.
//!
//! A client recognises a cell by the certificate of its authority, and at first contact, when it
//! holds nothing but a join token, by that certificate's fingerprint. A server requests a client
//! certificate and also accepts clients without one: people come with tokens. A certificate that is
//! presented must be valid.
//!
//! Agents are servers too, for masters and for each other. Their certificates name no host, so none
//! of them can impersonate a master; a client that dials an agent requires the identity in its
//! certificate ([`client_config_for_part`]), and an agent accepts no connection without a
//! certificate ([`server_config_for_parts`]).
//!
//! The cryptography provider is passed explicitly everywhere, so that no library can choose another
//! by installing a process-wide default first. Sessions are not resumed: a full handshake checks
//! that the certificate is still valid. Clocks differ: a certificate that is not valid yet, or no
//! longer, by less than [`CLOCK_SKEW_TOLERANCE`] is accepted.

use crate::clock::TlsTime;
use crate::enroll::{CLOCK_SKEW_TOLERANCE, CertificateHolder, expiry_tolerance};
use crate::secret::{Secret, hex, sha256};
use crate::spiffe::Identity;
use cellwright_cell::time::Time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ResolvesClientCert, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Why a TLS configuration cannot be made from these certificates and keys.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what}: not PEM text of the right kind: {why}")]
    Pem { what: &'static str, why: String },
    #[error("{what}: no certificate in it")]
    Empty { what: &'static str },
    #[error(transparent)]
    Tls(#[from] Error),
    #[error("the authority's certificate cannot verify anyone: {0}")]
    Verifier(String),
}

/// The one cryptography provider of this product.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// All certificates in a PEM text.
///
/// # Errors
/// When a block does not parse or there is none; `what` names the text.
pub fn certificates(
    what: &'static str,
    pem: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|why| TlsError::Pem { what, why: why.to_string() })?;
    if all.is_empty() { Err(TlsError::Empty { what }) } else { Ok(all) }
}

/// The fingerprint that identifies a cell: SHA-256 of its authority's certificate, in hexadecimal
/// digits.
#[must_use]
pub fn fingerprint(authority: &CertificateDer<'_>) -> String {
    hex(&sha256(authority))
}

/// How a client knows that it reached the right cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The authority's certificate, as PEM text.
    Authority(String),
    /// Only its fingerprint: the first contact of a part that joins.
    Fingerprint(String),
}

/// The certificate that a part presents at present. It can be replaced while connections stay open,
/// so renewal restarts nothing.
pub struct CertificateResolver(RwLock<Arc<CertifiedKey>>);

impl CertificateResolver {
    /// # Errors
    /// When the texts do not parse or the key does not belong to the certificate.
    pub fn new(chain_pem: &str, key_pem: &Secret) -> Result<Arc<CertificateResolver>, TlsError> {
        Ok(Arc::new(CertificateResolver(RwLock::new(certified_key(chain_pem, key_pem)?))))
    }

    /// Presents another certificate from the next handshake on.
    ///
    /// # Errors
    /// As [`CertificateResolver::new`]; the old one stays in use then.
    pub fn replace(&self, chain_pem: &str, key_pem: &Secret) -> Result<(), TlsError> {
        let fresh = certified_key(chain_pem, key_pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    fn current(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn certified_key(chain_pem: &str, key_pem: &Secret) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates("certificate", chain_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes())
        .map_err(|why| TlsError::Pem { what: "private key", why: why.to_string() })?;
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}

/// rustls requires `Debug` of resolvers; this one prints only its name.
impl std::fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for CertificateResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The client's TLS configuration. The caller sets the application protocols (ALPN).
///
/// # Errors
/// When the trusted certificate does not parse.
pub fn client_config(
    trust: &Trust,
    resolver: Option<Arc<CertificateResolver>>,
) -> Result<ClientConfig, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Authority(pem) => server_verifier(&certificates("authority", pem)?)?,
        Trust::Fingerprint(pin) => Arc::new(PinnedAuthority {
            fingerprint: pin.clone(),
            algorithms: provider().signature_verification_algorithms,
        }),
    };
    build_client_config(verifier, resolver)
}

/// The TLS configuration of a client that dials a part known by its identity, not by a host name.
///
/// # Errors
/// When the authority's certificate does not parse.
pub fn client_config_for_part(
    authority_pem: &str,
    part: Identity,
    resolver: Arc<CertificateResolver>,
) -> Result<ClientConfig, TlsError> {
    let roots = root_store(&certificates("authority", authority_pem)?)?;
    let algorithms = provider().signature_verification_algorithms;
    let mut config =
        build_client_config(Arc::new(PartVerifier { roots, part, algorithms }), Some(resolver))?;
    // There is no host name to send.
    config.enable_sni = false;
    Ok(config)
}

fn build_client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    resolver: Option<Arc<CertificateResolver>>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(TlsTime))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match resolver {
        Some(resolver) => builder.with_client_cert_resolver(resolver),
        None => builder.with_no_client_auth(),
    };
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Called for parts of the cell that are rejected only because of the dates of their certificates.
/// The handshake ends before they have proved that the key is theirs, so this is for people to read
/// and decides nothing.
#[derive(Clone, Default)]
pub struct OutOfDateHook(Option<Arc<HolderCallback>>);

type HolderCallback = dyn Fn(&CertificateHolder) + Send + Sync;

impl OutOfDateHook {
    pub fn new(callback: impl Fn(&CertificateHolder) + Send + Sync + 'static) -> OutOfDateHook {
        OutOfDateHook(Some(Arc::new(callback)))
    }
}

impl std::fmt::Debug for OutOfDateHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutOfDate")
    }
}

/// The server's TLS configuration: a client certificate is optional, and verified when given.
///
/// # Errors
/// When the authority's certificate does not parse.
pub fn server_config(
    authority_pem: &str,
    resolver: Arc<CertificateResolver>,
    out_of_date: OutOfDateHook,
) -> Result<ServerConfig, TlsError> {
    let roots = root_store(&certificates("authority", authority_pem)?)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|why| TlsError::Verifier(why.to_string()))?;
    build_server_config(ClockSkewTolerant { verifier, out_of_date }, resolver, &["h2", "http/1.1"])
}

/// The TLS configuration of a server for other parts of the cell only: without a valid client
/// certificate there is no connection.
///
/// # Errors
/// When the authority's certificate does not parse.
pub fn server_config_for_parts(
    authority_pem: &str,
    resolver: Arc<CertificateResolver>,
) -> Result<ServerConfig, TlsError> {
    let roots = root_store(&certificates("authority", authority_pem)?)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|why| TlsError::Verifier(why.to_string()))?;
    let out_of_date = OutOfDateHook::default();
    build_server_config(ClockSkewTolerant { verifier, out_of_date }, resolver, &["http/1.1"])
}

fn build_server_config(
    verifier: ClockSkewTolerant<dyn ClientCertVerifier>,
    resolver: Arc<CertificateResolver>,
    protocols: &[&str],
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(TlsTime))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(resolver);
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn root_store(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone())?;
    }
    Ok(roots)
}

fn server_verifier(
    authority: &[CertificateDer<'static>],
) -> Result<Arc<ClockSkewTolerant<WebPkiServerVerifier>>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(root_store(authority)?), provider())
        .build()
        .map(|verifier| {
            Arc::new(ClockSkewTolerant { verifier, out_of_date: OutOfDateHook::default() })
        })
        .map_err(|why| TlsError::Verifier(why.to_string()))
}

/// The time at which a certificate is verified: now, or the nearest time at which it is valid if
/// that is within [`CLOCK_SKEW_TOLERANCE`], and after its end within its [`expiry_tolerance`].
fn verification_time(certificate: &CertificateDer<'_>, now: UnixTime) -> UnixTime {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return now };
    let seconds = |at: i64| u64::try_from(at).unwrap_or(0);
    let from = seconds(parsed.validity().not_before.timestamp());
    let until = seconds(parsed.validity().not_after.timestamp());
    if from > until {
        return now;
    }
    let nearest = now.as_secs().clamp(from, until);
    let time = |seconds: u64| Time(seconds.saturating_mul(1000));
    let tolerated = if now.as_secs() > until {
        expiry_tolerance(time(from), time(until))
    } else {
        CLOCK_SKEW_TOLERANCE
    };
    if nearest.abs_diff(now.as_secs()) <= tolerated.0 / 1000 {
        UnixTime::since_unix_epoch(Duration::from_secs(nearest))
    } else {
        now
    }
}

/// Verifies as the wrapped verifier does, at the [`verification_time`] of the certificate.
#[derive(Debug)]
struct ClockSkewTolerant<V: ?Sized> {
    verifier: Arc<V>,
    out_of_date: OutOfDateHook,
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for ClockSkewTolerant<V> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let now = verification_time(end_entity, now);
        self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for ClockSkewTolerant<V> {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verify = |at| self.verifier.verify_client_cert(end_entity, intermediates, at);
        let found = verify(verification_time(end_entity, now));
        if found.is_err()
            && let Some(callback) = &self.out_of_date.0
            && let Ok(holder) = CertificateHolder::from_certificate(end_entity)
            && verify(UnixTime::since_unix_epoch(Duration::from_millis(holder.until.0))).is_ok()
        {
            callback(&holder);
        }
        found
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Trusts the authority whose fingerprint is known, once the server has presented its certificate.
/// From there on everything is checked as usual, validity and host name included.
#[derive(Debug)]
struct PinnedAuthority {
    fingerprint: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|presented| fingerprint(presented) == self.fingerprint)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        server_verifier(&[authority.clone().into_owned()])
            .map_err(|why| Error::General(why.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Trusts one part of the cell: a server certificate of the authority that names exactly this part.
#[derive(Debug)]
struct PartVerifier {
    roots: RootCertStore,
    part: Identity,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PartVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            verification_time(end_entity, now),
            algorithms,
        )?;
        match CertificateHolder::from_certificate(end_entity) {
            Ok(holder) if holder.identity == self.part => Ok(ServerCertVerified::assertion()),
            _ => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
