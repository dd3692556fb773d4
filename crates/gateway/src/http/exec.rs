//! Sessions in tasks (commands, copies of files, connections to ports): authorised and audited
//! here; from there on this replica only relays bytes between the caller and the agent of the
//! task's machine. Backpressure holds: bytes that one side does not read are not read from the
//! other; the buffers are small and fixed.
//!
//! Any replica serves them. A follower first has its leader confirm that it is up to date, so it
//! enters no attempt that is over and admits nobody whose right is gone; and a session goes on when
//! the leader dies, because nothing of it passes through the leader.
//!
//! A session outlives its request, so its caller's authorisation is checked again at every change
//! of the cell: a token that is revoked, a capability that is taken away, a user that is removed,
//! all end it.

use super::call::Call;
use super::output::{Agent, agent_error};
use super::{Api, ApiResult, websocket};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cellwright_api::client::{SessionStream, encode_query};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::exec::{
    COPY_PATH, CopyDirection, CopyQuery, EXEC_PATH, EXEC_PROTOCOL, ExecQuery, FORWARD_PATH,
    ForwardQuery, Frame, TerminalSize, parse_command, relay_bytes,
};
use cellwright_api::routes::Operation;
use cellwright_cell::task::TaskState;
use cellwright_master::flow_control::Permit;
use cellwright_supervise::spawn_request;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

