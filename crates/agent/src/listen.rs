//! Where the agent is dialled: by masters, for the output of tasks and for sessions in them, and by
//! other agents, for packages. Both show certificates of the cell, and so does the agent; whoever
//! shows another, or none, is refused. Whether a person may read or enter a task is for the masters
//! to say.
//!
//! In an open cell there are no certificates: there the agent listens on loopback only, to whoever
//! shows the token of the open master, and to no web page.
//!
//! Rejected: having masters reach agents through the connections that agents hold to them. It
//! spares machines an open port, and puts every byte of output and packages in the way of polls.

use crate::folder::Folders;
use crate::output::{Found, Place, after, last_lines, near_end, whole_characters};
use crate::ready::Preparer;
use crate::session::{Doorman, carry};
use crate::standing::Standing;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::parts::{HOLDINGS_PATH, PACKAGE_PATH};
use cellwright_api::error::{AS_ITS_ACCOUNT, ApiError, Code};
use cellwright_api::exec::{EXEC_PATH, EXEC_PROTOCOL, ExecQuery};
use cellwright_api::output::{OUTPUT_PATH, OutputPiece, OutputQuery};
use cellwright_api::types::MachinePackages;
use cellwright_cell::credential::{PartKind, SecretHash};
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::clock::wall;
use cellwright_identity::enroll::Holder;
use cellwright_identity::seats::{Counts, Guest as Whose, Strangers};
use cellwright_identity::secret::sha256;
use cellwright_identity::spiffe::Part;
use cellwright_supervise::{guarded, note_handler_panic, of_request, plant};
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

/// The port, unless the configuration says another.
pub const PORT: u16 = 7071;
/// Bytes told when the request does not say how many.
const TAIL: u64 = 64 * 1024;
/// Longest wait for more.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Between two looks for more.
const LOOK: Duration = Duration::from_millis(50);
/// How long a handshake may take, and the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once to an open agent that have shown the token.
const MOST: usize = 1024;
/// Connections that have not shown yet whose they are: no certificate, or in an open cell no token.
/// The next one takes the place of the oldest of the address with most of them.
const MOST_STRANGERS: usize = 128;
/// Connections of one master, of all other agents, and of one of those.
const MOST_OF_MASTER: usize = 256;
const MOST_OF_AGENTS: usize = 512;
const MOST_OF_AGENT: usize = 32;

/// Who may dial.
#[derive(Clone)]
pub enum Access {
    /// Whoever shows the token of the open master at one of these addresses, which lies in a file
    /// of the account it runs as.
    Open(Vec<String>),
    /// Masters and agents of the cell.
    Parts {
        cell: Name,
        config: Arc<ServerConfig>,
        dialler: AgentDialler,
        /// Knows who was sent away since their certificate was made.
        standing: Arc<Standing>,
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

pub struct Door {
    listener: TcpListener,
    access: Access,
}

impl Door {
    /// Listens, and says where.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn open(address: SocketAddr, access: Access) -> io::Result<(Door, SocketAddr)> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok((Door { listener, access }, address))
    }

    /// Answers for as long as it is let.
    pub async fn serve(self, router: Router) {
        let host = Host {
            access: self.access,
            router,
            agents: Arc::new(Semaphore::new(MOST_OF_AGENTS)),
            counts: Arc::default(),
            strangers: Strangers::at_most(MOST_STRANGERS),
        };
        let mut connections = JoinSet::new();
        loop {
            plant("agent-listener");
            tokio::select! {
                Some(ended) = connections.join_next() => {
                    if ended.is_err_and(|error| error.is_panic()) {
                        note_handler_panic();
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, remote)) => {
                        connections.spawn(host.clone().host(stream, remote));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        sleep(LOOK).await;
                    }
                },
            }
        }
    }
}

/// Where others dial an agent that listens on `bound`: there, or, where that is every address of
/// the machine, at the one it was given, or at the one by which it would go to the masters.
pub async fn as_dialled(
    bound: SocketAddr,
    given: Option<IpAddr>,
    masters: &[String],
) -> Option<SocketAddr> {
    let own = match (bound.ip().is_unspecified(), given, masters.first()) {
        (false, _, _) => Some(bound.ip()),
        (true, Some(given), _) => Some(given),
        (true, None, Some(master)) => towards(master).await,
        (true, None, None) => None,
    };
    if own.is_none() {
        tracing::warn!("masters are not told where to dial this agent: set `address`");
    }
    own.map(|own| SocketAddr::new(own, bound.port()))
}

async fn towards(master: &str) -> Option<IpAddr> {
    for own in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        let Ok(socket) = UdpSocket::bind((own, 0)).await else { continue };
        // Nothing is sent: this only asks which way it would go.
        if socket.connect(master).await.is_ok() {
            return socket.local_addr().ok().map(|address| address.ip());
        }
    }
    None
}

