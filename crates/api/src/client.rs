//! The API client that every part of the cell uses: command line, schedulers, agents, replicas and
//! tests.
//!
//! It knows several masters and finds the leader among them, keeps connections open, and retries
//! what may be retried: reads, and changes that carry an idempotency key. A change that may have
//! taken effect and has no key is never sent twice; the caller gets an error that says that its
//! outcome is unknown.
//!
//! Idempotency keys: at most one change at a time is in flight under one client number, so the
//! numbers of a client reach the log in order and never fall out of the window that the log keeps.
//! Each concurrent change takes a sequence of its own from the `SequencePool`.

pub mod agent;
mod archive_calls;
mod attempt_errors;
mod calls;
mod connection;
pub mod content;
mod idempotency;
pub mod internal_calls;
mod master_selector;
mod outcome;
mod refused_connections;
mod session;
mod url_encoding;
mod watch;
mod wires;

pub use calls::{JobFilter, PageRequest};
pub use session::SessionStream;
pub use url_encoding::{encode_query, encode_segment};
pub use watch::{Watch, WatchEvent};

use crate::error::{ApiError, Code, IN_DOUBT};
use crate::masters::MastersFile;
use crate::routes::{CELL_INDEX, CELL_READ, IDEMPOTENCY_KEY};
use crate::wire::{WireMessage, WireRange};
use attempt_errors::AttemptErrors;
use bytes::Bytes;
use cellwright_cell::units::times_text;
use cellwright_identity::secret::Secret;
use connection::{ConnectionPool, TransportError};
use content::Payload;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, IF_MATCH};
use hyper::{Method, StatusCode};
use idempotency::SequencePool;
use master_selector::MasterSelector;
use outcome::{NextStep, classify, is_from_removed_replica};
use refused_connections::RefusedConnections;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};
use wires::Wires;

/// How to reach a cell.
#[derive(Clone)]
pub struct ApiClientConfig {
    /// `host:port` of one master or more. The others are learned from them, over TLS.
    pub masters: Vec<String>,
    /// Where the masters learned are saved for the next client, if anywhere.
    pub masters_file: Option<MastersFile>,
    /// Absent: plain text, to loopback addresses only.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// `id.secret` of a user. Absent, and without TLS: the token of the dev master, if that master
    /// belongs to this account.
    pub token: Option<Secret>,
    /// Number of this client in idempotency keys. Absent: chosen at random.
    pub client_id: Option<u64>,
    pub connect_timeout: Duration,
    /// Timeout of one attempt; after it another master is tried.
    pub attempt_timeout: Duration,
    /// Timeout of one call, all attempts together.
    pub deadline: Duration,
    /// How long to retry when every master refuses connections and none was ever reached. For parts
    /// of the cell that is for ever: their masters may be started after them.
    pub refused_timeout: Duration,
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// Unused connections kept per master.
    pub max_idle_connections: usize,
    /// Versions of the messages between parts that it speaks.
    pub wire: WireRange,
}

impl ApiClientConfig {
    #[must_use]
    pub fn new(masters: Vec<String>) -> ApiClientConfig {
        ApiClientConfig {
            masters,
            masters_file: None,
            tls: None,
            token: None,
            client_id: None,
            connect_timeout: Duration::from_secs(3),
            attempt_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            refused_timeout: Duration::MAX,
            backoff: Duration::from_millis(50),
            // An election takes about a second: a client that pauses longer makes it two.
            backoff_max: Duration::from_millis(400),
            max_idle_connections: 64,
            wire: WireRange::own(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    InvalidConfig(String),
    /// The cell answered with an error.
    #[error("{0}")]
    Api(ApiError),
    #[error("no master answers: {last} (tried {})", times_text(u64::from(*tried)))]
    Unreachable { tried: u32, last: String },
    /// The request was sent, and its outcome is unknown.
    #[error("the connection was lost after the request was sent, its fate is unknown: {0}")]
    Unknown(String),
    #[error("the answer cannot be read: {0}")]
    BadReply(String),
}

impl ClientError {
    /// The error of the cell, if it answered with one.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            ClientError::Api(error) => Some(error),
            _ => None,
        }
    }

    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.api().map(|error| error.code)
    }

    /// Whether a change was sent that may take effect although it was not acknowledged.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        match self {
            ClientError::Api(error) => error.details.get(IN_DOUBT) == Some(&true.into()),
            ClientError::Unknown(_) => true,
            _ => false,
        }
    }
}

