//! The loop of a shim: children, requests, clocks. One thread, and nothing that waits but the loop.

use crate::boot;
use crate::log::RotatedLog;
use crate::protocol::{
    Cause, EXIT, Exit, LOGS, Launch, LogSettings, MemoryEnd, READY, Request, SOCKET,
};
use crate::record::{self, Keep};
use crate::room::{Inside, Room};
use crate::task::{Left, Pipes, Task, start};
use crate::{Held, ShimError, io};
use cellwright_supervise::{Supervisor, caught, of_request, plant};
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
/// once, unless somebody outside was handed their other end.
const DRAIN: Duration = Duration::from_secs(1);
/// Between two tries to write down an end on a disk that refuses.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 * 1024;
/// Longest line a request may be; none comes near it.
const REQUEST_BYTES: u64 = 4096;

/// What SIGSYS means.
const FILTERED: &str = "killed by a filter of system calls";
/// What it means where the container's own filter sent it: these are all that it kills for.
const FILTERED_BY_CONTAINER: &str = "killed by a filter of system calls: it sent SIGKILL to the \
     first process of its container, or made a call of another architecture";

/// A request, and where its answer goes.
type Asked = (Request, mpsc::UnboundedSender<String>);

/// The loop before there is anything to do, and what it hears of the system.
pub struct Ears {
    runtime: Runtime,
    children: Heard,
    calls: Heard,
    /// A shim ends with its task and by nothing else it can help.
    _deaf: [Heard; 2],
}

impl Ears {
    /// Before anything is begun: neither may a signal end a shim half-way, nor may a child of its
    /// program end unheard.
    pub fn open() -> Result<Ears, ShimError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start the loop"))?;
        let (children, calls, _deaf) = {
            let _inside = runtime.enter();
            let deaf = |kind| signal(kind).map_err(io("be deaf to signals"));
            (
                signal(SignalKind::child()).map_err(io("hear of children"))?,
                signal(SignalKind::hangup()).map_err(io("hear that it is sought"))?,
                [deaf(SignalKind::terminate())?, deaf(SignalKind::interrupt())?],
            )
        };
        Ok(Ears { runtime, children, calls, _deaf })
    }

    pub fn serve(mut self, held: Held) -> Result<(), ShimError> {
        self.runtime.block_on(whole(held, &mut self.children, &mut self.calls))
    }
}

async fn whole(held: Held, children: &mut Heard, calls: &mut Heard) -> Result<(), ShimError> {
    let Held { lock, launch, listener } = held;
    let listener = UnixListener::from_std(listener).map_err(io("listen"))?;
    let late = launch.lease_until.is_some_and(|until| until <= boot::now());
    let (exit, room, inside) = match Room::of(&launch) {
        Err(why) => (could_not_start(&launch, &why.to_string()), Room::default(), Inside::Unknown),
        Ok(room) if late => (too_late(), room, Inside::Unknown),
        Ok(room) => match start(&launch, room) {
            Err(failed) => {
                (could_not_start(&launch, &failed.0.to_string()), failed.1, Inside::Unknown)
            }
            Ok((task, pipes)) => {
                let output = keep_output(pipes, &launch)?;
                say_ready();
                let (exit, room) = run(task, children, calls, listener).await;
                for pump in output {
                    // Whoever still holds the other end is not of this task.
                    let _ = timeout(DRAIN, pump).await;
                }
                (exit, room, Inside::Nobody)
            }
        },
    };
    explain(Path::new(""), launch.logs, &exit);
    for stuck in room.clear(inside) {
        say(&stuck);
    }
    while let Err(error) = record::write(Path::new(EXIT), &exit, Keep::PowerCut) {
        say(&format!("the end cannot be written yet: {error}"));
        sleep(WRITE_AGAIN).await;
    }
    drop(lock);
    Ok(())
}

fn could_not_start(launch: &Launch, why: &str) -> Exit {
    let program = launch.command.first().map_or("", String::as_str);
    unstarted(Cause::CouldNotStart(format!("cannot start {program:?}: {why}")))
}

/// Nothing starts that another may have been started for.
fn too_late() -> Exit {
    unstarted(Cause::LeaseOver)
}

fn unstarted(cause: Cause) -> Exit {
    let memory = MemoryEnd::Nothing;
    let (code, signal, notice, started) = (None, None, None, None);
    Exit { code, signal, cause, memory, notice, started, ended: boot::now(), filtered: false }
}

