//! What the listener asks of a running master: who a caller is, by the state as this replica has
//! it, and a line in the audit log for whoever is turned away, or a number for many.
//!
//! The state may lag behind on a follower: a token revoked a moment ago may be accepted there.
//! Everything that changes the cell is judged again by the leader. But nobody is refused for what a
//! replica does not know before the replica has caught up with all that was acknowledged when it
//! was asked, as its leader confirms. One that joins, was removed or is cut off cannot: it says
//! that it is not ready, and clients ask another.

use super::caller::{Evidence, Moment, Unauthenticated, caller};
use super::listener::{ConnInfo, Gate};
use super::refusals::Refusals;
use cellwright_api::masters::Masters;
use cellwright_cell::credential::SecretHash;
use cellwright_cell::name::Name;
use cellwright_master::audit::AuditLog;
use cellwright_master::clock::Clock;
use cellwright_master::handle::{Caller, Handle};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks for what was only counted.
const SETTLE: Duration = Duration::from_secs(60);

pub struct MasterGate {
    pub cell: Name,
    pub handle: Handle,
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<AuditLog>,
    pub refusals: Refusals,
    /// Of the token of a `--dev` master.
    pub open: Option<SecretHash>,
}

impl MasterGate {
    /// Takes down what was only counted, for as long as the master runs.
    pub async fn keep_settling(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SETTLE).await;
            self.sum_up(self.refusals.settle(self.handle.log_time()));
        }
    }

    fn sum_up(&self, sums: Vec<(String, u64)>) {
        for (source, count) in sums {
            let object = format!("{count} more requests");
            self.take_down(&source, "refused", &object, "summed-up");
        }
    }

    fn take_down(&self, who: &str, command: &str, object: &str, verdict: &str) {
        let line = self.audit.apart(self.handle.log_time(), who, command, object, verdict);
        if let Err(error) = line {
            tracing::error!(%error, who, object, "a refusal was not taken down");
        }
    }
}

impl Gate for MasterGate {
    fn caller(
        &self,
        connection: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated> {
        let holder = connection.holder.as_ref();
        let open = self.open.as_ref().filter(|_| connection.open);
        let evidence = Evidence { holder, authorization, open };
        let replicated = self.handle.replicated();
        let now = Moment { wall: self.clock.wall(), log: replicated.log_time() };
        replicated.with(|view| caller(evidence, &self.cell, &view.state, now))
    }

    fn catch_up(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            // One that knows that it is behind does not wait for others to say so.
            self.handle.is_current() && self.handle.replica().confirm_current().await.is_ok()
        })
    }

    fn masters(&self) -> Option<Masters> {
        self.handle.masters()
    }

    fn refused(&self, connection: &ConnInfo, method: &str, path: &str, why: &str) {
        let wall = self.clock.wall();
        // Let in by the handshake and not any more: this clock jumped ahead since.
        if let Some(holder) = connection.holder.as_ref().filter(|holder| holder.is_over(wall)) {
            self.handle.refused_here().note_out_of_date(holder, wall);
        }
        let who = match &connection.holder {
            Some(holder) => holder.identity.to_string(),
            None => connection.remote.ip().to_string(),
        };
        let written = self.refusals.note(self.handle.log_time(), &who);
        self.sum_up(written.sums);
        if written.line {
            self.take_down(&who, method, path, why);
        }
    }
}
