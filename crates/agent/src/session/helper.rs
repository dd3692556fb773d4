//! `cell session`: the helper process of one session. Its standard input is a socket: first a line
//! with the request, then frames. It runs the command, with or without a terminal, and ends when
//! the command has ended or the other end of the socket is closed. It leaves no process behind: it
//! is the reaper of all its descendants, as a shim is.

use super::pty::Pty;
use super::{HelperRequest, LEADER_VERB, SessionRequest, copy, forward};
use crate::driver::exec_spec::ExecSpec;
use crate::open_files;
use crate::proc;
use crate::shim::sandbox::open_group;
use crate::shim::spawn::{
    close_inherited_fds, disable_core_dumps, drop_privileges, waiting_program,
};
use bytes::Bytes;
use cellwright_api::exec::Frame;
use cellwright_isolate::container::write_private;
use cellwright_supervise::{EXIT_CODE, catch_panic, catch_panic_async, report_in_one_line};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Bytes of the command's output that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// How long output may take to arrive once all descendants are gone: what is in the pipes is there
/// at once, unless a process outside was handed their other end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two passes of killing what does not die at once.
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between two heartbeats. Through them the helper notices a caller that has gone whose
/// input the command does not read: no part on the way reads on, so none sees the end of the
/// stream.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// The character that ends a terminal's input.
const END_OF_INPUT: &[u8] = &[4];

pub(super) type FrameWriter = Arc<Mutex<OwnedWriteHalf>>;

/// The whole life of a helper.
#[must_use]
pub fn run() -> ExitCode {
    open_files::lower();
    report_in_one_line();
    match catch_panic(run_helper) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // The socket is gone, or never was one: there is nobody to report to.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(_) => ExitCode::from(EXIT_CODE),
    }
}

fn run_helper() -> io::Result<()> {
    // Fails for the leader of a process group, which signals to the agent's do not reach either.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve_session(socket))
}

async fn serve_session(socket: std::os::unix::net::UnixStream) -> io::Result<()> {
    let (from, to) = UnixStream::from_std(socket)?.into_split();
    let (mut from, to) = (BufReader::new(from), Arc::new(Mutex::new(to)));
    let mut first = String::new();
    from.read_line(&mut first).await?;
    match serde_json::from_str(&first)? {
        HelperRequest::Command(request) => serve_command(&request, from, to).await,
        HelperRequest::Copy(request) => copy::serve(request, from, &to).await,
        HelperRequest::Forward(request) => forward::serve(request, from, &to).await,
    }
}

async fn serve_command(
    request: &SessionRequest,
    from: BufReader<OwnedReadHalf>,
    to: FrameWriter,
) -> io::Result<()> {
    if let Some(frames) = lookup_failure(request) {
        let mut to = to.lock().await;
        for frame in frames {
            frame.write(&mut *to).await?;
        }
        return Ok(());
    }
    let last = match start_command(request) {
        Ok(running) => running.serve_to_the_end(&request.entry, from, &to).await,
        Err(error) => {
            let program = request.entry.command.first().map_or("", String::as_str);
            Some(Frame::Failed(format!("cannot start {program:?}: {error}")))
        }
    };
    kill_descendants(&request.entry).await;
    if let Some(within) = &request.entry.within {
        // Only root can read it, and it goes with the container at the latest.
        let _ = std::fs::remove_file(&within.file);
    }
    match last {
        Some(frame) => frame.write(&mut *to.lock().await).await,
        None => Ok(()),
    }
}

/// The frames sent instead of starting a program that certainly cannot run, if the lookup was
/// requested. For a quiet session there are none: how its start fails is what is of interest.
fn lookup_failure(request: &SessionRequest) -> Option<[Frame; 2]> {
    let sought = request.entry.sought.as_ref().filter(|_| !request.quiet)?;
    sought.check().map(|lack| sought.error_frames(lack, request.terminal.is_some()))
}

/// The kind of frame for an output, and where the output is read.
type Output = (fn(Bytes) -> Frame, Box<dyn AsyncRead + Unpin + Send>);

/// A running command.
struct Running {
    child: Child,
    pid: Pid,
    input: Input,
    outputs: Vec<Output>,
}

/// Where frames of input are written.
struct Input {
    to: Option<Box<dyn AsyncWrite + Unpin + Send>>,
    pty: Option<Pty>,
}

