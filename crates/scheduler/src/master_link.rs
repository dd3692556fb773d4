//! The scheduler's interface to the master: three calls. A trait, so that the simulator and tests
//! can answer them; over the wire they are three internal calls.

use cellwright_cell::time::Span;
use cellwright_messages::{LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer};
use std::future::Future;

/// Why a call was not answered. The scheduler treats all alike: it backs off and calls again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("the master cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer within {} ms", .0.0)]
    NoAnswer(Span),
    #[error("the master refused: {0}")]
    Rejected(String),
}

pub trait MasterLink: Send + Sync + 'static {
    /// The log after `index`, oldest first and without gaps; the call hangs for up to `wait` when
    /// there are no new records. Where the log does not reach back so far, the answer is a
    /// snapshot.
    fn log_after(
        &self,
        index: u64,
        wait: Span,
    ) -> impl Future<Output = Result<LogAnswer, LinkError>> + Send;

    /// Returns when the proposal is durable and applied. An error does not mean that it was not
    /// applied: the log will show.
    fn propose(
        &self,
        proposal: Proposal,
    ) -> impl Future<Output = Result<ProposalAnswer, LinkError>> + Send;

    fn lease(
        &self,
        request: LeaseRequest,
    ) -> impl Future<Output = Result<LeaseAnswer, LinkError>> + Send;
}
