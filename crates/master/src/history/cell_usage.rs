//! Usage of the whole cell on every replica, both past and current.
//!
//! Agents report what their tasks use to the replica that polls them, so each replica stores the
//! usage of its agents. Once a minute it fetches from the others what they have written since (the
//! tables of `cellwright_history`), and that stays here whichever replica dies. Usage that is
//! measured and not written yet is requested when a query names `usage`, and is put beside the
//! tables for it; the others' part of it is cached for a few seconds, so that a page of charts asks
//! them once.
//!
//! Rejected: one replica that collects for all. All others would ask it, it could be another one
//! tomorrow, and the usage of a year would move with it.

use super::{HistoryService, HistoryShared, WriterTask, lock};
use crate::handle::MasterHandle;
use crate::peers::{PastUsage, PeerAnswer, PeerCall, Peers};
use cellwright_history::{History, HistoryError, UsageBatch, UsageCursor, UsageRow};
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Time between two fetches of what others wrote.
pub(super) const FETCH_EVERY: Duration = Duration::from_secs(60);
/// How long another replica may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the answers of the others are cached for queries.
const PEER_USAGE_TTL: Duration = Duration::from_secs(3);
/// Maximum rows of one answer.
const MAX_ROWS: usize = 20_000;

/// The answers of the others for a query, and when they were asked.
pub(super) struct PeerUsage {
    at: Instant,
    rows: Vec<UsageRow>,
}

/// The other replicas, and how to call them.
pub(super) type PeerList = (Arc<dyn Peers>, Vec<(NodeId, Peer)>);

impl HistoryService {
    /// Connects agents' usage to history, and history's usage to the other replicas. Before this,
    /// and without it, the service has events only.
    pub fn attach(&self, handle: &MasterHandle) {
        handle.set_usage_ledger(Arc::new(self.clone()));
        let source = self.clone();
        handle.set_usage_history_source(Box::new(move |mark| {
            let service = source.clone();
            Box::pin(async move { service.usage_since(mark).await })
        }));
        // A weak reference: the replica holds this service.
        drop(self.0.replica.set(Arc::downgrade(&handle.0)));
    }

    /// What agents reported to this replica, for another one that asks.
    async fn usage_since(&self, mark: UsageCursor) -> PastUsage {
        // Taken before the tables are read: rows that move in between are returned twice rather
        // than left out.
        let present = self.0.unwritten();
        let reader = self.0.reader.clone();
        let written = tokio::task::spawn_blocking(move || reader.usage_after(mark, MAX_ROWS)).await;
        // A replica without tables, or with tables that cannot be read, has nothing to return from
        // them.
        let nothing = UsageBatch { cursor: mark, ..UsageBatch::default() };
        PastUsage {
            written: written.ok().and_then(Result::ok).unwrap_or(nothing),
            unwritten: present,
        }
    }

    /// Usage that is in no table here: what was measured and not written, and what others have
    /// written and this replica has not fetched.
    pub(super) async fn unwritten_usage(&self) -> Vec<UsageRow> {
        let mut peer_usage = self.0.peer_usage.lock().await;
        let others = match peer_usage.take().filter(|cached| cached.at.elapsed() < PEER_USAGE_TTL) {
            Some(fresh) => fresh,
            None => PeerUsage { at: Instant::now(), rows: self.fetch_peer_usage().await },
        };
        // After the others have answered, because their answers may have taken a while.
        let mut rows = self.0.unwritten();
        rows.extend_from_slice(&peer_usage.insert(others).rows);
        rows
    }

    /// What the others have beyond what was fetched. Replicas that do not answer are left out.
    async fn fetch_peer_usage(&self) -> Vec<UsageRow> {
        let mut rows = Vec::new();
        let Some((peers, others)) = self.0.peers() else { return rows };
        let calls = others.into_iter().map(|(id, peer)| {
            let mark = lock(&self.0.peer_marks).get(&id).copied().unwrap_or_default();
            timeout(CALL_TIMEOUT, peers.call(id, peer, PeerCall::PastUsage(mark)))
        });
        for answer in join_all(calls).await {
            let Ok(Ok(PeerAnswer::PastUsage(peer_usage))) = answer else { continue };
            // Where there is more, these are the oldest, and the newest are missing: the writer is
            // fetching them.
            if !peer_usage.written.more {
                rows.extend(peer_usage.written.rows);
            }
            rows.extend(peer_usage.unwritten);
        }
        rows
    }
}

impl HistoryShared {
    /// What agents told this replica and is in no table.
    fn unwritten(&self) -> Vec<UsageRow> {
        let (state, now) =
            (self.replicated.with(|view| view.state.clone()), self.replicated.log_time());
        lock(&self.usage).unwritten(&state, now)
    }

    /// Whether the free space of the disk is reserved for the log.
    pub(super) fn is_disk_low(&self) -> bool {
        let parts = self.replica.get().and_then(Weak::upgrade);
        parts.is_some_and(|parts| parts.replica.disk_space().is_below_reserve())
    }

    /// The other replicas, and how to call them.
    pub(super) fn peers(&self) -> Option<PeerList> {
        let parts = self.replica.get()?.upgrade()?;
        Some((parts.peers.clone(), parts.links.others()))
    }
}

impl WriterTask {
    /// Merges what others wrote since the last fetch, if that is a while ago: one answer of each,
    /// so that the log, and a stop, wait for no more. Returns whether some had more than that; only
    /// they are asked the next time. Replicas that are down are asked again when it is time.
    pub(super) async fn fetch(&mut self, history: &mut History) -> Result<bool, HistoryError> {
        let due = self.fetched_at.is_none_or(|before| before.elapsed() >= FETCH_EVERY);
        if !due && self.peers_with_more.is_empty() {
            return Ok(false);
        }
        let behind = std::mem::take(&mut self.peers_with_more);
        let Some((peers, others)) = self.shared.peers() else { return Ok(false) };
        if due && !others.is_empty() {
            self.fetched_at = Some(Instant::now());
        }
        for (id, peer) in others.into_iter().filter(|(id, _)| due || behind.contains(id)) {
            let mark = history.cursor_of(id)?;
            let call = peers.call(id, peer, PeerCall::PastUsage(mark));
            let Ok(Ok(PeerAnswer::PastUsage(peer_usage))) = timeout(CALL_TIMEOUT, call).await
            else {
                continue;
            };
            history.merge_batch(id, &peer_usage.written)?;
            lock(&self.shared.peer_marks).insert(id, peer_usage.written.cursor);
            // A replica that keeps reporting more after empty answers would keep this going for
            // ever.
            if peer_usage.written.more && !peer_usage.written.rows.is_empty() {
                self.peers_with_more.insert(id);
            }
        }
        Ok(!self.peers_with_more.is_empty())
    }
}
