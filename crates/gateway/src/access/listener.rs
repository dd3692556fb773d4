//! The accept loop: from a TCP connection to requests that say who asks.
//!
//! Every cost that a stranger can cause is bounded here, before any handler runs: connections in
//! all, the time and the number of those of which nobody knows yet who they are, connections of one
//! identity after that, the time of a handshake, the time to send a request's head, streams on a
//! connection. The caller is worked out anew for each request, because a token comes with the
//! request and a certificate may expire on an open connection; answers that go on for long ask
//! again through their [`Proof`].
//!
//! Plain TCP exists for `--dev` and only on loopback; the type of the listener says which it is,
//! and [`Door::plain`] refuses any other address. Rejected: axum's own `serve`, which knows neither
//! TLS nor a limit.

use super::caller::{Unauthenticated, token_id};
use super::{provenance, shown};
use crate::http::{error_response, is_of_console};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response};
use cellwright_api::error::{AS_ITS_ACCOUNT, ApiError, Code};
use cellwright_api::masters::{MASTERS_HEADER, Masters};
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::enroll::{Holder, JOIN_PATH};
use cellwright_identity::seats::{Counts, Guest, Seat, Stranger, Strangers};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::handle::Caller;
use cellwright_supervise::{guarded, lock, note_handler_panic, of_request, plant};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Requests at once on a connection without a certificate: nobody may ever be known to be there.
const STREAMS_OF_STRANGERS: u32 = 16;

/// Bytes of an answer that wait for a reader on one connection or stream. The head of a request has
/// to fit as well, with the longest address there is.
const UNREAD: usize = 128 << 10;
/// How long before its certificate expires a connection is closed.
const EARLY: Span = Span::seconds(60);

/// Bounds on what one listener takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub handshake: Duration,
    /// From the handshake to the first request of somebody who is known.
    pub introduction: Duration,
    /// Connections at once of which nobody knows yet who they are.
    pub strangers: usize,
    /// Requests that may be turned away on a connection before it is closed.
    pub knocks: u32,
    pub connections: usize,
    /// Of one certificate's holder, or of one user by its tokens.
    pub per_identity: usize,
    /// Of one address, as long as no certificate was shown.
    pub per_address: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// How long requests in flight may take once the listener stops.
    pub drain: Duration,
}

impl Default for Limits {
    /// Room for ten thousand agents and their reconnections, with a limit on every single peer.
    fn default() -> Limits {
        Limits {
            handshake: Duration::from_secs(10),
            introduction: Duration::from_secs(10),
            strangers: 1024,
            knocks: 16,
            connections: 32_768,
            per_identity: 256,
            per_address: 16_384,
            streams: 256,
            drain: Duration::from_secs(10),
        }
    }
}

/// Who is on the other end of the connection that a request came by. An extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    pub remote: SocketAddr,
    /// From the client's certificate, verified against the authority.
    pub holder: Option<Holder>,
    /// A plain `--dev` connection on loopback.
    pub open: bool,
}

/// Who asked and by what right, to be looked at again: what lasts longer than a request must end
/// when a token is revoked. An extension of every request; shows nobody the secret it holds.
#[derive(Clone)]
pub struct Proof {
    gate: Arc<dyn Gate>,
    connection: Arc<ConnInfo>,
    authorization: Option<HeaderValue>,
    caller: Caller,
}

impl Proof {
    /// The token that was shown, by its id. What the caller makes with it does not outlive it.
    #[must_use]
    pub fn token(&self) -> Option<Name> {
        self.authorization.as_ref().and_then(|shown| token_id(shown.as_bytes()))
    }

    /// Whether the same evidence still stands for the same caller.
    #[must_use]
    pub fn stands(&self) -> bool {
        let shown = self.authorization.as_ref().map(HeaderValue::as_bytes);
        self.gate.caller(&self.connection, shown).is_ok_and(|found| found == self.caller)
    }
}

