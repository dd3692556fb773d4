//! Services of a replica beyond the replicated state: the feed of events, the audit log, saved
//! checkpoints and the bytes of blobs. Handlers use this interface and no files.

use crate::archiver::Archive;
use axum::body::Body;
use cellwright_api::error::ApiError;
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::command::Actor;
use cellwright_cell::event::EventKind;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::Token;
use cellwright_cell::reason::Reason;
use cellwright_cell::time::Time;
use cellwright_master::blobs::BlobReader;
use cellwright_master::history::HistoryService;
use cellwright_master::level::ReplicaProbe;
use cellwright_master::replicated_state::View;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::fmt;

/// A position in a feed: everything up to this item of this log entry has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub index: u64,
    pub position: u32,
}

impl Cursor {
    pub const START: Cursor = Cursor { index: 0, position: u32::MAX };

    /// After the whole of an entry.
    #[must_use]
    pub fn after(index: u64) -> Cursor {
        Cursor { index, position: u32::MAX }
    }

    /// `index-position`, or the index of an entry read completely.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn parse(parameter: &str, text: &str) -> Result<Cursor, ApiError> {
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        let read = || match text.split_once('-') {
            Some((index, position)) if digits(index) && digits(position) => {
                Some(Cursor { index: index.parse().ok()?, position: position.parse().ok()? })
            }
            None if digits(text) => Some(Cursor::after(text.parse().ok()?)),
            _ => None,
        };
        let allowed = "a cursor given out before, or a log index";
        read().ok_or_else(|| ApiError::parameter(parameter, text, allowed))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            u32::MAX => write!(f, "{}", self.index),
            position => write!(f, "{}-{position}", self.index),
        }
    }
}

/// One event with the names its rows had when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub cursor: Cursor,
    pub at: Time,
    /// `user/job/index`, `user/job`, or the name of a machine, user or resource.
    pub object: String,
    /// The event in a sentence.
    pub text: String,
    /// What happened to the object: the sentence without it.
    pub happened: String,
    /// The machine that it is about, or on which it happened.
    pub machine: Option<String>,
    /// The actor.
    pub actor: Actor,
    pub kind: EventKind,
    pub reason: Reason,
}

/// One page of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPage<T> {
    pub items: Vec<T>,
    /// Log index of the oldest item kept; absent when nothing is.
    pub oldest: Option<u64>,
    /// Whether items between the cursor and the first of these are no longer kept.
    pub gap: bool,
}

/// Calls may block on files; handlers make them on blocking threads.
pub trait ReplicaServices: Send + Sync + 'static {
    /// # Errors
    /// When the files cannot be read.
    fn events(&self, after: Cursor, limit: usize) -> Result<FeedPage<EventRecord>, ApiError>;

    /// The machine that an attempt of a task was placed on, if that is still known.
    ///
    /// # Errors
    /// When the files cannot be read.
    fn find_placement(&self, task: TaskId, attempt: u32) -> Result<Option<MachineId>, ApiError>;

    /// # Errors
    /// When the files cannot be read.
    fn audit(&self, after: Cursor, limit: usize) -> Result<FeedPage<AuditView>, ApiError>;

    /// The archive of the cell, if it has one.
    fn archive(&self) -> Option<&Archive> {
        None
    }

    /// Damaged or missing files on the disk of this replica.
    fn disk_damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// # Errors
    /// When the files cannot be read.
    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError>;

    /// # Errors
    /// When the file cannot be written.
    fn save_checkpoint(&self, view: &View) -> Result<CheckpointView, ApiError>;

    /// Stores content of at most `limit` bytes on a majority of the replicas; returns its length in
    /// bytes.
    fn put_blob(
        &self,
        digest: Token,
        content: Body,
        most: u64,
    ) -> BoxFuture<'_, Result<u64, ApiError>>;

    /// Removes content that the log does not reference, if this replica has it.
    ///
    /// # Errors
    /// When the file cannot be removed.
    fn remove_local_blob(&self, digest: &Token) -> Result<(), ApiError>;

    /// Stores content on this replica alone, for another that replicates it.
    fn store_local_blob(
        &self,
        digest: Token,
        content: Body,
    ) -> BoxFuture<'_, Result<u64, ApiError>>;

    /// Content that this replica has.
    ///
    /// # Errors
    /// When it is not here.
    fn local_blob(&self, digest: &Token) -> Result<BlobReader, ApiError>;

    /// Digests of all content that this replica has.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn local_blobs(&self) -> Result<BTreeSet<String>, ApiError>;

    /// Content that this replica has, or fetches from another.
    fn get_blob(&self, digest: Token) -> BoxFuture<'_, Result<BlobReader, ApiError>>;

    /// A range of content that this replica has, or fetches from another.
    fn blob_range(
        &self,
        digest: Token,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Vec<u8>, ApiError>>;

    /// Replicas that are not members yet.
    fn candidates(&self) -> &dyn ReplicaProbe;

    /// History in SQL tables, where it is kept.
    fn history(&self) -> Option<&HistoryService> {
        None
    }

    /// Metrics of its own, in Prometheus text.
    fn metrics(&self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_read_as_they_are_written() {
        for cursor in [Cursor { index: 7, position: 3 }, Cursor::after(9), Cursor::START] {
            assert_eq!(Cursor::parse("after", &cursor.to_string()).unwrap(), cursor);
        }
        assert!(Cursor { index: 7, position: 3 } < Cursor::after(7));
        for bad in ["", "-", "7-", "-3", "a", "7-3-1", "+7"] {
            assert!(Cursor::parse("after", bad).is_err(), "{bad:?}");
        }
    }
}
