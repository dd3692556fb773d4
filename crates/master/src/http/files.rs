//! The backstage of a real master: its event and audit logs, its blobs and its checkpoints.

use super::backstage::{Backstage, Cursor, EventRecord, Stretch};
use crate::audit::{AuditLog, Audited};
use crate::blobs::{self, BlobError, BlobPeers, BlobStore, Digest};
use crate::checkpoint::{Checkpoints, Listed};
use crate::events::{EventLog, Happened};
use crate::replicated::{Replicated, View};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::name::Token;
use cellwright_cell::render;
use cellwright_cell::state::State;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use std::sync::Arc;

pub struct Files {
    pub replicated: Arc<Replicated>,
    pub events: Arc<EventLog>,
    pub audit: Arc<AuditLog>,
    pub checkpoints: Checkpoints,
    pub blobs: Arc<BlobStore>,
    pub peers: Arc<dyn BlobPeers>,
}

impl Backstage for Files {
    fn events(&self, after: Cursor, most: usize) -> Result<Stretch<EventRecord>, ApiError> {
        let feed = self.events.read_after(after.index, after.position, most).map_err(broken)?;
        let state = self.replicated.view().state;
        Ok(Stretch {
            items: feed.items.into_iter().map(|item| event(&state, item)).collect(),
            oldest: feed.reaches_back_to,
            gap: feed.gap,
        })
    }

    fn audit(&self, after: Cursor, most: usize) -> Result<Stretch<AuditView>, ApiError> {
        let page = self.audit.read_after(after.index, after.position, most).map_err(broken)?;
        let items = page.items.into_iter().map(audited).collect();
        Ok(Stretch { items, oldest: page.reaches_back_to, gap: page.gap })
    }

    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        let list = self.checkpoints.list().map_err(broken)?;
        Ok(list.into_iter().map(checkpoint).collect())
    }

    fn save_checkpoint(&self, view: &View) -> Result<CheckpointView, ApiError> {
        self.checkpoints.save(view).map(checkpoint).map_err(broken)
    }

    fn put_blob(&self, digest: Token, content: Body) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move {
            let digest = parsed(&digest)?;
            let bytes = take_in(&self.blobs, digest, content).await?;
            blobs::spread(self.peers.as_ref(), digest).await.map_err(blob_error)?;
            Ok(bytes)
        })
    }

    fn keep_blob(&self, digest: Token, content: Body) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move { take_in(&self.blobs, parsed(&digest)?, content).await })
    }

    fn blob_here(&self, digest: &Token) -> Result<Bytes, ApiError> {
        self.blobs.read(parsed(digest)?).map(Bytes::from).map_err(blob_error)
    }

    fn get_blob(&self, digest: Token) -> BoxFuture<'_, Result<Bytes, ApiError>> {
        Box::pin(async move {
            let found = blobs::obtain(&self.blobs, self.peers.as_ref(), parsed(&digest)?).await;
            found.map(Bytes::from).map_err(blob_error)
        })
    }
}

/// Takes content in as it comes. What is written at a time is small, so the disk's time is short.
async fn take_in(store: &BlobStore, digest: Digest, mut content: Body) -> Result<u64, ApiError> {
    let mut upload = store.begin(digest).map_err(blob_error)?;
    while let Some(frame) = content.frame().await {
        let broke = |e| ApiError::new(Code::BadBody, format!("the content broke off: {e}"));
        if let Ok(chunk) = frame.map_err(broke)?.into_data() {
            upload.write(&chunk).map_err(blob_error)?;
        }
    }
    upload.finish().map_err(blob_error)
}

fn parsed(digest: &Token) -> Result<Digest, ApiError> {
    let allowed = "64 digits 0-9 and a-f";
    Digest::parse(digest.as_str())
        .ok_or_else(|| ApiError::parameter("digest", digest.as_str(), allowed))
}

fn broken(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(Code::Internal, format!("this replica's files: {error}"))
        .hint("ask another replica; check the disk of this one")
}

fn blob_error(error: BlobError) -> ApiError {
    let code = match &error {
        BlobError::Absent(_) | BlobError::NoCopy { .. } => Code::NoSuchBlob,
        BlobError::OtherContent { .. } => Code::BadField,
        BlobError::TooLong { .. } => Code::TooLarge,
        BlobError::TooFewCopies { .. } => Code::NoQuorum,
        BlobError::Damaged(_) | BlobError::Io { .. } => Code::Internal,
    };
    ApiError::new(code, error.to_string())
}

/// The sentence starts with what the event is about, under the name it had then.
fn event(state: &State, item: Happened) -> EventRecord {
    let Happened { index, position, object, event } = item;
    let rendered = render::event(state, &event);
    let text = match rendered.split_once(' ') {
        Some((_, rest)) => format!("{object} {rest}"),
        None => rendered,
    };
    let cursor = Cursor { index, position };
    EventRecord { cursor, at: event.at, object, text, what: event.what, reason: event.reason }
}

fn audited(item: Audited) -> AuditView {
    AuditView {
        cursor: Cursor { index: item.number, position: item.position }.to_string(),
        index: item.index,
        at: item.at,
        caller: item.line.caller,
        command: item.line.command,
        object: item.line.object,
        verdict: item.line.verdict,
    }
}

fn checkpoint(listed: Listed) -> CheckpointView {
    CheckpointView {
        name: listed.name,
        index: listed.header.index,
        term: listed.header.term,
        at: listed.header.at,
        bytes: listed.bytes,
        hash: format!("{:016x}", listed.header.hash),
    }
}
