//! Sessions (exec): commands that a user runs inside a task (B20). A master decides who may; here
//! the command gets the task's folder, environment, user and limits, as its driver provides them.
//!
//! So do copies of files (`cell cp`) and connections to a task's ports (`cell port-forward`).
//!
//! Each session has a small process of its own ([`helper`], `cell session` in the list of
//! processes), at the far end of a socket. It runs the command and speaks frames; the agent passes
//! bytes on and parses none of them. So whatever closes the socket ends the session with everything
//! the command started: the caller that goes away, the task that ends, the agent that dies.
//!
//! Rejected: running commands as children of the agent itself. The agent would have to reap what
//! they start, and an agent that is killed would leave them behind.

mod copy;
pub mod file_tree;
mod forward;
pub mod frame_pipe;
pub mod helper;
pub mod leader;
pub mod program_lookup;
mod pty;
mod task_view;

use crate::driver::exec_spec::{ExecRequest, ExecSpec, exec_spec};
use crate::open_files;
use crate::record;
use crate::shim::exit_of;
use crate::shim::protocol::{LAUNCH, Launch};
use crate::shim_program::ShimProgram;
use crate::state_dir::Folders;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::exec::{
    CopyDirection, CopyQuery, ExecQuery, ForwardQuery, TerminalSize, parse_command, relay_bytes,
};
use cellwright_cell::id::Attempt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use task_view::TaskView;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// The arguments that make this program a session's helper, and the leader of its terminal.
pub const HELPER_VERB: &str = "session";
pub const LEADER_VERB: &str = "session-leader";
/// Most sessions of one attempt, and of the machine.
const MAX_PER_TASK: usize = 8;
const MAX_SESSIONS: usize = 64;
/// The same of connections to ports, of which one page of a browser opens several.
const MAX_CONNECTIONS_PER_TASK: usize = 32;
const MAX_CONNECTIONS: usize = 128;
/// How long a helper may take to kill and reap everything.
const HELPER_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The request to a helper, in the first line on its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelperRequest {
    Command(Box<SessionRequest>),
    Copy(CopyRequest),
    Forward(ForwardRequest),
}

/// Files to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRequest {
    pub view: TaskView,
    pub direction: CopyDirection,
    pub path: PathBuf,
    /// See [`CopyQuery`].
    pub name: Option<String>,
}

/// A connection to a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardRequest {
    pub view: TaskView,
    pub port: u16,
    /// See [`ForwardQuery`].
    pub assigned: bool,
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    pub entry: ExecSpec,
    pub terminal: Option<TerminalSize>,
    /// Output is discarded: only the exit matters.
    pub quiet: bool,
}

/// The open sessions. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<BTreeMap<Attempt, OpenSessions>>>);

/// Sessions that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotKind {
    Session,
    Connection,
}

impl SlotKind {
    /// The most of an attempt, and of the machine.
    fn limits(self) -> (usize, usize) {
        match self {
            SlotKind::Session => (MAX_PER_TASK, MAX_SESSIONS),
            SlotKind::Connection => (MAX_CONNECTIONS_PER_TASK, MAX_CONNECTIONS),
        }
    }
}

#[derive(Default)]
struct OpenSessions {
    sessions: usize,
    connections: usize,
    /// Dropped to end all of them.
    closed: watch::Sender<()>,
}

impl OpenSessions {
    fn count(&mut self, kind: SlotKind) -> &mut usize {
        match kind {
            SlotKind::Session => &mut self.sessions,
            SlotKind::Connection => &mut self.connections,
        }
    }
}

/// The slot of one session.
struct SessionSlot {
    sessions: Sessions,
    kind: SlotKind,
    attempt: Attempt,
    closed: watch::Receiver<()>,
}

impl Sessions {
    /// Ends the sessions of an attempt that has ended.
    pub fn close(&self, attempt: Attempt) {
        self.lock().remove(&attempt);
    }

