//! The backstage of a real master: its event and audit logs, its blobs and its checkpoints.

use super::backstage::{Backstage, Cursor, EventRecord, Stretch};
use axum::body::{Body, HttpBody};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::event::Event;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::render;
use cellwright_cell::state::State;
use cellwright_master::audit::{AuditLog, Audited};
use cellwright_master::blobs::{
    self, BlobError, BlobPeers, BlobStore, Digest, Intake, Reading, off_thread,
};
use cellwright_master::checkpoint::{Checkpoints, Listed};
use cellwright_master::events::{EventLog, Happened};
use cellwright_master::history::HistoryDesk;
use cellwright_master::level::Candidates;
use cellwright_master::replicated::{Replicated, View};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Files {
    pub replicated: Arc<Replicated>,
    pub events: Arc<EventLog>,
    pub audit: Arc<AuditLog>,
    pub checkpoints: Checkpoints,
    /// Which replica this is.
    pub replica: Name,
    pub blobs: Arc<BlobStore>,
    pub peers: Arc<dyn Others>,
    pub history: HistoryDesk,
}

/// The other replicas, as far as they are asked for anything but the log.
pub trait Others: BlobPeers + Candidates {}

impl<T: BlobPeers + Candidates> Others for T {}

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

    fn placed_on(&self, task: TaskId, attempt: u32) -> Result<Option<MachineId>, ApiError> {
        self.events.placed_on(task, attempt).map_err(broken)
    }

    fn audit(&self, after: Cursor, most: usize) -> Result<Stretch<AuditView>, ApiError> {
        let (mut at, mut items): (_, Vec<AuditView>) = ((after.index, after.position), Vec::new());
        loop {
            let left = most - items.len();
            let page = self.audit.read_after(at.0, at.1, left).map_err(broken)?;
            let oldest = page.reaches_back_to;
            let Some(last) = page.items.last().map(|item| (item.number, item.position)) else {
                return Ok(Stretch { items, oldest, gap: false });
            };
            // A reader stops before a gap; whoever asks for a list wants what follows it too.
            let is_first = items.is_empty() && after == Cursor::START;
            let first = items.len();
            items.extend(page.items.into_iter().map(audited));
            items[first].gap_before = page.gap && !is_first;
            at = last;
            if items.len() >= most {
                return Ok(Stretch { items, oldest, gap: false });
            }
        }
    }

    fn damage(&self) -> Vec<String> {
        let mut damage = cellwright_master::mend::alarms(&self.replicated);
        damage.extend(self.history.damage());
        damage
    }

    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        let list = self.checkpoints.list().map_err(broken)?;
        Ok(list.into_iter().map(|listed| self.checkpoint(listed)).collect())
    }

    fn save_checkpoint(&self, view: &View) -> Result<CheckpointView, ApiError> {
        self.checkpoints.save(view).map(|listed| self.checkpoint(listed)).map_err(broken)
    }

    fn put_blob(
        &self,
        digest: Token,
        content: Body,
        most: u64,
    ) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move {
            let digest = parsed(&digest)?;
            let bytes = take_in(&self.blobs, digest, content, most).await?;
            blobs::spread(self.peers.as_ref(), digest).await.map_err(blob_error)?;
            Ok(bytes)
        })
    }

    fn keep_blob(&self, digest: Token, content: Body) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move { take_in(&self.blobs, parsed(&digest)?, content, u64::MAX).await })
    }

    fn drop_blob(&self, digest: &Token) -> Result<(), ApiError> {
        self.blobs.remove(parsed(digest)?).map_err(blob_error)
    }

    fn blob_here(&self, digest: &Token) -> Result<Reading, ApiError> {
        self.blobs.read(parsed(digest)?).map_err(blob_error)
    }

    fn blobs_here(&self) -> Result<BTreeSet<String>, ApiError> {
        let listed = self.blobs.list().map_err(blob_error)?;
        Ok(listed.into_iter().map(|(digest, _)| digest.to_string()).collect())
    }

    fn get_blob(&self, digest: Token) -> BoxFuture<'_, Result<Reading, ApiError>> {
        Box::pin(async move {
            let found = blobs::obtain(&self.blobs, self.peers.as_ref(), parsed(&digest)?).await;
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
            let digest = parsed(&digest)?;
            let read =
                |store: Arc<BlobStore>| off_thread(move || store.range(digest, from, length));
            match read(self.blobs.clone()).await {
                Err(BlobError::Absent(_)) => {}
                read => return read.map_err(blob_error),
            }
            blobs::obtain(&self.blobs, self.peers.as_ref(), digest).await.map_err(blob_error)?;
            read(self.blobs.clone()).await.map_err(blob_error)
        })
    }

    fn candidates(&self) -> &dyn Candidates {
        self.peers.as_ref()
    }

    fn history(&self) -> Option<&HistoryDesk> {
        Some(&self.history)
    }

    fn metrics(&self) -> String {
        self.history.metrics()
    }
}

/// Takes content in as it comes; what is announced as too long is refused before it comes.
async fn take_in(
    store: &Arc<BlobStore>,
    digest: Digest,
    mut content: Body,
    most: u64,
) -> Result<u64, ApiError> {
    let limit = store.limit().min(most);
    if content.size_hint().exact().is_some_and(|bytes| bytes > limit) {
        return Err(blob_error(BlobError::TooLong { limit }));
    }
    let begun = store.clone();
    let upload = off_thread(move || begun.begin(digest, limit)).await.map_err(blob_error)?;
    let mut intake = Intake::new(upload);
    while let Some(frame) = content.frame().await {
        let broke = |e| ApiError::new(Code::BadBody, format!("the content broke off: {e}"));
        if let Ok(chunk) = frame.map_err(broke)?.into_data() {
            intake = intake.write(&chunk).await.map_err(blob_error)?;
        }
    }
    intake.finish().await.map_err(blob_error)
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
    let message = error.to_string();
    let full = |why: &std::io::Error| why.kind() == std::io::ErrorKind::StorageFull;
    match error {
        BlobError::Absent(_) | BlobError::NoCopy { .. } => ApiError::new(Code::NoSuchBlob, message),
        BlobError::Beyond { .. } => ApiError::new(Code::BadParameter, message),
        BlobError::OtherContent { .. } => ApiError::new(Code::BadField, message),
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

/// The sentence starts with what the event is about, under the name it had then.
fn event(state: &State, item: Happened) -> EventRecord {
    let Happened { index, position, object, other: _, event } = item;
    let rendered = render::event(state, &event);
    let text = match rendered.split_once(' ') {
        Some((_, rest)) => format!("{object} {rest}"),
        None => rendered,
    };
    let cursor = Cursor { index, position };
    let Event { at, by, what, reason } = event;
    EventRecord { cursor, at, object, text, by, what, reason }
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
        gap_before: false,
    }
}

impl Files {
    fn checkpoint(&self, listed: Listed) -> CheckpointView {
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
