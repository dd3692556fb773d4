//! The link shard of this replica (B23): polls the agents assigned to it. An agent connects; its
//! report is its full state, the answer is its full orders. The shard compares the report with the
//! replicated state and forwards differences to the leader. A poll hangs until the orders of the
//! machine change or the interval is over, so the replica sets the rate and changes are delivered
//! at once.
//!
//! Every replica can answer from its own copy of the state: orders carry (log epoch, index) and
//! agents obey only newer ones.

use crate::clock::Clock;
use crate::peers::{PeerAnswer, PeerCall, Peers};
use crate::poll_assignment;
use crate::replicated_state::{ReplicatedState, View};
use crate::usage::UsageCache;
use cellwright_api::masters::{MasterList, MasterListVersion};
use cellwright_cell::credential::PartKind;
use cellwright_cell::desired::{DesiredTask, desired_tasks, retained_tasks};
use cellwright_cell::id::MachineId;
use cellwright_cell::log_saver::log_saver_ends;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::observed::differences;
use cellwright_cell::pressure_eviction::has_changes;
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use cellwright_control::controller::reclaim::{ReclaimFeed, ReclamationConfig};
use cellwright_control::input::Role;
use cellwright_control::log_time::skew_millis;
use cellwright_messages::{
    AgentOrders, AgentReport, Epoch, LinkShardReport, StateDifference, UsageMark,
};
use cellwright_store::{NodeId, Peer, Status};
use cellwright_supervise::{failpoint, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How long a machine that is not in the log yet waits for its entry before its next poll.
const UNKNOWN_MACHINE_WAIT: Duration = Duration::from_millis(500);
/// Forwards are sent at least this often, so that the leader knows the shard lives.
pub const FORWARD_INTERVAL: Duration = Duration::from_millis(500);
/// Reports that arrive together are forwarded together.
const FORWARD_DELAY: Duration = Duration::from_millis(5);

/// The books of the machines that this replica polls, on their way to history.
pub trait UsageLedger: Send + Sync {
    /// A report has come, with a part of its machine's book.
    fn record(&self, state: &State, report: &AgentReport);

    /// The entries of a machine's book that this replica has on its disk.
    fn recorded(&self, machine: &Name) -> Option<UsageMark>;
}

/// The replicas and the leader, as this replica sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub id: NodeId,
    pub term: u64,
    pub leader: Option<(NodeId, Peer)>,
    /// Replicas that take part in polling.
    pub replicas: Vec<(NodeId, Peer)>,
    /// Term and index of the log entry with this membership, once it is committed.
    pub committed_membership: Option<(u64, u64)>,
}

impl ClusterView {
    #[must_use]
    pub fn of(status: &Status) -> ClusterView {
        let voting = status.members.iter().filter(|(_, member)| member.voter);
        ClusterView {
            id: status.id,
            term: status.term,
            leader: status.leader_peer(),
            replicas: voting.map(|(id, member)| (*id, member.peer.clone())).collect(),
            committed_membership: status.committed_membership,
        }
    }

    /// The same for the core.
    #[must_use]
    pub fn role(&self) -> Role {
        Role {
            id: self.id,
            term: self.term,
            leading: self.leader.as_ref().is_some_and(|(id, _)| *id == self.id),
            leader: self.leader.as_ref().map(|(_, peer)| peer.address.clone()),
            voters: self.replicas.iter().map(|(id, _)| *id).collect(),
        }
    }
}

pub struct LinkShard {
    replicated: Arc<ReplicatedState>,
    clock: Arc<dyn Clock>,
    settings: LinkConfig,
    cluster_view: Mutex<ClusterView>,
    /// The log entry with the current membership. Polling agents get a new one at once: the next
    /// change may remove all the masters that they know.
    committed_membership: watch::Sender<Option<(u64, u64)>>,
    pending_forward: Mutex<PendingForward>,
    /// Machine incarnation and number of each machine's newest report.
    newest_reports: Mutex<BTreeMap<Name, (u64, u64)>>,
    /// When the last forward that named a machine and reached the leader was sent.
    last_forwarded: Mutex<BTreeMap<MachineId, Instant>>,
    wake: Notify,
    reclaim_feed: Mutex<ReclaimFeed>,
    /// What tasks use, as their agents last reported.
    pub usage: UsageCache,
    /// Where usage is kept, if anywhere.
    usage_ledger: OnceLock<Arc<dyn UsageLedger>>,
    started: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    pub poll: Span,
    /// Whether agents of other shards are redirected to their own replica.
    pub redirect: bool,
    pub reclaim: ReclamationConfig,
}