/// An end that the program itself could not say anything about is told in its log.
fn explain(folder: &Path, logs: LogSettings, exit: &Exit) {
    let text = match (&exit.cause, exit.memory) {
        (Cause::CouldNotStart(why), _) => why.clone(),
        (Cause::Condemned { why, .. }, _) => format!("killed: {why}"),
        (Cause::Itself, MemoryEnd::OwnLimit) => "killed for memory: at its own limit".into(),
        (Cause::Itself, MemoryEnd::Bystander) => "killed for memory: others were short".into(),
        (Cause::Itself, _) if exit.filtered => FILTERED_BY_CONTAINER.into(),
        (Cause::Itself, _) if exit.signal == Some(Signal::SYS.as_raw()) => FILTERED.into(),
        _ => return,
    };
    let path = folder.join(LOGS).join("stderr");
    let now = boot::now();
    RotatedLog::new(path, logs, now).write(format!("[cell: {text}]\n").as_bytes(), now);
}

/// Into the shim's own log, on a disk that may be full: then it is not said.
fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "cell shim: {words}");
}

/// The agent that waits for it may be gone.
fn say_ready() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
}

fn keep_output(pipes: Pipes, launch: &Launch) -> Result<[JoinHandle<()>; 2], ShimError> {
    let keep = |name: &str, end: OwnedFd| -> Result<JoinHandle<()>, ShimError> {
        let receiver = pipe::Receiver::from_owned_fd(end).map_err(io("read the output"))?;
        let path = PathBuf::from(LOGS).join(name);
        let logs = launch.logs;
        let log = move || RotatedLog::new(path.clone(), logs, boot::now());
        Ok(Supervisor::default().errand("the reader of the output", pump(receiver, log)))
    };
    Ok([keep("stdout", pipes.stdout)?, keep("stderr", pipes.stderr)?])
}

/// A task whose output nobody reads stands still, so whatever happens to its log, it is read.
async fn pump(mut from: pipe::Receiver, open: impl Fn() -> RotatedLog) {
    let mut buffer = vec![0; READ_BYTES];
    let mut log = open();
    // An error here is an end: there is nothing more to read.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let written = caught(|| {
            plant("pump");
            log.write(&buffer[..count], boot::now());
        });
        if let Err(panicked) = written {
            say(&format!("a log of the task {panicked}; it is opened again"));
            log = open();
        }
    }
    log.finish();
}

async fn run(
    mut task: Task,
    children: &mut Heard,
    calls: &mut Heard,
    mut listener: UnixListener,
) -> (Exit, Room) {
    let (asks, mut asked) = mpsc::unbounded_channel::<Asked>();
    loop {
        plant("shim");
        if task.look() == Left::Nothing {
            return (task.exit(), task.into_room());
        }
        let next = task.next_look();
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
            _ = calls.recv() => match listen_anew() {
                Ok(anew) => listener = anew,
                Err(error) => say(&format!("the socket cannot be made again: {error}")),
            },
            Ok((stream, _)) = listener.accept() => {
                // Whoever connects is told at once how things stand.
                let (answers, lines) = mpsc::unbounded_channel();
                answer(&task, &answers);
                let conversing = converse(stream, answers, lines, asks.clone());
                of_request("the line to an agent", conversing);
            }
            Some((request, answers)) = asked.recv() => {
                obey(&mut task, &request);
                answer(&task, &answers);
            }
        }
    }
}

fn listen_anew() -> std::io::Result<UnixListener> {
    match std::fs::remove_file(SOCKET) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(SOCKET)
}

fn obey(task: &mut Task, request: &Request) {
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

fn answer(task: &Task, to: &mpsc::UnboundedSender<String>) {
    if let Ok(line) = serde_json::to_string(&task.status()) {
        // Who asked may be gone.
        let _ = to.send(line + "\n");
    }
}

/// One agent on the line.
async fn converse(
    stream: UnixStream,
    answers: mpsc::UnboundedSender<String>,
    mut lines: mpsc::UnboundedReceiver<String>,
    asks: mpsc::UnboundedSender<Asked>,
) {
    let (from, mut to) = stream.into_split();
    let read = async {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        loop {
            line.clear();
            match (&mut from).take(REQUEST_BYTES).read_line(&mut line).await {
                Ok(1..) => {}
                _ => return,
            }
            let request = match serde_json::from_str::<Request>(&line) {
                Ok(request) => request,
                Err(error) => return say(&format!("a request that is none: {error}")),
            };
            if asks.send((request, answers.clone())).is_err() {
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
        let told = |signal, filtered| {
            let folder = Scratch::new();
            std::fs::create_dir_all(folder.path(LOGS)).unwrap();
            let exit = Exit { signal: Some(signal), filtered, ..unstarted(Cause::Itself) };
            let logs = LogSettings { file_bytes: 4096, files: 2, rate: 4096 };
            explain(&folder.path(""), logs, &exit);
            std::fs::read_to_string(folder.path(LOGS).join("stderr")).unwrap_or_default()
        };
        assert_eq!(told(9, false), "");
        assert_eq!(told(31, false), format!("[cell: {FILTERED}]\n"));
        assert_eq!(told(9, true), format!("[cell: {FILTERED_BY_CONTAINER}]\n"));
    }
}
