//! Tests of authentication: handshakes on loopback with good, foreign and expired certificates;
//! callers of requests; and join tokens that work once.

use super::authenticator::MasterAuthenticator;
use super::caller::{PresentedCredentials, Unauthenticated, authenticate};
use super::enrollment_routes::EnrollmentApi;
use super::join::{Admission, JoinError, authority_for, renew};
use super::listener::{Authenticator, ConnInfo, Listener, ListenerLimits};
use super::rejection_audit::{MAX_LINES_PER_SOURCE, RejectionAuditLimiter};
use super::replica_credentials::ReplicaCredentials;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use cellwright_api::wire::{self, Spoken, WireRange};
use cellwright_cell::command::{Actor, Command, Done, Entry, Request, Verdict};
use cellwright_cell::credential::{
    InvalidTokenReason, KeyFingerprint, PartKind, REVOCATION_RETENTION, SecretHash, TokenKind,
};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::authority::{Authority, Credentials, IssueTime, SigningRequest};
use cellwright_identity::enroll::{
    CERTIFICATE_LIFETIME, CLOCK_SKEW_TOLERANCE, CertificateHolder, JOIN_PATH, JoinAnswer, JoinKind,
    JoinReply, JoinRequest, JoinToken, NOT_BEFORE_BACKDATE, NewKey, PendingConfirmation,
    RENEW_PATH, RenewRequest, own_key_fingerprint,
};
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::secret::Secret;
use cellwright_identity::spiffe::{Identity, Part};
use cellwright_identity::tls::{self, CertificateResolver, OutOfDateHook, Trust};
use cellwright_master::audit::AuditLog;
use cellwright_master::clock::SystemClock;
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::Caller;
use cellwright_master::master::{Environment, Master};
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_master::rejected_polls::RejectedPolls;
use cellwright_master::segments::RetentionLimits;
use cellwright_master::testing::TempFolder;
use cellwright_store::{CallError, Peer};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// TLS libraries read the machine's clock, so certificates are made around it.
fn now() -> Time {
    cellwright_master::clock::Clock::wall_time(&cellwright_master::clock::SystemClock)
}

fn loopback() -> Vec<String> {
    vec!["localhost".into(), "127.0.0.1".into()]
}

fn apply(state: &mut State, at: Time, by: Actor, command: Command) -> Verdict {
    apply_as(state, at, Request { by, id: None, command })
}

/// Commits the use of a token.
fn use_token(state: &mut State, at: Time, admission: &Admission) -> Verdict {
    let (id, command) = (Some(admission.id), admission.command.clone().unwrap());
    let by = Actor::Replica(name("m1"));
    apply_as(state, at, Request { by, id, command })
}

fn apply_as(state: &mut State, at: Time, request: Request) -> Verdict {
    let entry = Entry { now: at, requests: vec![request] };
    state.apply(&entry, &mut Vec::new()).remove(0)
}

/// A cell with a user `ann` and her token `ann-1` with secret `s`, valid for an hour.
fn state_with_ann(at: Time) -> State {
    let mut state = State::default();
    let hash = SecretHash(Secret::new("s".into()).hash());
    for command in [
        Command::AddUser { name: name("ann") },
        Command::AddToken {
            id: name("ann-1"),
            kind: TokenKind::UserToken { user: name("ann") },
            secret_hash: hash,
            valid_for: Span::seconds(3600),
            parent: None,
        },
    ] {
        assert_eq!(apply(&mut state, at, Actor::Operator, command), Ok(Done::Applied));
    }
    state
}

struct TestAuthenticator {
    cell: Name,
    state: State,
    rejected: Mutex<Vec<String>>,
}

