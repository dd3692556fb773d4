//! The handle of a running master, the interface for the rest of the program: HTTP handlers, the
//! supervisor of the scheduler, tests and the simulator all use it.

use crate::level::SchedulerLevels;
use crate::links::{ClusterView, LinkError, LinkShard, UsageLedger};
use crate::main_loop::{Message, lost_error, unavailable_error};
use crate::peers::{PastUsage, PeerAnswer, PeerCall, Peers, epoch_rejection};
use crate::rejected_polls::{RejectedPoll, RejectedPolls};
use crate::replica_alarms::{self, DamageSource, ReplicaAlarms};
use crate::replicated_state::{LogTail, ReplicatedState, View};
use crate::usage::UsageSnapshot;
use cellwright_api::masters::MasterList;
use cellwright_cell::command::{Command, Request, RequestId, Verdict};
use cellwright_cell::encode::{NotYetWritable, check_writable};
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use cellwright_control::input::{Alarm, ArchiveProgress, Committed, Origin};
use cellwright_control::lease::SchedulerShardName;
use cellwright_control::log_time::ClockSkews;
use cellwright_history::UsageCursor;
use cellwright_messages::{
    AgentOrders, AgentReport, LeaseAnswer, LeaseRequest, LinkShardReport, LogAnswer, LogRecord,
    PassStatistics, Proposal, ProposalAnswer, Unavailable,
};
use cellwright_store::{NodeId, ProposeError, Replica, SenderIdentity, Status};
use cellwright_supervise::{Supervisor, failpoint, lock};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Bytes of log handed to a follower in one answer.
const MAX_LOG_ANSWER_BYTES: usize = 4 << 20;

/// A leader that has heard from a quorum within this time cannot have been replaced long ago.
const MAX_QUORUM_AGE: Duration = Duration::from_millis(1000);

/// Interval between two attempts to confirm that this replica is up to date.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(100);

/// The caller, as the listener has authenticated it; it is the actor if the request is a change.
pub use cellwright_cell::command::Actor as Caller;

/// Which queue of the log admission the caller belongs to.
fn origin(caller: &Caller) -> Origin {
    match caller {
        Caller::User(name) => Origin::User(name.to_string()),
        Caller::Operator | Caller::Task { .. } => Origin::User(caller.to_string()),
        Caller::Scheduler(name) => Origin::Scheduler(name.to_string()),
        Caller::Agent(machine) => Origin::Agent(machine.to_string()),
        Caller::Controller(_) | Caller::Replica(_) => Origin::System,
    }
}

fn replica_caller(status: &Status) -> Result<Caller, Unavailable> {
    let member = status.members.get(&status.id).ok_or_else(|| Unavailable::Unknown {
        why: format!("replica {} is not a member of the cell", status.id),
    })?;
    let name = Name::new(&member.peer.name);
    name.map(Caller::Replica).map_err(|bad| Unavailable::Unknown { why: bad.to_string() })
}

/// A verdict and its log index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedVerdict {
    pub index: u64,
    pub term: u64,
    pub verdict: Verdict,
}

#[derive(Clone)]
pub struct MasterHandle(pub(crate) Arc<MasterParts>);

pub(crate) struct MasterParts {
    pub replica: Arc<Replica>,
    pub replicated: Arc<ReplicatedState>,
    pub links: Arc<LinkShard>,
    pub peers: Arc<dyn Peers>,
    pub sender: mpsc::UnboundedSender<Message>,
    pub alarms: watch::Receiver<Vec<Alarm>>,
    pub passes: watch::Receiver<BTreeMap<String, PassStatistics>>,
    pub skews: watch::Receiver<ClockSkews>,
    pub controllers: watch::Receiver<BTreeMap<&'static str, u64>>,
    /// Where other replicas get the usage history from.
    pub usage_history: OnceLock<UsageHistorySource>,
    /// Supervises the tasks that this replica cannot live without.
    pub supervisor: Supervisor,
    pub rejected_polls: RejectedPolls,
    /// What is damaged on the disk of this replica, besides its log.
    pub damage: OnceLock<DamageSource>,
    /// The time since which no leader is known.
    pub leaderless_since: Mutex<Option<Instant>>,
    /// Whether it has applied everything there was since it has had a leader.
    pub has_caught_up: AtomicBool,
    /// What the schedulers know that asked this replica for leases.
    pub scheduler_levels: Mutex<SchedulerLevels>,
}

