//! One raft replica: the log, the state machine and openraft put together.
//!
//! Everything a caller may want is a method here; openraft's types stay inside, apart from the
//! messages between replicas. A write or a linearizable read on a leader that lost contact with its
//! quorum ends with an error after a time limit, because openraft 0.9 would let it wait for ever.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use openraft::Raft;
use openraft::error::{ClientWriteError, Fatal, InitializeError, RaftError};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::config::{FatalHook, StoreConfig};
use crate::disk::{Disk, DiskHandle};
use crate::election::{Campaign, ElectionHoldoff};
use crate::error::{BootstrapError, OpenError, ProposeError, ReadEntriesError, SnapshotError};
use crate::leadership_transfer::{DiskSpace, TransferState};
use crate::log::Log;
use crate::raft::{NodeId, Payload, Peer, TypeConfig, next_index};
use crate::read_index::serve_barriers;
use crate::record::{Owner, segment_path};
use crate::recovery::{Recovered, Segment, TornTail, check_not_truncated, recover};
use crate::rpc_handler::{LastRejection, VerifiedSenders};
use crate::rpc_validation::SnapshotProgress;
use crate::runtime::supervised;
use crate::snapshot::{self, LoadedSnapshot};
use crate::state_machine::StateMachine;
use crate::state_machine_adapter::{SnapshotStore, StateMachineAdapter};
use crate::status::{ExitHandler, Fence, Member, Role, Status, follow_metrics, members_of};
use crate::transport::{Network, PeerTimeouts, Transport};
use crate::writer::{WriteOp, Writer, segment_start};

/// The result of a proposal that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedProposal {
    pub index: u64,
    pub term: u64,
    pub reply: Vec<u8>,
}

/// What a proposal is for. One that frees space in the end may use some of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Write,
    Removal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry {
    pub index: u64,
    pub term: u64,
    pub payload: Bytes,
}

/// A range of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBatch {
    pub entries: Vec<LoggedEntry>,
    /// Where to continue; entries that are not payloads make this more than the last index plus
    /// one.
    pub next: u64,
}

/// What opening had to repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    pub torn_tail: Option<TornTail>,
    /// Newer snapshots that were damaged and replaced by an older one and the log.
    pub skipped_snapshots: Vec<String>,
}

pub(crate) type ReadIndexSender = oneshot::Sender<Result<u64, ProposeError>>;

pub struct Replica {
    pub(crate) raft: Raft<TypeConfig>,
    pub(crate) settings: StoreConfig,
    pub(crate) fence: Fence,
    pub(crate) membership_lock: tokio::sync::Mutex<()>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) holdoff: ElectionHoldoff,
    pub(crate) transfer: TransferState,
    pub(crate) snapshot_progress: SnapshotProgress,
    pub(crate) verified_senders: VerifiedSenders,
    pub(crate) last_rejection: LastRejection,
    /// The leader asks this replica to start an election now (raft's TimeoutNow).
    pub(crate) timeout_now: Arc<Notify>,
    pub(crate) log: Log,
    pub(crate) disk: DiskHandle,
    /// The disk was found low on space.
    pub(crate) recheck_disk: Arc<Notify>,
    pub(crate) disk_space: Arc<Mutex<DiskSpace>>,
    /// The disk space of the other voters, as a leader knows it.
    pub(crate) disk_spaces: Arc<Mutex<BTreeMap<NodeId, DiskSpace>>>,
    ops: mpsc::UnboundedSender<WriteOp>,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) barriers: mpsc::UnboundedSender<ReadIndexSender>,
    /// Callers that want to know whether this replica is current.
    pub(crate) read_index_requests: mpsc::UnboundedSender<ReadIndexSender>,
    recovery: RecoveryReport,
    id: NodeId,
}

/// The storage half of a replica, without consensus.
#[doc(hidden)]
pub struct Storage {
    pub log: Log,
    pub applied: StateMachineAdapter,
    pub recovery: RecoveryReport,
    /// The members, as far as the disk knows them.
    members: BTreeMap<NodeId, Member>,
    disk: DiskHandle,
    ops: mpsc::UnboundedSender<WriteOp>,
}

