//! What a scheduler needs of the master: three questions. A trait, so that the simulator and tests
//! can answer them; over the wire they are three internal calls.

use cellwright_api::internal::{LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer};
use cellwright_cell::time::Span;
use std::future::Future;

/// Why a question was not answered. The scheduler treats all alike: it waits and asks again.
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
    /// What came after `index`, oldest first and without holes; hangs up to `wait` when there is
    /// nothing. Where the log does not reach back so far, the answer is a snapshot.
    fn log_after(
        &self,
        index: u64,
        wait: Span,
    ) -> impl Future<Output = Result<LogAnswer, LinkError>> + Send;

    /// Answers when the proposal is durable and applied. An error says nothing about whether it
    /// was: the log will.
    fn propose(
        &self,
        proposal: Proposal,
    ) -> impl Future<Output = Result<ProposalAnswer, LinkError>> + Send;

    fn lease(
        &self,
        request: LeaseRequest,
    ) -> impl Future<Output = Result<LeaseAnswer, LinkError>> + Send;
}
