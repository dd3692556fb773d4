//! Raft messages between replicas, and the transport trait that carries them.
//!
//! A call is a value with a binary form; how it gets to the other replica is the master's business
//! (HTTP) or the simulator's (a virtual network). Openraft wraps each call in a timeout of its own,
//! so a transport needs none to be correct.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{
    Fatal, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::config::StoreConfig;
use crate::election::PreVote;
use crate::leadership_transfer::DiskSpace;
use crate::log::Log;
use crate::raft::{LeaderId, LogId, NodeId, Peer, TypeConfig, Vote};
use crate::rpc_validation::{self, InvalidMessage};

/// Who sent a call, as the transport has verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SenderIdentity {
    pub id: NodeId,
    /// The name it has authenticated with; `None` where senders do not authenticate.
    pub name: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RaftCall {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<NodeId>),
    Snapshot(InstallSnapshotRequest<TypeConfig>),
    PreVote(PreVote),
    /// Asks: is this replica, of this name if it has one, a voter as far as you know?
    VerifyVoter {
        id: NodeId,
        name: Option<String>,
    },
    /// Asks for the free space on the disk.
    DiskSpace,
    /// From the leader: start an election now.
    TimeoutNow,
    /// To the leader: up to which index was the log acknowledged when this request arrived?
    ReadIndex,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum RaftAnswer {
    Append(AppendEntriesResponse<NodeId>),
    Vote(VoteResponse<NodeId>),
    Snapshot(InstallSnapshotResponse<NodeId>),
    /// The chunk does not continue what was received; the sender starts over.
    SnapshotMismatch(InstallSnapshotError),
    /// The replica is up but cannot do it now: its disk is full, or it is stopping.
    Rejected {
        why: String,
    },
    PreVote {
        granted: bool,
    },
    VerifyVoter {
        is_voter: bool,
    },
    DiskSpace(DiskSpace),
    TimeoutNow,
    ReadIndex {
        index: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing listens at that address: openraft waits a little before it tries again.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// Anything else, such as a broken connection; tried again at once.
    #[error("{0}")]
    Failed(String),
}

pub type CallAnswer = Result<RaftAnswer, CallError>;
pub type CallFuture = Pin<Box<dyn Future<Output = CallAnswer> + Send>>;

pub trait Transport: Send + Sync + 'static {
    fn call(&self, to: NodeId, peer: Peer, call: RaftCall) -> CallFuture;
}

impl RaftCall {
    /// A heartbeat of a replica that claims to lead, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn heartbeat(term: u64, id: NodeId) -> RaftCall {
        RaftCall::Append(AppendEntriesRequest {
            vote: Vote::new_committed(term, id),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        })
    }

    /// A vote request of a candidate whose log is ahead of every other, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn vote_request(term: u64, id: NodeId) -> RaftCall {
        let last = LogId::new(LeaderId::new(term, id), rpc_validation::MAX_TERM_OR_INDEX - 1);
        RaftCall::Vote(VoteRequest::new(Vote::new(term, id), Some(last)))
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>, CallError> {
        encode(self)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<RaftCall, CallError> {
        decode(bytes)
    }
}

