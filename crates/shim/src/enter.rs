//! The first moments of a plain program with a cgroup: a process that joins its cgroup, and then
//! executes the program (`cell shim --enter …`, started by shims). So the program never uses
//! anything outside of its limits. The process joins by itself, for moving another process waits
//! for the whole machine (`crates/isolate/src/cgroup/join.rs`).
//!
//! Rejected: the shim joins the cgroup, starts the program and leaves. Under a small limit the
//! kernel would kill the shim, and with it the program's exit would be lost.

use cellwright_isolate::cgroup::SELF_PID;
use rustix::io::{dup, read, retry_on_intr, write};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

pub const ENTER: &str = "--enter";
/// Stands for a user or group that stays.
pub const KEEP_ID: &str = "-";
/// The first byte that the waiting process reads.
pub const GO_PREFIX: &[u8] = b"g";

/// The message after it, up to the end of the stream.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnterMessage {
    /// The files through which the process joins its cgroup.
    pub entrances: Vec<PathBuf>,
    /// The whole environment of the program.
    pub env: Vec<(String, String)>,
}

fn read_message(line: &OwnedFd) -> Option<EnterMessage> {
    let mut received = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        match retry_on_intr(|| read(line, &mut piece)).ok()? {
            0 => break,
            count => received.extend_from_slice(&piece[..count]),
        }
    }
    serde_json::from_slice(received.strip_prefix(GO_PREFIX)?).ok()
}

/// Joins the cgroup. This process has one thread, so it joins as a whole.
fn join_cgroup(entrances: &[PathBuf]) -> Result<(), String> {
    for entrance in entrances {
        let opened = OpenOptions::new().write(true).open(entrance);
        opened
            .and_then(|mut file| file.write_all(SELF_PID.as_bytes()))
            .map_err(|why| format!("cannot enter {}: {why}", entrance.display()))?;
    }
    Ok(())
}

/// Waits for the message on standard input, then executes the program; `words` are user, group,
/// program and its arguments. Returns only when that fails, having written why to the same socket.
#[must_use]
pub fn enter(words: &[OsString]) -> ExitCode {
    let [user, group, program, arguments @ ..] = words else { return ExitCode::FAILURE };
    let number = |word: &OsString| word.to_str().and_then(|text| text.parse::<u32>().ok());
    // Closed by the program's start, which is how the shim learns of it.
    let Ok(line) = dup(rustix::stdio::stdin()) else { return ExitCode::FAILURE };
    if rustix::io::fcntl_setfd(&line, rustix::io::FdFlags::CLOEXEC).is_err() {
        return ExitCode::FAILURE;
    }
    // The shim is gone, or the message is incomplete: no shim would know of the program.
    let Some(message) = read_message(&line) else { return ExitCode::FAILURE };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(message.env).stdin(Stdio::null());
    if let (Some(user), Some(group)) = (number(user), number(group)) {
        command.uid(user).gid(group);
    }
    let why = match join_cgroup(&message.entrances) {
        Ok(()) => command.exec().to_string(),
        Err(why) => why,
    };
    // The shim may be gone.
    let _ = write(&line, why.as_bytes());
    ExitCode::FAILURE
}
