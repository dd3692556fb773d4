//! Openraft's state machine interface around a [`StateMachine`].
//!
//! The state machine lives in memory. It is made durable by the log behind it and, now and then, a
//! snapshot. Taking one costs the state machine a cheap copy; encoding and writing happen off this
//! task.

use std::io::{self, Cursor};
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_supervise::failpoint;
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use tokio::sync::watch;

use crate::disk::{Disk, DiskHandle};
use crate::log::Log;
use crate::raft::{
    Entry, EntryPayload, LogId, NodeId, Peer, Reply, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership, TypeConfig, next_index,
};
use crate::recovery::begin_install;
use crate::snapshot;
use crate::state_machine::StateMachine;

/// The snapshots of one replica.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    pub(crate) disk: DiskHandle,
    pub(crate) cell: [u8; 16],
    /// The newest snapshot on disk.
    pub(crate) current: Arc<Mutex<Option<SnapshotMeta>>>,
    /// Index after the last one a durable snapshot covers; the log is purged up to there only.
    pub(crate) snapshot_end: Arc<watch::Sender<u64>>,
}

impl SnapshotStore {
    async fn save(&self, meta: SnapshotMeta, bytes: Arc<Vec<u8>>) -> io::Result<()> {
        let name = snapshot::file_name(&meta);
        let save = move |disk: &dyn Disk| snapshot::save(disk, &name, &bytes);
        self.disk.run(save).await??;
        let next = next_index(meta.last_log_id.as_ref());
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.as_ref().is_none_or(|now| now.last_log_id <= meta.last_log_id) {
                *current = Some(meta);
            }
        }
        self.snapshot_end.send_if_modified(|covered| {
            let rises = next > *covered;
            *covered = next.max(*covered);
            rises
        });
        Ok(())
    }

    fn current(&self) -> Option<SnapshotMeta> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub struct StateMachineAdapter {
    /// Never locked: the mutex only makes a state machine that need not be `Sync` shareable.
    pub(crate) machine: Mutex<Box<dyn StateMachine>>,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) members: StoredMembership,
    pub(crate) log: Log,
    pub(crate) snapshots: SnapshotStore,
    pub(crate) id: NodeId,
}

impl StateMachineAdapter {
    /// Openraft's test suite purges without ever taking a snapshot.
    #[doc(hidden)]
    pub fn allow_any_purge(&self) {
        self.snapshots.snapshot_end.send_replace(u64::MAX);
    }

    fn machine(&mut self) -> &mut dyn StateMachine {
        self.machine.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }

    fn apply_entry(&mut self, entry: Entry) -> Reply {
        failpoint("apply");
        let id = entry.log_id;
        self.last_applied = Some(id);
        match entry.payload {
            EntryPayload::Blank => Reply::default(),
            EntryPayload::Normal(payload) => {
                Reply(self.machine().apply(id.index, id.leader_id.term, &payload.0))
            }
            EntryPayload::Membership(members) => {
                self.members = StoredMembership::new(Some(id), members);
                Reply::default()
            }
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachineAdapter {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId>, openraft::StoredMembership<NodeId, Peer>), StorageError> {
        Ok((self.last_applied, self.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Reply>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        if let Some(last) = entries.last() {
            self.log.wait_to_apply(last.log_id.index).await?;
        }
        Ok(entries.into_iter().map(|entry| self.apply_entry(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let (index, term) = self.last_applied.map_or((0, 0), |id| (id.index, id.leader_id.term));
        let meta = SnapshotMeta {
            last_log_id: self.last_applied,
            last_membership: self.members.clone(),
            snapshot_id: format!("{term}-{index}-{}", self.id),
        };
        let encode = Mutex::new(Some(self.machine().snapshot()));
        SnapshotBuilder { meta, encode, snapshots: self.snapshots.clone() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let failed = |e: io::Error| StorageIOError::write_snapshot(Some(meta.signature()), &e);
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let bytes = snapshot.into_inner();
        let (inner, body) = snapshot::decode(self.snapshots.cell, &bytes).map_err(|damage| {
            failed(invalid(format!(
                "at byte {} of what was sent: {}",
                damage.offset, damage.reason
            )))
        })?;
        if inner.last_log_id != meta.last_log_id {
            return Err(failed(invalid("what was sent is another snapshot".to_owned())).into());
        }
        let index = meta.last_log_id.map_or(0, |id| id.index);
        // This comes first: from here on the state machine's own files, too, may be ahead of the
        // log.
        if let Some(id) = meta.last_log_id {
            let begin = move |disk: &dyn Disk| begin_install(disk, &id);
            self.snapshots.disk.run(begin).await.and_then(|done| done).map_err(failed)?;
        }
        self.machine().restore(index, body).map_err(|why| failed(invalid(why)))?;
        self.snapshots.save(inner, Arc::new(bytes)).await.map_err(failed)?;
        self.last_applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError> {
        let Some(meta) = self.snapshots.current() else { return Ok(None) };
        let path = format!("{}/{}", snapshot::DIR, snapshot::file_name(&meta));
        let cell = self.snapshots.cell;
        let read = move |disk: &dyn Disk| -> io::Result<Vec<u8>> {
            let bytes = disk.read(&path)?;
            // Damage should be found here: a follower would reject the snapshot only after the
            // transfer.
            snapshot::decode(cell, &bytes).map_err(|damage| {
                let text =
                    format!("{path} is damaged at byte {}: {}", damage.offset, damage.reason);
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            Ok(bytes)
        };
        let bytes = self.snapshots.disk.run(read).await.and_then(|bytes| bytes);
        let bytes = bytes.map_err(|e| StorageIOError::read_snapshot(Some(meta.signature()), &e))?;
        Ok(Some(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

type EncodeSnapshot = Box<dyn FnOnce() -> Vec<u8> + Send>;

pub struct SnapshotBuilder {
    meta: SnapshotMeta,
    encode: Mutex<Option<EncodeSnapshot>>,
    snapshots: SnapshotStore,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError> {
        let failed = |e: io::Error| StorageIOError::write_snapshot(None, &e);
        let encode = self.encode.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let encode = encode.ok_or_else(|| failed(io::Error::other("a snapshot is built once")))?;
        let (meta, cell) = (self.meta.clone(), self.snapshots.cell);
        let bytes =
            self.snapshots.disk.run(move |_| snapshot::encode(cell, &meta, &encode())).await;
        let bytes = bytes.map_err(failed)?.map_err(|e| failed(io::Error::other(e)))?;
        let bytes = Arc::new(bytes);
        self.snapshots.save(self.meta.clone(), Arc::clone(&bytes)).await.map_err(failed)?;
        let bytes = Arc::unwrap_or_clone(bytes);
        Ok(Snapshot { meta: self.meta.clone(), snapshot: Box::new(Cursor::new(bytes)) })
    }
}
