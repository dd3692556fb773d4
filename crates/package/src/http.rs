//! Packages over HTTP: `GET /internal/packages/DIGEST?from=N&length=N`, served by machines and
//! masters alike.
//!
//! A byte range and not a chunk by number, so that the head is fetched the same way. The listener
//! decides who may connect; a package is only served by its digest.

use crate::cache::{Cache, Source, SourceError};
use crate::digest::PackageDigest;
use crate::head::CHUNK_BYTES;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use bytes::Bytes;
use cellwright_api::client::agent::{AgentConnection, AgentDialler};
use cellwright_api::client::internal_calls::PACKAGE_PATH;
use cellwright_api::client::{Client, ClientError};
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::name::Name;
use cellwright_supervise::spawn_request;
use futures::future::BoxFuture;
use futures::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Most bytes of one answer: the largest head.
const MAX_LENGTH: u32 = 9 << 20;
/// Answers in memory at a time, those being sent included. With a megabyte each, as chunks have,
/// that is little; with the largest, still bounded.
const MAX_CONCURRENT_ANSWERS: usize = 8;
/// How long a request waits for its permit before the caller is better served elsewhere.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one answer may take to be sent before others get its permit.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are passed to a connection at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A machine or a master that serves packages over HTTP.
pub struct HttpSource {
    client: Client,
    address: String,
    is_trusted: bool,
    timeout: Duration,
}

impl HttpSource {
    /// The agent at `address` (`host:port`), with the certificate of `client`.
    #[must_use]
    pub fn machine(client: Client, address: String, timeout: Duration) -> HttpSource {
        HttpSource { client, address, is_trusted: false, timeout }
    }

    /// The master at `address`, which is trusted.
    #[must_use]
    pub fn master(client: Client, address: String, timeout: Duration) -> HttpSource {
        HttpSource { client, address, is_trusted: true, timeout }
    }
}

impl Source for HttpSource {
    fn name(&self) -> &str {
        &self.address
    }

    fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    fn read(
        &self,
        package: PackageDigest,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        let path = path_of(package, from, length);
        Box::pin(async move {
            let answer = self
                .client
                .bytes_at_most(&self.address, &path, self.timeout, length as usize)
                .await;
            answer.map_err(|why| source_error(&why))
        })
    }
}

/// The agent of a machine, verified by its certificate. Connections are kept for the next chunk.
pub struct AgentSource {
    dialler: AgentDialler,
    machine: Name,
    address: String,
    timeout: Duration,
    idle: Mutex<Vec<AgentConnection>>,
}

impl AgentSource {
    #[must_use]
    pub fn new(
        dialler: AgentDialler,
        machine: Name,
        address: String,
        timeout: Duration,
    ) -> AgentSource {
        AgentSource { dialler, machine, address, timeout, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<AgentConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, path: &str, most: usize) -> Result<Bytes, ClientError> {
        let idle_connection = self.idle().pop();
        let mut connection = match idle_connection {
            Some(connection) => connection,
            None => self.dialler.dial(&self.machine, &self.address).await?,
        };
        let bytes = connection.get_bytes(path, self.timeout, most).await;
        // A broken connection is dropped; after an error response it is as good as before.
        if matches!(bytes, Ok(_) | Err(ClientError::Api(_))) {
            self.idle().push(connection);
        }
        bytes
    }
}

impl Source for AgentSource {
    fn name(&self) -> &str {
        &self.address
    }

    fn machine(&self) -> Option<&str> {
        Some(self.machine.as_str())
    }

    fn is_trusted(&self) -> bool {
        false
    }

    fn read(
        &self,
        package: PackageDigest,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        let path = path_of(package, from, length);
        let most = length as usize;
        Box::pin(async move { self.fetch(&path, most).await.map_err(|why| source_error(&why)) })
    }
}

fn path_of(package: PackageDigest, from: u64, length: u32) -> String {
    format!("{PACKAGE_PATH}/{package}?from={from}&length={length}")
}

fn source_error(why: &ClientError) -> SourceError {
    match why {
        ClientError::Api(error) if error.code == Code::NoSuchBlob => SourceError::Lacks,
        _ => SourceError::Failed(why.to_string()),
    }
}

/// The requested range.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: u64,
    length: u32,
}

