//! Usage of the whole cell on every replica, of the past and of this minute.
//!
//! Agents tell what their tasks use to the replica that polls them, so each replica writes down its
//! share. Once a minute it fetches from the others what they have written since
//! (`cellwright_history`'s books), and that stays here whoever dies. What somebody has measured and
//! not written yet is asked for when a query is about usage, and put before it beside the tables.
//!
//! Rejected: one replica that gathers for all. It would be asked for by all, could be any of them
//! tomorrow, and the usage of a year would move with it.

use super::{Desk, HistoryDesk, Work, lock};
use crate::clock::Clock;
use crate::handle::Handle;
use crate::peers::{PastUsage, PeerAnswer, PeerCall, Peers};
use cellwright_cell::time::Span;
use cellwright_history::{History, HistoryError, Mark, Told, UsageRow};
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Between two looks at what others wrote.
pub(super) const FETCH_EVERY: Span = Span::seconds(60);
/// How long another replica may take to say so.
const PATIENCE: Duration = Duration::from_secs(2);
/// Rows of one answer.
const ROWS: usize = 20_000;

/// The other replicas, and how they are asked.
type Others = (Arc<dyn Peers>, Vec<(NodeId, Peer)>);

impl HistoryDesk {
    /// Has agents' usage told to history, and history's to the other replicas. Before this, and
    /// without it, a desk knows of events alone.
    pub fn attach(&self, handle: &Handle, clock: Arc<dyn Clock>) {
        let told = self.clone();
        handle.tell_usage(Box::new(move |state, machine, usage| {
            told.measured(state, machine, usage, clock.wall());
        }));
        let asked = self.clone();
        handle.tell_past_usage(Box::new(move |mark| {
            let desk = asked.clone();
            Box::pin(async move { desk.tell(mark).await })
        }));
        // Weakly: the replica holds this desk.
        drop(self.0.cell.set(Arc::downgrade(&handle.0)));
    }

    /// What agents said to this replica, for another one that asks.
    async fn tell(&self, mark: Mark) -> PastUsage {
        // Before the book is read: what moves there meanwhile is told twice, and not left out.
        let present = lock(&self.0.usage).windows.present();
        let reader = self.0.reader.clone();
        let told = tokio::task::spawn_blocking(move || reader.tell(mark, ROWS)).await;
        // A replica without a book, or one that cannot be read, has nothing to tell from it.
        let nothing = Told { mark, ..Told::default() };
        PastUsage { told: told.ok().and_then(Result::ok).unwrap_or(nothing), present }
    }

    /// Usage that is in no table here: what was measured and not written, and what others have
    /// written and this replica has not fetched. Whoever does not answer leaves it out.
    pub(super) async fn present(&self) -> Vec<UsageRow> {
        let mut rows = lock(&self.0.usage).windows.present();
        let Some((peers, others)) = self.0.others() else { return rows };
        let asked = others.into_iter().map(|(id, peer)| {
            let mark = lock(&self.0.heard).get(&id).copied().unwrap_or_default();
            timeout(PATIENCE, peers.call(id, peer, PeerCall::PastUsage(mark)))
        });
        for answer in join_all(asked).await {
            let Ok(Ok(PeerAnswer::PastUsage(said))) = answer else { continue };
            rows.extend(said.told.rows);
            rows.extend(said.present);
        }
        rows
    }
}

impl Desk {
    /// Who else there is, and how they are asked.
    fn others(&self) -> Option<Others> {
        let parts = self.cell.get()?.upgrade()?;
        Some((parts.peers.clone(), parts.links.others()))
    }
}

impl Work {
    /// Takes in what others wrote since the last time, if that is a while ago. Whoever is away is
    /// asked again the next time.
    pub(super) async fn fetch(&mut self, history: &mut History) -> Result<(), HistoryError> {
        let now = self.clock.wall();
        if self.fetched.is_some_and(|before| now.since(before) < FETCH_EVERY) {
            return Ok(());
        }
        let Some((peers, others)) = self.desk.others() else { return Ok(()) };
        for (id, peer) in others {
            self.fetched = Some(now);
            loop {
                let mark = history.heard(id)?;
                let call = peers.call(id, peer.clone(), PeerCall::PastUsage(mark));
                let Ok(Ok(PeerAnswer::PastUsage(said))) = timeout(PATIENCE, call).await else {
                    break;
                };
                history.take_told(id, &said.told)?;
                lock(&self.desk.heard).insert(id, said.told.mark);
                if !said.told.more {
                    break;
                }
            }
        }
        Ok(())
    }
}
