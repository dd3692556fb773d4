//! Usage of the whole cell on every replica, of the past and of this minute.
//!
//! Agents tell what their tasks use to the replica that polls them, so each replica writes down its
//! share. Once a minute it fetches from the others what they have written since
//! (`cellwright_history`'s books), and that stays here whoever dies. What somebody has measured and
//! not written yet is asked for when a query names `usage`, and put before it beside the tables;
//! the others' part of it is good for a few seconds, so that a page of charts asks them once.
//!
//! Rejected: one replica that gathers for all. It would be asked for by all, could be any of them
//! tomorrow, and the usage of a year would move with it.

use super::{Desk, HistoryDesk, Work, lock};
use crate::handle::Handle;
use crate::peers::{PastUsage, PeerAnswer, PeerCall, Peers};
use cellwright_history::tables::USAGE;
use cellwright_history::{History, HistoryError, Mark, Told, UsageRow};
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Between two looks at what others wrote.
pub(super) const FETCH_EVERY: Duration = Duration::from_secs(60);
/// How long another replica may take to say so.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what the others said is good for queries.
const FRESH: Duration = Duration::from_secs(3);
/// Rows of one answer.
const ROWS: usize = 20_000;

/// What the others said to a query, and when they were asked.
pub(super) struct Said {
    at: Instant,
    rows: Vec<UsageRow>,
}

/// Whether a query is about the table `usage`: one that has it as a word. `usage_daily` is another,
/// and has what is written alone.
pub(super) fn names_usage(sql: &str) -> bool {
    let of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    sql.split(|c| !of_name(c)).any(|word| word.eq_ignore_ascii_case(USAGE.name))
}

/// The other replicas, and how they are asked.
pub(super) type Others = (Arc<dyn Peers>, Vec<(NodeId, Peer)>);

impl HistoryDesk {
    /// Has agents' usage told to history, and history's to the other replicas. Before this, and
    /// without it, a desk knows of events alone.
    pub fn attach(&self, handle: &Handle) {
        let (told, replicated) = (self.clone(), handle.replicated().clone());
        handle.tell_usage(Box::new(move |state, machine, usage, tenure| {
            told.measured(state, machine, usage, tenure, replicated.log_time());
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
    /// written and this replica has not fetched.
    pub(super) async fn present(&self) -> Vec<UsageRow> {
        let mut said = self.0.said.lock().await;
        let others = match said.take().filter(|said| said.at.elapsed() < FRESH) {
            Some(fresh) => fresh,
            None => Said { at: Instant::now(), rows: self.others_say().await },
        };
        // After the others have answered: their word may have taken a while.
        let mut rows = lock(&self.0.usage).windows.present();
        rows.extend_from_slice(&said.insert(others).rows);
        rows
    }

    /// What the others have beyond what was fetched. Whoever does not answer leaves it out.
    async fn others_say(&self) -> Vec<UsageRow> {
        let mut rows = Vec::new();
        let Some((peers, others)) = self.0.others() else { return rows };
        let asked = others.into_iter().map(|(id, peer)| {
            let mark = lock(&self.0.heard).get(&id).copied().unwrap_or_default();
            timeout(PATIENCE, peers.call(id, peer, PeerCall::PastUsage(mark)))
        });
        for answer in join_all(asked).await {
            let Ok(Ok(PeerAnswer::PastUsage(said))) = answer else { continue };
            // Where there is more these are the oldest, and the newest are missing: the keeper is
            // fetching them.
            if !said.told.more {
                rows.extend(said.told.rows);
            }
            rows.extend(said.present);
        }
        rows
    }
}

impl Desk {
    /// Whether what is left of the disk is the log's.
    pub(super) fn is_short_of_room(&self) -> bool {
        let parts = self.cell.get().and_then(Weak::upgrade);
        parts.is_some_and(|parts| parts.replica.room().is_short())
    }

    /// Who else there is, and how they are asked.
    pub(super) fn others(&self) -> Option<Others> {
        let parts = self.cell.get()?.upgrade()?;
        Some((parts.peers.clone(), parts.links.others()))
    }
}

impl Work {
    /// Takes in what others wrote since the last time, if that is a while ago: one answer of each,
    /// so that the log, and whoever stops this, wait for no more. Says whether some had more than
    /// that; they alone are asked the next time. Whoever is away is asked again when it is time.
    pub(super) async fn fetch(&mut self, history: &mut History) -> Result<bool, HistoryError> {
        let due = self.fetched.is_none_or(|before| before.elapsed() >= FETCH_EVERY);
        if !due && self.behind.is_empty() {
            return Ok(false);
        }
        let behind = std::mem::take(&mut self.behind);
        let Some((peers, others)) = self.desk.others() else { return Ok(false) };
        if due && !others.is_empty() {
            self.fetched = Some(Instant::now());
        }
        for (id, peer) in others.into_iter().filter(|(id, _)| due || behind.contains(id)) {
            let mark = history.heard(id)?;
            let call = peers.call(id, peer, PeerCall::PastUsage(mark));
            let Ok(Ok(PeerAnswer::PastUsage(said))) = timeout(PATIENCE, call).await else {
                continue;
            };
            history.take_told(id, &said.told)?;
            lock(&self.desk.heard).insert(id, said.told.mark);
            // More after nothing would be more for ever.
            if said.told.more && !said.told.rows.is_empty() {
                self.behind.insert(id);
            }
        }
        Ok(!self.behind.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::names_usage;

    #[test]
    fn only_a_query_that_names_the_table_asks_the_others() {
        for sql in [
            "select * from usage",
            "SELECT 1 FROM Usage;",
            "select * from \"usage\" join usage_daily using (day)",
            "select u.time from(select * from usage)u",
        ] {
            assert!(names_usage(sql), "{sql}");
        }
        for sql in [
            "select * from usage_daily",
            "select cpu_usage, my_usage from events",
            "select usages from events",
            "select 1",
        ] {
            assert!(!names_usage(sql), "{sql}");
        }
    }
}
