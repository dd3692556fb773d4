//! The credentials of a part that joined with a token: one file with the masters' addresses, the
//! authority, the part's certificate and its key. Certificates are valid for a day, so the part
//! renews its certificate in time, presents the new one from the next handshake on, and saves it in
//! the file: a part that is restarted within a day needs no new token.
//!
//! Masters do not use this: they hold the authority and sign for themselves.

use cellwright_api::client::{ApiClientConfig, Client, ClientError};
use cellwright_api::masters::MastersFile;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::contexts::{Context, ContextError, Contexts};
use cellwright_identity::enroll::{CertificateHolder, EnrollError, JoinAnswer, NewKey, RENEW_PATH};
use cellwright_identity::enroll::{RenewAnswer, RenewRequest};
use cellwright_identity::secret::Secret;
use cellwright_identity::spiffe::Identity;
use cellwright_identity::tls::{self, CertificateResolver, TlsError, Trust};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Interval between renewal attempts after a failure. A third of the certificate's lifetime is left
/// for them.
const RETRY_INTERVAL: Span = Span::seconds(60);

/// Interval of checking the clock, which may be set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(transparent)]
    File(#[from] ContextError),
    #[error(transparent)]
    Certificate(#[from] EnrollError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{path} is there already")]
    Exists { path: PathBuf },
    #[error("{path}: {missing} is missing")]
    Incomplete { path: PathBuf, missing: &'static str },
    #[error(
        "the certificate in {path} has expired by this machine's clock; if that is right, join \
         again with a new token"
    )]
    Expired { path: PathBuf },
}

/// A part's certificate and the file it is saved in.
pub struct PartCredentials {
    path: PathBuf,
    file: Contexts,
    cell: String,
    holder: CertificateHolder,
    resolver: Arc<CertificateResolver>,
    client: Client,
}

impl PartCredentials {
    /// Saves what a join token was exchanged for. A file that exists already is not replaced.
    ///
    /// # Errors
    /// When the file exists or cannot be written, or the certificate is not valid.
    pub fn create(
        path: &Path,
        masters: &[String],
        answer: JoinAnswer,
        key: Secret,
        now: Time,
    ) -> Result<PartCredentials, CredentialsError> {
        if path.exists() {
            return Err(CredentialsError::Exists { path: path.to_owned() });
        }
        let mut file = Contexts::default();
        let context = Context {
            masters: masters.to_vec(),
            authority: Some(answer.authority),
            token: None,
            certificate: Some(answer.certificate),
            key: Some(key),
            libraries: Vec::new(),
        };
        file.put(answer.cell.as_str(), context);
        file.save(path)?;
        PartCredentials::from_contexts(path, file, now)
    }

    /// # Errors
    /// When the file is missing or incomplete, or its certificate has expired.
    pub fn load(path: &Path, now: Time) -> Result<PartCredentials, CredentialsError> {
        PartCredentials::from_contexts(path, Contexts::load(path)?, now)
    }

    fn from_contexts(
        path: &Path,
        file: Contexts,
        now: Time,
    ) -> Result<PartCredentials, CredentialsError> {
        let missing = |missing| CredentialsError::Incomplete { path: path.to_owned(), missing };
        let (cell, context) = file.pick(None)?;
        let authority = context.authority.as_ref().ok_or_else(|| missing("the authority"))?;
        let chain = context.certificate.as_ref().ok_or_else(|| missing("the certificate"))?;
        let key = context.key.as_ref().ok_or_else(|| missing("the key"))?;
        let holder = CertificateHolder::from_pem(chain)?;
        if holder.is_expired(now) {
            return Err(CredentialsError::Expired { path: path.to_owned() });
        }
        let resolver = CertificateResolver::new(chain, key)?;
        let tls = tls::client_config(&Trust::Authority(authority.clone()), Some(resolver.clone()))?;
        let masters_file = Some(MastersFile::new(MastersFile::path_beside(path), authority)?);
        let settings = ApiClientConfig::new(context.masters.clone());
        let client =
            Client::new(ApiClientConfig { tls: Some(Arc::new(tls)), masters_file, ..settings })?;
        let (path, cell) = (path.to_owned(), cell.to_owned());
        Ok(PartCredentials { path, file, cell, holder, resolver, client })
    }

    /// The identity in the certificate.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.holder.identity
    }

    /// A client that authenticates to the masters as this part, always with the newest certificate.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Requests, saves and presents the next certificate. Open connections stay open.
    ///
    /// # Errors
    /// When no master issues one, or it cannot be saved; the old one stays in use.
    pub async fn renew(&mut self) -> Result<(), CredentialsError> {
        let next = NewKey::generate(self.identity(), &[])?;
        let signing_request = next.signing_request;
        let request = RenewRequest { signing_request };
        let answer: RenewAnswer = self.client.call_internal(RENEW_PATH, &request).await?;
        let holder = CertificateHolder::from_pem(&answer.certificate)?;
        self.resolver.replace(&answer.certificate, &next.key)?;
        self.holder = holder;
        if let Some(context) = self.file.contexts.get_mut(&self.cell) {
            context.certificate = Some(answer.certificate);
            context.key = Some(next.key);
        }
        Ok(self.file.save(&self.path)?)
    }

    /// Renews for as long as the part runs. `on_error` is called for every failed attempt.
    pub async fn run_renewal(
        mut self,
        now: impl Fn() -> Time,
        on_error: impl Fn(&CredentialsError),
    ) {
        loop {
            let left = self.holder.renew_at().since(now());
            if left.0 > 0 {
                sleep(Duration::from_millis(left.0).min(CLOCK_CHECK_INTERVAL)).await;
                continue;
            }
            if let Err(error) = self.renew().await {
                on_error(&error);
            }
            // Also after success: to a clock that is far ahead the next renewal is due already.
            sleep(Duration::from_millis(RETRY_INTERVAL.0)).await;
        }
    }
}
