//! The agent's listener: masters dial it for the output of tasks and for sessions in them, other
//! agents for packages. Both present certificates of the cell, and so does the agent; a caller with
//! another certificate, or none, is rejected. Whether a user may read or enter a task is decided by
//! the masters.
//!
//! In an open cell there are no certificates: there the agent listens on loopback only, accepts
//! callers that present the token of the open master, and no web page.
//!
//! Rejected: having masters reach agents through the connections that agents hold to them. It
//! spares machines an open port, but all output and packages would compete with polls.

use crate::membership::MembershipCache;
use crate::output::{
    AttemptOutput, StreamPosition, last_lines_position, read_from, split_at_character,
    tail_position,
};
use crate::preparer::Preparer;
use crate::session::{SessionServer, StartedSession, proxy};
use crate::state_dir::Folders;
use crate::timed_output::{Positions, read_parts};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::internal_calls::{MACHINE_PACKAGES_PATH, PACKAGE_PATH};
use cellwright_api::error::{ApiError, Code, DEV_ACCOUNT_HINT};
use cellwright_api::exec::{
    COPY_PATH, CopyQuery, EXEC_PATH, EXEC_PROTOCOL, ExecQuery, FORWARD_PATH, ForwardQuery,
};
use cellwright_api::output::{OUTPUT_PATH, OutputPiece, OutputQuery, Stream, StreamSelection};
use cellwright_api::types::MachinePackages;
use cellwright_cell::credential::{PartKind, SecretHash};
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::clock::wall;
use cellwright_identity::connection_limits::{
    ConnectionCounts, LimitKey as Whose, UnauthenticatedConnections,
};
use cellwright_identity::enroll::CertificateHolder;
use cellwright_identity::secret::sha256;
use cellwright_identity::spiffe::Part;
use cellwright_supervise::{catch_panic_async, failpoint, note_handler_panic, spawn_request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The port, unless the configuration names another.
pub const DEFAULT_PORT: u16 = 7071;
/// Bytes returned when the request does not say how many.
const DEFAULT_TAIL_BYTES: u64 = 64 * 1024;
/// Longest wait for more output.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Interval between two checks for more output.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of a handshake, and of reading the head of a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most concurrent connections to an open agent that have presented the token.
const MAX_CONNECTIONS: usize = 1024;
/// Most connections that have not authenticated yet: no certificate, or in an open cell no token.
/// The next one replaces the oldest of the address with most of them.
const MAX_UNAUTHENTICATED: usize = 128;
/// Most connections of one master, of all other agents, and of one of those.
const MAX_PER_MASTER: usize = 256;
const MAX_FROM_AGENTS: usize = 512;
const MAX_PER_AGENT: usize = 32;

/// Who may dial.
#[derive(Clone)]
pub enum Access {
    /// A caller with the token of the open master at one of these addresses, which lies in a file
    /// of the account that the master runs as.
    Open(Vec<String>),
    /// Masters and agents of the cell.
    Parts {
        cell: Name,
        config: Arc<ServerConfig>,
        dialler: AgentDialler,
        /// Knows which parts were removed since their certificate was issued.
        membership: Arc<MembershipCache>,
    },
}

impl Access {
    /// How this agent dials others.
    #[must_use]
    pub fn dialler(&self) -> AgentDialler {
        match self {
            Access::Open(masters) => AgentDialler::plain(masters.clone()),
            Access::Parts { dialler, .. } => dialler.clone(),
        }
    }
}

pub struct Listener {
    listener: TcpListener,
    access: Access,
}

impl Listener {
    /// Listens, and returns the address.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn open(address: SocketAddr, access: Access) -> io::Result<(Listener, SocketAddr)> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok((Listener { listener, access }, address))
    }

    /// Serves requests until it is dropped.
    pub async fn serve(self, router: Router) {
        let server = ConnectionServer {
            access: self.access,
            router,
            agents: Arc::new(Semaphore::new(MAX_FROM_AGENTS)),
            counts: Arc::default(),
            strangers: UnauthenticatedConnections::with_limit(MAX_UNAUTHENTICATED),
        };
        let mut connections = JoinSet::new();
        loop {
            failpoint("agent-listener");
            tokio::select! {
                Some(ended) = connections.join_next() => {
                    if ended.is_err_and(|error| error.is_panic()) {
                        note_handler_panic();
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, remote)) => {
                        connections.spawn(server.clone().serve(stream, remote));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        sleep(POLL_INTERVAL).await;
                    }
                },
            }
        }
    }
}

