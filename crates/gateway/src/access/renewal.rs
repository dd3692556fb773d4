//! This replica's own certificate: made at every start, again at two thirds of its life, and when
//! the clock says that it was made in the future or when clock and log have come apart.
//!
//! A replica holds the authority, so it signs for itself and never depends on another to be let in.
//! Making it anew at every start also takes up a changed address in the configuration. The clock is
//! looked at all the time and not slept towards: a replica that started while its clock was ahead
//! is let in by nobody until it has signed again by one that is right.

use cellwright_api::client::agent::AgentDialler;
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::authority::{Authority, Issued};
use cellwright_identity::enroll::{CERTIFICATE_LIFE, Holder};
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, OutOfDate, Shown, TlsError, Trust};
use cellwright_master::clock::Clock;
use cellwright_master::replicated::Replicated;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_secs(2);
/// Between two that were made.
const SETTLE: Duration = Duration::from_secs(10);
/// Between two tries, when making or saving the certificate fails.
const RETRY: Duration = Duration::from_secs(60);

/// What this replica shows to others, and how it knows them.
pub struct Own {
    authority: Arc<Authority>,
    files: IdentityFiles,
    part: Part,
    hosts: Vec<String>,
    shown: Arc<Shown>,
    holder: Holder,
}

impl Own {
    /// # Errors
    /// When the authority cannot be read, or the certificate not made or saved.
    pub fn start(
        files: IdentityFiles,
        name: &Name,
        hosts: Vec<String>,
        now: Time,
    ) -> Result<Own, FilesError> {
        let authority = files.authority()?;
        let part = Part::Master(name.clone());
        let papers = authority.equip(&part, &hosts, now, CERTIFICATE_LIFE)?;
        files.save_papers(&papers)?;
        let shown = Shown::new(&papers.certificate, &papers.key).map_err(as_authority)?;
        let holder =
            papers.holder().map_err(cellwright_identity::authority::AuthorityError::from)?;
        Ok(Own { authority: Arc::new(authority), files, part, hosts, shown, holder })
    }

    #[must_use]
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// For the listener.
    ///
    /// # Errors
    /// When the authority's certificate is of no use.
    pub fn server(&self, out_of_date: OutOfDate) -> Result<ServerConfig, TlsError> {
        tls::server(self.authority.certificate_pem(), self.shown.clone(), out_of_date)
    }

    /// For calls to other replicas.
    ///
    /// # Errors
    /// When the authority's certificate is of no use.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        let trust = Trust::Authority(self.authority.certificate_pem().to_owned());
        tls::client(&trust, Some(self.shown.clone()))
    }

    /// For calls to agents.
    #[must_use]
    pub fn agents(&self) -> AgentDialler {
        let (cell, authority) = (self.authority.cell(), self.authority.certificate_pem());
        AgentDialler::identified(cell.clone(), authority.to_owned(), self.shown.clone())
    }

    #[must_use]
    pub fn renew_at(&self) -> Time {
        self.holder.renew_at()
    }

    /// Makes, saves and shows the next certificate. Connections that are open stay so.
    ///
    /// # Errors
    /// When it cannot be made or saved; the old one is shown on.
    pub fn renew(&mut self, now: impl Into<Issued>) -> Result<(), FilesError> {
        let papers = self.authority.equip(&self.part, &self.hosts, now, CERTIFICATE_LIFE)?;
        self.files.save_papers(&papers)?;
        self.shown.exchange(&papers.certificate, &papers.key).map_err(as_authority)?;
        self.holder =
            papers.holder().map_err(cellwright_identity::authority::AuthorityError::from)?;
        Ok(())
    }

    /// Renews for as long as the replica runs.
    pub async fn keep_fresh(mut self, clock: Arc<dyn Clock>, replicated: Arc<Replicated>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let (wall, log) = (clock.wall(), replicated.log_time());
            if !self.is_stale(wall, log) {
                continue;
            }
            // Where the two are days apart the clock alone counts: it is what others go by.
            let now = Issued::by_both(wall, log).unwrap_or_else(|_| wall.into());
            match self.renew(now) {
                // The next may be due at once while clock and log are far apart.
                Ok(()) => {
                    tracing::info!("this replica's certificate was renewed");
                    tokio::time::sleep(SETTLE).await;
                }
                Err(error) => {
                    tracing::error!(%error, "this replica's certificate was not renewed");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Whether a new certificate is due: by the clock, or because the log's time, which others go
    /// by, says that this one is not valid yet.
    #[must_use]
    pub fn is_stale(&self, wall: Time, log: Time) -> bool {
        let early = log != Time::ZERO && log < self.holder.from;
        self.holder.is_stale(wall) || (early && Issued::by_both(wall, log).is_ok())
    }
}

fn as_authority(error: TlsError) -> FilesError {
    FilesError::Authority(error.into())
}
