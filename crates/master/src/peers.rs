//! RPCs to other replicas. Over HTTP in the product, over a simulated network in the simulator; the
//! rest of the master does not know which.

use crate::rejected_polls::RejectedPoll;
use crate::replica_alarms::ReplicaAlarms;
use crate::replicated_state::ReplicatedState;
use crate::usage::MachineUsage;
use cellwright_api::wire_messages;
use cellwright_history::{UsageBatch, UsageCursor, UsageRow};
use cellwright_messages::LinkShardReport;
use cellwright_store::{CallError, CallFuture, NodeId, Peer, RaftAnswer, RaftCall, Transport};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

wire_messages!(PeerCall, PeerAnswer);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerCall {
    Raft {
        /// The epoch of the caller's log; see [`epoch_rejection`].
        log_epoch: u64,
        /// The caller, whose name is authenticated and who states its number.
        from: NodeId,
        call: RaftCall,
    },
    Forward(LinkShardReport),
    /// Asks: what do the tasks of the machines that you poll use?
    Usage,
    /// Asks: what did they use, after this cursor in your tables and up to now?
    PastUsage(UsageCursor),
    /// Asks: which records does your event or audit log have between these log indexes, exclusive?
    Records {
        log: RecordLog,
        after: u64,
        until: u64,
    },
    /// Asks: whose polls do you reject?
    RejectedPolls,
    /// Asks: what should a person look at, as far as you know?
    Alarms,
}

/// One of the logs that every replica writes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordLog {
    Events,
    Audit,
}

/// What a replica has of a range of its event or audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordRange {
    /// Log index, time in milliseconds, content.
    pub records: Vec<(u64, u64, Vec<u8>)>,
    /// Everything up to this log index is present or in these records; nothing where that is not
    /// known.
    pub upto: Option<u64>,
}

/// What a replica knows of usage from agents that it polls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PastUsage {
    /// Rows from its tables.
    pub written: UsageBatch,
    /// Rows not written yet.
    pub unwritten: Vec<UsageRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    Raft(RaftAnswer),
    /// The caller's log is not the one this replica keeps.
    WrongLog(String),
    /// `false`: not the leader of that term; the shard looks for the leader again.
    Forwarded(bool),
    Usage(Vec<MachineUsage>),
    PastUsage(PastUsage),
    Records(RecordRange),
    RejectedPolls(Vec<RejectedPoll>),
    Alarms(ReplicaAlarms),
}

pub trait Peers: Send + Sync + 'static {
    fn call(
        &self,
        to: NodeId,
        peer: Peer,
        call: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>>;

    /// Replicas whose last answer was that this one was removed from the cell.
    fn removed_by(&self) -> BTreeSet<NodeId> {
        BTreeSet::new()
    }
}

/// Why a replica whose log has epoch `own_epoch` takes no part in a log of epoch `peer_epoch`.
///
/// A cell restored from a checkpoint has the names, ids and certificates of the one before. If a
/// replica of that one still ran, or came back, each would take the other's terms and entries for
/// its own, and the restored state would be overwritten by the log it was to replace. The log epoch
/// distinguishes them. A replica that holds nothing yet (`index` 0) accepts what it is given.
#[must_use]
pub fn epoch_rejection(own_epoch: u64, index: u64, peer_epoch: u64) -> Option<String> {
    let holds_nothing = own_epoch == 0 && index == 0;
    if own_epoch == peer_epoch || holds_nothing {
        return None;
    }
    Some(if own_epoch > peer_epoch {
        "this cell was restored from a checkpoint, and the caller belongs to the one \
                 before; end it, empty its data_dir and let it join again"
            .into()
    } else {
        "this replica belongs to a cell that was restored from a checkpoint since; end \
                  it, empty its data_dir and let it join again"
            .into()
    })
}

/// Carries raft's calls among the other RPCs.
pub struct RaftTransport {
    pub id: NodeId,
    pub peers: Arc<dyn Peers>,
    pub replicated: Arc<ReplicatedState>,
}

impl Transport for RaftTransport {
    fn call(&self, to: NodeId, peer: Peer, call: RaftCall) -> CallFuture {
        let log_epoch = self.replicated.with(|view| view.log_epoch);
        let address = peer.address.clone();
        let answer = self.peers.call(to, peer, PeerCall::Raft { log_epoch, from: self.id, call });
        Box::pin(async move {
            match answer.await? {
                PeerAnswer::Raft(answer) => Ok(answer),
                PeerAnswer::WrongLog(why) => {
                    Err(CallError::Unreachable(format!("{address}: refused: {why}")))
                }
                PeerAnswer::Forwarded(_)
                | PeerAnswer::Usage(_)
                | PeerAnswer::PastUsage(_)
                | PeerAnswer::RejectedPolls(_)
                | PeerAnswer::Alarms(_)
                | PeerAnswer::Records(_) => {
                    Err(CallError::Failed("the peer answered another question".into()))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::epoch_rejection;

    #[test]
    fn logs_of_two_eras_are_kept_apart_and_an_empty_replica_takes_either() {
        for (own_epoch, index, peer_epoch, refused) in [
            (0, 0, 0, false),
            (0, 0, 7, false),
            (0, 9, 0, false),
            (7, 2, 7, false),
            (7, 0, 0, true),
            (7, 2, 0, true),
            (7, 2, 6, true),
            (0, 9, 7, true),
            (6, 9, 7, true),
        ] {
            let why = epoch_rejection(own_epoch, index, peer_epoch);
            assert_eq!(why.is_some(), refused, "{own_epoch} {index} {peer_epoch}: {why:?}");
        }
        assert!(epoch_rejection(7, 2, 0).unwrap().contains("the caller belongs to the one before"));
        assert!(epoch_rejection(0, 9, 7).unwrap().contains("this replica belongs to a cell"));
    }
}