/// Opens what is on the disk, or initialises it, and starts the writer.
#[doc(hidden)]
pub async fn open_storage(
    id: NodeId,
    settings: &StoreConfig,
    disk: Arc<dyn Disk>,
    machine: Box<dyn StateMachine>,
) -> Result<Storage, OpenError> {
    settings.check()?;
    let disk = DiskHandle::new(disk);
    let owner = Owner { cell: settings.cell, replica: id };
    let durable_applied = machine.durable_applied();
    let read = disk.run(move |disk| read_disk(disk, owner, durable_applied)).await;
    let (mut recovered, loaded, recovery) = read.map_err(|e| disk_error("", e))??;
    if !settings.bugs.resumes_term {
        recovered.give_up_leadership(id);
    }
    let mut machine = machine;
    if let Some(LoadedSnapshot { name, meta, body }) = &loaded {
        let index = meta.last_log_id.map_or(0, |id| id.index);
        machine
            .restore(index, body)
            .map_err(|why| OpenError::Machine { file: format!("{}/{name}", snapshot::DIR), why })?;
    }
    let meta = loaded.map(|loaded| loaded.meta);
    let last = meta.as_ref().and_then(|meta| meta.last_log_id);
    let (ops, queue) = mpsc::unbounded_channel();
    let (durable, flushed) = watch::channel(0);
    let (covered, covers) = watch::channel(next_index(last.as_ref()));
    let log = Log::new(id, &mut recovered, ops.clone(), flushed, disk.clone(), settings);
    let writer = Writer {
        shared: Arc::clone(&log.shared),
        disk: disk.clone(),
        owner,
        segments: recovered.segments,
        purged: recovered.hard_state.purged,
        batch: recovered.batch,
        next_index: recovered.next_index,
        durable,
        covered: covers,
        segment_bytes: settings.segment_bytes,
        cache_bytes: settings.cache_bytes,
        on_fatal: Arc::clone(&settings.on_fatal),
    };
    settings.supervisor.spawn_finite("the writer of the log", writer.run(queue));
    let members = meta.as_ref().map(|meta| meta.last_membership.clone()).unwrap_or_default();
    let saved = members.log_id().map(|id| id.index);
    let newest = recovered.members.last().filter(|(index, _)| Some(*index) > saved);
    let known = members_of(newest.map_or_else(|| members.membership(), |(_, members)| members));
    let (current, covered) = (Arc::new(Mutex::new(meta)), Arc::new(covered));
    let snapshots =
        SnapshotStore { disk: disk.clone(), cell: settings.cell, current, snapshot_end: covered };
    let machine = Mutex::new(machine);
    let applied = StateMachineAdapter {
        machine,
        last_applied: last,
        members,
        log: log.clone(),
        snapshots,
        id,
    };
    Ok(Storage { log, applied, recovery, members: known, disk, ops })
}

type RecoveredDisk = (Recovered, Option<LoadedSnapshot>, RecoveryReport);

fn read_disk(
    disk: &dyn Disk,
    owner: Owner,
    durable_applied: Option<u64>,
) -> Result<RecoveredDisk, OpenError> {
    let mut log = recover(disk, owner)?;
    let log_from = next_index(log.hard_state.purged.as_ref());
    let (loaded, skipped_snapshots) = snapshot::load(disk, owner.cell, log_from)?;
    if log.segments.is_empty() {
        if let Some(loaded) = &loaded {
            let file = format!("{}/{}", snapshot::DIR, loaded.name);
            let reason = "there is a snapshot but no log; the log was lost or removed".to_owned();
            return Err(OpenError::Damaged { file, offset: 0, what: reason });
        }
        log.batch += 1;
        let path = segment_path(1);
        let bytes = segment_start(owner, 1, 0, &log.hard_state, log.batch)
            .map_err(|e| OpenError::Raft { what: e.to_string() })?;
        disk.write_atomic(&path, &bytes).map_err(|e| disk_error(&path, e))?;
        log.segments.push(Segment { sequence: 1, len: bytes.len() as u64, next_index: 0 });
    }
    let newest = loaded
        .as_ref()
        .and_then(|loaded| Some((loaded.name.as_str(), loaded.meta.last_log_id.as_ref()?)));
    check_not_truncated(disk, &log, newest, durable_applied)?;
    for line in &skipped_snapshots {
        tracing::warn!(line, "an older snapshot and the log make up for a damaged one");
        // Moved aside, so that it is not found again and does not count when pruning.
        if let Some(path) = line.split(' ').next() {
            disk.remove(path).map_err(|e| disk_error(path, e))?;
        }
    }
    if let Some(torn) = &log.torn_tail {
        tracing::warn!(?torn, "cut off a torn write at the end of the log");
    }
    let recovery = RecoveryReport { torn_tail: log.torn_tail.clone(), skipped_snapshots };
    Ok((log, loaded, recovery))
}

