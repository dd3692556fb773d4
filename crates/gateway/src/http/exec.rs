//! Sessions in tasks: who may have one is decided here, its command is taken down here, and from
//! there on this replica only passes bytes between the caller and the agent of the task's machine.
//! Bytes that one side does not take are not asked of the other: the buffers are small and fixed.
//!
//! A session outlives the request it came by, so whether its caller may have it is looked at again
//! at every change of the cell: a token that is revoked, a capability that is taken away, a user
//! who is removed, all end it.

use super::call::Call;
use super::output::{Agent, of_agent};
use super::{Answered, Api, socket};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cellwright_api::client::{SessionStream, encode_query};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::exec::{
    EXEC_PATH, EXEC_PROTOCOL, ExecQuery, Frame, TerminalSize, carry_bytes, words,
};
use cellwright_cell::task::TaskState;
use cellwright_master::flow::Share;
use cellwright_supervise::of_request;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long an agent may take to begin a session.
const BEGIN: Duration = Duration::from_secs(20);
/// How long saying so may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a page may take to hear the end of a session.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A token's own end is no change of the cell: it is looked for this often.
const LOOK: Duration = Duration::from_secs(5);

impl Api {
    pub(super) async fn exec_task(&self, mut call: Call) -> Answered {
        let near = handed_over(&mut call)?;
        let session = self.begin(&call).await?;
        of_request("a session", self.clone().carry(call, near, session));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
        Ok(response)
    }

    /// The same for a page. Browsers keep from pages why a connection was refused, so whoever may
    /// have sessions at all gets one, in which the refusal is the first and last word.
    pub(super) async fn exec_task_in_page(&self, mut call: Call) -> Answered {
        let (near, response) = socket::agreed(&mut call)?;
        let session = self.begin(&call).await;
        of_request("a session", self.clone().carry_to_page(call, near, session));
        Ok(response)
    }

    /// Takes a session down, and opens it.
    async fn begin(&self, call: &Call) -> Result<Session, ApiError> {
        let command = format!("exec {}", call.query("command").unwrap_or_default());
        let object = format!("{}/{}/{}", call.text("user"), call.text("job"), call.text("index"));
        // Before anything runs: what nobody could take down is not done.
        if !self.take_down(call, &command, &object, "asked") {
            let message = "the audit log cannot be written, so nothing is run";
            return Err(ApiError::new(Code::Internal, message));
        }
        let opened = self.open_session(call).await;
        let verdict = opened.as_ref().map_or_else(|error| error.code.as_str(), |_| "done");
        self.take_down(call, &command, &object, verdict);
        opened
    }

    async fn open_session(&self, call: &Call) -> Result<Session, ApiError> {
        let command = call.query("command").unwrap_or_default().to_owned();
        words(&command).map_err(|allowed| ApiError::parameter("command", &command, allowed))?;
        let terminal = call.query("terminal").map(str::to_owned);
        if let Some(text) = terminal.as_deref().filter(|text| TerminalSize::parse(text).is_none()) {
            return Err(ApiError::parameter("terminal", text, "rows and columns, as 24x80"));
        }
        let seat = self.sessions.one(&call.who())?;
        // Sure of the present: nobody judges this again, as the leader does with changes.
        let state = self.handle.read_now().await?.state;
        let id = call.task_row(&state)?;
        let row = state.tasks().get(id);
        let name = state.task_name(id);
        let here = row.filter(|row| matches!(row.state, TaskState::Running | TaskState::Assigned));
        let Some((attempt, machine)) = here.and_then(|row| Some((row.attempt, row.machine()?)))
        else {
            let found = serde_json::to_value(row.map(|row| row.state)).unwrap_or_default();
            return Err(ApiError::new(Code::WrongState, format!("{name} does not run"))
                .hint(format!("wait until it runs: cell status {name} --watch"))
                .with("state", found));
        };
        let term = call.query("term").map(str::to_owned);
        let query = ExecQuery { task: id.0, attempt, command, terminal, term };
        let path = format!("{EXEC_PATH}/{name}{}", encode_query(&query.pairs()));
        let Agent { machine, address } = Agent::of(&state, machine)?;
        let line = self.settings.agents.dial(&machine, &address).await.map_err(of_agent)?;
        let far = line.session(&path, BEGIN).await.map_err(of_agent)?;
        Ok(Session { far, _seat: seat })
    }

    /// Until one side has closed, or the caller may no longer.
    async fn carry(self, call: Call, near: OnUpgrade, session: Session) {
        // Whoever asked and went away has nothing to be told.
        let Ok(near) = near.await else { return };
        self.carry_on(&call, TokioIo::new(near), session).await;
    }

    async fn carry_on(
        &self,
        call: &Call,
        mut near: impl AsyncRead + AsyncWrite + Unpin,
        session: Session,
    ) {
        tokio::select! {
            () = carry_bytes(&mut near, session.far) => {}
            () = self.right_is_lost(call) => {
                // A caller that is there is told so by the end; one that is not need not be.
                let _ = timeout(FAREWELL, near.shutdown()).await;
            }
        }
    }

    async fn carry_to_page(self, call: Call, near: OnUpgrade, session: Result<Session, ApiError>) {
        let Ok(near) = near.await else { return };
        let (mut near, moving) = socket::stream(TokioIo::new(near));
        let told = async {
            match session {
                Ok(session) => self.carry_on(&call, near, session).await,
                Err(error) => {
                    let text = format!("{}; {}", error.message, error.hint);
                    // A page that is gone need not be told.
                    let _ = Frame::Failed(text).write(&mut near).await;
                }
            }
        };
        let mut moving = pin!(moving);
        tokio::select! {
            () = &mut moving => {}
            // What was said last is still on its way.
            () = told => drop(timeout(LAST_WORDS, moving).await),
        }
    }

    /// Done when the caller may no longer, or this master ends.
    pub(super) async fn right_is_lost(&self, call: &Call) {
        let mut changed = self.handle.changed();
        loop {
            changed.mark_unchanged();
            if !self.still_admits(call) {
                tracing::info!(path = call.path(), "ended with its caller's right to it");
                return;
            }
            if let Ok(Err(_)) = timeout(LOOK, changed.changed()).await {
                return;
            }
        }
    }
}

/// The far end of a session, and its place among those of this replica.
struct Session {
    far: SessionStream,
    _seat: Share,
}

/// The connection of the caller, if it asked to have it handed over.
fn handed_over(call: &mut Call) -> Result<OnUpgrade, ApiError> {
    let wanted = call.header("upgrade") == Some(EXEC_PROTOCOL);
    call.upgrade.take().filter(|_| wanted).ok_or_else(|| {
        let message = "a session takes a connection over HTTP/1.1 that is handed over";
        ApiError::new(Code::UpgradeRequired, message)
            .with("connection", "upgrade")
            .with("upgrade", EXEC_PROTOCOL)
    })
}
