//! [`super::ReplicaServices`] of a real master: its event and audit logs, its
//! blobs and its checkpoints.

use super::replica_services::{Cursor, EventRecord, FeedPage, ReplicaServices};
use crate::archiver::Archive;
use axum::body::{Body, HttpBody};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::event::{Event, EventKind};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::state::State;
use cellwright_cell::words;
use cellwright_master::audit::{AuditEntry, AuditLog};
use cellwright_master::blobs::{
    self, BlobError, BlobPeers, BlobReader, BlobStore, Digest, UploadBuffer, run_blocking,
};
use cellwright_master::checkpoint::{CheckpointFile, Checkpoints};
use cellwright_master::events::{EventLog, RecordedEvent};
use cellwright_master::history::HistoryService;
use cellwright_master::level::ReplicaProbe;
use cellwright_master::replicated_state::{ReplicatedState, View};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct MasterServices {
    pub replicated: Arc<ReplicatedState>,
    pub events: Arc<EventLog>,
    pub audit: Arc<AuditLog>,
    pub checkpoints: Checkpoints,
    /// Name of this replica.
    pub replica: Name,
    pub blobs: Arc<BlobStore>,
    pub peers: Arc<dyn OtherReplicas>,
    pub history: HistoryService,
    /// Absent: the cell has none.
    pub archive: Option<Archive>,
}

/// The other replicas, for every call other than raft's.
pub trait OtherReplicas: BlobPeers + ReplicaProbe {}

impl<T: BlobPeers + ReplicaProbe> OtherReplicas for T {}

impl ReplicaServices for MasterServices {
    fn events(&self, after: Cursor, most: usize) -> Result<FeedPage<EventRecord>, ApiError> {
        let feed =
            self.events.read_after(after.index, after.position, most).map_err(internal_error)?;
        let state = self.replicated.view().state;
        Ok(FeedPage {
            items: feed.items.into_iter().map(|item| event_record(&state, item)).collect(),
            oldest: feed.reaches_back_to,
            gap: feed.gap,
        })
    }

    fn find_placement(&self, task: TaskId, attempt: u32) -> Result<Option<MachineId>, ApiError> {
        self.events.machine_of_attempt(task, attempt).map_err(internal_error)
    }

    fn audit(&self, after: Cursor, most: usize) -> Result<FeedPage<AuditView>, ApiError> {
        let (mut at, mut items): (_, Vec<AuditView>) = ((after.index, after.position), Vec::new());
        loop {
            let left = most - items.len();
            let page = self.audit.read_after(at.0, at.1, left).map_err(internal_error)?;
            let oldest = page.reaches_back_to;
            let Some(last) = page.items.last().map(|item| (item.number, item.position)) else {
                return Ok(FeedPage { items, oldest, gap: false });
            };
            // A reader stops before a gap; a list should include what follows it too.
            let is_first = items.is_empty() && after == Cursor::START;
            let first = items.len();
            items.extend(page.items.into_iter().map(audit_view));
            items[first].gap_before = page.gap && !is_first;
            at = last;
            if items.len() >= most {
                return Ok(FeedPage { items, oldest, gap: false });
            }
        }
    }

    fn disk_damage(&self) -> Vec<String> {
        let mut damage = cellwright_master::record_repair::hole_alarms(&self.replicated);
        damage.extend(self.history.damage());
        damage
    }

    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        let list = self.checkpoints.list().map_err(internal_error)?;
        Ok(list.into_iter().map(|listed| self.checkpoint_view(listed)).collect())
    }

    fn save_checkpoint(&self, view: &View) -> Result<CheckpointView, ApiError> {
        self.checkpoints
            .save(view)
            .map(|listed| self.checkpoint_view(listed))
            .map_err(internal_error)
    }

    fn put_blob(
        &self,
        digest: Token,
        content: Body,
        most: u64,
    ) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move {
            let digest = parse_digest(&digest)?;
            let bytes = store_blob(&self.blobs, digest, content, most).await?;
            blobs::replicate(self.peers.as_ref(), digest).await.map_err(blob_error)?;
            Ok(bytes)
        })
    }

    fn store_local_blob(
        &self,
        digest: Token,
        content: Body,
    ) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(
            async move { store_blob(&self.blobs, parse_digest(&digest)?, content, u64::MAX).await },
        )
    }

    fn remove_local_blob(&self, digest: &Token) -> Result<(), ApiError> {
        self.blobs.remove(parse_digest(digest)?).map_err(blob_error)
    }

    fn local_blob(&self, digest: &Token) -> Result<BlobReader, ApiError> {
        self.blobs.read(parse_digest(digest)?).map_err(blob_error)
    }

    fn local_blobs(&self) -> Result<BTreeSet<String>, ApiError> {
        let listed = self.blobs.list().map_err(blob_error)?;
        Ok(listed.into_iter().map(|(digest, _)| digest.to_string()).collect())
    }

    fn get_blob(&self, digest: Token) -> BoxFuture<'_, Result<BlobReader, ApiError>> {
        Box::pin(async move {
            let found =
                blobs::read_or_fetch(&self.blobs, self.peers.as_ref(), parse_digest(&digest)?)
                    .await;
            found.map_err(blob_error)
        })
    }

    fn blob_range(
        &self,
        digest: Token,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async move {
            let digest = parse_digest(&digest)?;
            let read =
                |store: Arc<BlobStore>| run_blocking(move || store.range(digest, from, length));
            match read(self.blobs.clone()).await {
                Err(BlobError::NotFound(_)) => {}
                read => return read.map_err(blob_error),
            }
            blobs::read_or_fetch(&self.blobs, self.peers.as_ref(), digest)
                .await
                .map_err(blob_error)?;
            read(self.blobs.clone()).await.map_err(blob_error)
        })
    }

    fn candidates(&self) -> &dyn ReplicaProbe {
        self.peers.as_ref()
    }

    fn archive(&self) -> Option<&Archive> {
        self.archive.as_ref()
    }

    fn history(&self) -> Option<&HistoryService> {
        Some(&self.history)
    }

    fn metrics(&self) -> String {
        self.history.metrics()
    }
}

