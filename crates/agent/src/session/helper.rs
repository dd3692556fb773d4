//! `cell session`: one session's process. Its standard input is a socket: first a line that says
//! what to run, then frames. It runs the command, with or without a terminal, and ends when the
//! command has ended or the other end of the socket is closed, and leaves nobody behind: it is the
//! reaper of everything below it, as a shim is.

use super::pty::Pty;
use super::{LEADER, Told};
use crate::driver::enter::Entry;
use crate::open_files;
use crate::proc;
use crate::shim::begin::{no_core, pass_nothing_on, renounce, waiting};
use crate::shim::room::group;
use bytes::Bytes;
use cellwright_api::exec::Frame;
use cellwright_isolate::container::write_private;
use cellwright_supervise::{EXIT_CODE, caught, guarded, report_in_one_line};
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

/// Bytes read of the command's output at a time.
const PIECE: usize = 16 << 10;
/// How long output may take to arrive once everybody below is gone: what is in the pipes is there
/// at once, unless somebody outside was handed their other end.
const DRAIN: Duration = Duration::from_secs(1);
/// Between two looks at what does not die at once.
const SWEEP: Duration = Duration::from_millis(5);
/// Between two signs of life. They are how the end of a caller is noticed whose input the command
/// does not take: nobody on the way reads on, so nobody sees that there is no more.
const BEAT: Duration = Duration::from_secs(2);
/// The character that ends a terminal's input.
const END_OF_INPUT: &[u8] = &[4];

type Out = Arc<Mutex<OwnedWriteHalf>>;

/// The whole life of a helper.
#[must_use]
pub fn run() -> ExitCode {
    open_files::lower();
    report_in_one_line();
    match caught(begin) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // The socket is gone, or never was one: there is nobody to tell.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(_) => ExitCode::from(EXIT_CODE),
    }
}

fn begin() -> io::Result<()> {
    // Fails for the leader of a process group, which signals to the agent's do not reach either.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let line: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let line = std::os::unix::net::UnixStream::from(line);
    line.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(whole(line))
}

async fn whole(line: std::os::unix::net::UnixStream) -> io::Result<()> {
    let (from, to) = UnixStream::from_std(line)?.into_split();
    let (mut from, to) = (BufReader::new(from), Arc::new(Mutex::new(to)));
    let mut first = String::new();
    from.read_line(&mut first).await?;
    let told: Told = serde_json::from_str(&first)?;
    if let Some(frames) = refused(&told) {
        let mut to = to.lock().await;
        for frame in frames {
            frame.write(&mut *to).await?;
        }
        return Ok(());
    }
    let last = match start(&told) {
        Ok(running) => running.serve_to_the_end(&told.entry, from, &to).await,
        Err(error) => {
            let program = told.entry.command.first().map_or("", String::as_str);
            Some(Frame::Failed(format!("cannot start {program:?}: {error}")))
        }
    };
    sweep(&told.entry).await;
    if let Some(within) = &told.entry.within {
        // Root alone reads it, and it goes with the container at the latest.
        let _ = std::fs::remove_file(&within.file);
    }
    match last {
        Some(frame) => frame.write(&mut *to.lock().await).await,
        None => Ok(()),
    }
}

/// What is said instead, where somebody asked for what can be seen not to run. Nobody reads what is
/// said of a quiet one: how its start fails is what is of interest.
fn refused(told: &Told) -> Option<[Frame; 2]> {
    let sought = told.entry.sought.as_ref().filter(|_| !told.quiet)?;
    sought.lack().map(|lack| sought.told(lack, told.terminal.is_some()))
}

/// With what kind of frame an output travels, and where it is read.
type Output = (fn(Bytes) -> Frame, Box<dyn AsyncRead + Unpin + Send>);

/// A command that runs.
struct Running {
    child: Child,
    pid: Pid,
    input: Input,
    outputs: Vec<Output>,
}

/// Where frames of input go.
struct Input {
    to: Option<Box<dyn AsyncWrite + Unpin + Send>>,
    pty: Option<Pty>,
}

fn start(told: &Told) -> io::Result<Running> {
    pass_nothing_on();
    match &told.entry.within {
        // As the task itself does.
        None => renounce()?,
        Some(within) => {
            no_core()?;
            let nested = group(&within.group).and_then(|group| group.nest(&within.inner));
            nested
                .and_then(|_| write_private(&within.file, &within.description))
                .map_err(io::Error::other)?;
        }
    }
    if told.quiet {
        return quietly(&told.entry);
    }
    if let Some(path) = &told.entry.group {
        // With everything it starts: the group is the task's, and so are its limits and its end.
        group(path).and_then(|group| group.add(std::process::id())).map_err(io::Error::other)?;
    }
    match told.terminal {
        None => without_terminal(&told.entry),
        Some(size) => {
            let (pty, commands) = Pty::open(size)?;
            with_terminal(&told.entry, pty, commands)
        }
    }
}

fn prepared(entry: &Entry, program: &str, arguments: &[String]) -> Command {
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

fn without_terminal(entry: &Entry) -> io::Result<Running> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
    let (program, arguments) = entry.command.split_first().ok_or_else(empty)?;
    let mut child = prepared(entry, program, arguments)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let missing = || io::Error::other("the command has no streams");
    let input = child.stdin.take().ok_or_else(missing)?;
    let output = child.stdout.take().ok_or_else(missing)?;
    let problems = child.stderr.take().ok_or_else(missing)?;
    Ok(Running {
        pid: pid_of(&child)?,
        child,
        input: Input { to: Some(Box::new(input)), pty: None },
        outputs: vec![(Frame::Data, Box::new(output)), (Frame::Problems, Box::new(problems))],
    })
}

