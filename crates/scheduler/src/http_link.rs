//! The link to the master over the network: the three calls as internal calls of the cell's own
//! client, which finds the leader and keeps connections open.
//!
//! The client sends nothing twice: a proposal without an answer is left to the log, and a call for
//! the log or the lease is repeated by the scheduler itself, which knows by then how far its copy
//! is.

use crate::config::InvalidConfig;
use crate::master_link::{LinkError, MasterLink};
use crate::{Scheduler, SchedulerConfig};
use cellwright_api::client::{Client, ClientError};
use cellwright_cell::time::Span;
use cellwright_messages::{LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer};
use std::pin::Pin;
use std::sync::Arc;

#[derive(Clone)]
pub struct HttpLink {
    client: Client,
}

impl HttpLink {
    #[must_use]
    pub fn new(client: Client) -> HttpLink {
        HttpLink { client }
    }
}

impl MasterLink for HttpLink {
    async fn log_after(&self, index: u64, wait: Span) -> Result<LogAnswer, LinkError> {
        self.client.log_after(index, wait).await.map_err(link_error)
    }

    async fn propose(&self, proposal: Proposal) -> Result<ProposalAnswer, LinkError> {
        self.client.propose(&proposal).await.map_err(link_error)
    }

    async fn lease(&self, mut request: LeaseRequest) -> Result<LeaseAnswer, LinkError> {
        request.wall = cellwright_identity::clock::wall();
        self.client.lease(&request).await.map_err(link_error)
    }
}

/// Schedules over the network until dropped. Boxed, so that the scheduler is compiled here and not
/// by the crate that awaits it.
///
/// # Errors
/// An invalid setting.
pub fn schedule(
    client: Client,
    settings: SchedulerConfig,
) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>, InvalidConfig> {
    let scheduler = Scheduler::new(Arc::new(HttpLink::new(client)), settings)?;
    Ok(Box::pin(scheduler.run()))
}

fn link_error(error: ClientError) -> LinkError {
    match error {
        ClientError::Api(error) => LinkError::Rejected(format!("{error}; {}", error.hint)),
        other => LinkError::Unreachable(other.to_string()),
    }
}