/// What the listener asks of the rest of the master.
pub trait Gate: Send + Sync + 'static {
    /// # Errors
    /// When it is not known who asks.
    fn caller(
        &self,
        connection: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated>;

    /// Has this replica learn all that was acknowledged before now. Whether it has: where it has
    /// not, [`Gate::caller`] may take for unknown whom the cell knows.
    fn catch_up(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    /// A request was turned away; for the audit log.
    fn refused(&self, connection: &ConnInfo, method: &str, path: &str, why: &str);

    /// The masters of the cell, for whoever is known; nothing where that is not certain.
    fn masters(&self) -> Option<Masters> {
        None
    }

    /// Paths that anyone may ask for: liveness, joining, which checks its own token, and the files
    /// of the console, which say nothing of the cell.
    fn is_public(&self, path: &str) -> bool {
        matches!(path, "/healthz" | "/readyz" | JOIN_PATH) || is_of_console(path)
    }
}

/// A bound listener, with or without TLS.
pub struct Door {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Door {
    /// # Errors
    /// When the address cannot be bound.
    pub async fn tls(address: SocketAddr, config: Arc<ServerConfig>) -> io::Result<Door> {
        let listener = TcpListener::bind(address).await?;
        Ok(Door { listener, tls: Some(TlsAcceptor::from(config)) })
    }

    /// For `--dev`: no encryption, and whoever shows its token is an administrator.
    ///
    /// # Errors
    /// When the address is not a loopback one, or cannot be bound.
    pub async fn plain(address: SocketAddr) -> io::Result<Door> {
        if !address.ip().is_loopback() {
            let text = format!(
                "listen = {address}: a --dev master speaks in the clear and listens only \
                 on loopback; allowed: 127.0.0.0/8 and ::1"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Door { listener: TcpListener::bind(address).await?, tls: None })
    }

    /// The address bound, with the port that was chosen when 0 was asked for.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then lets requests in flight end.
    pub async fn serve(
        self,
        router: Router,
        gate: Arc<dyn Gate>,
        limits: Limits,
        stop: impl Future<Output = ()>,
    ) {
        let (stopping, stopped) = watch::channel(false);
        let (counts, strangers) = (Arc::default(), Strangers::at_most(limits.strangers));
        let house = House { tls: self.tls, router, gate, limits, counts, strangers, stopped };
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            plant("listener");
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = connections.join_next() => note_end(ended),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, remote)) if connections.len() < limits.connections => {
                        connections.spawn(house.clone().host(stream, remote));
                    }
                    // Closing at once is all that can be afforded.
                    Ok((_, remote)) => tracing::warn!(%remote, "connection limit reached"),
                    Err(error) => rest_after(&error).await,
                },
            }
        }
        drop(self.listener);
        stopping.send_replace(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(limits.drain, ended).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// What goes wrong while an answer is on its way ends its connection, and is counted.
fn note_end(ended: Result<(), JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        note_handler_panic();
    }
}

