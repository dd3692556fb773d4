//! Calls to other replicas over the network: one HTTP/2 connection per peer on which calls overlap,
//! so that a heartbeat does not wait behind a snapshot. A connection that fails is thrown away and
//! dialled anew by the next call; raft's own timers decide when to try again.
//!
//! Every call says which protocol its sender speaks. A replica of another one is refused by name
//! before its message is read: bytes that happen to decode as something else would be worse than
//! silence, and silence says nothing to whoever is upgrading the cell.

use crate::access::caller::REVOKED;
use axum::body::Body;
use axum::middleware::Next;
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::internal::PROTOCOL;
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_store::{CallError, NodeId, Peer};
use cellwright_supervise::{lock, spawn_request};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where replicas answer each other.
pub const PEER_PATH: &str = "/internal/peer";
/// A peer that does not take a connection in this time is treated as away.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Bounds every call; raft usually gives up sooner by itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer a peer gives.
const MAX_ANSWER: usize = 16 << 20;

/// Which protocol the sender of a call speaks.
const PROTOCOL_HEADER: &str = "cell-protocol";

type Sender = SendRequest<Full<Bytes>>;

/// How calls to a peer fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerFailure {
    /// For whatever reason of the network: they differ from call to call.
    Unreachable,
    /// It answers, and says why it will not.
    Rejected(String),
}

#[derive(Clone)]
pub struct HttpPeers(Arc<Inner>);

struct Inner {
    /// `None`: plain TCP, on loopback only.
    tls: Option<TlsConnector>,
    open: Mutex<BTreeMap<(NodeId, String), Sender>>,
    /// Peers whose last call failed and what was said of it, so that it is logged once and not at
    /// every call.
    failures: Mutex<BTreeMap<NodeId, PeerFailure>>,
    /// Peers that said last that this replica was removed. One that cannot be reached since has
    /// not taken it back.
    removed_by: Mutex<BTreeSet<NodeId>>,
}

