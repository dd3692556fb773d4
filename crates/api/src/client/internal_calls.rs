//! Calls between parts of the cell, one method each. Their paths are here, so that both ends share
//! them.

use super::{Client, ClientError};
use cellwright_cell::time::Span;
use cellwright_messages::{
    AgentOrders, AgentReport, HoldersRequest, LeaseAnswer, LeaseRequest, LogAnswer, LogRequest,
    MembershipCheckRequest, PackageHolder, Proposal, ProposalAnswer,
};
use std::time::Duration;

/// Where an agent sends its full state and gets its orders.
pub const POLL_PATH: &str = "/internal/poll";
/// The log records after an index.
pub const LOG_PATH: &str = "/internal/log";
/// Commands of a scheduler.
pub const PROPOSE_PATH: &str = "/internal/propose";
/// A scheduler's lease.
pub const LEASE_PATH: &str = "/internal/lease";

/// A range of a package, `/internal/packages/<digest>?from=N&length=N`, on masters and on agents.
pub const PACKAGE_PATH: &str = "/internal/packages";

/// Which packages an agent has and where it got them; called by masters.
pub const MACHINE_PACKAGES_PATH: &str = "/internal/holdings";

/// Machines that have a package, or will have it soon.
pub const HOLDERS_PATH: &str = "/internal/holders";
/// Where an agent checks whether a part that has dialled it is still a member of the cell.
pub const MEMBERSHIP_CHECK_PATH: &str = "/internal/membership";

/// Content that a replica has, `/internal/blobs/<digest>`.
pub const BLOB_PATH: &str = "/internal/blobs";

/// Extra time for a hanging call beyond the time it was requested to hang.
const HANG_GRACE: Duration = Duration::from_secs(5);

/// Timeout of a scheduler's call that costs a working master next to nothing. Beyond it the master
/// hangs, and the scheduler must not hang with it: there may be another leader by now.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// All of these fail with the other side's error, when no master answers, or when the outcome is
/// unknown.
#[allow(clippy::missing_errors_doc)]
impl Client {
    /// One poll, at a replica that the agent chooses.
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

    /// Some machines that have a package, or are fetching it too.
    pub async fn holders(
        &self,
        request: &HoldersRequest,
    ) -> Result<Vec<PackageHolder>, ClientError> {
        self.call_internal_within(HOLDERS_PATH, request, RESPONSE_TIMEOUT).await
    }

    /// Whether a part is still a member of the cell.
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