/// Where others dial an agent that listens on `bound`: there, or, where that is every address of
/// the machine, at the configured address, or at the local address of its route to the masters.
pub async fn advertised_address(
    bound: SocketAddr,
    configured: Option<IpAddr>,
    masters: &[String],
) -> Option<SocketAddr> {
    let own = match (bound.ip().is_unspecified(), configured, masters.first()) {
        (false, _, _) => Some(bound.ip()),
        (true, Some(configured), _) => Some(configured),
        (true, None, Some(master)) => local_address_towards(master).await,
        (true, None, None) => None,
    };
    if own.is_none() {
        tracing::warn!("masters are not told where to dial this agent: set `address`");
    }
    own.map(|own| SocketAddr::new(own, bound.port()))
}

async fn local_address_towards(master: &str) -> Option<IpAddr> {
    for own in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        let Ok(socket) = UdpSocket::bind((own, 0)).await else { continue };
        // Nothing is sent: this only asks the kernel for the route.
        if socket.connect(master).await.is_ok() {
            return socket.local_addr().ok().map(|address| address.ip());
        }
    }
    None
}

/// What requests to this agent need.
#[derive(Clone)]
pub struct Handlers {
    pub folders: Folders,
    pub session_server: SessionServer,
    /// Knows the packages.
    pub preparer: Arc<Preparer>,
}

impl Handlers {
    pub fn router(self) -> Router {
        let packages = cellwright_package::http::router(self.preparer.packages.cache().clone());
        Router::new()
            .route(&format!("{OUTPUT_PATH}/{{user}}/{{job}}/{{index}}"), get(output))
            .route(&format!("{EXEC_PATH}/{{user}}/{{job}}/{{index}}"), post(exec))
            .route(&format!("{COPY_PATH}/{{user}}/{{job}}/{{index}}"), post(copy))
            .route(&format!("{FORWARD_PATH}/{{user}}/{{job}}/{{index}}"), post(forward))
            .route(MACHINE_PACKAGES_PATH, get(list_packages))
            .with_state(self)
            .merge(packages)
    }
}

/// The kind of caller on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Peer {
    /// A master of an open cell: may access everything, with its token.
    OpenCell(Vec<String>),
    Master,
    Agent,
}

impl Peer {
    /// Agents run where tasks may break out: they may fetch packages, which are named by their
    /// digest, and nothing else.
    fn may_access(&self, path: &str) -> bool {
        let package = path.strip_prefix(PACKAGE_PATH).is_some_and(|rest| rest.starts_with('/'));
        match self {
            Peer::OpenCell(_) => true,
            Peer::Master => !package,
            Peer::Agent => package,
        }
    }
}

#[derive(Clone)]
struct ConnectionServer {
    access: Access,
    router: Router,
    agents: Arc<Semaphore>,
    counts: Arc<ConnectionCounts>,
    strangers: Arc<UnauthenticatedConnections>,
}

