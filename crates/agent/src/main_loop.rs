//! The agent's loop: one closed set of events, the core decides, this file does. Events come from
//! the link (orders, requests for the report), from the attempts (status, ends) and from whoever
//! runs the agent.

mod poll_response;
mod starting;
mod watching;

use crate::attempt::{AttemptUpdate, record_exit};
use crate::boot::{self, MachineIncarnation};
use crate::config::{Config, ConfigError};
use crate::device_positions;
use crate::link::{Link, LinkMessage, ReportPacer, ReportSizeLimit};
use crate::listen::{self, Access, Handlers, Listener};
use crate::machine::describe;
use crate::preparer::Preparer;
use crate::record::{self, Durability, RecordError, open_lock};
use crate::session::{SessionServer, Sessions};
use crate::shim::protocol::{ExitCause, Request, Status};
use crate::shim_program::ShimProgram;
use crate::state_dir::{Folders, SteadyTime, StoredOrder};
use crate::usage::ProcessSampler;
use crate::watch::{Readings, WatchedTask};
use cellwright_agent_core::agent::{AgentCore, Event, Facts};
use cellwright_agent_core::orders::Orders;
use cellwright_agent_core::reconcile::{Action, End};
use cellwright_agent_core::usage::Sampler;
use cellwright_api::client::Client;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::internal::AgentReport;
use cellwright_api::output::AGENT_ADDRESS_ATTRIBUTE;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::Attempt;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Token;
use cellwright_cell::task::StopCause;
use cellwright_cell::time::Span;
use cellwright_isolate::cgroup::Group;
use cellwright_package::PackageError;
use cellwright_supervise::Supervisor;
use starting::{preparer, watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Between two looks at what is kept of the past.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Between two looks at what tasks use and who must give way.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Programs that ask tasks how they are, at a time: tasks are many, and starting one costs the
/// machine and not the task.
const MAX_PARALLEL_PROBES: usize = 8;

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Packages(#[from] PackageError),
    /// The folder is not as it has to be; the text names it.
    #[error("{0}")]
    Folder(std::io::Error),
    #[error("{what}: {why}")]
    Io { what: String, why: std::io::Error },
    #[error("listen = {address}: {why}")]
    Listen { address: std::net::SocketAddr, why: std::io::Error },
    #[error("another agent runs in {0}")]
    Occupied(String),
}

/// What becomes of tasks when the agent is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// They go on: the next agent finds them.
    LeaveTasks,
    /// They are stopped: nobody is to come back soon.
    StopTasks,
}

/// The agent's end of one attempt.
#[derive(Default)]
struct LocalAttempt {
    requests: Option<mpsc::UnboundedSender<Request>>,
    status: Option<Status>,
    /// Asks whether it is well.
    prober: Option<JoinHandle<()>>,
    /// Its control group, once it runs in one.
    group: Option<Group>,
    /// Ports it listens on that were not given to it.
    unassigned_ports: BTreeSet<u16>,
}

impl Drop for LocalAttempt {
    fn drop(&mut self) {
        self.stop_prober();
    }
}

/// A future whose code is made here: that of any other is made by the crate that awaits it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub struct Agent {
    config: Config,
    machine: MachineSpec,
    folders: Folders,
    incarnation: MachineIncarnation,
    /// By which it is known how old things are.
    time: SteadyTime,
    preparer: Arc<Preparer>,
    /// What it decides.
    core: AgentCore,
    locals: BTreeMap<Attempt, LocalAttempt>,
    sampler: Sampler,
    /// For tasks without groups.
    process_sampler: ProcessSampler,
    readings: Readings,
    /// Where tasks are sent to be looked at.
    watcher: SyncSender<Vec<WatchedTask>>,
    /// The later life of the machine that was spoken of, if any.
    superseded_by: u64,
    news: Arc<Notify>,
    updates_tx: mpsc::UnboundedSender<(Attempt, AttemptUpdate)>,
    updates_rx: mpsc::UnboundedReceiver<(Attempt, AttemptUpdate)>,
    listener: Option<Listener>,
    /// How other agents are dialled.
    dialler: AgentDialler,
    /// Whether masters know this agent, and so can tell whose tasks it has.
    has_identity: bool,
    sessions: Sessions,
    /// Watches over what the agent cannot live without.
    supervisor: Supervisor,
    /// Programs that ask tasks how they are, at a time.
    probing: Arc<Semaphore>,
    /// Held as long as the agent runs.
    _lock: std::fs::File,
}