impl RaftAnswer {
    pub fn to_bytes(&self) -> Result<Vec<u8>, CallError> {
        encode(self)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<RaftAnswer, CallError> {
        decode(bytes)
    }
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, CallError> {
    postcard::to_stdvec(value).map_err(|e| CallError::Failed(format!("cannot be encoded: {e}")))
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, CallError> {
    postcard::from_bytes(bytes)
        .map_err(|e| CallError::Failed(format!("{} bytes cannot be decoded: {e}", bytes.len())))
}

/// Passes openraft's calls to a transport.
pub(crate) struct Network {
    pub(crate) transport: Arc<dyn Transport>,
    /// Knows this replica's term and how much of the log is durable.
    pub(crate) log: Log,
    pub(crate) timeouts: PeerTimeouts,
}

/// The timeouts of a leader towards a follower.
#[derive(Clone, Copy)]
pub(crate) struct PeerTimeouts {
    /// Time between two attempts to reach a peer that cannot be reached.
    retry: Duration,
    /// A flush that takes this long is a disk that hangs.
    stalled: Duration,
    /// How long a message that carries nothing but a commit waits for it to be durable here. The
    /// next message would contain it as well, but that may be a heartbeat away.
    commit: Duration,
}

impl PeerTimeouts {
    pub(crate) fn of(settings: &StoreConfig) -> PeerTimeouts {
        PeerTimeouts {
            retry: settings.heartbeat * 2,
            stalled: settings.election_min,
            commit: settings.heartbeat / 3,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: NodeId, peer: &Peer) -> PeerClient {
        let (transport, peer) = (Arc::clone(&self.transport), peer.clone());
        PeerClient { transport, target, peer, log: self.log.clone(), timeouts: self.timeouts }
    }
}

/// The connection to one replica.
pub(crate) struct PeerClient {
    transport: Arc<dyn Transport>,
    target: NodeId,
    peer: Peer,
    log: Log,
    timeouts: PeerTimeouts,
}

type PeerRpcError<E> = RPCError<NodeId, Peer, E>;

impl PeerClient {
    async fn send<E: std::error::Error>(
        &self,
        call: RaftCall,
    ) -> Result<RaftAnswer, PeerRpcError<E>> {
        match self.transport.call(self.target, self.peer.clone(), call).await {
            Ok(RaftAnswer::Rejected { why }) => {
                // Reported as unreachable: the replica is no use for a moment, and repeated calls
                // would not help.
                Err(RPCError::Unreachable(Unreachable::new(&io::Error::other(why))))
            }
            Ok(answer) => match rpc_validation::check_answer(&answer, self.log.term()) {
                Ok(()) => Ok(answer),
                Err(absurd) => Err(self.invalid_answer(&absurd)),
            },
            Err(CallError::Unreachable(why)) => {
                Err(RPCError::Unreachable(Unreachable::new(&io::Error::other(why))))
            }
            Err(CallError::Failed(why)) => {
                Err(RPCError::Network(NetworkError::new(&io::Error::other(why))))
            }
        }
    }

    /// The commit that a message with this many entries may announce to a follower. Openraft counts
    /// this replica's copy as soon as it is written; it really counts when it is flushed.
    async fn announceable_commit(&self, commit: Option<LogId>, entries: usize) -> Option<LogId> {
        self.log.wait_while_stalled(self.timeouts.stalled).await;
        if let Some(index) = commit.map(|id| id.index).filter(|_| entries == 0) {
            // If the wait ends late or fails, the follower learns of less.
            let _late = timeout(self.timeouts.commit, self.log.wait_durable(index)).await;
        }
        self.log.durable_prefix(commit)
    }

    fn invalid_answer<E: std::error::Error>(&self, why: &InvalidMessage) -> PeerRpcError<E> {
        tracing::error!(from = self.target, %why, "an answer of another replica is not believed");
        let text = format!("replica {}: {why}", self.target);
        RPCError::Unreachable(Unreachable::new(&io::Error::other(text)))
    }

    fn unexpected_answer<E: std::error::Error>(&self, answer: &RaftAnswer) -> PeerRpcError<E> {
        let text = format!("replica {} gave an answer of another kind: {answer:?}", self.target);
        RPCError::Network(NetworkError::new(&io::Error::other(text)))
    }
}

impl RaftNetwork<TypeConfig> for PeerClient {
    async fn append_entries(
        &mut self,
        mut rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, PeerRpcError<RaftError<NodeId>>> {
        rpc.leader_commit = self.announceable_commit(rpc.leader_commit, rpc.entries.len()).await;
        let (previous, sent) = (rpc.prev_log_id, rpc.entries.len() as u64);
        let answer = self.send(RaftCall::Append(rpc)).await?;
        rpc_validation::check_matched(&answer, previous, sent)
            .map_err(|absurd| self.invalid_answer(&absurd))?;
        match answer {
            RaftAnswer::Append(answer) => Ok(answer),
            other => Err(self.unexpected_answer(&other)),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<NodeId>,
        PeerRpcError<RaftError<NodeId, InstallSnapshotError>>,
    > {
        match self.send(RaftCall::Snapshot(rpc)).await? {
            RaftAnswer::Snapshot(answer) => Ok(answer),
            RaftAnswer::SnapshotMismatch(mismatch) => {
                let source = RaftError::APIError(mismatch);
                Err(RPCError::RemoteError(RemoteError::new(self.target, source)))
            }
            other => Err(self.unexpected_answer(&other)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        _option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, PeerRpcError<RaftError<NodeId>>> {
        match self.send(RaftCall::Vote(rpc)).await? {
            RaftAnswer::Vote(answer) => Ok(answer),
            other => Err(self.unexpected_answer(&other)),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.timeouts.retry))
    }
}

pub(crate) fn stopped_answer(fatal: &Fatal<NodeId>) -> RaftAnswer {
    RaftAnswer::Rejected { why: format!("the replica has stopped: {fatal}") }
}
