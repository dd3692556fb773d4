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

use crate::error::ProposeError;
use crate::handover::Stage;
use crate::replica::{Barrier, Replica};
use crate::settings::Settings;
use crate::status::{Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// From the beginning of one round to that of the next, at least.
const APART: Duration = Duration::from_millis(20);
/// Questions answered by one round.
const AT_ONCE: usize = 4096;

impl Replica {
    /// Waits until everything acknowledged anywhere before this call is applied here, whether this
    /// replica leads or follows, and returns the index up to which that is.
    ///
    /// # Errors
    /// When nobody confirms it in time: this replica may be behind.
    pub async fn confirm_current(&self) -> Result<u64, ProposeError> {
        let (answer, answered) = oneshot::channel();
        let over = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.confirmations.send(answer).map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }

    pub(crate) fn read_index(&self) -> ReadIndex {
        ReadIndex {
            transport: Arc::clone(&self.transport),
            settings: self.settings.clone(),
            stage: self.stage.clone(),
            status: self.status.clone(),
            barriers: self.barriers.clone(),
        }
    }
}

/// Confirms that a replica is current.
pub(crate) struct ReadIndex {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: Settings,
    pub(crate) stage: Stage,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) barriers: mpsc::UnboundedSender<Barrier>,
}

impl ReadIndex {
    /// Ends with the replica.
    pub(crate) async fn run(self, mut waiting: mpsc::UnboundedReceiver<Barrier>) {
        let mut together = Vec::new();
        while waiting.recv_many(&mut together, AT_ONCE).await > 0 {
            let began = Instant::now();
            let result = self.round().await;
            for asked in together.drain(..) {
                // Whoever gave up waiting does not need the answer.
                let _gave_up = asked.send(result.clone());
            }
            sleep_until(began + APART).await;
        }
    }

    async fn round(&self) -> Result<u64, ProposeError> {
        let status = self.status.borrow().clone();
        if status.role == Role::Leader {
            return self.barrier().await;
        }
        let unconfirmed = || ProposeError::NotLeader { leader: None };
        let (leader, peer) = status.leader_peer().ok_or_else(unconfirmed)?;
        let asking = self.transport.call(leader, peer, RaftCall::ReadIndex);
        let patience = self.settings.election_min;
        let Ok(Ok(RaftAnswer::ReadIndex { index })) = timeout(patience, asking).await else {
            return Err(unconfirmed());
        };
        let mut status = self.status.clone();
        let applied = status.wait_for(|status| status.applied >= Some(index));
        match timeout(patience, applied).await {
            Ok(Ok(_)) => Ok(index),
            _ => Err(unconfirmed()),
        }
    }

    async fn barrier(&self) -> Result<u64, ProposeError> {
        // Its round of messages would renew the leases that are to run out.
        if self.stage.is_handing() {
            return Err(ProposeError::NotLeader { leader: None });
        }
        let (answer, answered) = oneshot::channel();
        let over = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.barriers.send(answer).map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }
}