/// Out of file descriptors: an accept would fail again at once. Others fail with their connection.
async fn rest_after(error: &io::Error) {
    tracing::warn!(%error, "accept failed");
    let own = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    );
    if !own {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What all connections of a listener share.
#[derive(Clone)]
struct House {
    tls: Option<TlsAcceptor>,
    router: Router,
    gate: Arc<dyn Gate>,
    limits: Limits,
    counts: Arc<Counts>,
    strangers: Arc<Strangers>,
    stopped: watch::Receiver<bool>,
}

impl House {
    async fn host(self, stream: TcpStream, remote: SocketAddr) {
        // Small answers must not wait for more to send. Failing only costs time.
        let _ = stream.set_nodelay(true);
        let key = Guest::Address(remote.ip());
        let Some(seat) = self.counts.seat(key, self.limits.per_address) else {
            tracing::warn!(%remote, "connection limit of this address reached");
            return;
        };
        let stranger = self.strangers.enter(remote.ip());
        let Some(tls) = &self.tls else {
            let info = ConnInfo { remote, holder: None, open: true };
            return self.converse(stream, info, seat, Some(stranger)).await;
        };
        let shaken = tokio::select! {
            biased;
            () = stranger.sent_away() => return,
            shaken = timeout(self.limits.handshake, tls.accept(stream)) => shaken,
        };
        let stream = match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%remote, %error, "handshake failed");
                return;
            }
            Err(_) => {
                tracing::debug!(%remote, "handshake took too long");
                return;
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let holder = match shown.map(Holder::of).transpose() {
            Ok(holder) => holder,
            Err(error) => {
                tracing::warn!(%remote, %error, "certificate names nobody");
                return;
            }
        };
        let (seat, stranger) = match &holder {
            None => (seat, Some(stranger)),
            Some(holder) => {
                let key = Guest::Identity(holder.identity.to_string());
                let Some(own) = self.counts.seat(key, self.limits.per_identity) else {
                    let identity = &holder.identity;
                    tracing::warn!(%remote, %identity, "connection limit reached");
                    return;
                };
                (own, None)
            }
        };
        let info = ConnInfo { remote, holder, open: false };
        self.converse(stream, info, seat, stranger).await;
    }

    async fn converse<S>(
        self,
        stream: S,
        info: ConnInfo,
        seat: Seat,
        mut stranger: Option<Stranger>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let House { router, gate, mut limits, counts, mut stopped, .. } = self;
        let remote = info.remote;
        if info.holder.is_none() && !info.open {
            limits.streams = limits.streams.min(STREAMS_OF_STRANGERS);
        }
        let outlived = outlived(info.holder.as_ref().map(Holder::over));
        let (info, seen) = (Arc::new(info), Arc::new(Seen::new(limits, counts)));
        let watched = seen.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            answer(router.clone(), gate.clone(), info.clone(), watched.clone(), request)
        });
        let builder = http(limits);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        // The receiver's guard must not live across an await; a lost sender also means the end.
        let stop = async { stopped.wait_for(|stopped| *stopped).await.map(|_guard| ()) };
        let patience = sleep(limits.introduction);
        tokio::pin!(connection, stop, outlived, patience);
        let ended = loop {
            tokio::select! {
                ended = &mut connection => break Some(ended),
                _told = &mut stop => {
                    connection.as_mut().graceful_shutdown();
                    break Some(connection.as_mut().await);
                }
                () = &mut outlived => {
                    connection.as_mut().graceful_shutdown();
                    break Some(connection.as_mut().await);
                }
                () = seen.introduced.notified() => stranger = None,
                () = sent_away(stranger.as_ref()) => return,
                () = seen.tired.notified() => break None,
                () = &mut patience, if stranger.is_some() => break None,
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(%remote, error, "connection ended"),
            None => {
                connection.as_mut().graceful_shutdown();
                // What is under way may end, within the time of a handshake; then it is over.
                let _ = timeout(limits.handshake, connection).await;
            }
        }
        drop(seat);
    }
}

async fn sent_away(stranger: Option<&Stranger>) {
    match stranger {
        Some(stranger) => stranger.sent_away().await,
        None => std::future::pending().await,
    }
}

/// What the requests of a connection have shown of who is there.
struct Seen {
    known: AtomicBool,
    introduced: Notify,
    knocks: AtomicU32,
    limits: Limits,
    tired: Notify,
    counts: Arc<Counts>,
    /// Those whose tokens were shown: the connection counts as one of each.
    seats: Mutex<BTreeMap<String, Seat>>,
}

impl Seen {
    fn new(limits: Limits, counts: Arc<Counts>) -> Seen {
        let (known, knocks) = (AtomicBool::new(false), AtomicU32::new(0));
        let (introduced, tired) = (Notify::new(), Notify::new());
        Seen { known, introduced, knocks, limits, tired, counts, seats: Mutex::default() }
    }

    /// A certificate's holder was counted when it connected; who shows a token is counted now.
    fn count(&self, caller: &Caller) -> Result<(), ApiError> {
        let (who, most) = (caller.to_string(), self.limits.per_identity);
        let mut seats = lock(&self.seats);
        if seats.contains_key(&who) {
            return Ok(());
        }
        if let Some(seat) = self.counts.seat(Guest::Identity(who.clone()), most) {
            seats.insert(who, seat);
            return Ok(());
        }
        self.tired.notify_one();
        let setting = "connections_per_identity";
        let who = who.replacen(':', " ", 1);
        let message = format!("{who}: {most} connections at this replica already ({setting})");
        Err(ApiError::new(Code::Overloaded, message)
            .with("limit", most)
            .with("setting", setting)
            .with_retry_after(Span::seconds(1)))
    }

    fn somebody(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            self.introduced.notify_one();
        }
    }

    /// Whoever is turned away time and again is to begin anew, with a handshake.
    fn nobody(&self) {
        if self.knocks.fetch_add(1, Ordering::Relaxed) + 1 >= self.limits.knocks {
            self.tired.notify_one();
        }
    }
}

