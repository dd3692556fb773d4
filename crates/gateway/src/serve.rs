//! A whole master in one process: disk, identity, replica, listener and background tasks.
//!
//! The assembly is here and nowhere else, so that the command line, tests and benchmarks start the
//! same master. The order matters: the lock on the data directory comes first, because everything
//! after it writes there; the listener is bound before the replica starts, so that the address sent
//! to others is one that answers.
//!
//! Rejected: leaving the assembly to the command line. Then a test would either start a process for
//! everything or assemble a master of its own that slowly becomes another one.

mod background_tasks;

use crate::access::authenticator::MasterAuthenticator;
use crate::access::enrollment_routes::EnrollmentApi;
use crate::access::listener::Listener;
use crate::access::rejection_audit::RejectionAuditLimiter;
use crate::access::replica_credentials::ReplicaCredentials;
use crate::archiver::Archive;
use crate::config::Config;
use crate::http::blob_peers::HttpBlobPeers;
use crate::http::master_services::MasterServices;
use crate::http::{Api, ApiConfig};
use crate::http_peers::HttpPeers;
use crate::init::{InitError, first_requests};
use crate::membership::{self, Membership};
use axum::Router;
use background_tasks::{start_access_tasks, start_archiver, start_background_tasks};
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::{Client, ClientError};
use cellwright_cell::blob::BlobLimits;
use cellwright_cell::credential::SecretHash;
use cellwright_cell::time::Time;
use cellwright_identity::dev_token::{DevTokenError, PublishedToken};
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::private_files::ensure_private_dir;
use cellwright_identity::secret::{Secret, sha256};
use cellwright_identity::tls::{OutOfDateHook, TlsError};
use cellwright_master::blobs::{BlobError, BlobStore};
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::child_process::{ChildCommand, supervise_child};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::MasterHandle;
use cellwright_master::history::{HistoryService, HistoryWriter};
use cellwright_master::master::{Environment, Master};
use cellwright_master::rejected_polls;
use cellwright_names::dns::{DnsServer, ListenError};
use cellwright_store::{BootstrapError, OpenError, Peer, RealDisk};
use cellwright_supervise::Supervisor;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The owner of jobs on a dev master when none is named.
pub const DEV_USER: &str = "dev";

/// How callers of the master authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// With certificates and tokens of the cell, over TLS.
    Authenticated,
    /// With a token that is stored in a file of the account that the master runs as: `--dev`.
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

/// With less than this free, a failed start is reported as a full disk.
const FULL_DISK_BYTES: u64 = 1 << 20;

/// Free bytes on the disk of a directory, if known.
fn free_on_disk(dir: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(dir).ok()?;
    Some(room.f_bavail.saturating_mul(room.f_frsize))
}

/// A running master.
pub struct RunningMaster {
    address: SocketAddr,
    /// Of a dev master: its token, published for as long as it runs.
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
/// Boxed, as are all futures of a whole master that another crate awaits: the code of a future is
/// made by the crate that awaits it, which would compile the replica and its log once more, as its
/// own.
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
    result.map_err(|why| {
        if is_full {
            ServeError::DiskFull { data_dir, free, reserve, why: Box::new(why) }
        } else {
            why
        }
    })
}