fn start_command(request: &SessionRequest) -> io::Result<Running> {
    close_inherited_fds();
    match &request.entry.within {
        // As the task itself does.
        None => drop_privileges()?,
        Some(within) => {
            disable_core_dumps()?;
            let nested =
                open_group(&within.group).and_then(|group| group.create_nested(&within.inner));
            nested
                .and_then(|_| write_private(&within.file, &within.description))
                .map_err(io::Error::other)?;
        }
    }
    if request.quiet {
        return start_without_output(&request.entry);
    }
    if let Some(path) = &request.entry.group {
        // With everything it starts: the cgroup is the task's, and so are its limits and its end.
        open_group(path)
            .and_then(|group| group.add(std::process::id()))
            .map_err(io::Error::other)?;
    }
    match request.terminal {
        None => without_terminal(&request.entry),
        Some(size) => {
            let (pty, commands) = Pty::open(size)?;
            with_terminal(&request.entry, pty, commands)
        }
    }
}

fn build_command(entry: &ExecSpec, program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(entry.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&entry.directory);
    if let Some((user, group)) = entry.identity {
        command.uid(user).gid(group);
    }
    command
}

fn without_terminal(entry: &ExecSpec) -> io::Result<Running> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
    let (program, arguments) = entry.command.split_first().ok_or_else(empty)?;
    let mut child = build_command(entry, program, arguments)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let missing = || io::Error::other("the command has no streams");
    let input = child.stdin.take().ok_or_else(missing)?;
    let output = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    Ok(Running {
        pid: pid_of(&child)?,
        child,
        input: Input { to: Some(Box::new(input)), pty: None },
        outputs: vec![(Frame::Data, Box::new(output)), (Frame::Stderr, Box::new(stderr))],
    })
}

fn with_terminal(entry: &ExecSpec, pty: Pty, commands: OwnedFd) -> io::Result<Running> {
    if let Some((user, group)) = entry.identity {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        rustix::fs::fchown(&commands, Some(user), Some(group))?;
    }
    let arguments: Vec<String> =
        [LEADER_VERB.to_owned()].into_iter().chain(entry.command.iter().cloned()).collect();
    let child = build_command(entry, "/proc/self/exe", &arguments)
        .stdin(Stdio::from(commands.try_clone()?))
        .stdout(Stdio::from(commands.try_clone()?))
        .stderr(Stdio::from(commands))
        .spawn()?;
    let (output, input) = pty.ends()?;
    Ok(Running {
        pid: pid_of(&child)?,
        child,
        input: Input { to: Some(Box::new(input)), pty: Some(pty) },
        outputs: vec![(Frame::Data, Box::new(output))],
    })
}

/// Its output is discarded. This process stays outside of the cgroup, whose memory is for the task
/// and its probes.
fn start_without_output(entry: &ExecSpec) -> io::Result<Running> {
    let (mut command, release) = match &entry.group {
        Some(path) => {
            let group = open_group(path).map_err(io::Error::other)?;
            let waiting =
                waiting_program(&entry.command, &entry.directory, entry.identity, &entry.env)?
                    .into_parts();
            (Command::from(waiting.0), Some((waiting.1, group)))
        }
        None => {
            let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
            let (program, arguments) = entry.command.split_first().ok_or_else(empty)?;
            let mut command = build_command(entry, program, arguments);
            command.stdin(Stdio::null());
            (command, None)
        }
    };
    let child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    drop(command);
    if let (Some((release_handle, group)), Some(pid)) = (release, child.id()) {
        // Not counted by a hierarchy that only counts: a probe is short.
        release_handle.release(pid, &group)?;
    }
    let input = Input { to: None, pty: None };
    Ok(Running { pid: pid_of(&child)?, child, input, outputs: Vec::new() })
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let number = child.id().and_then(|number| i32::try_from(number).ok());
    number.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("the command has no number"))
}