impl HttpPeers {
    #[must_use]
    pub fn new(tls: Option<rustls::ClientConfig>) -> HttpPeers {
        let tls = tls.map(|mut config| {
            config.alpn_protocols = vec![b"h2".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        let (open, failures, removed_by) = Default::default();
        HttpPeers(Arc::new(Inner { tls, open, failures, removed_by }))
    }
}

impl Peers for HttpPeers {
    fn call(
        &self,
        to: NodeId,
        peer: Peer,
        call: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let calling = inner.call(to, &peer, &call);
            match tokio::time::timeout(CALL_TIMEOUT, calling).await {
                Ok(answer) => answer,
                Err(_) => Err(CallError::Unreachable(format!("{}: no answer", peer.address))),
            }
        })
    }

    fn removed_by(&self) -> BTreeSet<NodeId> {
        lock(&self.0.removed_by).clone()
    }
}

impl Inner {
    async fn call(
        &self,
        to: NodeId,
        peer: &Peer,
        call: &PeerCall,
    ) -> Result<PeerAnswer, CallError> {
        let away = |what: &dyn std::fmt::Display| {
            self.log_failure_change(to, peer, Some(PeerFailure::Unreachable), what);
            CallError::Unreachable(format!("{}: {what}", peer.address))
        };
        let key = (to, peer.address.clone());
        let mut sender = self.sender(&key).await.map_err(|e| away(&e))?;
        let body = postcard::to_stdvec(call).map_err(|e| away(&e))?;
        let request = Request::post(format!("https://{}{PEER_PATH}", peer.address))
            .header(PROTOCOL_HEADER, PROTOCOL)
            .header(CONTENT_TYPE, "application/postcard")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| away(&e))?;
        let response = match sender.send_request(request).await {
            Ok(response) => response,
            Err(error) => {
                self.lock().remove(&key);
                return Err(away(&error));
            }
        };
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_ANSWER);
        let bytes = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                self.lock().remove(&key);
                return Err(away(&error));
            }
        };
        let rejected = |why: String| {
            self.log_failure_change(to, peer, Some(PeerFailure::Rejected(why.clone())), &why);
            CallError::Unreachable(format!("{}: {why}", peer.address))
        };
        self.record_removal(to, is_revocation(status, &bytes));
        if !status.is_success() {
            return Err(rejected(rejection_text(status, &bytes)));
        }
        match postcard::from_bytes(&bytes).map_err(|e| away(&e))? {
            PeerAnswer::WrongLog(why) => Err(rejected(why)),
            answer => {
                self.log_failure_change(to, peer, None, &"");
                Ok(answer)
            }
        }
    }

    async fn sender(&self, key: &(NodeId, String)) -> Result<Sender, String> {
        let open = self.lock().get(key).filter(|sender| !sender.is_closed()).cloned();
        if let Some(sender) = open {
            return Ok(sender);
        }
        let dialling = self.dial(&key.1);
        let sender = match tokio::time::timeout(DIAL_TIMEOUT, dialling).await {
            Ok(sender) => sender?,
            Err(_) => return Err("does not take a connection".into()),
        };
        self.lock().insert(key.clone(), sender.clone());
        Ok(sender)
    }

    async fn dial(&self, address: &str) -> Result<Sender, String> {
        let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let Some(tls) = &self.tls else { return handshake(TokioIo::new(stream)).await };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_matches(|c| c == '[' || c == ']').to_owned();
        let name = ServerName::try_from(host).map_err(|e| e.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|e| e.to_string())?;
        handshake(TokioIo::new(stream)).await
    }

    fn record_removal(&self, from: NodeId, is_sent_away: bool) {
        let mut by = lock(&self.removed_by);
        match is_sent_away {
            true => by.insert(from),
            false => by.remove(&from),
        };
    }

    /// Logs what is different from the call before.
    fn log_failure_change(
        &self,
        to: NodeId,
        peer: &Peer,
        now: Option<PeerFailure>,
        why: &dyn std::fmt::Display,
    ) {
        let mut failures = lock(&self.failures);
        if failures.get(&to) == now.as_ref() {
            return;
        }
        let Peer { name, address } = peer;
        match &now {
            None => tracing::info!("{name} at {address} answers again"),
            Some(PeerFailure::Unreachable) => {
                tracing::warn!("{name} at {address} cannot be reached: {why}")
            }
            Some(PeerFailure::Rejected(why)) => {
                tracing::error!("{name} at {address} refuses: {why}")
            }
        }
        match now {
            None => failures.remove(&to),
            Some(now) => failures.insert(to, now),
        };
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(NodeId, String), Sender>> {
        lock(&self.open)
    }
}

/// Whether the peer says that this replica was removed.
fn is_revocation(status: StatusCode, body: &[u8]) -> bool {
    let reason = |error: ApiError| error.details.get("reason")?.as_str().map(str::to_owned);
    let reason_in_body = || serde_json::from_slice(body).ok().and_then(reason);
    status == StatusCode::UNAUTHORIZED && reason_in_body().as_deref() == Some(REVOKED)
}

/// What a refusal says to a person: the message and the hint where it has them.
fn rejection_text(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => format!("{}; {}", error.message, error.hint),
        Err(_) => format!("{status} {}", String::from_utf8_lossy(body)),
    }
}

/// Lets only replicas through that speak the protocol of this one.
pub async fn require_same_protocol(request: Request<Body>, next: Next) -> Response<Body> {
    let found = request.headers().get(PROTOCOL_HEADER).map(HeaderValue::as_bytes);
    if found == Some(PROTOCOL.to_string().as_bytes()) {
        return next.run(request).await;
    }
    let found = found.map_or("none".into(), String::from_utf8_lossy);
    let why = format!(
        "this replica speaks protocol {PROTOCOL} (cellwright {}), the caller protocol {found}; \
         run builds of one protocol on all replicas",
        env!("CARGO_PKG_VERSION")
    );
    let mut rejection = Response::new(Body::from(why));
    *rejection.status_mut() = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
    rejection
}

async fn handshake<S>(stream: S) -> Result<Sender, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(4 << 20).initial_connection_window_size(16 << 20);
    let (sender, connection) = builder.handshake(stream).await.map_err(|e| e.to_string())?;
    spawn_request("a connection to a replica", async move {
        // Ends when the peer goes away; the next call finds the sender closed and dials again.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "peer connection ended");
        }
    });
    Ok(sender)
}
