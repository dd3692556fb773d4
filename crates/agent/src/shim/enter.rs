//! The first moments of a plain program with a control group: a process that waits until it has
//! been put into its group, and then becomes the program (`cell shim --enter …`, typed by shims).
//! So there is nothing a program does, or takes, outside of its group.
//!
//! Rejected: the shim enters the group, starts the program and leaves. Under a small limit it is
//! the shim that the kernel would kill, and with it the program's end would be lost.

use rustix::io::{dup, read, retry_on_intr, write};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

pub const ENTER: &str = "--enter";
/// Stands for a user or group that stays.
pub const SAME: &str = "-";
/// What the waiting process is told.
pub const GO: &[u8] = b"g";

/// The word to go, and the program's environment after it, to the end of what is said.
fn told(line: &OwnedFd) -> Option<Vec<(String, String)>> {
    let mut said = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        match retry_on_intr(|| read(line, &mut piece)).ok()? {
            0 => break,
            count => said.extend_from_slice(&piece[..count]),
        }
    }
    serde_json::from_slice(said.strip_prefix(GO)?).ok()
}

/// Waits to be told on standard input, then becomes the program; `words` are user, group, program
/// and its arguments. Returns only when that fails, having said why on the same socket.
#[must_use]
pub fn enter(words: &[OsString]) -> ExitCode {
    let [user, group, program, arguments @ ..] = words else { return ExitCode::FAILURE };
    let number = |word: &OsString| word.to_str().and_then(|text| text.parse::<u32>().ok());
    // Closed by the program's start, which is how the shim knows of it.
    let Ok(line) = dup(rustix::stdio::stdin()) else { return ExitCode::FAILURE };
    if rustix::io::fcntl_setfd(&line, rustix::io::FdFlags::CLOEXEC).is_err() {
        return ExitCode::FAILURE;
    }
    // The shim is gone, or told half: nobody would know of the program.
    let Some(env) = told(&line) else { return ExitCode::FAILURE };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(env).stdin(Stdio::null());
    if let (Some(user), Some(group)) = (number(user), number(group)) {
        command.uid(user).gid(group);
    }
    let why = command.exec();
    // Nobody is there to be told that telling failed.
    let _ = write(&line, why.to_string().as_bytes());
    ExitCode::FAILURE
}
