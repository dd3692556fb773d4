//! A whole master in one process: disk, identity, replica, listener and the chores beside them.
//!
//! What runs where is decided here and nowhere else, so that the command line, tests and benchmarks
//! start the same master. The order matters: the lock on the data directory comes first, because
//! everything after it writes there; the listener is bound before the replica starts, so that the
//! address told to others is one that answers.
//!
//! Rejected: leaving the assembly to the command line. Then a test would either start a process for
//! everything or assemble a master of its own that slowly becomes another one.

use crate::access::authenticator::MasterAuthenticator;
use crate::access::enrollment_routes::EnrollmentApi;
use crate::access::listener::Listener;
use crate::access::rejection_audit::RejectionAuditLimiter;
use crate::access::replica_credentials::ReplicaCredentials;
use crate::config::Config;
use crate::http::blob_peers::HttpBlobPeers;
use crate::http::master_services::MasterServices;
use crate::http::{Api, ApiConfig};
use crate::http_peers::HttpPeers;
use crate::init::{InitError, first_requests, forget_first_requests};
use crate::membership::{self, Membership};
use axum::Router;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::{Client, ClientError};
use cellwright_api::dev_token::{DevTokenError, PublishedToken};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::blob::BlobLimits;
use cellwright_cell::command::Command;
use cellwright_cell::credential::SecretHash;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::{LEVEL, State};
use cellwright_cell::time::Time;
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::private_files::ensure_private_dir;
use cellwright_identity::secret::{Secret, sha256};
use cellwright_identity::tls::{OutOfDateHook, TlsError};
use cellwright_master::blob_syncer::BlobSyncer;
use cellwright_master::blobs::{BlobError, BlobStore};
use cellwright_master::bounds_publisher;
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::child_process::{ChildCommand, supervise_child};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::history::{HistoryService, HistoryWriter};
use cellwright_master::leadership_log;
use cellwright_master::level;
use cellwright_master::level::ReplicaProbe;
use cellwright_master::master::{Environment, Master};
use cellwright_master::rejected_polls;
use cellwright_names::dns::{DnsServer, ListenError};
use cellwright_store::{BootstrapError, OpenError, Peer, RealDisk, Role};
use cellwright_supervise::{Supervisor, failpoint};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Whose jobs they are when nobody says, on an open master.
pub const DEV_USER: &str = "dev";

/// Who may talk to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Holders of certificates and tokens of the cell, over TLS.
    Authenticated,
    /// Whoever shows a token that lies in a file of the account it runs as: `--dev_token`.
    Dev,
}

/// Why a master did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Disk(io::Error),
    #[error("cannot listen on {address}: {why}")]
    Listen { address: SocketAddr, why: io::Error },
    #[error(transparent)]
    Identity(#[from] FilesError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    First(#[from] InitError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Dns(#[from] ListenError),
    #[error(transparent)]
    Dev(#[from] DevTokenError),
    #[error("{path} is of no use: {why}")]
    Joining { path: PathBuf, why: io::Error },
    #[error(
        "the disk of {} is full: {free} bytes are free, and disk_reserve is {reserve}; free some \
         of it and start again ({why})",
        data_dir.display()
    )]
    DiskFull { data_dir: PathBuf, free: u64, reserve: u64, why: Box<ServeError> },
}

/// With less than this free, what fails at a start fails for want of room.
const FULL_DISK_BYTES: u64 = 1 << 20;

/// Free on the disk of a folder, as far as that can be told.
fn free_on_disk(dir: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(dir).ok()?;
    Some(room.f_bavail.saturating_mul(room.f_frsize))
}

/// A master that serves.
pub struct RunningMaster {
    address: SocketAddr,
    /// Of an open master: its token, to be found for as long as it runs.
    dev_token: Option<Arc<PublishedToken>>,
    master: Master,
    stopping: watch::Sender<bool>,
    listener: JoinHandle<()>,
    dns: Option<DnsServer>,
    scheduler_task: Option<JoinHandle<()>>,
    history: HistoryWriter,
    background_tasks: Vec<JoinHandle<()>>,
}

