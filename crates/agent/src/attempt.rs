//! The agent's side of one attempt: has its folder prepared, starts its shim, stays connected to
//! it, and learns how it ended. Works the same for a shim that was just started and for one that an
//! earlier agent left behind.
//!
//! Whenever the agent dies, and of whatever cause, the files on disk determine how to go on:
//!
//! | `exit` | lock held | `begun` | then |
//! |---|---|---|---|
//! | yes | | | the attempt has ended |
//! | no | yes | | a shim lives: connect to it |
//! | no | no | yes | its shim died: its orphans are killed, and the attempt is gone |
//! | no | no | no | it never began: start a shim |

use crate::boot;
use crate::metrics::Numbers;
use crate::open_files;
use crate::proc;
use crate::record::{self, Durability, RecordError};
use crate::shim::protocol::{
    EXIT, Exit, ExitCause, LAUNCH, LOGS, Launch, OomCause, Request, SHIM_LOG, SOCKET, ShimRecord,
    Status,
};
use crate::shim::sandbox::{Occupancy, Sandbox};
use crate::shim::{self, exit_of, is_alive, read_begun};
use crate::shim_program::{ShimProgram, StartPermit};
use crate::watch::Finding;
use cellwright_agent_core::book::FinalReading;
use cellwright_agent_core::reconcile::{End, Health};
use cellwright_cell::id::Attempt;
use cellwright_supervise::{failpoint, spawn_request};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Interval between two attempts to connect to a shim that is alive and does not answer yet.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two tries to read a state that cannot be read.
const ERROR_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Failed connects to a shim that has to end its task, after which it is asked for a new socket.
const SOCKET_RECREATE_AFTER: u32 = 100;
/// How long a new shim may take to announce that it is ready before its state is checked.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Shims that did not begin, after which the attempt is given up.
const MAX_START_ATTEMPTS: u32 = 3;

/// An update about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptUpdate {
    Status(Status),
    Health(Health),
    Finding(Finding),
    /// What it told when it was read.
    Numbers(Numbers),
    /// The last update of an attempt.
    Ended(End, String),
}

/// Supervises the attempt in `folder` to its end; starts a shim when none ever began, the first
/// time with `permit`, if there is one.
pub async fn supervise_attempt(
    attempt: Attempt,
    folder: PathBuf,
    program: ShimProgram,
    mut permit: Option<StartPermit>,
    mut requests: mpsc::UnboundedReceiver<Request>,
    updates: mpsc::UnboundedSender<(Attempt, AttemptUpdate)>,
) {
    let (mut tries, mut failed_connects) = (0, 0_u32);
    // Requests that arrived before a shim was connected.
    let mut pending: Vec<Request> = Vec::new();
    let ended = loop {
        failpoint("follow");
        while let Ok(request) = requests.try_recv() {
            pending.push(request);
        }
        // For one try: an attempt that cannot start now must not keep others from starting.
        let permit = permit.take();
        match shim_state(&folder) {
            // The disk, or the table of descriptors: that passes, and the attempt is as it is. What
            // a newer shim wrote is read by the agent of its release.
            Err(error @ (RecordError::Io { .. } | RecordError::TooNew { .. })) => {
                drop(permit);
                tracing::warn!(%attempt, %error, "cannot be looked at");
                sleep(ERROR_RETRY_INTERVAL).await;
            }
            Err(error @ RecordError::Damaged { .. }) => break lost_exit(&error.to_string()),
            Ok(ShimState::Ended(exit)) => break exit,
            Ok(ShimState::Alive) => match connect(&folder).await {
                Ok(stream) => {
                    drop(permit);
                    failed_connects = 0;
                    exchange_messages(stream, attempt, &mut requests, &mut pending, &updates).await;
                }
                Err(_) => {
                    failed_connects += 1;
                    // Only a task that has to end anyway: a shim that has just begun would die of
                    // the signal.
                    if failed_connects % SOCKET_RECREATE_AFTER == 0
                        && pending.iter().any(is_termination)
                    {
                        request_new_socket(&folder);
                    }
                    sleep(POLL_INTERVAL).await;
                }
            },
            Ok(ShimState::Orphaned(shim_record)) => {
                kill_orphans(&shim_record).await;
                let usage = tear_down(&folder, born_at(&shim_record)).await;
                break record_exit(&folder, ExitCause::Lost("its shim died".into()), usage);
            }
            Ok(ShimState::NotStarted) => {
                let permit = match permit {
                    None => wait_for_start_permit(&program, &mut requests, &mut pending).await,
                    permit => permit,
                };
                let failure = try_start(&folder, &program, &pending, tries).await;
                drop(permit);
                tries += 1;
                // A slow shim that begins now after all is found by the next check.
                if let Some(exit) = failure.and_then(|cause| give_up(&folder, cause)) {
                    let _ = tear_down(&folder, 0).await;
                    break exit;
                }
            }
        }
    };
    // The loop that received updates may have ended.
    let _ = updates.send((attempt, AttemptUpdate::Ended(ended.outcome(), exit_message(&ended))));
}