/// Done when a connection should be opened anew, because the certificate it was opened with is
/// about to expire: from then on every request on it would be turned away, although its holder has
/// long got the next one. Replicas keep their connections for as long as they run.
async fn outlived(over: Option<Time>) {
    let Some(over) = over else { return std::future::pending().await };
    let left = over.since(SystemClock.wall());
    // A new connection with a certificate in its last moments is not closed at once.
    let early = if left.0 > 2 * EARLY.0 { Span(left.0 - EARLY.0) } else { left };
    sleep(Duration::from_millis(early.0)).await;
}

/// Runs the streams of an HTTP/2 connection: each may fail by itself, and is counted.
#[derive(Clone, Copy)]
struct Streams;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        of_request("an answer", async { drop(stream.await) });
    }
}

fn http(limits: Limits) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams);
    let mut first = builder.http1();
    first.timer(TokioTimer::new()).header_read_timeout(limits.handshake).max_buf_size(UNREAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .max_send_buf_size(UNREAD)
        // A peer that vanished without a word frees its seat within a minute.
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

async fn answer(
    router: Router,
    gate: Arc<dyn Gate>,
    info: Arc<ConnInfo>,
    seen: Arc<Seen>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if let Err(error) = provenance::check(&request, info.open) {
        gate.refused(&info, request.method().as_str(), request.uri().path(), error.code.as_str());
        seen.nobody();
        return Ok(error_response(&error));
    }
    let authorization = shown::take(request.headers_mut());
    // Whoever joins is known once it got its certificate.
    let mut is_known = request.uri().path() == JOIN_PATH;
    let is_public = gate.is_public(request.uri().path());
    match find_caller(&*gate, &info, authorization.as_ref(), is_public).await {
        Ok(caller) => {
            if info.holder.is_none()
                && !info.open
                && let Err(error) = seen.count(&caller)
            {
                return Ok(error_response(&error));
            }
            seen.somebody();
            is_known = true;
            let (gate, connection) = (gate.clone(), info.clone());
            let proof = Proof { gate, connection, authorization, caller: caller.clone() };
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(proof);
        }
        Err(_) if is_public => {}
        Err(why) => {
            gate.refused(&info, request.method().as_str(), request.uri().path(), why.code());
            seen.nobody();
            return Ok(turned_away(&why));
        }
    }
    request.extensions_mut().insert(ConnInfo::clone(&info));
    let mut response = answer_or_fail(router.oneshot(request.map(Body::new))).await;
    if is_known && !info.open && response.status().is_success() {
        name_masters(&mut response, gate.masters());
    }
    Ok(response)
}

/// Who asks. Nobody is refused for what this replica may only not know yet; a path that is for
/// anyone is not worth asking the leader.
async fn find_caller(
    gate: &dyn Gate,
    info: &ConnInfo,
    authorization: Option<&HeaderValue>,
    is_public: bool,
) -> Result<Caller, Unauthenticated> {
    let shown = authorization.map(HeaderValue::as_bytes);
    match gate.caller(info, shown) {
        Err(why) if why.is_by_state() && !is_public => {
            if gate.catch_up().await {
                gate.caller(info, shown)
            } else {
                Err(Unauthenticated::Behind)
            }
        }
        found => found,
    }
}

/// Whoever asked is told that it failed; nobody else notices.
async fn answer_or_fail(
    answering: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    match guarded(answering).await {
        Ok(Ok(response)) => response,
        Err(panicked) => {
            note_handler_panic();
            tracing::error!("a request failed: {panicked}");
            error_response(&ApiError::new(Code::Internal, "the request met a fault of the master"))
        }
    }
}

/// Clients learn from every answer whom else to ask.
fn name_masters(response: &mut Response<Body>, masters: Option<Masters>) {
    let text = masters.map(|masters| masters.to_string());
    if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
        response.headers_mut().insert(MASTERS_HEADER, value);
    }
}

fn turned_away(why: &Unauthenticated) -> Response<Body> {
    let error = match why {
        Unauthenticated::Behind => ApiError::new(Code::NotReady, why.to_string())
            .hint("ask another master, or again when this one has caught up: cell master status"),
        Unauthenticated::NotOfDev => {
            ApiError::new(Code::Unauthenticated, why.to_string()).hint(AS_ITS_ACCOUNT)
        }
        _ => ApiError::new(Code::Unauthenticated, why.to_string()),
    };
    error_response(&error.with("reason", why.code()))
}