/// What can be asked of this agent.
#[derive(Clone)]
pub struct Desk {
    pub folders: Folders,
    pub doorman: Doorman,
    /// Knows the packages.
    pub preparer: Arc<Preparer>,
}

impl Desk {
    pub fn router(self) -> Router {
        let packages = cellwright_package::http::router(self.preparer.packages.cache().clone());
        Router::new()
            .route(&format!("{OUTPUT_PATH}/{{user}}/{{job}}/{{index}}"), get(output))
            .route(&format!("{EXEC_PATH}/{{user}}/{{job}}/{{index}}"), post(exec))
            .route(HOLDINGS_PATH, get(holdings))
            .with_state(self)
            .merge(packages)
    }
}

/// Who has dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Guest {
    /// Of an open cell, by its masters: everything, with its token.
    OfDev(Vec<String>),
    Master,
    Agent,
}

impl Guest {
    /// Agents run where tasks may break out: they get packages, which are named by their digest,
    /// and nothing else.
    fn may(&self, path: &str) -> bool {
        let package = path.strip_prefix(PACKAGE_PATH).is_some_and(|rest| rest.starts_with('/'));
        match self {
            Guest::OfDev(_) => true,
            Guest::Master => !package,
            Guest::Agent => package,
        }
    }
}

#[derive(Clone)]
struct Host {
    access: Access,
    router: Router,
    agents: Arc<Semaphore>,
    counts: Arc<Counts>,
    strangers: Arc<Strangers>,
}

impl Host {
    async fn host(self, stream: TcpStream, remote: SocketAddr) {
        // Small answers must not wait for more to send. Failing only costs time.
        let _ = stream.set_nodelay(true);
        let (cell, config, standing) = match &self.access {
            Access::Parts { cell, config, standing, .. } => (cell, config, standing),
            Access::Open(masters) => {
                let guest = Guest::OfDev(masters.clone());
                return self.host_open(stream, remote, guest).await;
            }
        };
        let stranger = self.strangers.enter(remote.ip());
        let accepted = tokio::select! {
            biased;
            () = stranger.sent_away() => return,
            accepted = timeout(PATIENCE, TlsAcceptor::from(config.clone()).accept(stream)) => {
                accepted
            }
        };
        let Ok(Ok(stream)) = accepted else { return };
        drop(stranger);
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let Some(Ok(holder)) = shown.map(Holder::of) else { return };
        let guest = match &holder.identity.part {
            _ if holder.identity.cell != *cell => None,
            Part::Master(name) => Some((Guest::Master, PartKind::Replica, name)),
            Part::Agent(name) => Some((Guest::Agent, PartKind::Agent, name)),
            Part::Scheduler(_) | Part::User(_) => None,
        };
        let Some((guest, part, name)) = guest else {
            return tracing::warn!(who = %holder.identity, "has no business here");
        };
        let most = if guest == Guest::Agent { MOST_OF_AGENT } else { MOST_OF_MASTER };
        let own = self.counts.seat(Whose::Identity(holder.identity.to_string()), most);
        let Some(_own) = own else {
            return tracing::warn!(who = %holder.identity, "has too many connections");
        };
        let _of_agents = match guest {
            Guest::Agent => match self.agents.try_acquire() {
                Ok(seat) => Some(seat),
                Err(_) => return tracing::warn!("too many agents at once"),
            },
            _ => None,
        };
        let guest = Visitor {
            guest,
            until: holder.over(),
            part: Some((standing.clone(), part, name.clone())),
            introduced: Arc::default(),
        };
        converse(stream, self.router, guest).await;
    }

    /// Every account of the machine can dial here, so whoever has not shown the token may have to
    /// make room for the next.
    async fn host_open(self, stream: TcpStream, remote: SocketAddr, guest: Guest) {
        let stranger = self.strangers.enter(remote.ip());
        let introduced = Arc::new(Notify::new());
        let visitor =
            Visitor { guest, until: Time::NEVER, part: None, introduced: introduced.clone() };
        let conversation = converse(stream, self.router, visitor);
        tokio::pin!(conversation);
        tokio::select! {
            biased;
            () = introduced.notified() => {}
            () = stranger.sent_away() => return,
            () = &mut conversation => return,
            () = sleep(PATIENCE) => return,
        }
        drop(stranger);
        let Some(_seat) = self.counts.seat(Whose::Address(remote.ip()), MOST) else {
            return tracing::warn!(%remote, "connection limit reached");
        };
        conversation.await;
    }
}

/// Who is on the other end of a connection, and for how long that holds.
#[derive(Clone)]
struct Visitor {
    guest: Guest,
    until: Time,
    /// Absent in an open cell.
    part: Option<(Arc<Standing>, PartKind, Name)>,
    /// Told of every request that is answered.
    introduced: Arc<Notify>,
}

