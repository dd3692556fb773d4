//! A simulated cell: real masters on virtual disks and a virtual network, the real scheduler, and
//! virtual agents, all on one paused single-threaded runtime. What happens follows from the seed.

use super::disk::{DiskBugs, VirtualDisk};
use super::net::{Lost, Place, VirtualNet, VirtualPeers};
use crate::agent::{AgentBugs, Pace, Ran, VirtualAgent};
use cellwright_api::internal::{LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::time::{Span, Time};
use cellwright_master::clock::Clock;
use cellwright_master::handle::{Caller, Handle};
use cellwright_master::input::Unavailable;
use cellwright_master::master::{Master, World as Around};
use cellwright_master::replicated::CellMachine;
use cellwright_master::settings::Settings;
use cellwright_scheduler::{Lane, LinkError, MasterLink, Scheduler};
use cellwright_store::{Machine, NodeId, OpenError, Peer, Role};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Bugs that a test plants to see them caught. All off in every other run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bugs {
    pub disk: DiskBugs,
    pub agent: AgentBugs,
    /// Replica 1 applies something else than the others.
    pub differs: bool,
    /// Clients call a request acknowledged when it was sent.
    pub acks_early: bool,
    /// Clients take a stale read for a fresh one.
    pub reads_stale: bool,
    /// Clients repeat a request under a new id.
    pub forgets_request_id: bool,
    /// Silent machines are declared down at once, however many there are.
    pub hasty: bool,
    /// A replica that comes back starts from an empty disk under its old id.
    pub forgets_disk: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub masters: u64,
    pub machines: u64,
    pub schedulers: u64,
}

/// Addresses after the replicas'.
const AGENTS: Place = 1000;
const SCHEDULERS: Place = 2000;
pub const CLIENTS: Place = 3000;

struct Node {
    disk: VirtualDisk,
    master: Option<Master>,
    /// A life that must not go on: its disk said so.
    failed: Arc<AtomicBool>,
}

/// The wall clock of the simulation: virtual time since a fixed date, plus a skew per replica.
struct VirtualClock {
    started: Instant,
    skew: i64,
}

impl Clock for VirtualClock {
    fn wall(&self) -> Time {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Time((1_700_000_000_000 + passed).saturating_add_signed(self.skew))
    }
}

/// Applies as it should, except that one replica of a buggy run does not.
struct PerhapsDiffers {
    machine: CellMachine,
    differs: bool,
}

impl Machine for PerhapsDiffers {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        if self.differs && index.is_multiple_of(5) {
            return Vec::new();
        }
        self.machine.apply(index, term, payload)
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        self.machine.snapshot()
    }

    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        self.machine.restore(index, bytes)
    }
}

pub struct Cluster {
    pub shape: Shape,
    pub bugs: Bugs,
    pub net: VirtualNet,
    started: Instant,
    nodes: BTreeMap<NodeId, Node>,
    agents: Vec<Arc<Mutex<VirtualAgent>>>,
    agent_tasks: Vec<JoinHandle<()>>,
    scheduler_tasks: Vec<Option<JoinHandle<()>>>,
    /// What agents were seen to do wrong.
    pub flaws: Flaws,
}

/// The first thing that agents were seen to do wrong.
#[derive(Clone, Default)]
pub struct Flaws(Arc<Mutex<Option<String>>>);

impl Flaws {
    fn note(&self, what: String) {
        lock(&self.0).get_or_insert(what);
    }