/// Starts a master as configured. `scheduler`: a process to keep running beside it.
///
/// Boxed, as all that another crate awaits of a whole master: the code of a future is made by the
/// crate that awaits it, which would compile the replica and its log once more, as its own.
///
/// # Errors
/// What keeps it from starting.
pub fn run_master(
    config: Config,
    access: AccessMode,
    scheduler: Option<ChildCommand>,
) -> BoxFuture<'static, Result<RunningMaster, ServeError>> {
    Box::pin(start_checking_disk(config, access, scheduler))
}

async fn start_checking_disk(
    config: Config,
    access: AccessMode,
    scheduler: Option<ChildCommand>,
) -> Result<RunningMaster, ServeError> {
    let (data_dir, reserve) = (config.data_dir.clone(), config.disk_reserve);
    let result = start(config, access, scheduler).await;
    let Some(free) = free_on_disk(&data_dir) else { return result };
    if result.is_ok() && free < reserve {
        let dir = data_dir.display();
        tracing::error!(
            "the disk of {dir} has {free} bytes free, and disk_reserve is {reserve}: this master \
             can be read, takes nothing but removals if it leads, and goes on by itself when \
             there is room"
        );
    }
    let is_full = free < FULL_DISK_BYTES;
    result.map_err(|why| match is_full {
        true => ServeError::DiskFull { data_dir, free, reserve, why: Box::new(why) },
        false => why,
    })
}

async fn start(
    mut config: Config,
    access: AccessMode,
    scheduler: Option<ChildCommand>,
) -> Result<RunningMaster, ServeError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mode = if access == AccessMode::Dev { 0o711 } else { 0o700 };
    ensure_private_dir(&config.data_dir, mode).map_err(ServeError::Disk)?;
    let disk = RealDisk::open(&config.data_dir).map_err(ServeError::Disk)?;
    let credentials = match access {
        AccessMode::Dev => None,
        AccessMode::Authenticated => {
            let files = IdentityFiles::in_data_dir(&config.data_dir);
            Some(ReplicaCredentials::load(files, &config.name, config.hosts(), clock.wall_time())?)
        }
    };
    let replica = Arc::default();
    let out_of_date = rejected_polls::expired_certificate_hook(Arc::clone(&replica), clock.clone());
    let (listener, address) = bind_listener(&mut config, credentials.as_ref(), out_of_date).await?;
    let dev_token = match access {
        AccessMode::Dev => Some(Arc::new(PublishedToken::publish(&config.data_dir, address)?)),
        AccessMode::Authenticated => None,
    };
    let peers =
        HttpPeers::new(credentials.as_ref().map(ReplicaCredentials::client_config).transpose()?);
    let world = Environment { disk: Arc::new(disk), peers: Arc::new(peers), clock: clock.clone() };
    let fingerprint = credentials.as_ref().map(|own| own.authority().fingerprint());
    let store = store_config(&config, fingerprint.as_deref());
    let master = Master::start(config.id, master_config(&config), store, world).await?;
    let handle = replica.get_or_init(|| master.handle().clone()).clone();
    let supervisor = handle.supervisor().clone();
    bootstrap_if_first(&config, access, &handle).await?;
    let client = replica_client(&config, credentials.as_ref())?;
    let (router, files) =
        routes(&config, &handle, credentials.as_ref(), client.clone(), clock.clone())?;
    let authenticator = Arc::new(MasterAuthenticator {
        cell: config.cell.clone(),
        handle: handle.clone(),
        clock: clock.clone(),
        audit: handle.replicated().records.audit.clone(),
        rejections: RejectionAuditLimiter::default(),
        dev_token: dev_token.as_ref().map(|dev| SecretHash(dev.token().hash())),
    });
    let dns = answer_dns(&config, &handle, supervisor.clone()).await?;
    let history = keep_history(&config, &handle, &files.history)?;
    let (stopping, stopped) = watch::channel(false);
    let limits = config.limits();
    let mut background_tasks = start_background_tasks(&config, access, &handle, files).await?;
    if !membership::masters_to_join(&config.data_dir)?.is_empty() {
        background_tasks.push(
            supervisor
                .spawn_finite("joining", membership::request_membership(handle, config, client)),
        );
    }
    background_tasks.push(supervisor.spawn_restarting("settling refusals", {
        let gate = authenticator.clone();
        move || gate.clone().run_rejection_flush()
    }));
    if let Some(token) = dev_token.clone() {
        let keep = move || keep_token_published(token.clone());
        background_tasks
            .push(supervisor.spawn_restarting("keeping the token where it is found", keep));
    }
    if let Some(credentials) = credentials {
        let fresh = credentials.run_renewal(clock, master.handle().replicated().clone());
        background_tasks.push(supervisor.spawn_essential("the renewal of the certificate", fresh));
    }
    let serving_requests =
        listener.serve(router, authenticator, limits, until_stopped(stopped.clone()));
    let listener = supervisor.spawn_essential("the listener", serving_requests);
    let scheduler_task = scheduler.map(|process| {
        supervisor.spawn_essential(
            "the keeper of the scheduler",
            supervise_child(process, until_stopped(stopped)),
        )
    });
    Ok(RunningMaster {
        address,
        dev_token,
        master,
        stopping,
        listener,
        dns,
        scheduler_task,
        history,
        background_tasks,
    })
}