/// What the cell answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<T> {
    pub value: T,
    /// Log index of the answer.
    pub index: Option<u64>,
    /// Whether the answer includes everything acknowledged before; false for a stale read.
    pub consistent: bool,
}

/// One request, before a master is chosen for it.
#[derive(Clone)]
pub(crate) struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Payload,
    /// Whether the body of a successful answer is left for the caller to read.
    pub streamed: bool,
    /// Whether sending it twice does no harm.
    pub repeatable: bool,
    pub attempt_timeout: Duration,
    pub deadline: Duration,
    /// The largest answer, in bytes, that is read; `None`: the limit for masters.
    pub max_bytes: Option<usize>,
}

impl Call {
    /// Whether it may change state: it has a key, or is to be sent once.
    fn is_change(&self) -> bool {
        let has_key = self.headers.contains_key(IDEMPOTENCY_KEY);
        self.method != Method::GET && (has_key || !self.repeatable)
    }
}

/// The headers and the body of a successful answer.
pub(crate) struct Answer {
    pub headers: HeaderMap,
    pub body: Bytes,
    /// In place of the body, if the call was a streamed one.
    pub open: Option<Incoming>,
}

/// Options of a change.
#[derive(Clone, Debug, Default)]
pub struct ChangeOptions {
    /// Version the object must be at.
    pub expect: Option<u32>,
    /// The caller's own idempotency key. Absent: the client makes one.
    pub key: Option<String>,
}

struct Shared {
    config: ApiClientConfig,
    pool: ConnectionPool,
    sequences: SequencePool,
    selector: MasterSelector,
    wires: Wires,
}

/// Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// # Errors
    /// When there is no master, or one outside loopback would be reached in plain text.
    pub fn new(mut config: ApiClientConfig) -> Result<Client, ClientError> {
        for master in &mut config.masters {
            *master = connection::bare_address(master).to_owned();
            connection::check_address(master, config.tls.is_some())
                .map_err(ClientError::InvalidConfig)?;
        }
        if config.masters.is_empty() {
            return Err(ClientError::InvalidConfig("no master is named".into()));
        }
        let client_id = match config.client_id {
            Some(id) => id,
            None => random_id().ok_or_else(|| {
                ClientError::InvalidConfig("the system's random source gave no bytes".into())
            })?,
        };
        let ApiClientConfig { tls, token, connect_timeout, max_idle_connections: idle, .. } =
            &config;
        let finds_tokens = token.is_none() && tls.is_none();
        let pool = ConnectionPool::new(tls.clone(), finds_tokens, *connect_timeout, *idle);
        let sequences = SequencePool::new(client_id);
        let (rota, wires) = (MasterSelector::new(&config), Wires::new(config.wire));
        Ok(Client { shared: Arc::new(Shared { config, pool, sequences, selector: rota, wires }) })
    }

    /// Reads JSON. `path` includes the query.
    ///
    /// # Errors
    /// The cell's error, or that it could not be reached.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Reply<T>, ClientError> {
        let call = self.call(Method::GET, path, Bytes::new(), true);
        json_reply(self.exchange(call).await?)
    }

    /// Makes a change, at most once however often it has to be sent.
    ///
    /// # Errors
    /// The cell's error, or that it could not be reached.
    pub async fn change<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        change: &ChangeOptions,
    ) -> Result<Reply<T>, ClientError> {
        let sequence = self.shared.sequences.acquire();
        let key = change.key.clone().unwrap_or_else(|| sequence.next_key());
        let mut call = self.json_call(method, path, body, true)?;
        call.headers.insert(IDEMPOTENCY_KEY, header(&key)?);
        if let Some(version) = change.expect {
            call.headers.insert(IF_MATCH, header(&format!("\"{version}\""))?);
        }
        json_reply(self.exchange(call).await?)
    }

    /// Sends a query that needs a body. It changes nothing, so it may be sent again.
    ///
    /// # Errors
    /// The cell's error, or that it could not be reached.
    pub async fn query<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<Reply<T>, ClientError> {
        let call = self.json_call(Method::POST, path, Some(body), true)?;
        json_reply(self.exchange(call).await?)
    }

    /// As [`Client::query`], where an answer may take up to `limit`, whatever the configuration
    /// says.
    pub(crate) async fn query_within<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<Reply<T>, ClientError> {
        let mut call = self.json_call(Method::POST, path, Some(body), true)?;
        (call.attempt_timeout, call.deadline) = (limit, limit);
        json_reply(self.exchange(call).await?)
    }

    /// Requests something that is new each time it is requested; sent once.
    ///
    /// # Errors
    /// The cell's error, that it could not be reached, or that the outcome is unknown.
    pub async fn create<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Reply<T>, ClientError> {
        let call = self.json_call(method, path, body, false)?;
        json_reply(self.exchange(call).await?)
    }

    /// Text, such as the metrics page.
    ///
    /// # Errors
    /// The cell's error, or that it could not be reached.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.exchange(self.call(Method::GET, path, Bytes::new(), true)).await?;
        String::from_utf8(answer.body.into()).map_err(|e| ClientError::BadReply(e.to_string()))
    }

    /// A call between parts of the cell, in postcard. Goes to the leader if only the leader answers
    /// it, and is retried only when it certainly had no effect.
    ///
    /// # Errors
    /// The other side's error, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal<Q: WireMessage, R: WireMessage>(
        &self,
        path: &str,
        request: &Q,
    ) -> Result<R, ClientError> {
        self.converse(None, path, request, |call| self.exchange(call)).await
    }

    /// As [`Client::call_internal`], where a master that has not answered within `limit` is
    /// considered to hang.
    ///
    /// # Errors
    /// The other side's error, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal_within<Q: WireMessage, R: WireMessage>(
        &self,
        path: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, ClientError> {
        let exchange = |mut call: Call| {
            call.attempt_timeout = limit.min(call.deadline);
            self.exchange(call)
        };
        self.converse(None, path, request, exchange).await
    }

    /// As [`Client::call_internal`], to one address only, within `limit`. Redirects are errors: a
    /// caller that names an address means that replica.
    ///
    /// # Errors
    /// The other side's error, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal_at<Q: WireMessage, R: WireMessage>(
        &self,
        address: &str,
        path: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, ClientError> {
        let exchange = |call| self.exchange_at(address, call, limit);
        self.converse(Some(address), path, request, exchange).await
    }

    /// Boxed, as [`Client::exchange`] is.
    fn exchange_at<'a>(
        &'a self,
        address: &'a str,
        call: Call,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Answer, ClientError>> {
        Box::pin(async move { self.send_to(address, &call, limit).await })
    }

    async fn send_to(
        &self,
        address: &str,
        call: &Call,
        limit: Duration,
    ) -> Result<Answer, ClientError> {
        let address = connection::bare_address(address);
        connection::check_address(address, self.shared.config.tls.is_some())
            .map_err(ClientError::InvalidConfig)?;
        let response = match timeout_at(Instant::now() + limit, self.send_once(address, call)).await
        {
            Ok(Ok(response)) => response,
            Ok(Err(fault)) => return Err(fault.into_error(1)),
            Err(_) => {
                let last = format!("{address} did not answer within {} ms", limit.as_millis());
                return Err(ClientError::Unknown(last));
            }
        };
        match classify(&response, false) {
            NextStep::Done => Ok(response.into()),
            NextStep::Fail(error) | NextStep::Redirect(_, error) | NextStep::Later(_, error) => {
                Err(error)
            }
        }
    }

    /// Watches a route of server-sent events, starting after the event `after`; reconnects by
    /// itself.
    #[must_use]
    pub fn watch<T: DeserializeOwned>(&self, path: &str, after: Option<String>) -> Watch<T> {
        Watch::new(self.clone(), path.to_owned(), after)
    }

    fn json_call<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        repeatable: bool,
    ) -> Result<Call, ClientError> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| {
                ClientError::InvalidConfig(format!("the request has no JSON form: {e}"))
            })?,
            None => Vec::new(),
        };
        let mut call = self.call(method, path, bytes.into(), repeatable);
        if body.is_some() {
            call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(call)
    }

    fn call(&self, method: Method, path: &str, body: Bytes, repeatable: bool) -> Call {
        let mut headers = HeaderMap::new();
        if let Some(value) = self.shared.config.token.as_ref().and_then(bearer) {
            headers.insert(AUTHORIZATION, value);
        }
        let ApiClientConfig { attempt_timeout, deadline, .. } = self.shared.config;
        let (path, body) = (path.into(), Payload::Whole(body));
        let (streamed, max_bytes) = (false, None);
        Call {
            method,
            path,
            headers,
            body,
            streamed,
            repeatable,
            attempt_timeout,
            deadline,
            max_bytes,
        }
    }

    /// Retries the call until it has a final answer or the deadline has passed. Boxed: the code of
    /// a future is made by the crate that awaits it, so that every crate with a client would
    /// compile all of HTTP again. Behind `dyn` it is compiled here, once.
    fn exchange(&self, call: Call) -> BoxFuture<'_, Result<Answer, ClientError>> {
        Box::pin(self.send_until_answered(call))
    }

    async fn send_until_answered(&self, call: Call) -> Result<Answer, ClientError> {
        let deadline = Instant::now() + call.deadline;
        let first = self.preferred();
        let mut address = first.clone();
        let (mut tried, mut hops, mut wait) = (0, 0, self.shared.config.backoff);
        let (mut refused, mut errors) =
            (RefusedConnections::default(), AttemptErrors::new(call.is_change()));
        loop {
            tried += 1;
            let address_tried = address.clone();
            let until = deadline.min(Instant::now() + call.attempt_timeout);
            let attempt = timeout_at(until, self.send_once(&address, &call)).await;
            refused.record(matches!(&attempt, Ok(Err(fault)) if fault.refused), Instant::now());
            let is_sent = attempt.as_ref().map_or(true, |r| matches!(r, Err(fault) if fault.sent));
            errors.mark_in_doubt(is_sent);
            let (error, pause) = match attempt {
                Ok(Ok(response)) => match classify(&response, call.repeatable) {
                    NextStep::Done => {
                        self.prefer(address);
                        return Ok(response.into());
                    }
                    NextStep::Fail(error) => {
                        if matches!(error.code(), Some(Code::NoQuorum | Code::TimedOut)) {
                            self.fail_over(&first, &address);
                        }
                        return Err(errors.into_final(error));
                    }
                    // A leader that was just elected is worth a few jumps without a pause.
                    NextStep::Redirect(leader, error) => {
                        hops += 1;
                        address = self.redirect_target(&leader, &address);
                        (error, (hops > 3).then_some(wait))
                    }
                    NextStep::Later(after, error) => {
                        let next = self.next_master(&address);
                        if next == address && is_from_removed_replica(&error) {
                            errors.record(address_tried, error);
                            return Err(errors.into_error(tried));
                        }
                        address = next;
                        (error, Some(after.unwrap_or(wait)))
                    }
                },
                Ok(Err(fault)) => {
                    address = self.fail_over(&first, &address);
                    if fault.sent && !call.repeatable {
                        return Err(fault.into_error(tried));
                    }
                    (fault.into_unreachable(tried), Some(wait))
                }
                Err(_) => {
                    let last = format!("{address} did not answer in time");
                    address = self.fail_over(&first, &address);
                    if !call.repeatable {
                        return Err(ClientError::Unknown(last));
                    }
                    (ClientError::Unreachable { tried, last }, Some(wait))
                }
            };
            let resume = Instant::now() + pause.map_or(Duration::ZERO, |p| self.jitter(p, tried));
            errors.record(address_tried, error);
            if resume >= deadline || self.are_masters_down(&refused, resume) {
                return Err(errors.into_error(tried));
            }
            if pause.is_some() {
                sleep_until(resume).await;
                wait = (wait * 2).min(self.shared.config.backoff_max);
            }
        }
    }

    async fn send_once(&self, address: &str, call: &Call) -> Result<Received, TransportError> {
        let received = self.shared.pool.exchange(address, call).await?;
        self.learn(received.status, &received.headers);
        self.shared.wires.learn(address, &received.headers);
        Ok(received)
    }
}

/// An answer, successful or not.
pub(crate) struct Received {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// In place of the body, if the call was streamed and succeeded.
    pub open: Option<Incoming>,
}

impl From<Received> for Answer {
    fn from(received: Received) -> Answer {
        let Received { headers, body, open, .. } = received;
        Answer { headers, body, open }
    }
}

fn random_id() -> Option<u64> {
    let text = Secret::random().ok()?;
    u64::from_str_radix(text.expose().get(..16)?, 16).ok()
}

fn header(text: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::from_str(text)
        .map_err(|_| ClientError::InvalidConfig(format!("{text:?} cannot travel in a header")))
}

fn json_reply<T: DeserializeOwned>(answer: Answer) -> Result<Reply<T>, ClientError> {
    let value = serde_json::from_slice(&answer.body)
        .map_err(|e| ClientError::BadReply(format!("not the JSON that was expected: {e}")))?;
    let text = |name| answer.headers.get(name).and_then(|v| v.to_str().ok());
    let index = text(CELL_INDEX).and_then(|v| v.parse().ok());
    Ok(Reply { value, index, consistent: text(CELL_READ) != Some("stale") })
}

/// The authorization header for a token; marked sensitive, so that logs do not contain it.
fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}
