//! The agent's loop: one closed set of events, the core decides, this file does. Events come from
//! the link (orders, requests for the report), from the attempts (status, ends) and from whoever
//! runs the agent.

mod hearing;
mod starting;
mod watching;

use crate::attempt::{Heard, ShimProgram, end};
use crate::boot::{self, Life};
use crate::config::{Config, ConfigError};
use crate::core::{self, Action, AllSeen, Attempt, End, Health, Phase, Seen, Told, View};
use crate::folder::{Folders, Ordered, SteadyTime};
use crate::link::{Line, Link, Most, Pace};
use crate::listen::{self, Access, Desk, Door};
use crate::machine::describe;
use crate::orders::Orders;
use crate::positions;
use crate::ready::Preparer;
use crate::record::{self, Keep, RecordError, open_lock};
use crate::session::{Doorman, Sessions};
use crate::shim::protocol::{Cause, Request, Status};
use crate::usage::Sampler;
use crate::watch::{Readings, Watched};
use cellwright_api::client::Client;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::internal::{AgentReport, REPORT_FORMAT};
use cellwright_api::output::ADDRESS_ATTRIBUTE;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::desired::{Action as Order, DesiredTask};
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
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Between two looks at what is kept of the past.
const PRUNE: Duration = Duration::from_secs(60);
/// Between two looks at what tasks use and who must give way.
const LOOK: Duration = Duration::from_secs(1);

/// Programs that ask tasks how they are, at a time: tasks are many, and starting one costs the
/// machine and not the task.
const PROBES: usize = 8;

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
pub enum Farewell {
    /// They go on: the next agent finds them.
    LeaveTasks,
    /// They are stopped: nobody is to come back soon.
    StopTasks,
}

/// One attempt and the agent's end of it.
struct Local {
    seen: Seen,
    order: DesiredTask,
    requests: Option<mpsc::UnboundedSender<Request>>,
    status: Option<Status>,
    /// Asks whether it is well.
    nurse: Option<JoinHandle<()>>,
    /// Its control group, once it runs in one.
    group: Option<Group>,
    /// Ports it listens on that were not given to it.
    ungiven: BTreeSet<u16>,
}

impl Drop for Local {
    fn drop(&mut self) {
        self.dismiss();
    }
}