    fn acquire(&self, attempt: Attempt, kind: SlotKind) -> Option<SessionSlot> {
        let mut all = self.lock();
        let count: usize = all.values_mut().map(|open| *open.count(kind)).sum();
        let own = all.get_mut(&attempt).map_or(0, |open| *open.count(kind));
        let (most_of_attempt, most) = kind.limits();
        if count >= most || own >= most_of_attempt {
            return None;
        }
        let open = all.entry(attempt).or_default();
        *open.count(kind) += 1;
        let closed = open.closed.subscribe();
        Some(SessionSlot { sessions: self.clone(), kind, attempt, closed })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Attempt, OpenSessions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut all = self.sessions.lock();
        // Closed sessions do not count any more.
        let own = |open: &&mut OpenSessions| open.closed.subscribe().same_channel(&self.closed);
        if let Some(open) = all.get_mut(&self.attempt).filter(own) {
            let count = open.count(self.kind);
            *count = count.saturating_sub(1);
            if open.sessions + open.connections == 0 {
                all.remove(&self.attempt);
            }
        }
    }
}

/// Starts sessions on this machine.
#[derive(Clone)]
pub struct SessionServer {
    pub folders: Folders,
    /// The executable of helpers.
    pub program: ShimProgram,
    pub sessions: Sessions,
}

/// A session that has started.
pub struct StartedSession {
    slot: SessionSlot,
    line: UnixStream,
    helper: Child,
}

impl SessionServer {
    /// Runs a command.
    ///
    /// # Errors
    /// Why there is no session.
    pub async fn begin(&self, name: &str, query: &ExecQuery) -> Result<StartedSession, ApiError> {
        let bad =
            |field: &str, value: &str, allowed: &str| ApiError::parameter(field, value, allowed);
        let command = parse_command(&query.command);
        let command = command.map_err(|allowed| bad("command", &query.command, allowed))?;
        let size = query.terminal.as_deref().map(|text| {
            TerminalSize::parse(text)
                .ok_or_else(|| bad("terminal", text, "rows and columns, as 24x80"))
        });
        let terminal = size.transpose()?;
        let attempt = (query.task, query.attempt);
        let found = self.find(name, attempt, SlotKind::Session)?;
        let exec_request = ExecRequest {
            launch: &found.launch,
            command,
            terminal: terminal.is_some(),
            term: query.term.as_deref(),
        };
        let entry = exec_spec(&exec_request).map_err(|error| wrong_state(&error))?;
        let request =
            HelperRequest::Command(Box::new(SessionRequest { entry, terminal, quiet: false }));
        self.start(found, &request).await
    }

    /// Copies files.
    ///
    /// # Errors
    /// Why there is no session.
    pub async fn begin_copy(
        &self,
        task: &str,
        query: &CopyQuery,
    ) -> Result<StartedSession, ApiError> {
        let found = self.find(task, (query.task, query.attempt), SlotKind::Session)?;
        let view = TaskView::of(&found.launch).map_err(|error| wrong_state(&error))?;
        let (path, name) = (PathBuf::from(&query.path), query.name.clone());
        let request = CopyRequest { view, direction: query.direction, path, name };
        self.start(found, &HelperRequest::Copy(request)).await
    }

    /// Connects to a port.
    ///
    /// # Errors
    /// Why there is no session.
    pub async fn begin_forward(
        &self,
        name: &str,
        query: &ForwardQuery,
    ) -> Result<StartedSession, ApiError> {
        let attempt = (query.task, query.attempt);
        let found = self.find(name, attempt, SlotKind::Connection)?;
        let view = TaskView::of(&found.launch).map_err(|error| wrong_state(&error))?;
        let request = ForwardRequest { view, port: query.port, assigned: query.assigned };
        self.start(found, &HelperRequest::Forward(request)).await
    }

