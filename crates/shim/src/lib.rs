//! The shim: one small supervisor process around each task (`cell-shim`, or `cell shim` where that
//! is not installed). It starts the program, pumps its output into bounded log files, waits for its
//! exit, leaves no descendant behind, and records the exit before it exits itself. It is in a
//! session of its own and knows nothing of masters, so the agent can be killed, restarted or
//! replaced: pids stay, pipes stay, exits are found on disk.
//!
//! It is the reaper of all its descendants: a program that forks twice and calls `setsid` to get
//! away becomes a child of the shim, and is killed with the rest.
//!
//! Rejected: one shim for all tasks. It would be as important as the agent, and its crash would
//! lose every task's exit with it.

pub mod boot;
pub mod enter;
pub mod installed;
pub mod log;
pub mod log_times;
pub mod open_files;
pub mod proc;
pub mod protocol;
pub mod record;
pub mod sandbox;
#[cfg(test)]
mod scratch;
mod serve;
pub mod spawn;
mod task;

use crate::record::{Durability, RecordError, is_link, open_lock, open_plain};
use cellwright_supervise::{EXIT_CODE, catch_panic, report_in_one_line};
use enter::ENTER;
use protocol::{BEGUN, EXIT, Exit, LAUNCH, Launch, SHIM_LOG, SOCKET, ShimRecord};
use rustix::fs::{FlockOperation, flock};
use serve::ShimRuntime;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;

/// The first argument of every call, of `cell` and of `cell-shim` alike.
pub const VERB: &str = "shim";
/// Prints which build of the shim the program contains.
pub const BUILD_FLAG: &str = "--build";
/// The file that is installed beside `cell`.
pub const SHIM_BINARY: &str = "cell-shim";
/// Identifies the sources that this shim was built from.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("CELL_SHIM_BUILD"));

/// Runs the command line `words`, if it is for a shim: `shim FOLDER`, `shim --enter …` or `shim
/// --build`.
#[must_use]
pub fn dispatch(words: &[OsString]) -> Option<ExitCode> {
    let [verb, words @ ..] = words else { return None };
    if verb != VERB {
        return None;
    }
    // A crash of the processes around a task leaves none of its data in files.
    let _no_core_result = spawn::disable_core_dumps();
    match words {
        [enter, program @ ..] if enter == ENTER => Some(enter::enter(program)),
        [which] if which == BUILD_FLAG => {
            // The caller may be gone.
            let _ = writeln!(io::stdout(), "{BUILD}");
            Some(ExitCode::SUCCESS)
        }
        [folder] => Some(run(folder.as_ref())),
        _ => None,
    }
}

/// Why a shim failed.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("{what}: {why}")]
    Io { what: &'static str, why: io::Error },
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("there is nothing to launch in this folder")]
    NoLaunch,
}

fn io(what: &'static str) -> impl Fn(io::Error) -> ShimError {
    move |why| ShimError::Io { what, why }
}

/// The whole life of a shim.
#[must_use]
pub fn run(folder: &Path) -> ExitCode {
    // A process that is started through a descriptor has its number as its name.
    let _ = rustix::thread::set_name(c"cell-shim");
    open_files::lower();
    report_in_one_line();
    catch_panic(|| run_shim(folder)).unwrap_or_else(|panicked| {
        // The agent finds it gone, and kills its orphans.
        let _ = writeln!(std::io::stderr(), "cell shim: cannot go on: {panicked}");
        ExitCode::from(EXIT_CODE)
    })
}

fn run_shim(folder: &Path) -> ExitCode {
    let result = ShimRuntime::open().and_then(|runtime| match claim_attempt(folder)? {
        // Another shim has claimed this attempt before: it, or the exit it left, is what counts.
        None => Ok(()),
        Some(handles) => runtime.serve(handles),
    });
    result.map_or_else(|error| report_failure(&error), |()| ExitCode::SUCCESS)
}

fn report_failure(error: &ShimError) -> ExitCode {
    // The log may be on a disk that is full.
    let _ = writeln!(std::io::stderr(), "cell shim: {error}");
    ExitCode::FAILURE
}

/// What a shim that has claimed its attempt holds.
pub struct ShimHandles {
    /// Held as long as the shim lives.
    pub lock: File,
    pub launch: Launch,
    pub listener: UnixListener,
}

/// Claims the attempt, once for all time: the process that links the file `begun` first is the
/// shim.
fn claim_attempt(folder: &Path) -> Result<Option<ShimHandles>, ShimError> {
    // Fails for the leader of a process group, which is out of the agent's reach already.
    let _ = rustix::process::setsid();
    spawn::close_inherited_fds();
    std::env::set_current_dir(folder).map_err(io("enter the folder"))?;
    let pid = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(pid))
        .map_err(|why| io("become the reaper")(why.into()))?;
    let lock = open_lock(Path::new(SHIM_LOG)).map_err(io("open the lock"))?;
    // Waits for the short moment in which an agent checks whether a shim is alive.
    flock(&lock, FlockOperation::LockExclusive).map_err(|why| io("take the lock")(why.into()))?;
    let launch: Launch = record::read(Path::new(LAUNCH))?.ok_or(ShimError::NoLaunch)?;
    let number = pid.as_raw_nonzero().get();
    let born = crate::proc::get(number).map_or(0, |process| process.born);
    let boot_id = crate::boot::boot_id().map_err(io("read the boot id"))?;
    if !claim(Path::new(""), &ShimRecord { shim: number, born, boot_id })? {
        return Ok(None);
    }
    let listener = UnixListener::bind(SOCKET).map_err(io("listen"))?;
    listener.set_nonblocking(true).map_err(io("listen"))?;
    Ok(Some(ShimHandles { lock, launch, listener }))
}

/// Claims this attempt for the caller, for good; false when it is claimed already.
///
/// # Errors
/// When the disk refuses.
pub fn claim(folder: &Path, shim_record: &ShimRecord) -> Result<bool, ShimError> {
    // A power cut ends the attempt, and the next boot knows that without this record.
    Ok(record::create(&folder.join(BEGUN), shim_record, Durability::Process)?)
}

/// Whether a shim is alive in this folder.
///
/// # Errors
/// When the lock cannot be checked.
pub fn is_alive(folder: &Path) -> io::Result<bool> {
    let lock = match open_plain(&folder.join(SHIM_LOG), OpenOptions::new().read(true)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        // Not what a shim holds: the processes of a task that changed it are to be killed.
        Err(error) if error.kind() == io::ErrorKind::InvalidData || is_link(&error) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The exit of the attempt in this folder, if it has one.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn exit_of(folder: &Path) -> Result<Option<Exit>, RecordError> {
    record::read(&folder.join(EXIT))
}

/// The shim that began the attempt in this folder, if one did.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn read_begun(folder: &Path) -> Result<Option<ShimRecord>, RecordError> {
    record::read(&folder.join(BEGUN))
}
