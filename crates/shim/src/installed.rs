//! The executable `cell-shim`: opened once and started through its descriptor, so that a running
//! agent keeps using the one it opened, even when the file is replaced.

use crate::{BUILD, BUILD_FLAG, VERB};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A shim of the same build as the one in this program.
#[derive(Debug)]
pub struct Installed(OwnedFd);

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableShim {
    #[error("it cannot be run: {0}")]
    Io(#[from] io::Error),
    #[error("it is of build {0:?}, not {BUILD}")]
    OtherBuild(String),
}

impl Installed {
    /// The one at `path`; nothing when there is no such file. Another build is not used: the
    /// messages between an agent and its shims may change from one to the next.
    ///
    /// # Errors
    /// When it cannot be run, or is of another build.
    pub fn open(path: &Path) -> Result<Option<Installed>, UnusableShim> {
        let file = match open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Installed(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(why) => return Err(UnusableShim::Io(why.into())),
        };
        let mut command = Command::new(file.path());
        command.args([VERB, BUILD_FLAG]).stdin(Stdio::null()).stderr(Stdio::null());
        let build = String::from_utf8_lossy(&command.output()?.stdout).trim().to_owned();
        if build == BUILD { Ok(Some(file)) } else { Err(UnusableShim::OtherBuild(build)) }
    }

    /// The path to execute, for as long as `self` is held. The descriptor is closed in the started
    /// process, once that has begun.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