impl ConnectionServer {
    async fn serve(self, stream: TcpStream, remote: SocketAddr) {
        // Small answers must not wait for more to send. A failure only costs time.
        let _ = stream.set_nodelay(true);
        let (cell, config, membership) = match &self.access {
            Access::Parts { cell, config, membership, .. } => (cell, config, membership),
            Access::Open(masters) => {
                let peer = Peer::OpenCell(masters.clone());
                return self.serve_open(stream, remote, peer).await;
            }
        };
        let stranger = self.strangers.admit(remote.ip());
        let handshake = TlsAcceptor::from(config.clone()).accept(stream);
        let accepted = tokio::select! {
            biased;
            () = stranger.evicted() => return,
            accepted = timeout(HANDSHAKE_TIMEOUT, handshake) => accepted,
        };
        let Ok(Ok(stream)) = accepted else { return };
        drop(stranger);
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let Some(Ok(holder)) = certificate.map(CertificateHolder::from_certificate) else { return };
        let peer = match &holder.identity.part {
            _ if holder.identity.cell != *cell => None,
            Part::Master(name) => Some((Peer::Master, PartKind::Replica, name)),
            Part::Agent(name) => Some((Peer::Agent, PartKind::Agent, name)),
            Part::Scheduler(_) | Part::User(_) => None,
        };
        let Some((peer, part, name)) = peer else {
            return tracing::warn!(who = %holder.identity, "has no business here");
        };
        let most = if peer == Peer::Agent { MAX_PER_AGENT } else { MAX_PER_MASTER };
        let permit = self.counts.acquire(Whose::Identity(holder.identity.to_string()), most);
        let Some(_own) = permit else {
            return tracing::warn!(who = %holder.identity, "has too many connections");
        };
        let _of_agents = match peer {
            Peer::Agent => match self.agents.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => return tracing::warn!("too many agents at once"),
            },
            _ => None,
        };
        let peer = ConnectionPeer {
            peer,
            until: holder.effective_expiry(),
            part: Some((membership.clone(), part, name.clone())),
            authenticated: Arc::default(),
        };
        serve_connection(stream, self.router, peer).await;
    }

    /// Every account of the machine can dial here, so a connection without the token may be closed
    /// to make room for the next.
    async fn serve_open(self, stream: TcpStream, remote: SocketAddr, peer: Peer) {
        let stranger = self.strangers.admit(remote.ip());
        let authenticated = Arc::new(Notify::new());
        let peer = ConnectionPeer {
            peer,
            until: Time::NEVER,
            part: None,
            authenticated: authenticated.clone(),
        };
        let conversation = serve_connection(stream, self.router, peer);
        tokio::pin!(conversation);
        tokio::select! {
            biased;
            () = authenticated.notified() => {}
            () = stranger.evicted() => return,
            () = &mut conversation => return,
            () = sleep(HANDSHAKE_TIMEOUT) => return,
        }
        drop(stranger);
        let Some(_seat) = self.counts.acquire(Whose::Address(remote.ip()), MAX_CONNECTIONS) else {
            return tracing::warn!(%remote, "connection limit reached");
        };
        conversation.await;
    }
}

/// Who is on the other end of a connection, and until when that holds.
#[derive(Clone)]
struct ConnectionPeer {
    peer: Peer,
    until: Time,
    /// Absent in an open cell.
    part: Option<(Arc<MembershipCache>, PartKind, Name)>,
    /// Notified of every request that is allowed.
    authenticated: Arc<Notify>,
}

async fn serve_connection<S>(stream: S, router: Router, peer: ConnectionPeer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        handle_request(router.clone(), peer.clone(), request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HANDSHAKE_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended");
    }
}

