//! The link shard of this replica (B23): polls its share of the agents. An agent dials; its report
//! is its full state, the answer is its full orders. The shard compares the report with the
//! replicated state and forwards differences to the leader; a poll hangs until the orders of the
//! machine change or the interval is over, so the replica sets the rate and changes travel at once.
//!
//! Every replica can answer from its own copy of the state: orders carry (era, index) and agents
//! obey only newer ones.

use crate::clock::Clock;
use crate::peers::{PeerAnswer, PeerCall, Peers};
use crate::replicated::{Replicated, View};
use crate::share;
use crate::usage::UsageBook;
use cellwright_api::internal::{
    AgentOrders, AgentReport, Difference, Epoch, LinkForward, TaskUsage,
};
use cellwright_api::masters::{Masters, Version};
use cellwright_cell::credential::PartKind;
use cellwright_cell::desired::{DesiredTask, desired, kept};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::name::Name;
use cellwright_cell::observed::differences;
use cellwright_cell::relief::is_news;
use cellwright_cell::saver::saver_ends;
use cellwright_cell::state::State;
use cellwright_cell::time::Span;
use cellwright_control::controller::reclaim::{ReclaimFeed, ReclaimSettings};
use cellwright_control::dating::apart;
use cellwright_control::input::Role;
use cellwright_store::{NodeId, Peer, Status};
use cellwright_supervise::{lock, plant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How long a machine the log does not know yet waits for its entry before it is asked again.
const UNKNOWN_MACHINE_WAIT: Duration = Duration::from_millis(500);
/// Forwards leave at least this often, so that the leader knows the shard lives.
pub const FORWARD_EVERY: Duration = Duration::from_millis(500);
/// Reports that arrive together travel together.
const GATHER: Duration = Duration::from_millis(5);

/// Takes what the agent of a machine measured.
pub type UsageSink = Box<dyn Fn(&State, MachineId, &[TaskUsage], Tenure) + Send + Sync>;

/// The time in which the words of an agent come to this replica. Between two of one tenure nobody
/// else was told anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// Grows when replicas come or go, which may send any machine elsewhere and back.
    pub number: u64,
    /// The agent is sent to another replica with the answer to this word.
    pub ends: bool,
    /// How long that answer may take; until it is there the agent speaks to nobody else.
    pub holds: Span,
}

/// Which replicas there are and who leads, as this replica sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub id: NodeId,
    pub term: u64,
    pub leader: Option<(NodeId, Peer)>,
    /// Replicas that take part in polling.
    pub replicas: Vec<(NodeId, Peer)>,
    /// Term and index of the entry of the log that says so, once it is certain.
    pub settled: Option<(u64, u64)>,
}

