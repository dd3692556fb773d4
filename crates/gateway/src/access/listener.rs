//! The accept loop: from a TCP connection to authenticated requests.
//!
//! Every cost that an unauthenticated client can cause is bounded here, before any handler runs:
//! connections in all, the time and the number of unauthenticated connections, connections of one
//! identity after authentication, the time of a handshake, the time to send a request's head,
//! streams on a connection. The caller is authenticated anew for each request, because a token
//! comes with the request and a certificate may expire on an open connection; long-lived answers
//! check again through their [`CallerProof`].
//!
//! Plain TCP exists for `--dev` and only on loopback; the type of the listener says which it is,
//! and [`Listener::plain`] refuses any other address. Rejected: axum's own `serve`, which has
//! neither TLS nor a connection limit.

use super::caller::{Unauthenticated, token_id};
use super::connection_auth::ConnectionAuth;
use super::{authorization_header, request_origin};
use crate::http::{error_response, is_of_console};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response};
use cellwright_api::error::{ApiError, Code, DEV_ACCOUNT_HINT};
use cellwright_api::masters::{MASTERS_HEADER, MasterList};
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::connection_limits::{
    ConnectionCounts, ConnectionPermit, LimitKey, UnauthenticatedConnection,
    UnauthenticatedConnections,
};
use cellwright_identity::enroll::{CertificateHolder, JOIN_PATH};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_master::handle::Caller;
use cellwright_supervise::{catch_panic_async, failpoint, note_handler_panic, spawn_request};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Concurrent requests on a connection without a certificate: it may never authenticate.
const MAX_UNAUTHENTICATED_STREAMS: u32 = 16;

/// Bytes of an answer that are buffered for a reader on one connection or stream. The head of a
/// request, with the longest URL allowed, has to fit as well.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// How long before its certificate expires a connection is closed.
const CLOSE_BEFORE_EXPIRY: Span = Span::seconds(60);

/// Limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    pub handshake: Duration,
    /// Time from the handshake to the first authenticated request.
    pub authentication: Duration,
    /// Unauthenticated connections at once.
    pub unauthenticated: usize,
    /// Requests that may be rejected on a connection before it is closed.
    pub rejected_requests: u32,
    pub connections: usize,
    /// Connections of one certificate's holder, or of one user by its tokens.
    pub per_identity: usize,
    /// Connections of one address without a certificate.
    pub per_address: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Time that requests in flight may take once the listener stops.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    /// Room for ten thousand agents and their reconnections, with a limit on every single peer.
    fn default() -> ListenerLimits {
        ListenerLimits {
            handshake: Duration::from_secs(10),
            authentication: Duration::from_secs(10),
            unauthenticated: 1024,
            rejected_requests: 16,
            connections: 32_768,
            per_identity: 256,
            per_address: 16_384,
            streams: 256,
            drain: Duration::from_secs(10),
        }
    }
}

/// The peer of the connection that a request came by. An extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    pub remote: SocketAddr,
    /// From the client's certificate, verified against the authority.
    pub holder: Option<CertificateHolder>,
    /// Whether it is a plain `--dev` connection on loopback.
    pub dev: bool,
}

/// The caller and its credentials, to be checked again: what lasts longer than a request must end
/// when a token is revoked. An extension of every request; it does not expose the secret it holds.
#[derive(Clone)]
pub struct CallerProof {
    authenticator: Arc<dyn Authenticator>,
    connection: Arc<ConnInfo>,
    authorization: Option<HeaderValue>,
    caller: Caller,
}

impl CallerProof {
    /// The id of the presented token. Tokens that the caller makes with it do not outlive it.
    #[must_use]
    pub fn token(&self) -> Option<Name> {
        self.authorization.as_ref().and_then(|value| token_id(value.as_bytes()))
    }

    /// Whether the same credentials still authenticate the same caller.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let authorization_bytes = self.authorization.as_ref().map(HeaderValue::as_bytes);
        self.authenticator
            .authenticate(&self.connection, authorization_bytes)
            .is_ok_and(|found| found == self.caller)
    }
}

