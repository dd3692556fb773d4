//! A simulated cell: real masters on virtual disks and a virtual network, the real scheduler, and
//! virtual agents, all on one paused single-threaded runtime. What happens follows from the seed.

use super::agent_line::AgentLine;
use super::clocks::{ClockAt, Clocks};
use super::disk::{DiskBugs, VirtualDisk};
use super::flaws::Flaws;
use super::net::{NetBugs, Place, VirtualNet, VirtualPeers, address_id};
use super::planted::{Panics, Planted};
use super::scheduler_line::SchedulerLine;
use super::watches::{FlowBugs, Watches};
use crate::agent::profile::Profile;
use crate::agent::witness::Witness;
use crate::agent::{AgentBugs, Pace, Ran, Settings as AgentSettings, VirtualAgent};
use cellwright_api::masters::{KnownMasters, Masters, Round};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_master::handle::Handle;
use cellwright_master::master::{Master, World as Around};
use cellwright_master::replicated::CellMachine;
use cellwright_master::settings::Settings;
use cellwright_scheduler::{Lane, Scheduler};
use cellwright_store::{Machine, NodeId, OpenError, Peer, Role, StoreBugs};
use cellwright_supervise::{Supervisor, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

/// Bugs that a test plants to see them caught. All off in every other run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bugs {
    pub disk: DiskBugs,
    pub agent: AgentBugs,
    pub net: NetBugs,
    pub flow: FlowBugs,
    pub store: StoreBugs,
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
    /// Leases are counted from what the leader's clock says, not from the entry's own time.
    pub leases_by_clock: bool,
    /// Who panics, some seconds after the start.
    pub panics: Option<Panics>,
    /// A replica does not remember what it has applied.
    pub forgets_applied: bool,
    /// Readers of the event feed are not told what is missing in it.
    pub hides_gaps: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub masters: u64,
    pub machines: u64,
    pub schedulers: u64,
}

/// What a virtual machine takes to start and to stop a task, in milliseconds.
const PACE: Pace = Pace { start: 20, stop: 80 };
/// How long a machine is short before it asks for relief: runs are short too.
pub(super) const ASK_AFTER: Span = Span::seconds(5);
/// How many times as fast estimates fall as in a real cell, and from when on.
const HASTE: u64 = 100;
const WARM_UP: Span = Span::seconds(3);

/// Addresses after the replicas'.
pub(super) const AGENTS: Place = 1000;
const SCHEDULERS: Place = 2000;
pub const CLIENTS: Place = 3000;

struct Node {
    disk: VirtualDisk,
    master: Option<Master>,
    /// It never comes back.
    lost: bool,
    /// A life that must not go on: its disk said so.
    failed: Arc<AtomicBool>,
}

/// Applies as it should, except that one replica of a buggy run does not.
struct PerhapsDiffers {
    machine: CellMachine,
    differs: bool,
    forgets: bool,
    planted: Planted,
}

impl Machine for PerhapsDiffers {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        self.planted.reach(Panics::Apply);
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

    fn witnessed(&self) -> Option<u64> {
        self.machine.witnessed().filter(|_| !self.forgets)
    }
}

impl Drop for PerhapsDiffers {
    /// What a replica leaves behind goes when it is killed.
    fn drop(&mut self) {
        self.planted.reach(Panics::Leaving);
    }
}

pub struct Cluster {
    seed: u64,
    pub shape: Shape,
    pub bugs: Bugs,
    pub net: VirtualNet,
    /// How often something went wrong.
    pub strikes: u64,
    started: Instant,
    pub clocks: Clocks,
    nodes: BTreeMap<NodeId, Node>,
    agents: Vec<Arc<Mutex<VirtualAgent>>>,
    agent_tasks: Vec<JoinHandle<()>>,
    scheduler_tasks: Vec<Option<JoinHandle<()>>>,
    /// What each of them has kept of the masters: a later life goes on with it.
    scheduler_lines: Vec<Arc<Mutex<Known>>>,
    /// What was begun on the way and whoever was told to end: all of it is waited for.
    errands: Mutex<Vec<JoinHandle<()>>>,
    /// Watches of the API, as far as somebody has some.
    pub watches: Watches,
    /// Of all that is no replica: none of it may end before it is ended.
    pub supervisor: Supervisor,
    /// What was seen to go wrong besides broken promises.
    pub flaws: Flaws,
    /// Somebody was taken out of the members, or may yet be.
    pub(super) has_dropped: AtomicBool,
}

