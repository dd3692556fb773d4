//! The replicated log and its snapshots on disk: bytes, no jobs.
//!
//! A [`Replica`] keeps one copy of a sequence of payloads that a quorum agreed on, feeds them in
//! order to a [`Machine`], and survives crashes. What the payloads mean is the machine's business,
//! so this crate depends on no other of ours and can be tested with a counter as a machine.
//!
//! Three traits stand between it and the world, so that the simulator can run the product's own
//! code: [`Disk`] (every file operation), [`Transport`] (every message to a peer) and `Machine`.
//! Consensus itself is openraft's; the log under it is ours, because only then is the number of
//! disk flushes, the treatment of torn writes and the virtual disk in our hands.

mod answering;
mod applied;
mod disk;
mod election;
mod error;
pub mod frame;
mod guard;
mod handover;
mod log;
mod machine;
mod members;
mod offline;
mod raft;
mod read_index;
mod real_disk;
mod record;
mod recover;
mod replica;
mod runtime;
mod settings;
mod snapshot;
mod status;
mod transport;
mod writer;

pub use disk::{Disk, DiskFuture, wipe};
pub use election::PreVote;
pub use error::{
    BootstrapError, MemberError, OpenError, ProposeError, ReadEntriesError, SnapshotError,
};
pub use handover::Room;
pub use machine::Machine;
pub use offline::{Content, OfflineEntry, OfflineLog, OfflineSnapshot};
pub use raft::{NodeId, Payload, Peer, Reply, TypeConfig};
pub use real_disk::RealDisk;
pub use recover::TornTail;
pub use replica::{Entries, LoggedEntry, Proposed, Purpose, Recovery, Replica};
pub use runtime::{SeededRuntime, seed_randomness};
pub use settings::{FatalHook, Settings, StoreBugs, exit_process};
pub use status::{Member, Role, Status};
pub use transport::{CallAnswer, CallError, CallFuture, RaftAnswer, RaftCall, Sender, Transport};

/// The parts openraft's own storage test suite wants to get hold of; nothing else should.
#[doc(hidden)]
pub mod testing {
    pub use crate::applied::Applied;
    pub use crate::log::Log;
    pub use crate::replica::open_storage;
}
