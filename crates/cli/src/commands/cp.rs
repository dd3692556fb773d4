//! `cell cp`: files and folders to a task, or from one. They travel as an archive over a session
//! in the task, whose helper reads and writes as the task's user below the task's root; this side
//! takes nothing from it but files and folders below the one name that it was asked for.

use super::Success;
use super::exec::{explain_not_running, session_closed_failure};
use super::target::{TargetArg, parse_target};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::progress::StatusLine;
use crate::runtime::block_on;
use cellwright_agent::session::file_tree::{Root, Target, Totals, pack, unpack};
use cellwright_agent::session::frame_pipe::{PipeReader, input_pipe, output_pipe};
use cellwright_api::client::{ClientError, SessionStream};
use cellwright_api::error::Code;
use cellwright_api::exec::{CopyDirection, Frame, IDLE_TIMEOUT};
use cellwright_cell::name::JobKey;
use clap::Args;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};

const EXAMPLES: &str = "\
Examples:
  cell cp data.csv dev/hello/0:data.csv
  cell cp dev/hello/0:/var/log/app ./logs
  cell cp config/ hello/0:

One of both is in a task: TASK:PATH, as the task sees its files, below its
folder unless PATH begins with /. Where the destination is a folder, the copy
goes into it under its own name. Permissions are kept; links, devices and pipes
are left out and named. It is done as the task's user, takes the same right as
cell exec, and is audited.";

/// Interval between updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Copy files and folders to a task, or from one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    /// What is copied: a path here, or TASK:PATH
    #[arg(value_name = "FROM", value_parser = parse_copy_path)]
    from: CopyPath,

    /// Where to: TASK:PATH, or a path here
    #[arg(value_name = "TO", value_parser = parse_copy_path)]
    to: CopyPath,
}

/// A path here or in a task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyPath {
    Local(PathBuf),
    InTask(TargetArg, PathBuf),
}

/// A path here that has a colon is written with a slash before it, as `./a:b`.
fn parse_copy_path(text: &str) -> Result<CopyPath, String> {
    let Some((task, path)) = text.split_once(':') else { return parse_path(text) };
    if task.starts_with(['.', '/']) {
        return parse_path(text);
    }
    let path = if path.is_empty() { "." } else { path };
    let task = parse_target(task).map_err(|allowed| format!("{task:?}: {allowed}"))?;
    Ok(CopyPath::InTask(task, path.into()))
}

fn parse_path(text: &str) -> Result<CopyPath, String> {
    if text.is_empty() {
        Err("allowed: a path, or TASK:PATH".into())
    } else {
        Ok(CopyPath::Local(text.into()))
    }
}

impl CpArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let both = |message: &str| Failure::Usage {
            message: message.into(),
            next: "cell cp FILE TASK:PATH, or cell cp TASK:PATH FILE".into(),
        };
        let cell = connection.cell()?;
        match (self.from, self.to) {
            (CopyPath::Local(from), CopyPath::InTask(task, to)) => {
                block_on(copy_into(&cell, &from, &task, &to))
            }
            (CopyPath::InTask(task, from), CopyPath::Local(to)) => {
                block_on(copy_out(&cell, &task, &from, &to))
            }
            (CopyPath::Local(_), CopyPath::Local(_)) => Err(both("neither of both is in a task")),
            (CopyPath::InTask(..), CopyPath::InTask(..)) => {
                Err(both("both are in a task; allowed: one"))
            }
        }?;
        Ok(Success::Done)
    }
}

/// The session of a copy, and what it is of.
struct Copy {
    job: JobKey,
    index: u32,
    reader: ReadHalf<SessionStream>,
    writer: WriteHalf<SessionStream>,
}