pub struct Agent {
    config: Config,
    machine: MachineSpec,
    folders: Folders,
    life: Life,
    /// By which it is known how old things are.
    time: SteadyTime,
    preparer: Arc<Preparer>,
    orders: Orders,
    heard: Option<u64>,
    locals: BTreeMap<Attempt, Local>,
    sampler: Sampler,
    readings: Readings,
    /// Where tasks are sent to be looked at.
    watcher: SyncSender<Vec<Watched>>,
    /// Number of the newest report.
    reported: u64,
    /// The later life of the machine that was spoken of, if any.
    outlived: u64,
    news: Arc<Notify>,
    told: mpsc::UnboundedSender<(Attempt, Heard)>,
    tells: mpsc::UnboundedReceiver<(Attempt, Heard)>,
    door: Option<Door>,
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
        let lock = alone(&folders)?;
        let mut described = describe(&config)?;
        positions::settle(&folders.devices(), &mut described)?;
        let mut machine = described.spec.clone();
        let devices = described.devices.clone();
        let preparer = Arc::new(preparer(&config, &folders, &mut machine, devices, shim)?);
        let (life, rebooted) = boot::begin(&folders.life())?;
        let orders = match record::read(&folders.orders()) {
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
        let (told, tells) = mpsc::unbounded_channel();
        let readings = Readings::default();
        let looks = (Span::seconds(config.control.relief_seconds), config.counting);
        let supervisor = Supervisor::default();
        let found = (readings.clone(), told.clone());
        let watcher = watcher(described, looks, &folders, found, &supervisor).map_err(io)?;
        let mut agent = Agent {
            config,
            machine,
            folders,
            life,
            time: SteadyTime::begin(cellwright_api::clock::system(), boot::now()),
            preparer,
            orders,
            heard: None,
            locals: BTreeMap::new(),
            sampler: Sampler::default(),
            readings,
            watcher,
            reported: 0,
            outlived: 0,
            news: Arc::new(Notify::new()),
            told,
            tells,
            door: None,
            dialler: AgentDialler::plain(Vec::new()),
            has_identity: false,
            sessions: Sessions::default(),
            supervisor,
            probing: Arc::new(Semaphore::new(PROBES)),
            _lock: lock,
        };
        agent.adopt(rebooted)?;
        // Only now: an agent that dies before this finds the same boot again.
        boot::remember(&agent.folders.life(), &agent.life)?;
        // The orders may be newer than what each attempt was started with.
        agent.refresh();
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
    pub async fn listen(&mut self, access: Access, masters: &[String]) -> Result<(), AgentError> {
        self.dialler = access.dialler();
        self.has_identity = matches!(access, Access::Parts { .. });
        let Some(address) = self.config.listens_on() else { return Ok(()) };
        let why = |why| AgentError::Listen { address, why };
        let (door, found) = Door::open(address, access).await.map_err(why)?;
        self.door = Some(door);
        let found = listen::as_dialled(found, self.config.address, masters).await;
        if let (Some(found), Ok(name)) = (found, Token::new(ADDRESS_ATTRIBUTE)) {
            let value = AttributeValue::Text(found.to_string());
            self.machine.attributes.insert(name, value);
        }
        Ok(())
    }

    fn desk(&self) -> Desk {
        let (folders, sessions) = (self.folders.clone(), self.sessions.clone());
        let program = self.preparer.shim.clone();
        let doorman = Doorman { folders: folders.clone(), program, sessions };
        Desk { folders, doorman, preparer: self.preparer.clone() }
    }

    /// Takes up what an earlier agent left.
    fn adopt(&mut self, rebooted: bool) -> Result<(), AgentError> {
        let io = |why| AgentError::Io { what: "tasks".into(), why };
        for (attempt, ordered) in self.folders.attempts()? {
            let folder = self.folders.attempt(attempt);
            let order = match ordered {
                Ordered::Known(order) => *order,
                Ordered::Never => {
                    self.folders.discard(attempt).map_err(io)?;
                    continue;
                }
                Ordered::Unreadable(why) => {
                    tracing::error!(%attempt, why, "what runs here is unknown, so it is ended");
                    unknown(attempt)
                }
            };
            let ended = crate::shim::exit_of(&folder).ok().flatten();
            let is_alloc = matches!(order.action, Order::Hold { .. });
            if rebooted && ended.is_none() {
                end(&folder, Cause::Lost("the machine booted again".into()));
            }
            let mut local = Local::new(order);
            if is_alloc && !rebooted {
                local.seen.phase = match ended {
                    Some(exit) => Phase::Ended(exit.end()),
                    None => Phase::Running(Health::Well),
                };
            } else {
                local.requests = Some(self.follow(attempt, &local.order));
            }
            if matches!(local.order.action, Order::Stop { .. }) {
                local.seen.told = Told::Kill;
                local.ask(Request::Kill);
            }
            self.locals.insert(attempt, local);
        }
        // What has ended took everything down with it, or went with the boot.
        let lives = |attempt: &&Attempt| {
            !matches!(crate::shim::exit_of(&self.folders.attempt(**attempt)), Ok(Some(_)))
        };
        let kept: BTreeSet<Attempt> = self.locals.keys().filter(lives).copied().collect();
        self.preparer.groups.sweep(&kept);
        let names = kept.iter().map(ToString::to_string).collect();
        self.preparer.driver.sweep(&self.folders.tasks(), &names);
        // Now that those who live hold what they run from.
        self.preparer.packages.trim();
        Ok(())
    }

    /// Polls the masters and does as they say until `stop` is done.
    pub async fn run(mut self, client: Client, stop: impl Future<Output = Farewell>) {
        let (line, mut lines) = mpsc::unbounded_channel();
        let own = self.machine.name.clone();
        self.preparer.packages.reach(&client, self.dialler.clone(), own);
        if self.has_identity {
            self.preparer.registrar.reach(&client);
        }
        let (news, pace, most) = (self.news.clone(), Pace::default(), Most::default());
        let link = Link { client, line, news, pace, most };
        self.settle();
        let mut helpers = vec![self.supervisor.essential("the line to the masters", link.run())];
        if let Some(door) = self.door.take() {
            let serving = door.serve(self.desk().router());
            helpers.push(self.supervisor.essential("the listener", serving));
        }
        let mut prune = tokio::time::interval(PRUNE);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::pin!(stop);
        let farewell = loop {
            tokio::select! {
                Some(line) = lines.recv() => self.on_line(line),
                Some((attempt, heard)) = self.tells.recv() => self.on_heard(attempt, heard),
                _ = prune.tick() => self.prune(),
                _ = look.tick() => self.look(),
                farewell = &mut stop => break farewell,
            }
        };
        helpers.iter().for_each(JoinHandle::abort);
        if farewell == Farewell::StopTasks {
            self.stop_all().await;
        }
        self.supervisor.stops();
        self.preparer.groups.close();
    }

    fn on_line(&mut self, line: Line) {
        match line {
            Line::Report { hang, to } => {
                // The link may have given up waiting.
                let _ = to.send(self.report(hang));
            }
            Line::Answer { orders, sent } => self.on_answer(*orders, sent),
        }
    }

    fn write_orders(&self) {
        let path = self.folders.orders();
        // Not flushed: after a power cut the machine boots, and orders of another boot count for
        // nothing. Their epoch may be an older one then: a master that was overtaken could be
        // believed for one poll, as by a machine that is new; what must not run twice has a lease.
        if let Err(error) = record::write(&path, &self.orders, Keep::Process) {
            tracing::error!(%error, "orders cannot be written");
            // An agent that comes back must not find older ones; with none it asks.
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::error!(%error, "nor can the older ones be removed");
            }
        }
    }