impl Authenticator for TestAuthenticator {
    fn authenticate(
        &self,
        connection: &ConnInfo,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated> {
        let holder = connection.holder.as_ref();
        let open = Some(&OPEN).filter(|_| connection.dev);
        let evidence = PresentedCredentials { holder, authorization, dev_token: open };
        authenticate(evidence, &self.cell, &self.state, now())
    }

    fn record_rejected(&self, _: &ConnInfo, method: &str, path: &str, why: &str) {
        self.rejected.lock().unwrap().push(format!("{method} {path} {why}"));
    }
}

/// A listener that answers `/who` with the caller.
struct Server {
    address: SocketAddr,
    authenticator: Arc<TestAuthenticator>,
    resolver: Option<Arc<CertificateResolver>>,
    /// Holders rejected only because of the dates of their certificate.
    out_of_date: Arc<Mutex<Vec<CertificateHolder>>>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(
        authority: Option<(&Authority, &Credentials)>,
        limits: ListenerLimits,
    ) -> Server {
        let any = "127.0.0.1:0".parse().unwrap();
        let out_of_date: Arc<Mutex<Vec<CertificateHolder>>> = Arc::default();
        let resolver = authority.map(|(_, credentials)| {
            CertificateResolver::new(&credentials.certificate, &credentials.key).unwrap()
        });
        let listener = match authority.zip(resolver.clone()) {
            None => Listener::plain(any).await.unwrap(),
            Some(((authority, _), resolver)) => {
                let reports = out_of_date.clone();
                let hook =
                    move |holder: &CertificateHolder| reports.lock().unwrap().push(holder.clone());
                let hook = OutOfDateHook::new(hook);
                let config =
                    tls::server_config(authority.certificate_pem(), resolver, hook).unwrap();
                Listener::tls(any, Arc::new(config)).await.unwrap()
            }
        };
        let router = Router::new()
            .route("/who", get(async |Extension(who): Extension<Caller>| format!("{who:?}")))
            .route("/healthz", get(async || "ok"));
        let gate = Arc::new(TestAuthenticator {
            cell: name("aa"),
            state: state_with_ann(now()),
            rejected: Mutex::default(),
        });
        let address = listener.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = gate.clone();
        let task = tokio::spawn(listener.serve(router, serving, limits, async {
            drop(stopped.await);
        }));
        Server { address, authenticator: gate, resolver, out_of_date, stop: Some(stop), task }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.task.await.unwrap();
    }
}

/// One request over an open stream: status and body.
async fn ask<S>(stream: S, path: &str, token: Option<&str>) -> Result<(u16, String), String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let text = |error: hyper::Error| format!("{error:?}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    let driver = tokio::spawn(connection);
    let mut request = hyper::Request::get(path).header("host", "localhost");
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.map_err(text)?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(text)?.to_bytes();
    driver.abort();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

async fn ask_tls(
    server: &Server,
    trust: &Trust,
    credentials: Option<&Credentials>,
    token: Option<&str>,
) -> Result<(u16, String), String> {
    let resolver =
        credentials.map(|own| CertificateResolver::new(&own.certificate, &own.key).unwrap());
    let config = tls::client_config(trust, resolver).map_err(|e| e.to_string())?;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let host = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(host, stream).await.map_err(|e| format!("{e:?}"))?;
    ask(stream, "/who", token).await
}

fn cell() -> (Authority, Credentials) {
    let authority = Authority::create(&name("aa"), now()).unwrap();
    let master = Part::Master(name("m1"));
    let credentials =
        authority.issue_credentials(&master, &loopback(), now(), CERTIFICATE_LIFETIME).unwrap();
    (authority, credentials)
}

#[tokio::test]
async fn certificates_and_tokens_say_who_asks() {
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    for (part, expected) in [
        (Part::Agent(name("n7")), "Agent(\"n7\")"),
        (Part::Master(name("m2")), "Replica(\"m2\")"),
        (Part::Scheduler(name("s1")), "Scheduler(\"s1\")"),
        (Part::User(name("ann")), "User(\"ann\")"),
    ] {
        let credentials_of_part =
            authority.issue_credentials(&part, &[], now(), CERTIFICATE_LIFETIME).unwrap();
        let answer = ask_tls(&server, &trust, Some(&credentials_of_part), None).await.unwrap();
        assert_eq!(answer, (200, expected.to_owned()));
    }
    let by_token = ask_tls(&server, &trust, None, Some("Bearer ann-1.s")).await.unwrap();
    assert_eq!(by_token, (200, "User(\"ann\")".to_owned()));
    let pinned = Trust::Fingerprint(authority.fingerprint());
    assert_eq!(ask_tls(&server, &pinned, None, Some("Bearer ann-1.s")).await.unwrap().0, 200);
    assert!(server.authenticator.rejected.lock().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn whoever_shows_nothing_good_is_refused() {
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let agent = Part::Agent(name("n7"));
    let good = authority.issue_credentials(&agent, &[], now(), CERTIFICATE_LIFETIME).unwrap();
    let unknown_user = authority
        .issue_credentials(&Part::User(name("bob")), &[], now(), CERTIFICATE_LIFETIME)
        .unwrap();
    for (credentials, token, code) in [
        (None, None, "no-identity"),
        (None, Some("Bearer ann-1.wrong"), "token-not-accepted"),
        (None, Some("Bearer nobody.s"), "token-not-accepted"),
        (None, Some("Basic ann-1.s"), "malformed-authorization"),
        (Some(&good), Some("Bearer ann-1.s"), "two-identities"),
        (Some(&unknown_user), None, "unknown-user"),
    ] {
        let (status, body) = ask_tls(&server, &trust, credentials, token).await.unwrap();
        assert_eq!(status, 401, "{code}: {body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&body["code"], &body["details"]["reason"]),
            (&"unauthenticated".into(), &code.into())
        );
        let rejected = server.authenticator.rejected.lock().unwrap().pop();
        assert_eq!(rejected, Some(format!("GET /who {code}")));
    }
    server.stop().await;
}

#[tokio::test]
async fn foreign_and_expired_certificates_end_the_handshake() {
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let agent = Part::Agent(name("n7"));
    let other = Authority::create(&name("aa"), now()).unwrap();
    let foreign = other.issue_credentials(&agent, &[], now(), CERTIFICATE_LIFETIME).unwrap();
    let long_ago = Time(now().0 - 3 * CERTIFICATE_LIFETIME.0);
    let expired = authority.issue_credentials(&agent, &[], long_ago, CERTIFICATE_LIFETIME).unwrap();
    let not_yet = Time(now().0 + CERTIFICATE_LIFETIME.0);
    let early = authority.issue_credentials(&agent, &[], not_yet, CERTIFICATE_LIFETIME).unwrap();
    for credentials in [&foreign, &expired, &early] {
        let answer = ask_tls(&server, &trust, Some(credentials), None).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    // The hook is called for parts of this cell with bad dates, and not for foreign certificates.
    let heard = std::mem::take(&mut *server.out_of_date.lock().unwrap());
    let holder = |credentials: &Credentials| credentials.holder().unwrap();
    assert_eq!(heard, [holder(&expired), holder(&early)]);
    let book = RejectedPolls::default();
    for (holder, words) in heard.iter().zip(["has expired", "is not valid yet"]) {
        book.note_expired_certificate(holder, now());
        let alarm = book.local().remove(0);
        assert!(alarm.machine == name("n7") && alarm.reason.contains(words), "{alarm:?}");
    }
    for wrong in
        [Trust::Authority(other.certificate_pem().into()), Trust::Fingerprint(other.fingerprint())]
    {
        let answer = ask_tls(&server, &wrong, None, Some("Bearer ann-1.s")).await;
        let error = answer.unwrap_err();
        assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    }
    server.stop().await;
}

/// Signed by a clock that is ahead or behind, or verified by one: up to an hour is tolerated.
#[tokio::test]
async fn clocks_that_differ_by_an_hour_let_each_other_in() {
    const MINUTE: i64 = 60_000;
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let agent = Part::Agent(name("n7"));
    let day = 24 * 60;
    for (ahead, fine) in [
        (60, true),
        (-60, true),
        (120 + 50, true),
        (120 + 70, false),
        (-day - 50, true),
        (-day - 70, false),
    ] {
        let at = Time(now().0.saturating_add_signed(ahead * MINUTE));
        let credentials =
            authority.issue_credentials(&agent, &[], at, CERTIFICATE_LIFETIME).unwrap();
        let answer = ask_tls(&server, &trust, Some(&credentials), None).await;
        assert_eq!(answer.is_ok(), fine, "{ahead} min: {answer:?}");
    }
    server.stop().await;
}

/// A replica that started with its clock a day ahead: its certificate is for tomorrow.
#[tokio::test]
async fn a_master_whose_clock_was_ahead_signs_again_when_it_is_right() {
    let folder = TempFolder::new();
    let (authority, _) = cell();
    let files = IdentityFiles::in_data_dir(&folder.0);
    files.create().unwrap();
    files.save_authority(authority.certificate_pem(), authority.key_pem()).unwrap();
    let (at, day) = (now(), Span::seconds(24 * 3600));
    let start = |at: Time| {
        ReplicaCredentials::load(IdentityFiles::in_data_dir(&folder.0), &name("m1"), loopback(), at)
            .unwrap()
    };
    let mut own = start(at.plus(day));
    assert!(!own.is_renewal_due(at.plus(day), Time::ZERO), "nobody knows better yet");
    assert!(own.is_renewal_due(at, Time::ZERO), "the clock was set right");
    assert!(own.is_renewal_due(at.plus(day), at), "the log knows better");
    own.renew(IssueTime::from_clocks(at.plus(day), at).unwrap()).unwrap();
    for wall in [at, at.plus(day)] {
        assert!(!own.is_renewal_due(wall, at), "good by both");
    }
    let saved = files.load_credentials().unwrap().unwrap();
    let server = Server::start(Some((&authority, &saved)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    assert_eq!(ask_tls(&server, &trust, None, Some("Bearer ann-1.s")).await.unwrap().0, 200);
    server.stop().await;
    assert!(
        IssueTime::from_clocks(at.plus(Span(5 * day.0)), at).is_err(),
        "who knows which is right"
    );
}

/// Agents are servers too, and their certificates say so; but they name no host, whatever was
/// requested.
#[tokio::test]
async fn only_a_master_can_be_taken_for_a_server() {
    let (authority, _) = cell();
    let agent = Part::Agent(name("n7"));
    let credentials =
        authority.issue_credentials(&agent, &loopback(), now(), CERTIFICATE_LIFETIME).unwrap();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    for trust in [
        Trust::Authority(authority.certificate_pem().into()),
        Trust::Fingerprint(authority.fingerprint()),
    ] {
        let error = ask_tls(&server, &trust, None, None).await.unwrap_err();
        assert!(error.contains("NotValidForName"), "{error}");
    }
    server.stop().await;
    let credentials = authority.issue_credentials(
        &Part::User(name("ann")),
        &loopback(),
        now(),
        CERTIFICATE_LIFETIME,
    );
    let server =
        Server::start(Some((&authority, &credentials.unwrap())), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let error = ask_tls(&server, &trust, None, None).await.unwrap_err();
    assert!(error.contains("Purpose") || error.contains("NotValidForName"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let (authority, good) = cell();
    let long_ago = Time(now().0 - 3 * CERTIFICATE_LIFETIME.0);
    let master = Part::Master(name("m1"));
    let expired =
        authority.issue_credentials(&master, &loopback(), long_ago, CERTIFICATE_LIFETIME).unwrap();
    let server = Server::start(Some((&authority, &expired)), ListenerLimits::default()).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let error = ask_tls(&server, &trust, None, Some("Bearer ann-1.s")).await.unwrap_err();
    assert!(error.contains("Expired"), "{error}");
    let resolver = server.resolver.as_ref().unwrap();
    assert!(resolver.replace(&good.certificate, &expired.key).is_err(), "key of another");
    resolver.replace(&good.certificate, &good.key).unwrap();
    assert_eq!(ask_tls(&server, &trust, None, Some("Bearer ann-1.s")).await.unwrap().0, 200);
    server.stop().await;
}

#[test]
fn renewal_is_due_at_two_thirds_of_life() {
    let identity = Identity { cell: name("aa"), part: Part::Agent(name("n7")) };
    let key = KeyFingerprint([0; 16]);
    let until = NOT_BEFORE_BACKDATE.0 + 4000;
    let holder = CertificateHolder { identity, key, from: Time(1000), until: Time(until) };
    assert_eq!(holder.renew_at(), Time(until - 1000));
}

#[tokio::test]
async fn plain_connections_exist_only_on_loopback() {
    let server = Server::start(None, ListenerLimits::default()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    // Anyone on this machine reaches it, and still has to present the cell's token.
    let (status, answer) = ask(stream, "/who", None).await.unwrap();
    assert_eq!(status, 401, "{answer}");
    server.stop().await;
    for address in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"] {
        let Err(error) = Listener::plain(address.parse().unwrap()).await else {
            panic!("bound {address}");
        };
        assert!(error.to_string().contains("loopback"), "{error}");
    }
}

#[tokio::test]
async fn health_needs_no_identity() {
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), ListenerLimits::default()).await;
    let config =
        tls::client_config(&Trust::Authority(authority.certificate_pem().into()), None).unwrap();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let host = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await.unwrap();
    assert_eq!(ask(stream, "/healthz", None).await.unwrap(), (200, "ok".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn one_identity_cannot_take_all_connections() {
    let (authority, credentials) = cell();
    let limits = ListenerLimits { per_identity: 1, ..ListenerLimits::default() };
    let server = Server::start(Some((&authority, &credentials)), limits).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    let greedy = Part::Agent(name("n7"));
    let greedy = authority.issue_credentials(&greedy, &[], now(), CERTIFICATE_LIFETIME).unwrap();
    let resolver = CertificateResolver::new(&greedy.certificate, &greedy.key).unwrap();
    let config = Arc::new(tls::client_config(&trust, Some(resolver)).unwrap());
    let host = || rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let first = TlsConnector::from(config.clone()).connect(host(), stream).await.unwrap();
    // The first keeps its connection: it holds a permit once it was answered.
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(first)).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = hyper::Request::get("/who").header("host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    assert!(ask_tls(&server, &trust, Some(&greedy), None).await.is_err());
    let modest = authority
        .issue_credentials(&Part::Agent(name("n8")), &[], now(), CERTIFICATE_LIFETIME)
        .unwrap();
    assert_eq!(ask_tls(&server, &trust, Some(&modest), None).await.unwrap().0, 200);
    driver.abort();
    server.stop().await;
}

/// A listener with a small limit of unauthenticated connections, and how it is reached.
async fn start_with_limits(limits: ListenerLimits) -> (Server, Trust, Authority) {
    let (authority, credentials) = cell();
    let server = Server::start(Some((&authority, &credentials)), limits).await;
    let trust = Trust::Authority(authority.certificate_pem().into());
    (server, trust, authority)
}

/// Whether the other side has closed it.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    // Closed in order or reset: both are closed.
    matches!(tokio::io::AsyncReadExt::read(stream, &mut byte).await, Ok(0) | Err(_))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_strangers_keeps_nobody_out() {
    let limits = ListenerLimits {
        unauthenticated: 8,
        handshake: Duration::from_secs(600),
        ..ListenerLimits::default()
    };
    let (server, trust, authority) = start_with_limits(limits).await;
    let mut held = Vec::new();
    for _ in 0..500 {
        held.push(TcpStream::connect(server.address).await.unwrap());
    }
    let agent = authority
        .issue_credentials(&Part::Agent(name("n7")), &[], now(), CERTIFICATE_LIFETIME)
        .unwrap();
    for _ in 0..4 {
        assert_eq!(ask_tls(&server, &trust, Some(&agent), None).await.unwrap().0, 200);
        let user = ask_tls(&server, &trust, None, Some("Bearer ann-1.s")).await.unwrap();
        assert_eq!(user.0, 200);
    }
    // All but the last few were closed, long before any deadline.
    for stream in &mut held[..400] {
        let closed = tokio::time::timeout(Duration::from_secs(60), is_closed(stream)).await;
        assert_eq!(closed, Ok(true));
    }
    drop(held);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_say_who_it_is_in_time_is_let_go() {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(600));
    let (server, ..) =
        start_with_limits(ListenerLimits { handshake: short, ..ListenerLimits::default() }).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let minute = Duration::from_secs(60);
    assert_eq!(tokio::time::timeout(minute, is_closed(&mut silent)).await, Ok(true));
    server.stop().await;
    let limits =
        ListenerLimits { authentication: short, handshake: long, ..ListenerLimits::default() };
    let (server, trust, authority) = start_with_limits(limits).await;
    let host = || rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let overstays = async || {
        let nobody = Arc::new(tls::client_config(&trust, None).unwrap());
        let stream = TcpStream::connect(server.address).await.unwrap();
        let mut shaken = TlsConnector::from(nobody).connect(host(), stream).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::io::AsyncReadExt::read_to_end(&mut shaken, &mut rest);
        assert!(tokio::time::timeout(minute, ended).await.is_ok(), "no request within the time");
    };
    overstays().await;
    // A connection with a certificate stays open: agents poll when they like.
    let agent = authority
        .issue_credentials(&Part::Agent(name("n7")), &[], now(), CERTIFICATE_LIFETIME)
        .unwrap();
    let resolver = CertificateResolver::new(&agent.certificate, &agent.key).unwrap();
    let config = Arc::new(tls::client_config(&trust, Some(resolver)).unwrap());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let known = TlsConnector::from(config).connect(host(), stream).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        TokioIo::new(known),
    )
    .await
    .unwrap();
    let driver = tokio::spawn(connection);
    // Longer than a later unauthenticated connection may stay.
    overstays().await;
    let request = hyper::Request::get("https://localhost/who");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 200);
    driver.abort();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_refused_time_and_again_is_closed() {
    let server =
        Server::start(None, ListenerLimits { rejected_requests: 3, ..ListenerLimits::default() })
            .await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut rejected = 0;
    while sender.ready().await.is_ok() {
        let request = hyper::Request::get("/who").header("host", "evil.example");
        let pending_response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap());
        let Ok(response) = pending_response.await else { break };
        assert_eq!(response.status().as_u16(), 403);
        rejected += 1;
        assert!(rejected < 100, "never closed");
    }
    assert!(rejected >= 3, "{rejected}");
    assert!(driver.await.is_ok());
    server.stop().await;
}

/// A cell of one replica in this process, with a join token for the agent of `n7`.
async fn running_cell(folder: &TempFolder) -> Master {
    struct Nobody;
    impl Peers for Nobody {
        fn call(
            &self,
            _: u64,
            peer: Peer,
            _: PeerCall,
        ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
            Box::pin(async move { Err(CallError::Unreachable(peer.address)) })
        }
    }
    let world =
        Environment { disk: folder.disk(), peers: Arc::new(Nobody), clock: Arc::new(SystemClock) };
    let store = cellwright_store::StoreConfig { cell: [7; 16], ..Default::default() };
    let master = Master::start(1, MasterConfig::default(), store, world).await.unwrap();
    let handle = master.handle();
    let me = Peer { name: "m1".into(), address: "127.0.0.1:1".into() };
    handle.replica().bootstrap([(1, me)].into()).await.unwrap();
    let mut status = handle.replica().watch();
    status.wait_for(|status| status.role == cellwright_store::Role::Leader).await.unwrap();
    let command = Command::AddToken {
        id: name("join-1"),
        kind: TokenKind::JoinAgent { machine: name("n7") },
        secret_hash: SecretHash(Secret::new("j".into()).hash()),
        valid_for: Span::seconds(900),
        parent: None,
    };
    // Right after its election a leader may not be ready yet.
    let operator = Caller::Operator;
    let mut verdict = None;
    for _ in 0..100 {
        match handle.submit(&operator, None, command.clone()).await {
            Ok(answer) => {
                verdict = Some(answer.verdict);
                break;
            }
            Err(_) => handle.replica().watch().changed().await.unwrap(),
        }
    }
    assert_eq!(verdict, Some(Ok(Done::Applied)));
    master
}

/// One POST over TLS to a cell known only by its fingerprint.
async fn send(
    address: SocketAddr,
    trust: &Trust,
    credentials: Option<&Credentials>,
    path: &str,
    body: Vec<u8>,
) -> (u16, Bytes) {
    let resolver =
        credentials.map(|own| CertificateResolver::new(&own.certificate, &own.key).unwrap());
    let config = tls::client_config(trust, resolver).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let host = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = hyper::Request::post(path).header("host", "localhost");
    let request = request.header("content-type", "application/postcard");
    let mut request = request.body(http_body_util::Full::new(Bytes::from(body))).unwrap();
    Spoken { version: wire::NEWEST, range: WireRange::own() }.write(request.headers_mut());
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    driver.abort();
    (status, body)
}

/// The message of a joiner with this key.
fn join_message(token: &JoinToken, key: &NewKey) -> Vec<u8> {
    let signing_request = key.signing_request.clone();
    let request = JoinRequest { token: token.text(), signing_request };
    postcard::to_stdvec(&request).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_joins_a_running_cell_once_and_renews() {
    let folder = TempFolder::new();
    let master = running_cell(&folder).await;
    let (authority, credentials) = cell();
    let authority = Arc::new(authority);
    let resolver = CertificateResolver::new(&credentials.certificate, &credentials.key).unwrap();
    let config =
        tls::server_config(authority.certificate_pem(), resolver, OutOfDateHook::default())
            .unwrap();
    let listener = Listener::tls("127.0.0.1:0".parse().unwrap(), Arc::new(config)).await.unwrap();
    let address = listener.address().unwrap();
    let handle = master.handle().clone();
    let keep =
        RetentionLimits { segment_bytes: 1 << 20, total_bytes: 1 << 20, age: CERTIFICATE_LIFETIME };
    let audit_folder = TempFolder::new();
    let audit = Arc::new(AuditLog::open(audit_folder.disk(), keep).unwrap());
    let clock: Arc<dyn cellwright_master::clock::Clock> = Arc::new(SystemClock);
    let gate = Arc::new(MasterAuthenticator {
        cell: name("aa"),
        handle: handle.clone(),
        clock: clock.clone(),
        audit: audit.clone(),
        rejections: RejectionAuditLimiter::default(),
        dev_token: None,
    });
    let (authority_too, task_life) = (authority.clone(), Span::seconds(3600));
    let router = EnrollmentApi { handle, authority: authority_too, clock, task_life }.router();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(listener.serve(router, gate, ListenerLimits::default(), async {
        drop(stopped.await);
    }));
    let pinned = Trust::Fingerprint(authority.fingerprint());
    let token = JoinToken::parse(
        request(&authority, JoinKind::Agent, "n7", &Part::Agent(name("n7"))).token.expose(),
    )
    .unwrap();
    let key = token.generate_key(&[]).unwrap();
    let joining = join_message(&token, &key);
    let (status, body) = send(address, &pinned, None, JOIN_PATH, joining.clone()).await;
    assert_eq!(status, 200, "{body:?}");
    let answer = expect_certified(Ok(postcard::from_bytes(&body).unwrap()));
    let credentials = Credentials { certificate: answer.certificate, key: key.key };
    let identity = credentials.holder().unwrap().identity;
    assert_eq!(identity.to_string(), "spiffe://aa/agent/n7");
    // The answer may have been lost: a retry with the same key gets it again.
    let (status, body) = send(address, &pinned, None, JOIN_PATH, joining).await;
    assert_eq!(status, 200, "{body:?}");
    let again = expect_certified(Ok(postcard::from_bytes(&body).unwrap()));
    assert_eq!(CertificateHolder::from_pem(&again.certificate).unwrap().identity, identity);
    let remembered = || master.handle().read().state.windows().len();
    let before = remembered();
    let thief = join_message(&token, &token.generate_key(&[]).unwrap());
    let (status, body) = send(address, &pinned, None, JOIN_PATH, thief).await;
    assert!(status == 403 && String::from_utf8_lossy(&body).contains("used before"), "{body:?}");
    assert_eq!(remembered(), before, "a used token writes nothing");
    renewals_are_refused(address, &pinned, &credentials, &audit).await;
    drop(stop);
    serving.await.unwrap();
    master.stop().await;
}

/// For an agent whose machine the cell does not know yet, and for a request without a certificate.
async fn renewals_are_refused(
    address: SocketAddr,
    pinned: &Trust,
    credentials: &Credentials,
    audit: &AuditLog,
) {
    let identity = credentials.holder().unwrap().identity;
    let next = NewKey::generate(&identity, &[]).unwrap();
    let renewal = RenewRequest { signing_request: next.signing_request.clone() };
    let renewal = postcard::to_stdvec(&renewal).unwrap();
    let (status, body) =
        send(address, pinned, Some(credentials), RENEW_PATH, renewal.clone()).await;
    assert_eq!(status, 403, "{body:?}");
    let (status, _) = send(address, pinned, None, RENEW_PATH, renewal).await;
    assert_eq!(status, 401);
    let audit_lines = audit.read_after(0, u32::MAX, 10).unwrap().items;
    assert_eq!(audit_lines.len(), 1);
    assert_eq!(audit_lines[0].line.verdict, "no-identity");
    for _ in 0..3 * MAX_LINES_PER_SOURCE {
        assert_eq!(send(address, pinned, None, RENEW_PATH, vec![]).await.0, 401);
    }
    let lines = audit.read_after(0, u32::MAX, 1000).unwrap().items.len() as u64;
    assert_eq!(lines, MAX_LINES_PER_SOURCE, "the rest is counted");
}

#[test]
fn a_certificate_of_another_cell_or_past_its_time_is_nobody() {
    let state = state_with_ann(now());
    let holder = |cell: &str, until: Time| CertificateHolder {
        key: KeyFingerprint([0; 16]),
        identity: Identity { cell: name(cell), part: Part::Agent(name("n7")) },
        from: Time::ZERO,
        until,
    };
    let check = |holder: &CertificateHolder, expected: Result<Caller, Unauthenticated>| {
        let evidence =
            PresentedCredentials { holder: Some(holder), authorization: None, dev_token: None };
        assert_eq!(authenticate(evidence, &name("aa"), &state, now()), expected);
    };
    check(&holder("aa", Time::NEVER), Ok(Caller::Agent(name("n7"))));
    let other = Unauthenticated::OtherCell { found: name("bb"), cell: name("aa") };
    check(&holder("bb", Time::NEVER), Err(other));
    check(&holder("aa", now()), Ok(Caller::Agent(name("n7"))));
    let over = Time(now().0 - CLOCK_SKEW_TOLERANCE.0 - 1);
    check(&holder("aa", over), Err(Unauthenticated::CertificateExpired));
}

#[test]
fn an_expired_token_and_a_join_token_open_no_session() {
    let at = now();
    let mut state = state_with_ann(at);
    join_token(&mut state, at, JoinKind::Agent, "n7");
    let ask = |header: &str, at: Time| {
        let authorization = Some(header.as_bytes());
        let evidence = PresentedCredentials { holder: None, authorization, dev_token: Some(&OPEN) };
        authenticate(evidence, &name("aa"), &state, at)
    };
    assert_eq!(ask("bearer ann-1.s", at), Ok(Caller::User(name("ann"))));
    let late = at.plus(Span::seconds(3600));
    assert_eq!(ask("Bearer ann-1.s", late), Err(Unauthenticated::TokenNotAccepted));
    assert_eq!(ask("Bearer join-1.j", at), Err(Unauthenticated::TokenNotAccepted));
    for wrong in ["Bearer", "Bearer x", "Bearer ann-1.", "Bearer A.s", "ann-1.s", "\u{e9} a.b"] {
        assert_eq!(ask(wrong, at), Err(Unauthenticated::Malformed), "{wrong}");
    }
}

/// The hash of a token that no caller has.
const OPEN: SecretHash = SecretHash([9; 32]);

/// The source address of joiners in these tests.
const FROM: &str = "10.0.0.2";

fn expect_certified(reply: Result<JoinReply, JoinError>) -> JoinAnswer {
    match reply.unwrap() {
        JoinReply::Certified(answer) => answer,
        JoinReply::Waiting(_) => panic!("it is to wait"),
    }
}

/// Puts a join token `join-1` with secret `j` into the state, bound to the name `bound`.
fn join_token(state: &mut State, at: Time, kind: JoinKind, bound: &str) {
    let kind = match kind {
        JoinKind::Agent => TokenKind::JoinAgent { machine: name(bound) },
        JoinKind::Replica => TokenKind::JoinReplica { name: name(bound) },
        JoinKind::Scheduler => TokenKind::JoinScheduler { name: name(bound) },
    };
    let command = Command::AddToken {
        id: name("join-1"),
        kind,
        secret_hash: SecretHash(Secret::new("j".into()).hash()),
        valid_for: Span::seconds(900),
        parent: None,
    };
    assert_eq!(apply(state, at, Actor::Operator, command), Ok(Done::Applied));
}

fn request(
    authority: &Authority,
    kind: JoinKind,
    claimed: &str,
    requested_part: &Part,
) -> JoinRequest {
    let token = JoinToken {
        kind,
        name: name(claimed),
        id: "join-1".into(),
        secret: Secret::new("j".into()),
        fingerprint: authority.fingerprint(),
    };
    let identity = Identity { cell: authority.cell().clone(), part: requested_part.clone() };
    let key = NewKey::generate(&identity, &loopback()).unwrap();
    JoinRequest { token: token.text(), signing_request: key.signing_request }
}

#[test]
fn a_join_token_is_good_for_one_certificate() {
    let (authority, _) = cell();
    let at = now();
    let mut state = State::default();
    join_token(&mut state, at, JoinKind::Agent, "n7");
    let agent = Part::Agent(name("n7"));
    let joining = request(&authority, JoinKind::Agent, "n7", &agent);
    let first = Admission::check(&joining, FROM, &state, at).unwrap();
    // A request with another key, checked before the first is committed: only the log decides
    // between them.
    let thief = request(&authority, JoinKind::Agent, "n7", &agent);
    let second = Admission::check(&thief, FROM, &state, at).unwrap();
    let used = use_token(&mut state, at, &first);
    let answer = expect_certified(first.answer(Some(used), &authority, at));
    assert_eq!(CertificateHolder::from_pem(&answer.certificate).unwrap().identity.part, agent);
    let verdict = use_token(&mut state, at, &second);
    let rejected = second.answer(Some(verdict), &authority, at);
    assert!(matches!(rejected, Err(JoinError::InvalidToken(InvalidTokenReason::Used))));
    // A joiner without an answer retries; the token is used once all the same.
    let again = Admission::check(&joining, FROM, &state, at).unwrap();
    let before = state.tokens().len();
    let used = use_token(&mut state, at, &again);
    assert_eq!((used.clone(), state.tokens().len()), (Ok(Done::Applied), before));
    let answer = expect_certified(again.answer(Some(used), &authority, at));
    assert_eq!(CertificateHolder::from_pem(&answer.certificate).unwrap().identity.part, agent);
    // Once the use is committed, no other request reaches the log, not even one that was rejected
    // there.
    let third = request(&authority, JoinKind::Agent, "n7", &agent);
    for other in [&thief, &third] {
        let rejected = Admission::check(other, FROM, &state, at);
        assert!(matches!(rejected, Err(JoinError::InvalidToken(InvalidTokenReason::Used))));
    }
    let late = at.plus(Span::seconds(900));
    let expired = Admission::check(&joining, FROM, &state, late);
    assert!(matches!(expired, Err(JoinError::InvalidToken(InvalidTokenReason::Expired))));
}

/// A replica's key, its request to join as m2, and the state in which its token was used.
fn waiting_replica(authority: &Authority, at: Time) -> (NewKey, JoinRequest, State) {
    let mut state = State::default();
    join_token(&mut state, at, JoinKind::Replica, "m2");
    let token = JoinToken {
        kind: JoinKind::Replica,
        name: name("m2"),
        id: "join-1".into(),
        secret: Secret::new("j".into()),
        fingerprint: authority.fingerprint(),
    };
    let key = token.generate_key(&loopback()).unwrap();
    let signing_request = key.signing_request.clone();
    let joining = JoinRequest { token: token.text(), signing_request };
    let first = Admission::check(&joining, FROM, &state, at).unwrap();
    let used = use_token(&mut state, at, &first);
    let answer = first.answer(Some(used), authority, at).unwrap();
    let own = own_key_fingerprint(&key.key).unwrap();
    assert!(matches!(answer, JoinReply::Waiting(PendingConfirmation { key, .. }) if key == own));
    (key, joining, state)
}

fn confirm(state: &mut State, at: Time, key: KeyFingerprint) {
    let command = Command::ConfirmReplica { name: name("m2"), key };
    assert_eq!(apply(state, at, Actor::Operator, command), Ok(Done::Applied));
}

#[test]
fn nothing_of_the_authority_goes_to_a_replica_that_nobody_confirmed() {
    let (authority, _) = cell();
    let at = now();
    let (key, joining, mut state) = waiting_replica(&authority, at);
    let entries = state.tokens().len();
    for _ in 0..3 {
        let again = Admission::check(&joining, FROM, &state, at).unwrap();
        assert!(again.command.is_none(), "who asks again writes nothing");
        let answer = again.answer(None, &authority, at).unwrap();
        assert!(matches!(answer, JoinReply::Waiting(_)));
    }
    assert_eq!(state.tokens().len(), entries);
    let thief = request(&authority, JoinKind::Replica, "m2", &Part::Master(name("m2")));
    let rejected = Admission::check(&thief, FROM, &state, at);
    assert!(matches!(rejected, Err(JoinError::InvalidToken(InvalidTokenReason::Used))));
    confirm(&mut state, at, own_key_fingerprint(&key.key).unwrap());
    let rejected = Admission::check(&thief, FROM, &state, at);
    assert!(
        matches!(rejected, Err(JoinError::InvalidToken(InvalidTokenReason::Used))),
        "nor with it confirmed"
    );
}

#[test]
fn the_authoritys_key_goes_to_who_has_the_confirmed_key_and_in_time() {
    let (authority, _) = cell();
    let at = now();
    let (key, joining, mut state) = waiting_replica(&authority, at);
    let own = own_key_fingerprint(&key.key).unwrap();
    // Certificates of the same name with the confirmed key, another key, and another name.
    let signed = |part: &Part, key: &NewKey| {
        let request = SigningRequest::parse(&key.signing_request).unwrap();
        let pem = authority.sign(&request, part, &[], at, CERTIFICATE_LIFETIME).unwrap();
        CertificateHolder::from_pem(&pem).unwrap()
    };
    let m2 = Part::Master(name("m2"));
    let holder = signed(&m2, &key);
    assert_eq!(holder.key, own);
    let given = |holder: &CertificateHolder, state: &State, at: Time| {
        authority_for(holder, &authority, state, at).map(|(whose, _)| whose)
    };
    let check_unconfirmed = |given| assert!(matches!(given, Err(JoinError::Unconfirmed { .. })));
    check_unconfirmed(given(&holder, &state, at));
    confirm(&mut state, at, own);
    assert_eq!(given(&holder, &state, at).unwrap(), format!("m2 with key {own}"));
    let other = NewKey::generate(&Identity { cell: name("aa"), part: m2.clone() }, &[]).unwrap();
    check_unconfirmed(given(&signed(&m2, &other), &state, at));
    check_unconfirmed(given(&signed(&Part::Master(name("m3")), &key), &state, at));
    check_unconfirmed(given(&signed(&Part::Agent(name("m2")), &key), &state, at));
    let late = at.plus(Span::seconds(900));
    check_unconfirmed(given(&holder, &state, late));
    let again = Admission::check(&joining, FROM, &state, at).unwrap();
    let answer = expect_certified(again.answer(None, &authority, at));
    assert_eq!(CertificateHolder::from_pem(&answer.certificate).unwrap().key, own);
}

#[test]
fn a_join_token_is_good_for_its_own_name_only() {
    let (authority, _) = cell();
    let at = now();
    let mut state = State::default();
    join_token(&mut state, at, JoinKind::Agent, "n7");
    let check = |claimed: &str, kind: JoinKind, requested: Part| {
        let joining = request(&authority, kind, claimed, &requested);
        match Admission::check(&joining, FROM, &state, at) {
            Err(JoinError::NameMismatch { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{requested} accepted with a token for agent/n7"),
        }
    };
    check("n7", JoinKind::Agent, Part::Agent(name("n8")));
    check("n8", JoinKind::Agent, Part::Agent(name("n8")));
    check("n7", JoinKind::Replica, Part::Master(name("n7")));
    check("n7", JoinKind::Agent, Part::User(name("n7")));
    let good = request(&authority, JoinKind::Agent, "n7", &Part::Agent(name("n7")));
    let late = at.plus(Span::seconds(900));
    let expired = Admission::check(&good, FROM, &state, late);
    assert!(matches!(expired, Err(JoinError::InvalidToken(InvalidTokenReason::Expired))));
}

#[test]
fn a_scheduler_joins_once_under_its_name() {
    let (authority, _) = cell();
    let at = now();
    let mut state = State::default();
    join_token(&mut state, at, JoinKind::Scheduler, "s1");
    let scheduler = Part::Scheduler(name("s1"));
    for (claimed, requested) in [("s1", "s2"), ("s2", "s2"), ("s2", "s1")] {
        let requested = Part::Scheduler(name(requested));
        let other = request(&authority, JoinKind::Scheduler, claimed, &requested);
        let judged = Admission::check(&other, FROM, &state, at);
        assert!(matches!(judged, Err(JoinError::NameMismatch { .. })), "{claimed} {requested}");
    }
    let joining = request(&authority, JoinKind::Scheduler, "s1", &scheduler);
    let admission = Admission::check(&joining, FROM, &state, at).unwrap();
    let used = use_token(&mut state, at, &admission);
    let answer = expect_certified(admission.answer(Some(used), &authority, at));
    let holder = CertificateHolder::from_pem(&answer.certificate).unwrap();
    assert_eq!(holder.identity.part, scheduler);
    let another = request(&authority, JoinKind::Scheduler, "s1", &scheduler);
    let rejected = Admission::check(&another, FROM, &state, at);
    assert!(matches!(rejected, Err(JoinError::InvalidToken(InvalidTokenReason::Used))));
    let next = NewKey::generate(&holder.identity, &[]).unwrap();
    let renewed = renew(&next.signing_request, &holder, &authority, &state, at);
    assert_eq!(
        CertificateHolder::from_pem(&renewed.unwrap().certificate).unwrap().identity,
        holder.identity
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_does_not_outlive_the_certificate_it_was_opened_with() {
    let (authority, credentials) = cell();
    let resolver = CertificateResolver::new(&credentials.certificate, &credentials.key).unwrap();
    let config =
        tls::server_config(authority.certificate_pem(), resolver, OutOfDateHook::default())
            .unwrap();
    let listener = Listener::tls("127.0.0.1:0".parse().unwrap(), Arc::new(config)).await.unwrap();
    let address = listener.address().unwrap();
    // No other limit ends an idle connection.
    let limits =
        ListenerLimits { handshake: Duration::from_secs(3600), ..ListenerLimits::default() };
    let (cell, state, rejected) = (name("aa"), State::default(), Mutex::default());
    let gate = Arc::new(TestAuthenticator { cell, state, rejected });
    let serving = tokio::spawn(listener.serve(Router::new(), gate, limits, std::future::pending()));
    let agent = Part::Agent(name("n7"));
    let brief = authority.issue_credentials(&agent, &[], now(), Span::seconds(2)).unwrap();
    let resolver = CertificateResolver::new(&brief.certificate, &brief.key).unwrap();
    let trust = Trust::Authority(authority.certificate_pem().to_owned());
    let config = tls::client_config(&trust, Some(resolver)).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let host = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    assert!(ended.is_ok(), "the connection is still open");
    assert!(brief.holder().unwrap().until <= now(), "and was not closed too early");
    serving.abort();
}

#[test]
fn a_replica_gets_its_hosts_and_the_authority() {
    let (authority, _) = cell();
    let at = now();
    let (key, joining, mut state) = waiting_replica(&authority, at);
    confirm(&mut state, at, own_key_fingerprint(&key.key).unwrap());
    let admission = Admission::check(&joining, FROM, &state, at).unwrap();
    let answer = expect_certified(admission.answer(None, &authority, at));
    let holder = CertificateHolder::from_pem(&answer.certificate).unwrap();
    let (_, given) = authority_for(&holder, &authority, &state, at).unwrap();
    let key = given.authority_key;
    let second = Authority::from_pem(answer.authority, key).unwrap();
    assert_eq!(second.fingerprint(), authority.fingerprint());
    assert_eq!(second.cell(), &name("aa"));
    let der = tls::certificates("certificate", &answer.certificate).unwrap().remove(0);
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names.len(), 3, "identity, host name and address");
}

#[test]
fn renewal_is_for_the_holder_as_long_as_the_cell_knows_it() {
    let (authority, _) = cell();
    let at = now();
    let state = state_with_ann(at);
    let ann = Part::User(name("ann"));
    let credentials = authority.issue_credentials(&ann, &[], at, CERTIFICATE_LIFETIME).unwrap();
    let holder = credentials.holder().unwrap();
    let ask = |requested: &Part, state: &State, at: Time| {
        let identity = Identity { cell: name("aa"), part: requested.clone() };
        let key = NewKey::generate(&identity, &[]).unwrap();
        renew(&key.signing_request, &holder, &authority, state, at)
    };
    let later = holder.renew_at();
    let next = CertificateHolder::from_pem(&ask(&ann, &state, later).unwrap().certificate).unwrap();
    assert!(next.until > holder.until);
    let other = ask(&Part::User(name("bob")), &state, later);
    assert!(matches!(other, Err(JoinError::IdentityMismatch { .. })));
    assert!(matches!(ask(&ann, &State::default(), later), Err(JoinError::NotPartOfCell { .. })));
    let over = holder.until.plus(CLOCK_SKEW_TOLERANCE);
    assert!(matches!(ask(&ann, &state, over), Err(JoinError::Expired)));
}

#[test]
fn whoever_was_sent_away_is_nobody_and_renews_nothing() {
    let (authority, _) = cell();
    let at = now();
    let mut state = state_with_ann(at);
    for (part, kind) in [
        (Part::Scheduler(name("s1")), PartKind::Scheduler),
        (Part::Master(name("m2")), PartKind::Replica),
    ] {
        let holder = authority
            .issue_credentials(&part, &[], at, CERTIFICATE_LIFETIME)
            .unwrap()
            .holder()
            .unwrap();
        let ask = |state: &State| {
            let evidence = PresentedCredentials {
                holder: Some(&holder),
                authorization: None,
                dev_token: None,
            };
            let known = authenticate(evidence, &name("aa"), state, at);
            let key = NewKey::generate(&holder.identity, &[]).unwrap();
            let next = renew(&key.signing_request, &holder, &authority, state, at);
            (known, next.map(drop))
        };
        let (known, next) = ask(&state);
        assert!(known.is_ok() && next.is_ok(), "{part}");
        let revoke = Command::RevokePart { part: kind, name: part.name().clone() };
        assert_eq!(apply(&mut state, at, Actor::Operator, revoke), Ok(Done::Applied));
        let (known, next) = ask(&state);
        assert_eq!(known, Err(Unauthenticated::Revoked { part: part.clone() }));
        assert!(matches!(next, Err(JoinError::NotPartOfCell { .. })), "{part}");
    }
}

/// Records of revoked parts outlive every certificate issued before.
#[test]
fn revocations_outlive_certificates() {
    assert!(REVOCATION_RETENTION > CERTIFICATE_LIFETIME);
}

#[test]
fn a_signing_request_of_garbage_or_with_a_broken_signature_is_refused() {
    let identity = Identity { cell: name("aa"), part: Part::Agent(name("n7")) };
    let key = NewKey::generate(&identity, &[]).unwrap();
    assert!(SigningRequest::parse(&key.signing_request).is_ok());
    for wrong in
        ["", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"]
    {
        assert!(SigningRequest::parse(wrong).is_err());
    }
    let lines: Vec<&str> = key.signing_request.lines().collect();
    let mut damaged = lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
    let last = damaged.len() - 2;
    damaged[last] = damaged[last].chars().rev().collect();
    assert!(SigningRequest::parse(&damaged.join("\n")).is_err());
}

#[test]
fn keys_on_disk_are_private_or_refused() {
    let folder = std::env::temp_dir().join(format!("cellwright-keys-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let files = IdentityFiles::in_data_dir(&folder);
    files.create().unwrap();
    let (authority, credentials) = cell();
    assert!(!files.has_authority() && files.load_credentials().unwrap().is_none());
    files.save_authority(authority.certificate_pem(), authority.key_pem()).unwrap();
    files.save_credentials(&credentials).unwrap();
    assert_eq!(files.load_authority().unwrap().fingerprint(), authority.fingerprint());
    assert_eq!(files.load_credentials().unwrap().unwrap().certificate, credentials.certificate);
    let key = folder.join("identity/authority.key");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&key) & 0o777, 0o600);
    assert_eq!(mode(&folder.join("identity/node.key")) & 0o777, 0o600);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(files.load_authority(), Err(FilesError::Exposed { mode: 0o640, .. })));
    let other = authority
        .issue_credentials(&Part::Master(name("m1")), &[], now(), CERTIFICATE_LIFETIME)
        .unwrap();
    let mixed = Credentials { certificate: credentials.certificate.clone(), key: other.key };
    files.save_credentials(&mixed).unwrap();
    assert!(files.load_credentials().unwrap().is_none(), "a pair torn by a crash is made anew");
    std::fs::remove_dir_all(&folder).unwrap();
}