fn with_terminal(entry: &Entry, pty: Pty, commands: OwnedFd) -> io::Result<Running> {
    if let Some((user, group)) = entry.identity {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        rustix::fs::fchown(&commands, Some(user), Some(group))?;
    }
    let arguments: Vec<String> =
        [LEADER.to_owned()].into_iter().chain(entry.command.iter().cloned()).collect();
    let child = prepared(entry, "/proc/self/exe", &arguments)
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

/// Nobody hears what it says. This process stays outside of the group, whose memory is for the task
/// and those who ask it how it is.
fn quietly(entry: &Entry) -> io::Result<Running> {
    let (mut command, let_go) = match &entry.group {
        Some(path) => {
            let group = group(path).map_err(io::Error::other)?;
            let waiting =
                waiting(&entry.command, &entry.directory, entry.identity, &entry.env)?.apart();
            (Command::from(waiting.0), Some((waiting.1, group)))
        }
        None => {
            let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
            let (program, arguments) = entry.command.split_first().ok_or_else(empty)?;
            let mut command = prepared(entry, program, arguments);
            command.stdin(Stdio::null());
            (command, None)
        }
    };
    let child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    drop(command);
    if let (Some((line, group)), Some(pid)) = (let_go, child.id()) {
        // Not counted by a hierarchy that only counts: a probe is short.
        line.let_go(pid, &group)?;
    }
    let input = Input { to: None, pty: None };
    Ok(Running { pid: pid_of(&child)?, child, input, outputs: Vec::new() })
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let number = child.id().and_then(|number| i32::try_from(number).ok());
    number.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("the command has no number"))
}

impl Running {
    /// What to tell at the end; nothing when nobody is there to be told.
    async fn serve_to_the_end(
        self,
        entry: &Entry,
        from: BufReader<OwnedReadHalf>,
        to: &Out,
    ) -> Option<Frame> {
        let Running { mut child, pid, input, outputs } = self;
        let (over, is_over) = watch::channel(false);
        let lost = Arc::new(Notify::new());
        let mut pumps: Vec<JoinHandle<()>> = outputs
            .into_iter()
            .map(|(kind, output)| {
                let pump = pump(output, kind, to.clone(), is_over.clone());
                ending_with(pump, lost.clone())
            })
            .collect();
        pumps.push(ending_with(beat(to.clone(), lost.clone(), is_over), lost.clone()));
        let gone = async {
            tokio::select! {
                () = obey(from, input, pid) => {}
                () = lost.notified() => {}
            }
        };
        tokio::pin!(gone);
        let status = tokio::select! {
            status = child.wait() => status,
            () = &mut gone => return None,
        };
        // The command is what the session is for: what it left in the background goes with it.
        sweep(entry).await;
        over.send_replace(true);
        let told = async {
            for pump in pumps {
                // One that panicked has said so.
                let _ = pump.await;
            }
        };
        tokio::select! {
            () = told => {}
            () = &mut gone => return None,
        }
        Some(match status {
            Ok(status) => Frame::Exit(exit_code(status)),
            Err(error) => Frame::Failed(format!("nobody saw how it ended: {error}")),
        })
    }
}

/// A session that shows nothing any more is over.
fn ending_with(
    work: impl Future<Output = ()> + Send + 'static,
    lost: Arc<Notify>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if guarded(work).await.is_err() {
            lost.notify_one();
        }
    })
}

/// Does what frames say until the other side is gone. One that nobody can read is one that is gone.
async fn obey(mut from: BufReader<OwnedReadHalf>, mut input: Input, pid: Pid) {
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
                    // Gone meanwhile: its end is on the way.
                    let _ = kill_process_group(pid, signal);
                }
            }
            Frame::Problems(_) | Frame::Exit(_) | Frame::Failed(_) => return,
        }
    }
}

impl Input {
    /// A command that reads no more is not at its end for that.
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
    to: Out,
    mut is_over: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        let patience = if *is_over.borrow_and_update() { DRAIN } else { Duration::MAX };
        let read = tokio::select! {
            read = timeout(patience, output.read(&mut buffer)) => read,
            Ok(()) = is_over.changed() => continue,
        };
        let Ok(Ok(count @ 1..)) = read else { return };
        let frame = kind(Bytes::copy_from_slice(&buffer[..count]));
        if frame.write(&mut *to.lock().await).await.is_err() {
            return;
        }
    }
}

/// Never broken off half-way through a frame.
async fn beat(to: Out, lost: Arc<Notify>, mut is_over: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = sleep(BEAT) => {}
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

/// What shells say of a program that is not there, or is no program.
pub(super) fn code_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Kills all there is below this process, and what became a container's own instead.
async fn sweep(entry: &Entry) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let inner = entry
        .within
        .as_ref()
        .and_then(|within| group(&within.group).and_then(|group| group.child(&within.inner)).ok());
    loop {
        let emptied = inner.as_ref().is_none_or(|inner| inner.kill(Duration::ZERO).is_ok());
        for signal in [Signal::STOP, Signal::KILL] {
            for process in proc::below(&proc::all(), own) {
                if let Some(pid) = Pid::from_raw(process.pid) {
                    // Gone meanwhile is what is wanted.
                    let _ = kill_process(pid, signal);
                }
            }
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if emptied && proc::below(&proc::all(), own).is_empty() {
            break;
        }
        sleep(SWEEP).await;
    }
    if let Some(inner) = inner {
        // What stays of it goes with the group around it.
        let _ = inner.remove();
    }
}