/// Returns the usage after a cursor, as far as agents reported it to this replica.
pub type UsageHistorySource =
    Box<dyn Fn(UsageCursor) -> BoxFuture<'static, PastUsage> + Send + Sync>;

impl MasterHandle {
    /// Supervises the tasks that this replica cannot live without.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.0.supervisor
    }

    /// Sets the source of the usage history for other replicas. Only the first call counts.
    pub fn set_usage_history_source(&self, source: UsageHistorySource) {
        drop(self.0.usage_history.set(source));
    }

    /// Sets who knows of damage besides that of the log. Only the first call counts.
    pub fn set_damage_source(&self, source: DamageSource) {
        drop(self.0.damage.set(source));
    }

    /// Sets where reported usage is kept. Only the first call counts.
    pub fn set_usage_ledger(&self, ledger: Arc<dyn UsageLedger>) {
        self.0.links.set_usage_ledger(ledger);
    }

    /// # Errors
    /// When there is no verdict.
    pub async fn submit(
        &self,
        caller: &Caller,
        id: Option<RequestId>,
        command: Command,
    ) -> Result<CommittedVerdict, Unavailable> {
        let done = self.submit_many(caller, vec![(id, command)]).await?;
        let verdict = done.verdicts.into_iter().next();
        let missing = || Unavailable::Unknown { why: "the entry carried no verdict".into() };
        Ok(CommittedVerdict {
            index: done.index,
            term: done.term,
            verdict: verdict.ok_or_else(missing)?,
        })
    }

    /// Submits all in one entry, each with its own verdict.
    ///
    /// # Errors
    /// When there are no verdicts.
    pub async fn submit_many(
        &self,
        caller: &Caller,
        requests: Vec<(Option<RequestId>, Command)>,
    ) -> Result<Committed, Unavailable> {
        let requests = requests
            .into_iter()
            .map(|(id, command)| Request { by: caller.clone(), id, command })
            .collect();
        self.propose(origin(caller), requests).await
    }

    async fn propose(
        &self,
        origin: Origin,
        requests: Vec<Request>,
    ) -> Result<Committed, Unavailable> {
        let bytes = postcard::experimental::serialized_size(&requests).unwrap_or(usize::MAX);
        let not_yet = |why: NotYetWritable| Unavailable::NotYet { why: why.to_string() };
        check_writable(&requests, self.0.replicated.level()).map_err(not_yet)?;
        let (answer, answered) = oneshot::channel();
        let message = Message::Requests { origin, bytes, requests, answer };
        self.0.sender.send(message).map_err(|_| Unavailable::ShuttingDown)?;
        answered.await.unwrap_or_else(|_| Err(lost_error()))
    }

    /// Commands of a scheduler or another trusted part.
    ///
    /// # Errors
    /// When there are no verdicts.
    pub async fn propose_as(
        &self,
        caller: &Caller,
        proposal: Proposal,
    ) -> Result<ProposalAnswer, Unavailable> {
        let done = self.propose(origin(caller), proposal.requests).await?;
        Ok(ProposalAnswer { index: done.index, verdicts: done.verdicts })
    }

    /// The identity of this replica as a caller, for commands of its own: its name as a member of
    /// the cell.
    ///
    /// # Errors
    /// When it is no member, and acts for nobody.
    pub fn own_caller(&self) -> Result<Caller, Unavailable> {
        replica_caller(&self.status())
    }

    /// The cell as this replica knows it: a cheap read that may be stale.
    #[must_use]
    pub fn read(&self) -> View {
        self.0.replicated.view()
    }

    /// The current log time, as far as this replica knows.
    #[must_use]
    pub fn log_time(&self) -> Time {
        self.0.replicated.log_time()
    }

    /// Linearizable read: the cell with everything that was acknowledged before the call.
    ///
    /// # Errors
    /// When this replica cannot be sure to lead.
    pub async fn read_linearizable(&self) -> Result<View, Unavailable> {
        self.0.replica.read_barrier().await.map_err(unavailable_error)?;
        Ok(self.0.replicated.view())
    }

    /// The same on any replica: a follower asks its leader up to where it must have applied. While
    /// the cell elects a leader it is tried again, for as long as `patience`.
    ///
    /// # Errors
    /// When nobody could confirm by then that this replica is up to date.
    pub async fn read_linearizable_anywhere(
        &self,
        patience: Duration,
    ) -> Result<View, Unavailable> {
        let deadline = Instant::now() + patience;
        while let Err(error) = self.0.replica.confirm_current().await {
            let is_final = matches!(error, ProposeError::Fatal { .. });
            if is_final || Instant::now() + CONFIRM_INTERVAL >= deadline {
                return Err(unavailable_error(error));
            }
            tokio::time::sleep(CONFIRM_INTERVAL).await;
        }
        Ok(self.0.replicated.view())
    }

    /// The applied index as a watch channel.
    #[must_use]
    pub fn watch_applied(&self) -> watch::Receiver<u64> {
        self.0.replicated.applied()
    }

    #[must_use]
    pub fn replicated(&self) -> &Arc<ReplicatedState> {
        &self.0.replicated
    }

    #[must_use]
    pub fn replica(&self) -> &Arc<Replica> {
        &self.0.replica
    }

    #[must_use]
    pub fn status(&self) -> Status {
        self.0.replica.status()
    }

    /// Whether this replica was removed from the cell, according to its log or to the peers it
    /// asks. Then nothing that it knows of the cell is kept up to date any more.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        let status = self.status();
        let is_left_out = !status.members.is_empty() && !status.members.contains_key(&status.id);
        let by = self.0.peers.removed_by();
        // A peer that lags behind may not know yet that this replica joined again, so the leader's
        // answer counts, and those of other peers only where there is no leader.
        is_left_out || status.leader.map_or(!by.is_empty(), |leader| by.contains(&leader))
    }

    /// The masters of the cell, if this replica knows them for certain.
    #[must_use]
    pub fn masters(&self) -> Option<MasterList> {
        self.0.links.masters()
    }

    /// Whether this replica is up to date, except for changes in flight: it votes, and has caught
    /// up with its leader. One that is joining, was removed or was partitioned knows of no user or
    /// token that was added since.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let has_caught_up = self.0.has_caught_up.load(Ordering::Relaxed);
        has_caught_up && self.leaderless_for().is_none() && !self.is_removed()
    }

    /// Records the catch-up once it has applied all that its log holds, under whatever leader it
    /// has.
    fn note_catch_up(&self, status: &Status) {
        let votes = status.members.get(&status.id).is_some_and(|member| member.voter);
        if !votes || status.leader.is_none() {
            self.0.has_caught_up.store(false, Ordering::Relaxed);
        } else if status.applied == status.last_log {
            self.0.has_caught_up.store(true, Ordering::Relaxed);
        }
    }

    /// How long this replica has known no leader; on a leader, for how long no majority was heard,
    /// once that is too long to be chance.
    #[must_use]
    pub fn leaderless_for(&self) -> Option<Duration> {
        let status = self.status();
        let voters = status.members.values().filter(|member| member.voter).count();
        if status.role == cellwright_store::Role::Leader && voters > 1 {
            return self
                .0
                .replica
                .since_quorum_contact()
                .filter(|silence| *silence >= MAX_QUORUM_AGE);
        }
        lock(&self.0.leaderless_since).map(|since| since.elapsed())
    }

    /// The essential task of this replica that has ended, if one has: the replica is of no use any
    /// more.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let stopped = || {
            let is_over = self.status().role == cellwright_store::Role::Stopped;
            is_over.then_some("consensus has stopped")
        };
        self.0.supervisor.failure().or_else(stopped).map(str::to_owned)
    }

    fn note_leader(&self, is_led: bool) {
        let mut leaderless = lock(&self.0.leaderless_since);
        if is_led {
            *leaderless = None
        } else {
            leaderless.get_or_insert_with(Instant::now);
        }
    }

    /// The status as a watch channel.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.0.replica.watch()
    }

    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        self.0.alarms.borrow().clone()
    }

    /// What is damaged or missing on the disk of this replica, or was when it started.
    #[must_use]
    pub fn disk_damage(&self) -> Vec<String> {
        let is_compensated = |damage_line: &String| {
            format!(
                "{damage_line}; an older snapshot and the log made up for it when this replica \
                 started: look after the disk; the next start without damage ends this alarm"
            )
        };
        let mut damage = self.0.damage.get().map_or_else(Vec::new, |source| source());
        damage.extend(self.0.replica.recovery().skipped_snapshots.iter().map(is_compensated));
        damage
    }

    /// What this replica knows that a person should look at.
    #[must_use]
    pub fn local_alarms(&self) -> ReplicaAlarms {
        let leaderless = self.leaderless_for();
        let is_leader = self.status().role == cellwright_store::Role::Leader;
        ReplicaAlarms {
            leads: is_leader && leaderless.is_none(),
            noticed: self.alarms(),
            disks: self.0.replica.disk_spaces(),
            damage: self.disk_damage(),
            leaderless_seconds: leaderless.map(|long| long.as_secs()),
        }
    }

    /// What the replicas know that answer, this one among them.
    pub async fn all_alarms(&self) -> BTreeMap<NodeId, ReplicaAlarms> {
        let own = (self.status().id, self.local_alarms());
        replica_alarms::of_all(own, &self.0.peers, self.0.links.others()).await
    }

    /// How far clocks are apart; only the leader knows.
    #[must_use]
    pub fn skews(&self) -> ClockSkews {
        self.0.skews.borrow().clone()
    }

    /// How many commands each controller has issued since this replica leads; empty elsewhere.
    #[must_use]
    pub fn controllers(&self) -> BTreeMap<&'static str, u64> {
        self.0.controllers.borrow().clone()
    }

    /// Sums of what schedulers reported about their passes, by scheduler.
    #[must_use]
    pub fn passes(&self) -> BTreeMap<String, PassStatistics> {
        self.0.passes.borrow().clone()
    }

    /// An agent's poll.
    ///
    /// # Errors
    /// When the agent speaks another protocol.
    pub async fn poll(&self, report: AgentReport) -> Result<AgentOrders, LinkError> {
        self.0.links.poll(report).await
    }

    /// What tasks use, as far as agents have reported it lately, to this replica or to the others.
    pub async fn usage(&self) -> UsageSnapshot {
        let links = &self.0.links;
        links.usage.refresh(&self.0.peers, links.others()).await;
        links.usage.read()
    }

    /// Agents assigned to this replica whose polls it rejects.
    #[must_use]
    pub fn local_rejected_polls(&self) -> &RejectedPolls {
        &self.0.rejected_polls
    }

    /// Agents whose polls are rejected, by this replica or another.
    pub async fn rejected_polls(&self) -> BTreeMap<Name, RejectedPoll> {
        self.0.rejected_polls.all(&self.0.peers, self.0.links.others()).await
    }

    /// A call of another replica; `name` is the name it has authenticated with, where that is
    /// required.
    pub async fn handle_peer_call(&self, name: Option<&str>, call: PeerCall) -> PeerAnswer {
        match call {
            PeerCall::Raft { log_epoch: peer_epoch, from, call } => {
                let (own_epoch, index) =
                    self.0.replicated.with(|view| (view.log_epoch, view.index));
                if let Some(why) = epoch_rejection(own_epoch, index, peer_epoch) {
                    return PeerAnswer::WrongLog(why);
                }
                let sender = SenderIdentity { id: from, name: name.map(str::to_owned) };
                PeerAnswer::Raft(self.0.replica.handle(&sender, call).await)
            }
            PeerCall::Usage => PeerAnswer::Usage(self.0.links.usage.local_usage()),
            PeerCall::PastUsage(mark) => PeerAnswer::PastUsage(match self.0.usage_history.get() {
                Some(source) => source(mark).await,
                None => PastUsage::default(),
            }),
            PeerCall::Records { log, after, until } => {
                let records =
                    crate::record_repair::records_between(&self.0.replicated, log, after, until)
                        .await;
                PeerAnswer::Records(records.unwrap_or_default())
            }
            PeerCall::RejectedPolls => PeerAnswer::RejectedPolls(self.0.rejected_polls.local()),
            PeerCall::Alarms => PeerAnswer::Alarms(self.local_alarms()),
            // A replica reports only for its own agents.
            PeerCall::Forward(forward) => {
                let is_own = name.is_none_or(|name| self.has_name(forward.shard, name));
                PeerAnswer::Forwarded(is_own && self.accept_forward(forward))
            }
        }
    }

    fn has_name(&self, id: NodeId, name: &str) -> bool {
        self.status().members.get(&id).is_some_and(|member| member.peer.name == name)
    }

    /// Passes a forward to the core, if this replica certainly leads: leases of `at_most_one` tasks
    /// are renewed by it, and a leader without a quorum may have been replaced.
    pub(crate) fn accept_forward(&self, forward: LinkShardReport) -> bool {
        let status = self.status();
        let voters = status.members.values().filter(|member| member.voter).count();
        // The status is not used here: it is as old as the last turn of the consensus loop, which a
        // disk that hangs may have stopped.
        let silence = self.0.replica.since_quorum_contact().unwrap_or(Duration::ZERO);
        let leads = status.role == cellwright_store::Role::Leader
            && status.term == forward.term
            && (voters == 1 || silence < MAX_QUORUM_AGE);
        leads && self.0.sender.send(Message::Forward(forward)).is_ok()
    }

    /// Says how far the archive has come; the leader forgets no job before it is in there. It has
    /// to be said again to a new leader, also when that is this replica once more.
    pub fn set_archive_progress(&self, progress: ArchiveProgress) {
        // The loop may have ended.
        drop(self.0.sender.send(Message::Archive(progress)));
    }

    /// Entries after `index` for a follower of the log; a long poll of up to `wait` when there are
    /// none.
    pub async fn log_after(&self, index: u64, wait: Span) -> LogAnswer {
        let mut applied = self.watch_applied();
        let shared = &self.0.replicated;
        let wait_for_entries = async {
            while shared.with(|view| view.index) <= index && applied.changed().await.is_ok() {}
        };
        // Without new entries the answer is an empty list, which tells the follower that this
        // replica lives.
        let _ = tokio::time::timeout(Duration::from_millis(wait.0), wait_for_entries).await;
        match shared.entries_after(index, MAX_LOG_ANSWER_BYTES) {
            LogTail::Entries(entries) => LogAnswer::Records(
                entries
                    .into_iter()
                    .map(|entry| LogRecord {
                        index: entry.index,
                        previous: entry.previous,
                        term: entry.term,
                        entry: entry.payload.to_vec(),
                    })
                    .collect(),
            ),
            LogTail::Purged => {
                let view = shared.view();
                let state = cellwright_cell::encode::save(&view.state);
                LogAnswer::Snapshot { index: view.index, term: view.term, state }
            }
        }
    }

    /// A scheduler requests its lease.
    ///
    /// # Errors
    /// When this replica does not lead.
    pub async fn lease(&self, request: LeaseRequest) -> Result<LeaseAnswer, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let scheduler_shard = SchedulerShardName::new(&request.scheduler_shard)
            .map_err(|bad| Unavailable::Unknown { why: bad.to_string() })?;
        let LeaseRequest { scheduler, passes, wall, level, .. } = request;
        lock(&self.0.scheduler_levels).heard(&scheduler, level, Instant::now());
        let message = Message::Lease { scheduler, scheduler_shard, passes, wall, answer };
        self.0.sender.send(message).map_err(|_| Unavailable::ShuttingDown)?;
        answered.await.unwrap_or(Err(Unavailable::ShuttingDown))
    }

    /// Which scheduler holds a scheduler shard at present.
    ///
    /// # Errors
    /// When this replica does not lead, and so does not know.
    pub async fn scheduler_shard_holder(
        &self,
        scheduler_shard: SchedulerShardName,
    ) -> Result<Option<String>, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let message = Message::SchedulerShardHolder { scheduler_shard, answer };
        self.0.sender.send(message).map_err(|_| Unavailable::ShuttingDown)?;
        answered.await.unwrap_or(Err(Unavailable::ShuttingDown))
    }

    /// Keeps core and link shard up to date about the leader. Runs until the replica stops.
    pub(crate) async fn sync_role(self) {
        let mut changes = self.0.replica.watch();
        let mut last_view = None;
        loop {
            failpoint("role");
            let (view, is_led) = {
                let status = changes.borrow_and_update();
                self.note_catch_up(&status);
                (ClusterView::of(&status), status.leader.is_some())
            };
            self.note_leader(is_led);
            if last_view.as_ref() != Some(&view) {
                let role = view.role();
                self.0.links.set_cluster_view(view.clone());
                if self.0.sender.send(Message::Role(role)).is_err() {
                    return;
                }
                last_view = Some(view);
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_store::{Member, Peer, Role};

    #[test]
    fn a_replica_acts_as_the_member_that_it_is_or_as_nobody() {
        let status = |names: &[&str]| Status {
            id: 1,
            term: 3,
            role: Role::Leader,
            leader: Some(1),
            last_log: None,
            applied: None,
            snapshot: None,
            purged: None,
            members: (1..)
                .zip(names)
                .map(|(id, name)| {
                    let peer = Peer { name: (*name).into(), address: "127.0.0.1:1".into() };
                    (id, Member { peer, voter: true, matched: None })
                })
                .collect(),
            committed_membership: None,
            quorum_silent_millis: None,
        };
        let of = |names: &[&str]| replica_caller(&status(names));
        assert_eq!(of(&["m1", "m2"]), Ok(Caller::Replica(Name::new("m1").unwrap())));
        for names in [&[][..], &["No name"]] {
            assert!(matches!(of(names), Err(Unavailable::Unknown { .. })), "{names:?}");
        }
    }
}