    #[must_use]
    pub fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

impl Cluster {
    /// Starts everything; the first replica has bootstrapped the membership.
    ///
    /// # Errors
    /// When a replica does not open or the cell does not form.
    pub async fn start(seed: u64, shape: Shape, bugs: Bugs) -> Result<Cluster, String> {
        cellwright_store::seed_randomness(seed);
        let mut cluster = Cluster {
            shape,
            bugs,
            net: VirtualNet::new(seed ^ 1),
            started: Instant::now(),
            nodes: BTreeMap::new(),
            agents: Vec::new(),
            agent_tasks: Vec::new(),
            scheduler_tasks: Vec::new(),
            flaws: Flaws::default(),
        };
        for id in 1..=shape.masters {
            let disk = VirtualDisk::new(seed.wrapping_mul(31).wrapping_add(id), bugs.disk);
            let failed = Arc::default();
            cluster.nodes.insert(id, Node { disk, master: None, failed });
            cluster.turn_on(id).await.map_err(|e| e.to_string())?;
        }
        let first = cluster.net.master(1).ok_or("replica 1 is missing")?;
        let peers = (1..=shape.masters).map(|id| (id, peer(id))).collect();
        first.replica().bootstrap(peers).await.map_err(|e| e.to_string())?;
        for number in 0..shape.machines {
            cluster.add_agent(number);
        }
        for number in 0..shape.schedulers {
            cluster.scheduler_tasks.push(None);
            cluster.start_scheduler(number);
        }
        Ok(cluster)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// # Errors
    /// When the replica finds its disk damaged.
    pub async fn turn_on(&mut self, id: NodeId) -> Result<(), OpenError> {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.master.is_none()) else {
            return Ok(());
        };
        if self.bugs.forgets_disk && self.started.elapsed() > Duration::from_secs(1) {
            node.disk = VirtualDisk::new(id, self.bugs.disk);
        }
        node.failed = Arc::default();
        let failed = node.failed.clone();
        let store = cellwright_store::Settings {
            snapshot_entries: 40,
            keep_entries: 20,
            segment_bytes: 4096,
            on_fatal: Arc::new(move |_| failed.store(true, Ordering::SeqCst)),
            ..cellwright_store::Settings::default()
        };
        // One clock an hour ahead, one behind: dates jump at elections, nothing else may.
        let skew = [0, 3_600_000, -3_600_000][usize::try_from(id % 3).unwrap_or(0)];
        let around = Around {
            disk: Arc::new(node.disk.hold()),
            peers: Arc::new(VirtualPeers { net: self.net.clone(), from: id }),
            clock: Arc::new(VirtualClock { started: self.started, skew }),
        };
        let differs = self.bugs.differs && id == 1;
        let wrap = move |machine| PerhapsDiffers { machine, differs };
        let master = Master::start_wrapped(id, settings(self.bugs), store, around, wrap).await?;
        self.net.plug(id, master.handle().clone());
        node.master = Some(master);
        Ok(())
    }

    /// Kills a replica's process, or cuts the power of its machine.
    pub async fn turn_off(&mut self, id: NodeId, power: bool) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(master) = node.master.take() else { return };
        self.net.unplug(id);
        if power {
            node.disk.cut_power();
        } else {
            node.disk.kill();
        }
        master.kill().await;
    }

    /// Replicas whose own disk told them to stop.
    #[must_use]
    pub fn failed(&self) -> Vec<NodeId> {
        let failed = |node: &Node| node.master.is_some() && node.failed.load(Ordering::SeqCst);
        self.nodes.iter().filter(|(_, node)| failed(node)).map(|(id, _)| *id).collect()
    }

    #[must_use]
    pub fn disk(&self, id: NodeId) -> Option<&VirtualDisk> {
        self.nodes.get(&id).map(|node| &node.disk)
    }

    /// Replicas that are on.
    #[must_use]
    pub fn on(&self) -> Vec<(NodeId, Handle)> {
        let on = |(id, node): (&NodeId, &Node)| {
            node.master.as_ref().map(|master| (*id, master.handle().clone()))
        };
        self.nodes.iter().filter_map(on).collect()
    }

    /// The replica that leads with a quorum behind it.
    #[must_use]
    pub fn leader(&self) -> Option<(NodeId, Handle)> {
        let leads = |(_, handle): &(NodeId, Handle)| {
            let status = handle.status();
            status.role == Role::Leader && status.quorum_silent_millis.is_some_and(|ms| ms < 500)
        };
        let mut leaders: Vec<(NodeId, Handle)> = self.on().into_iter().filter(leads).collect();
        leaders.sort_by_key(|(_, handle)| handle.status().term);
        leaders.pop()
    }

