//! Many watches at once, by the API of the product: one user opens a thousand, of which half are
//! never read, and another user opens one. The first gets its share of a replica and no more, the
//! second gets its watch and a picture in it, and whoever goes gives back what it had.
//!
//! What a watch costs in time and memory is measured on real processes; here it is seen that the
//! bounds hold whatever else goes wrong.

use super::world::Cluster;
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, CheckpointView};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::{Name, Token};
use cellwright_gateway::http::backstage::{Backstage, Cursor, EventRecord, Stretch};
use cellwright_gateway::http::{Api, ApiSettings, FlowSettings};
use cellwright_master::blobs::Reading;
use cellwright_master::handle::Caller;
use cellwright_master::level::{Candidate, Candidates};
use cellwright_master::replicated::View;
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
const MANY: usize = 1000;
/// What another user waits for its first picture at most.
const SOON: Duration = Duration::from_secs(5);
const PATH: &str = "/v1/watch/overview";

/// Known bugs that a test plants to see them caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowBugs {
    /// Nobody counts the streams of one user.
    pub unbounded_streams: bool,
    /// One user may have all the streams that there are.
    pub first_takes_all: bool,
    /// What a stream held is not given back at its end.
    pub keeps_seats: bool,
}

/// Those that are open.
#[derive(Default)]
pub struct Watches {
    open: Option<Open>,
}

struct Open {
    replica: NodeId,
    router: Router,
    /// Never read.
    unread: Vec<Body>,
    readers: Vec<AbortHandle>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.readers.iter().for_each(AbortHandle::abort);
    }
}

impl Watches {
    /// Whoever watched has gone.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// The process of a replica has ended, and every stream of it.
    pub fn lose(&mut self, id: NodeId) {
        self.open.take_if(|open| open.replica == id);
    }
}

impl Cluster {
    /// One user opens many watches of the leader.
    ///
    /// # Errors
    /// When it gets more than its share, or another user gets none.
    pub async fn open_many_watches(&mut self) -> Result<(), String> {
        let Some((replica, handle)) = self.leader() else { return Ok(()) };
        let most = FlowSettings::default().streams_per_user;
        let router = Api::new(handle, Arc::new(NoFiles), settings(self.bugs.flow)).router();
        let mut bodies = Vec::new();
        for _ in 0..MANY {
            match watch(&router, "many").await {
                Ok(body) => bodies.push(body),
                Err(StatusCode::TOO_MANY_REQUESTS) => {}
                Err(other) => return Err(format!("a watch was answered with {other}")),
            }
        }
        if bodies.len() > most {
            let has = bodies.len();
            return Err(format!("one user has {has} streams of replica {replica}, not {most}"));
        }
        let other = watch(&router, "other").await;
        let other = other.map_err(|why| format!("a watch of another user got {why}"))?;
        let mut other = other.into_data_stream();
        match timeout(SOON, other.next()).await {
            Ok(Some(Ok(_))) => {}
            _ => return Err(format!("a watch of another user says nothing for {SOON:?}")),
        }
        let unread = bodies.split_off(bodies.len() / 2);
        let streams = bodies.into_iter().map(Body::into_data_stream).chain([other]);
        let read = |stream: BodyDataStream| stream.for_each(|_piece| async {});
        let readers = streams.map(|stream| self.errand("the reader of a watch", read(stream)));
        let readers = readers.collect();
        self.watches.open = Some(Open { replica, router, unread, readers });
        Ok(())
    }

    /// Whoever never read has gone, and has what it had again.
    ///
    /// # Errors
    /// When it cannot watch any more.
    pub async fn close_watches(&mut self) -> Result<(), String> {
        let Some(mut open) = self.watches.open.take() else { return Ok(()) };
        let gone = std::mem::take(&mut open.unread);
        let many = gone.len();
        match self.bugs.flow.keeps_seats {
            // As if nobody had noticed that they went.
            true => gone.into_iter().for_each(std::mem::forget),
            false => drop(gone),
        }
        let mut again = Vec::new();
        for _ in 0..many {
            let opened = watch(&open.router, "many").await;
            if opened.as_ref().is_err_and(|why| *why == StatusCode::TOO_MANY_REQUESTS) {
                return Err(format!("replica {} still counts who has gone", open.replica));
            }
            again.push(opened);
        }
        Ok(())
    }
}

/// The stream, or how it was refused.
async fn watch(router: &Router, user: &str) -> Result<Body, StatusCode> {
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

fn settings(bugs: FlowBugs) -> ApiSettings {
    let mut flow = FlowSettings::default();
    if bugs.unbounded_streams {
        flow.streams_per_user = usize::MAX;
    }
    if bugs.first_takes_all {
        flow.streams = flow.streams_per_user;
    }
    ApiSettings { flow, ..ApiSettings::default() }
}

/// Nothing that a watch of the state needs is on a disk.
struct NoFiles;

fn none<T>() -> Result<T, ApiError> {
    Err(ApiError::new(Code::NotReady, "a simulated replica has no files for this"))
}

impl Backstage for NoFiles {
    fn events(&self, _: Cursor, _: usize) -> Result<Stretch<EventRecord>, ApiError> {
        none()
    }

    fn placed_on(&self, _: TaskId, _: u32) -> Result<Option<MachineId>, ApiError> {
        none()
    }

    fn audit(&self, _: Cursor, _: usize) -> Result<Stretch<AuditView>, ApiError> {
        none()
    }

    fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        none()
    }

    fn save_checkpoint(&self, _: &View) -> Result<CheckpointView, ApiError> {
        none()
    }

    fn put_blob(&self, _: Token, _: Body, _: u64) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async { none() })
    }

    fn drop_blob(&self, _: &Token) -> Result<(), ApiError> {
        none()
    }

    fn keep_blob(&self, _: Token, _: Body) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async { none() })
    }

    fn blob_here(&self, _: &Token) -> Result<Reading, ApiError> {
        none()
    }

    fn blobs_here(&self) -> Result<BTreeSet<String>, ApiError> {
        none()
    }

    fn get_blob(&self, _: Token) -> BoxFuture<'_, Result<Reading, ApiError>> {
        Box::pin(async { none() })
    }

    fn blob_range(&self, _: Token, _: u64, _: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async { none() })
    }

    fn candidates(&self) -> &dyn Candidates {
        self
    }
}

impl Candidates for NoFiles {
    fn identify(&self, _: String) -> BoxFuture<'_, Result<Candidate, String>> {
        Box::pin(async { Err("nobody answers in a simulation".into()) })
    }
}