fn disk_error(path: &str, source: io::Error) -> OpenError {
    OpenError::Disk { path: path.to_owned(), source }
}

/// However many parts notice the end, the hook is called once.
fn call_once(hook: FatalHook) -> FatalHook {
    let called = AtomicBool::new(false);
    Arc::new(move |why| {
        if !called.swap(true, Ordering::Relaxed) {
            hook(why);
        }
    })
}

impl Replica {
    pub async fn open(
        id: NodeId,
        mut settings: StoreConfig,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        machine: impl StateMachine,
    ) -> Result<Replica, OpenError> {
        let config = Arc::new(settings.raft_config()?);
        settings.on_fatal = call_once(settings.on_fatal);
        let storage = open_storage(id, &settings, disk, Box::new(machine)).await?;
        let Storage { log, applied, recovery, members, disk, ops } = storage;
        let network = Network {
            transport: Arc::clone(&transport),
            log: log.clone(),
            timeouts: PeerTimeouts::of(&settings),
        };
        let supervisor = settings.supervisor.clone();
        let starting = Raft::new(id, config, network, log.clone(), applied);
        let raft = supervised(supervisor.clone(), starting).await;
        let raft = raft.map_err(|e| OpenError::Raft { what: e.to_string() })?;
        let fence = Fence::default();
        let (sender, status) = watch::channel(Status { id, members, ..Status::default() });
        let hook = Arc::clone(&settings.on_fatal);
        let (holdoff, metrics) = (ElectionHoldoff::default(), raft.metrics());
        let exit_handler =
            ExitHandler { disk: disk.clone(), on_fatal: hook, supervisor: supervisor.clone() };
        let metrics_follower =
            follow_metrics(metrics, sender, fence.clone(), exit_handler, holdoff.leader_lost());
        supervisor.spawn_finite("the status of the replica", metrics_follower);
        let (barriers, waiting) = mpsc::unbounded_channel();
        let barrier_server = serve_barriers(raft.clone(), fence.clone(), settings.clone(), waiting);
        supervisor.spawn_finite("fresh reads", barrier_server);
        let (confirmations, requests) = mpsc::unbounded_channel();
        let replica = Replica {
            raft,
            settings,
            fence,
            membership_lock: tokio::sync::Mutex::new(()),
            transport,
            holdoff,
            transfer: TransferState::default(),
            snapshot_progress: SnapshotProgress::default(),
            verified_senders: VerifiedSenders::default(),
            last_rejection: LastRejection::default(),
            timeout_now: Arc::default(),
            log,
            disk,
            recheck_disk: Arc::default(),
            disk_space: Arc::default(),
            disk_spaces: Arc::default(),
            ops,
            status,
            barriers,
            read_index_requests: confirmations,
            recovery,
            id,
        };
        replica.check_disk();
        supervisor.spawn_finite("the steward of room", replica.transfer_manager().run());
        supervisor.spawn_finite("the campaign for votes", replica.campaign().run());
        supervisor.spawn_finite("read indexes", replica.read_index().run(requests));
        Ok(replica)
    }

    fn campaign(&self) -> Campaign {
        let disk_space = Arc::clone(&self.disk_space);
        Campaign {
            id: self.id,
            raft: self.raft.clone(),
            transport: Arc::clone(&self.transport),
            log: self.log.clone(),
            settings: self.settings.clone(),
            holdoff: self.holdoff.clone(),
            status: self.status.clone(),
            timeout_now: Arc::clone(&self.timeout_now),
            is_disk_low: Arc::new(move || {
                disk_space.lock().unwrap_or_else(PoisonError::into_inner).is_below_reserve()
            }),
        }
    }

    pub(crate) fn check_disk(&self) {
        if let Ok(free) = self.disk.get().and_then(|disk| disk.free_bytes()) {
            let disk_space = DiskSpace { free, reserve: self.settings.reserve_bytes };
            *self.disk_space.lock().unwrap_or_else(PoisonError::into_inner) = disk_space;
        }
    }