impl RunningMaster {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.dev_token.is_some() { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    /// Where the console of an open master is opened: behind the `#` is its token, which a browser
    /// tells nobody.
    #[must_use]
    pub fn console_url(&self) -> Option<Secret> {
        let token = self.dev_token.as_ref()?.token();
        Some(Secret::new(format!("{}/#token={}", self.url(), token.expose())))
    }

    /// Where DNS is answered.
    #[must_use]
    pub fn dns_address(&self) -> Option<SocketAddr> {
        self.dns.as_ref().map(DnsServer::address)
    }

    #[must_use]
    pub fn handle(&self) -> &MasterHandle {
        self.master.handle()
    }

    /// Stops in order: the lead is handed over, then the scheduler and the listener end, then the
    /// replica. While the listener lets requests end, the cell has a leader.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.stop_in_order())
    }

    async fn stop_in_order(self) {
        self.handle().replica().transfer_leadership().await;
        self.handle().supervisor().mark_stopping();
        self.stopping.send_replace(true);
        self.background_tasks.iter().for_each(JoinHandle::abort);
        // Both end by themselves once told; that a task panicked was reported by it.
        if let Some(supervised) = self.scheduler_task {
            drop(supervised.await);
        }
        drop(self.listener.await);
        if let Some(dns) = self.dns {
            dns.stop().await;
        }
        self.master.stop().await;
        self.history.stop().await;
    }
}

/// Answers DNS where it is to be answered, for as long as the cell tells this replica anything.
async fn answer_dns(
    config: &Config,
    handle: &MasterHandle,
    supervisor: Supervisor,
) -> Result<Option<DnsServer>, ListenError> {
    let Some(listen) = config.dns_listen else { return Ok(None) };
    let names = handle.replicated().names.clone();
    let handle = handle.clone();
    let is_over = move || handle.is_removed();
    DnsServer::start(listen, names, config.zone.clone(), is_over, supervisor).await.map(Some)
}

/// Starts writing history, and has usage told to it.
fn keep_history(
    config: &Config,
    handle: &MasterHandle,
    desk: &HistoryService,
) -> Result<HistoryWriter, ServeError> {
    desk.attach(handle);
    let supervisor = handle.supervisor();
    desk.start_writer(&config.data_dir, config.history_config(), supervisor)
        .map_err(ServeError::Disk)
}