    /// Decides anew only when that can come out differently: with many tasks it takes its time.
    fn on_heard(&mut self, attempt: Attempt, heard: Heard) {
        let seen = |agent: &Agent| agent.locals.get(&attempt).map(|local| local.seen);
        let before = seen(self);
        self.take(attempt, heard);
        if let (Some(before), Some(after)) = (before, seen(self))
            && before.decides_otherwise(&after)
        {
            self.settle();
        }
    }

    fn take(&mut self, attempt: Attempt, heard: Heard) {
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        let before = local.seen.phase;
        match heard {
            Heard::Status(status) => {
                local.seen.lease_until = status.lease_until;
                if status.stopping {
                    local.seen.told = local.seen.told.max(Told::Stop);
                }
                local.status = Some(status);
                if local.seen.phase == Phase::Preparing {
                    local.seen.phase = Phase::Running(Health::Starting);
                    self.find_group(attempt);
                    self.watch_health(attempt);
                }
            }
            Heard::Found(finding) => self.on_finding(attempt, finding),
            Heard::Health(health) => {
                if let Phase::Running(before) = &mut local.seen.phase {
                    tracing::info!(task = local.order.name, ?before, ?health, "health");
                    *before = health;
                }
            }
            Heard::Ended(end, words) => {
                tracing::info!(task = local.order.name, attempt = attempt.number, words, "ended");
                local.seen.phase = Phase::Ended(end);
                local.requests = None;
                local.group = None;
                local.dismiss();
                self.sessions.close(attempt);
                if !local.ungiven.is_empty() {
                    self.say_ungiven();
                }
            }
        }
        if self.locals.get(&attempt).is_some_and(|local| local.seen.phase != before) {
            self.news.notify_one();
        }
    }

    /// What may change while a task runs reaches it here.
    fn refresh(&mut self) {
        let mut other_checks = Vec::new();
        for order in self.orders.list() {
            let attempt = Attempt::of(order);
            let Some(local) = self.locals.get_mut(&attempt) else { continue };
            let (Order::Run(new), Order::Run(old)) = (&order.action, &local.order.action) else {
                continue;
            };
            if *order == local.order {
                continue;
            }
            if new.health != old.health {
                other_checks.push(attempt);
            }
            local.order = order.clone();
        }
        other_checks.into_iter().for_each(|attempt| self.watch_health(attempt));
    }