    fn add_agent(&mut self, number: u64) {
        let mut agent = VirtualAgent::new(machine_spec(number), 1, Pace { start: 20, stop: 80 });
        agent.bugs = self.bugs.agent;
        let agent = Arc::new(Mutex::new(agent));
        self.agents.push(agent.clone());
        let line = AgentLine {
            agent,
            net: self.net.clone(),
            place: AGENTS + number,
            masters: self.shape.masters,
            replica: AtomicU64::new(1 + (AGENTS + number) % self.shape.masters),
            orders: Notify::new(),
            news: Notify::new(),
            started: self.started,
            flaws: self.flaws.clone(),
        };
        self.agent_tasks.push(tokio::spawn(line.run()));
    }

    #[must_use]
    pub fn agent_places(&self) -> Vec<Place> {
        (0..self.shape.machines).map(|number| AGENTS + number).collect()
    }

    pub fn reboot_agent(&self, number: usize) {
        if let Some(agent) = self.agents.get(number) {
            lock(agent).reboot(self.now());
        }
    }

    /// What ran where since it was last asked, by machine.
    #[must_use]
    pub fn take_history(&self) -> Vec<(usize, Ran)> {
        let take = |(at, agent): (usize, &Arc<Mutex<VirtualAgent>>)| {
            std::mem::take(&mut lock(agent).history).into_iter().map(move |ran| (at, ran))
        };
        self.agents.iter().enumerate().flat_map(take).collect()
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.agents.iter().map(|agent| lock(agent).running()).sum()
    }

    pub fn start_scheduler(&mut self, number: u64) {
        let link = SchedulerLine {
            net: self.net.clone(),
            place: SCHEDULERS + number,
            masters: self.shape.masters,
            preferred: Mutex::new(1 + number % self.shape.masters),
        };
        let Ok(lane) = Lane::new("") else { return };
        let mut settings = cellwright_scheduler::Settings::new(&format!("s{number}"), lane, number);
        settings.poll = Span(1000);
        settings.patience = Span(1000);
        settings.retry_max = Span(500);
        let Ok(scheduler) = Scheduler::new(Arc::new(link), settings) else { return };
        let slot = usize::try_from(number).unwrap_or(0);
        if let Some(slot) = self.scheduler_tasks.get_mut(slot)
            && let Some(old) = slot.replace(tokio::spawn(scheduler.run()))
        {
            old.abort();
        }
    }

    pub fn kill_scheduler(&mut self, number: u64) {
        let slot = usize::try_from(number).unwrap_or(0);
        if let Some(task) = self.scheduler_tasks.get_mut(slot).and_then(Option::take) {
            task.abort();
        }
    }

    /// Stops everything.
    pub async fn end(mut self) {
        self.agent_tasks.iter().for_each(JoinHandle::abort);
        self.scheduler_tasks.iter().flatten().for_each(JoinHandle::abort);
        for id in 1..=self.shape.masters {
            self.turn_off(id, false).await;
        }
    }
}

fn settings(bugs: Bugs) -> Settings {
    let mut settings = Settings::default();
    settings.liveness.poll = Span(1000);
    settings.liveness.shard_silence = Span(2000);
    settings.liveness.extra = Span(3000);
    settings.scheduler_lease = Span(1000);
    if bugs.hasty {
        settings.liveness.missed_polls = 1;
        settings.liveness.extra = Span::ZERO;
        settings.liveness.hold_above_permille = 1000;
        settings.liveness.per_minute = 60_000;
        settings.liveness.burst = 1000;
    }
    settings
}

fn peer(id: NodeId) -> Peer {
    Peer { name: format!("m{id}"), address: format!("m{id}:1") }
}

/// The machine with this number.
#[must_use]
pub fn machine_spec(number: u64) -> MachineSpec {
    super::plain::machine(&format!("machine-{number}"), 4000)
}

struct AgentLine {
    agent: Arc<Mutex<VirtualAgent>>,
    net: VirtualNet,
    place: Place,
    masters: u64,
    /// Whom it polls.
    replica: AtomicU64,
    /// Orders came, so something else may be the next to change.
    orders: Notify,
    /// Something changed that the masters should hear of.
    news: Notify,
    started: Instant,
    flaws: Flaws,
}