/// Waits until the master is to stop; its end is a stop as well.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

/// Binds the listener. A port that was left to the system is known only now.
async fn bind_listener(
    config: &mut Config,
    credentials: Option<&ReplicaCredentials>,
    out_of_date: OutOfDateHook,
) -> Result<(Listener, SocketAddr), ServeError> {
    let listen = |why| ServeError::Listen { address: config.listen, why };
    let listener = match credentials {
        None => Listener::plain(config.listen).await.map_err(listen)?,
        Some(credentials) => {
            let tls = Arc::new(credentials.server_config(out_of_date)?);
            Listener::tls(config.listen, tls).await.map_err(listen)?
        }
    };
    let address = listener.address().map_err(listen)?;
    if config.listen.port() == 0 {
        config.listen = address;
        config.advertise = address.to_string();
    }
    Ok((listener, address))
}

/// What the configuration says about the master's behaviour.
#[must_use]
pub fn master_config(config: &Config) -> MasterConfig {
    let mut settings = MasterConfig::default();
    settings.core.liveness.poll_interval = config.poll_interval;
    settings.core.liveness.missed_polls = config.silence_polls;
    settings.core.liveness.max_down_per_minute = config.down_per_minute;
    settings.core.controllers.retain_dead_jobs = config.keep_dead_jobs;
    settings.reclaim = config.reclaim;
    settings.events = config.event_retention();
    settings.audit = config.audit_retention();
    settings.audit_per_user = config.audit_size_user;
    settings.core.clocks.max_skew = config.clock_skew_alarm;
    settings
}

/// What the configuration says about the store. `fingerprint`: of the cell's authority; files of
/// one cell are refused by another of the same name.
#[must_use]
pub fn store_config(config: &Config, fingerprint: Option<&str>) -> cellwright_store::StoreConfig {
    let owner_text = format!("{} {}", config.cell, fingerprint.unwrap_or("open"));
    let mut cell = [0; 16];
    cell.copy_from_slice(&sha256(owner_text.as_bytes())[..16]);
    let settings = cellwright_store::StoreConfig {
        cell,
        reserve_bytes: config.disk_reserve,
        snapshot_entries: config.snapshot_entries,
        keep_entries: config.snapshot_entries.saturating_mul(2),
        ..cellwright_store::StoreConfig::default()
    };
    settings.with_heartbeat(Duration::from_millis(config.heartbeat.0))
}

fn replica_client(
    config: &Config,
    credentials: Option<&ReplicaCredentials>,
) -> Result<Client, ServeError> {
    let tls = credentials.map(ReplicaCredentials::client_config).transpose()?.map(Arc::new);
    let mut masters = membership::masters_to_join(&config.data_dir)?;
    if masters.is_empty() {
        masters.push(config.advertise.clone());
    }
    // Becoming a voter takes as long as catching up does.
    let deadline = Duration::from_secs(90);
    let settings = cellwright_api::client::ApiClientConfig::new(masters);
    Ok(Client::new(cellwright_api::client::ApiClientConfig { tls, deadline, ..settings })?)
}

