//! Raft's read index: how a replica proves that it is current.
//!
//! A replica may report something as absent only if it knows everything that was acknowledged
//! before the request. A leader proves that by a read barrier. A follower asks its leader for the
//! index of one and waits until it has applied as much. A replica that was removed gets no answer,
//! and one that is partitioned or still joining does not get so far in time: neither is current,
//! and neither has to have noticed that before.
//!
//! Requests that wait together share one round, and rounds have a minimum interval: requests that
//! any client can cause cost the leader the same however many there are.
//!
//! Rejected: what a follower last heard from its leader. A heartbeat says that the sender leads,
//! and not that it will lead the receiver for another second.

use std::sync::Arc;
use std::time::Duration;

use openraft::Raft;
use openraft::error::{CheckIsLeaderError, ForwardToLeader, RaftError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::StoreConfig;
use crate::error::ProposeError;
use crate::leadership_transfer::TransferState;
use crate::raft::{NodeId, Peer, TypeConfig};
use crate::replica::{ReadIndexSender, Replica, stopped_error};
use crate::status::{Fence, Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// Minimum time from the start of one round to the start of the next.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(20);
/// Requests or barriers answered by one round.
const MAX_BATCH: usize = 4096;

impl Replica {
    /// Waits until everything acknowledged anywhere before this call is applied here, whether this
    /// replica leads or follows, and returns the index up to which that is so.
    ///
    /// # Errors
    /// When it is not confirmed in time: this replica may be behind.
    pub async fn confirm_current(&self) -> Result<u64, ProposeError> {
        let (answer, answered) = oneshot::channel();
        let stopped = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.read_index_requests.send(answer).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    pub(crate) fn read_index(&self) -> ReadIndex {
        ReadIndex {
            transport: Arc::clone(&self.transport),
            settings: self.settings.clone(),
            transfer: self.transfer.clone(),
            status: self.status.clone(),
            barriers: self.barriers.clone(),
        }
    }
}

/// Confirms that a replica is current.
pub(crate) struct ReadIndex {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: StoreConfig,
    pub(crate) transfer: TransferState,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) barriers: mpsc::UnboundedSender<ReadIndexSender>,
}

impl ReadIndex {
    /// Runs until the replica stops.
    pub(crate) async fn run(self, mut waiting: mpsc::UnboundedReceiver<ReadIndexSender>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
            let started = Instant::now();
            let result = self.round().await;
            for waiter in batch.drain(..) {
                // A caller that gave up waiting does not need the answer.
                let _gave_up = waiter.send(result.clone());
            }
            sleep_until(started + MIN_ROUND_INTERVAL).await;
        }
    }

    async fn round(&self) -> Result<u64, ProposeError> {
        let status = self.status.borrow().clone();
        if status.role == Role::Leader {
            return self.barrier().await;
        }
        let unconfirmed = || ProposeError::NotLeader { leader: None };
        let (leader, peer) = status.leader_peer().ok_or_else(unconfirmed)?;
        let request = self.transport.call(leader, peer, RaftCall::ReadIndex);
        let call_timeout = self.settings.election_min;
        let Ok(Ok(RaftAnswer::ReadIndex { index })) = timeout(call_timeout, request).await else {
            return Err(unconfirmed());
        };
        let mut status = self.status.clone();
        let applied = status.wait_for(|status| status.applied >= Some(index));
        match timeout(call_timeout, applied).await {
            Ok(Ok(_)) => Ok(index),
            _ => Err(unconfirmed()),
        }
    }

    async fn barrier(&self) -> Result<u64, ProposeError> {
        // Its round of messages would renew the leases that should run out.
        if self.transfer.is_transferring() {
            return Err(ProposeError::NotLeader { leader: None });
        }
        let (answer, answered) = oneshot::channel();
        let stopped = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.barriers.send(answer).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

/// Answers read barriers: all that are waiting with one round.
pub(crate) async fn serve_barriers(
    raft: Raft<TypeConfig>,
    fence: Fence,
    settings: StoreConfig,
    mut waiting: mpsc::UnboundedReceiver<ReadIndexSender>,
) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let result = tokio::select! {
            biased;
            ready = raft.ensure_linearizable() => match ready {
                Ok(id) => Ok(id.map_or(0, |id| id.index)),
                Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                    Err(not_leader(forward))
                }
                Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                    Err(ProposeError::Fenced { silent: fence.since_contact().unwrap_or_default() })
                }
                Err(RaftError::Fatal(fatal)) => Err(stopped_error(&fatal)),
            },
            silent = fence.wait_tripped(settings.fence_after) => {
                Err(ProposeError::Fenced { silent })
            }
        };
        for barrier in batch.drain(..) {
            // A caller that gave up waiting does not need the answer.
            let _gave_up = barrier.send(result.clone());
        }
    }
}

fn not_leader(forward: ForwardToLeader<NodeId, Peer>) -> ProposeError {
    ProposeError::NotLeader { leader: forward.leader_id.zip(forward.leader_node) }
}
