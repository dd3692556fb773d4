//! Test support: a master in a directory of its own, and requests to it.

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use cellwright_api::client::{ApiClientConfig as ClientSettings, Client};
use cellwright_api::routes::{Operation, Route, routes};
use cellwright_api::wire::{self, Spoken, WireRange};
use cellwright_archive::ArchivePlace;
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::name::Name;
use cellwright_gateway::access::caller::Unauthenticated;
use cellwright_gateway::access::listener::{Authenticator, ConnInfo, Listener, ListenerLimits};
use cellwright_gateway::archiver::{Archive, ArchiveConfig};
use cellwright_gateway::http::blob_peers::HttpBlobPeers;
use cellwright_gateway::http::master_services::MasterServices;
use cellwright_gateway::http::{Api, ApiConfig, is_of_console};
use cellwright_gateway::http_peers::HttpPeers;
use cellwright_gateway::membership::Membership;
use cellwright_identity::secret::{Secret, hex, sha256};
use cellwright_identity::spiffe::Part;
use cellwright_master::blobs::BlobStore;
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::clock::SystemClock;
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::history::{HistoryService, HistoryWriter};
use cellwright_master::master::{Environment, Master};
use cellwright_store::{Disk, Peer, RealDisk, Role};
use cellwright_supervise::Supervisor;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A directory that is removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-http-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Test authentication: the caller's name as text, such as `user:ubar`, in the authorization
/// header. The operator sends nothing and may do everything; `nobody` is rejected. Real
/// authentication has tests of its own.
#[derive(Default)]
struct TestAuthenticator {
    /// Callers that are no longer admitted.
    barred: Arc<Mutex<BTreeSet<String>>>,
}

/// How replicas authenticate to each other here.
pub const PEER: &str = "operator";

impl Authenticator for TestAuthenticator {
    fn authenticate(
        &self,
        _: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated> {
        let text = authorization.map_or(PEER, |bytes| std::str::from_utf8(bytes).unwrap());
        let text = text.trim_start_matches("Bearer ");
        if self.barred.lock().unwrap().contains(text) {
            // A request without credentials is a replica here.
            return Err(match text {
                PEER => Unauthenticated::Revoked { part: Part::Master(Name::new("m2").unwrap()) },
                _ => Unauthenticated::TokenNotAccepted,
            });
        }
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        let named = || Name::new(name).unwrap();
        Ok(match kind {
            "operator" => Caller::Operator,
            "user" => Caller::User(named()),
            "agent" => Caller::Agent(named()),
            "scheduler" => Caller::Scheduler(named()),
            "replica" => Caller::Replica(named()),
            _ => return Err(Unauthenticated::NoCredentials),
        })
    }

    fn record_rejected(&self, _: &ConnInfo, _: &str, _: &str, _: &str) {}
}

/// The header text for [`TestAuthenticator`].
pub fn caller_text(caller: Option<&Caller>) -> String {
    caller.map_or_else(|| "nobody".to_owned(), ToString::to_string)
}

/// Limit of a blob in these tests.
pub const BLOB_LIMIT: u64 = 1 << 20;

/// What differs between the cells of these tests.
pub struct CellOptions {
    pub id: u64,
    /// Whether it bootstraps a cell of its own; otherwise it waits to be added to another.
    pub begins_cell: bool,
    pub api: ApiConfig,
    pub master: MasterConfig,
    pub blob_limit: u64,
    /// Wraps the disk.
    pub disk: Option<fn(RealDisk) -> Arc<dyn Disk>>,
    pub supervisor: Supervisor,
}

impl Default for CellOptions {
    fn default() -> CellOptions {
        let (api, master) = (ApiConfig::default(), MasterConfig::default());
        let (blob_limit, supervisor) = (BLOB_LIMIT, Supervisor::default());
        CellOptions { id: 1, begins_cell: true, api, master, blob_limit, disk: None, supervisor }
    }
}

pub struct Cell {
    pub master: Master,
    /// The listen address.
    pub address: String,
    pub blobs: Arc<BlobStore>,
    /// Operations that were answered with success.
    pub done: Mutex<BTreeSet<Operation>>,
    /// Callers that are no longer admitted, as [`caller_text`] formats them.
    pub barred: Arc<Mutex<BTreeSet<String>>>,
    /// The other replicas.
    pub blob_peers: Arc<HttpBlobPeers>,
    /// In its folder, and written by tests alone.
    pub archive: Archive,
    server_task: JoinHandle<()>,
    /// The writer of history.
    pub history_keeper: Option<HistoryWriter>,
    _folder: Folder,
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

/// A response.
#[derive(Debug)]
pub struct TestResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
    pub text: String,
}

impl TestResponse {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Cell {
    pub async fn start() -> Cell {
        Cell::start_with_options(CellOptions::default()).await
    }

