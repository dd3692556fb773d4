//! The agent's identity towards the masters: the file that `cell agent join` wrote, and its
//! renewal. A certificate lives a day; at two thirds of its lifetime the agent requests the next
//! one with the current one, stores it, and presents it from the next handshake on. Connections and
//! tasks are not affected.

use crate::listen::Access;
use crate::membership::MembershipCache;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::{ApiClientConfig, Client, ClientError};
use cellwright_api::masters::MastersFile;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::clock::wall;
use cellwright_identity::contexts::{Context, ContextError, Contexts};
use cellwright_identity::enroll::{
    CertificateHolder, EnrollError, NewKey, RENEW_PATH, RenewAnswer, RenewRequest,
};
use cellwright_identity::tls::{self, CertificateResolver, TlsError, Trust};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Interval between two tries, whether the last one succeeded or not.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// How often a day's certificate is checked: the timer stands still while the machine sleeps, the
/// certificate does not, and a clock may be set.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Why there is no identity, or no next certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{0}")]
    File(#[from] ContextError),
    #[error("{0} holds no certificate, key and authority")]
    Incomplete(String),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Enroll(#[from] EnrollError),
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("this machine is called {machine}, its certificate is for {certificate}")]
    OtherName { machine: Name, certificate: Name },
}

pub struct Identity {
    path: PathBuf,
    cell: String,
    context: Context,
    holder: CertificateHolder,
    certificate_resolver: Arc<CertificateResolver>,
}

impl Identity {
    /// # Errors
    /// When the file cannot be read or its content does not belong together.
    pub fn load(path: &Path) -> Result<Identity, IdentityError> {
        let file = Contexts::load(path)?;
        let (cell, context) = file.pick(None)?;
        let incomplete = || IdentityError::Incomplete(path.display().to_string());
        let certificate = context.certificate.as_ref().ok_or_else(incomplete)?;
        let key = context.key.as_ref().ok_or_else(incomplete)?;
        Ok(Identity {
            path: path.to_owned(),
            cell: cell.to_owned(),
            context: context.clone(),
            holder: holder(certificate)?,
            certificate_resolver: CertificateResolver::new(certificate, key)?,
        })
    }

    /// # Errors
    /// When the certificate is another machine's.
    pub fn check_name(&self, machine: &Name) -> Result<(), IdentityError> {
        let certificate = self.holder.identity.part.name().clone();
        if certificate == *machine {
            Ok(())
        } else {
            Err(IdentityError::OtherName { machine: machine.clone(), certificate })
        }
    }

    /// A client that presents the current certificate. It keeps the list of the cell's masters
    /// beside the certificate and not in `data_dir`: a machine that lost its data still has to find
    /// masters that were added after it joined.
    ///
    /// # Errors
    /// When the authority's certificate is invalid, or no master is named.
    pub fn client(&self) -> Result<Client, IdentityError> {
        let authority = self.context.authority.clone();
        let incomplete = || IdentityError::Incomplete(self.path.display().to_string());
        let authority = authority.ok_or_else(incomplete)?;
        let masters_file =
            Some(MastersFile::new(MastersFile::path_beside(&self.path), &authority)?);
        let tls = tls::client_config(
            &Trust::Authority(authority),
            Some(self.certificate_resolver.clone()),
        )?;
        let settings = ApiClientConfig::new(self.context.masters.clone());
        Ok(Client::new(ApiClientConfig { tls: Some(Arc::new(tls)), masters_file, ..settings })?)
    }

    /// Who may dial this machine, and the certificate it presents. `client` asks masters whether
    /// callers are still members.
    ///
    /// # Errors
    /// When the authority's certificate is invalid.
    pub fn access(&self, client: &Client) -> Result<Access, IdentityError> {
        let incomplete = || IdentityError::Incomplete(self.path.display().to_string());
        let authority = self.context.authority.as_ref().ok_or_else(incomplete)?;
        let config = tls::server_config_for_parts(authority, self.certificate_resolver.clone())?;
        let cell = self.holder.identity.cell.clone();
        let (authority, certificate_resolver) =
            (authority.clone(), self.certificate_resolver.clone());
        let dialler = AgentDialler::with_certificate(cell.clone(), authority, certificate_resolver);
        let own = self.holder.identity.part.name().clone();
        let membership = Arc::new(MembershipCache::new(client.clone(), own));
        Ok(Access::Parts { cell, config: Arc::new(config), dialler, membership })
    }

    /// Requests the next certificate, stores and presents it.
    ///
    /// # Errors
    /// When no master issues one, or it cannot be written; the old one stays in use.
    pub async fn renew(&mut self, client: &Client) -> Result<(), IdentityError> {
        let NewKey { key, signing_request } = NewKey::generate(&self.holder.identity, &[])?;
        let request = RenewRequest { signing_request };
        let answer: RenewAnswer = client.call_internal(RENEW_PATH, &request).await?;
        let holder = holder(&answer.certificate)?;
        let mut next = self.context.clone();
        next.certificate = Some(answer.certificate.clone());
        next.key = Some(key.clone());
        let mut file = Contexts::default();
        file.put(&self.cell, next.clone());
        file.save(&self.path)?;
        self.certificate_resolver.replace(&answer.certificate, &key)?;
        (self.context, self.holder) = (next, holder);
        Ok(())
    }

    /// Renews for as long as the agent runs.
    pub async fn keep_fresh(mut self, client: Client) {
        loop {
            let left = time_until_renewal(&self.holder, wall());
            if left.0 > 0 {
                sleep(Duration::from_millis(left.0).min(CHECK_INTERVAL)).await;
                continue;
            }
            match self.renew(&client).await {
                Ok(()) => tracing::info!("the certificate was renewed"),
                Err(error) => tracing::error!(%error, "the certificate was not renewed"),
            }
            // Also after a success: for a clock that is far ahead the next is due already.
            sleep(RETRY_INTERVAL).await;
        }
    }
}

fn holder(certificate: &str) -> Result<CertificateHolder, IdentityError> {
    let chain = tls::certificates("certificate", certificate)?;
    let first = chain.first().ok_or_else(|| IdentityError::Incomplete("the chain".into()))?;
    Ok(CertificateHolder::from_certificate(first)?)
}

fn time_until_renewal(holder: &CertificateHolder, now: Time) -> Span {
    holder.renew_at().since(now)
}