#[derive(Default)]
struct PendingForward {
    heard_machines: BTreeSet<MachineId>,
    /// By machine: a later report replaces the earlier one, so it takes no more memory.
    differences: BTreeMap<Name, Vec<StateDifference>>,
    /// How far the clocks of machines were ahead of this replica's.
    clocks: BTreeMap<MachineId, i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("machine {machine} sent the description of {spec}; an agent speaks for its own")]
    OtherMachine { machine: Name, spec: Name },
}

impl LinkShard {
    #[must_use]
    pub fn new(
        replicated: Arc<ReplicatedState>,
        clock: Arc<dyn Clock>,
        settings: LinkConfig,
    ) -> LinkShard {
        LinkShard {
            replicated,
            clock,
            settings,
            cluster_view: Mutex::default(),
            committed_membership: watch::Sender::default(),
            pending_forward: Mutex::default(),
            newest_reports: Mutex::default(),
            last_forwarded: Mutex::default(),
            wake: Notify::new(),
            reclaim_feed: Mutex::new(ReclaimFeed::new(settings.reclaim)),
            usage: UsageCache::default(),
            usage_ledger: OnceLock::new(),
            started: Instant::now(),
        }
    }

    /// Sets where usage is kept from now on. Only the first call counts.
    pub fn set_usage_ledger(&self, ledger: Arc<dyn UsageLedger>) {
        drop(self.usage_ledger.set(ledger));
    }

    fn usage_recorded(&self, machine: &Name) -> Option<UsageMark> {
        self.usage_ledger.get()?.recorded(machine)
    }

    pub fn set_cluster_view(&self, view: ClusterView) {
        let mut current = lock(&self.cluster_view);
        let committed_membership = view.committed_membership.or(current.committed_membership);
        *current = view;
        drop(current);
        self.committed_membership.send_if_modified(|known| {
            std::mem::replace(known, committed_membership) != committed_membership
        });
        self.wake.notify_one();
    }