/// Starts a shim, unless the attempt has to end or shims failed too often. Returns why none was
/// started.
async fn try_start(
    folder: &Path,
    program: &ShimProgram,
    pending: &[Request],
    tries: u32,
) -> Option<ExitCause> {
    match tries {
        _ if pending.iter().any(is_termination) => Some(ExitCause::Told),
        MAX_START_ATTEMPTS.. => Some(not_started("its shim does not begin; see shim.log")),
        _ => start_with_lease(folder, program, pending).await.err().map(|why| not_started(&why)),
    }
}

/// Has the shim create its socket again: a task of the same account can have removed it.
fn request_new_socket(folder: &Path) {
    let Ok(Some(shim_record)) = read_begun(folder) else { return };
    let is_same_process =
        proc::get(shim_record.shim).is_some_and(|process| process.born == shim_record.born);
    if let Some(pid) = Pid::from_raw(shim_record.shim).filter(|_| is_same_process) {
        // A process that is gone meanwhile is fine.
        let _ = kill_process(pid, Signal::HUP);
    }
}

/// Waits for a permit to start while handling requests: hundreds may be queued before it, and
/// meanwhile leases are renewed and tasks told to end. Nothing when it need not start any more.
async fn wait_for_start_permit(
    program: &ShimProgram,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    pending_requests: &mut Vec<Request>,
) -> Option<StartPermit> {
    let turn = program.start_permit();
    tokio::pin!(turn);
    while !pending_requests.iter().any(is_termination) {
        tokio::select! {
            biased;
            turn = &mut turn => return turn,
            Some(request) = requests.recv() => pending_requests.push(request),
        }
    }
    None
}

/// Starts a shim for the written launch, with the current lease.
async fn start_with_lease(
    folder: &Path,
    program: &ShimProgram,
    pending_requests: &[Request],
) -> Result<(), String> {
    let newest = pending_requests.iter().filter_map(|request| match request {
        Request::Lease { until } => Some(*until),
        _ => None,
    });
    if let Some(until) = newest.max() {
        let path = folder.join(LAUNCH);
        if let Ok(Some(mut launch)) = record::read::<Launch>(&path) {
            launch.lease_until = launch.lease_until.max(Some(until));
            record::write(&path, &launch, Durability::Process)
                .map_err(|error| error.to_string())?;
        }
    }
    let started = start_shim(folder, program).await;
    started.map_err(|error| format!("its shim cannot be started: {error}"))
}

fn is_termination(request: &Request) -> bool {
    matches!(request, Request::Stop { .. } | Request::Kill)
}

enum ShimState {
    Ended(Exit),
    Alive,
    Orphaned(ShimRecord),
    NotStarted,
}

/// The order of the checks matters: a shim writes its exit before it releases the lock.
fn shim_state(folder: &Path) -> Result<ShimState, RecordError> {
    let io = |why| RecordError::Io { path: folder.to_owned(), why };
    let is_alive = is_alive(folder).map_err(io)?;
    match exit_of(folder) {
        Ok(Some(exit)) => return Ok(ShimState::Ended(exit)),
        // A shim that lives will overwrite whatever is there with its exit.
        Ok(None) | Err(RecordError::Damaged { .. }) if is_alive => return Ok(ShimState::Alive),
        other => drop(other?),
    }
    Ok(read_begun(folder)?.map_or(ShimState::NotStarted, ShimState::Orphaned))
}

