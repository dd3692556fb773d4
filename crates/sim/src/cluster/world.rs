//! A simulated cell: real masters on virtual disks and a virtual network, the real scheduler, and
//! virtual agents, all on one paused single-threaded runtime. Every event follows from the seed.

use super::agent_link::AgentLink;
use super::clocks::{Clocks, NodeClock};
use super::disk::{DiskBugs, VirtualDisk};
use super::failpoints::{Failpoint, PanicPoint};
use super::net::{NetBugs, NodeAddress, VirtualNet, VirtualPeers, replica_of_address};
use super::scheduler_link::SchedulerLink;
use super::upgrade::known_level;
use super::usage_recorder::{UsageRecorder, UsageTable};
use super::violations::ViolationLog;
use super::watches::{FlowBugs, Watches};
use crate::agent::invariants::AgentInvariants;
use crate::agent::task_profile::Profile;
use crate::agent::{
    AgentBugs, RunEvent, TaskDelays, VirtualAgent, VirtualAgentConfig as AgentSettings,
};
use cellwright_api::masters::{KnownMasters, MasterList, MasterRotation};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_control::controller::ControllerBugs;
use cellwright_control::liveness::DownRate;
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::MasterHandle;
use cellwright_master::load_sampler::sample_loads_periodically;
use cellwright_master::master::{Environment as Around, Master};
use cellwright_master::replicated_state::CellStateMachine;
use cellwright_scheduler::{Scheduler, SchedulerShard};
use cellwright_store::{NodeId, OpenError, Peer, Role, StateMachine, StoreBugs};
use cellwright_supervise::{Supervisor, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

/// Bugs that a test injects to check that they are caught. All are off in every other run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlantedBugs {
    pub disk: DiskBugs,
    pub agent: AgentBugs,
    pub net: NetBugs,
    pub flow: FlowBugs,
    pub store: StoreBugs,
    pub controllers: ControllerBugs,
    /// Replica 1 applies something different from the others.
    pub diverges: bool,
    /// Clients count a request as acknowledged when it was sent.
    pub acks_early: bool,
    /// Clients take a stale read for a linearizable one.
    pub reads_stale: bool,
    /// Clients repeat a request under a new id.
    pub forgets_request_id: bool,
    /// Silent machines are declared down at once, however many there are.
    pub declares_down_early: bool,
    /// A replica that comes back starts from an empty disk under its old id.
    pub loses_disk: bool,
    /// Leases are counted from the leader's clock, not from the entry's own time.
    pub leases_by_clock: bool,
    /// The code that panics, some seconds after the start.
    pub panics: Option<PanicPoint>,
    /// A replica loses the record of what it has applied.
    pub forgets_applied: bool,
    /// Readers of the event feed do not see its gaps.
    pub hides_gaps: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct CellShape {
    pub masters: u64,
    pub machines: u64,
    pub schedulers: u64,
    /// Whatever starts again is of the next release.
    pub upgrades: bool,
}

/// How long a virtual machine takes to start and to stop a task, in milliseconds.
const TASK_DELAYS: TaskDelays = TaskDelays { start: 20, stop: 80 };
/// How long a machine is under pressure before it requests an eviction: runs are short too.
pub(super) const EVICTION_REQUEST_DELAY: Span = Span::seconds(5);
/// How many times as fast estimates fall as in a real cell, and from when on.
const ESTIMATE_SPEEDUP: u64 = 100;
const WARM_UP: Span = Span::seconds(3);

/// Between two samples of what scaled jobs use: four of them are a measurement.
const LOAD_SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// The addresses after the replicas'.
pub(super) const FIRST_AGENT_ADDRESS: NodeAddress = 1000;
const FIRST_SCHEDULER_ADDRESS: NodeAddress = 2000;
pub const FIRST_CLIENT_ADDRESS: NodeAddress = 3000;

struct ReplicaNode {
    disk: VirtualDisk,
    master: Option<Master>,
    /// Samples what its scaled jobs use, while it leads.
    sampler: Option<JoinHandle<()>>,
    /// It never comes back.
    is_lost: bool,
    has_started: bool,
    /// This incarnation must not go on, because its disk reported damage.
    has_failed: Arc<AtomicBool>,
}

/// Applies entries correctly, except that one replica of a buggy run does not.
struct FaultyStateMachine {
    machine: CellStateMachine,
    diverges: bool,
    forgets_applied: bool,
    failpoint: Failpoint,
}

impl StateMachine for FaultyStateMachine {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        self.failpoint.reach(PanicPoint::Apply);
        if self.diverges && index.is_multiple_of(5) {
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

    fn durable_applied(&self) -> Option<u64> {
        self.machine.durable_applied().filter(|_| !self.forgets_applied)
    }
}

impl Drop for FaultyStateMachine {
    /// Runs when the remains of a killed replica are dropped.
    fn drop(&mut self) {
        self.failpoint.reach(PanicPoint::Teardown);
    }
}

pub struct Cluster {
    seed: u64,
    pub shape: CellShape,
    pub bugs: PlantedBugs,
    pub net: VirtualNet,
    /// Number of faults so far.
    pub fault_count: u64,
    started: Instant,
    pub clocks: Clocks,
    nodes: BTreeMap<NodeId, ReplicaNode>,
    agents: Vec<Arc<Mutex<VirtualAgent>>>,
    agent_tasks: Vec<JoinHandle<()>>,
    scheduler_tasks: Vec<Option<JoinHandle<()>>>,
    /// The masters that each of them has saved: a later incarnation starts with them.
    scheduler_links: Vec<Arc<Mutex<MasterSelector>>>,
    /// Tasks started during the run and tasks that were asked to stop: all of them are awaited.
    background_tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Open watches of the API.
    pub watches: Watches,
    /// Supervises all that is not a replica: none of it may end before it is stopped.
    pub supervisor: Supervisor,
    /// What its masters keep of what tasks used.
    pub(super) usage: Arc<UsageTable>,
    /// Violations besides broken promises.
    pub violations: ViolationLog,
    /// A replica was removed from the membership, or may yet be.
    pub(super) has_removed_member: AtomicBool,
}

impl Cluster {
    /// Starts everything; the first replica has bootstrapped the membership.
    ///
    /// # Errors
    /// When a replica does not open or the cell does not form.
    pub async fn start(seed: u64, shape: CellShape, bugs: PlantedBugs) -> Result<Cluster, String> {
        cellwright_store::seed_rng(seed);
        let violations = ViolationLog::default();
        let mut cluster = Cluster {
            seed,
            shape,
            bugs,
            net: VirtualNet::new(seed ^ 1, bugs.net),
            fault_count: 0,
            started: Instant::now(),
            clocks: Clocks::new(Instant::now()),
            nodes: BTreeMap::new(),
            agents: Vec::new(),
            agent_tasks: Vec::new(),
            scheduler_tasks: Vec::new(),
            scheduler_links: Vec::new(),
            background_tasks: Mutex::default(),
            watches: Watches::default(),
            supervisor: violations.supervisor("the world".into()),
            usage: Arc::default(),
            violations,
            has_removed_member: AtomicBool::default(),
        };
        for id in 1..=shape.masters {
            let disk = VirtualDisk::new(seed.wrapping_mul(31).wrapping_add(id), bugs.disk);
            let failed = Arc::default();
            let (is_lost, has_started) = (false, false);
            let node = ReplicaNode {
                disk,
                master: None,
                sampler: None,
                is_lost,
                has_started,
                has_failed: failed,
            };
            cluster.nodes.insert(id, node);
            cluster.start_replica(id).await.map_err(|e| e.to_string())?;
        }
        let first = cluster.net.master(1).ok_or("replica 1 is missing")?;
        let peers = (1..=shape.masters).map(|id| (id, peer(id))).collect();
        first.replica().bootstrap(peers).await.map_err(|e| e.to_string())?;
        for number in 0..shape.machines {
            cluster.add_agent(number);
        }
        for number in 0..shape.schedulers {
            cluster.scheduler_tasks.push(None);
            let known = MasterSelector::new(1 + number % shape.masters);
            cluster.scheduler_links.push(Arc::new(Mutex::new(known)));
            cluster.start_scheduler(number);
        }
        if shape.upgrades {
            cluster.raise_levels();
        }
        Ok(cluster)
    }

    #[must_use]
    pub fn failpoint(&self) -> Failpoint {
        Failpoint::new(self.bugs.panics, self.started)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// # Errors
    /// When the replica finds its disk damaged.
    pub async fn start_replica(&mut self, id: NodeId) -> Result<(), OpenError> {
        let planted = self.failpoint();
        let stays_off = |node: &ReplicaNode| node.is_lost || node.master.is_some();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !stays_off(node)) else {
            return Ok(());
        };
        if self.bugs.loses_disk && self.started.elapsed() > Duration::from_secs(1) {
            node.disk = VirtualDisk::new(id, self.bugs.disk);
        }
        node.has_failed = Arc::default();
        let failed = node.has_failed.clone();
        let store = cellwright_store::StoreConfig {
            snapshot_entries: 40,
            keep_entries: 20,
            segment_bytes: 4096,
            on_fatal: Arc::new(move |_| failed.store(true, Ordering::SeqCst)),
            supervisor: self
                .violations
                .replica_supervisor(format!("replica {id}"), node.has_failed.clone()),
            bugs: self.bugs.store,
            ..cellwright_store::StoreConfig::default()
        };
        let around = Around {
            disk: Arc::new(node.disk.mount()),
            peers: Arc::new(VirtualPeers { net: self.net.clone(), from: id, failpoint: planted }),
            clock: Arc::new(NodeClock(self.clocks.clone(), id, planted)),
        };
        let differs = self.bugs.diverges && id == 1;
        let forgets = self.bugs.forgets_applied;
        let wrap = move |machine| FaultyStateMachine {
            machine,
            diverges: differs,
            forgets_applied: forgets,
            failpoint: planted,
        };
        let mut config = master_config(self.bugs);
        let is_upgraded = self.shape.upgrades && node.has_started;
        config.known_level = known_level(is_upgraded);
        node.has_started = true;
        let master = Master::start_wrapped(id, config, store, around, wrap).await?;
        let recorder = UsageRecorder::new(self.usage.clone(), master.handle().replicated().clone());
        master.handle().set_usage_ledger(Arc::new(recorder));
        self.net.attach(id, master.handle().clone());
        let sampling = sample_loads_periodically(master.handle().clone(), LOAD_SAMPLE_INTERVAL);
        node.sampler = Some(self.supervisor.spawn_finite("sampling the loads of jobs", sampling));
        node.master = Some(master);
        Ok(())
    }

    /// Kills a replica's process, or cuts the power of its machine.
    pub async fn stop_replica(&mut self, id: NodeId, power: bool) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(master) = node.master.take() else { return };
        self.net.detach(id);
        self.watches.forget_replica(id);
        if let Some(sampler) = node.sampler.take() {
            sampler.abort();
            // As below: an aborted task is cancelled, and reports any other failure itself.
            let _ = sampler.await;
        }
        // A job that the disk was given may have been done in part.
        if power {
            node.disk.cut_power();
        } else {
            node.disk.kill();
        }
        master.kill().await;
    }

    /// A replica is gone for good, as long as a majority remains. The others go on, and agents that
    /// joined by this one go on with them.
    pub async fn lose_replica(&mut self, id: NodeId) {
        if self.has_spare_replica() {
            self.stop_replica(id, true).await;
            if let Some(node) = self.nodes.get_mut(&id) {
                node.is_lost = true;
            }
        }
    }

    pub(super) fn is_lost(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.is_lost)
    }

    /// How many replicas are gone for good.
    #[must_use]
    pub fn lost_count(&self) -> u64 {
        self.nodes.values().map(|node| u64::from(node.is_lost)).sum()
    }

    /// Replicas that stopped because of their own disk.
    #[must_use]
    pub fn failed_replicas(&self) -> Vec<NodeId> {
        let failed =
            |node: &ReplicaNode| node.master.is_some() && node.has_failed.load(Ordering::SeqCst);
        self.nodes.iter().filter(|(_, node)| failed(node)).map(|(id, _)| *id).collect()
    }

    #[must_use]
    pub fn disk(&self, id: NodeId) -> Option<&VirtualDisk> {
        self.nodes.get(&id).map(|node| &node.disk)
    }

    /// Replicas that are running.
    #[must_use]
    pub fn running_replicas(&self) -> Vec<(NodeId, MasterHandle)> {
        let on = |(id, node): (&NodeId, &ReplicaNode)| {
            node.master.as_ref().map(|master| (*id, master.handle().clone()))
        };
        self.nodes.iter().filter_map(on).collect()
    }

    /// The replica that leads with a quorum behind it.
    #[must_use]
    pub fn leader(&self) -> Option<(NodeId, MasterHandle)> {
        let leads = |(_, handle): &(NodeId, MasterHandle)| {
            let status = handle.status();
            status.role == Role::Leader && status.quorum_silent_millis.is_some_and(|ms| ms < 500)
        };
        let mut leaders: Vec<(NodeId, MasterHandle)> =
            self.running_replicas().into_iter().filter(leads).collect();
        leaders.sort_by_key(|(_, handle)| handle.status().term);
        leaders.pop()
    }

    /// Whether nothing but a lack of disk space could keep the cell from working.
    #[must_use]
    pub fn is_healthy_except_disk(&self) -> bool {
        let on = self.nodes.values().all(|node| node.master.is_some() && node.disk.is_healthy());
        on && self.net.is_healthy() && self.failed_replicas().is_empty()
    }

    fn add_agent(&mut self, number: u64) {
        let profile = Profile { unhealthy_permille: 200, ..Profile::new(self.seed ^ number) };
        let settings = AgentSettings {
            eviction_request_delay: EVICTION_REQUEST_DELAY,
            ..AgentSettings::new(TASK_DELAYS, profile)
        };
        let mut agent = VirtualAgent::new(machine_spec(number), settings);
        (agent.bugs, agent.invariants) = (self.bugs.agent, Some(AgentInvariants::default()));
        let agent = Arc::new(Mutex::new(agent));
        self.agents.push(agent.clone());
        let line = AgentLink {
            agent,
            net: self.net.clone(),
            node_address: FIRST_AGENT_ADDRESS + number,
            known_masters: Mutex::new(MasterSelector::new(
                1 + (FIRST_AGENT_ADDRESS + number) % self.shape.masters,
            )),
            orders_changed: Notify::new(),
            report_due: Notify::new(),
            started: self.started,
            clocks: self.clocks.clone(),
            violations: self.violations.clone(),
            failpoint: self.failpoint(),
        };
        self.agent_tasks.push(self.supervisor.spawn_essential("an agent", line.run()));
    }

    #[must_use]
    pub fn agent_addresses(&self) -> Vec<NodeAddress> {
        (0..self.shape.machines).map(|number| FIRST_AGENT_ADDRESS + number).collect()
    }

    pub fn reboot_agent(&self, number: usize) {
        if let Some(agent) = self.agents.get(number) {
            lock(agent).reboot(self.now());
        }
    }

    /// A machine comes back without its data.
    pub fn lose_data(&self, number: usize) {
        if let (Some(agent), Ok(offset)) = (self.agents.get(number), u64::try_from(number)) {
            lock(agent).lose_data(self.now(), self.clocks.clock_time(FIRST_AGENT_ADDRESS + offset));
        }
    }

    /// The address of a scheduler process.
    #[must_use]
    pub fn scheduler_address(&self, number: u64) -> NodeAddress {
        FIRST_SCHEDULER_ADDRESS + number
    }

    /// The starts and ends since this was last called, by machine.
    #[must_use]
    pub fn take_run_events(&self) -> Vec<(usize, RunEvent)> {
        let take = |(at, agent): (usize, &Arc<Mutex<VirtualAgent>>)| {
            lock(agent).take_run_events().into_iter().map(move |ran| (at, ran))
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
        let Some(line) = self.scheduler_links.get(slot).cloned() else { return };
        let (net, clocks) = (self.net.clone(), self.clocks.clone());
        let link = SchedulerLink {
            net,
            node_address: FIRST_SCHEDULER_ADDRESS + number,
            known_masters: line,
            clocks,
            failpoint: self.failpoint(),
        };
        let named = (Name::new(&format!("s{number}")), SchedulerShard::new(""));
        let (Ok(name), Ok(scheduler_shard)) = named else { return };
        let mut settings =
            cellwright_scheduler::SchedulerConfig::new(name, scheduler_shard, number);
        settings.poll_wait = Span(1000);
        settings.answer_timeout = Span(1000);
        settings.retry_max = Span(500);
        settings.known_level = known_level(self.shape.upgrades && self.now() > 0);
        let Ok(scheduler) = Scheduler::new(Arc::new(link), settings) else { return };
        let running = self.supervisor.spawn_essential("a scheduler", scheduler.run());
        if let Some(slot) = self.scheduler_tasks.get_mut(slot)
            && let Some(old) = slot.replace(running)
        {
            old.abort();
            lock(&self.background_tasks).push(old);
        }
    }

    pub fn kill_scheduler(&mut self, number: u64) {
        let slot = usize::try_from(number).unwrap_or(0);
        if let Some(task) = self.scheduler_tasks.get_mut(slot).and_then(Option::take) {
            task.abort();
            lock(&self.background_tasks).push(task);
        }
    }

    /// Spawns a task beside all else, which must not panic.
    pub(super) fn spawn_background(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let task_handle = self.supervisor.spawn_finite(task, work);
        let ends = task_handle.abort_handle();
        lock(&self.background_tasks).push(task_handle);
        ends
    }

    /// Stops everything, and returns what went wrong until the last moment.
    pub async fn shut_down(mut self) -> Option<String> {
        let schedulers = self.scheduler_tasks.drain(..).flatten();
        let mut tasks: Vec<JoinHandle<()>> = self.agent_tasks.drain(..).chain(schedulers).collect();
        tasks.append(&mut lock(&self.background_tasks));
        self.watches.close();
        for task in tasks {
            task.abort();
            // An aborted task is cancelled; any other failure was reported by the task itself.
            let _ = task.await;
        }
        for id in 1..=self.shape.masters {
            self.stop_replica(id, false).await;
        }
        self.violations.first()
    }
}

fn master_config(bugs: PlantedBugs) -> MasterConfig {
    let mut settings = MasterConfig::default();
    settings.core.liveness.poll_interval = Span(1000);
    settings.core.liveness.link_shard_timeout = Span(2000);
    settings.core.liveness.reconnect_grace = Span(3000);
    settings.core.scheduler_lease = Span(1000);
    settings.core.controllers.bugs = bugs.controllers;
    settings.reclaim.gather_for = Span(1000);
    settings.reclaim.estimate = settings.reclaim.estimate.accelerated(ESTIMATE_SPEEDUP);
    settings.reclaim.estimate.warm_up = WARM_UP;
    if bugs.declares_down_early {
        settings.core.liveness.missed_polls = 1;
        settings.core.liveness.reconnect_grace = Span::ZERO;
        settings.core.liveness.pause_above_permille = 1000;
        settings.core.liveness.max_down_per_minute = DownRate::Machines(60_000);
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
    super::fixtures::machine(&format!("machine-{number}"), 4000)
}

/// The masters that an agent or a scheduler knows: it was given one, and learns the others from
/// answers, with the code of the product.
pub(super) struct MasterSelector {
    masters: KnownMasters,
    pub round: MasterRotation,
}

impl MasterSelector {
    pub fn new(id: NodeId) -> MasterSelector {
        let address = peer(id).address;
        MasterSelector {
            masters: KnownMasters::new(vec![address.clone()]),
            round: MasterRotation::from(address),
        }
    }

    pub fn replica(&self) -> NodeId {
        replica_of_address(self.round.master()).unwrap_or(1)
    }

    pub fn note_answer(&mut self, masters: Option<&MasterList>, redirect: Option<String>) {
        masters.map(|masters| self.masters.learn(masters));
        self.round.on_answer(redirect, Instant::now());
    }

    pub fn note_failure(&mut self) {
        self.round.on_failure(self.masters.all(), Instant::now());
    }
}