impl AgentLine {
    /// Three things at once, none of which may hold up another: a lease ends on time while a
    /// message is on its way to nowhere.
    async fn run(self) {
        tokio::join!(self.keep_time(), self.tell_news(), self.poll());
    }

    async fn keep_time(&self) {
        loop {
            let due = lock(&self.agent).next_change();
            let at = due.map(|at| self.started + Duration::from_millis(at));
            let change = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.orders.notified() => {}
                () = change => {
                    let changed = lock(&self.agent).advance(self.now());
                    if changed {
                        self.news.notify_one();
                    } else {
                        // It waits for others to leave.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        }
    }

    /// Sends news as they come. A lost message costs nothing: the next poll says it again.
    async fn tell_news(&self) {
        loop {
            self.news.notified().await;
            let _lost = self.ask(self.replica.load(Ordering::Relaxed), false).await;
        }
    }

    /// Polls a replica, another one when that fails.
    async fn poll(&self) {
        loop {
            let replica = self.replica.load(Ordering::Relaxed);
            let next = match self.ask(replica, true).await {
                Ok(Some(other)) => other,
                Ok(None) => replica,
                Err(Lost) => 1 + replica % self.masters,
            };
            self.replica.store(next, Ordering::Relaxed);
        }
    }

    async fn ask(&self, replica: NodeId, hang: bool) -> Result<Option<NodeId>, Lost> {
        let sent = self.now();
        let report = lock(&self.agent).report(hang);
        let incarnation = report.incarnation;
        let poll = |master: Handle| async move { master.poll(report).await };
        let asked = self.net.ask(self.place, replica, poll);
        let answer = tokio::time::timeout(Duration::from_secs(3), asked).await;
        let orders = answer.map_err(|_| Lost)??.map_err(|_| Lost)?;
        let redial = orders.redial.as_deref().and_then(address_id);
        let mut agent = lock(&self.agent);
        if agent.incarnation == incarnation {
            let before = agent.taken();
            agent.obey(orders, sent, self.now());
            self.orders.notify_one();
            if agent.taken() < before {
                self.flaws.note(format!("machine {} obeyed older orders", self.place - AGENTS));
            }
            if agent.overfull {
                let number = self.place - AGENTS;
                self.flaws.note(format!("machine {number} holds more than it has"));
            }
        }
        Ok(redial)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The replica behind an address of the simulation.
pub(crate) fn address_id(address: &str) -> Option<NodeId> {
    address.strip_prefix('m')?.split(':').next()?.parse().ok()
}

struct SchedulerLine {
    net: VirtualNet,
    place: Place,
    masters: u64,
    preferred: Mutex<NodeId>,
}

impl SchedulerLine {
    async fn ask<T, F>(&self, work: impl FnOnce(Handle) -> F) -> Result<T, LinkError>
    where
        F: Future<Output = Result<T, Unavailable>>,
    {
        let to = *lock(&self.preferred);
        let answer = self.net.ask(self.place, to, work).await;
        let (error, next) = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Unavailable::NotLeader { leader: Some(address) })) => {
                (LinkError::Refused("not the leader".into()), address_id(&address))
            }
            Ok(Err(error)) => (LinkError::Refused(error.to_string()), None),
            Err(Lost) => (LinkError::Unreachable("lost".into()), None),
        };
        *lock(&self.preferred) = next.unwrap_or(1 + to % self.masters);
        Err(error)
    }
}

impl MasterLink for SchedulerLine {
    async fn log_after(&self, index: u64, wait: Span) -> Result<LogAnswer, LinkError> {
        self.ask(|master| async move { Ok(master.log_after(index, wait).await) }).await
    }

    async fn propose(&self, proposal: Proposal) -> Result<ProposalAnswer, LinkError> {
        let caller = Caller::Scheduler("sim".into());
        self.ask(|master| async move { master.propose_as(&caller, proposal).await }).await
    }

    async fn lease(&self, request: LeaseRequest) -> Result<LeaseAnswer, LinkError> {
        self.ask(|master| async move { master.lease(request).await }).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| std::process::abort())
}