async fn converse<S>(stream: S, router: Router, visitor: Visitor)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        answer(router.clone(), visitor.clone(), request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(
    router: Router,
    visitor: Visitor,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let Visitor { guest, until, part, introduced } = visitor;
    // The handshake looked at this too, but connections live for long.
    let late = until <= wall();
    let is_of_dev = matches!(guest, Guest::OfDev(_));
    let stranger = match &guest {
        Guest::OfDev(masters) => is_of_a_page(&request) || !shows_token(&request, masters),
        Guest::Master | Guest::Agent => false,
    };
    // Asked for each request: connections live for long, and parts are sent away.
    let is_gone = match &part {
        Some((standing, part, name)) => !standing.of(*part, name).await,
        None => false,
    };
    if late || stranger || is_gone || !guest.may(request.uri().path()) {
        let error = ApiError::new(Code::NotAllowed, "this is not for whoever asks");
        let error = if is_of_dev { error.hint(AS_ITS_ACCOUNT) } else { error };
        return Ok(Refused(error).into_response());
    }
    introduced.notify_one();
    let answering = guarded(router.oneshot(request.map(Body::new))).await;
    answering.unwrap_or_else(|panicked| {
        note_handler_panic();
        tracing::error!("a request failed: {panicked}");
        let error = ApiError::new(Code::Internal, "the request met a fault of the agent");
        Ok(Refused(error).into_response())
    })
}

/// Whether it shows the token of the open cell, which only its account can read. Without a master
/// there is none, and nobody to ask for anything.
fn shows_token(request: &Request<Incoming>, masters: &[String]) -> bool {
    let shown = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let shown = shown.and_then(|shown| shown.strip_prefix(b"Bearer "));
    let own = cellwright_api::dev::token_for(masters);
    own.zip(shown)
        .is_some_and(|(own, shown)| SecretHash(own.hash()).matches(&SecretHash(sha256(shown))))
}

/// Pages send where they are from, or reach this machine under a name of their own.
fn is_of_a_page(request: &Request<Incoming>) -> bool {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let local = host.and_then(|host| host.parse::<SocketAddr>().ok());
    let local = local.is_some_and(|address| address.ip().is_loopback());
    request.headers().contains_key(header::ORIGIN) || !local
}

struct Refused(ApiError);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status());
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.0)).into_response()
    }
}

fn refuse(code: Code, message: &str) -> Refused {
    Refused(ApiError::new(code, message))
}

async fn holdings(State(desk): State<Desk>) -> Json<MachinePackages> {
    Json(desk.preparer.packages.told())
}

type TaskPath = Path<(String, String, u32)>;

async fn output(
    State(desk): State<Desk>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<OutputQuery>,
) -> Result<Json<OutputPiece>, Refused> {
    let name = format!("{user}/{job}/{index}");
    let until = Instant::now() + Duration::from_millis(query.wait).min(WAIT_MAX);
    let mut query = query;
    let mut found = find(&desk.folders, &name, &query).await?;
    loop {
        // Put aside meanwhile: the same attempt is found at its other place.
        if !found.folder.exists() {
            query.attempt = Some(found.attempt.number);
            found = find(&desk.folders, &name, &query).await?;
        }
        let piece = piece(&found, &query)?;
        if !piece.text.is_empty() || piece.ended || Instant::now() >= until {
            return Ok(Json(piece));
        }
        // Goes on from the place it came to.
        query.from = Some(piece.next);
        sleep(LOOK).await;
    }
}

/// The attempt that is asked about. Looked for once, away from the loops: thousands of attempts may
/// be kept, and each has to be opened.
async fn find(folders: &Folders, name: &str, query: &OutputQuery) -> Result<Found, Refused> {
    let (folders, wanted) = (folders.clone(), name.to_owned());
    let looked = tokio::task::spawn_blocking(move || folders.of_name(&wanted)).await;
    let failed = |error: String| refuse(Code::Internal, &error);
    let all = looked.map_err(|error| failed(error.to_string()))?;
    let newest = all.map_err(|error| failed(error.to_string()))?.into_iter().rfind(|found| {
        query.attempt.is_none_or(|wanted| wanted == found.attempt.number)
            && query.task.is_none_or(|wanted| wanted == found.attempt.task.0)
    });
    newest.ok_or_else(|| refuse(Code::NoSuchTask, &format!("no output of {name} is kept here")))
}

