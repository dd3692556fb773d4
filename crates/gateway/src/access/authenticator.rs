//! What the listener asks of a running master: who a caller is, by the state as this replica has
//! it, and a line in the audit log for whoever is turned away, or a number for many.
//!
//! The state may lag behind on a follower: a token revoked a moment ago may be accepted there.
//! Everything that changes the cell is judged again by the leader. But nobody is refused for what a
//! replica does not know before the replica has caught up with all that was acknowledged when it
//! was asked, as its leader confirms. One that joins, was removed or is cut off cannot: it says
//! that it is not ready, and clients ask another.

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

/// Between two looks for what was only counted.
const REJECTION_FLUSH_INTERVAL: Duration = Duration::from_secs(60);

pub struct MasterAuthenticator {
    pub cell: Name,
    pub handle: MasterHandle,
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<AuditLog>,
    pub rejections: RejectionAuditLimiter,
    /// Of the token of a `--dev` master.
    pub dev_token: Option<SecretHash>,
}

impl MasterAuthenticator {
    /// Takes down what was only counted, for as long as the master runs.
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
            // One that knows that it is behind does not wait for others to say so.
            self.handle.is_current() && self.handle.replica().confirm_current().await.is_ok()
        })
    }

    fn masters(&self) -> Option<MasterList> {
        self.handle.masters()
    }

    fn record_rejected(&self, connection: &ConnInfo, method: &str, path: &str, why: &str) {
        let wall = self.clock.wall_time();
        // Let in by the handshake and not any more: this clock jumped ahead since.
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
