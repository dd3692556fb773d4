//! Calls to other replicas over the network: one HTTP/2 connection per peer on which calls overlap,
//! so that a heartbeat does not wait behind a snapshot. A connection that fails is dropped and
//! dialled anew by the next call; raft's own timers decide when to retry.
//!
//! Calls come in a version that both replicas speak (`cellwright_api::wire`). A replica of another
//! version is rejected with both ranges named, before its message is decoded: bytes that happen to
//! decode as something else would be worse than no answer, and no answer tells nothing to the
//! operator who upgrades the cell.

use crate::access::caller::REVOKED;
use bytes::Bytes;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::wire::{MOST_TRIES, Spoken, WireRange, WireVersion, pack, unpack};
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_store::{CallError, NodeId, Peer};
use cellwright_supervise::{lock, spawn_request};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where replicas call each other.
pub const PEER_PATH: &str = "/internal/peer";
/// A peer that does not accept a connection within this time counts as unreachable.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of every call; raft usually gives up sooner by itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer of a peer.
const MAX_ANSWER: usize = 16 << 20;

type Sender = SendRequest<Full<Bytes>>;

/// How calls to a peer fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerFailure {
    /// A network error: its text differs from call to call.
    Unreachable,
    /// The peer answers with an error.
    Rejected(String),
}

#[derive(Clone)]
pub struct HttpPeers(Arc<Inner>);

struct Inner {
    /// `None`: plain TCP, on loopback only.
    tls: Option<TlsConnector>,
    open: Mutex<BTreeMap<(NodeId, String), Sender>>,
    /// Peers whose last call failed and how, so that it is logged once and not at every call.
    failures: Mutex<BTreeMap<NodeId, PeerFailure>>,
    /// The versions that this replica speaks.
    own: WireRange,
    /// The versions of its peers, as their last answers said.
    ranges: Mutex<BTreeMap<NodeId, WireRange>>,
    /// Peers whose last answer was that this replica was removed. A peer that became unreachable
    /// since has not taken it back.
    removed_by: Mutex<BTreeSet<NodeId>>,
}

impl HttpPeers {
    #[must_use]
    pub fn new(tls: Option<rustls::ClientConfig>) -> HttpPeers {
        let tls = tls.map(|mut config| {
            config.alpn_protocols = vec![b"h2".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        let (open, failing, ranges, sent_away_by) = Default::default();
        let own = WireRange::own();
        HttpPeers(Arc::new(Inner {
            tls,
            open,
            failures: failing,
            own,
            ranges,
            removed_by: sent_away_by,
        }))
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
    /// A call that was refused for a version it need not have is made again.
    async fn call(
        &self,
        to: NodeId,
        peer: &Peer,
        call: &PeerCall,
    ) -> Result<PeerAnswer, CallError> {
        let (mut version, mut tried) = (self.to_write(to), 0);
        let (status, headers, bytes) = loop {
            tried += 1;
            let away = |why: String| self.away(to, peer, &why);
            let answered = self.exchange(to, peer, call, version).await.map_err(away)?;
            let next = self.to_write(to);
            let is_of_other = version != next && tried < MOST_TRIES;
            if !(is_of_other && refuses_version(answered.0, &answered.2)) {
                break answered;
            }
            version = next;
        };
        let rejected = |why: String| {
            self.log_failure_change(to, peer, Some(PeerFailure::Rejected(why.clone())), &why);
            CallError::Unreachable(format!("{}: {why}", peer.address))
        };
        self.record_removal(to, is_revocation(status, &bytes));
        if !status.is_success() {
            return Err(rejected(rejection_text(status, &bytes)));
        }
        let answer = match Spoken::of(&headers) {
            Some(spoken) => unpack(self.own, spoken.version, &bytes).map_err(|e| e.to_string()),
            None => Err("the answer names no wire version".to_owned()),
        };
        match answer.map_err(|why| self.away(to, peer, &why))? {
            PeerAnswer::WrongLog(why) => Err(rejected(why)),
            answer => {
                self.log_failure_change(to, peer, None, &"");
                Ok(answer)
            }
        }
    }

    fn away(&self, to: NodeId, peer: &Peer, why: &str) -> CallError {
        self.log_failure_change(to, peer, Some(PeerFailure::Unreachable), &why);
        CallError::Unreachable(format!("{}: {why}", peer.address))
    }

    /// What to write to a replica, as far as it has been heard.
    fn to_write(&self, to: NodeId) -> WireVersion {
        let heard = lock(&self.ranges).get(&to).copied();
        self.own.to_write(heard)
    }

    /// One request, and whatever comes back.
    async fn exchange(
        &self,
        to: NodeId,
        peer: &Peer,
        call: &PeerCall,
        version: WireVersion,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let key = (to, peer.address.clone());
        let mut sender = self.sender(&key).await?;
        let body = pack(version, call).map_err(|e| e.to_string())?;
        let mut request = Request::post(format!("https://{}{PEER_PATH}", peer.address))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/postcard"))
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| e.to_string())?;
        Spoken { version, range: self.own }.write(request.headers_mut());
        let lost = |error: String| {
            self.lock().remove(&key);
            error
        };
        let response = sender.send_request(request).await.map_err(|e| lost(e.to_string()))?;
        let (parts, body) = response.into_parts();
        if let Some(range) = WireRange::of(&parts.headers) {
            lock(&self.ranges).insert(to, range);
        }
        let body = http_body_util::Limited::new(body, MAX_ANSWER).collect().await;
        let bytes = body.map_err(|e| lost(e.to_string()))?.to_bytes();
        Ok((parts.status, parts.headers, bytes))
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
        if is_sent_away {
            by.insert(from)
        } else {
            by.remove(&from)
        };
    }

    /// Logs a failure that differs from that of the previous call.
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

/// The error text for a person: the message and the hint where it has them.
fn rejection_text(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => format!("{}; {}", error.message, error.hint),
        Err(_) => format!("{status} {}", String::from_utf8_lossy(body)),
    }
}

fn refuses_version(status: StatusCode, body: &[u8]) -> bool {
    let code = || serde_json::from_slice(body).ok().map(|error: ApiError| error.code);
    status.as_u16() == Code::OtherWire.status() && code() == Some(Code::OtherWire)
}

async fn handshake<S>(stream: S) -> Result<Sender, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(4 << 20).initial_connection_window_size(16 << 20);
    let (sender, connection) = builder.handshake(stream).await.map_err(|e| e.to_string())?;
    spawn_request("a connection to a replica", async move {
        // Ends when the peer disconnects; the next call finds the sender closed and dials again.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "peer connection ended");
        }
    });
    Ok(sender)
}
