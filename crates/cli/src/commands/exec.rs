//! `cell exec`: runs a command inside a task, with its input and output here. With `-t` both ends
//! are terminals: the local one is in raw mode while the command runs, so that every key reaches
//! the remote one, which also learns of resizes.

use super::target::{TargetArg, parse_target};
use super::{Success, status_text};
use crate::command_line::shell_quoted;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::runtime::block_on;
use crate::sanitize::StreamSanitizer;
use bytes::Bytes;
use cellwright_api::client::{ClientError, SessionStream};
use cellwright_api::error::Code;
use cellwright_api::exec::{Frame, IDLE_TIMEOUT, TerminalSize};
use cellwright_api::types::TaskView;
use cellwright_cell::name::JobKey;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Read, Write};
use tokio::io::{AsyncWrite, ReadHalf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

const EXAMPLES: &str = "\
Examples:
  cell exec hello/0 -- ps
  cell exec -t dev/hello/0 -- sh
  cell exec dev/hello/0 -- tar c data > data.tar

The command runs in the task's folder, with its environment, as its user and
within its limits, and ends with the task. The exit code is the command's; 127
where the task has no such program, 126 where it is not executable.
Owners of a job may enter its tasks; users with the capability enter_tasks
anybody's. Every command is audited.";

/// Bytes read from standard input at a time.
const READ_BYTES: usize = 16 << 10;
/// Reads that are queued for the connection.
const QUEUED_READS: usize = 4;

/// Run a command where a task runs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExecArgs {
    /// Give the command a terminal
    #[arg(short = 't', long = "terminal")]
    terminal: bool,

    /// The task; the job alone where it has one task
    #[arg(value_name = "TASK", value_parser = parse_target)]
    task: TargetArg,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<String>,
}

/// How a session ended.
enum SessionEnd {
    /// The command exited with this code.
    Exit(u8),
    /// The connection closed without an exit code.
    Closed,
}

fn check_task_hint(task: &str) -> String {
    format!("see whether the task still runs: cell status {task}")
}

impl ExecArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        if self.terminal && !io::stdin().is_terminal() {
            return Err(Failure::Usage {
                message: "-t takes a terminal, and standard input is none".into(),
                next: "the same command without -t".into(),
            });
        }
        let cell = connection.cell()?;
        block_on(self.run_session(&cell)).map(Success::ExitWith)
    }

    async fn run_session(&self, cell: &Cell) -> Result<u8, Failure> {
        let terminal = self.terminal.then(|| {
            let term = std::env::var("TERM").unwrap_or_default();
            (terminal_size(), term.chars().take(64).collect())
        });
        let again = |task: &str| same_command(self.terminal, task, &self.command);
        let (job, index) = self.task.resolve_one_task(cell, again).await?;
        let stream = match cell.client.exec(&job, index, &self.command, terminal).await {
            Ok(stream) => stream,
            Err(error) if error.code() == Some(Code::WrongState) => {
                return Err(explain_not_running(cell, &job, index, error).await);
            }
            Err(error) => return Err(error.into()),
        };
        let task = format!("{job}/{index}");
        let raw_terminal = self.terminal.then(RawTerminal::enter).transpose();
        let raw_terminal =
            raw_terminal.map_err(|error| Failure::from_error(&error, &check_task_hint(&task)))?;
        let ended = relay(stream, self.terminal, &task).await;
        drop(raw_terminal);
        match ended? {
            SessionEnd::Exit(code) => Ok(code),
            SessionEnd::Closed => {
                Err(session_closed_failure(cell.client.task(&job, index).await.err(), &task))
            }
        }
    }
}

/// The same command for this task, quoted so that it can be pasted into a shell.
fn same_command(terminal: bool, task: &str, command: &[String]) -> String {
    let flag = if terminal { "-t " } else { "" };
    format!("cell exec {flag}{task} -- {}", shell_quoted(command))
}

/// The failure for a session that ended without a reason. `task_error`: the result of looking up
/// the task afterwards; if no master can be reached, that is the reason.
pub fn session_closed_failure(task_error: Option<ClientError>, task: &str) -> Failure {
    match task_error {
        Some(ClientError::Unreachable { .. }) => Failure::Operation {
            message: format!("the connection to the master was lost; the task {task} goes on"),
            next: format!("as soon as a master answers: cell status {task}"),
        },
        _ => Failure::Operation {
            message: "the session was ended: the task, the right to it, or the master it went \
                      through"
                .into(),
            next: check_task_hint(task),
        },
    }
}

/// The state of a task that does not run, and where to look for the reason.
pub async fn explain_not_running(
    cell: &Cell,
    job: &JobKey,
    index: u32,
    error: ClientError,
) -> Failure {
    match cell.client.task(job, index).await {
        Ok(task) => not_running_failure(&task.value.item, crate::clock::now()),
        Err(_) => error.into(),
    }
}

