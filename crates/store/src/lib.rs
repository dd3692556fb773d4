//! The replicated raft log and its snapshots on disk. It stores bytes and knows nothing of jobs.
//!
//! A [`Replica`] keeps one copy of a sequence of payloads that a quorum agreed on, applies them in
//! order to a [`StateMachine`], and survives crashes. What the payloads mean is the state machine's
//! business, so this crate depends on no other of ours and can be tested with a counter as the
//! state machine.
//!
//! Three traits stand between it and the outside, so that the simulator can run the product's own
//! code: [`Disk`] (every file operation), [`Transport`] (every message to a peer) and
//! `StateMachine`. Consensus itself is openraft's. The log storage under it is ours, because only
//! then do we control the number of disk flushes, the treatment of torn writes and the virtual
//! disk.

mod config;
mod disk;
mod election;
mod error;
pub mod frame;
mod leadership_transfer;
mod log;
mod membership;
mod offline;
mod raft;
mod read_index;
mod real_disk;
mod record;
mod recovery;
mod replica;
mod rpc_handler;
mod rpc_validation;
mod runtime;
mod snapshot;
mod state_machine;
mod state_machine_adapter;
mod status;
mod transport;
mod writer;

pub use config::{FatalHook, StoreBugs, StoreConfig, exit_process};
pub use disk::{Disk, DiskFuture, wipe};
pub use election::PreVote;
pub use error::{
    BootstrapError, MemberError, OpenError, ProposeError, ReadEntriesError, SnapshotError,
};
pub use leadership_transfer::DiskSpace;
pub use offline::{EntryContent, OfflineEntry, OfflineLog, OfflineSnapshot};
pub use raft::{NodeId, Payload, Peer, Reply, TypeConfig};
pub use real_disk::RealDisk;
pub use recovery::TornTail;
pub use replica::{AppliedProposal, EntryBatch, LoggedEntry, Purpose, RecoveryReport, Replica};
pub use runtime::{SeededRuntime, seed_rng};
pub use state_machine::StateMachine;
pub use status::{Member, Role, Status};
pub use transport::{
    CallAnswer, CallError, CallFuture, RaftAnswer, RaftCall, SenderIdentity, Transport,
};

/// What openraft's own storage test suite needs access to; nothing else should use it.
#[doc(hidden)]
pub mod testing {
    pub use crate::log::Log;
    pub use crate::replica::open_storage;
    pub use crate::state_machine_adapter::StateMachineAdapter;
}