impl Agent {
    /// Opens the state of this machine and takes up every attempt that is there.
    ///
    /// # Errors
    /// When the folder cannot be used, another agent uses it, or the machine cannot be described.
    pub fn open(config: Config, shim: ShimProgram) -> Result<Agent, AgentError> {
        let io = |why| AgentError::Io { what: config.data_dir.display().to_string(), why };
        let folders = Folders::open(&config.data_dir).map_err(|why| match why.get_ref() {
            Some(_) => AgentError::Folder(why),
            None => io(why),
        })?;
        let lock = lock_state_dir(&folders)?;
        let mut described = describe(&config)?;
        device_positions::assign_positions(&folders.devices_file(), &mut described)?;
        let mut machine = described.spec.clone();
        let devices = described.devices.clone();
        let preparer = Arc::new(preparer(&config, &folders, &mut machine, devices, shim)?);
        let (incarnation, rebooted) = boot::load_incarnation(&folders.incarnation_file())?;
        let orders = match record::read(&folders.orders_file()) {
            Ok(orders) => orders.unwrap_or_default(),
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::error!(%error, "orders are asked for again");
                Orders::default()
            }
            Err(error) => return Err(error.into()),
        };
        // Orders of another boot are of no use: what they list is dead.
        let orders =
            if rebooted { Orders { epoch: orders.epoch, ..Orders::default() } } else { orders };
        let (updates_tx, updates_rx) = mpsc::unbounded_channel();
        let readings = Readings::default();
        let looks = (Span::seconds(config.control.relief_seconds), config.counting);
        let supervisor = Supervisor::default();
        let found = (readings.clone(), updates_tx.clone());
        let watcher = watcher(described, looks, &folders, found, &supervisor).map_err(io)?;
        let mut agent = Agent {
            config,
            machine,
            folders,
            core: AgentCore::new(incarnation.number, orders),
            incarnation,
            time: SteadyTime::begin(cellwright_identity::clock::system(), boot::now()),
            preparer,
            locals: BTreeMap::new(),
            sampler: Sampler::default(),
            process_sampler: ProcessSampler::default(),
            readings,
            watcher,
            superseded_by: 0,
            news: Arc::new(Notify::new()),
            updates_tx,
            updates_rx,
            listener: None,
            dialler: AgentDialler::plain(Vec::new()),
            has_identity: false,
            sessions: Sessions::default(),
            supervisor,
            probing: Arc::new(Semaphore::new(MAX_PARALLEL_PROBES)),
            _lock: lock,
        };
        agent.adopt(rebooted)?;
        // Only now: an agent that dies before this finds the same boot again.
        boot::save_incarnation(&agent.folders.incarnation_file(), &agent.incarnation)?;
        // The orders may be newer than what each attempt was started with.
        let other_checks = agent.core.refresh();
        other_checks.into_iter().for_each(|attempt| agent.start_prober(attempt));
        Ok(agent)
    }

    #[must_use]
    pub fn machine(&self) -> &MachineSpec {
        &self.machine
    }

    /// Listens where the configuration says, and has the masters know where that is. Nobody is
    /// answered before the agent runs.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn listen<'a>(
        &'a mut self,
        access: Access,
        masters: &'a [String],
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(self.start_listening(access, masters))
    }

    async fn start_listening(
        &mut self,
        access: Access,
        masters: &[String],
    ) -> Result<(), AgentError> {
        self.dialler = access.dialler();
        self.has_identity = matches!(access, Access::Parts { .. });
        let Some(address) = self.config.listen_address() else { return Ok(()) };
        let why = |why| AgentError::Listen { address, why };
        let (listener, found) = Listener::open(address, access).await.map_err(why)?;
        self.listener = Some(listener);
        let found = listen::advertised_address(found, self.config.address, masters).await;
        if let (Some(found), Ok(name)) = (found, Token::new(AGENT_ADDRESS_ATTRIBUTE)) {
            let value = AttributeValue::Text(found.to_string());
            self.machine.attributes.insert(name, value);
        }
        Ok(())
    }

    fn handlers(&self) -> Handlers {
        let (folders, sessions) = (self.folders.clone(), self.sessions.clone());
        let program = self.preparer.shim.clone();
        let session_server = SessionServer { folders: folders.clone(), program, sessions };
        Handlers { folders, session_server, preparer: self.preparer.clone() }
    }

    /// Takes up what an earlier agent left.
    fn adopt(&mut self, rebooted: bool) -> Result<(), AgentError> {
        let io = |why| AgentError::Io { what: "tasks".into(), why };
        for (attempt, ordered) in self.folders.attempts()? {
            let folder = self.folders.attempt_dir(attempt);
            let order = match ordered {
                StoredOrder::Known(order) => *order,
                StoredOrder::NeverRan => {
                    self.folders.discard(attempt).map_err(io)?;
                    continue;
                }
                StoredOrder::Unreadable(why) => {
                    tracing::error!(%attempt, why, "what runs here is unknown, so it is ended");
                    placeholder_order(attempt)
                }
            };
            let ended = crate::shim::exit_of(&folder).ok().flatten();
            let is_alloc = matches!(order.action, Order::Hold { .. });
            if rebooted && ended.is_none() {
                record_exit(&folder, ExitCause::Lost("the machine booted again".into()));
            }
            let mut local = LocalAttempt::default();
            if !is_alloc || rebooted {
                local.requests = Some(self.supervise(attempt, &order));
            }
            if matches!(order.action, Order::Stop { .. }) {
                local.send(Request::Kill);
            }
            self.core.adopt(order);
            if is_alloc && !rebooted {
                let event = ended.map_or(Event::Held, |exit| Event::Ended(exit.outcome()));
                self.core.observe(attempt, event);
            }
            self.locals.insert(attempt, local);
        }
        // What has ended took everything down with it, or went with the boot.
        let lives = |attempt: &&Attempt| {
            !matches!(crate::shim::exit_of(&self.folders.attempt_dir(**attempt)), Ok(Some(_)))
        };
        let kept: BTreeSet<Attempt> = self.locals.keys().filter(lives).copied().collect();
        self.preparer.groups.sweep(&kept);
        let names = kept.iter().map(ToString::to_string).collect();
        self.preparer.driver.sweep(&self.folders.tasks_dir(), &names);
        // Now that those who live hold what they run from.
        self.preparer.packages.trim();
        Ok(())
    }

    /// Polls the masters and does as they say until `stop` is done.
    pub fn run<'a>(
        self,
        client: Client,
        stop: impl Future<Output = ShutdownMode> + Send + 'a,
    ) -> BoxFuture<'a, ()> {
        self.run_until(client, Box::pin(stop))
    }

    fn run_until(self, client: Client, stop: BoxFuture<'_, ShutdownMode>) -> BoxFuture<'_, ()> {
        Box::pin(self.run_loop(client, stop))
    }

    async fn run_loop(mut self, client: Client, mut stop: BoxFuture<'_, ShutdownMode>) {
        let (to_agent, mut messages) = mpsc::unbounded_channel();
        let own = self.machine.name.clone();
        self.preparer.packages.connect(&client, self.dialler.clone(), own);
        if self.has_identity {
            self.preparer.certifier.connect(&client);
        }
        let (news, pacer, size_limit) =
            (self.news.clone(), ReportPacer::default(), ReportSizeLimit::default());
        let link = Link { client, to_agent, news, pacer, size_limit };
        self.reconcile();
        let mut helpers =
            vec![self.supervisor.spawn_essential("the line to the masters", link.run())];
        if let Some(listener) = self.listener.take() {
            let serving = listener.serve(self.handlers().router());
            helpers.push(self.supervisor.spawn_essential("the listener", serving));
        }
        let mut prune = tokio::time::interval(PRUNE_INTERVAL);
        let mut look = tokio::time::interval(WATCH_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mode = loop {
            tokio::select! {
                Some(line) = messages.recv() => self.on_link_message(line),
                Some((attempt, heard)) = self.updates_rx.recv() => self.on_update(attempt, heard),
                _ = prune.tick() => self.prune(),
                _ = look.tick() => self.sample_tasks(),
                farewell = &mut stop => break farewell,
            }
        };
        helpers.iter().for_each(JoinHandle::abort);
        if mode == ShutdownMode::StopTasks {
            self.stop_all().await;
        }
        self.supervisor.mark_stopping();
        self.preparer.groups.close();
    }

    fn on_link_message(&mut self, message: LinkMessage) {
        match message {
            LinkMessage::Report { hang, to } => {
                // The link may have given up waiting.
                let _ = to.send(self.report(hang));
            }
            LinkMessage::Answer { orders, sent } => self.on_answer(*orders, sent),
        }
    }

    fn write_orders(&self) {
        let path = self.folders.orders_file();
        // Not flushed: after a power cut the machine boots, and orders of another boot count for
        // nothing. Their epoch may be an older one then: a master that was overtaken could be
        // believed for one poll, as by a machine that is new; what must not run twice has a lease.
        if let Err(error) = record::write(&path, self.core.orders(), Durability::Process) {
            tracing::error!(%error, "orders cannot be written");
            // An agent that comes back must not find older ones; with none it asks.
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::error!(%error, "nor can the older ones be removed");
            }
        }
    }

    /// Decides anew only when that can come out differently: with many tasks it takes its time.
    fn on_update(&mut self, attempt: Attempt, update: AttemptUpdate) {
        if self.apply_update(attempt, update) {
            self.reconcile();
        }
    }

    /// Whether there may be something to do.
    fn apply_update(&mut self, attempt: Attempt, update: AttemptUpdate) -> bool {
        let Some(local) = self.locals.get_mut(&attempt) else { return false };
        let Some(entry) = self.core.attempt(attempt) else { return false };
        let event = match update {
            AttemptUpdate::Status(status) => {
                let (lease_until, is_stopping) = (status.lease_until, status.stopping);
                local.status = Some(status);
                Event::Status { lease_until, is_stopping }
            }
            AttemptUpdate::Finding(finding) => {
                self.on_finding(attempt, finding);
                return false;
            }
            AttemptUpdate::Health(health) => {
                let before = entry.status.phase;
                tracing::info!(task = entry.order.name, ?before, ?health, "health");
                Event::Health(health)
            }
            AttemptUpdate::Ended(end, words) => {
                tracing::info!(task = entry.order.name, attempt = attempt.number, words, "ended");
                local.requests = None;
                local.group = None;
                local.stop_prober();
                self.sessions.close(attempt);
                Event::Ended(end)
            }
        };
        let change = self.core.observe(attempt, event);
        if change.started {
            self.find_group(attempt);
            self.start_prober(attempt);
        }
        let is_guilty =
            self.locals.get(&attempt).is_some_and(|local| !local.unassigned_ports.is_empty());
        if matches!(event, Event::Ended(_)) && is_guilty {
            self.advertise_unassigned_ports();
        }
        if change.needs_report {
            self.news.notify_one();
        }
        change.needs_reconcile
    }

    /// Does what the core says until it has nothing more to say.
    fn reconcile(&mut self) {
        loop {
            let actions = self.core.next_actions(boot::now());
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.perform(action));
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Start { order, lease_until } => self.start(*order, lease_until),
            Action::Stop { attempt, notice } => {
                self.request(attempt, Request::Stop { grace: notice.0 });
            }
            Action::Kill { attempt } => self.request(attempt, Request::Kill),
            Action::Renew { attempt, until } => {
                if let Some(local) = self.locals.get(&attempt) {
                    local.send(Request::Lease { until });
                }
            }
            Action::Forget { attempt } => {
                self.locals.remove(&attempt);
                if let Err(error) = self.folders.archive(attempt) {
                    tracing::error!(%attempt, %error, "what is over cannot be put aside");
                }
            }
        }
    }

    fn request(&mut self, attempt: Attempt, request: Request) {
        if self.core.attempt(attempt).is_some_and(|entry| entry.status.is_alloc) {
            // Empty by now: there is nobody to tell.
            record_exit(&self.folders.attempt_dir(attempt), ExitCause::Told);
            if let Some(group) = self.preparer.groups.alloc_group(attempt)
                && let Err(error) = group.remove()
            {
                tracing::warn!(%error, "the group of an alloc stays");
            }
            self.core.observe(attempt, Event::Ended(End::Gone));
            self.news.notify_one();
        } else if let Some(local) = self.locals.get(&attempt) {
            local.send(request);
        }
    }

    fn report(&mut self, hang: bool) -> AgentReport {
        let facts = Facts {
            spec: self.machine.clone(),
            packages: Some(self.preparer.packages.report()),
            // Rates are averages between hanging polls; news in between would cut them short.
            usage: if hang { self.measure() } else { Vec::new() },
            shortages: self.readings.shortages(),
            wall: cellwright_identity::clock::wall(),
        };
        self.core.report(hang, facts, boot::now())
    }

    /// Beside the loop: what is over may be thousands of folders.
    fn prune(&mut self) {
        let (folders, keeping) = (self.folders.clone(), self.config.retention());
        let now = self.time.at(cellwright_identity::clock::system(), boot::now());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = folders.prune(keeping, now) {
                tracing::error!(%error, "what is over cannot be pruned");
            }
        });
    }

    /// Everything is stopped with its notice; the masters are told it is gone by the next agent.
    async fn stop_all(&mut self) {
        let live: Vec<Attempt> =
            self.locals.iter().filter(|(_, l)| l.requests.is_some()).map(|(a, _)| *a).collect();
        for attempt in live {
            let grace = match self.core.attempt(attempt).map(|entry| &entry.order.action) {
                Some(Order::Run(work)) => work.notice.0,
                _ => 0,
            };
            self.request(attempt, Request::Stop { grace });
        }
        while self.locals.values().any(|local| local.requests.is_some()) {
            let Some((attempt, update)) = self.updates_rx.recv().await else { return };
            self.apply_update(attempt, update);
        }
    }
}

impl LocalAttempt {
    fn stop_prober(&mut self) {
        if let Some(prober) = self.prober.take() {
            prober.abort();
        }
    }

    fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // Its end is on the way.
            let _ = requests.send(request);
        }
    }
}

/// Stands for an order that cannot be read: what runs is ended, and the masters order anew.
fn placeholder_order(attempt: Attempt) -> DesiredTask {
    let action = Order::Stop { notice: Span::ZERO, cause: StopCause::Killed };
    let name = attempt.to_string();
    let Attempt { task, number, saver } = attempt;
    DesiredTask { task, attempt: number, saver, name, action, lease: None }
}

/// Two agents in one folder would both start what is ordered.
fn lock_state_dir(folders: &Folders) -> Result<std::fs::File, AgentError> {
    use rustix::fs::{FlockOperation, flock};
    let path = folders.orders_file().with_file_name("agent.lock");
    let name = path.display().to_string();
    let lock = open_lock(&path).map_err(|why| AgentError::Io { what: name.clone(), why })?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| AgentError::Occupied(name))?;
    Ok(lock)
}