/// What the listener needs from the rest of the master.
pub trait Authenticator: Send + Sync + 'static {
    /// # Errors
    /// When the caller is not authenticated.
    fn authenticate(
        &self,
        connection: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated>;

    /// Waits until this replica has applied all that was acknowledged before now. Returns whether
    /// it has: if not, [`Authenticator::authenticate`] may reject a caller that the cell knows.
    fn catch_up(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    /// Records a rejected request in the audit log.
    fn record_rejected(&self, connection: &ConnInfo, method: &str, path: &str, why: &str);

    /// The masters of the cell, for authenticated callers; `None` where they are not certain.
    fn masters(&self) -> Option<MasterList> {
        None
    }

    /// Paths that need no authentication: liveness, joining, which checks its own token, and the
    /// files of the console, which contain no data of the cell.
    fn is_public(&self, path: &str) -> bool {
        matches!(path, "/healthz" | "/readyz" | JOIN_PATH) || is_of_console(path)
    }
}

/// A bound listener, with or without TLS.
pub struct Listener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// # Errors
    /// When the address cannot be bound.
    pub async fn tls(address: SocketAddr, config: Arc<ServerConfig>) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        Ok(Listener { listener, tls: Some(TlsAcceptor::from(config)) })
    }

    /// For `--dev`: no encryption, and a caller with its token is an administrator.
    ///
    /// # Errors
    /// When the address is not a loopback one, or cannot be bound.
    pub async fn plain(address: SocketAddr) -> io::Result<Listener> {
        if !address.ip().is_loopback() {
            let text = format!(
                "listen = {address}: a --dev master speaks in the clear and listens only \
                 on loopback; allowed: 127.0.0.0/8 and ::1"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Listener { listener: TcpListener::bind(address).await?, tls: None })
    }

    /// The bound address, with the actual port where 0 was requested.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` completes, then lets requests in flight end.
    pub async fn serve(
        self,
        router: Router,
        authenticator: Arc<dyn Authenticator>,
        limits: ListenerLimits,
        stop: impl Future<Output = ()>,
    ) {
        let (stopping, stopped) = watch::channel(false);
        let (counts, unauthenticated) =
            (Arc::default(), UnauthenticatedConnections::with_limit(limits.unauthenticated));
        let context = ConnectionContext {
            tls: self.tls,
            router,
            authenticator,
            limits,
            counts,
            unauthenticated,
            stopped,
        };
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            failpoint("listener");
            tokio::select! {
                () = &mut stop => break,
                Some(result) = connections.join_next() => record_connection_end(result),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, remote)) if connections.len() < limits.connections => {
                        connections.spawn(context.clone().handle_connection(stream, remote));
                    }
                    // Closing at once is the cheapest reaction.
                    Ok((_, remote)) => tracing::warn!(%remote, "connection limit reached"),
                    Err(error) => back_off_after_accept_error(&error).await,
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

/// An error while an answer is being sent ends its connection, and is counted.
fn record_connection_end(result: Result<(), JoinError>) {
    if result.is_err_and(|error| error.is_panic()) {
        note_handler_panic();
    }
}

/// Out of file descriptors: an accept would fail again at once. Other errors end with their
/// connection.
async fn back_off_after_accept_error(error: &io::Error) {
    tracing::warn!(%error, "accept failed");
    let is_connection_error = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    );
    if !is_connection_error {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Context that all connections of a listener share.
#[derive(Clone)]
struct ConnectionContext {
    tls: Option<TlsAcceptor>,
    router: Router,
    authenticator: Arc<dyn Authenticator>,
    limits: ListenerLimits,
    counts: Arc<ConnectionCounts>,
    unauthenticated: Arc<UnauthenticatedConnections>,
    stopped: watch::Receiver<bool>,
}

impl ConnectionContext {
    async fn handle_connection(self, stream: TcpStream, remote: SocketAddr) {
        // Small answers must not wait for more data. A failure only costs latency.
        let _ = stream.set_nodelay(true);
        let key = LimitKey::Address(remote.ip());
        let Some(permit) = self.counts.acquire(key, self.limits.per_address) else {
            tracing::warn!(%remote, "connection limit of this address reached");
            return;
        };
        let unauthenticated = self.unauthenticated.admit(remote.ip());
        let Some(tls) = &self.tls else {
            let info = ConnInfo { remote, holder: None, dev: true };
            return self.serve_connection(stream, info, permit, Some(unauthenticated)).await;
        };
        let handshake = tokio::select! {
            biased;
            () = unauthenticated.evicted() => return,
            shaken = timeout(self.limits.handshake, tls.accept(stream)) => shaken,
        };
        let stream = match handshake {
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
        let peer_certificate =
            stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let holder = match peer_certificate.map(CertificateHolder::from_certificate).transpose() {
            Ok(holder) => holder,
            Err(error) => {
                tracing::warn!(%remote, %error, "certificate names nobody");
                return;
            }
        };
        let (permit, unauthenticated) = match &holder {
            None => (permit, Some(unauthenticated)),
            Some(holder) => {
                let key = LimitKey::Identity(holder.identity.to_string());
                let Some(identity_permit) = self.counts.acquire(key, self.limits.per_identity)
                else {
                    let identity = &holder.identity;
                    tracing::warn!(%remote, %identity, "connection limit reached");
                    return;
                };
                (identity_permit, None)
            }
        };
        let info = ConnInfo { remote, holder, dev: false };
        self.serve_connection(stream, info, permit, unauthenticated).await;
    }

    async fn serve_connection<S>(
        self,
        stream: S,
        info: ConnInfo,
        permit: ConnectionPermit,
        mut unauthenticated: Option<UnauthenticatedConnection>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let ConnectionContext { router, authenticator, mut limits, counts, mut stopped, .. } = self;
        let remote = info.remote;
        if info.holder.is_none() && !info.dev {
            limits.streams = limits.streams.min(MAX_UNAUTHENTICATED_STREAMS);
        }
        let certificate_expiring =
            certificate_expiring(info.holder.as_ref().map(CertificateHolder::effective_expiry));
        let (info, auth_state) = (Arc::new(info), Arc::new(ConnectionAuth::new(limits, counts)));
        let request_state = auth_state.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            handle_request(
                router.clone(),
                authenticator.clone(),
                info.clone(),
                request_state.clone(),
                request,
            )
        });
        let builder = http_builder(limits);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        // The receiver's guard must not live across an await; a lost sender also means the end.
        let stop = async { stopped.wait_for(|stopped| *stopped).await.map(|_guard| ()) };
        let authentication_timeout = sleep(limits.authentication);
        tokio::pin!(connection, stop, certificate_expiring, authentication_timeout);
        let ended = loop {
            tokio::select! {
                ended = &mut connection => break Some(ended),
                _stopped = &mut stop => {
                    connection.as_mut().graceful_shutdown();
                    break Some(connection.as_mut().await);
                }
                () = &mut certificate_expiring => {
                    connection.as_mut().graceful_shutdown();
                    break Some(connection.as_mut().await);
                }
                () = auth_state.authenticated.notified() => unauthenticated = None,
                () = evicted(unauthenticated.as_ref()) => return,
                () = auth_state.close_requested.notified() => break None,
                () = &mut authentication_timeout, if unauthenticated.is_some() => break None,
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(%remote, error, "connection ended"),
            None => {
                connection.as_mut().graceful_shutdown();
                // Requests in flight may end, within the time of a handshake; then the connection
                // is closed.
                let _ = timeout(limits.handshake, connection).await;
            }
        }
        drop(permit);
    }
}

async fn evicted(unauthenticated: Option<&UnauthenticatedConnection>) {
    match unauthenticated {
        Some(connection) => connection.evicted().await,
        None => std::future::pending().await,
    }
}

/// Completes when a connection should be reopened, because its certificate is about to expire:
/// after that every request on it would be rejected, although its holder has long renewed the
/// certificate. Replicas keep their connections for as long as they run.
async fn certificate_expiring(expires_at: Option<Time>) {
    let Some(over) = expires_at else { return std::future::pending().await };
    let left = over.since(SystemClock.wall_time());
    // A new connection whose certificate expires soon is not closed at once.
    let early = if left.0 > 2 * CLOSE_BEFORE_EXPIRY.0 {
        Span(left.0 - CLOSE_BEFORE_EXPIRY.0)
    } else {
        left
    };
    sleep(Duration::from_millis(early.0)).await;
}

/// Runs the streams of an HTTP/2 connection: each may fail by itself, and is counted.
#[derive(Clone, Copy)]
struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        spawn_request("an answer", async { drop(stream.await) });
    }
}

