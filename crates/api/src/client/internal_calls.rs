//! Calls between parts of the cell, by name. Paths and the one message that has no other home are
//! here, so that both ends take them from one place.

use super::{Client, ClientError};
use crate::internal::{
    AgentOrders, AgentReport, LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer,
};
use cellwright_cell::credential::PartKind;
use cellwright_cell::id::TaskId;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::time::Span;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An agent's full state against its orders.
pub const POLL_PATH: &str = "/internal/poll";
/// What came after a log index.
pub const LOG_PATH: &str = "/internal/log";
/// Commands of a scheduler.
pub const PROPOSE_PATH: &str = "/internal/propose";
/// A scheduler's lease.
pub const LEASE_PATH: &str = "/internal/lease";

/// A range of a package, `/internal/packages/<digest>?from=N&length=N`, at masters and at agents.
pub const PACKAGE_PATH: &str = "/internal/packages";

/// What packages an agent has and who gave them; asked by masters.
pub const MACHINE_PACKAGES_PATH: &str = "/internal/holdings";

/// Machines that have a package, or will have it soon.
pub const HOLDERS_PATH: &str = "/internal/holders";
/// Where an agent asks whether a part that has dialled it is still one.
pub const MEMBERSHIP_CHECK_PATH: &str = "/internal/standing";

/// Content a replica has, `/internal/blobs/<digest>`.
pub const BLOB_PATH: &str = "/internal/blobs";

/// Asks for the log after an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    pub after: u64,
    /// How long the answer may hang when there is nothing yet.
    pub wait: Span,
}

/// An agent asks who else has a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersRequest {
    /// The machine that asks.
    pub machine: Name,
    pub digest: Token,
    /// The task it is for: others of its job fetch it too.
    pub task: Option<TaskId>,
}

/// A machine, and where its agent says it is dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageHolder {
    pub machine: Name,
    pub address: String,
}

/// An agent asks whether somebody who has dialled it is still a part of the cell: a certificate is
/// good for the rest of its day, whatever became of its holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MembershipCheckRequest {
    /// Who asks.
    pub machine: Name,
    pub part: PartKind,
    pub name: Name,
}

/// What a hanging call may take beyond the time it was asked to hang.
const HANG_GRACE: Duration = Duration::from_secs(5);

/// What a scheduler waits for an answer that costs a living master next to nothing. Beyond it the
/// master hangs, and the scheduler must not hang with it: there may be another leader by now.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// All of these fail with what the other side refused, when no master answers, or when the outcome
/// is unknown.
#[allow(clippy::missing_errors_doc)]
impl Client {
    /// One poll, at a replica of the agent's own choosing.
    pub async fn poll(
        &self,
        address: &str,
        report: &AgentReport,
        hang: Span,
    ) -> Result<AgentOrders, ClientError> {
        let limit = Duration::from_millis(hang.0) + HANG_GRACE;
        self.call_internal_at(address, POLL_PATH, report, limit).await
    }

    pub async fn log_after(&self, after: u64, wait: Span) -> Result<LogAnswer, ClientError> {
        let limit = Duration::from_millis(wait.0) + RESPONSE_TIMEOUT;
        self.call_internal_within(LOG_PATH, &LogRequest { after, wait }, limit).await
    }

    /// Some machines that have a package, or fetch it too.
    pub async fn holders(
        &self,
        request: &HoldersRequest,
    ) -> Result<Vec<PackageHolder>, ClientError> {
        self.call_internal_within(HOLDERS_PATH, request, RESPONSE_TIMEOUT).await
    }

    /// Whether a part may be listened to.
    pub async fn is_member(&self, request: &MembershipCheckRequest) -> Result<bool, ClientError> {
        self.call_internal_within(MEMBERSHIP_CHECK_PATH, request, RESPONSE_TIMEOUT).await
    }

    pub async fn propose(&self, proposal: &Proposal) -> Result<ProposalAnswer, ClientError> {
        self.call_internal(PROPOSE_PATH, proposal).await
    }

    pub async fn lease(&self, request: &LeaseRequest) -> Result<LeaseAnswer, ClientError> {
        self.call_internal_within(LEASE_PATH, request, RESPONSE_TIMEOUT).await
    }
}