    /// The attempt, if it runs here, and a slot for a session in it.
    fn find(
        &self,
        name: &str,
        (task, attempt): (u32, u32),
        kind: SlotKind,
    ) -> Result<FoundAttempt, ApiError> {
        let found = self.folders.attempts_of_task(name).map_err(|error| internal(&error))?;
        let is_requested = |found: &crate::output::AttemptOutput| {
            (found.attempt.task.0, found.attempt.number) == (task, attempt)
        };
        let absent = || {
            let message = format!("attempt {attempt} of {name} does not run here");
            ApiError::new(Code::WrongState, message)
        };
        let found = found.into_iter().find(is_requested).ok_or_else(absent)?;
        let full = || ApiError::new(Code::Overloaded, "as many sessions as there may be are open");
        let slot = self.sessions.acquire(found.attempt, kind).ok_or_else(full)?;
        // After the slot was acquired: a task that ends from here on closes it.
        let launch = record::read::<Launch>(&found.folder.join(LAUNCH)).ok().flatten();
        let ended = exit_of(&found.folder).is_ok_and(|exit| exit.is_some());
        let launch = launch.filter(|_| !ended).ok_or_else(absent)?;
        Ok(FoundAttempt { slot, launch })
    }

    async fn start(
        &self,
        found: FoundAttempt,
        request: &HelperRequest,
    ) -> Result<StartedSession, ApiError> {
        let (line, helper) = start(&self.program, request).await.map_err(|e| internal(&e))?;
        Ok(StartedSession { slot: found.slot, line, helper })
    }
}

struct FoundAttempt {
    slot: SessionSlot,
    launch: Launch,
}

fn internal(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(Code::Internal, error.to_string())
}

fn wrong_state(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(Code::WrongState, error.to_string())
}

/// Starts a helper and sends it the request. It ends, with all it started, when the connection is
/// closed.
///
/// # Errors
/// When the system gives no process.
pub async fn start(
    program: &ShimProgram,
    request: &HelperRequest,
) -> io::Result<(UnixStream, Child)> {
    let (mut line, far) = UnixStream::pair()?;
    let far = far.into_std()?;
    far.set_nonblocking(false)?;
    let helper = Command::new(&program.program)
        .arg(HELPER_VERB)
        .envs(open_files::inherited_env())
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let text = serde_json::to_string(request).map_err(io::Error::other)?;
    line.write_all((text + "\n").as_bytes()).await?;
    Ok((line, helper))
}

/// Passes bytes on until a side closes or the attempt ends.
pub async fn proxy(session: StartedSession, near: OnUpgrade) {
    let StartedSession { mut slot, mut line, mut helper } = session;
    if let Ok(near) = near.await {
        let near = TokioIo::new(near);
        tokio::select! {
            () = relay_bytes(near, &mut line) => {}
            _ = slot.closed.changed() => {}
        }
    }
    drop(line);
    match timeout(HELPER_EXIT_TIMEOUT, helper.wait()).await {
        Ok(Ok(_)) => {}
        _ => {
            tracing::warn!(attempt = %slot.attempt, "a session does not end; its helper is killed");
            // A helper that is gone meanwhile is fine.
            let _ = helper.kill().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::TaskId;

    #[test]
    fn sessions_are_counted_and_end_with_their_attempt() {
        let sessions = Sessions::default();
        let attempt = |task| Attempt::new(TaskId(task), 1);
        let mut slots: Vec<SessionSlot> = (0..MAX_PER_TASK)
            .map(|_| sessions.acquire(attempt(1), SlotKind::Session).unwrap())
            .collect();
        assert!(sessions.acquire(attempt(1), SlotKind::Session).is_none());
        // Connections are counted for themselves.
        let connection = sessions.acquire(attempt(1), SlotKind::Connection).unwrap();
        let other = sessions.acquire(attempt(2), SlotKind::Session).unwrap();
        slots.pop();
        slots.push(sessions.acquire(attempt(1), SlotKind::Session).unwrap());
        sessions.close(attempt(1));
        assert!(slots.iter().all(|slot| slot.closed.has_changed().is_err()));
        assert!(connection.closed.has_changed().is_err());
        assert!(other.closed.has_changed().is_ok());
        // New sessions are not counted with those that are being closed.
        let next = sessions.acquire(attempt(1), SlotKind::Session).unwrap();
        drop(slots);
        assert!(next.closed.has_changed().is_ok());
        let many: Vec<Option<SessionSlot>> =
            (10..100).map(|task| sessions.acquire(attempt(task), SlotKind::Session)).collect();
        assert_eq!(many.iter().flatten().count(), MAX_SESSIONS - 2);
    }
}