    /// Does what the core says until it has nothing more to say.
    fn settle(&mut self) {
        loop {
            let seen: AllSeen =
                self.locals.iter().map(|(attempt, local)| (*attempt, local.seen)).collect();
            let orders = self.orders.tasks.as_deref();
            let view = View { orders, seen: &seen, heard: self.heard, now: boot::now() };
            let actions = core::decide(&view);
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.act(action));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start { order, lease_until } => self.start(*order, lease_until),
            Action::Stop { attempt, notice } => {
                self.tell(attempt, Told::Stop, Request::Stop { grace: notice.0 });
            }
            Action::Kill { attempt } => self.tell(attempt, Told::Kill, Request::Kill),
            Action::Renew { attempt, until } => {
                let Some(local) = self.locals.get_mut(&attempt) else { return };
                local.seen.lease_until = Some(until);
                local.ask(Request::Lease { until });
            }
            Action::Forget { attempt } => {
                self.locals.remove(&attempt);
                if let Err(error) = self.folders.put_aside(attempt) {
                    tracing::error!(%attempt, %error, "what is over cannot be put aside");
                }
            }
        }
    }

    fn tell(&mut self, attempt: Attempt, told: Told, request: Request) {
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        local.seen.told = told;
        if local.seen.is_alloc {
            // Empty by now: there is nobody to tell.
            end(&self.folders.attempt(attempt), Cause::Told);
            if let Some(group) = self.preparer.groups.of_alloc(attempt)
                && let Err(error) = group.remove()
            {
                tracing::warn!(%error, "the group of an alloc stays");
            }
            local.seen.phase = Phase::Ended(End::Gone);
            self.news.notify_one();
            return;
        }
        local.ask(request);
    }

    fn report(&mut self, hang: bool) -> AgentReport {
        let seen: AllSeen =
            self.locals.iter().map(|(attempt, local)| (*attempt, local.seen)).collect();
        // By the clock of this boot, so that it grows over a restart of the agent too.
        self.reported = boot::now().max(self.reported + 1);
        AgentReport {
            format: REPORT_FORMAT,
            machine: self.machine.name.clone(),
            incarnation: self.life.number.incarnation,
            number: self.reported,
            taken: self.orders.epoch,
            hang,
            orders_digest: self.orders.digest,
            spec: Some(self.machine.clone()),
            tasks: core::report(&seen),
            packages: Some(self.preparer.packages.report()),
            // Rates are averages between hanging polls; news in between would cut them short.
            usage: if hang { self.measure() } else { Vec::new() },
            shortages: self.readings.shortages(),
            wall: cellwright_api::clock::wall(),
        }
    }

    /// Beside the loop: what is over may be thousands of folders.
    fn prune(&mut self) {
        let (folders, keeping) = (self.folders.clone(), self.config.keeping());
        let now = self.time.at(cellwright_api::clock::system(), boot::now());
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
            let Some(local) = self.locals.get_mut(&attempt) else { continue };
            let grace = match &local.order.action {
                Order::Run(work) => work.notice.0,
                _ => 0,
            };
            self.tell(attempt, Told::Stop, Request::Stop { grace });
        }
        while self.locals.values().any(|local| local.requests.is_some()) {
            let Some((attempt, heard)) = self.tells.recv().await else { return };
            self.take(attempt, heard);
        }
    }
}

impl Local {
    fn new(order: DesiredTask) -> Local {
        let is_alloc = matches!(order.action, Order::Hold { .. });
        let alloc = match &order.action {
            Order::Run(work) => work.alloc,
            _ => None,
        };
        let told = Told::Nothing;
        let seen = Seen { phase: Phase::Preparing, told, is_alloc, alloc, lease_until: None };
        let ungiven = BTreeSet::new();
        Local { seen, order, requests: None, status: None, nurse: None, group: None, ungiven }
    }

    fn dismiss(&mut self) {
        if let Some(nurse) = self.nurse.take() {
            nurse.abort();
        }
    }

    fn ask(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // Its end is on the way.
            let _ = requests.send(request);
        }
    }
}

/// Stands for an order that cannot be read: what runs is ended, and the masters order anew.
fn unknown(attempt: Attempt) -> DesiredTask {
    let action = Order::Stop { notice: Span::ZERO, cause: StopCause::Killed };
    let name = attempt.to_string();
    let Attempt { task, number, saver } = attempt;
    DesiredTask { task, attempt: number, saver, name, action, lease: None }
}

/// Two agents in one folder would both start what is ordered.
fn alone(folders: &Folders) -> Result<std::fs::File, AgentError> {
    use rustix::fs::{FlockOperation, flock};
    let path = folders.orders().with_file_name("agent.lock");
    let name = path.display().to_string();
    let lock = open_lock(&path).map_err(|why| AgentError::Io { what: name.clone(), why })?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| AgentError::Occupied(name))?;
    Ok(lock)
}