/// The certificate of this replica; a dev master has none.
fn load_credentials(
    config: &Config,
    access: AccessMode,
    now: Time,
) -> Result<Option<ReplicaCredentials>, FilesError> {
    if access == AccessMode::Dev {
        return Ok(None);
    }
    let files = IdentityFiles::in_data_dir(&config.data_dir);
    ReplicaCredentials::load(files, &config.name, config.hosts(), now).map(Some)
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
    let credentials = load_credentials(&config, access, clock.wall_time())?;
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
    let mut background_tasks = start_archiver(&config, &handle, &files, credentials.as_ref());
    background_tasks.extend(start_background_tasks(&config, access, &handle, files, client).await?);
    background_tasks.extend(start_access_tasks(
        master.handle(),
        &authenticator,
        dev_token.clone(),
        credentials,
        clock,
    ));
    let serving_requests =
        listener.serve(router, authenticator, config.limits(), until_stopped(stopped.clone()));
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

    /// The URL of a dev master's console: the part behind the `#` has its token, which a browser
    /// does not send.
    #[must_use]
    pub fn console_url(&self) -> Option<Secret> {
        let token = self.dev_token.as_ref()?.token();
        Some(Secret::new(format!("{}/#token={}", self.url(), token.expose())))
    }

    /// The address of the DNS server.
    #[must_use]
    pub fn dns_address(&self) -> Option<SocketAddr> {
        self.dns.as_ref().map(DnsServer::address)
    }

    #[must_use]
    pub fn handle(&self) -> &MasterHandle {
        self.master.handle()
    }

    /// Stops in order: leadership is transferred, then the scheduler and the listener end, then
    /// history and the replica. While the listener drains requests, the cell has a leader.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.stop_in_order())
    }

    async fn stop_in_order(self) {
        self.handle().replica().transfer_leadership().await;
        self.handle().supervisor().mark_stopping();
        self.stopping.send_replace(true);
        self.background_tasks.iter().for_each(JoinHandle::abort);
        // Both end by themselves once signalled; a panicking task has been reported already.
        if let Some(supervised) = self.scheduler_task {
            drop(supervised.await);
        }
        drop(self.listener.await);
        if let Some(dns) = self.dns {
            dns.stop().await;
        }
        // With the replica the lock of the data directory goes, and the next process may begin: by
        // then nothing of this one writes there.
        self.history.stop().await;
        self.master.stop().await;
    }
}

/// Runs the DNS server, if one is configured, until the master stops.
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

/// Starts writing history, and sends usage to it.
fn keep_history(
    config: &Config,
    handle: &MasterHandle,
    history: &HistoryService,
) -> Result<HistoryWriter, ServeError> {
    history.attach(handle);
    let supervisor = handle.supervisor();
    history
        .start_writer(&config.data_dir, config.history_config(), supervisor)
        .map_err(ServeError::Disk)
}

/// Waits until the master is to stop; if the sender is dropped, that is a stop as well.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

/// Binds the listener. A port chosen by the system is known only now.
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

/// The master's configuration.
#[must_use]
pub fn master_config(config: &Config) -> MasterConfig {
    let mut settings = MasterConfig::default();
    settings.core.liveness.poll_interval = config.poll_interval;
    settings.core.liveness.missed_polls = config.missed_polls;
    settings.core.liveness.max_down_per_minute = config.down_per_minute;
    settings.core.controllers.retain_dead_jobs = config.keep_dead_jobs;
    settings.core.controllers.archive_wait = config.archive.as_ref().map(|archive| archive.wait);
    settings.reclaim = config.reclaim;
    settings.events = config.event_retention();
    settings.audit = config.audit_retention();
    settings.audit_per_user = config.audit_size_user;
    settings.core.clocks.max_skew = config.clock_skew_alarm;
    settings
}

/// The store's configuration. `fingerprint`: that of the cell's authority; files of one cell are
/// rejected by another of the same name.
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

/// Dials the agents of machines as this replica.
fn agent_dialler(config: &Config, credentials: Option<&ReplicaCredentials>) -> AgentDialler {
    credentials.map_or_else(
        || AgentDialler::plain(vec![config.advertise.clone()]),
        ReplicaCredentials::agent_dialler,
    )
}

/// All routes of the listener, and the services behind them.
fn routes(
    config: &Config,
    handle: &MasterHandle,
    credentials: Option<&ReplicaCredentials>,
    client: Client,
    clock: Arc<dyn Clock>,
) -> Result<(Router, Arc<MasterServices>), ServeError> {
    let blobs = BlobStore::open(&config.data_dir, config.blob_limit)?;
    // When packages are rejected for space, the log still has its reserve.
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
        archive: config.archive.clone().map(|archive| Archive::new(config.cell.clone(), archive)),
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
        agents: agent_dialler(config, credentials),
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
        let task_life = config.task_certificate_lifetime;
        router = router.merge(EnrollmentApi { handle, authority, clock, task_life }.router());
    }
    Ok((router, files))
}

/// Bootstraps the first member of a new cell; does nothing in a cell that exists or is to be
/// joined.
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
        // A disk error only appears in the status once the replica has checked it.
        Ok(()) | Err(BootstrapError::AlreadyInitialised) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