fn not_running_failure(task: &TaskView, now: Time) -> Failure {
    let (name, state, note) = (&task.name, status_text::state(task), status_text::note(task, now));
    let note = if note.is_empty() { note } else { format!(": {note}") };
    let next = match task.state {
        _ if status_text::is_failing(task) => format!("why it fails: cell logs {name}"),
        TaskState::Pending => format!("why it waits: cell explain {name}"),
        TaskState::Dead(_) => format!("what it wrote: cell logs {name}"),
        _ => format!("wait until it runs: cell status {name} --watch"),
    };
    Failure::Operation { message: format!("{name} does not run, it is {state}{note}"), next }
}

/// The size of the local terminal; a usual one if it is unknown.
fn terminal_size() -> TerminalSize {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            TerminalSize { rows: size.ws_row, columns: size.ws_col }
        }
        _ => TerminalSize { rows: 24, columns: 80 },
    }
}

/// The local terminal, in raw mode until dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> io::Result<RawTerminal> {
        let before = tcgetattr(io::stdin())?;
        let mut raw_terminal = before.clone();
        raw_terminal.make_raw();
        // Keys typed ahead are input of the command.
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw_terminal)?;
        Ok(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // An error here cannot be handled.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

async fn relay(stream: SessionStream, terminal: bool, task: &str) -> Result<SessionEnd, Failure> {
    let (from, mut to) = tokio::io::split(stream);
    let mut signals = Signals::new(terminal)
        .map_err(|error| Failure::from_error(&error, &check_task_hint(task)))?;
    let mut input = standard_input();
    let sending = async {
        while let Some(frame) = next_input(&mut input, &mut signals).await {
            let SessionInput::Frame(frame) = frame else { return };
            // When the connection is closed, the receiving direction reports why.
            if send_frame(&mut to, frame).await.is_err() {
                break;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        session_end = receive(from, terminal, task) => session_end,
        () = sending => Ok(SessionEnd::Exit(128 + 2)),
    }
}

async fn send_frame(to: &mut (impl AsyncWrite + Unpin), frame: Frame) -> io::Result<()> {
    frame.write(to).await
}

/// Standard input in chunks; `None` at its end. It is read on a thread of its own that is not
/// joined: the thread may be blocked in a read when the command has ended.
fn standard_input() -> mpsc::Receiver<Option<Bytes>> {
    let (sender, receiver) = mpsc::channel(QUEUED_READS);
    std::thread::spawn(move || {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let piece = match io::stdin().read(&mut buffer) {
                Ok(count @ 1..) => Some(Bytes::copy_from_slice(&buffer[..count])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => None,
            };
            let is_end = piece.is_none();
            if sender.blocking_send(piece).is_err() || is_end {
                return;
            }
        }
    });
    receiver
}

enum SessionInput {
    Frame(Frame),
    /// The user wants to leave the session, whatever the command does.
    Leave,
}

/// Local signals to forward to the session. With a terminal, keys are forwarded as input.
struct Signals {
    resized: Signal,
    forwarded: [(u8, Signal); 3],
    interrupts: u32,
    terminal: bool,
}

impl Signals {
    fn new(terminal: bool) -> io::Result<Signals> {
        let listen = |number: u8| signal(SignalKind::from_raw(i32::from(number)));
        let listen = [(2, listen(2)?), (15, listen(15)?), (1, listen(1)?)];
        let resized = signal(SignalKind::window_change())?;
        Ok(Signals { resized, forwarded: listen, interrupts: 0, terminal })
    }
}

async fn next_input(
    input: &mut mpsc::Receiver<Option<Bytes>>,
    signals: &mut Signals,
) -> Option<SessionInput> {
    let [(interrupt, interrupted), (terminate, terminated), (hang_up, hung_up)] =
        &mut signals.forwarded;
    let number = tokio::select! {
        piece = input.recv() => match piece {
            Some(Some(bytes)) => return Some(SessionInput::Frame(Frame::Data(bytes))),
            Some(None) => return Some(SessionInput::Frame(Frame::End)),
            // Signals are still forwarded after the input has ended.
            None => std::future::pending().await,
        },
        _ = signals.resized.recv(), if signals.terminal => {
            return Some(SessionInput::Frame(Frame::Resize(terminal_size())));
        }
        _ = interrupted.recv() => {
            signals.interrupts += 1;
            *interrupt
        }
        _ = terminated.recv() => *terminate,
        _ = hung_up.recv() => *hang_up,
    };
    let leave = signals.terminal || signals.interrupts > 1;
    Some(if leave { SessionInput::Leave } else { SessionInput::Frame(Frame::Signal(number)) })
}

/// Receives output until the command's end.
async fn receive(
    mut from: ReadHalf<SessionStream>,
    terminal: bool,
    task: &str,
) -> Result<SessionEnd, Failure> {
    let mut output = SessionOutput::for_stream(io::stdout(), terminal);
    let mut problems = SessionOutput::for_stream(io::stderr(), terminal);
    let broken_session =
        |message: String| Failure::Operation { message, next: check_task_hint(task) };
    loop {
        // Masters time out first; this is for a master that is gone.
        let Ok(received) = timeout(IDLE_TIMEOUT * 2, Frame::read(&mut from)).await else {
            return Err(broken_session("nothing is heard of the session any more".into()));
        };
        match received {
            Ok(Some(Frame::Data(bytes))) => output.write_bytes(&bytes)?,
            Ok(Some(Frame::Stderr(bytes))) => problems.write_bytes(&bytes)?,
            // Every exit code of a process fits.
            Ok(Some(Frame::Exit(code))) => {
                output.finish()?;
                problems.finish()?;
                return Ok(SessionEnd::Exit(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            Ok(Some(Frame::Failed(message))) => return Err(broken_session(message)),
            Ok(Some(_)) => {
                return Err(broken_session("the other side says what it has no reason to".into()));
            }
            // A master that crashes may still close the connection, or have it cut.
            Ok(None) | Err(_) => return Ok(SessionEnd::Closed),
        }
    }
}

/// The destination of the command's output. With `-t` the command controls the local terminal.
/// Output to anything but a terminal is unchanged; output to a terminal that the command was not
/// given is sanitized.
struct SessionOutput<W> {
    to: W,
    sanitizer: Option<StreamSanitizer>,
}

impl<W: Write + IsTerminal> SessionOutput<W> {
    fn for_stream(to: W, is_shared_terminal: bool) -> SessionOutput<W> {
        let sanitizer = (!is_shared_terminal && to.is_terminal()).then(StreamSanitizer::default);
        SessionOutput { to, sanitizer }
    }
}

impl<W: Write> SessionOutput<W> {
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.sanitizer {
            Some(sanitizer) => self.to.write_all(sanitizer.push(bytes).as_bytes()),
            None => self.to.write_all(bytes),
        };
        written.and_then(|()| self.to.flush()).map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Write { what: "the output".into(), source },
        })
    }

    /// Called after the last output.
    fn finish(mut self) -> Result<(), Failure> {
        let rest = self.sanitizer.take().map_or_else(String::new, |mut pieces| pieces.finish());
        self.write_bytes(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(state: serde_json::Value, failures: u32, message: &str, next: &str) {
        let task = serde_json::from_value(serde_json::json!({
            "name": "dev/hog/0", "index": 0, "state": state, "healthy": true, "attempt": 3,
            "version": 1, "machine": null, "alloc": null,
            "limits": {"cpu": 1, "ram": 1}, "reservation": {"cpu": 1, "ram": 1},
            "ports": [], "devices": [], "waits_for": [], "failures_in_row": failures,
            "not_before": 4000, "changed_at": 0, "crashed_on": [],
        }));
        let Failure::Operation { message: actual_message, next: actual_next } =
            not_running_failure(&task.unwrap(), Time(0))
        else {
            panic!("another failure");
        };
        assert_eq!((actual_message.as_str(), actual_next.as_str()), (message, next));
    }

    #[test]
    fn that_no_master_answers_any_more_is_not_the_end_of_the_task() {
        let failure_text = |task_error| match session_closed_failure(task_error, "dev/web/0") {
            Failure::Operation { message, next } => (message, next),
            other => panic!("{other:?}"),
        };
        let gone = ClientError::Unreachable { tried: 1, last: "m1: refused".into() };
        let (message, next) = failure_text(Some(gone));
        let lost = "the connection to the master was lost; the task dev/web/0 goes on";
        assert_eq!(message, lost);
        assert_eq!(next, "as soon as a master answers: cell status dev/web/0");
        let (message, next) = failure_text(None);
        assert!(message.starts_with("the session was ended: the task"), "{message}");
        assert!(next.ends_with("cell status dev/web/0"), "{next}");
    }

    #[test]
    fn the_command_to_type_again_has_all_that_was_typed() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let plain = same_command(false, "dev/web/0", &words(&["ls", "-l", "/tmp"]));
        assert_eq!(plain, "cell exec dev/web/0 -- ls -l /tmp");
        let quoted = same_command(true, "dev/web/0", &words(&["sh", "-c", "echo it's $HOME", ""]));
        assert_eq!(quoted, r"cell exec -t dev/web/0 -- sh -c 'echo it'\''s $HOME' ''");
    }

    #[test]
    fn what_does_not_run_says_what_it_does_and_where_to_look() {
        let does_not_run = |what: &str| format!("dev/hog/0 does not run, it is {what}");
        check(
            "pending".into(),
            2,
            &does_not_run("failing: failed twice, next try in 4 s"),
            "why it fails: cell logs dev/hog/0",
        );
        check(
            "pending".into(),
            0,
            &does_not_run("pending: next try in 4 s"),
            "why it waits: cell explain dev/hog/0",
        );
        check(
            serde_json::json!({"dead": {"failed": {"code": 7}}}),
            1,
            &does_not_run("failed: exit code 7"),
            "what it wrote: cell logs dev/hog/0",
        );
        check(
            "deferred".into(),
            0,
            &does_not_run("deferred"),
            "wait until it runs: cell status dev/hog/0 --watch",
        );
    }
}