/// Everything the listener answers, and the files behind it.
fn routes(
    config: &Config,
    handle: &MasterHandle,
    credentials: Option<&ReplicaCredentials>,
    client: Client,
    clock: Arc<dyn Clock>,
) -> Result<(Router, Arc<MasterServices>), ServeError> {
    let blobs = BlobStore::open(&config.data_dir, config.blob_limit)?;
    // The log goes on for a reserve's worth after packages are refused.
    let blobs = Arc::new(blobs.with_reserve(config.disk_reserve.saturating_mul(2)));
    let replicated = handle.replicated().clone();
    let keep = usize::try_from(config.checkpoints).unwrap_or(usize::MAX);
    let files = Arc::new(MasterServices {
        events: replicated.records.events.clone(),
        audit: replicated.records.audit.clone(),
        history: HistoryService::new(&config.data_dir, replicated.clone(), config.queries),
        replicated,
        checkpoints: Checkpoints::in_data(&config.data_dir, keep),
        replica: config.name.clone(),
        peers: Arc::new(HttpBlobPeers {
            client,
            replica: handle.replica().clone(),
            store: blobs.clone(),
        }),
        blobs,
    });
    let settings = ApiConfig {
        body_limit: usize::try_from(config.body_limit).unwrap_or(usize::MAX),
        tasks_per_job: config.tasks_per_job,
        authority: credentials.map(|own| own.authority().fingerprint()),
        tls: credentials.is_some(),
        zone: config.zone.clone(),
        agents: credentials.map_or_else(
            || AgentDialler::plain(vec![config.advertise.clone()]),
            ReplicaCredentials::agent_dialler,
        ),
        package_limits: BlobLimits {
            per_user: config.package_quota_user,
            in_all: config.package_quota_cell,
        },
        flow: config.flow,
    };
    let api = Api::new(handle.clone(), files.clone(), settings);
    let membership = Membership { handle: handle.clone(), candidates: files.peers.clone() };
    let mut router = api.router().merge(membership.router());
    if let Some(credentials) = credentials {
        let (handle, authority) = (handle.clone(), credentials.authority().clone());
        let task_life = config.task_certificate_life;
        router = router.merge(EnrollmentApi { handle, authority, clock, task_life }.router());
    }
    Ok((router, files))
}

