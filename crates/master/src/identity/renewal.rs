//! This replica's own certificate: made at every start, and again at two thirds of its life.
//!
//! A replica holds the authority, so it signs for itself and never depends on another to be let in.
//! Making it anew at every start also takes up a changed address in the configuration.

use super::authority::Authority;
use super::files::{FilesError, IdentityFiles};
use crate::clock::Clock;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::enroll::CERTIFICATE_LIFE;
use cellwright_api::spiffe::Part;
use cellwright_api::tls::{self, Shown, TlsError, Trust};
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Between two tries, when making or saving the certificate fails.
const RETRY: Span = Span::seconds(60);

/// What this replica shows to others, and how it knows them.
pub struct Own {
    authority: Arc<Authority>,
    files: IdentityFiles,
    part: Part,
    hosts: Vec<String>,
    shown: Arc<Shown>,
    renew_at: Time,
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
        let renew_at = papers.holder().map_err(super::authority::AuthorityError::from)?.renew_at();
        Ok(Own { authority: Arc::new(authority), files, part, hosts, shown, renew_at })
    }

    #[must_use]
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// For the listener.
    ///
    /// # Errors
    /// When the authority's certificate is of no use.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        tls::server(self.authority.certificate_pem(), self.shown.clone())
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
        self.renew_at
    }

    /// Makes, saves and shows the next certificate. Connections that are open stay so.
    ///
    /// # Errors
    /// When it cannot be made or saved; the old one is shown on.
    pub fn renew(&mut self, now: Time) -> Result<(), FilesError> {
        let papers = self.authority.equip(&self.part, &self.hosts, now, CERTIFICATE_LIFE)?;
        self.files.save_papers(&papers)?;
        self.shown.exchange(&papers.certificate, &papers.key).map_err(as_authority)?;
        let holder = papers.holder().map_err(super::authority::AuthorityError::from)?;
        self.renew_at = holder.renew_at();
        Ok(())
    }

    /// Renews for as long as the replica runs.
    pub async fn keep_fresh(mut self, clock: Arc<dyn Clock>) {
        loop {
            let wait = self.renew_at.since(clock.wall());
            tokio::time::sleep(Duration::from_millis(wait.0)).await;
            if let Err(error) = self.renew(clock.wall()) {
                tracing::error!(%error, "this replica's certificate was not renewed");
                tokio::time::sleep(Duration::from_millis(RETRY.0)).await;
            }
        }
    }
}

fn as_authority(error: TlsError) -> FilesError {
    FilesError::Authority(error.into())
}
