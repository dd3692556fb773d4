//! Leadership transfer, when the leader's log disk runs low or before it stops, and the free space
//! of that disk.
//!
//! A leader without free space rejects every write, however healthy its followers are. So a leader
//! that comes near its reserve looks for a voter with enough space and transfers leadership to it.
//! A leader that is asked to stop does the same, or its followers would have to wait out its lease.
//! Openraft 0.9 has no transfer of leadership, and a candidate gets no votes while the others hear
//! a leader. So the leader stops accepting proposals, waits until the target has the whole log,
//! stops its heartbeats until the leases it gave have run out, and then asks the target to start an
//! election at once. Whatever the outcome, heartbeats resume after a time limit.
//!
//! Rejected: stepping down and leaving the rest to the timers. The replica that is elected first
//! may have as little space, and the cell is without a leader for twice as long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::Raft;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::config::StoreConfig;
use crate::disk::DiskHandle;
use crate::raft::{NodeId, Peer, TypeConfig};
use crate::replica::Replica;
use crate::status::{Member, Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// Time between two checks of the disk.
const DISK_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Checks of the disk between two polls of the peers; their disk space is for people to see.
const PEER_POLL_TICKS: u32 = 4;
/// Pause after a failed attempt.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Free space on a replica's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    pub free: u64,
    /// What is kept for votes, snapshots and removals; below it writes are rejected.
    pub reserve: u64,
}

impl DiskSpace {
    /// Whether writes are rejected.
    #[must_use]
    pub fn is_below_reserve(&self) -> bool {
        self.free < self.reserve
    }

    /// Whether an operator should look after this disk before writes are rejected.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.free < self.reserve.saturating_mul(2)
    }

    /// A leader transfers leadership before it has to reject anything.
    fn is_low_for_leader(&self) -> bool {
        self.free < self.reserve.saturating_add(self.reserve / 4)
    }

    /// Enough space to lead for a while: a replica that has just given up leadership does not get
    /// it back.
    fn is_ample(&self) -> bool {
        self.free >= self.reserve.saturating_add(self.reserve / 2)
    }
}

/// The state of a leadership transfer.
#[derive(Clone, Default)]
pub(crate) struct TransferState(Arc<AtomicU8>);

impl TransferState {
    /// No need, or not tried yet.
    const IDLE: u8 = 0;
    /// Under way: proposals are not accepted.
    const TRANSFERRING: u8 = 1;
    /// No peer has more space.
    const NO_TARGET: u8 = 2;

    /// Starts a transfer; `false` if one is already under way.
    fn try_begin(&self) -> bool {
        self.0.swap(TransferState::TRANSFERRING, Ordering::SeqCst) != TransferState::TRANSFERRING
    }

    fn set(&self, stage: u8) {
        self.0.store(stage, Ordering::SeqCst);
    }

    pub(crate) fn is_transferring(&self) -> bool {
        self.0.load(Ordering::SeqCst) == TransferState::TRANSFERRING
    }

    /// Whether the last attempt found no peer with more space.
    pub(crate) fn has_no_target(&self) -> bool {
        self.0.load(Ordering::SeqCst) == TransferState::NO_TARGET
    }
}

/// Checks the disk regularly and transfers leadership when it runs low.
pub(crate) struct TransferManager {
    pub(crate) raft: Raft<TypeConfig>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: StoreConfig,
    pub(crate) disk: DiskHandle,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) transfer: TransferState,
    /// Another part found the disk low before the next check.
    pub(crate) recheck_disk: Arc<Notify>,
    pub(crate) disk_space: Arc<Mutex<DiskSpace>>,
    pub(crate) disk_spaces: Arc<Mutex<BTreeMap<NodeId, DiskSpace>>>,
}

/// Why leadership was not transferred.
#[derive(Debug, thiserror::Error)]
enum TransferFailure {
    #[error("no other voter has room")]
    NoTarget,
    #[error("replica {0} did not catch up")]
    TargetBehind(NodeId),
    #[error("replica {0} does not answer")]
    TargetUnreachable(NodeId),
    #[error("replica {0} was not elected")]
    TargetNotElected(NodeId),
    #[error("it is being handed over already")]
    AlreadyTransferring,
}

impl Replica {
    /// Transfers leadership, if this replica leads and another voter can take over, so that a
    /// replica that is about to stop leaves a cell with a leader. Takes about a leader's lease and
    /// a heartbeat.
    pub async fn transfer_leadership(&self) {
        self.transfer_manager().transfer_before_stop().await;
    }

    pub(crate) fn transfer_manager(&self) -> TransferManager {
        TransferManager {
            raft: self.raft.clone(),
            transport: Arc::clone(&self.transport),
            settings: self.settings.clone(),
            disk: self.disk.clone(),
            status: self.status.clone(),
            transfer: self.transfer.clone(),
            recheck_disk: Arc::clone(&self.recheck_disk),
            disk_space: Arc::clone(&self.disk_space),
            disk_spaces: Arc::clone(&self.disk_spaces),
        }
    }
}

