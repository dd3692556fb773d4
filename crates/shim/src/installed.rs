//! The program `cell-shim` as a file: opened once and started by its descriptor, so that whoever
//! starts shims goes on with the one that it knows, whatever becomes of the file.

use crate::{BUILD, BUILD_FLAG, VERB};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A shim of the build that this program has in itself.
#[derive(Debug)]
pub struct Installed(OwnedFd);

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum UnusableShim {
    #[error("it cannot be run: {0}")]
    Io(#[from] io::Error),
    #[error("it is of build {0:?}, not {BUILD}")]
    OtherBuild(String),
}

impl Installed {
    /// The one at `path`; nothing when there is no such file. Another build is not taken: what an
    /// agent and its shims say to each other may change from one to the next.
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

    /// What starts it, for as long as this is held. The descriptor is closed in whoever is started,
    /// once that has begun.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