impl Standing {
    #[must_use]
    pub fn of(status: &Status) -> Standing {
        let voting = status.members.iter().filter(|(_, member)| member.voter);
        Standing {
            id: status.id,
            term: status.term,
            leader: status.leader_peer(),
            replicas: voting.map(|(id, member)| (*id, member.peer.clone())).collect(),
            settled: status.settled,
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
    replicated: Arc<Replicated>,
    clock: Arc<dyn Clock>,
    settings: LinkSettings,
    standing: Mutex<Standing>,
    /// How often replicas have come or gone.
    tenure: AtomicU64,
    /// The entry of the log that says which replicas there are. Whoever polls is told of another
    /// at once: the next change may take away all the masters that it knows.
    settled: watch::Sender<Option<(u64, u64)>>,
    outgoing: Mutex<Outgoing>,
    /// Incarnation and number of each machine's newest report.
    taken: Mutex<BTreeMap<Name, (u64, u64)>>,
    /// When the last forward that named a machine and reached the leader set out.
    confirmed: Mutex<BTreeMap<MachineId, Instant>>,
    wake: Notify,
    feed: Mutex<ReclaimFeed>,
    /// What tasks used, as their agents said last.
    pub usage: UsageBook,
    /// Where usage goes beside the estimates, if anywhere.
    told: OnceLock<UsageSink>,
    started: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct LinkSettings {
    pub poll: Span,
    /// Whether agents of other shares are sent to their own replica.
    pub redial: bool,
    pub reclaim: ReclaimSettings,
}

#[derive(Default)]
struct Outgoing {
    heard: BTreeSet<MachineId>,
    /// By machine: what a later report says holds, and takes no more room than the earlier one.
    differences: BTreeMap<Name, Vec<Difference>>,
    /// By how much clocks of machines were ahead of this replica's.
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
        replicated: Arc<Replicated>,
        clock: Arc<dyn Clock>,
        settings: LinkSettings,
    ) -> LinkShard {
        LinkShard {
            replicated,
            clock,
            settings,
            standing: Mutex::default(),
            tenure: AtomicU64::new(0),
            settled: watch::Sender::default(),
            outgoing: Mutex::default(),
            taken: Mutex::default(),
            confirmed: Mutex::default(),
            wake: Notify::new(),
            feed: Mutex::new(ReclaimFeed::new(settings.reclaim)),
            usage: UsageBook::default(),
            told: OnceLock::new(),
            started: Instant::now(),
        }
    }

    /// Has usage told to somebody beside the estimates, from now on. The first one stays.
    pub fn tell_usage(&self, sink: UsageSink) {
        drop(self.told.set(sink));
    }

    pub fn stand(&self, standing: Standing) {
        let mut held = lock(&self.standing);
        if held.replicas != standing.replicas {
            self.tenure.fetch_add(1, Ordering::Relaxed);
        }
        let settled = standing.settled.or(held.settled);
        *held = standing;
        drop(held);
        self.settled.send_if_modified(|known| std::mem::replace(known, settled) != settled);
        self.wake.notify_one();
    }

    /// One poll: takes the report, answers when there are new orders or other masters, or the
    /// interval is over.
    ///
    /// # Errors
    /// When the agent speaks for another machine.
    pub async fn poll(&self, report: AgentReport) -> Result<AgentOrders, LinkError> {
        if let Some(spec) = report.spec.as_ref().filter(|spec| spec.name != report.machine) {
            let (machine, spec) = (report.machine.clone(), spec.name.clone());
            return Err(LinkError::OtherMachine { machine, spec });
        }
        let (machine, gone) = self.replicated.with(|view| {
            let gone = view.state.is_dismissed(PartKind::Agent, &report.machine);
            (view.state.machine_named(&report.machine), gone)
        });
        if gone {
            return Ok(self.dismissed(&report).await);
        }
        let heard_ago = machine.and_then(|id| self.heard_ago(id));
        self.take(&report, machine);
        let Some(machine) = machine else { return Ok(self.unknown(&report).await) };
        let most = if report.hang { self.settings.poll.0 } else { 0 };
        let deadline = Instant::now() + Duration::from_millis(most);
        let notify = self.replicated.wakers.of(machine);
        let mut settled = self.settled.subscribe();
        let mut is_resettled = false;
        loop {
            let changed = notify.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (epoch, incarnation, tasks) = self.orders(&report, machine);
            let digest = digest(&tasks);
            let news = digest != report.orders_digest;
            let over = Instant::now() >= deadline;
            if news || over || is_resettled {
                return Ok(AgentOrders {
                    epoch: epoch.max(report.taken),
                    tasks: (news && epoch >= report.taken).then_some(tasks),
                    orders_digest: digest,
                    poll: self.settings.poll,
                    heard_ago,
                    redial: self.redial(&report),
                    is_dismissed: false,
                    incarnation,
                });
            }
            tokio::select! {
                biased;
                () = &mut changed => {}
                _ = settled.changed() => is_resettled = true,
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// The complete orders of a machine. A life that is over is to kill everything, and to keep
    /// what has to outlive it.
    fn orders(&self, report: &AgentReport, machine: MachineId) -> (Epoch, u64, Vec<DesiredTask>) {
        self.replicated.with(|view| {
            let epoch = Epoch { era: view.era, index: view.index };
            let row = view.state.machines().get(machine);
            let present = row.is_some_and(|row| {
                row.status == MachineStatus::Up && row.incarnation == report.incarnation
            });
            let tasks =
                if present { desired(&view.state, machine) } else { kept(&view.state, machine) };
            (epoch, row.map_or(0, |row| row.incarnation), tasks)
        })
    }

    /// A machine that was removed: whatever still runs on it is to end, and that is all it is told.
    async fn dismissed(&self, report: &AgentReport) -> AgentOrders {
        let idle = report.orders_digest == digest(&[]);
        if idle && report.hang {
            tokio::time::sleep(Duration::from_millis(self.settings.poll.0)).await;
        }
        let epoch = self.replicated.with(|view| Epoch { era: view.era, index: view.index });
        AgentOrders {
            epoch: epoch.max(report.taken),
            tasks: (!idle && epoch >= report.taken).then(Vec::new),
            orders_digest: digest(&[]),
            poll: self.settings.poll,
            heard_ago: None,
            redial: None,
            is_dismissed: true,
            incarnation: 0,
        }
    }

    /// A machine that waits for its first entry in the log.
    async fn unknown(&self, report: &AgentReport) -> AgentOrders {
        let mut applied = self.replicated.applied();
        let known =
            |shared: &Replicated| shared.with(|v| v.state.machine_named(&report.machine).is_some());
        let wait = async { while !known(&self.replicated) && applied.changed().await.is_ok() {} };
        // Either way the agent asks again; only the pace differs.
        let _ = tokio::time::timeout(UNKNOWN_MACHINE_WAIT, wait).await;
        AgentOrders {
            epoch: report.taken,
            tasks: None,
            orders_digest: report.orders_digest,
            poll: self.settings.poll,
            heard_ago: None,
            redial: None,
            is_dismissed: false,
            incarnation: 0,
        }
    }

    /// Compares the report with the replicated state and queues what is new for the leader.
    fn take(&self, report: &AgentReport, machine: Option<MachineId>) {
        if self.is_overtaken(report) {
            return;
        }
        let mut found = self.replicated.with(|view| differ(view, report, machine));
        if let Some(machine) = machine {
            // Only the hanging poll measures; news between two of them say nothing of usage.
            if report.hang {
                self.usage.note(machine, report.usage.clone());
            }
            let at = Span(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
            let tenure = self.tenure_of(report);
            let changes = self.replicated.with(|view| {
                if let Some(sink) = self.told.get() {
                    sink(&view.state, machine, &report.usage, tenure);
                }
                lock(&self.feed).take(&view.state, machine, &report.usage, at)
            });
            if !changes.is_empty() {
                found.push(Difference::Reservations(changes));
            }
        }
        let urgent = !found.is_empty();
        let mut outgoing = lock(&self.outgoing);
        outgoing.heard.extend(machine);
        let ahead = apart(report.wall, self.clock.wall());
        outgoing.clocks.extend(machine.map(|machine| (machine, ahead)));
        if urgent {
            outgoing.differences.insert(report.machine.clone(), found);
        }
        drop(outgoing);
        if urgent {
            self.wake.notify_one();
        }
    }

    /// Whether a later report of the same life has been taken here.
    fn is_overtaken(&self, report: &AgentReport) -> bool {
        let mut taken = lock(&self.taken);
        let newest = taken.entry(report.machine.clone()).or_default();
        let this = (report.incarnation, report.number);
        let overtaken = this < *newest;
        *newest = this.max(*newest);
        overtaken
    }

    fn heard_ago(&self, machine: MachineId) -> Option<Span> {
        let at = lock(&self.confirmed).get(&machine).copied()?;
        Some(Span(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }

    fn tenure_of(&self, report: &AgentReport) -> Tenure {
        let number = self.tenure.load(Ordering::Relaxed);
        Tenure { number, ends: self.redial(report).is_some(), holds: self.settings.poll }
    }

    fn redial(&self, report: &AgentReport) -> Option<String> {
        if !self.settings.redial {
            return None;
        }
        let standing = lock(&self.standing);
        let ids: Vec<NodeId> = standing.replicas.iter().map(|(id, _)| *id).collect();
        let owner = share::poller(&report.machine, &ids)?;
        let at = standing.replicas.iter().find(|(id, _)| *id == owner)?;
        (owner != standing.id).then(|| at.1.address.clone())
    }

    /// The masters of the cell, for whoever asks one of them; nothing as long as it is not certain
    /// who they are.
    #[must_use]
    pub fn masters(&self) -> Option<Masters> {
        let standing = lock(&self.standing);
        let (term, index) = standing.settled?;
        let addresses = standing.replicas.iter().map(|(_, peer)| peer.address.clone()).collect();
        drop(standing);
        let era = self.replicated.with(|view| view.era);
        Some(Masters { version: Version { era, term, index }, addresses })
    }

    /// The other replicas that poll agents.
    pub(crate) fn others(&self) -> Vec<(NodeId, Peer)> {
        let standing = lock(&self.standing);
        let others = standing.replicas.iter().filter(|(id, _)| *id != standing.id);
        others.cloned().collect()
    }

    /// Sends what gathered to the leader, for as long as the replica lives. `own` takes it when
    /// this replica leads, and says whether it still does.
    pub async fn run(&self, peers: Arc<dyn Peers>, own: impl Fn(LinkForward) -> bool) {
        let mut next = Instant::now();
        loop {
            plant("links");
            // A timeout here is the heartbeat.
            let _ = tokio::time::timeout(FORWARD_EVERY, self.wake.notified()).await;
            // The first word goes at once; more that come soon after gather.
            tokio::time::sleep_until(next).await;
            next = Instant::now() + GATHER;
            let standing = lock(&self.standing).clone();
            let Some((leader, peer)) = standing.leader.clone() else { continue };
            let taken = std::mem::take(&mut *lock(&self.outgoing));
            let set_out = Instant::now();
            let forward = LinkForward {
                shard: standing.id,
                term: standing.term,
                heard: taken.heard.iter().copied().collect(),
                differences: taken.differences.into_values().flatten().collect(),
                wall: self.clock.wall(),
                clocks: taken.clocks.into_iter().collect(),
            };
            let arrived = match leader == standing.id {
                true => own(forward),
                false => matches!(
                    peers.call(leader, peer, PeerCall::Forward(forward)).await,
                    Ok(PeerAnswer::Forwarded(true))
                ),
            };
            if arrived {
                let all = taken.heard.iter().map(|machine| (*machine, set_out));
                lock(&self.confirmed).extend(all);
            } else {
                // Who was heard is told again; differences are found again at the next poll.
                lock(&self.outgoing).heard.extend(taken.heard);
            }
        }
    }
}

/// What the full report says that the state does not know.
fn differ(view: &View, report: &AgentReport, machine: Option<MachineId>) -> Vec<Difference> {
    let up = || Difference::Up {
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
        found.push(Difference::Tasks { machine: id, incarnation, number, reports });
    }
    let ends = saver_ends(&view.state, id, report.incarnation, &report.tasks);
    if !ends.is_empty() {
        found.push(Difference::Savers { machine: id, ends });
    }
    if is_news(row, &report.shortages) {
        let (incarnation, shortages) = (report.incarnation, report.shortages.clone());
        found.push(Difference::Shortages { machine: id, incarnation, shortages });
    }
    if let Some(packages) = report.packages.as_ref().filter(|p| **p != row.packages) {
        found.push(Difference::Packages { machine: id, packages: packages.clone() });
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
    use crate::records::Records;
    use crate::replicated::CellMachine;
    use crate::settings::Settings;
    use crate::testing::Folder;
    use cellwright_api::internal::REPORT_FORMAT;
    use cellwright_cell::command::{Actor, Command, Entry, Request};
    use cellwright_cell::encode;
    use cellwright_cell::machine::ShortageReport;
    use cellwright_cell::resource::Dimension;
    use cellwright_cell::time::Time;
    use cellwright_store::Machine;

    /// A shard whose replica has applied the entry at index 7.
    fn shard(folder: &Folder) -> LinkShard {
        let Settings { events, audit, .. } = Settings::default();
        let records = Records::open(&folder.disk(), events, audit, Arc::new(|_| {})).unwrap();
        let replicated = Replicated::new(records);
        let command = Command::AddUser { name: Name::new("ubar").unwrap() };
        let requests = vec![Request { by: Actor::Operator, id: None, command }];
        let entry = encode::save_entry(&Entry { now: Time(1), requests });
        CellMachine(replicated.clone()).apply(7, 3, &entry);
        LinkShard::new(
            replicated,
            Arc::new(crate::clock::SystemClock),
            LinkSettings { poll: Span(1000), redial: false, reclaim: ReclaimSettings::default() },
        )
    }

    fn report(incarnation: u64, number: u64) -> AgentReport {
        AgentReport {
            format: REPORT_FORMAT,
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
            shortages: Vec::new(),
            wall: Time(1),
        }
    }

    #[test]
    fn orders_of_a_replica_that_knows_less_are_older_however_high_its_term() {
        let folder = Folder::new();
        let shard = shard(&folder);
        shard.stand(Standing { id: 1, term: 99, ..Standing::default() });
        let (epoch, ..) = shard.orders(&report(1, 1), MachineId(0));
        assert!(epoch < Epoch { era: 0, index: 8 }, "{epoch:?}");
        assert!(epoch > Epoch { era: 0, index: 6 }, "{epoch:?}");
        assert!(epoch < Epoch { era: 1, index: 1 }, "a restored cell outranks: {epoch:?}");
    }

    #[test]
    fn a_report_that_was_held_up_is_not_taken_after_a_later_one() {
        let folder = Folder::new();
        let shard = shard(&folder);
        let taken = |incarnation, number| {
            lock(&shard.outgoing).differences.clear();
            shard.take(&report(incarnation, number), None);
            !lock(&shard.outgoing).differences.is_empty()
        };
        assert!(taken(4, 10));
        assert!(!taken(4, 9));
        assert!(taken(4, 10), "the same again after a lost answer");
        assert!(taken(5, 1), "a new life counts anew");
        assert!(!taken(4, 11));
    }

    #[test]
    fn what_a_machine_is_short_of_is_forwarded_until_the_log_knows_it() {
        let folder = Folder::new();
        let shard = shard(&folder);
        let spec = serde_json::json!({
            "name": "machine-1",
            "capacity": { "cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1 },
        });
        let machine = MachineId(0);
        let mut index = 7;
        let mut log = |command| {
            index += 1;
            let requests = vec![shard.replicated.with(|v| Request::sent(command, &v.state))];
            let entry = encode::save_entry(&Entry { now: Time(index), requests });
            CellMachine(shard.replicated.clone()).apply(index, 3, &entry);
        };
        log(Command::AddMachine(serde_json::from_value(spec).unwrap()));
        log(Command::MachineUp { machine, incarnation: 1 });
        let mut said = report(1, 1);
        let found = |said: &AgentReport| shard.replicated.with(|v| differ(v, said, Some(machine)));
        assert_eq!(found(&said), []);
        let (dimension, lasted) = (Dimension::Cpu, Span::seconds(60));
        said.shortages = vec![ShortageReport { dimension, lasted, asked: 1 }];
        let shortages = said.shortages.clone();
        let wanted = Difference::Shortages { machine, incarnation: 1, shortages };
        assert_eq!(found(&said), std::slice::from_ref(&wanted));
        assert_eq!(found(&said), [wanted], "lost on its way, and found again");
        let shortages = said.shortages.clone();
        log(Command::SetShortages { machine, incarnation: 1, shortages });
        said.shortages[0].lasted = Span::seconds(61);
        assert_eq!(found(&said), [], "it lasts, and that is no news");
        said.shortages[0].asked = 2;
        assert_eq!(found(&said).len(), 1, "it asks again");
        said.shortages.clear();
        assert_eq!(found(&said).len(), 1, "it is well");
    }

    #[test]
    fn a_tenure_ends_with_a_redial_and_when_replicas_change() {
        let folder = Folder::new();
        let mut shard = shard(&folder);
        shard.settings.redial = true;
        let peer = |id: u64| Peer { name: format!("m{id}"), address: format!("127.0.0.1:{id}") };
        let stand = |id, replicas: &[u64]| {
            let replicas = replicas.iter().map(|id| (*id, peer(*id))).collect();
            shard.stand(Standing { id, replicas, ..Standing::default() });
            shard.tenure_of(&report(1, 1))
        };
        let owner = share::poller(&report(1, 1).machine, &[1, 2]).unwrap();
        let first = stand(owner, &[1, 2]);
        assert!(!first.ends);
        assert_eq!(stand(owner, &[1, 2]), first, "nobody came or went");
        assert!(stand(3 - owner, &[1, 2]).ends, "it is another's");
        let later = stand(owner, &[owner]);
        assert!(later.number > first.number && !later.ends);
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_that_hangs_ends_when_there_are_other_masters() {
        let folder = Folder::new();
        let mut shard = shard(&folder);
        shard.settings.poll = Span::seconds(60);
        let spec = serde_json::json!({
            "name": "machine-1",
            "capacity": { "cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1 },
        });
        let command = Command::AddMachine(serde_json::from_value(spec).unwrap());
        let requests = vec![Request { by: Actor::Operator, id: None, command }];
        let entry = encode::save_entry(&Entry { now: Time(8), requests });
        CellMachine(shard.replicated.clone()).apply(8, 3, &entry);
        let settle = |settled| shard.stand(Standing { settled, ..Standing::default() });
        let hanging = || AgentReport { hang: true, orders_digest: digest(&[]), ..report(1, 1) };
        settle(Some((1, 1)));
        let begun = Instant::now();
        let (answered, ()) = tokio::join!(shard.poll(hanging()), async { settle(Some((1, 2))) });
        assert!(answered.is_ok() && begun.elapsed() < Duration::from_secs(60));
        // The same ones, and a moment of doubt, are no news.
        let (_, ()) = tokio::join!(shard.poll(hanging()), async {
            settle(None);
            settle(Some((1, 2)));
        });
        assert!(begun.elapsed() >= Duration::from_secs(60));
    }

    #[tokio::test]
    async fn an_agent_describes_its_own_machine_only() {
        let folder = Folder::new();
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