/// Stores content as it arrives; content whose announced length is too long is rejected before it
/// is read.
async fn store_blob(
    store: &Arc<BlobStore>,
    digest: Digest,
    mut content: Body,
    max_bytes: u64,
) -> Result<u64, ApiError> {
    let limit = store.limit().min(max_bytes);
    if content.size_hint().exact().is_some_and(|bytes| bytes > limit) {
        return Err(blob_error(BlobError::TooLong { limit }));
    }
    let begun = store.clone();
    let upload = run_blocking(move || begun.begin(digest, limit)).await.map_err(blob_error)?;
    let mut intake = UploadBuffer::new(upload);
    while let Some(frame) = content.frame().await {
        let broken_off = |e| ApiError::new(Code::BadBody, format!("the content broke off: {e}"));
        if let Ok(chunk) = frame.map_err(broken_off)?.into_data() {
            intake = intake.write(&chunk).await.map_err(blob_error)?;
        }
    }
    intake.finish().await.map_err(blob_error)
}

fn parse_digest(digest: &Token) -> Result<Digest, ApiError> {
    let allowed = "64 digits 0-9 and a-f";
    Digest::parse(digest.as_str())
        .ok_or_else(|| ApiError::parameter("digest", digest.as_str(), allowed))
}

fn internal_error(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(Code::Internal, format!("this replica's files: {error}"))
        .hint("ask another replica; check the disk of this one")
}

fn blob_error(error: BlobError) -> ApiError {
    let message = error.to_string();
    let full = |why: &std::io::Error| why.kind() == std::io::ErrorKind::StorageFull;
    match error {
        BlobError::NotFound(_) | BlobError::NoCopy { .. } => {
            ApiError::new(Code::NoSuchBlob, message)
        }
        BlobError::OutOfRange { .. } => ApiError::new(Code::BadParameter, message),
        BlobError::DigestMismatch { .. } => ApiError::new(Code::BadField, message),
        BlobError::TooLong { limit } => ApiError::new(Code::TooLarge, message)
            .hint("split the package, or raise blob_limit in the masters' configuration")
            .with("limit", limit),
        BlobError::TooFewCopies { .. } => ApiError::new(Code::NoQuorum, message),
        BlobError::DiskFull { free, reserve } => {
            ApiError::new(Code::DiskFull, message).with("free", free).with("reserve", reserve)
        }
        BlobError::Io { why, .. } if full(&why) => ApiError::new(Code::DiskFull, message),
        BlobError::Damaged(_) | BlobError::Io { .. } => ApiError::new(Code::Internal, message),
    }
}

/// The sentence names the event's object as it was called then.
fn event_record(state: &State, item: RecordedEvent) -> EventRecord {
    let RecordedEvent { index, position, object, reason_object: _, event, submission: _ } = item;
    let text = words::event_text(state, &event);
    let machine = match event.kind {
        EventKind::Machine { .. } => Some(object.clone()),
        _ => event
            .mentioned_machine()
            .and_then(|machine| state.machines().get(machine).map(|row| row.spec.name.to_string())),
    };
    let cursor = Cursor { index, position };
    let Event { at, actor, kind, reason } = event;
    let (text, happened) = (text.with_name(&object), text.happened);
    EventRecord { cursor, at, object, text, happened, machine, actor, kind, reason }
}

fn audit_view(item: AuditEntry) -> AuditView {
    AuditView {
        cursor: Cursor { index: item.number, position: item.position }.to_string(),
        index: item.index,
        at: item.at,
        caller: item.line.caller,
        command: item.line.command,
        object: item.line.object,
        verdict: item.line.verdict,
        gap_before: false,
    }
}

impl MasterServices {
    fn checkpoint_view(&self, listed: CheckpointFile) -> CheckpointView {
        let path = self.checkpoints.path(&listed.name);
        CheckpointView {
            replica: self.replica.to_string(),
            path: std::path::absolute(&path).unwrap_or(path).display().to_string(),
            name: listed.name,
            index: listed.header.index,
            term: listed.header.term,
            at: listed.header.at,
            bytes: listed.bytes,
            hash: format!("{:016x}", listed.header.hash),
        }
    }
}