impl TransferManager {
    /// Runs until the replica stops.
    pub(crate) async fn run(self) {
        let mut not_before = Instant::now();
        for tick in 0_u32.. {
            tokio::select! {
                () = tokio::time::sleep(DISK_CHECK_INTERVAL) => {}
                () = self.recheck_disk.notified() => {}
                () = self.disk.wait_closed() => return,
            }
            let free = match self.disk.get().and_then(|disk| disk.free_bytes()) {
                Ok(free) => free,
                Err(_) if self.disk.is_closed() => return,
                // If the disk did not answer now, the next check asks again.
                Err(error) => {
                    tracing::warn!(%error, "the disk does not say how much is free");
                    continue;
                }
            };
            let disk_space = DiskSpace { free, reserve: self.settings.reserve_bytes };
            *self.disk_space.lock().unwrap_or_else(PoisonError::into_inner) = disk_space;
            // Another task is transferring leadership and reports when that is done.
            if self.transfer.is_transferring() {
                continue;
            }
            let leads = self.status.borrow().role == Role::Leader;
            if !leads {
                self.record_peer_disks(&[]);
            } else if tick.is_multiple_of(PEER_POLL_TICKS) {
                drop(self.poll_peer_disks().await);
            }
            if !leads || !disk_space.is_low_for_leader() {
                self.transfer.set(TransferState::IDLE);
                continue;
            }
            if Instant::now() < not_before {
                continue;
            }
            match self.transfer(DiskSpace::is_ample).await {
                Ok(to) => tracing::warn!(free, to, "handed the lead over: the disk is short"),
                Err(why) => {
                    if !self.transfer.has_no_target() {
                        tracing::warn!(free, %why, "leads on with a disk that is short");
                    }
                    self.transfer.set(TransferState::NO_TARGET);
                    not_before = Instant::now() + RETRY_AFTER;
                }
            }
        }
    }

    /// For a leader that is about to stop; it may stop whatever the outcome.
    pub(crate) async fn transfer_before_stop(&self) {
        let is_alone = {
            let status = self.status.borrow();
            let voters = status.members.values().filter(|member| member.voter).count();
            status.role != Role::Leader || voters < 2
        };
        if is_alone {
            return;
        }
        match self.transfer(|disk_space| !disk_space.is_below_reserve()).await {
            Ok(to) => tracing::info!(to, "handed the lead over before stopping"),
            Err(why) => tracing::warn!(%why, "stops as the leader"),
        }
    }

    async fn transfer(
        &self,
        is_acceptable: impl Fn(&DiskSpace) -> bool,
    ) -> Result<NodeId, TransferFailure> {
        let (to, peer) =
            self.choose_target(is_acceptable).await.ok_or(TransferFailure::NoTarget)?;
        if !self.transfer.try_begin() {
            return Err(TransferFailure::AlreadyTransferring);
        }
        let done = self.transfer_to(to, peer).await;
        self.raft.runtime_config().heartbeat(true);
        self.transfer.set(TransferState::IDLE);
        done.map(|()| to)
    }

    /// Of the voters with enough space, the one whose log is furthest.
    async fn choose_target(
        &self,
        is_acceptable: impl Fn(&DiskSpace) -> bool,
    ) -> Option<(NodeId, Peer)> {
        let others = self.poll_peer_disks().await;
        let candidates = others.into_iter().filter(|(_, _, disk_space)| is_acceptable(disk_space));
        let best = candidates
            .max_by_key(|(id, member, disk_space)| (member.matched, disk_space.free, *id));
        best.map(|(id, member, _)| (id, member.peer))
    }

    /// Asks the other voters for their disk space.
    async fn poll_peer_disks(&self) -> Vec<(NodeId, Member, DiskSpace)> {
        let mut answers = JoinSet::new();
        let Status { id: own, members, .. } = self.status.borrow().clone();
        for (id, member) in members {
            if !member.voter || id == own {
                continue;
            }
            let call = self.transport.call(id, member.peer.clone(), RaftCall::DiskSpace);
            let call_timeout = self.settings.election_min;
            answers.spawn(async move { (id, member, timeout(call_timeout, call).await) });
        }
        let mut found = Vec::new();
        while let Some(answer) = answers.join_next().await {
            if let Ok((id, member, Ok(Ok(RaftAnswer::DiskSpace(disk_space))))) = answer {
                found.push((id, member, disk_space));
            }
        }
        self.record_peer_disks(&found);
        found
    }

    fn record_peer_disks(&self, found: &[(NodeId, Member, DiskSpace)]) {
        let disk_spaces = found.iter().map(|(id, _, disk_space)| (*id, *disk_space)).collect();
        *self.disk_spaces.lock().unwrap_or_else(PoisonError::into_inner) = disk_spaces;
    }

    async fn transfer_to(&self, to: NodeId, peer: Peer) -> Result<(), TransferFailure> {
        let lease = self.settings.election_max;
        let mut status = self.status.clone();
        let has_whole_log = |status: &Status| {
            let matched = status.members.get(&to).and_then(|member| member.matched);
            status.role != Role::Leader || matched >= status.last_log
        };
        match timeout(lease, status.wait_for(has_whole_log)).await {
            Ok(Ok(_)) => {}
            _ => return Err(TransferFailure::TargetBehind(to)),
        }
        self.raft.runtime_config().heartbeat(false);
        // One heartbeat may still be in flight.
        tokio::time::sleep(lease + self.settings.heartbeat).await;
        let call = self.transport.call(to, peer, RaftCall::TimeoutNow);
        match timeout(self.settings.election_min, call).await {
            Ok(Ok(RaftAnswer::TimeoutNow)) => {}
            _ => return Err(TransferFailure::TargetUnreachable(to)),
        }
        let has_stepped_down = status.wait_for(|status| status.role != Role::Leader);
        match timeout(lease, has_stepped_down).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(TransferFailure::TargetNotElected(to)),
        }
    }
}
