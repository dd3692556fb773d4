//! The event loop of a shim: children, requests, clocks. One thread, and only the loop waits.

use crate::boot;
use crate::log::RotatedLog;
use crate::protocol::{
    EXIT, Exit, ExitCause, LOGS, Launch, LogSettings, OomCause, READY, Request, SOCKET,
};
use crate::record::{self, Durability};
use crate::sandbox::{Occupancy, Sandbox};
use crate::task::{Pipes, Remaining, Task, start};
use crate::{ShimError, ShimHandles, io};
use cellwright_supervise::{Supervisor, catch_panic, failpoint, spawn_request};
use rustix::process::Signal;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal as Heard, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long the output of a task that is gone may take to arrive: what is in the pipes is there at
/// once, unless a process outside was handed their other end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two tries to write an exit to a disk that refuses.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 * 1024;
/// Longest line of a request; none comes near it.
const MAX_REQUEST_BYTES: u64 = 4096;

/// The meaning of SIGSYS.
const FILTERED: &str = "killed by a filter of system calls";
/// Its meaning where the container's own filter sent it: these are all that it kills for.
const FILTERED_BY_CONTAINER: &str = "killed by a filter of system calls: it sent SIGKILL to the \
     first process of its container, or made a call of another architecture";

/// A request, and where its response goes.
type PendingRequest = (Request, mpsc::UnboundedSender<String>);

/// The runtime of the loop before there is anything to do, and its signal streams.
pub struct ShimRuntime {
    runtime: Runtime,
    children: Heard,
    hangups: Heard,
    /// A shim ends with its task; signals that it can ignore do not end it.
    _ignored_signals: [Heard; 2],
}

impl ShimRuntime {
    /// Before anything is started: no signal may end a shim half-way, and no exit of a child may be
    /// missed.
    pub fn open() -> Result<ShimRuntime, ShimError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start the loop"))?;
        let (children, hangups, _ignored_signals) = {
            let _inside = runtime.enter();
            let ignore = |kind| signal(kind).map_err(io("be deaf to signals"));
            (
                signal(SignalKind::child()).map_err(io("hear of children"))?,
                signal(SignalKind::hangup()).map_err(io("hear that it is sought"))?,
                [ignore(SignalKind::terminate())?, ignore(SignalKind::interrupt())?],
            )
        };
        Ok(ShimRuntime { runtime, children, hangups, _ignored_signals })
    }

    pub fn serve(mut self, handles: ShimHandles) -> Result<(), ShimError> {
        self.runtime.block_on(supervise_task(handles, &mut self.children, &mut self.hangups))
    }
}

async fn supervise_task(
    handles: ShimHandles,
    children: &mut Heard,
    hangups: &mut Heard,
) -> Result<(), ShimError> {
    let ShimHandles { lock, launch, listener } = handles;
    let listener = UnixListener::from_std(listener).map_err(io("listen"))?;
    let is_too_late = launch.lease_until.is_some_and(|until| until <= boot::now());
    let (exit, sandbox, occupancy) = match Sandbox::of(&launch) {
        Err(why) => {
            (start_failure_exit(&launch, &why.to_string()), Sandbox::default(), Occupancy::Unknown)
        }
        Ok(sandbox) if is_too_late => (lease_over_exit(), sandbox, Occupancy::Unknown),
        Ok(sandbox) => match start(&launch, sandbox) {
            Err(failed) => {
                (start_failure_exit(&launch, &failed.0.to_string()), failed.1, Occupancy::Unknown)
            }
            Ok((task, pipes)) => {
                let output = start_log_pumps(pipes, &launch)?;
                announce_ready();
                let (exit, sandbox) = run(task, children, hangups, listener).await;
                for pump in output {
                    // A process that still holds the other end is not of this task.
                    let _ = timeout(DRAIN_TIMEOUT, pump).await;
                }
                (exit, sandbox, Occupancy::Empty)
            }
        },
    };
    log_exit_reason(Path::new(""), launch.logs, &exit);
    for leftover in sandbox.tear_down(occupancy) {
        log_line(&leftover);
    }
    while let Err(error) = record::write(Path::new(EXIT), &exit, Durability::PowerCut) {
        log_line(&format!("the end cannot be written yet: {error}"));
        sleep(WRITE_RETRY_INTERVAL).await;
    }
    drop(lock);
    Ok(())
}

fn start_failure_exit(launch: &Launch, why: &str) -> Exit {
    let program = launch.command.first().map_or("", String::as_str);
    unstarted_exit(ExitCause::CouldNotStart(format!("cannot start {program:?}: {why}")))
}

/// The exit of a task that is not started because its lease is over: another may have been started
/// in its place.
fn lease_over_exit() -> Exit {
    unstarted_exit(ExitCause::LeaseOver)
}

fn unstarted_exit(cause: ExitCause) -> Exit {
    let memory = OomCause::Nothing;
    let (code, signal, notice, started, usage) = (None, None, None, None, None);
    let (ended, filtered) = (boot::now(), false);
    Exit { code, signal, cause, memory, notice, started, ended, filtered, usage }
}

/// An exit that the program itself could not explain is explained in its log.
fn log_exit_reason(folder: &Path, logs: LogSettings, exit: &Exit) {
    let text = match (&exit.cause, exit.memory) {
        (ExitCause::CouldNotStart(why), _) => why.clone(),
        (ExitCause::Condemned { why, .. }, _) => format!("killed: {why}"),
        (ExitCause::Itself, OomCause::OwnLimit) => "killed for memory: at its own limit".into(),
        (ExitCause::Itself, OomCause::Bystander) => "killed for memory: others were short".into(),
        (ExitCause::Itself, _) if exit.filtered => FILTERED_BY_CONTAINER.into(),
        (ExitCause::Itself, _) if exit.signal == Some(Signal::SYS.as_raw()) => FILTERED.into(),
        _ => return,
    };
    let path = folder.join(LOGS).join("stderr");
    let now = boot::now();
    RotatedLog::new(path, logs, now).write(format!("[cell: {text}]\n").as_bytes(), now);
}

