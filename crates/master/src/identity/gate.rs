//! What the listener asks of a running master: who a caller is, by the state as this replica has
//! it, and a line in the audit log for everybody who is turned away.
//!
//! The state may lag behind on a follower: a token made a moment ago may be refused there, and one
//! revoked a moment ago accepted. Everything that changes the cell is judged again by the leader.

use super::caller::{Evidence, Unauthenticated, caller};
use super::listener::{ConnInfo, Gate};
use crate::audit::AuditLog;
use crate::clock::Clock;
use crate::handle::Caller;
use crate::replicated::Replicated;
use cellwright_cell::name::Name;
use std::sync::Arc;

pub struct MasterGate {
    pub cell: Name,
    pub replicated: Arc<Replicated>,
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<AuditLog>,
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
        let line = self.audit.apart(self.clock.wall(), &who, method, path, why);
        if let Err(error) = line {
            tracing::error!(%error, who, path, "a refusal was not taken down");
        }
    }
}
