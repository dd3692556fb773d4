//! Many watches at once, through the API of the product: one user opens a thousand, of which half
//! are never read, and another user opens one. The first gets its share of a replica and no more,
//! the second gets its watch and a first view in it, and a user that leaves returns what it had.
//!
//! The cost of a watch in time and memory is measured on real processes; here it is checked that
//! the limits hold whatever else goes wrong.

use super::world::Cluster;
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_gateway::http::replica_services::{Cursor, EventRecord, FeedPage, ReplicaServices};
use cellwright_gateway::http::{Api, ApiConfig, FlowConfig};
use cellwright_master::blobs::BlobReader;
use cellwright_master::handle::Caller;
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe};
use cellwright_master::replicated_state::View;
use cellwright_store::NodeId;
use futures::StreamExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tower::ServiceExt;

/// Watches that one user opens.
const WATCH_COUNT: usize = 1000;
/// How long another user waits for its first view at most.
const FIRST_VIEW_TIMEOUT: Duration = Duration::from_secs(5);
const PATH: &str = "/v1/watch/overview";

/// Known bugs that a test injects to check that they are caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowBugs {
    /// The streams of one user are not counted.
    pub ignores_stream_limit: bool,
    /// One user may have all the streams that there are.
    pub ignores_user_share: bool,
    /// What a stream held is not released at its end.
    pub leaks_permits: bool,
}

/// The open watches.
#[derive(Default)]
pub struct Watches {
    open_watches: Option<OpenWatches>,
}

struct OpenWatches {
    replica: NodeId,
    router: Router,
    /// Watches that are never read.
    unread: Vec<Body>,
    readers: Vec<AbortHandle>,
}

impl Drop for OpenWatches {
    fn drop(&mut self) {
        self.readers.iter().for_each(AbortHandle::abort);
    }
}

impl Watches {
    /// The watching users have gone.
    pub fn close(&mut self) {
        self.open_watches = None;
    }

    /// The process of a replica has ended, and every stream of it.
    pub fn forget_replica(&mut self, id: NodeId) {
        self.open_watches.take_if(|open| open.replica == id);
    }
}

impl Cluster {
    /// One user opens many watches on the leader.
    ///
    /// # Errors
    /// When it gets more than its share, or another user gets none.
    pub async fn open_many_watches(&mut self) -> Result<(), String> {
        let Some((replica, handle)) = self.leader() else { return Ok(()) };
        let most = FlowConfig::default().streams_per_user;
        let router =
            Api::new(handle, Arc::new(NoFileServices), api_config(self.bugs.flow)).router();
        let mut bodies = Vec::new();
        for _ in 0..WATCH_COUNT {
            match open_watch(&router, "many").await {
                Ok(body) => bodies.push(body),
                Err(StatusCode::TOO_MANY_REQUESTS) => {}
                Err(other) => return Err(format!("a watch was answered with {other}")),
            }
        }
        if bodies.len() > most {
            let has = bodies.len();
            return Err(format!("one user has {has} streams of replica {replica}, not {most}"));
        }
        let other = open_watch(&router, "other").await;
        let other = other.map_err(|why| format!("a watch of another user got {why}"))?;
        let mut other = other.into_data_stream();
        match timeout(FIRST_VIEW_TIMEOUT, other.next()).await {
            Ok(Some(Ok(_))) => {}
            _ => {
                return Err(format!(
                    "a watch of another user says nothing for {FIRST_VIEW_TIMEOUT:?}"
                ));
            }
        }
        let unread = bodies.split_off(bodies.len() / 2);
        let streams = bodies.into_iter().map(Body::into_data_stream).chain([other]);
        let read = |stream: BodyDataStream| stream.for_each(|_piece| async {});
        let readers =
            streams.map(|stream| self.spawn_background("the reader of a watch", read(stream)));
        let readers = readers.collect();
        self.watches.open_watches = Some(OpenWatches { replica, router, unread, readers });
        Ok(())
    }

    /// The user that never read has gone, and can use its share again.
    ///
    /// # Errors
    /// When it cannot watch any more.
    pub async fn close_watches(&mut self) -> Result<(), String> {
        let Some(mut open) = self.watches.open_watches.take() else { return Ok(()) };
        let gone = std::mem::take(&mut open.unread);
        let many = gone.len();
        if self.bugs.flow.leaks_permits {
            // As if their end had not been noticed.
            gone.into_iter().for_each(std::mem::forget)
        } else {
            drop(gone)
        }
        let mut again = Vec::new();
        for _ in 0..many {
            let opened = open_watch(&open.router, "many").await;
            if opened.as_ref().is_err_and(|why| *why == StatusCode::TOO_MANY_REQUESTS) {
                return Err(format!("replica {} still counts who has gone", open.replica));
            }
            again.push(opened);
        }
        Ok(())
    }
}

/// The stream, or the status with which it was rejected.
async fn open_watch(router: &Router, user: &str) -> Result<Body, StatusCode> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = axum::http::Uri::from_static(PATH);
    let name = Name::new(user).unwrap_or_else(|bad| panic!("{bad}"));
    request.extensions_mut().insert(Caller::User(name));
    match router.clone().oneshot(request).await {
        Ok(answer) if answer.status().is_success() => Ok(answer.into_body()),
        Ok(answer) => Err(answer.status()),
        Err(never) => match never {},
    }
}

fn api_config(bugs: FlowBugs) -> ApiConfig {
    let mut flow = FlowConfig::default();
    if bugs.ignores_stream_limit {
        flow.streams_per_user = usize::MAX;
    }
    if bugs.ignores_user_share {
        flow.streams = flow.streams_per_user;
    }
    ApiConfig { flow, ..ApiConfig::default() }
}

/// Nothing that a watch of the state needs is on a disk.
struct NoFileServices;

fn unavailable<T>() -> Result<T, ApiError> {
    Err(ApiError::new(Code::NotReady, "a simulated replica has no files for this"))
}

impl ReplicaServices for NoFileServices {
    fn events(&self, _: Cursor, _: usize) -> Result<FeedPage<EventRecord>, ApiError> {
        unavailable()
    }

    fn find_placement(&self, _: TaskId, _: u32) -> Result<Option<MachineId>, ApiError> {
        unavailable()
    }

    fn audit(&self, _: Cursor, _: usize) -> Result<FeedPage<AuditView>, ApiError> {
        unavailable()
    }

    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        unavailable()
    }

    fn save_checkpoint(&self, _: &View) -> Result<CheckpointView, ApiError> {
        unavailable()
    }

    fn put_blob(&self, _: Token, _: Body, _: u64) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async { unavailable() })
    }

    fn remove_local_blob(&self, _: &Token) -> Result<(), ApiError> {
        unavailable()
    }

    fn store_local_blob(&self, _: Token, _: Body) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async { unavailable() })
    }

    fn local_blob(&self, _: &Token) -> Result<BlobReader, ApiError> {
        unavailable()
    }

    fn local_blobs(&self) -> Result<BTreeSet<String>, ApiError> {
        unavailable()
    }

    fn get_blob(&self, _: Token) -> BoxFuture<'_, Result<BlobReader, ApiError>> {
        Box::pin(async { unavailable() })
    }

    fn blob_range(&self, _: Token, _: u64, _: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async { unavailable() })
    }

    fn candidates(&self) -> &dyn ReplicaProbe {
        self
    }
}

impl ReplicaProbe for NoFileServices {
    fn identify(&self, _: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>> {
        Box::pin(async { Err("nobody answers in a simulation".into()) })
    }
}