fn piece(found: &Found, query: &OutputQuery) -> Result<OutputPiece, Refused> {
    let failed = |error: io::Error| refuse(Code::Internal, &error.to_string());
    let Found { attempt, folder } = found;
    // Before the read: what is written in between is read too.
    let ended = crate::shim::exit_of(folder).is_ok_and(|exit| exit.is_some());
    let from = match (&query.from, query.lines) {
        (Some(text), _) => Place::parse(text).ok_or_else(|| {
            refuse(Code::BadParameter, &format!("from: {text:?}; allowed: a `next`"))
        })?,
        (None, Some(lines)) => last_lines(folder, query.stream, lines).map_err(failed)?,
        (None, None) => {
            near_end(folder, query.stream, query.tail.unwrap_or(TAIL)).map_err(failed)?
        }
    };
    let (mut bytes, mut next) = after(folder, query.stream, from).map_err(failed)?;
    // A piece may be cut short by its size: there is more, so it is not the end.
    let ended = ended && next == after(folder, query.stream, next).map_err(failed)?.1;
    if !ended {
        next = whole_characters(&mut bytes, next);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(OutputPiece { attempt: attempt.number, text, next: next.text(), ended })
}

async fn exec(
    State(desk): State<Desk>,
    Path((user, job, index)): TaskPath,
    Query(query): Query<ExecQuery>,
    mut request: Request<Body>,
) -> Result<Response, Refused> {
    let wanted = request.headers().get(header::UPGRADE).is_some_and(|v| v == EXEC_PROTOCOL);
    let near = request.extensions_mut().remove::<OnUpgrade>().filter(|_| wanted);
    let near = near.ok_or_else(|| refuse(Code::UpgradeRequired, "a session takes a connection"))?;
    let begun = desk.doorman.begin(&format!("{user}/{job}/{index}"), &query).await;
    of_request("a session", carry(begun.map_err(Refused)?, near));
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
        let task = [OUTPUT_PATH, EXEC_PATH].map(|path| format!("{path}/u/j/0"));
        for path in task.into_iter().chain([HOLDINGS_PATH.to_owned()]) {
            assert!(Guest::Master.may(&path) && !Guest::Agent.may(&path), "{path}");
        }
        assert!(Guest::Agent.may(&package) && !Guest::Master.may(&package));
        assert!(!Guest::Agent.may(&format!("{PACKAGE_PATH}x/ab")));
    }

    /// What is said to a request with this token, on a connection that stays.
    async fn asked(stream: &mut TcpStream, token: &str) -> String {
        let to = stream.peer_addr().unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut told = [0; 1024];
        let count = stream.read(&mut told).await.unwrap();
        String::from_utf8_lossy(&told[..count]).lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_crowd_without_the_token_keeps_nobody_out_of_an_open_agent() {
        let scratch = crate::folder::scratch::Scratch::new();
        std::fs::create_dir(scratch.path("data")).unwrap();
        let master = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let posted = cellwright_api::dev::Posted::post(&scratch.path("data"), master).unwrap();
        let token = posted.token().expose();
        let access = Access::Open(vec![master.to_string()]);
        let (door, address) = Door::open("127.0.0.1:0".parse().unwrap(), access).await.unwrap();
        let serving = tokio::spawn(door.serve(Router::new().route("/", get(async || "here"))));
        let dial = async || TcpStream::connect(address).await.unwrap();
        let mut own = dial().await;
        assert_eq!(asked(&mut own, token).await, "HTTP/1.1 200 OK");
        let mut crowd = Vec::new();
        for number in 0..MOST_STRANGERS + 20 {
            let mut stranger = dial().await;
            if number == 0 {
                assert_eq!(asked(&mut stranger, "wrong").await, "HTTP/1.1 403 Forbidden");
            }
            crowd.push(stranger);
        }
        assert_eq!(asked(&mut dial().await, token).await, "HTTP/1.1 200 OK");
        // The oldest went when the newest came, and not for having been silent for long.
        for stranger in &mut crowd[..20] {
            let rest = timeout(PATIENCE / 2, stranger.read(&mut [0; 1])).await;
            assert!(matches!(rest, Ok(Ok(0) | Err(_))), "{rest:?}");
        }
        assert_eq!(asked(&mut own, token).await, "HTTP/1.1 200 OK", "who is known stays");
        serving.abort();
    }

    #[tokio::test]
    async fn an_agent_on_all_addresses_says_which_one_to_dial() {
        let masters = ["127.0.0.1:7070".to_owned()];
        let dialled = async |bound: &str, given: Option<&str>| {
            let given = given.map(|text| text.parse().unwrap());
            let found = as_dialled(bound.parse().unwrap(), given, &masters).await;
            found.unwrap().to_string()
        };
        assert_eq!(dialled("10.0.0.7:5", Some("10.0.0.8")).await, "10.0.0.7:5");
        assert_eq!(dialled("0.0.0.0:5", Some("10.0.0.8")).await, "10.0.0.8:5");
        assert_eq!(dialled("0.0.0.0:5", None).await, "127.0.0.1:5");
    }
}
