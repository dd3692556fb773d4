//! One replica as a process: the product's store, core, API and listener on a real disk with its
//! flushes, without TLS, as a loopback address allows.
//!
//! It differs from `cellwright_gateway::serve` in how the first members are named: an open master
//! there is always alone, and these are three.

use super::cell_process::answer_questions;
use crate::flags::Flags;
use axum::Router;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::masters::MasterList;
use cellwright_gateway::access::authenticator::MasterAuthenticator;
use cellwright_gateway::access::caller::Unauthenticated;
use cellwright_gateway::access::listener::{Authenticator, ConnInfo, Listener};
use cellwright_gateway::access::rejection_audit::RejectionAuditLimiter;
use cellwright_gateway::config::Config;
use cellwright_gateway::http::blob_peers::HttpBlobPeers;
use cellwright_gateway::http::master_services::MasterServices;
use cellwright_gateway::http::{Api, ApiConfig};
use cellwright_gateway::http_peers::HttpPeers;
use cellwright_gateway::serve::{master_config, store_config};
use cellwright_master::blobs::BlobStore;
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::history::{HistoryService, HistoryWriter};
use cellwright_master::master::{Environment, Master};
use cellwright_store::{BootstrapError, Peer, RealDisk};
use cellwright_supervise::{Supervisor, trim_heap_periodically};
use std::io;
use std::sync::Arc;

/// What the only question means: take a snapshot now.
pub const SNAPSHOT: &str = "snapshot";

pub async fn main(flags: Flags) -> io::Result<()> {
    let members = flags.list("members")?;
    let config = config(&flags, &members)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let disk = RealDisk::open(&config.data_dir)?;
    let listener = Listener::plain(config.listen).await?;
    let peers = Arc::new(HttpPeers::new(None));
    let world = Environment { disk: Arc::new(disk), peers, clock: clock.clone() };
    let (settings, store) = (master_config(&config), store_config(&config, None));
    let master =
        Master::start(config.id, settings, store, world).await.map_err(io::Error::other)?;
    let handle = master.handle().clone();
    if config.id == 1 {
        initialize_cell(&handle, &members).await?;
    }
    let (router, _keeper) = router(&config, &handle)?;
    let gate = Arc::new(AllowAll(MasterAuthenticator {
        cell: config.cell.clone(),
        handle: handle.clone(),
        clock,
        audit: handle.replicated().records.audit.clone(),
        rejections: RejectionAuditLimiter::default(),
        dev_token: None,
    }));
    let stop = std::future::pending();
    let serving = tokio::spawn(listener.serve(router, gate, config.limits(), stop));
    // As every process of the product that serves.
    let trimming = tokio::spawn(trim_heap_periodically());
    let snapshot = async |question: String| {
        if question != SNAPSHOT {
            return Err(io::Error::other(format!("{question:?}; allowed: {SNAPSHOT}")));
        }
        let index = handle.replica().snapshot_now().await.map_err(io::Error::other)?;
        Ok(index.to_string())
    };
    answer_questions(snapshot).await?;
    serving.abort();
    trimming.abort();
    Ok(())
}

/// Lets everybody in: replicas of one measurement have no token in common, and what is measured is
/// behind the door.
struct AllowAll(MasterAuthenticator);

impl Authenticator for AllowAll {
    fn authenticate(&self, _: &ConnInfo, _: Option<&[u8]>) -> Result<Caller, Unauthenticated> {
        Ok(Caller::Operator)
    }

    fn masters(&self) -> Option<MasterList> {
        self.0.masters()
    }

    fn record_rejected(&self, connection: &ConnInfo, method: &str, path: &str, why: &str) {
        self.0.record_rejected(connection, method, path, why);
    }
}

fn config(flags: &Flags, members: &[String]) -> io::Result<Config> {
    let id: usize = flags.number("id", 1)?;
    let missing = || io::Error::other(format!("--id {id}: there are {} members", members.len()));
    let address = id.checked_sub(1).and_then(|at| members.get(at)).ok_or_else(missing)?;
    config_of(id, address, flags.text("dir")?, flags.number("silence", 3)?)
}

/// The configuration of one replica, for its process and for whoever writes its first files.
pub fn config_of(id: usize, address: &str, dir: &str, missed_polls: u32) -> io::Result<Config> {
    let given = [
        ("cell", "bench".to_owned()),
        ("name", format!("replica-{id}")),
        ("id", id.to_string()),
        ("data_dir", dir.to_owned()),
        ("listen", address.to_owned()),
        ("advertise", address.to_owned()),
        // A cell made from a checkpoint has machines that no agent speaks for.
        ("missed_polls", missed_polls.to_string()),
        // All clients of a measurement are one user, who is bounded like a thousand of them.
        ("connections_per_identity", "16384".to_owned()),
        ("requests_per_user", "8192".to_owned()),
        ("body_bytes_per_user", "512MiB".to_owned()),
        ("jobs_per_user", "10000000".to_owned()),
        ("tasks_per_user", "10000000".to_owned()),
        ("spec_bytes_per_user", "64GiB".to_owned()),
    ];
    let text = Config::default_file(&given).map_err(io::Error::other)?;
    Config::parse(&text).map_err(io::Error::other)
}

/// Names the members of a new cell; a cell that exists has its own.
async fn initialize_cell(handle: &MasterHandle, members: &[String]) -> io::Result<()> {
    let peer = |(id, address): (u64, &String)| {
        (id, Peer { name: format!("replica-{id}"), address: address.clone() })
    };
    let peers = (1..).zip(members).map(peer).collect();
    match handle.replica().bootstrap(peers).await {
        Ok(()) | Err(BootstrapError::AlreadyInitialised) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// What the replica answers, and the thread that writes its history.
fn router(config: &Config, handle: &MasterHandle) -> io::Result<(Router, HistoryWriter)> {
    let blobs = BlobStore::open(&config.data_dir, config.blob_limit).map_err(io::Error::other)?;
    let blobs = Arc::new(blobs);
    let client = Client::new(ApiClientConfig::new(vec![config.advertise.clone()]));
    let replicated = handle.replicated().clone();
    let history = HistoryService::new(&config.data_dir, replicated.clone(), config.queries);
    let kept = config.history_config();
    let keeper = history.start_writer(&config.data_dir, kept, &Supervisor::default())?;
    let files = Arc::new(MasterServices {
        history,
        events: replicated.records.events.clone(),
        audit: replicated.records.audit.clone(),
        replicated,
        checkpoints: Checkpoints::in_data(&config.data_dir, 1),
        replica: config.name.clone(),
        peers: Arc::new(HttpBlobPeers {
            client: client.map_err(io::Error::other)?,
            replica: handle.replica().clone(),
            store: blobs.clone(),
        }),
        blobs,
        archive: None,
    });
    let body_limit = usize::try_from(config.body_limit).unwrap_or(usize::MAX);
    let settings = ApiConfig { body_limit, flow: config.flow, ..ApiConfig::default() };
    Ok((Api::new(handle.clone(), files, settings).router(), keeper))
}