fn http_builder(limits: ListenerLimits) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor);
    let mut http1 = builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(limits.handshake)
        .max_buf_size(SEND_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        // A peer that vanished frees its permit within a minute.
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

async fn handle_request(
    router: Router,
    authenticator: Arc<dyn Authenticator>,
    info: Arc<ConnInfo>,
    auth_state: Arc<ConnectionAuth>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if let Err(error) = request_origin::check(&request, info.dev) {
        authenticator.record_rejected(
            &info,
            request.method().as_str(),
            request.uri().path(),
            error.code.as_str(),
        );
        auth_state.record_rejection();
        return Ok(error_response(&error));
    }
    let authorization = authorization_header::take_authorization(request.headers_mut());
    // A joiner is authenticated once it has its certificate.
    let mut is_known = request.uri().path() == JOIN_PATH;
    let is_public = authenticator.is_public(request.uri().path());
    match authenticate_request(&*authenticator, &info, authorization.as_ref(), is_public).await {
        Ok(caller) => {
            if info.holder.is_none()
                && !info.dev
                && let Err(error) = auth_state.count_caller(&caller)
            {
                return Ok(error_response(&error));
            }
            auth_state.mark_authenticated();
            is_known = true;
            let proof = CallerProof {
                authenticator: authenticator.clone(),
                connection: info.clone(),
                authorization,
                caller: caller.clone(),
            };
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(proof);
        }
        Err(_) if is_public => {}
        Err(why) => {
            authenticator.record_rejected(
                &info,
                request.method().as_str(),
                request.uri().path(),
                why.code(),
            );
            auth_state.record_rejection();
            return Ok(unauthenticated_response(&why));
        }
    }
    request.extensions_mut().insert(ConnInfo::clone(&info));
    let mut response = respond_or_internal_error(router.oneshot(request.map(Body::new))).await;
    if is_known && !info.dev && response.status().is_success() {
        add_masters_header(&mut response, authenticator.masters());
    }
    Ok(response)
}

/// Authenticates the caller. No caller is rejected for what this replica may only not know yet; a
/// public path is not worth asking the leader.
async fn authenticate_request(
    authenticator: &dyn Authenticator,
    info: &ConnInfo,
    authorization: Option<&HeaderValue>,
    is_public: bool,
) -> Result<Caller, Unauthenticated> {
    let authorization_bytes = authorization.map(HeaderValue::as_bytes);
    match authenticator.authenticate(info, authorization_bytes) {
        Err(why) if why.depends_on_state() && !is_public => {
            if authenticator.catch_up().await {
                authenticator.authenticate(info, authorization_bytes)
            } else {
                Err(Unauthenticated::ReplicaBehind)
            }
        }
        found => found,
    }
}

/// A panic is answered as an internal error; other requests are not affected.
async fn respond_or_internal_error(
    responding: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    match catch_panic_async(responding).await {
        Ok(Ok(response)) => response,
        Err(panicked) => {
            note_handler_panic();
            tracing::error!("a request failed: {panicked}");
            error_response(&ApiError::new(Code::Internal, "the request met a fault of the master"))
        }
    }
}

/// Clients learn the other masters from every answer.
fn add_masters_header(response: &mut Response<Body>, masters: Option<MasterList>) {
    let text = masters.map(|masters| masters.to_string());
    if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
        response.headers_mut().insert(MASTERS_HEADER, value);
    }
}

fn unauthenticated_response(why: &Unauthenticated) -> Response<Body> {
    let error = match why {
        Unauthenticated::ReplicaBehind => ApiError::new(Code::NotReady, why.to_string())
            .hint("ask another master, or again when this one has caught up: cell master status"),
        Unauthenticated::NotDevAccount => {
            ApiError::new(Code::Unauthenticated, why.to_string()).hint(DEV_ACCOUNT_HINT)
        }
        _ => ApiError::new(Code::Unauthenticated, why.to_string()),
    };
    error_response(&error.with("reason", why.code()))
}
