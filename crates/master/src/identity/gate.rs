//! What the listener asks of a running master: who a caller is, by the state as this replica has
//! it, and a line in the audit log for whoever is turned away, or a number for many.
//!
//! The state may lag behind on a follower: a token made a moment ago may be refused there, and one
//! revoked a moment ago accepted. Everything that changes the cell is judged again by the leader.

use super::caller::{Evidence, Unauthenticated, caller};
use super::listener::{ConnInfo, Gate};
use super::refusals::Refusals;
use crate::audit::AuditLog;
use crate::clock::Clock;
use crate::handle::Caller;
use crate::replicated::Replicated;
use cellwright_cell::name::Name;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks for what was only counted.
const SETTLE: Duration = Duration::from_secs(60);

pub struct MasterGate {
    pub cell: Name,
    pub replicated: Arc<Replicated>,
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<AuditLog>,
    pub refusals: Refusals,
}

impl MasterGate {
    /// Takes down what was only counted, for as long as the master runs.
    pub async fn keep_settling(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SETTLE).await;
            self.sum_up(self.refusals.settle(self.clock.wall()));
        }
    }

    fn sum_up(&self, sums: Vec<(String, u64)>) {
        for (source, count) in sums {
            let object = format!("{count} more requests");
            self.take_down(&source, "refused", &object, "summed-up");
        }
    }

    fn take_down(&self, who: &str, command: &str, object: &str, verdict: &str) {
        let line = self.audit.apart(self.clock.wall(), who, command, object, verdict);
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
        let evidence = Evidence { holder, authorization, open: connection.open };
        let now = self.clock.wall();
        self.replicated.with(|view| caller(evidence, &self.cell, &view.state, now))
    }

    fn refused(&self, connection: &ConnInfo, method: &str, path: &str, why: &str) {
        let who = match &connection.holder {
            Some(holder) => holder.identity.to_string(),
            None => connection.remote.ip().to_string(),
        };
        let written = self.refusals.note(self.clock.wall(), &who);
        self.sum_up(written.sums);
        if written.line {
            self.take_down(&who, method, path, why);
        }
    }
}
