//! Errors of the store, for the caller to act on. Each variant is a different next step: ask
//! another replica, try again later, find out whether it happened, replace the replica.

use std::io;
use std::time::Duration;

use crate::raft::{NodeId, Peer};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("setting {field} is {value}, allowed: {allowed}")]
    InvalidConfig { field: &'static str, value: String, allowed: String },
    #[error("{path}: {source}")]
    Disk { path: String, source: io::Error },
    #[error(
        "{file} is damaged at byte {offset}: {what}. This copy cannot be trusted. If other \
         replicas are alive, `cell master repair` rebuilds it from them. A cell of one replica is \
         restored from a checkpoint"
    )]
    Damaged { file: String, offset: u64, what: String },
    #[error("{file} belongs to {found}, this replica is {expected}; check the data directory")]
    WrongOwner { file: String, found: String, expected: String },
    #[error("{file} has format version {found}, this build reads up to {known}; run a newer one")]
    TooNew { file: String, found: u32, known: u32 },
    #[error("the machine refuses snapshot {file}: {why}")]
    Machine { file: String, why: String },
    #[error("consensus did not start: {what}")]
    Raft { what: String },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("this replica does not lead{}", named(.leader))]
    NotLeader { leader: Option<(NodeId, Peer)> },
    /// Not proposed: nothing happened.
    #[error(
        "no quorum has answered for {silent:?}; writes and fresh reads are refused until one \
             does"
    )]
    Fenced { silent: Duration },
    /// Proposed, and then contact was lost: it may or may not happen.
    #[error(
        "no quorum has answered for {silent:?} since this was proposed; it may yet take \
             effect. Ask again with the same request id"
    )]
    OutcomeUnknown { silent: Duration },
    /// Proposed, and then another replica became leader: an entry that is missing from its log may
    /// still be in that of a third.
    #[error(
        "this replica lost the lead after this was proposed{}; it may yet take effect. Ask again \
             with the same request id",
        named(.leader)
    )]
    Deposed { leader: Option<(NodeId, Peer)> },
    #[error(
        "the log's disk has {free} bytes free and needs {needed}; free some space, writes \
             resume by themselves"
    )]
    DiskFull { free: u64, needed: u64 },
    #[error("the payload has {bytes} bytes, allowed: up to {allowed}")]
    TooLarge { bytes: usize, allowed: usize },
    #[error("this replica has stopped: {why}")]
    Fatal { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("this replica is part of a cell already; to change its members, add or remove them")]
    AlreadyInitialised,
    #[error("the first members do not include this replica, {id}")]
    NotAMember { id: NodeId },
    #[error("this replica has stopped: {why}")]
    Fatal { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("this replica does not lead{}", named(.leader))]
    NotLeader { leader: Option<(NodeId, Peer)> },
    #[error("another change of members is under way; try again when it has finished")]
    Busy,
    #[error("replica {id} is not a member; add it as a learner first")]
    Unknown { id: NodeId },
    #[error("replica {id} is a member already, at {address}")]
    Exists { id: NodeId, address: String },
    #[error("replica {id} is {behind} entries behind after {waited:?}, allowed: {allowed}")]
    NotCaughtUp { id: NodeId, behind: u64, allowed: u64, waited: Duration },
    #[error("replica {id} is the last voter and cannot be removed")]
    LastVoter { id: NodeId },
    #[error(
        "without replica {id}, {answering} of {voters} voters would answer, and that is no \
             majority; start or remove those that are silent first"
    )]
    NoMajorityLeft { id: NodeId, answering: usize, voters: usize },
    #[error("no quorum has answered for {silent:?}; the change may yet take effect")]
    OutcomeUnknown { silent: Duration },
    #[error("this replica lost the lead{}; the change may yet take effect", named(.leader))]
    Deposed { leader: Option<(NodeId, Peer)> },
    #[error("this replica has stopped: {why}")]
    Fatal { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("nothing has been applied yet, so there is nothing to save")]
    Empty,
    #[error("this replica has stopped: {why}")]
    Fatal { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum ReadEntriesError {
    #[error(
        "entry {requested} is no longer in the log, the first one kept is {first}; start from a \
             snapshot"
    )]
    Purged { requested: u64, first: u64 },
    #[error("the log could not be read: {why}")]
    Fatal { why: String },
}

fn named(leader: &Option<(NodeId, Peer)>) -> String {
    match leader {
        Some((id, peer)) => format!("; replica {id} ({} at {}) does", peer.name, peer.address),
        None => "; an election is under way".to_owned(),
    }
}