    /// Free space on the disk, as it was a moment ago.
    pub fn disk_space(&self) -> DiskSpace {
        *self.disk_space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free space on the disks of all voters that answer, for a leader; of this replica alone
    /// otherwise.
    pub fn disk_spaces(&self) -> BTreeMap<NodeId, DiskSpace> {
        let mut disk_spaces =
            self.disk_spaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        disk_spaces.insert(self.id, self.disk_space());
        disk_spaces
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// Sets the first members of a new cell. Several replicas may call it with the same members.
    pub async fn bootstrap(&self, peers: BTreeMap<NodeId, Peer>) -> Result<(), BootstrapError> {
        match self.raft.initialize(peers).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {
                Err(BootstrapError::AlreadyInitialised)
            }
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => {
                Err(BootstrapError::NotAMember { id: self.id })
            }
            Err(RaftError::Fatal(fatal)) => Err(BootstrapError::Fatal { why: fatal.to_string() }),
        }
    }

    /// Proposes a payload and waits until it has been applied here.
    pub async fn propose(
        &self,
        payload: impl Into<Bytes>,
    ) -> Result<AppliedProposal, ProposeError> {
        self.propose_for(Purpose::Write, payload).await
    }

    /// The same, for proposals that may use some of the reserve when the disk is nearly full.
    pub async fn propose_for(
        &self,
        purpose: Purpose,
        payload: impl Into<Bytes>,
    ) -> Result<AppliedProposal, ProposeError> {
        let payload = payload.into();
        let (bytes, allowed) = (payload.len(), self.settings.max_payload_bytes);
        if bytes > allowed {
            return Err(ProposeError::TooLarge { bytes, allowed });
        }
        self.check_disk_space(bytes as u64, purpose)?;
        self.check_fence()?;
        // Openraft returns the same error to callers of a follower and to callers whose entry a new
        // leader overwrote. Only for the first is it certain that nothing happened.
        self.check_leading()?;
        tokio::select! {
            biased;
            written = self.raft.client_write(Payload(payload)) => match written {
                Ok(done) => Ok(AppliedProposal {
                    index: done.log_id.index,
                    term: done.log_id.leader_id.term,
                    reply: done.data.0,
                }),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                    let leader = forward.leader_id.zip(forward.leader_node);
                    Err(ProposeError::Deposed { leader })
                }
                Err(RaftError::APIError(other)) => {
                    Err(ProposeError::Fatal { why: other.to_string() })
                }
                Err(RaftError::Fatal(fatal)) => Err(stopped_error(&fatal)),
            },
            silence = self.fence.wait_tripped(self.settings.fence_after) => {
                Err(ProposeError::OutcomeUnknown { silent: silence })
            }
        }
    }

    fn check_disk_space(&self, bytes: u64, purpose: Purpose) -> Result<(), ProposeError> {
        let free = self.disk.get().and_then(|disk| disk.free_bytes());
        let free = free.map_err(|e| ProposeError::Fatal { why: e.to_string() })?;
        let kept = match purpose {
            Purpose::Write => self.settings.reserve_bytes,
            Purpose::Removal => self.settings.floor_bytes(),
        };
        let needed = kept.saturating_add(bytes);
        if free >= needed {
            return Ok(());
        }
        Err(self.no_space_error(free, needed))
    }

    /// Another replica may have space: until that is known, the error is the same as during an
    /// election.
    fn no_space_error(&self, free: u64, needed: u64) -> ProposeError {
        let status = self.status.borrow();
        let others = status.members.values().filter(|member| member.voter).count() > 1;
        if status.role == Role::Leader && others && !self.transfer.has_no_target() {
            self.recheck_disk.notify_one();
            return ProposeError::NotLeader { leader: None };
        }
        ProposeError::DiskFull { free, needed }
    }

    /// The error for a proposal that is no removal, if the disk was found low on space.
    pub fn write_rejection(&self) -> Option<ProposeError> {
        // Space that was freed a moment ago counts at once.
        if self.disk_space().is_below_reserve() {
            self.check_disk();
        }
        let DiskSpace { free, reserve } = self.disk_space();
        (free < reserve).then(|| self.no_space_error(free, reserve))
    }

    fn check_fence(&self) -> Result<(), ProposeError> {
        let leads = self.status.borrow().role == Role::Leader;
        match self.fence.since_contact() {
            Some(silence) if leads && silence >= self.settings.fence_after => {
                Err(ProposeError::Fenced { silent: silence })
            }
            _ => Ok(()),
        }
    }

