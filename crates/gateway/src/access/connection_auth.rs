//! The authentication state of one connection: whether any request on it was authenticated, how
//! many were rejected, and the users whose limits it counts against. The accept loop (`listener`)
//! closes the connection when this says so.

use super::listener::ListenerLimits;
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::time::Span;
use cellwright_identity::connection_limits::{ConnectionCounts, ConnectionPermit, LimitKey};
use cellwright_master::handle::Caller;
use cellwright_supervise::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The authentication of a connection's requests so far.
pub(super) struct ConnectionAuth {
    is_authenticated: AtomicBool,
    pub(super) authenticated: Notify,
    rejected_count: AtomicU32,
    limits: ListenerLimits,
    pub(super) close_requested: Notify,
    counts: Arc<ConnectionCounts>,
    /// Users whose tokens were presented: the connection counts against the limit of each.
    permits: Mutex<BTreeMap<String, ConnectionPermit>>,
}

impl ConnectionAuth {
    pub(super) fn new(limits: ListenerLimits, counts: Arc<ConnectionCounts>) -> ConnectionAuth {
        let (is_authenticated, rejected_count) = (AtomicBool::new(false), AtomicU32::new(0));
        let (authenticated, close_requested) = (Notify::new(), Notify::new());
        ConnectionAuth {
            is_authenticated,
            authenticated,
            rejected_count,
            limits,
            close_requested,
            counts,
            permits: Mutex::default(),
        }
    }

    /// A certificate's holder was counted at connection; the user of a token is counted now.
    pub(super) fn count_caller(&self, caller: &Caller) -> Result<(), ApiError> {
        let (actor, limit) = (caller.to_string(), self.limits.per_identity);
        let mut permits = lock(&self.permits);
        if permits.contains_key(&actor) {
            return Ok(());
        }
        if let Some(permit) = self.counts.acquire(LimitKey::Identity(actor.clone()), limit) {
            permits.insert(actor, permit);
            return Ok(());
        }
        self.close_requested.notify_one();
        let setting = "connections_per_identity";
        let actor_text = actor.replacen(':', " ", 1);
        let message =
            format!("{actor_text}: {limit} connections at this replica already ({setting})");
        Err(ApiError::new(Code::Overloaded, message)
            .with("limit", limit)
            .with("setting", setting)
            .with_retry_after(Span::seconds(1)))
    }

    pub(super) fn mark_authenticated(&self) {
        if !self.is_authenticated.swap(true, Ordering::Relaxed) {
            self.authenticated.notify_one();
        }
    }

    /// A client with too many rejected requests has to reconnect, with a new handshake.
    pub(super) fn record_rejection(&self) {
        if self.rejected_count.fetch_add(1, Ordering::Relaxed) + 1 >= self.limits.rejected_requests
        {
            self.close_requested.notify_one();
        }
    }
}