impl Cluster {
    /// Starts everything; the first replica has bootstrapped the membership.
    ///
    /// # Errors
    /// When a replica does not open or the cell does not form.
    pub async fn start(seed: u64, shape: Shape, bugs: Bugs) -> Result<Cluster, String> {
        cellwright_store::seed_randomness(seed);
        let flaws = Flaws::default();
        let mut cluster = Cluster {
            seed,
            shape,
            bugs,
            net: VirtualNet::new(seed ^ 1, bugs.net),
            strikes: 0,
            started: Instant::now(),
            clocks: Clocks::new(Instant::now()),
            nodes: BTreeMap::new(),
            agents: Vec::new(),
            agent_tasks: Vec::new(),
            scheduler_tasks: Vec::new(),
            scheduler_lines: Vec::new(),
            errands: Mutex::default(),
            watches: Watches::default(),
            supervisor: flaws.supervisor("the world".into()),
            flaws,
            has_dropped: AtomicBool::default(),
        };
        for id in 1..=shape.masters {
            let disk = VirtualDisk::new(seed.wrapping_mul(31).wrapping_add(id), bugs.disk);
            let failed = Arc::default();
            cluster.nodes.insert(id, Node { disk, master: None, lost: false, failed });
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
            let one = Known::one(1 + number % shape.masters);
            cluster.scheduler_lines.push(Arc::new(Mutex::new(one)));
            cluster.start_scheduler(number);
        }
        Ok(cluster)
    }

    #[must_use]
    pub fn planted(&self) -> Planted {
        Planted::new(self.bugs.panics, self.started)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// # Errors
    /// When the replica finds its disk damaged.
    pub async fn turn_on(&mut self, id: NodeId) -> Result<(), OpenError> {
        let planted = self.planted();
        let stays_off = |node: &Node| node.lost || node.master.is_some();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !stays_off(node)) else {
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
            supervisor: self.flaws.replica_supervisor(format!("replica {id}"), node.failed.clone()),
            bugs: self.bugs.store,
            ..cellwright_store::Settings::default()
        };
        let around = Around {
            disk: Arc::new(node.disk.hold()),
            peers: Arc::new(VirtualPeers { net: self.net.clone(), from: id, planted }),
            clock: Arc::new(ClockAt(self.clocks.clone(), id, planted)),
        };
        let differs = self.bugs.differs && id == 1;
        let forgets = self.bugs.forgets_applied;
        let wrap = move |machine| PerhapsDiffers { machine, differs, forgets, planted };
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
        self.watches.lose(id);
        // A job that the disk was given may be done in part.
        if power {
            node.disk.cut_power();
        } else {
            node.disk.kill();
        }
        master.kill().await;
    }

    /// A replica is gone for good, as long as that is one of a minority. The others go on, and who
    /// joined by this one goes on with them.
    pub async fn lose(&mut self, id: NodeId) {
        if self.can_lose_one() {
            self.turn_off(id, true).await;
            if let Some(node) = self.nodes.get_mut(&id) {
                node.lost = true;
            }
        }
    }