    fn check_leading(&self) -> Result<(), ProposeError> {
        let status = self.status.borrow();
        match status.role {
            Role::Leader if self.transfer.is_transferring() => {
                Err(ProposeError::NotLeader { leader: None })
            }
            Role::Leader => Ok(()),
            _ => Err(ProposeError::NotLeader { leader: status.leader_peer() }),
        }
    }

    /// Waits until everything acknowledged anywhere before this call is applied here, and returns
    /// the index up to which that is so. Only a leader can confirm it; calls that wait together
    /// share one round of messages.
    pub async fn read_barrier(&self) -> Result<u64, ProposeError> {
        self.check_fence()?;
        // Its round of messages would renew the leases that should run out.
        if self.transfer.is_transferring() {
            return Err(ProposeError::NotLeader { leader: None });
        }
        let (answer, answered) = oneshot::channel();
        let stopped = || ProposeError::Fatal { why: "it was shut down".to_owned() };
        self.barriers.send(answer).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// For how long this replica, which leads or once led, has heard from no quorum. It keeps
    /// growing when consensus itself stalls, as it does on a disk that hangs.
    #[must_use]
    pub fn since_quorum_contact(&self) -> Option<std::time::Duration> {
        self.fence.since_contact()
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Takes a snapshot of everything applied by now; returns its index.
    pub async fn snapshot_now(&self) -> Result<u64, SnapshotError> {
        let mut status = self.status.clone();
        let applied = status.borrow_and_update().applied.ok_or(SnapshotError::Empty)?;
        loop {
            let before = status.borrow_and_update().snapshot;
            if let Some(index) = before.filter(|index| *index >= applied) {
                return Ok(index);
            }
            let triggered = self.raft.trigger().snapshot().await;
            triggered.map_err(|e| SnapshotError::Fatal { why: e.to_string() })?;
            // A snapshot that was already being built may come first; then request another.
            let changed =
                status.wait_for(|now| now.snapshot != before || now.role == Role::Stopped);
            let stopped = changed.await.map_or(true, |now| now.role == Role::Stopped);
            if stopped {
                return Err(SnapshotError::Fatal { why: "it was shut down".to_owned() });
            }
        }
    }

    /// Applied payloads from `from` on, at least one if there is any, for schedulers' copies and
    /// checkpoints.
    pub async fn read_entries(
        &self,
        from: u64,
        max_bytes: usize,
    ) -> Result<EntryBatch, ReadEntriesError> {
        let end = next_applied(&self.status.borrow());
        let first = self.log.first();
        if from < first {
            return Err(ReadEntriesError::Purged { requested: from, first });
        }
        let read = self.log.read_payloads(from, end, max_bytes).await;
        // The entries may have been purged during the read.
        let first = self.log.first();
        if from < first {
            return Err(ReadEntriesError::Purged { requested: from, first });
        }
        let (found, next) = read.map_err(|e| ReadEntriesError::Fatal { why: e.to_string() })?;
        let entries = found.into_iter().map(|(id, payload)| LoggedEntry {
            index: id.index,
            term: id.leader_id.term,
            payload,
        });
        Ok(EntryBatch { entries: entries.collect(), next })
    }

    /// Stops in order: consensus, then the writer with all that was queued, then the disk.
    pub async fn shutdown(&self) {
        self.settings.supervisor.mark_stopping();
        // The core's own end, good or bad, has been reported through the status already.
        let _ended = self.raft.shutdown().await;
        let (done, stopped) = oneshot::channel();
        if self.ops.send(WriteOp::Stop { done }).is_ok() {
            // An error means that the writer had stopped by itself.
            let _stopped = stopped.await;
        }
        self.disk.close();
    }

    /// Simulates a power cut: nothing more reaches the disk.
    pub async fn kill(&self) {
        self.settings.supervisor.mark_stopping();
        self.disk.close();
        let _ended = self.raft.shutdown().await;
    }
}

fn next_applied(status: &Status) -> u64 {
    status.applied.map_or(0, |applied| applied + 1)
}

pub(crate) fn stopped_error(fatal: &Fatal<NodeId>) -> ProposeError {
    ProposeError::Fatal { why: fatal.to_string() }
}