/// The path of a Unix socket is limited in length and a folder's path may be longer: the socket is
/// reached through a descriptor of the folder.
async fn connect(folder: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(folder, flags, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", held.as_raw_fd())).await
}

/// Until the connection is closed.
async fn exchange_messages(
    stream: UnixStream,
    attempt: Attempt,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    pending_requests: &mut Vec<Request>,
    updates: &mpsc::UnboundedSender<(Attempt, AttemptUpdate)>,
) {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    for request in std::mem::take(pending_requests) {
        if send_request(&mut to, &request).await.is_err() {
            pending_requests.push(request);
        }
    }
    loop {
        tokio::select! {
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return };
                match serde_json::from_str::<Status>(&line) {
                    Ok(status) => drop(updates.send((attempt, AttemptUpdate::Status(status)))),
                    Err(error) => tracing::warn!(%attempt, %error, "a shim says what is no status"),
                }
            }
            request = requests.recv() => {
                // The agent is shutting down; its shims are not.
                let Some(request) = request else { return std::future::pending().await };
                if send_request(&mut to, &request).await.is_err() {
                    pending_requests.push(request);
                    return;
                }
            }
        }
    }
}

async fn send_request(
    to: &mut tokio::net::unix::OwnedWriteHalf,
    request: &Request,
) -> io::Result<()> {
    let line = serde_json::to_string(request).map_err(io::Error::other)?;
    to.write_all((line + "\n").as_bytes()).await
}

/// Starts a shim and waits until it can be connected to, has ended, or its time is up.
async fn start_shim(folder: &Path, shim: &ShimProgram) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let log = options.append(true).create(true).mode(0o600).open(folder.join(SHIM_LOG))?;
    let mut child = Command::from(shim.command(folder))
        .envs(open_files::inherited_env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    if let Some(out) = child.stdout.take() {
        let mut line = String::new();
        let mut out = BufReader::new(out);
        // Whatever the result, the next check finds out the state.
        let _ = timeout(READY_TIMEOUT, out.read_line(&mut line)).await;
    }
    // Reaped when it exits; it exits with its task.
    spawn_request("the wait for a shim", async move { drop(child.wait().await) });
    Ok(())
}