/// Timeout for an agent to begin a session.
const SESSION_START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a caller waits for an election to end; less than a client waits for an answer, which
/// then tries the next replica.
const ELECTION_PATIENCE: Duration = Duration::from_secs(5);
/// How long a session goes on while nobody can confirm that this replica knows of all changes. A
/// replica that was cut off learns of no right that is taken away.
const MAX_UNCONFIRMED: Duration = Duration::from_secs(30);
/// Timeout for closing the caller's stream.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for a page to receive the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The expiry of a token is not a change of the cell: it is checked at this interval.
const AUTH_CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Api {
    pub(super) async fn exec_task(&self, mut call: Call) -> ApiResult {
        let caller_stream = take_upgrade(&mut call)?;
        let session = self.begin_session(&call).await?;
        spawn_request("a session", self.clone().relay(call, caller_stream, session));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
        Ok(response)
    }

    /// The same for a page. Browsers do not tell pages why a connection was rejected, so a caller
    /// that may have sessions at all gets one, in which the rejection is the only frame.
    pub(super) async fn exec_task_in_page(&self, mut call: Call) -> ApiResult {
        let (caller_stream, response) = websocket::accept_upgrade(&mut call)?;
        let session = self.begin_session(&call).await;
        spawn_request("a session", self.clone().relay_to_page(call, caller_stream, session));
        Ok(response)
    }

    /// Audits a session, and opens it.
    async fn begin_session(&self, call: &Call) -> Result<Session, ApiError> {
        let kind = SessionKind::of(call);
        let command = kind.audit_text(call);
        let object = format!("{}/{}/{}", call.text("user"), call.text("job"), call.text("index"));
        // Before anything runs: what cannot be audited is not done.
        if !self.write_audit(call, &command, &object, "requested") {
            let message = "the audit log cannot be written, so nothing is run";
            return Err(ApiError::new(Code::Internal, message));
        }
        let opened = self.open_session(call, kind).await;
        let verdict = opened.as_ref().map_or_else(|error| error.code.as_str(), |_| "done");
        self.write_audit(call, &command, &object, verdict);
        opened
    }

    async fn open_session(&self, call: &Call, kind: SessionKind) -> Result<Session, ApiError> {
        kind.check(call)?;
        let permit = self.sessions.acquire_one(&call.actor_text())?;
        // A linearizable read: nothing checks this again, as the leader does with changes.
        let state = self.handle.read_linearizable_anywhere(ELECTION_PATIENCE).await?.state;
        // On a follower the first check may have been made before it knew of a change.
        self.check_admitted(call)?;
        let id = call.task_row(&state)?;
        let row = state.tasks().get(id);
        let name = state.task_name(id);
        let running =
            row.filter(|row| matches!(row.state, TaskState::Running | TaskState::Assigned));
        let Some((row, machine)) = running.and_then(|row| Some((row, row.machine()?))) else {
            let found = serde_json::to_value(row.map(|row| row.state)).unwrap_or_default();
            return Err(ApiError::new(Code::WrongState, format!("{name} does not run"))
                .hint(format!("wait until it runs: cell status {name} --watch"))
                .with("state", found));
        };
        let path = kind.agent_path(call, &name, (id.0, row.attempt), row.ports())?;
        let Agent { machine, address } = Agent::of(&state, machine)?;
        let line = self.config.agents.dial(&machine, &address).await.map_err(agent_error)?;
        let agent_stream = line.session(&path, SESSION_START_TIMEOUT).await.map_err(agent_error)?;
        Ok(Session { agent_stream, _permit: permit })
    }

    /// Relays until one side has closed, or the caller is no longer authorised.
    async fn relay(self, call: Call, caller_stream: OnUpgrade, session: Session) {
        // The caller has disconnected, so there is no one to answer.
        let Ok(caller_stream) = caller_stream.await else { return };
        self.relay_until_revoked(&call, TokioIo::new(caller_stream), session).await;
    }

    async fn relay_until_revoked(
        &self,
        call: &Call,
        mut caller_stream: impl AsyncRead + AsyncWrite + Unpin,
        session: Session,
    ) {
        tokio::select! {
            () = relay_bytes(&mut caller_stream, session.agent_stream) => {}
            () = self.session_right_lost(call) => {
                // A connected caller sees the end of the stream; a disconnected one need not.
                let _ = timeout(SHUTDOWN_TIMEOUT, caller_stream.shutdown()).await;
            }
        }
    }

    async fn relay_to_page(
        self,
        call: Call,
        caller_stream: OnUpgrade,
        session: Result<Session, ApiError>,
    ) {
        let Ok(caller_stream) = caller_stream.await else { return };
        let (mut page_stream, websocket_pump) =
            websocket::websocket_stream(TokioIo::new(caller_stream));
        let relaying = async {
            match session {
                Ok(session) => self.relay_until_revoked(&call, page_stream, session).await,
                Err(error) => {
                    let text = format!("{}; {}", error.message, error.hint);
                    // A page that has disconnected need not be told.
                    let _ = Frame::Failed(text).write(&mut page_stream).await;
                }
            }
        };
        let mut websocket_pump = pin!(websocket_pump);
        tokio::select! {
            () = &mut websocket_pump => {}
            // The last frames are still being sent.
            () = relaying => drop(timeout(CLOSE_TIMEOUT, websocket_pump).await),
        }
    }

    /// Completes when the caller is no longer authorised, or this replica cannot know any more
    /// whether it is.
    async fn session_right_lost(&self, call: &Call) {
        tokio::select! {
            () = self.authorization_lost(call) => {}
            () = self.confirmation_lost() => {
                tracing::info!(path = call.path(), "ended: no leader confirms the caller's right");
            }
        }
    }

    /// Completes when this replica was not confirmed to be up to date for too long.
    async fn confirmation_lost(&self) {
        let mut confirmed_at = Instant::now();
        while confirmed_at.elapsed() < MAX_UNCONFIRMED {
            sleep(AUTH_CHECK_INTERVAL).await;
            if self.handle.replica().confirm_current().await.is_ok() {
                confirmed_at = Instant::now();
            }
        }
    }

    /// Completes when the caller is no longer authorised, or this master shuts down.
    pub(super) async fn authorization_lost(&self, call: &Call) {
        let mut changed = self.handle.watch_applied();
        loop {
            changed.mark_unchanged();
            if !self.is_still_admitted(call) {
                tracing::info!(path = call.path(), "ended with its caller's right to it");
                return;
            }
            if let Ok(Err(_)) = timeout(AUTH_CHECK_INTERVAL, changed.changed()).await {
                return;
            }
        }
    }
}

/// What a session is for. All are authorised, audited, counted and ended alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionKind {
    Command,
    Copy,
    Forward,
}

