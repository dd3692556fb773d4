//! Syncs the blobs on this replica's disk with the log: fetches missing ones from the other
//! replicas, and removes those that the log no longer contains.
//!
//! A replica that has just joined, or has lost its folder, lacks everything. It still serves blobs,
//! by fetching each one on request; this fetches the rest, one after the other, so that the cell
//! does not depend on the replicas that had them first.

use crate::blobs::{
    BlobError, BlobPeers, BlobStore, BlobSweep, Digest, read_or_fetch, run_blocking,
};
use crate::handle::MasterHandle;
use cellwright_cell::name::Token;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks for blobs that are missing.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Checks for missing blobs between two sweeps for unknown ones: two hours, longer than any upload
/// takes to reach a majority, so a blob whose log entry is still coming is not removed.
const SWEEP_EVERY_CHECKS: u32 = 240;

pub struct BlobSyncer {
    handle: MasterHandle,
    store: Arc<BlobStore>,
    peers: Arc<dyn BlobPeers>,
    sweep: BlobSweep,
}

impl BlobSyncer {
    #[must_use]
    pub fn new(
        handle: MasterHandle,
        store: Arc<BlobStore>,
        peers: Arc<dyn BlobPeers>,
    ) -> BlobSyncer {
        BlobSyncer { handle, store, peers, sweep: BlobSweep::default() }
    }

    /// Runs for as long as the replica runs.
    pub async fn run(mut self) {
        loop {
            for _ in 0..SWEEP_EVERY_CHECKS {
                if let Err(error) = self.remove_deleted().await {
                    tracing::warn!(%error, "packages that were removed still take room");
                }
                if let Err(error) = self.fetch_missing().await {
                    tracing::warn!(%error, "this replica's packages were not looked through");
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
            if let Err(error) = self.remove_unknown().await {
                tracing::warn!(%error, "packages that nobody needs were not removed");
            }
        }
    }

    /// Fetches the blobs that the log names and this disk lacks; returns how many it got.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub async fn fetch_missing(&self) -> Result<usize, BlobError> {
        let state = self.handle.read().state;
        let store = self.store.clone();
        let here = run_blocking(move || store.list()).await?;
        let here: BTreeSet<Digest> = here.into_iter().map(|(digest, _)| digest).collect();
        let named = state.blobs().iter().filter_map(|(_, row)| Digest::parse(row.digest.as_str()));
        let mut got = 0;
        for digest in named.filter(|digest| !here.contains(digest)) {
            match read_or_fetch(&self.store, self.peers.as_ref(), digest).await {
                Ok(_) => got += 1,
                Err(error) => tracing::debug!(%error, "a package stays with the others for now"),
            }
        }
        Ok(got)
    }

    /// Removes the blobs that the log named at the last check and no longer names; returns how
    /// many.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub async fn remove_deleted(&mut self) -> Result<usize, BlobError> {
        let (store, state) = (self.store.clone(), self.handle.read().state);
        let mut sweep = std::mem::take(&mut self.sweep);
        let (sweep, removed) = run_blocking(move || {
            let digests = state.blobs().iter().map(|(_, row)| Digest::parse(row.digest.as_str()));
            let removed = sweep.remove_deleted(&store, digests.flatten().collect())?;
            Ok((sweep, removed))
        })
        .await?;
        self.sweep = sweep;
        Ok(removed)
    }

    /// One sweep for blobs here that the log does not know; returns how many were removed. A
    /// replica without a leader may be behind, and keeps what it does not know.
    ///
    /// # Errors
    /// When the folder cannot be read, or a file cannot be removed.
    pub async fn remove_unknown(&mut self) -> Result<usize, BlobError> {
        if self.handle.status().leader.is_none() {
            return Ok(0);
        }
        let (store, state) = (self.store.clone(), self.handle.read().state);
        let mut sweep = std::mem::take(&mut self.sweep);
        let (sweep, removed) = run_blocking(move || {
            let name = |digest: Digest| Token::new(&digest.to_string()).ok();
            let knows = |digest| name(digest).is_some_and(|name| state.blob_named(&name).is_some());
            let removed = sweep.remove_unknown(&store, knows)?;
            Ok((sweep, removed))
        })
        .await?;
        self.sweep = sweep;
        Ok(removed)
    }
}