/// Makes the first member of a new cell; does nothing in a cell that exists or is to be joined.
async fn bootstrap_if_first(
    config: &Config,
    access: AccessMode,
    handle: &MasterHandle,
) -> Result<(), ServeError> {
    let begins_cell = access == AccessMode::Dev || first_requests(&config.data_dir)?.is_some();
    if !handle.status().members.is_empty() || !begins_cell {
        return Ok(());
    }
    let me = Peer { name: config.name.to_string(), address: config.advertise.clone() };
    match handle.replica().bootstrap(BTreeMap::from([(config.id, me)])).await {
        // What the disk said only shows in the status once the replica has looked at it.
        Ok(()) | Err(BootstrapError::AlreadyInitialised) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a running master does beside answering. A cell of one has its first users when this
/// returns; a larger one may be waiting for its other replicas.
async fn start_background_tasks(
    config: &Config,
    access: AccessMode,
    handle: &MasterHandle,
    files: Arc<MasterServices>,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let every = Duration::from_millis(config.checkpoint_interval.0);
    let candidates: Arc<dyn ReplicaProbe> = files.peers.clone();
    let (blobs, blob_peers) = (files.blobs.clone(), files.peers.clone());
    let supervisor = handle.supervisor();
    let (raising, announcing) = (handle.clone(), handle.clone());
    let (saving, keeping) = (handle.clone(), handle.clone());
    let mut background_tasks = vec![
        supervisor.spawn_restarting("saving checkpoints", move || {
            save_checkpoints(saving.clone(), files.clone(), every)
        }),
        supervisor.spawn_restarting("raising the level", move || {
            level::raise_level_periodically(raising.clone(), candidates.clone())
        }),
        supervisor.spawn_restarting("keeping packages", move || {
            BlobSyncer::new(keeping.clone(), blobs.clone(), blob_peers.clone()).run()
        }),
        supervisor.spawn_restarting("announcing leaders", move || {
            leadership_log::log_leader_changes(announcing.clone())
        }),
    ];
    let first_commands = match access {
        AccessMode::Dev => Some(dev_user_commands()),
        AccessMode::Authenticated => first_requests(&config.data_dir)?
            .map(|requests| requests.into_iter().map(|request| request.command).collect()),
    };
    if let Some(mut commands) = first_commands {
        commands.push(Command::SetBounds(config.bounds));
        // A cell that begins has no replica that knows less.
        let next = State::default().level() + 1;
        commands.extend((next..=LEVEL).map(|level| Command::RaiseLevel { level }));
        let saying = submit_first_commands(handle.clone(), commands, config.data_dir.clone());
        match handle.status().members.len() {
            0 | 1 => saying.await,
            _ => background_tasks.push(supervisor.spawn_finite("the first requests", saying)),
        }
    }
    let (saying, bounds) = (handle.clone(), config.bounds);
    background_tasks.push(supervisor.spawn_restarting("saying the limits", move || {
        bounds_publisher::publish_bounds_periodically(saying.clone(), bounds)
    }));
    Ok(background_tasks)
}

/// Its account finds the token of an open master for as long as that runs, whoever clears files.
async fn keep_token_published(token: Arc<PublishedToken>) {
    const EVERY: Duration = Duration::from_secs(10);
    loop {
        tokio::time::sleep(EVERY).await;
        let again = Arc::clone(&token);
        match tokio::task::spawn_blocking(move || again.ensure_published()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the token of this cell cannot be found"),
            Err(_) => return,
        }
    }
}

/// An open master has one user to submit jobs as, with more quota than anybody needs below
/// production: production quota is bounded by the machines, which are still to come.
fn dev_user_commands() -> Vec<Command> {
    let Ok(name) = Name::new(DEV_USER) else { return Vec::new() };
    let max_amount = MAX_TOTAL;
    let amount =
        Resources { cpu: max_amount, ram: max_amount, disk: max_amount, disk_rate: max_amount };
    let quota = |band| Command::SetQuota {
        user: name.clone(),
        band,
        quota: Some(Quota { amount, from: Time(0), until: Time::NEVER }),
        expect: None,
    };
    vec![Command::AddUser { name: name.clone() }, quota(Band::BestEffort), quota(Band::Batch)]
}

/// Whether the cell has its first user: all commands travel in one entry, so it has the rest too.
fn is_applied(commands: &[Command], state: &State) -> bool {
    commands.iter().any(|command| match command {
        Command::AddUser { name } => state.user_named(name).is_some(),
        _ => false,
    })
}

/// Tells a new cell of its first users, as soon as this replica leads.
async fn submit_first_commands(handle: MasterHandle, commands: Vec<Command>, data_dir: PathBuf) {
    let mut status = handle.replica().watch();
    let caller = Caller::Operator;
    loop {
        if status.wait_for(|status| status.role == Role::Leader).await.is_err() {
            return;
        }
        if handle.read_linearizable().await.is_ok_and(|view| is_applied(&commands, &view.state)) {
            break;
        }
        let requests = commands.iter().map(|command| (None, command.clone())).collect();
        match handle.submit_many(&caller, requests).await {
            Ok(_) => break,
            Err(error) => {
                tracing::debug!(%error, "the first users are not in the log yet");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    if let Err(error) = forget_first_requests(&data_dir) {
        tracing::warn!(%error, "the first requests will be repeated at the next start");
    }
}

/// Saves a checkpoint at every interval in which something happened.
async fn save_checkpoints(handle: MasterHandle, files: Arc<MasterServices>, every: Duration) {
    let mut saved = handle.read().index;
    loop {
        failpoint("checkpoints");
        tokio::time::sleep(every).await;
        let view = handle.read();
        let index = view.index;
        if index == saved {
            continue;
        }
        // What is left of the disk is the log's.
        let room = handle.replica().disk_space();
        if room.is_low() {
            tracing::warn!(room.free, "no checkpoint is saved: the disk is getting full");
            continue;
        }
        let files = files.clone();
        let done = tokio::task::spawn_blocking(move || files.checkpoints.save(&view)).await;
        match done {
            Ok(Ok(_)) => saved = index,
            Ok(Err(error)) => tracing::warn!(%error, "no checkpoint was saved"),
            Err(error) => tracing::warn!(%error, "no checkpoint was saved"),
        }
    }
}