impl Running {
    /// Serves until the command or the caller is gone; the last frame, or nothing without a caller.
    async fn serve_to_the_end(
        self,
        entry: &ExecSpec,
        from: BufReader<OwnedReadHalf>,
        to: &FrameWriter,
    ) -> Option<Frame> {
        let Running { mut child, pid, input, outputs } = self;
        let (over, is_over) = watch::channel(false);
        let lost = Arc::new(Notify::new());
        let mut pumps: Vec<JoinHandle<()>> = outputs
            .into_iter()
            .map(|(kind, output)| {
                let pump = pump(output, kind, to.clone(), is_over.clone());
                finish_on_error(pump, lost.clone())
            })
            .collect();
        pumps.push(finish_on_error(
            send_heartbeats(to.clone(), lost.clone(), is_over),
            lost.clone(),
        ));
        let caller_gone = async {
            tokio::select! {
                () = handle_frames(from, input, pid) => {}
                () = lost.notified() => {}
            }
        };
        tokio::pin!(caller_gone);
        let status = tokio::select! {
            status = child.wait() => status,
            () = &mut caller_gone => return None,
        };
        // The session is for the command: its background processes are killed with it.
        kill_descendants(entry).await;
        over.send_replace(true);
        let until_ended = async {
            for pump in pumps {
                // A pump that panicked has logged it.
                let _ = pump.await;
            }
        };
        tokio::select! {
            () = until_ended => {}
            () = &mut caller_gone => return None,
        }
        Some(match status {
            Ok(status) => Frame::Exit(exit_code(status)),
            Err(error) => Frame::Failed(format!("nobody saw how it ended: {error}")),
        })
    }
}

/// Ends a session whose output cannot be sent any more.
fn finish_on_error(
    work: impl Future<Output = ()> + Send + 'static,
    lost: Arc<Notify>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if catch_panic_async(work).await.is_err() {
            lost.notify_one();
        }
    })
}

/// Handles frames until the other side is gone. An invalid frame counts as gone.
async fn handle_frames(mut from: BufReader<OwnedReadHalf>, mut input: Input, pid: Pid) {
    while let Ok(Some(frame)) = Frame::read(&mut from).await {
        match frame {
            Frame::Data(bytes) => input.write(&bytes).await,
            Frame::End => input.end().await,
            Frame::Resize(size) => {
                if let Some(pty) = &input.pty {
                    // A terminal that keeps its size is no reason to end.
                    let _ = pty.resize(size);
                }
            }
            Frame::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
                    // Gone meanwhile: its exit is on the way.
                    let _ = kill_process_group(pid, signal);
                }
            }
            Frame::Stderr(_) | Frame::Exit(_) | Frame::Failed(_) => return,
        }
    }
}

impl Input {
    /// A command that closed its input has not ended for that.
    async fn write(&mut self, bytes: &[u8]) {
        if let Some(to) = &mut self.to
            && to.write_all(bytes).await.is_err()
        {
            self.to = None;
        }
    }

    async fn end(&mut self) {
        match self.pty {
            Some(_) => self.write(END_OF_INPUT).await,
            None => self.to = None,
        }
    }
}

async fn pump(
    mut output: Box<dyn AsyncRead + Unpin + Send>,
    kind: fn(Bytes) -> Frame,
    to: FrameWriter,
    mut is_over: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read_timeout = if *is_over.borrow_and_update() { DRAIN_TIMEOUT } else { Duration::MAX };
        let read = tokio::select! {
            read = timeout(read_timeout, output.read(&mut buffer)) => read,
            Ok(()) = is_over.changed() => continue,
        };
        let Ok(Ok(count @ 1..)) = read else { return };
        let frame = kind(Bytes::copy_from_slice(&buffer[..count]));
        if frame.write(&mut *to.lock().await).await.is_err() {
            return;
        }
    }
}

/// Never cancelled half-way through a frame.
pub(super) async fn send_heartbeats(
    to: FrameWriter,
    lost: Arc<Notify>,
    mut is_over: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            () = sleep(HEARTBEAT_INTERVAL) => {}
            _ = is_over.changed() => return,
        }
        if Frame::Data(Bytes::new()).write(&mut *to.lock().await).await.is_err() {
            return lost.notify_one();
        }
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The exit code of shells for a program that is absent or cannot be executed.
pub(super) fn shell_exit_code(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Kills all descendants of this process, and those that became children of a container's init.
async fn kill_descendants(entry: &ExecSpec) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let inner = entry.within.as_ref().and_then(|within| {
        open_group(&within.group).and_then(|group| group.child(&within.inner)).ok()
    });
    loop {
        let emptied = inner.as_ref().is_none_or(|inner| inner.kill(Duration::ZERO).is_ok());
        for signal in [Signal::STOP, Signal::KILL] {
            for process in proc::descendants(&proc::list(), own) {
                if let Some(pid) = Pid::from_raw(process.pid) {
                    // A process that is gone meanwhile is fine.
                    let _ = kill_process(pid, signal);
                }
            }
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if emptied && proc::descendants(&proc::list(), own).is_empty() {
            break;
        }
        sleep(SWEEP_INTERVAL).await;
    }
    if let Some(inner) = inner {
        // Anything left of it goes with the cgroup around it.
        let _ = inner.remove();
    }
}