async fn handle_request(
    router: Router,
    peer: ConnectionPeer,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let ConnectionPeer { peer, until, part, authenticated } = peer;
    // The handshake checked this too, but connections are long-lived.
    let has_expired = until <= wall();
    let is_open_cell = matches!(peer, Peer::OpenCell(_));
    let stranger = match &peer {
        Peer::OpenCell(masters) => is_from_web_page(&request) || !has_token(&request, masters),
        Peer::Master | Peer::Agent => false,
    };
    // Checked for each request: connections are long-lived, and parts are removed from the cell.
    let is_revoked = match &part {
        Some((membership, part, name)) => !membership.is_member(*part, name).await,
        None => false,
    };
    if has_expired || stranger || is_revoked || !peer.may_access(request.uri().path()) {
        let error = ApiError::new(Code::NotAllowed, "this is not for whoever asks");
        let error = if is_open_cell { error.hint(DEV_ACCOUNT_HINT) } else { error };
        return Ok(ErrorResponse(error).into_response());
    }
    authenticated.notify_one();
    let answering = catch_panic_async(router.oneshot(request.map(Body::new))).await;
    answering.unwrap_or_else(|panicked| {
        note_handler_panic();
        tracing::error!("a request failed: {panicked}");
        let error = ApiError::new(Code::Internal, "the request met a fault of the agent");
        Ok(ErrorResponse(error).into_response())
    })
}

/// Whether the request has the token of the open cell, which only its account can read. Without a
/// master there is none, and no request is accepted.
fn has_token(request: &Request<Incoming>, masters: &[String]) -> bool {
    let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
    let own = cellwright_identity::dev_token::token_for(masters);
    own.zip(token)
        .is_some_and(|(own, token)| SecretHash(own.hash()).matches(&SecretHash(sha256(token))))
}

/// Browsers send the page's origin, or reach this machine under a host name.
fn is_from_web_page(request: &Request<Incoming>) -> bool {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let local = host.and_then(|host| host.parse::<SocketAddr>().ok());
    let local = local.is_some_and(|address| address.ip().is_loopback());
    request.headers().contains_key(header::ORIGIN) || !local
}

struct ErrorResponse(ApiError);

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status());
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.0)).into_response()
    }
}

fn error_response(code: Code, message: &str) -> ErrorResponse {
    ErrorResponse(ApiError::new(code, message))
}

async fn list_packages(State(handlers): State<Handlers>) -> Json<MachinePackages> {
    Json(handlers.preparer.packages.status())
}

type TaskPath = Path<(String, String, u32)>;

async fn output(
    State(handlers): State<Handlers>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<OutputQuery>,
) -> Result<Json<OutputPiece>, ErrorResponse> {
    let name = format!("{user}/{job}/{index}");
    let until = Instant::now() + Duration::from_millis(query.wait).min(MAX_WAIT);
    let mut query = query;
    let mut found = find_output(&handlers.folders, &name, &query).await?;
    loop {
        // Archived meanwhile: the same attempt is found in its other folder.
        if !found.folder.exists() {
            query.attempt = Some(found.attempt.number);
            found = find_output(&handlers.folders, &name, &query).await?;
        }
        let piece = output_piece(&found, &query)?;
        if !piece.is_empty() || piece.ended || Instant::now() >= until {
            return Ok(Json(piece));
        }
        // Continues from the position it reached.
        query.from = Some(piece.next);
        sleep(POLL_INTERVAL).await;
    }
}

/// The attempt that is requested. Looked up once, outside the polling loops: thousands of attempts
/// may be retained, and each has to be opened.
async fn find_output(
    folders: &Folders,
    name: &str,
    query: &OutputQuery,
) -> Result<AttemptOutput, ErrorResponse> {
    let (folders, task_name) = (folders.clone(), name.to_owned());
    let listed = tokio::task::spawn_blocking(move || folders.attempts_of_task(&task_name)).await;
    let failed = |error: String| error_response(Code::Internal, &error);
    let all = listed.map_err(|error| failed(error.to_string()))?;
    let newest = all.map_err(|error| failed(error.to_string()))?.into_iter().rfind(|found| {
        query.attempt.is_none_or(|number| number == found.attempt.number)
            && query.task.is_none_or(|task| task == found.attempt.task.0)
    });
    newest.ok_or_else(|| {
        error_response(Code::NoSuchTask, &format!("no output of {name} is kept here"))
    })
}

