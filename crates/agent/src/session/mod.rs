//! Sessions (exec): commands that a user runs inside a task (B20). A master decides who may; here
//! the command gets the task's folder, environment, user and limits, as its driver provides them.
//!
//! Each session has a small process of its own ([`helper`], `cell session` in the list of
//! processes), at the far end of a socket. It runs the command and speaks frames; the agent passes
//! bytes on and parses none of them. So whatever closes the socket ends the session with everything
//! the command started: the caller that goes away, the task that ends, the agent that dies.
//!
//! Rejected: running commands as children of the agent itself. The agent would have to reap what
//! they start, and an agent that is killed would leave them behind.

pub mod helper;
pub mod leader;
pub mod program_lookup;
mod pty;

use crate::driver::exec_spec::{ExecRequest, ExecSpec, exec_spec};
use crate::open_files;
use crate::record;
use crate::shim::exit_of;
use crate::shim::protocol::{LAUNCH, Launch};
use crate::shim_program::ShimProgram;
use crate::state_dir::Folders;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::exec::{ExecQuery, TerminalSize, parse_command, relay_bytes};
use cellwright_cell::id::Attempt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
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
/// How long a helper may take to kill and reap everything.
const HELPER_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The request to a helper, in the first line on its socket.
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

struct OpenSessions {
    count: usize,
    /// Dropped to end all of them.
    closed: watch::Sender<()>,
}

/// The slot of one session.
struct SessionSlot {
    sessions: Sessions,
    attempt: Attempt,
    closed: watch::Receiver<()>,
}

impl Sessions {
    /// Ends the sessions of an attempt that has ended.
    pub fn close(&self, attempt: Attempt) {
        self.lock().remove(&attempt);
    }

    fn acquire(&self, attempt: Attempt) -> Option<SessionSlot> {
        let mut all = self.lock();
        let count: usize = all.values().map(|open| open.count).sum();
        let own = all.get(&attempt).map_or(0, |open| open.count);
        if count >= MAX_SESSIONS || own >= MAX_PER_TASK {
            return None;
        }
        let open = all
            .entry(attempt)
            .or_insert_with(|| OpenSessions { count: 0, closed: watch::Sender::new(()) });
        open.count += 1;
        Some(SessionSlot { sessions: self.clone(), attempt, closed: open.closed.subscribe() })
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
            open.count = open.count.saturating_sub(1);
            if open.count == 0 {
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
        let failed =
            |error: &dyn std::fmt::Display| ApiError::new(Code::Internal, error.to_string());
        let found = self.folders.attempts_of_task(name).map_err(|error| failed(&error))?;
        let is_requested = |found: &crate::output::AttemptOutput| {
            (found.attempt.task.0, found.attempt.number) == (query.task, query.attempt)
        };
        let absent = || {
            let message = format!("attempt {} of {name} does not run here", query.attempt);
            ApiError::new(Code::WrongState, message)
        };
        let found = found.into_iter().find(is_requested).ok_or_else(absent)?;
        let full = || ApiError::new(Code::Overloaded, "as many sessions as there may be are open");
        let slot = self.sessions.acquire(found.attempt).ok_or_else(full)?;
        // After the slot was acquired: a task that ends from here on closes it.
        let launch = record::read::<Launch>(&found.folder.join(LAUNCH)).ok().flatten();
        let ended = exit_of(&found.folder).is_ok_and(|exit| exit.is_some());
        let launch = launch.filter(|_| !ended).ok_or_else(absent)?;
        let exec_request = ExecRequest {
            launch: &launch,
            command,
            terminal: terminal.is_some(),
            term: query.term.as_deref(),
        };
        let entry = exec_spec(&exec_request)
            .map_err(|error| ApiError::new(Code::WrongState, error.to_string()))?;
        let request = SessionRequest { entry, terminal, quiet: false };
        let (line, helper) = start(&self.program, &request).await.map_err(|e| failed(&e))?;
        Ok(StartedSession { slot, line, helper })
    }
}

/// Starts a helper and sends it the request. It ends, with all it started, when the connection is
/// closed.
///
/// # Errors
/// When the system gives no process.
pub async fn start(
    program: &ShimProgram,
    request: &SessionRequest,
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
        let mut slots: Vec<SessionSlot> =
            (0..MAX_PER_TASK).map(|_| sessions.acquire(attempt(1)).unwrap()).collect();
        assert!(sessions.acquire(attempt(1)).is_none());
        let other = sessions.acquire(attempt(2)).unwrap();
        slots.pop();
        slots.push(sessions.acquire(attempt(1)).unwrap());
        sessions.close(attempt(1));
        assert!(slots.iter().all(|slot| slot.closed.has_changed().is_err()));
        assert!(other.closed.has_changed().is_ok());
        // New sessions are not counted with those that are being closed.
        let next = sessions.acquire(attempt(1)).unwrap();
        drop(slots);
        assert!(next.closed.has_changed().is_ok());
        let many: Vec<Option<SessionSlot>> =
            (10..100).map(|task| sessions.acquire(attempt(task))).collect();
        assert_eq!(many.iter().flatten().count(), MAX_SESSIONS - 2);
    }
}
