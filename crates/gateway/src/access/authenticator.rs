//! Authenticates callers against the state of a running master: who a caller is, by this replica's
//! copy of the state, and an audit line for every rejected request, or a count for many.
//!
//! The state may lag behind on a follower: a token revoked a moment ago may be accepted there.
//! Everything that changes the cell is authorised again by the leader. But no caller is rejected
//! for what a replica does not know before the replica has caught up with all that was acknowledged
//! when the request came, as its leader confirms. A replica that joins, was removed or is cut off
//! cannot catch up: it answers that it is not ready, and clients try another.

use super::caller::{ClockTimes, PresentedCredentials, Unauthenticated, authenticate};
use super::listener::{Authenticator, ConnInfo};
use super::rejection_audit::RejectionAuditLimiter;
use cellwright_api::masters::MasterList;
use cellwright_cell::credential::SecretHash;
use cellwright_cell::name::Name;
use cellwright_master::audit::AuditLog;
use cellwright_master::clock::Clock;
use cellwright_master::handle::{Caller, MasterHandle};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// Interval of writing the counted rejections to the audit log.
const REJECTION_FLUSH_INTERVAL: Duration = Duration::from_secs(60);

pub struct MasterAuthenticator {
    pub cell: Name,
    pub handle: MasterHandle,
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<AuditLog>,
    pub rejections: RejectionAuditLimiter,
    /// Hash of a `--dev` master's token.
    pub dev_token: Option<SecretHash>,
}

impl MasterAuthenticator {
    /// Writes counted rejections to the audit log, for as long as the master runs.
    pub async fn run_rejection_flush(self: Arc<Self>) {
        loop {
            tokio::time::sleep(REJECTION_FLUSH_INTERVAL).await;
            self.audit_summaries(self.rejections.flush(self.handle.log_time()));
        }
    }

    fn audit_summaries(&self, summaries: Vec<(String, u64)>) {
        for (source, count) in summaries {
            let object = format!("{count} more requests");
            self.audit_rejection(&source, "refused", &object, "summed-up");
        }
    }

    fn audit_rejection(&self, actor: &str, command: &str, object: &str, verdict: &str) {
        let line =
            self.audit.append_unlogged(self.handle.log_time(), actor, command, object, verdict);
        if let Err(error) = line {
            tracing::error!(%error, actor, object, "a refusal was not taken down");
        }
    }
}

impl Authenticator for MasterAuthenticator {
    fn authenticate(
        &self,
        connection: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated> {
        let holder = connection.holder.as_ref();
        let dev_token = self.dev_token.as_ref().filter(|_| connection.dev);
        let presented = PresentedCredentials { holder, authorization, dev_token };
        let replicated = self.handle.replicated();
        let now = ClockTimes { wall: self.clock.wall_time(), log: replicated.log_time() };
        replicated.with(|view| authenticate(presented, &self.cell, &view.state, now))
    }

    fn catch_up(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            // A replica that knows that it is behind need not ask the leader.
            self.handle.is_current() && self.handle.replica().confirm_current().await.is_ok()
        })
    }

    fn masters(&self) -> Option<MasterList> {
        self.handle.masters()
    }

    fn record_rejected(&self, connection: &ConnInfo, method: &str, path: &str, why: &str) {
        let wall = self.clock.wall_time();
        // The handshake accepted it and it has expired now: this clock has jumped ahead since.
        if let Some(holder) = connection.holder.as_ref().filter(|holder| holder.is_expired(wall)) {
            self.handle.local_rejected_polls().note_expired_certificate(holder, wall);
        }
        let source = match &connection.holder {
            Some(holder) => holder.identity.to_string(),
            None => connection.remote.ip().to_string(),
        };
        let decision = self.rejections.record(self.handle.log_time(), &source);
        self.audit_summaries(decision.summaries);
        if decision.write_line {
            self.audit_rejection(&source, method, path, why);
        }
    }
}