/// Writes to the shim's own log, on a disk that may be full: then the line is lost.
fn log_line(words: &str) {
    let _ = writeln!(std::io::stderr(), "cell shim: {words}");
}

/// The agent that waits for it may be gone.
fn announce_ready() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
}

fn start_log_pumps(pipes: Pipes, launch: &Launch) -> Result<[JoinHandle<()>; 2], ShimError> {
    let start_pump = |name: &str, end: OwnedFd| -> Result<JoinHandle<()>, ShimError> {
        let receiver = pipe::Receiver::from_owned_fd(end).map_err(io("read the output"))?;
        let path = PathBuf::from(LOGS).join(name);
        let logs = launch.logs;
        let log = move || RotatedLog::new(path.clone(), logs, boot::now());
        Ok(Supervisor::default().spawn_finite("the reader of the output", pump(receiver, log)))
    };
    Ok([start_pump("stdout", pipes.stdout)?, start_pump("stderr", pipes.stderr)?])
}

/// A task whose output is not read blocks, so it is read whatever happens to its log.
async fn pump(mut from: pipe::Receiver, open: impl Fn() -> RotatedLog) {
    let mut buffer = vec![0; READ_BYTES];
    let mut log = open();
    // An error here is an end: there is nothing more to read.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let written = catch_panic(|| {
            failpoint("pump");
            log.write(&buffer[..count], boot::now());
        });
        if let Err(panicked) = written {
            log_line(&format!("a log of the task {panicked}; it is opened again"));
            log = open();
        }
    }
    log.finish();
}

async fn run(
    mut task: Task,
    children: &mut Heard,
    hangups: &mut Heard,
    mut listener: UnixListener,
) -> (Exit, Sandbox) {
    let (requests_tx, mut requests_rx) = mpsc::unbounded_channel::<PendingRequest>();
    loop {
        failpoint("shim");
        if task.poll() == Remaining::Nothing {
            return (task.exit(), task.into_sandbox());
        }
        let next = task.next_poll();
        let clock = async {
            match next {
                Some(millis) => sleep(Duration::from_millis(millis)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = children.recv() => {}
            () = clock => {}
            // An agent found no socket: a task of its own account can remove it.
            _ = hangups.recv() => match rebind_socket() {
                Ok(anew) => listener = anew,
                Err(error) => log_line(&format!("the socket cannot be made again: {error}")),
            },
            Ok((stream, _)) = listener.accept() => {
                // A new connection gets the status at once.
                let (answers, lines) = mpsc::unbounded_channel();
                send_status(&task, &answers);
                let connection = serve_connection(stream, answers, lines, requests_tx.clone());
                spawn_request("the line to an agent", connection);
            }
            Some((request, answers)) = requests_rx.recv() => {
                handle_request(&mut task, &request);
                send_status(&task, &answers);
            }
        }
    }
}

fn rebind_socket() -> std::io::Result<UnixListener> {
    match std::fs::remove_file(SOCKET) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(SOCKET)
}

fn handle_request(task: &mut Task, request: &Request) {
    match request {
        Request::Stop { grace } => task.stop(*grace),
        Request::Kill => task.stop(0),
        Request::Condemn { class, why } => task.condemn(*class, why),
        Request::Signal { number } => {
            if let Some(signal) = Signal::from_named_raw(*number) {
                task.signal(signal);
            }
        }
        Request::Lease { until } => task.renew(*until),
        Request::Status => {}
    }
}

fn send_status(task: &Task, to: &mpsc::UnboundedSender<String>) {
    if let Ok(line) = serde_json::to_string(&task.status()) {
        // The caller may be gone.
        let _ = to.send(line + "\n");
    }
}

/// The connection of one agent.
async fn serve_connection(
    stream: UnixStream,
    answers: mpsc::UnboundedSender<String>,
    mut lines: mpsc::UnboundedReceiver<String>,
    requests_tx: mpsc::UnboundedSender<PendingRequest>,
) {
    let (from, mut to) = stream.into_split();
    let read = async {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        loop {
            line.clear();
            match (&mut from).take(MAX_REQUEST_BYTES).read_line(&mut line).await {
                Ok(1..) => {}
                _ => return,
            }
            let request = match serde_json::from_str::<Request>(&line) {
                Ok(request) => request,
                Err(error) => return log_line(&format!("a request that is none: {error}")),
            };
            if requests_tx.send((request, answers.clone())).is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some(line) = lines.recv().await {
            if to.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_end_by_a_filter_is_told_whatever_the_signal() {
        let logged = |signal, filtered| {
            let folder = Scratch::new();
            std::fs::create_dir_all(folder.path(LOGS)).unwrap();
            let exit = Exit { signal: Some(signal), filtered, ..unstarted_exit(ExitCause::Itself) };
            let logs = LogSettings { file_bytes: 4096, files: 2, rate: 4096 };
            log_exit_reason(&folder.path(""), logs, &exit);
            std::fs::read_to_string(folder.path(LOGS).join("stderr")).unwrap_or_default()
        };
        assert_eq!(logged(9, false), "");
        assert_eq!(logged(31, false), format!("[cell: {FILTERED}]\n"));
        assert_eq!(logged(9, true), format!("[cell: {FILTERED_BY_CONTAINER}]\n"));
    }
}