fn output_piece(found: &AttemptOutput, query: &OutputQuery) -> Result<OutputPiece, ErrorResponse> {
    let failed = |error: io::Error| error_response(Code::Internal, &error.to_string());
    let AttemptOutput { attempt, folder } = found;
    // Before the read: output written in between is read too.
    let ended = crate::shim::exit_of(folder).is_ok_and(|exit| exit.is_some());
    let stream = match query.stream {
        StreamSelection::Stdout if !query.is_timed() => Stream::Stdout,
        StreamSelection::Stderr if !query.is_timed() => Stream::Stderr,
        _ => return timed_piece(found, query, ended),
    };
    let from = match (&query.from, query.lines) {
        (Some(text), _) => StreamPosition::parse(text).ok_or_else(|| {
            error_response(Code::BadParameter, &format!("from: {text:?}; allowed: a `next`"))
        })?,
        (None, Some(lines)) => last_lines_position(folder, stream, lines).map_err(failed)?,
        (None, None) => tail_position(folder, stream, query.tail.unwrap_or(DEFAULT_TAIL_BYTES))
            .map_err(failed)?,
    };
    let (mut bytes, mut next) = read_from(folder, stream, from).map_err(failed)?;
    // A piece may be cut short by its size: there is more, so it is not the end.
    let ended = ended && next == read_from(folder, stream, next).map_err(failed)?.1;
    if !ended {
        next = split_at_character(&mut bytes, next);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let next = next.to_text();
    Ok(OutputPiece { attempt: attempt.number, text, parts: Vec::new(), next, ended })
}

/// A piece in parts, with times.
fn timed_piece(
    found: &AttemptOutput,
    query: &OutputQuery,
    has_exited: bool,
) -> Result<OutputPiece, ErrorResponse> {
    let failed = |error: io::Error| error_response(Code::Internal, &error.to_string());
    let AttemptOutput { attempt, folder } = found;
    let from = match &query.from {
        Some(text) => Positions::parse(text, query.stream).ok_or_else(|| {
            error_response(Code::BadParameter, &format!("from: {text:?}; allowed: a `next`"))
        })?,
        None => Positions::first(folder, query, query.tail.unwrap_or(DEFAULT_TAIL_BYTES))
            .map_err(failed)?,
    };
    let (mut parts, next) = read_parts(folder, &from, !has_exited).map_err(failed)?;
    // A piece may be cut short by its size: there is more, so it is not the end.
    let ended = has_exited && read_parts(folder, &next, false).map_err(failed)?.0.is_empty();
    let in_parts = query.parts || query.stream == StreamSelection::All;
    let text =
        if in_parts { String::new() } else { parts.drain(..).map(|part| part.text).collect() };
    let (attempt, next) = (attempt.number, next.to_text());
    Ok(OutputPiece { attempt, text, parts, next, ended })
}

async fn exec(
    State(handlers): State<Handlers>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<ExecQuery>,
    request: Request<Body>,
) -> Result<Response, ErrorResponse> {
    let name = format!("{user}/{job}/{index}");
    hand_over(request, handlers.session_server.begin(&name, &query)).await
}

async fn copy(
    State(handlers): State<Handlers>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<CopyQuery>,
    request: Request<Body>,
) -> Result<Response, ErrorResponse> {
    let name = format!("{user}/{job}/{index}");
    hand_over(request, handlers.session_server.begin_copy(&name, &query)).await
}

async fn forward(
    State(handlers): State<Handlers>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<ForwardQuery>,
    request: Request<Body>,
) -> Result<Response, ErrorResponse> {
    let name = format!("{user}/{job}/{index}");
    hand_over(request, handlers.session_server.begin_forward(&name, &query)).await
}

/// Begins the session, and hands it the caller's connection.
async fn hand_over(
    mut request: Request<Body>,
    session: impl Future<Output = Result<StartedSession, ApiError>>,
) -> Result<Response, ErrorResponse> {
    let is_upgrade = request.headers().get(header::UPGRADE).is_some_and(|v| v == EXEC_PROTOCOL);
    let near = request.extensions_mut().remove::<OnUpgrade>().filter(|_| is_upgrade);
    let near =
        near.ok_or_else(|| error_response(Code::UpgradeRequired, "a session takes a connection"))?;
    spawn_request("a session", proxy(session.await.map_err(ErrorResponse)?, near));
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn each_kind_of_part_may_ask_for_its_own_things() {
        let package = format!("{PACKAGE_PATH}/ab");
        let task =
            [OUTPUT_PATH, EXEC_PATH, COPY_PATH, FORWARD_PATH].map(|path| format!("{path}/u/j/0"));
        for path in task.into_iter().chain([MACHINE_PACKAGES_PATH.to_owned()]) {
            assert!(Peer::Master.may_access(&path) && !Peer::Agent.may_access(&path), "{path}");
        }
        assert!(Peer::Agent.may_access(&package) && !Peer::Master.may_access(&package));
        assert!(!Peer::Agent.may_access(&format!("{PACKAGE_PATH}x/ab")));
    }

    /// The response to a request with this token, on a connection that stays open.
    async fn request_status(stream: &mut TcpStream, token: &str) -> String {
        let to = stream.peer_addr().unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).await.unwrap();
        String::from_utf8_lossy(&buffer[..count]).lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_crowd_without_the_token_keeps_nobody_out_of_an_open_agent() {
        let scratch = crate::state_dir::scratch::Scratch::new();
        std::fs::create_dir(scratch.path("data")).unwrap();
        let master = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let published =
            cellwright_identity::dev_token::PublishedToken::publish(&scratch.path("data"), master)
                .unwrap();
        let token = published.token().expose();
        let access = Access::Open(vec![master.to_string()]);
        let (listener, address) =
            Listener::open("127.0.0.1:0".parse().unwrap(), access).await.unwrap();
        let serving = tokio::spawn(listener.serve(Router::new().route("/", get(async || "here"))));
        let dial = async || TcpStream::connect(address).await.unwrap();
        let mut own = dial().await;
        assert_eq!(request_status(&mut own, token).await, "HTTP/1.1 200 OK");
        let mut crowd = Vec::new();
        for number in 0..MAX_UNAUTHENTICATED + 20 {
            let mut stranger = dial().await;
            if number == 0 {
                assert_eq!(request_status(&mut stranger, "wrong").await, "HTTP/1.1 403 Forbidden");
            }
            crowd.push(stranger);
        }
        assert_eq!(request_status(&mut dial().await, token).await, "HTTP/1.1 200 OK");
        // The oldest was closed when the newest came, and not for being idle for long.
        for stranger in &mut crowd[..20] {
            let rest = timeout(HANDSHAKE_TIMEOUT / 2, stranger.read(&mut [0; 1])).await;
            assert!(matches!(rest, Ok(Ok(0) | Err(_))), "{rest:?}");
        }
        assert_eq!(request_status(&mut own, token).await, "HTTP/1.1 200 OK", "who is known stays");
        serving.abort();
    }

    #[tokio::test]
    async fn an_agent_on_all_addresses_says_which_one_to_dial() {
        let masters = ["127.0.0.1:7070".to_owned()];
        let dialled = async |bound: &str, configured: Option<&str>| {
            let configured = configured.map(|text| text.parse().unwrap());
            let found = advertised_address(bound.parse().unwrap(), configured, &masters).await;
            found.unwrap().to_string()
        };
        assert_eq!(dialled("10.0.0.7:5", Some("10.0.0.8")).await, "10.0.0.7:5");
        assert_eq!(dialled("0.0.0.0:5", Some("10.0.0.8")).await, "10.0.0.8:5");
        assert_eq!(dialled("0.0.0.0:5", None).await, "127.0.0.1:5");
    }
}