    pub async fn start_with(api: ApiConfig) -> Cell {
        Cell::start_with_options(CellOptions { api, ..CellOptions::default() }).await
    }

    pub async fn start_with_options(options: CellOptions) -> Cell {
        let folder = Folder::new();
        let disk = RealDisk::open(&folder.0).unwrap();
        let disk: Arc<dyn Disk> = match options.disk {
            Some(around) => around(disk),
            None => Arc::new(disk),
        };
        let listener = Listener::plain("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap().to_string();
        let peers = Arc::new(HttpPeers::new(None));
        let world = Environment { disk, peers, clock: Arc::new(SystemClock) };
        let supervisor = options.supervisor;
        let store = cellwright_store::StoreConfig {
            supervisor,
            ..cellwright_store::StoreConfig::default()
        };
        let master = Master::start(options.id, options.master, store, world).await.unwrap();
        let handle = master.handle().clone();
        if options.begins_cell {
            let peer = Peer { name: format!("m{}", options.id), address: address.clone() };
            handle.replica().bootstrap(BTreeMap::from([(options.id, peer)])).await.unwrap();
            become_leader(&handle).await;
        }
        let blobs = Arc::new(BlobStore::open(&folder.0, options.blob_limit).unwrap());
        let blob_peers = Arc::new(HttpBlobPeers {
            client: Client::new(ClientSettings::new(vec![address.clone()])).unwrap(),
            replica: handle.replica().clone(),
            store: blobs.clone(),
        });
        let records = &handle.replicated().records;
        let history = HistoryService::new(&folder.0, handle.replicated().clone(), <_>::default());
        history.attach(&handle);
        let history_config = cellwright_history::RetentionConfig::default();
        let keeper =
            history.start_writer(&folder.0, history_config, &Supervisor::default()).unwrap();
        let place = ArchivePlace::Folder(folder.0.join("archive"));
        let config = ArchiveConfig::keeping_all(place);
        let archive = Archive::new(Name::new("aa").unwrap(), config);
        let services = MasterServices {
            history,
            replicated: handle.replicated().clone(),
            events: records.events.clone(),
            audit: records.audit.clone(),
            checkpoints: Checkpoints::in_data(&folder.0, 3),
            replica: Name::new("m1").unwrap(),
            blobs: blobs.clone(),
            peers: blob_peers.clone(),
            archive: Some(archive.clone()),
        };
        let membership = Membership { handle: handle.clone(), candidates: blob_peers.clone() };
        let api = Api::new(handle, Arc::new(services), options.api);
        let authenticator = TestAuthenticator::default();
        let barred = authenticator.barred.clone();
        let router = api.router().merge(membership.router());
        let serving =
            listener.serve(router, Arc::new(authenticator), ListenerLimits::default(), pending());
        let (done, server_task) = (Mutex::default(), tokio::spawn(serving));
        Cell {
            master,
            address,
            blobs,
            done,
            barred,
            blob_peers,
            archive,
            server_task,
            history_keeper: Some(keeper),
            _folder: folder,
        }
    }

    pub fn handle(&self) -> &MasterHandle {
        self.master.handle()
    }

    /// A client of this cell; the operator unless a caller is named.
    pub fn client(&self, caller: Option<&Caller>) -> Client {
        self.client_of(caller, WireRange::BUILT)
    }

    /// A part that speaks these versions.
    pub fn client_of(&self, caller: Option<&Caller>, wire: WireRange) -> Client {
        let mut settings = ClientSettings::new(vec![self.address.clone()]);
        settings.wire = wire;
        settings.token = caller.map(|caller| Secret::new(caller_text(Some(caller))));
        Client::new(settings).unwrap()
    }

    /// One request over a connection of its own; the answer's body is left to the caller. `target`
    /// is `METHOD /path?query`.
    pub async fn open(
        &self,
        caller: Option<&Caller>,
        target: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Response<Incoming> {
        let (method, path) = target.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        request =
            request.header("host", &self.address).header("authorization", caller_text(caller));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !body.is_end_stream() && headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", media_of(path));
        }
        let names_wire = headers.iter().any(|(name, _)| name.starts_with("cell-wire"));
        if let Some(headers) = request.headers_mut().filter(|_| !names_wire) {
            Spoken { version: wire::NEWEST, range: WireRange::BUILT }.write(headers);
        }
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let pending_response = sender.send_request(request.body(body).unwrap());
        let response = within(pending_response).await.unwrap();
        if response.status().as_u16() < 300 && !is_of_console(path) {
            self.done.lock().unwrap().insert(route(method, path).operation);
        }
        response
    }

    /// As [`Cell::open`], with the whole answer.
    pub async fn send(
        &self,
        caller: Option<&Caller>,
        target: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> TestResponse {
        let response = self.open(caller, target, headers, body).await;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = within(response.into_body().collect()).await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        TestResponse { status, headers, body, text }
    }

    /// As the operator, who may do everything.
    pub async fn ask(&self, target: &str, body: Value) -> TestResponse {
        self.ask_as(&Caller::Operator, target, &[], body).await
    }

    pub async fn ask_as(
        &self,
        caller: &Caller,
        target: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> TestResponse {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send(Some(caller), target, headers, body).await
    }

    /// As [`Cell::ask`], where anything but success fails the test.
    pub async fn must(&self, target: &str, body: Value) -> TestResponse {
        let got = self.ask(target, body).await;
        assert!(got.status < 300, "{target}: {} {}", got.status, got.text);
        got
    }

    /// A user, a machine that is up, and a job of `count` tasks.
    pub async fn furnish(&self, count: u32) {
        self.must("POST /v1/users", json!({ "name": "ubar" })).await;
        self.must("POST /v1/machines", machine("m1")).await;
        let quota = json!({ "amount": { "cpu": 1000, "ram": 1000 } });
        self.must("PUT /v1/users/ubar/quota/batch", quota).await;
        self.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": job("jfoo", count) })).await;
    }
}

async fn become_leader(handle: &MasterHandle) {
    let mut status = handle.replica().watch();
    within(status.wait_for(|status| status.role == Role::Leader)).await.unwrap();
    // The core learns of it a moment later than the replica.
    let leading = async {
        let by = Caller::Controller(ControllerName::Expire);
        while handle.submit(&by, None, Command::Expire).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(leading).await;
}

/// Nothing here takes long; a timeout means a hang.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("stuck")
}

/// The content type for a body sent there.
fn media_of(path: &str) -> &'static str {
    match path {
        blob if blob.contains("/blobs/") => "application/octet-stream",
        part if part.starts_with("/internal/") => "application/postcard",
        _ => "application/json",
    }
}

/// The row of the table that a request matches.
pub fn route(method: &str, path: &str) -> &'static Route {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let expected: Vec<&str> = template.split('/').collect();
        let same = |(want, have): (&&str, &&str)| want.starts_with('{') || want == have;
        expected.len() == parts.len() && expected.iter().zip(&parts).all(same)
    };
    let mut found: Vec<_> =
        routes().filter(|r| r.method.as_str() == method && fits(r.path)).collect();
    // `/v1/tokens/join` also matches `/v1/tokens/{token}`.
    found.sort_by_key(|route| route.path.contains('{'));
    found.first().unwrap_or_else(|| panic!("no route {method} {path}"))
}

pub fn user(name: &str) -> Caller {
    Caller::User(Name::new(name).unwrap())
}

pub fn job(name: &str, count: u32) -> Value {
    json!({
        "name": name,
        "count": count,
        "priority": 100,
        "labels": { "tier": "web", "of": name },
        "task": { "limits": { "cpu": 10, "ram": 10 }, "command": ["/bin/true"] },
    })
}

pub fn machine(name: &str) -> Value {
    json!({
        "name": name,
        "capacity": { "cpu": 1000, "ram": 1000 },
        "labels": { "zone": "a" },
        "rack": null,
        "power": null,
    })
}

pub fn digest_of(content: &[u8]) -> String {
    hex(&sha256(content))
}