    /// One poll: accepts the report, answers when there are new orders or other masters, or the
    /// interval is over.
    ///
    /// # Errors
    /// When the agent reports for another machine.
    pub async fn poll(&self, report: AgentReport) -> Result<AgentOrders, LinkError> {
        if let Some(spec) = report.spec.as_ref().filter(|spec| spec.name != report.machine) {
            let (machine, spec) = (report.machine.clone(), spec.name.clone());
            return Err(LinkError::OtherMachine { machine, spec });
        }
        let (machine, gone) = self.replicated.with(|view| {
            let gone = view.state.is_revoked(PartKind::Agent, &report.machine);
            (view.state.machine_named(&report.machine), gone)
        });
        if gone {
            return Ok(self.revoked_orders(&report).await);
        }
        let last_contact_age = machine.and_then(|id| self.since_heard(id));
        self.process_report(&report, machine);
        let Some(machine) = machine else { return Ok(self.unknown_machine_orders(&report).await) };
        let most = if report.hang { self.settings.poll.0 } else { 0 };
        let deadline = Instant::now() + Duration::from_millis(most);
        let notify = self.replicated.wakers.waker_for(machine);
        let mut committed_membership = self.committed_membership.subscribe();
        let mut is_resettled = false;
        loop {
            let changed = notify.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (epoch, incarnation, tasks) = self.orders(&report, machine);
            let digest = digest(&tasks);
            let has_new_orders = digest != report.orders_digest;
            let over = Instant::now() >= deadline;
            if has_new_orders || over || is_resettled {
                return Ok(AgentOrders {
                    epoch: epoch.max(report.taken),
                    tasks: (has_new_orders && epoch >= report.taken).then_some(tasks),
                    orders_digest: digest,
                    poll: self.settings.poll,
                    last_contact_age,
                    redirect: self.redirect(&report),
                    is_revoked: false,
                    incarnation,
                    usage_recorded: self.usage_recorded(&report.machine),
                    time: self.replicated.log_time(),
                });
            }
            tokio::select! {
                biased;
                () = &mut changed => {}
                _ = committed_membership.changed() => is_resettled = true,
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// The complete orders of a machine. A machine incarnation that is over must kill everything,
    /// and keep what has to outlive it.
    fn orders(&self, report: &AgentReport, machine: MachineId) -> (Epoch, u64, Vec<DesiredTask>) {
        self.replicated.with(|view| {
            let epoch = Epoch { log_epoch: view.log_epoch, index: view.index };
            let row = view.state.machines().get(machine);
            let present = row.is_some_and(|row| {
                row.status == MachineStatus::Up && row.incarnation == report.incarnation
            });
            let tasks = if present {
                desired_tasks(&view.state, machine)
            } else {
                retained_tasks(&view.state, machine)
            };
            (epoch, row.map_or(0, |row| row.incarnation), tasks)
        })
    }

    /// A machine that was removed: its orders are to end whatever still runs on it, and nothing
    /// else.
    async fn revoked_orders(&self, report: &AgentReport) -> AgentOrders {
        let idle = report.orders_digest == digest(&[]);
        if idle && report.hang {
            tokio::time::sleep(Duration::from_millis(self.settings.poll.0)).await;
        }
        let epoch =
            self.replicated.with(|view| Epoch { log_epoch: view.log_epoch, index: view.index });
        AgentOrders {
            epoch: epoch.max(report.taken),
            tasks: (!idle && epoch >= report.taken).then(Vec::new),
            orders_digest: digest(&[]),
            poll: self.settings.poll,
            last_contact_age: None,
            redirect: None,
            is_revoked: true,
            incarnation: 0,
            usage_recorded: None,
            time: self.replicated.log_time(),
        }
    }

    /// A machine that waits for its first entry in the log.
    async fn unknown_machine_orders(&self, report: &AgentReport) -> AgentOrders {
        let mut applied = self.replicated.applied();
        let known = |shared: &ReplicatedState| {
            shared.with(|v| v.state.machine_named(&report.machine).is_some())
        };
        let wait = async { while !known(&self.replicated) && applied.changed().await.is_ok() {} };
        // Either way the agent polls again; only the pace differs.
        let _ = tokio::time::timeout(UNKNOWN_MACHINE_WAIT, wait).await;
        AgentOrders {
            epoch: report.taken,
            tasks: None,
            orders_digest: report.orders_digest,
            poll: self.settings.poll,
            last_contact_age: None,
            redirect: None,
            is_revoked: false,
            incarnation: 0,
            usage_recorded: None,
            time: self.replicated.log_time(),
        }
    }

    /// Compares the report with the replicated state and queues what is new for the leader.
    fn process_report(&self, report: &AgentReport, machine: Option<MachineId>) {
        if self.is_stale(report) {
            return;
        }
        let mut found = self.replicated.with(|view| diff_report(view, report, machine));
        if let Some(machine) = machine {
            // Only the hanging poll measures usage; reports in between contain none.
            if report.hang {
                let numbers = report.numbers.clone();
                self.usage.record_report(machine, report.usage.clone(), numbers);
            }
            let at = Span(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
            let changes = self.replicated.with(|view| {
                if let Some(ledger) = self.usage_ledger.get().filter(|_| report.hang) {
                    ledger.record(&view.state, report);
                }
                lock(&self.reclaim_feed).on_usage(&view.state, machine, &report.usage, at)
            });
            if !changes.is_empty() {
                found.push(StateDifference::Reservations(changes));
            }
        }
        let urgent = !found.is_empty();
        let mut outgoing = lock(&self.pending_forward);
        outgoing.heard_machines.extend(machine);
        let ahead = skew_millis(report.wall, self.clock.wall_time());
        outgoing.clocks.extend(machine.map(|machine| (machine, ahead)));
        if urgent {
            outgoing.differences.insert(report.machine.clone(), found);
        }
        drop(outgoing);
        if urgent {
            self.wake.notify_one();
        }
    }

    /// Whether a later report of the same incarnation has been accepted here.
    fn is_stale(&self, report: &AgentReport) -> bool {
        let mut newest_reports = lock(&self.newest_reports);
        let newest = newest_reports.entry(report.machine.clone()).or_default();
        let this = (report.incarnation, report.number);
        let overtaken = this < *newest;
        *newest = this.max(*newest);
        overtaken
    }

    fn since_heard(&self, machine: MachineId) -> Option<Span> {
        let at = lock(&self.last_forwarded).get(&machine).copied()?;
        Some(Span(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }

    fn redirect(&self, report: &AgentReport) -> Option<String> {
        if !self.settings.redirect {
            return None;
        }
        let view = lock(&self.cluster_view);
        let ids: Vec<NodeId> = view.replicas.iter().map(|(id, _)| *id).collect();
        let owner = poll_assignment::assigned_replica(&report.machine, &ids)?;
        let at = view.replicas.iter().find(|(id, _)| *id == owner)?;
        (owner != view.id).then(|| at.1.address.clone())
    }

    /// The masters of the cell, for callers that ask one of them; nothing as long as they are not
    /// known for certain.
    #[must_use]
    pub fn masters(&self) -> Option<MasterList> {
        let view = lock(&self.cluster_view);
        let (term, index) = view.committed_membership?;
        let addresses = view.replicas.iter().map(|(_, peer)| peer.address.clone()).collect();
        drop(view);
        let log_epoch = self.replicated.with(|view| view.log_epoch);
        Some(MasterList { version: MasterListVersion { log_epoch, term, index }, addresses })
    }

    /// The other replicas that poll agents.
    pub(crate) fn others(&self) -> Vec<(NodeId, Peer)> {
        let view = lock(&self.cluster_view);
        let others = view.replicas.iter().filter(|(id, _)| *id != view.id);
        others.cloned().collect()
    }

    /// Sends the buffered reports to the leader, for as long as the replica lives. `own` accepts
    /// them when this replica leads, and returns whether it still does.
    pub async fn run(&self, peers: Arc<dyn Peers>, own: impl Fn(LinkShardReport) -> bool) {
        let mut next = Instant::now();
        loop {
            failpoint("links");
            // A timeout here is the heartbeat.
            let _ = tokio::time::timeout(FORWARD_INTERVAL, self.wake.notified()).await;
            // The first report is sent at once; those that follow soon are buffered.
            tokio::time::sleep_until(next).await;
            next = Instant::now() + FORWARD_DELAY;
            let view = lock(&self.cluster_view).clone();
            let Some((leader, peer)) = view.leader.clone() else { continue };
            let pending = std::mem::take(&mut *lock(&self.pending_forward));
            let sent_at = Instant::now();
            let forward = LinkShardReport {
                shard: view.id,
                term: view.term,
                heard_machines: pending.heard_machines.iter().copied().collect(),
                differences: pending.differences.into_values().flatten().collect(),
                wall: self.clock.wall_time(),
                clock_offsets: pending.clocks.into_iter().collect(),
            };
            let arrived = if leader == view.id {
                own(forward)
            } else {
                matches!(
                    peers.call(leader, peer, PeerCall::Forward(forward)).await,
                    Ok(PeerAnswer::Forwarded(true))
                )
            };
            if arrived {
                let all = pending.heard_machines.iter().map(|machine| (*machine, sent_at));
                lock(&self.last_forwarded).extend(all);
            } else {
                // Heard machines are sent again; differences are found again at the next poll.
                lock(&self.pending_forward).heard_machines.extend(pending.heard_machines);
            }
        }
    }
}

/// What the full report contains that the state does not have.
fn diff_report(
    view: &View,
    report: &AgentReport,
    machine: Option<MachineId>,
) -> Vec<StateDifference> {
    let up = || StateDifference::Up {
        machine: report.machine.clone(),
        incarnation: report.incarnation,
        spec: report.spec.clone().map(Box::new),
    };
    let row = machine.and_then(|id| Some((id, view.state.machines().get(id)?)));
    let Some((id, row)) = row else { return vec![up()] };
    if report.incarnation < row.incarnation {
        return Vec::new();
    }
    let mut found = Vec::new();
    let changed = report.spec.as_ref().is_some_and(|spec| *spec != row.spec);
    let down = row.status == MachineStatus::Down || report.incarnation > row.incarnation;
    if down || changed {
        found.push(up());
    }
    if down {
        return found;
    }
    let reports = differences(&view.state, id, report.incarnation, &report.tasks);
    if !reports.is_empty() {
        let AgentReport { incarnation, number, .. } = *report;
        found.push(StateDifference::Tasks { machine: id, incarnation, number, reports });
    }
    let ends = log_saver_ends(&view.state, id, report.incarnation, &report.tasks);
    if !ends.is_empty() {
        found.push(StateDifference::LogSavers { machine: id, ends });
    }
    if has_changes(row, &report.resource_pressure) {
        let (incarnation, resource_pressure) =
            (report.incarnation, report.resource_pressure.clone());
        found.push(StateDifference::ResourcePressure {
            machine: id,
            incarnation,
            resource_pressure,
        });
    }
    if let Some(packages) = report.packages.as_ref().filter(|p| **p != row.packages) {
        found.push(StateDifference::Packages { machine: id, packages: packages.clone() });
    }
    found
}

/// Digest of orders; an agent sends back the one it holds.
#[must_use]
pub fn digest(tasks: &[DesiredTask]) -> u64 {
    match tasks {
        [] => 0,
        _ => postcard::to_stdvec(tasks).map_or(0, |bytes| xxhash_rust::xxh3::xxh3_64(&bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MasterConfig;
    use crate::record_logs::RecordLogs;
    use crate::replicated_state::CellStateMachine;
    use crate::testing::TempFolder;
    use cellwright_cell::command::{Actor, Command, Entry, Request};
    use cellwright_cell::encode;
    use cellwright_cell::machine::ResourcePressureReport;
    use cellwright_cell::resource::Dimension;
    use cellwright_cell::time::Time;
    use cellwright_store::StateMachine;

    /// A shard whose replica has applied the entry at index 7.
    fn shard(folder: &TempFolder) -> LinkShard {
        let MasterConfig { events, audit, .. } = MasterConfig::default();
        let records = RecordLogs::open(&folder.disk(), events, audit, Arc::new(|_| {})).unwrap();
        let replicated = ReplicatedState::new(records);
        let command = Command::AddUser { name: Name::new("ubar").unwrap() };
        let requests = vec![Request { by: Actor::Operator, id: None, command }];
        let entry = encode::save_entry(&Entry { now: Time(1), requests });
        CellStateMachine(replicated.clone()).apply(7, 3, &entry);
        LinkShard::new(
            replicated,
            Arc::new(crate::clock::SystemClock),
            LinkConfig { poll: Span(1000), redirect: false, reclaim: ReclamationConfig::default() },
        )
    }

    fn report(incarnation: u64, number: u64) -> AgentReport {
        AgentReport {
            machine: Name::new("machine-1").unwrap(),
            incarnation,
            number,
            taken: Epoch::default(),
            hang: false,
            orders_digest: 0,
            spec: None,
            tasks: Vec::new(),
            packages: None,
            usage: Vec::new(),
            resource_pressure: Vec::new(),
            wall: Time(1),
            book: Default::default(),
            numbers: Vec::new(),
        }
    }

    #[test]
    fn orders_of_a_replica_that_knows_less_are_older_however_high_its_term() {
        let folder = TempFolder::new();
        let shard = shard(&folder);
        shard.set_cluster_view(ClusterView { id: 1, term: 99, ..ClusterView::default() });
        let (epoch, ..) = shard.orders(&report(1, 1), MachineId(0));
        assert!(epoch < Epoch { log_epoch: 0, index: 8 }, "{epoch:?}");
        assert!(epoch > Epoch { log_epoch: 0, index: 6 }, "{epoch:?}");
        assert!(epoch < Epoch { log_epoch: 1, index: 1 }, "a restored cell outranks: {epoch:?}");
    }

    #[test]
    fn a_report_that_was_held_up_is_not_taken_after_a_later_one() {
        let folder = TempFolder::new();
        let shard = shard(&folder);
        let accepts = |incarnation, number| {
            lock(&shard.pending_forward).differences.clear();
            shard.process_report(&report(incarnation, number), None);
            !lock(&shard.pending_forward).differences.is_empty()
        };
        assert!(accepts(4, 10));
        assert!(!accepts(4, 9));
        assert!(accepts(4, 10), "the same again after a lost answer");
        assert!(accepts(5, 1), "a new life counts anew");
        assert!(!accepts(4, 11));
    }

    #[test]
    fn what_a_machine_is_short_of_is_forwarded_until_the_log_knows_it() {
        let folder = TempFolder::new();
        let shard = shard(&folder);
        let spec = serde_json::json!({
            "name": "machine-1",
            "capacity": { "cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1 },
        });
        let machine = MachineId(0);
        let mut index = 7;
        let mut log = |command| {
            index += 1;
            let requests =
                vec![shard.replicated.with(|v| Request::from_default_sender(command, &v.state))];
            let entry = encode::save_entry(&Entry { now: Time(index), requests });
            CellStateMachine(shard.replicated.clone()).apply(index, 3, &entry);
        };
        log(Command::AddMachine(serde_json::from_value(spec).unwrap()));
        log(Command::MachineUp { machine, incarnation: 1 });
        let mut agent_report = report(1, 1);
        let found = |agent_report: &AgentReport| {
            shard.replicated.with(|v| diff_report(v, agent_report, Some(machine)))
        };
        assert_eq!(found(&agent_report), []);
        let (dimension, lasted) = (Dimension::Cpu, Span::seconds(60));
        agent_report.resource_pressure =
            vec![ResourcePressureReport { dimension, lasted, requested: 1 }];
        let resource_pressure = agent_report.resource_pressure.clone();
        let wanted =
            StateDifference::ResourcePressure { machine, incarnation: 1, resource_pressure };
        assert_eq!(found(&agent_report), std::slice::from_ref(&wanted));
        assert_eq!(found(&agent_report), [wanted], "lost on its way, and found again");
        let resource_pressure = agent_report.resource_pressure.clone();
        log(Command::SetResourcePressure { machine, incarnation: 1, resource_pressure });
        agent_report.resource_pressure[0].lasted = Span::seconds(61);
        assert_eq!(found(&agent_report), [], "it lasts, and that is no news");
        agent_report.resource_pressure[0].requested = 2;
        assert_eq!(found(&agent_report).len(), 1, "it asks again");
        agent_report.resource_pressure.clear();
        assert_eq!(found(&agent_report).len(), 1, "it is well");
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_that_hangs_ends_when_there_are_other_masters() {
        let folder = TempFolder::new();
        let mut shard = shard(&folder);
        shard.settings.poll = Span::seconds(60);
        let spec = serde_json::json!({
            "name": "machine-1",
            "capacity": { "cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1 },
        });
        let command = Command::AddMachine(serde_json::from_value(spec).unwrap());
        let requests = vec![Request { by: Actor::Operator, id: None, command }];
        let entry = encode::save_entry(&Entry { now: Time(8), requests });
        CellStateMachine(shard.replicated.clone()).apply(8, 3, &entry);
        let settle = |committed_membership| {
            shard.set_cluster_view(ClusterView { committed_membership, ..ClusterView::default() })
        };
        let hanging = || AgentReport { hang: true, orders_digest: digest(&[]), ..report(1, 1) };
        settle(Some((1, 1)));
        let started = Instant::now();
        let (answered, ()) = tokio::join!(shard.poll(hanging()), async { settle(Some((1, 2))) });
        assert!(answered.is_ok() && started.elapsed() < Duration::from_secs(60));
        // The same ones, and a moment of uncertainty, are no change.
        let (_, ()) = tokio::join!(shard.poll(hanging()), async {
            settle(None);
            settle(Some((1, 2)));
        });
        assert!(started.elapsed() >= Duration::from_secs(60));
    }

    #[tokio::test]
    async fn an_agent_describes_its_own_machine_only() {
        let folder = TempFolder::new();
        let mut forged = report(1, 1);
        forged.spec = serde_json::from_value(serde_json::json!({
            "name": "machine-2",
            "capacity": { "cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1 },
            "rack": null,
            "power": null,
        }))
        .unwrap();
        let refused = shard(&folder).poll(forged).await;
        assert!(matches!(refused, Err(LinkError::OtherMachine { .. })), "{refused:?}");
    }
}
