//! The client every part of the cell uses: command line, schedulers, agents, replicas and tests.
//!
//! It knows several masters and finds the leader among them, keeps connections open, and repeats
//! what may be repeated: reads, and changes that carry an idempotency key. A change that may have
//! taken effect and has no key is never sent twice; the caller is told that its fate is unknown.
//!
//! Keys: at most one change is on its way under one client number at a time, so the numbers of a
//! client reach the log in order and never fall out of the window the log keeps. Each concurrent
//! change takes a lane with a number of its own.

pub mod agent;
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

pub use calls::{JobFilter, PageRequest};
pub use session::SessionStream;
pub use url_encoding::{encode_query, encode_segment};
pub use watch::{Watch, WatchEvent};

use crate::error::{ApiError, Code, IN_DOUBT};
use crate::masters::MastersFile;
use crate::routes::{CELL_INDEX, CELL_READ, IDEMPOTENCY_KEY};
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

/// How to reach a cell.
#[derive(Clone)]
pub struct ApiClientConfig {
    /// `host:port` of one master or more. Others are learned from them, over TLS.
    pub masters: Vec<String>,
    /// Where what is learned is kept for the next client, if anywhere.
    pub masters_file: Option<MastersFile>,
    /// Absent: plain text, to loopback addresses only.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// `id.secret` of a user. Absent, and without TLS: that of the open master, if it is of this
    /// account.
    pub token: Option<Secret>,
    /// Number of this client in idempotency keys. Absent: drawn at random.
    pub client_id: Option<u64>,
    pub connect_timeout: Duration,
    /// How long one attempt may take before another master is asked.
    pub attempt_timeout: Duration,
    /// How long one call may take, all attempts together.
    pub deadline: Duration,
    /// How long to go on when every master refuses connections and none was ever reached. For
    /// parts of the cell that is for ever: their masters may be started after them.
    pub refused_timeout: Duration,
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// Unused connections kept per master.
    pub max_idle_connections: usize,
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
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    InvalidConfig(String),
    /// The cell answered, and said no.
    #[error("{0}")]
    Api(ApiError),
    #[error("no master answers: {last} (tried {})", times_text(u64::from(*tried)))]
    Unreachable { tried: u32, last: String },
    /// It was sent, and nobody knows what became of it.
    #[error("the connection was lost after the request was sent, its fate is unknown: {0}")]
    Unknown(String),
    #[error("the answer cannot be read: {0}")]
    BadReply(String),
}

impl ClientError {
    /// The error of the cell, if it answered.
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

    /// Whether a change was sent that may take effect although nobody has said so.
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
    /// Whether everything acknowledged before is in it; false for a stale read.
    pub consistent: bool,
}

/// One request, before it is known who gets it.
#[derive(Clone)]
pub(crate) struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Payload,
    /// Whether the content of a good answer is left to be read.
    pub streamed: bool,
    /// Whether sending it twice does no harm.
    pub repeatable: bool,
    pub attempt_timeout: Duration,
    pub deadline: Duration,
    /// Bytes of the largest answer that is read; `None`: what a master may say.
    pub max_bytes: Option<usize>,
}

impl Call {
    /// Whether it may have an effect: it has a key, or is to be sent once.
    fn is_change(&self) -> bool {
        let has_key = self.headers.contains_key(IDEMPOTENCY_KEY);
        self.method != Method::GET && (has_key || !self.repeatable)
    }
}

/// The headers and the body of an answer that is a success.
pub(crate) struct Answer {
    pub headers: HeaderMap,
    pub body: Bytes,
    /// In place of the body, if the call was a streamed one.
    pub open: Option<Incoming>,
}

/// What a change may carry.
#[derive(Clone, Debug, Default)]
pub struct ChangeOptions {
    /// Version the object must be at.
    pub expect: Option<u32>,
    /// An idempotency key of the caller's own. Absent: the client takes one.
    pub key: Option<String>,
}

struct Shared {
    config: ApiClientConfig,
    pool: ConnectionPool,
    sequences: SequencePool,
    selector: MasterSelector,
}

/// Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// # Errors
    /// When there is no master, or one outside loopback would be spoken to in plain text.
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
        let selector = MasterSelector::new(&config);
        Ok(Client { shared: Arc::new(Shared { config, pool, sequences, selector }) })
    }

    /// Reads JSON. `url_encoding` includes the query.
    ///
    /// # Errors
    /// What the cell refused, or that it could not be reached.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Reply<T>, ClientError> {
        let call = self.call(Method::GET, path, Bytes::new(), true);
        json_reply(self.exchange(call).await?)
    }

    /// Makes a change, at most once however often it has to be sent.
    ///
    /// # Errors
    /// What the cell refused, or that it could not be reached.
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

    /// Asks a question that needs a body. It changes nothing, so it may be sent again.
    ///
    /// # Errors
    /// What the cell refused, or that it could not be reached.
    pub async fn query<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<Reply<T>, ClientError> {
        let call = self.json_call(Method::POST, path, Some(body), true)?;
        json_reply(self.exchange(call).await?)
    }

    /// As [`Client::query`], where an answer may take up to `limit`, whatever the settings say.
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

    /// Asks for something that is new each time it is asked for; sent once.
    ///
    /// # Errors
    /// What the cell refused, that it could not be reached, or that the outcome is unknown.
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
    /// What the cell refused, or that it could not be reached.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.exchange(self.call(Method::GET, path, Bytes::new(), true)).await?;
        String::from_utf8(answer.body.into()).map_err(|e| ClientError::BadReply(e.to_string()))
    }

    /// A call between parts of the cell, in postcard. Goes to the leader if only the leader
    /// answers it, and is sent again only when it certainly had no effect.
    ///
    /// # Errors
    /// What the other side refused, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal<Q: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
    ) -> Result<R, ClientError> {
        let call = self.internal_call(path, request)?;
        decode(&self.exchange(call).await?.body)
    }

    /// As [`Client::call_internal`], where a master that has not answered within `limit` is taken
    /// to hang.
    ///
    /// # Errors
    /// What the other side refused, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal_within<Q: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, ClientError> {
        let mut call = self.internal_call(path, request)?;
        call.attempt_timeout = limit.min(call.deadline);
        decode(&self.exchange(call).await?.body)
    }

    /// As [`Client::call_internal`], to one address and nobody else, within `limit`. Redirects are
    /// errors: whoever names an address means that replica.
    ///
    /// # Errors
    /// What the other side refused, that it could not be reached, or that the outcome is unknown.
    pub async fn call_internal_at<Q: Serialize, R: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, ClientError> {
        let call = self.internal_call(path, request)?;
        decode(&self.exchange_at(address, &call, limit).await?.body)
    }

    /// Boxed, as [`Client::exchange`] is.
    fn exchange_at<'a>(
        &'a self,
        address: &'a str,
        call: &'a Call,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Answer, ClientError>> {
        Box::pin(self.send_to(address, call, limit))
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

    /// Follows a route of server-sent events, from after `after` on; reconnects by itself.
    #[must_use]
    pub fn watch<T: DeserializeOwned>(&self, path: &str, after: Option<String>) -> Watch<T> {
        Watch::new(self.clone(), path.to_owned(), after)
    }

    fn internal_call<Q: Serialize>(&self, path: &str, request: &Q) -> Result<Call, ClientError> {
        let body =
            postcard::to_stdvec(request).map_err(|e| ClientError::InvalidConfig(e.to_string()))?;
        let mut call = self.call(Method::POST, path, body.into(), false);
        let binary = HeaderValue::from_static("application/postcard");
        call.headers.insert(CONTENT_TYPE, binary);
        // Polls hang on purpose; the deadline alone bounds them.
        call.attempt_timeout = call.deadline;
        Ok(call)
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

    /// Sends the call until it is answered for good or the deadline has passed. Boxed: the code of
    /// a future is made by the crate that awaits it, so that every crate with a client would make
    /// all of HTTP again. Behind `dyn` it is made here, once.
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
            errors.mark_in_doubt(
                attempt.as_ref().map_or(true, |result| matches!(result, Err(fault) if fault.sent)),
            );
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
                        address = self
                            .checked_address(&leader)
                            .unwrap_or_else(|| self.next_master(&address));
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
                Ok(Err(fault)) if fault.sent && !call.repeatable => {
                    self.fail_over(&first, &address);
                    return Err(fault.into_error(tried));
                }
                Ok(Err(fault)) => {
                    address = self.fail_over(&first, &address);
                    (fault.into_unreachable(tried), Some(wait))
                }
                Err(_) if !call.repeatable => {
                    self.fail_over(&first, &address);
                    return Err(ClientError::Unknown(format!("{address} did not answer in time")));
                }
                Err(_) => {
                    let last = format!("{address} did not answer in time");
                    address = self.fail_over(&first, &address);
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
        Ok(received)
    }
}

/// An answer, whatever it says.
pub(crate) struct Received {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// In place of the body, if the call was a streamed one that succeeded.
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

fn decode<R: DeserializeOwned>(body: &[u8]) -> Result<R, ClientError> {
    postcard::from_bytes(body)
        .map_err(|e| ClientError::BadReply(format!("not the message that was expected: {e}")))
}
/// As a header shows it, and logs do not.
fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}