impl SessionKind {
    fn of(call: &Call) -> SessionKind {
        match call.route.operation {
            Operation::CopyFiles => SessionKind::Copy,
            Operation::ForwardPort => SessionKind::Forward,
            _ => SessionKind::Command,
        }
    }

    fn audit_text(self, call: &Call) -> String {
        let text = |name: &str| call.query(name).unwrap_or_default();
        match self {
            SessionKind::Command => format!("exec {}", text("command")),
            SessionKind::Copy => format!("copy {} {:?}", text("direction"), text("path")),
            SessionKind::Forward => format!("forward {}", text("port")),
        }
    }

    /// Checks the parameters that the session takes, before anything is read.
    fn check(self, call: &Call) -> Result<(), ApiError> {
        let missing = |name: &str, allowed: &str| ApiError::parameter(name, "", allowed);
        match self {
            SessionKind::Command => {
                let command = call.query("command").unwrap_or_default();
                parse_command(command)
                    .map_err(|allowed| ApiError::parameter("command", command, allowed))?;
                let terminal = call.query("terminal");
                match terminal.filter(|text| TerminalSize::parse(text).is_none()) {
                    Some(text) => {
                        Err(ApiError::parameter("terminal", text, "rows and columns, as 24x80"))
                    }
                    None => Ok(()),
                }
            }
            SessionKind::Copy if call.query("direction").is_none() => {
                Err(missing("direction", "into, out_of"))
            }
            SessionKind::Copy => {
                let path = call.query("path").unwrap_or_default();
                let is_valid = !path.is_empty() && !path.contains('\0');
                let allowed = "a path in the task";
                is_valid.then_some(()).ok_or_else(|| ApiError::parameter("path", path, allowed))
            }
            SessionKind::Forward => {
                call.query("port").map(drop).ok_or_else(|| missing("port", "1 to 65535"))
            }
        }
    }

    /// The request to the agent.
    fn agent_path(
        self,
        call: &Call,
        name: &str,
        (task, attempt): (u32, u32),
        ports: &[u16],
    ) -> Result<String, ApiError> {
        let text = |name: &str| call.query(name).map(str::to_owned);
        let (path, query) = match self {
            SessionKind::Command => {
                let command = text("command").unwrap_or_default();
                let (terminal, term) = (text("terminal"), text("term"));
                let query = ExecQuery { task, attempt, command, terminal, term };
                (EXEC_PATH, encode_query(&query.pairs()))
            }
            SessionKind::Copy => {
                let direction = text("direction").unwrap_or_default();
                let allowed = "into, out_of";
                let direction = CopyDirection::parse(&direction)
                    .ok_or_else(|| ApiError::parameter("direction", &direction, allowed))?;
                let (path, name) = (text("path").unwrap_or_default(), text("name"));
                let query = CopyQuery { task, attempt, direction, path, name };
                (COPY_PATH, encode_query(&query.pairs()))
            }
            SessionKind::Forward => {
                let port = text("port").unwrap_or_default();
                let number = port.parse();
                let port = number.map_err(|_| ApiError::parameter("port", &port, "1 to 65535"))?;
                let assigned = ports.contains(&port);
                let query = ForwardQuery { task, attempt, port, assigned };
                (FORWARD_PATH, encode_query(&query.pairs()))
            }
        };
        Ok(format!("{path}/{name}{query}"))
    }
}

/// The agent's end of a session, and its permit on this replica.
struct Session {
    agent_stream: SessionStream,
    _permit: Permit,
}

/// The caller's connection, if it requested an upgrade.
fn take_upgrade(call: &mut Call) -> Result<OnUpgrade, ApiError> {
    let is_requested = call.header("upgrade") == Some(EXEC_PROTOCOL);
    call.upgrade.take().filter(|_| is_requested).ok_or_else(|| {
        let message = "a session takes a connection over HTTP/1.1 that is handed over";
        ApiError::new(Code::UpgradeRequired, message)
            .with("connection", "upgrade")
            .with("upgrade", EXEC_PROTOCOL)
    })
}