/// Kills the orphans of a dead shim: processes in the shim's session, or below one that is. A
/// process that had moved to a session of its own *and* lost its parents is out of reach without
/// cgroups.
async fn kill_orphans(shim_record: &ShimRecord) {
    // Given up by an agent that died before it wrote the exit: there never was a shim.
    if shim_record.shim <= 0 {
        return;
    }
    // Of another boot: its processes are dead, and its pids are those of other processes now.
    if boot::boot_id().is_ok_and(|now| shim_record.boot_id != now) {
        return;
    }
    loop {
        let all = proc::list();
        // The pid belongs to another process, so no process is left in the session it named.
        if all.get(&shim_record.shim).is_some_and(|now| now.born != shim_record.born) {
            return;
        }
        let own = |process: &&proc::Process| {
            process.session == shim_record.shim
                && process.born >= shim_record.born
                && !process.is_zombie
        };
        let mut left: Vec<i32> = Vec::new();
        for process in all.values().filter(own) {
            left.push(process.pid);
            left.extend(proc::descendants(&all, process.pid).iter().map(|below| below.pid));
        }
        if left.is_empty() {
            return;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            // A process that is gone meanwhile is fine.
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// When a shim began, on the boot clock.
fn born_at(shim_record: &ShimRecord) -> u64 {
    shim_record.born.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
}

/// Kills and removes what was set up around a task whose shim is gone, or never was. Returns what
/// the task had used since `started`, as far as the kernel still says it.
pub async fn tear_down(folder: &Path, started: u64) -> Option<FinalReading> {
    let launch = record::read::<Launch>(&folder.join(LAUNCH)).ok().flatten();
    let sandbox = launch.as_ref().map(Sandbox::of)?.ok()?;
    while !sandbox.kill() {
        sleep(POLL_INTERVAL).await;
    }
    let usage = sandbox.group_reading(started, boot::now());
    // Anything left over is found at the agent's next start.
    if let Ok(stuck) =
        tokio::task::spawn_blocking(move || sandbox.tear_down(Occupancy::Empty)).await
    {
        for stuck in stuck {
            tracing::warn!(stuck, "what stood around a task stays");
        }
    }
    usage
}

fn not_started(why: &str) -> ExitCause {
    ExitCause::CouldNotStart(why.to_owned())
}

/// Ends an attempt that never began, by claiming it: no shim can begin it any more. Nothing when a
/// shim was faster.
pub fn give_up(folder: &Path, cause: ExitCause) -> Option<Exit> {
    match shim::claim(folder, &ShimRecord { shim: 0, born: 0, boot_id: String::new() }) {
        Ok(true) => {
            log_start_failure(folder, &cause);
            Some(record_exit(folder, cause, None))
        }
        Ok(false) => None,
        Err(error) => {
            // Without a disk no shim begins either.
            tracing::error!(%error, "an attempt cannot be given up");
            Some(record_exit(folder, cause, None))
        }
    }
}

/// Most characters of an exit message.
const MAX_MESSAGE_CHARS: usize = 2000;

/// Logs why the attempt never began where its owner looks for the task's output.
fn log_start_failure(folder: &Path, cause: &ExitCause) {
    let ExitCause::CouldNotStart(why) = cause else { return };
    let why: String = why.chars().take(MAX_MESSAGE_CHARS).collect();
    let log = OpenOptions::new().create(true).append(true).open(folder.join(LOGS).join("stderr"));
    let written = log.and_then(|mut log| log.write_all(format!("[cell: {why}]\n").as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, why, "what kept a task from its start cannot be told in its log");
    }
}

/// Records the exit of an attempt whose shim wrote none, so that the next agent finds the same. If
/// one is there, that one counts and is returned. `usage` is what it had used, as far as anybody
/// knows.
pub fn record_exit(folder: &Path, cause: ExitCause, usage: Option<FinalReading>) -> Exit {
    let exit = Exit { cause, usage, ..lost_exit("") };
    let written = record::create(&folder.join(EXIT), &exit, Durability::PowerCut);
    match written.and_then(|is_first| if is_first { Ok(None) } else { exit_of(folder) }) {
        Ok(before) => before.unwrap_or(exit),
        Err(error) => {
            tracing::error!(%error, "an end cannot be written");
            exit
        }
    }
}

fn lost_exit(why: &str) -> Exit {
    let cause = ExitCause::Lost(why.to_owned());
    let memory = OomCause::Nothing;
    let (code, signal, notice, started, usage) = (None, None, None, None, None);
    let (ended, filtered) = (boot::now(), false);
    Exit { code, signal, cause, memory, notice, started, ended, filtered, usage }
}

fn exit_message(exit: &Exit) -> String {
    if exit.memory != OomCause::Nothing {
        return format!("killed for memory, {:?}", exit.memory);
    }
    match (&exit.cause, exit.code, exit.signal) {
        (ExitCause::CouldNotStart(why) | ExitCause::Lost(why), _, _) => why.clone(),
        (ExitCause::Condemned { why, .. }, _, _) => why.clone(),
        (cause, Some(code), _) => format!("exit code {code}, {cause:?}"),
        (cause, _, Some(signal)) => format!("signal {signal}, {cause:?}"),
        (cause, None, None) => format!("{cause:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;

    #[test]
    fn what_could_not_start_says_why_in_its_log() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path(LOGS)).unwrap();
        let exit =
            give_up(&scratch.path(""), ExitCause::CouldNotStart("ram: 1; allowed: 2".into()));
        assert!(exit.is_some());
        let log = std::fs::read_to_string(scratch.path(LOGS).join("stderr")).unwrap();
        assert_eq!(log, "[cell: ram: 1; allowed: 2]\n");
        // The second call finds it ended, and logs nothing more.
        assert!(give_up(&scratch.path(""), ExitCause::Told).is_none());
    }
}
