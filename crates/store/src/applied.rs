//! Openraft's state machine interface around a [`Machine`].
//!
//! The machine lives in memory; what makes it durable is the log behind it and, now and then, a
//! snapshot. Taking one costs the machine a cheap copy; encoding and writing happen off this task.

use std::io::{self, Cursor};
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_supervise::plant;
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use tokio::sync::watch;

use crate::disk::{Disk, DiskHandle};
use crate::log::Log;
use crate::machine::Machine;
use crate::raft::{
    Entry, EntryPayload, LogId, NodeId, Peer, Reply, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership, TypeConfig, next_index,
};
use crate::recover::begin_install;
use crate::snapshot;

/// The snapshots of one replica.
#[derive(Clone)]
pub(crate) struct Shelf {
    pub(crate) disk: DiskHandle,
    pub(crate) cell: [u8; 16],
    /// The newest snapshot on disk.
    pub(crate) current: Arc<Mutex<Option<SnapshotMeta>>>,
    /// Index after the last one a durable snapshot covers; the log is purged up to there only.
    pub(crate) covered: Arc<watch::Sender<u64>>,
}

impl Shelf {
    async fn save(&self, meta: SnapshotMeta, bytes: Arc<Vec<u8>>) -> io::Result<()> {
        let name = snapshot::name_of(&meta);
        let save = move |disk: &dyn Disk| snapshot::save(disk, &name, &bytes);
        self.disk.run(save).await??;
        let next = next_index(meta.last_log_id.as_ref());
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.as_ref().is_none_or(|now| now.last_log_id <= meta.last_log_id) {
                *current = Some(meta);
            }
        }
        self.covered.send_if_modified(|covered| {
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

pub struct Applied {
    /// Never locked: the mutex only makes a machine that need not be `Sync` shareable.
    pub(crate) machine: Mutex<Box<dyn Machine>>,
    pub(crate) last: Option<LogId>,
    pub(crate) members: StoredMembership,
    pub(crate) log: Log,
    pub(crate) shelf: Shelf,
    pub(crate) id: NodeId,
}

impl Applied {
    /// Openraft's test suite purges without ever taking a snapshot.
    #[doc(hidden)]
    pub fn assume_everything_covered(&self) {
        self.shelf.covered.send_replace(u64::MAX);
    }

    fn machine(&mut self) -> &mut dyn Machine {
        self.machine.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }

    fn apply_one(&mut self, entry: Entry) -> Reply {
        plant("apply");
        let id = entry.log_id;
        self.last = Some(id);
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

impl RaftStateMachine<TypeConfig> for Applied {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId>, openraft::StoredMembership<NodeId, Peer>), StorageError> {
        Ok((self.last, self.members.clone()))
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
        Ok(entries.into_iter().map(|entry| self.apply_one(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let (index, term) = self.last.map_or((0, 0), |id| (id.index, id.leader_id.term));
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.members.clone(),
            snapshot_id: format!("{term}-{index}-{}", self.id),
        };
        let encode = Mutex::new(Some(self.machine().snapshot()));
        Builder { meta, encode, shelf: self.shelf.clone() }
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
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let bytes = snapshot.into_inner();
        let (inner, body) = snapshot::decode(self.shelf.cell, &bytes).map_err(|flaw| {
            failed(invalid(format!("at byte {} of what was sent: {}", flaw.offset, flaw.what)))
        })?;
        if inner.last_log_id != meta.last_log_id {
            return Err(failed(invalid("what was sent is another snapshot".to_owned())).into());
        }
        let index = meta.last_log_id.map_or(0, |id| id.index);
        // First of all: from here on the machine's own files, too, may be ahead of the log.
        if let Some(id) = meta.last_log_id {
            let begin = move |disk: &dyn Disk| begin_install(disk, &id);
            self.shelf.disk.run(begin).await.and_then(|done| done).map_err(failed)?;
        }
        self.machine().restore(index, body).map_err(|why| failed(invalid(why)))?;
        self.shelf.save(inner, Arc::new(bytes)).await.map_err(failed)?;
        self.last = meta.last_log_id;
        self.members = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError> {
        let Some(meta) = self.shelf.current() else { return Ok(None) };
        let path = format!("{}/{}", snapshot::DIR, snapshot::name_of(&meta));
        let cell = self.shelf.cell;
        let read = move |disk: &dyn Disk| -> io::Result<Vec<u8>> {
            let bytes = disk.read(&path)?;
            // Damage is worth finding here: a follower would refuse it only after the transfer.
            snapshot::decode(cell, &bytes).map_err(|flaw| {
                let text = format!("{path} is damaged at byte {}: {}", flaw.offset, flaw.what);
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            Ok(bytes)
        };
        let bytes = self.shelf.disk.run(read).await.and_then(|bytes| bytes);
        let bytes = bytes.map_err(|e| StorageIOError::read_snapshot(Some(meta.signature()), &e))?;
        Ok(Some(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

type Encode = Box<dyn FnOnce() -> Vec<u8> + Send>;

pub struct Builder {
    meta: SnapshotMeta,
    encode: Mutex<Option<Encode>>,
    shelf: Shelf,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError> {
        let failed = |e: io::Error| StorageIOError::write_snapshot(None, &e);
        let encode = self.encode.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let encode = encode.ok_or_else(|| failed(io::Error::other("a snapshot is built once")))?;
        let (meta, cell) = (self.meta.clone(), self.shelf.cell);
        let bytes = self.shelf.disk.run(move |_| snapshot::encode(cell, &meta, &encode())).await;
        let bytes = bytes.map_err(failed)?.map_err(|e| failed(io::Error::other(e)))?;
        let bytes = Arc::new(bytes);
        self.shelf.save(self.meta.clone(), Arc::clone(&bytes)).await.map_err(failed)?;
        let bytes = Arc::unwrap_or_clone(bytes);
        Ok(Snapshot { meta: self.meta.clone(), snapshot: Box::new(Cursor::new(bytes)) })
    }
}