impl Copy {
    async fn open(
        cell: &Cell,
        task: &TargetArg,
        direction: CopyDirection,
        path: &Path,
        name: Option<&str>,
    ) -> Result<Copy, Failure> {
        let path = text_of(path)?;
        let again = |task: &str| match direction {
            CopyDirection::Into => format!("cell cp FILE {task}:{path}"),
            CopyDirection::OutOf => format!("cell cp {task}:{path} FILE"),
        };
        let (job, index) = task.resolve_one_task(cell, again).await?;
        match cell.client.copy_files(&job, index, direction, path, name).await {
            Ok(stream) => {
                let (reader, writer) = split(stream);
                Ok(Copy { job, index, reader, writer })
            }
            Err(error) if error.code() == Some(Code::WrongState) => {
                Err(explain_not_running(cell, &job, index, error).await)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::Usage {
        message: format!("{} is not UTF-8", path.display()),
        next: "name the folder it is in".into(),
    })
}

fn local_failure(error: &io::Error) -> Failure {
    Failure::Operation {
        message: error.to_string(),
        next: "check the path and the free space, then run it again".into(),
    }
}

async fn copy_into(cell: &Cell, from: &Path, task: &TargetArg, to: &Path) -> Result<(), Failure> {
    let source = Root::Machine.open_source(from).map_err(|error| local_failure(&error))?;
    let whole = from.canonicalize().map_err(|error| local_failure(&error))?;
    let name = whole.file_name().map(Path::new).map(text_of).transpose()?;
    let copy = Copy::open(cell, task, CopyDirection::Into, to, name).await?;
    let name = format!("{}/{}", copy.job, copy.index);
    let sent = Arc::new(AtomicU64::new(0));
    let Copy { job, index, mut reader, writer } = copy;
    let sending = send(source, writer, sent.clone());
    let answering = answer(&mut reader, None, &name);
    let both = async {
        tokio::select! {
            ended = answering => ended,
            // Without an error it never ends: the answer says what became of it.
            Err(failure) = sending => Err(failure),
        }
    };
    let ended = with_progress("sent", &sent, both).await;
    finish(cell, (&job, index), ended).await
}

/// Sends an archive of the source, and its end.
async fn send(
    source: OwnedFd,
    mut writer: impl AsyncWrite + Unpin,
    sent: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let (mut pipe, mut frames) = output_pipe();
    let packing = spawn_blocking(move || {
        let mut report = |name: &Path, why: &str| {
            crate::output::note!("{}: {why}", name.display());
        };
        pack(source, &mut pipe, &mut report)?;
        pipe.flush()
    });
    while let Some(frame) = frames.recv().await {
        if let Frame::Data(bytes) = &frame {
            sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        // When the connection is closed, the answer says why.
        if frame.write(&mut writer).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    let packed = packing.await.unwrap_or_else(|_| Err(io::Error::other("it was not read")));
    packed.map_err(|error| local_failure(&error))?;
    if Frame::End.write(&mut writer).await.is_err() {
        std::future::pending::<()>().await;
    }
    // Closed only with the session: before, it would be the end of it.
    std::future::pending::<()>().await;
    drop(writer);
    Ok(())
}

async fn copy_out(cell: &Cell, task: &TargetArg, from: &Path, to: &Path) -> Result<(), Failure> {
    let name = from.file_name().map(OsString::from).unwrap_or_default();
    let target = Target::find(&Root::Machine, to, &name).map_err(|error| local_failure(&error))?;
    let copy = Copy::open(cell, task, CopyDirection::OutOf, from, None).await?;
    let name = format!("{}/{}", copy.job, copy.index);
    let received = Arc::new(AtomicU64::new(0));
    let (sender, pipe) = input_pipe();
    let counted = CountingReader { pipe, count: received.clone() };
    let unpacking = spawn_blocking(move || unpack(&target, counted));
    // The writer stays open as long as the session lasts.
    let Copy { job, index, mut reader, writer } = copy;
    let both = async {
        let answering = answer(&mut reader, Some(&sender), &name);
        let unpacked = |done: Result<io::Result<Totals>, _>| {
            done.unwrap_or_else(|_| Err(io::Error::other("it was not written")))
                .map_err(|error| local_failure(&error))
        };
        tokio::pin!(unpacking);
        tokio::select! {
            biased;
            ended = answering => {
                if let Ok(SessionEnd::Done) = ended {
                    // Nobody waits for it where writing has failed.
                    drop(sender.send(None).await);
                    unpacked(unpacking.await)?;
                }
                ended
            }
            done = &mut unpacking => unpacked(done).map(|_| SessionEnd::Done),
        }
    };
    let ended = with_progress("received", &received, both).await;
    drop(writer);
    finish(cell, (&job, index), ended).await
}

/// Counts what is read.
struct CountingReader {
    pipe: PipeReader,
    count: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.pipe.read(into)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionEnd {
    Done,
    /// Without a word.
    Closed,
}

/// Reads frames to the end of the session.
async fn answer(
    from: &mut (impl AsyncRead + Unpin),
    content: Option<&tokio::sync::mpsc::Sender<Option<bytes::Bytes>>>,
    task: &str,
) -> Result<SessionEnd, Failure> {
    let failed = |message: String| Failure::Operation {
        message,
        next: format!("look what is there: cell exec {task} -- ls -la"),
    };
    loop {
        // Masters time out first; this is for a master that is gone.
        let Ok(frame) = timeout(IDLE_TIMEOUT * 2, Frame::read(from)).await else {
            return Err(failed("nothing is heard of the session any more".into()));
        };
        match (frame, content) {
            (Ok(Some(Frame::Data(bytes))), _) if bytes.is_empty() => {}
            (Ok(Some(Frame::Data(bytes))), Some(content)) => {
                if content.send(Some(bytes)).await.is_err() {
                    // What went wrong is said by who reads it.
                    std::future::pending::<()>().await;
                }
            }
            (Ok(Some(Frame::Stderr(text))), _) => {
                crate::output::note!("{}", String::from_utf8_lossy(&text).trim_end());
            }
            (Ok(Some(Frame::Exit(0))), _) => return Ok(SessionEnd::Done),
            (Ok(Some(Frame::Failed(text))), _) => return Err(failed(format!("{task}: {text}"))),
            (Ok(Some(_)), _) => {
                return Err(failed("the other side says what it has no reason to".into()));
            }
            (Ok(None) | Err(_), _) => return Ok(SessionEnd::Closed),
        }
    }
}

async fn finish(
    cell: &Cell,
    (job, index): (&JobKey, u32),
    ended: Result<SessionEnd, Failure>,
) -> Result<(), Failure> {
    match ended? {
        SessionEnd::Done => Ok(()),
        SessionEnd::Closed => {
            let error: Option<ClientError> = cell.client.task(job, index).await.err();
            Err(session_closed_failure(error, &format!("{job}/{index}")))
        }
    }
}

/// Shows on a terminal how much there is of it so far.
async fn with_progress<T>(verb: &str, count: &AtomicU64, work: impl Future<Output = T>) -> T {
    let Some(mut line) = StatusLine::if_terminal() else { return work.await };
    let mut work = std::pin::pin!(work);
    let mut ticks = interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => {
                let count = format::bytes(count.load(Ordering::Relaxed));
                line.update(vec![format!("{count} {verb}")]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_is_what_names_a_task() {
        let task = |text: &str| parse_target(text).unwrap();
        for (text, place) in [
            ("web/0:/etc/app", CopyPath::InTask(task("web/0"), "/etc/app".into())),
            ("ann/web/3:data", CopyPath::InTask(task("ann/web/3"), "data".into())),
            ("web:", CopyPath::InTask(task("web"), ".".into())),
            ("web/0:a:b", CopyPath::InTask(task("web/0"), "a:b".into())),
            ("./a:b", CopyPath::Local("./a:b".into())),
            ("/tmp/a:b", CopyPath::Local("/tmp/a:b".into())),
            ("file", CopyPath::Local("file".into())),
        ] {
            assert_eq!(parse_copy_path(text), Ok(place), "{text}");
        }
        for bad in ["", ":file", "a/b/c/d:file"] {
            assert!(parse_copy_path(bad).is_err(), "{bad:?}");
        }
    }
}
