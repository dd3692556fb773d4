//! This replica's own certificate: issued at every start, renewed at two thirds of its lifetime,
//! and also when the clock says that it was issued in the future or when wall clock and log time
//! have diverged.
//!
//! A replica holds the authority, so it signs for itself and never depends on another to be
//! admitted. Issuing it anew at every start also picks up a changed address in the configuration.
//! The clock is polled, instead of sleeping until renewal: a replica that started while its clock
//! was ahead is rejected everywhere until it has signed again by a correct clock.

use cellwright_api::client::agent::AgentDialler;
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::authority::{Authority, IssueTime};
use cellwright_identity::enroll::{CERTIFICATE_LIFETIME, CertificateHolder};
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, CertificateResolver, OutOfDateHook, TlsError, Trust};
use cellwright_master::clock::Clock;
use cellwright_master::replicated_state::ReplicatedState;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Interval of checking the clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Shortest interval between two renewals.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);
/// Interval between attempts, when issuing or saving the certificate fails.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The certificate that this replica presents, and the authority by which it verifies others.
pub struct ReplicaCredentials {
    authority: Arc<Authority>,
    files: IdentityFiles,
    part: Part,
    hosts: Vec<String>,
    resolver: Arc<CertificateResolver>,
    holder: CertificateHolder,
}

impl ReplicaCredentials {
    /// # Errors
    /// When the authority cannot be read, or the certificate cannot be issued or saved.
    pub fn load(
        files: IdentityFiles,
        name: &Name,
        hosts: Vec<String>,
        now: Time,
    ) -> Result<ReplicaCredentials, FilesError> {
        let authority = files.load_authority()?;
        let part = Part::Master(name.clone());
        let credentials = authority.issue_credentials(&part, &hosts, now, CERTIFICATE_LIFETIME)?;
        files.save_credentials(&credentials)?;
        let resolver = CertificateResolver::new(&credentials.certificate, &credentials.key)
            .map_err(as_authority)?;
        let holder =
            credentials.holder().map_err(cellwright_identity::authority::AuthorityError::from)?;
        Ok(ReplicaCredentials {
            authority: Arc::new(authority),
            files,
            part,
            hosts,
            resolver,
            holder,
        })
    }

    #[must_use]
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// TLS configuration of the listener.
    ///
    /// # Errors
    /// When the authority's certificate is not valid.
    pub fn server_config(&self, out_of_date: OutOfDateHook) -> Result<ServerConfig, TlsError> {
        tls::server_config(self.authority.certificate_pem(), self.resolver.clone(), out_of_date)
    }

    /// TLS configuration for calls to other replicas.
    ///
    /// # Errors
    /// When the authority's certificate is not valid.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let trust = Trust::Authority(self.authority.certificate_pem().to_owned());
        tls::client_config(&trust, Some(self.resolver.clone()))
    }

    /// The dialler for calls to agents.
    #[must_use]
    pub fn agent_dialler(&self) -> AgentDialler {
        let (cell, authority) = (self.authority.cell(), self.authority.certificate_pem());
        AgentDialler::with_certificate(cell.clone(), authority.to_owned(), self.resolver.clone())
    }

    #[must_use]
    pub fn renew_at(&self) -> Time {
        self.holder.renew_at()
    }

    /// Issues, saves and presents the next certificate. Open connections stay open.
    ///
    /// # Errors
    /// When it cannot be issued or saved; the old one stays in use.
    pub fn renew(&mut self, now: impl Into<IssueTime>) -> Result<(), FilesError> {
        let credentials =
            self.authority.issue_credentials(&self.part, &self.hosts, now, CERTIFICATE_LIFETIME)?;
        self.files.save_credentials(&credentials)?;
        self.resolver.replace(&credentials.certificate, &credentials.key).map_err(as_authority)?;
        self.holder =
            credentials.holder().map_err(cellwright_identity::authority::AuthorityError::from)?;
        Ok(())
    }

    /// Renews for as long as the replica runs.
    pub async fn run_renewal(mut self, clock: Arc<dyn Clock>, replicated: Arc<ReplicatedState>) {
        loop {
            tokio::time::sleep(CLOCK_CHECK_INTERVAL).await;
            let (wall, log) = (clock.wall_time(), replicated.log_time());
            if !self.is_renewal_due(wall, log) {
                continue;
            }
            // Where the two are days apart the wall clock alone counts: others check by it.
            let now = IssueTime::from_clocks(wall, log).unwrap_or_else(|_| wall.into());
            match self.renew(now) {
                // The next may be due at once while wall clock and log time are far apart.
                Ok(()) => {
                    tracing::info!("this replica's certificate was renewed");
                    tokio::time::sleep(RENEWAL_PAUSE).await;
                }
                Err(error) => {
                    tracing::error!(%error, "this replica's certificate was not renewed");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Whether renewal is due: by the wall clock, or because log time, which others follow, says
    /// that this certificate is not valid yet.
    #[must_use]
    pub fn is_renewal_due(&self, wall: Time, log: Time) -> bool {
        let early = log != Time::ZERO && log < self.holder.from;
        self.holder.is_renewal_due(wall) || (early && IssueTime::from_clocks(wall, log).is_ok())
    }
}

fn as_authority(error: TlsError) -> FilesError {
    FilesError::Authority(error.into())
}
