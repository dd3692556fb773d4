//! A master in a folder of its own, and requests to it.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use cellwright_api::routes::{Operation, routes};
use cellwright_api::secret::{hex, sha256};
use cellwright_cell::command::Command;
use cellwright_cell::name::Name;
use cellwright_master::blobs::{BlobPeers, BlobStore, Digest};
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::clock::SystemClock;
use cellwright_master::handle::{Caller, Handle};
use cellwright_master::http::files::Files;
use cellwright_master::http::{Api, ApiSettings};
use cellwright_master::master::{Master, World};
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_store::{CallError, NodeId, Peer, RealDisk, Role};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::ServiceExt;

/// A folder that goes away with the test.
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

/// A cell of one voter calls nobody.
pub struct Nobody;

impl Peers for Nobody {
    fn call(
        &self,
        _: NodeId,
        _: Peer,
        _: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
        Box::pin(async { Err(CallError::Unreachable("there is nobody else".into())) })
    }
}

impl BlobPeers for Nobody {
    fn voters(&self) -> Vec<String> {
        vec![]
    }
    fn push(&self, _: String, _: Digest) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err("there is nobody else".into()) })
    }
    fn fetch(&self, _: String, _: Digest) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async { Err("there is nobody else".into()) })
    }
}

/// Limit of a blob in these tests.
pub const BLOB_LIMIT: u64 = 1 << 20;

pub struct Cell {
    pub master: Master,
    pub router: Router,
    /// Operations that were answered with success.
    pub done: Mutex<BTreeSet<Operation>>,
    _folder: Folder,
}

/// What came back.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Got {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Cell {
    pub async fn start() -> Cell {
        Cell::start_with(ApiSettings::default()).await
    }

    pub async fn start_with(settings: ApiSettings) -> Cell {
        let folder = Folder::new();
        let disk = Arc::new(RealDisk::open(&folder.0).unwrap());
        let world =
            World { disk: disk.clone(), peers: Arc::new(Nobody), clock: Arc::new(SystemClock) };
        let store = cellwright_store::Settings::default();
        let master = Master::start(1, Default::default(), store, world).await.unwrap();
        let handle = master.handle().clone();
        let peer = Peer { name: "m1".into(), address: "127.0.0.1:7070".into() };
        handle.replica().bootstrap(BTreeMap::from([(1, peer)])).await.unwrap();
        lead(&handle).await;
        let records = &handle.replicated().records;
        let files = Files {
            replicated: handle.replicated().clone(),
            events: records.events.clone(),
            audit: records.audit.clone(),
            checkpoints: Checkpoints::in_data(&folder.0, 3),
            blobs: Arc::new(BlobStore::open(&folder.0, BLOB_LIMIT).unwrap()),
            peers: Arc::new(Nobody),
        };
        let api = Api::new(handle, Arc::new(files), Arc::new(SystemClock), settings);
        let router = api.router();
        Cell { master, router, done: Mutex::default(), _folder: folder }
    }

    pub fn handle(&self) -> &Handle {
        self.master.handle()
    }

    /// One request; `target` is `METHOD /path?query`.
    pub async fn send(
        &self,
        caller: Option<&Caller>,
        target: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Got {
        let (method, path) = target.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body).unwrap();
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller.clone());
        }
        let answering = self.router.clone().oneshot(request);
        let response = within(answering).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = within(response.into_body().collect()).await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status < 300 {
            self.done.lock().unwrap().insert(operation(method, path));
        }
        Got { status, headers, body, text }
    }

    /// As nobody in particular, who may do everything.
    pub async fn ask(&self, target: &str, body: Value) -> Got {
        self.ask_as(&Caller::Anonymous, target, &[], body).await
    }

    pub async fn ask_as(
        &self,
        caller: &Caller,
        target: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> Got {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send(Some(caller), target, headers, body).await
    }

    /// As [`Cell::ask`], where anything but success is a failure of the test.
    pub async fn must(&self, target: &str, body: Value) -> Got {
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

async fn lead(handle: &Handle) {
    let mut status = handle.replica().watch();
    within(status.wait_for(|status| status.role == Role::Leader)).await.unwrap();
    // The core hears of it a moment later than the replica.
    let asked = async {
        let system = Caller::System("test".into());
        while handle.submit(&system, None, Command::Expire).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(asked).await;
}

/// Nothing here takes long; what does is stuck.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("stuck")
}

fn operation(method: &str, path: &str) -> Operation {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let wanted: Vec<&str> = template.split('/').collect();
        let same = |(want, have): (&&str, &&str)| want.starts_with('{') || want == have;
        wanted.len() == parts.len() && wanted.iter().zip(&parts).all(same)
    };
    let mut found: Vec<_> =
        routes().filter(|r| r.method.as_str() == method && fits(r.path)).collect();
    // `/v1/tokens/join` is also of the shape of `/v1/tokens/{token}`.
    found.sort_by_key(|route| route.path.contains('{'));
    found.first().unwrap_or_else(|| panic!("no route {method} {path}")).operation
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
