//! The first moments of a plain program with a control group: a process that goes into its group,
//! and then becomes the program (`cell shim --enter …`, typed by shims). So there is nothing a
//! program takes outside of its limits. It goes by itself, for whoever is moved by another waits
//! for the whole machine (`crates/isolate/src/cgroup/join.rs`).
//!
//! Rejected: the shim enters the group, starts the program and leaves. Under a small limit it is
//! the shim that the kernel would kill, and with it the program's end would be lost.

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
/// What the waiting process is told first.
pub const GO_PREFIX: &[u8] = b"g";

/// What it is told after that, to the end of what is said.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnterMessage {
    /// The doors of its control group.
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

/// Goes into the group. This process has one thread, so all of it goes.
fn join_cgroup(entrances: &[PathBuf]) -> Result<(), String> {
    for entrance in entrances {
        let opened = OpenOptions::new().write(true).open(entrance);
        opened
            .and_then(|mut file| file.write_all(SELF_PID.as_bytes()))
            .map_err(|why| format!("cannot enter {}: {why}", entrance.display()))?;
    }
    Ok(())
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
    // Nobody is there to be told that telling failed.
    let _ = write(&line, why.as_bytes());
    ExitCode::FAILURE
}
