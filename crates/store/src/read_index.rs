//! A replica's proof that it is current: a read index.
//!
//! A replica may deny what it does not know only if it knows all that was acknowledged before it
//! was asked. A leader shows that by a read barrier. A follower asks its leader for the index of
//! one and waits until it has applied as much. A replica that was removed gets no answer, and one
//! that was cut off or that joins does not get so far in time: neither is current, and neither has
//! to have noticed before.
//!
//! Those that wait together share one round, and rounds are a little apart: questions that anybody
//! can cause cost the leader the same however many there are.
//!
//! Rejected: what a follower last heard from its leader. A heartbeat says that the sender leads,
//! and not that it leads the receiver for another second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::StoreConfig;
use crate::error::ProposeError;
use crate::leadership_transfer::TransferState;
use crate::replica::{ReadIndexSender, Replica};
use crate::status::{Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// From the beginning of one round to that of the next, at least.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(20);
/// Questions answered by one round.
const MAX_BATCH: usize = 4096;

impl Replica {
    /// Waits until everything acknowledged anywhere before this call is applied here, whether this
    /// replica leads or follows, and returns the index up to which that is.
    ///
    /// # Errors
    /// When nobody confirms it in time: this replica may be behind.
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
            stage: self.transfer.clone(),
            status: self.status.clone(),
            barriers: self.barriers.clone(),
        }
    }
}

/// Confirms that a replica is current.
pub(crate) struct ReadIndex {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: StoreConfig,
    pub(crate) stage: TransferState,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) barriers: mpsc::UnboundedSender<ReadIndexSender>,
}

impl ReadIndex {
    /// Ends with the replica.
    pub(crate) async fn run(self, mut waiting: mpsc::UnboundedReceiver<ReadIndexSender>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
            let started = Instant::now();
            let result = self.round().await;
            for waiter in batch.drain(..) {
                // Whoever gave up waiting does not need the answer.
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
        // Its round of messages would renew the leases that are to run out.
        if self.stage.is_transferring() {
            return Err(ProposeError::NotLeader { leader: None });
        }
        let (answer, answered) = oneshot::channel();
        let stopped = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.barriers.send(answer).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}