/// Serves cached packages, and what has arrived of those being fetched.
pub fn router(cache: Cache) -> Router {
    router_with(cache, MAX_CONCURRENT_ANSWERS, PERMIT_TIMEOUT)
}

/// At most `answers` at a time, for which others wait no longer than `permit_timeout`.
pub(crate) fn router_with(cache: Cache, answers: usize, permit_timeout: Duration) -> Router {
    let path = format!("{PACKAGE_PATH}/{{digest}}");
    let permits = Arc::new(Semaphore::new(answers));
    Router::new().route(&path, get(serve_package)).with_state(ServeState {
        cache,
        permits,
        permit_timeout,
    })
}

#[derive(Clone)]
struct ServeState {
    cache: Cache,
    permits: Arc<Semaphore>,
    permit_timeout: Duration,
}

async fn serve_package(
    State(ServeState { cache, permits, permit_timeout: turn }): State<ServeState>,
    Path(digest): Path<String>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Response<Body> {
    let Ok(Ok(permit)) = tokio::time::timeout(turn, permits.acquire_owned()).await else {
        let why = "too many answers are on their way out already; ask elsewhere";
        return error_response(&ApiError::new(Code::Overloaded, why));
    };
    match read_range(&cache, &digest, range.map(|Query(range)| range).map_err(|e| e.body_text()))
        .await
    {
        Ok(bytes) => {
            let length = bytes.len();
            let mut response = Response::new(stream_body(bytes, permit, SEND_TIMEOUT));
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            let binary = HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(header::CONTENT_TYPE, binary);
            response
        }
        Err(error) => error_response(&error),
    }
}

/// The bytes, with the permit until the connection has taken the last; or until the timeout, for a
/// reader that takes nothing must not keep others from theirs.
fn stream_body(bytes: Bytes, permit: OwnedSemaphorePermit, timeout: Duration) -> Body {
    let (all_taken_tx, all_taken) = oneshot::channel::<()>();
    spawn_request("the turn of an answer", async move {
        // In each case the permit is released: taken, cancelled, or late.
        let _ = tokio::time::timeout(timeout, all_taken).await;
        drop(permit);
    });
    Body::from_stream(stream::unfold((bytes, all_taken_tx), |(mut left, taken)| async move {
        let piece = left.split_to(PIECE_BYTES.min(left.len()));
        (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (left, taken)))
    }))
}

async fn read_range(
    cache: &Cache,
    digest: &str,
    range: Result<Range, String>,
) -> Result<Bytes, ApiError> {
    let allowed = "64 digits 0-9 and a-f";
    let parsed = PackageDigest::parse(digest);
    let package = parsed.ok_or_else(|| bad_parameter("digest", digest, allowed))?;
    let range = range.map_err(|why| ApiError::new(Code::BadParameter, why))?;
    if range.length > MAX_LENGTH {
        let allowed = format!("at most {MAX_LENGTH}");
        return Err(bad_parameter("length", &range.length.to_string(), &allowed));
    }
    let read = cache.read(package, range.from, range.length).await;
    read.map_err(|why| match why {
        SourceError::Lacks => {
            ApiError::new(Code::NoSuchBlob, format!("these bytes of {package} are not here"))
        }
        why => ApiError::new(Code::Internal, why.to_string()),
    })
}

fn bad_parameter(name: &str, value: &str, allowed: &str) -> ApiError {
    let message = format!("{name} {value:?} is not valid: {allowed}");
    ApiError::new(Code::BadParameter, message)
}

fn error_response(error: &ApiError) -> Response<Body> {
    let body = serde_json::to_vec(error).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    let status = StatusCode::from_u16(error.code.status());
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

const _: () = assert!(CHUNK_BYTES <= MAX_LENGTH);
