//! The types openraft is parametrised with, in one place.
//!
//! Payload and reply are newtypes over bytes: openraft wants serde on both, and its debug output
//! would otherwise print every byte of every entry.

use std::fmt;
use std::io::Cursor;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub type NodeId = u64;

/// The address of a replica; travels with the membership through the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    pub name: String,
    pub address: String,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply(pub Vec<u8>);

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} bytes)", self.0.len())
    }
}

openraft::declare_raft_types!(
    pub TypeConfig:
        D = Payload,
        R = Reply,
        NodeId = NodeId,
        Node = Peer,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = crate::runtime::SeededRuntime,
);

pub(crate) type Entry = openraft::Entry<TypeConfig>;
pub(crate) type EntryPayload = openraft::EntryPayload<TypeConfig>;
pub(crate) type LeaderId = openraft::CommittedLeaderId<NodeId>;
pub(crate) type LogId = openraft::LogId<NodeId>;
pub(crate) type Membership = openraft::Membership<NodeId, Peer>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<NodeId, Peer>;
pub(crate) type StorageError = openraft::StorageError<NodeId>;
pub(crate) type StorageIOError = openraft::StorageIOError<NodeId>;
pub(crate) type StoredMembership = openraft::StoredMembership<NodeId, Peer>;
pub(crate) type Vote = openraft::Vote<NodeId>;

/// The index after `id`; the first index of an empty log is 0.
pub(crate) fn next_index(id: Option<&LogId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}