    pub(super) fn is_lost(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.lost)
    }

    /// How many replicas are gone for good.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.nodes.values().map(|node| u64::from(node.lost)).sum()
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

    /// Nothing but the room on disks could keep the cell from working.
    #[must_use]
    pub fn is_otherwise_well(&self) -> bool {
        let on = self.nodes.values().all(|node| node.master.is_some() && node.disk.is_well());
        on && self.net.is_whole() && self.failed().is_empty()
    }

    fn add_agent(&mut self, number: u64) {
        let profile = Profile { ill_permille: 200, ..Profile::new(self.seed ^ number) };
        let settings = AgentSettings { ask_after: ASK_AFTER, ..AgentSettings::new(PACE, profile) };
        let mut agent = VirtualAgent::new(machine_spec(number), settings);
        (agent.bugs, agent.witness) = (self.bugs.agent, Some(Witness::default()));
        let agent = Arc::new(Mutex::new(agent));
        self.agents.push(agent.clone());
        let line = AgentLine {
            agent,
            net: self.net.clone(),
            place: AGENTS + number,
            line: Mutex::new(Known::one(1 + (AGENTS + number) % self.shape.masters)),
            orders: Notify::new(),
            news: Notify::new(),
            started: self.started,
            clocks: self.clocks.clone(),
            flaws: self.flaws.clone(),
            planted: self.planted(),
        };
        self.agent_tasks.push(self.supervisor.essential("an agent", line.run()));
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

    /// A machine comes back without its data.
    pub fn lose_data(&self, number: usize) {
        if let (Some(agent), Ok(place)) = (self.agents.get(number), u64::try_from(number)) {
            lock(agent).lose_data(self.now(), self.clocks.at(AGENTS + place));
        }
    }

    /// Where the process of a scheduler is.
    #[must_use]
    pub fn scheduler_place(&self, number: u64) -> Place {
        SCHEDULERS + number
    }

    /// What ran where since it was last asked, by machine.
    #[must_use]
    pub fn take_history(&self) -> Vec<(usize, Ran)> {
        let take = |(at, agent): (usize, &Arc<Mutex<VirtualAgent>>)| {
            lock(agent).take_history().into_iter().map(move |ran| (at, ran))
        };
        self.agents.iter().enumerate().flat_map(take).collect()
    }

    #[must_use]
    pub fn agents(&self) -> &[Arc<Mutex<VirtualAgent>>] {
        &self.agents
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.agents.iter().map(|agent| lock(agent).running()).sum()
    }

    pub fn start_scheduler(&mut self, number: u64) {
        let slot = usize::try_from(number).unwrap_or(0);
        let Some(line) = self.scheduler_lines.get(slot).cloned() else { return };
        let (net, clocks) = (self.net.clone(), self.clocks.clone());
        let link = SchedulerLine {
            net,
            place: SCHEDULERS + number,
            line,
            clocks,
            planted: self.planted(),
        };
        let named = (Name::new(&format!("s{number}")), Lane::new(""));
        let (Ok(name), Ok(lane)) = named else { return };
        let mut settings = cellwright_scheduler::Settings::new(name, lane, number);
        settings.poll = Span(1000);
        settings.patience = Span(1000);
        settings.retry_max = Span(500);
        let Ok(scheduler) = Scheduler::new(Arc::new(link), settings) else { return };
        let running = self.supervisor.essential("a scheduler", scheduler.run());
        if let Some(slot) = self.scheduler_tasks.get_mut(slot)
            && let Some(old) = slot.replace(running)
        {
            old.abort();
            lock(&self.errands).push(old);
        }
    }

    pub fn kill_scheduler(&mut self, number: u64) {
        let slot = usize::try_from(number).unwrap_or(0);
        if let Some(task) = self.scheduler_tasks.get_mut(slot).and_then(Option::take) {
            task.abort();
            lock(&self.errands).push(task);
        }
    }

    /// Something that goes on beside all else, and must not panic.
    pub(super) fn errand(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let begun = self.supervisor.errand(task, work);
        let ends = begun.abort_handle();
        lock(&self.errands).push(begun);
        ends
    }

    /// Stops everything, and says what went wrong until the last moment.
    pub async fn end(mut self) -> Option<String> {
        let schedulers = self.scheduler_tasks.drain(..).flatten();
        let mut tasks: Vec<JoinHandle<()>> = self.agent_tasks.drain(..).chain(schedulers).collect();
        tasks.append(&mut lock(&self.errands));
        self.watches.close();
        for task in tasks {
            task.abort();
            // What is aborted is cancelled; anything else was said by it.
            let _ = task.await;
        }
        for id in 1..=self.shape.masters {
            self.turn_off(id, false).await;
        }
        self.flaws.first()
    }
}

fn settings(bugs: Bugs) -> Settings {
    let mut settings = Settings::default();
    settings.core.liveness.poll = Span(1000);
    settings.core.liveness.shard_silence = Span(2000);
    settings.core.liveness.extra = Span(3000);
    settings.core.scheduler_lease = Span(1000);
    settings.reclaim.gather = Span(1000);
    settings.reclaim.estimate = settings.reclaim.estimate.hastened(HASTE);
    settings.reclaim.estimate.warm_up = WARM_UP;
    if bugs.hasty {
        settings.core.liveness.missed_polls = 1;
        settings.core.liveness.extra = Span::ZERO;
        settings.core.liveness.hold_above_permille = 1000;
        settings.core.liveness.per_minute = 60_000;
        settings.core.liveness.burst = 1000;
    }
    settings
}

pub(super) fn peer(id: NodeId) -> Peer {
    Peer { name: format!("m{id}"), address: format!("m{id}:1") }
}

/// The machine with this number.
#[must_use]
pub fn machine_spec(number: u64) -> MachineSpec {
    super::plain::machine(&format!("machine-{number}"), 4000)
}

/// The masters that an agent or a scheduler knows: it was told of one, and learns the others from
/// those that answer, by the code of the product.
pub(super) struct Known {
    masters: KnownMasters,
    pub round: Round,
}

impl Known {
    pub fn one(id: NodeId) -> Known {
        let address = peer(id).address;
        Known { masters: KnownMasters::named(vec![address.clone()]), round: Round::from(address) }
    }

    pub fn replica(&self) -> NodeId {
        address_id(self.round.master()).unwrap_or(1)
    }

    pub fn answered(&mut self, said: Option<&Masters>, redial: Option<String>) {
        said.map(|masters| self.masters.learn(masters));
        self.round.answered(redial, Instant::now());
    }

    pub fn failed(&mut self) {
        self.round.failed(self.masters.all(), Instant::now());
    }
}
