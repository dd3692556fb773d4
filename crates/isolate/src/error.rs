//! Errors at the boundary to the kernel, with the file and the value in every message: an operator
//! reads "permission denied" many times, and only the path tells which file it is.

use crate::cgroup::Controller;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {doing} {path}: {source}")]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write `{value}` to {path}: {source}")]
    Write { path: PathBuf, value: String, source: io::Error },
    /// A file of the kernel cannot be parsed.
    #[error("{path}: {field} is `{value}`, expected {expected}")]
    Unreadable { path: PathBuf, field: &'static str, value: String, expected: &'static str },
    /// The caller's request is invalid.
    #[error("{field} is `{value}`, allowed: {allowed}")]
    Invalid { field: &'static str, value: String, allowed: &'static str },
    /// Anything mounted there would end up where the link leads.
    #[error("mount target {target}: {link} is a link in {within}; allowed: no link on the way")]
    Link { target: PathBuf, link: PathBuf, within: &'static str },
    #[error("this machine has no {0} controller for control groups")]
    NoController(Controller),
    #[error("no control group file system is mounted")]
    NoCgroups,
    /// Killed, and yet there: usually a process in uninterruptible sleep.
    #[error("control group {group} still holds processes {pids:?}")]
    StillAlive { group: String, pids: Vec<u32> },
    #[error("control group {group} did not come to a stop in time")]
    NotFrozen { group: String },
    #[error("{path} is still a mount point; nothing below it is deleted")]
    StillMounted { path: PathBuf },
    #[error("cannot run {program}: {source}")]
    Spawn { program: PathBuf, source: io::Error },
    #[error("{program} {verb} of {id} failed: {message}")]
    Runtime { program: PathBuf, verb: &'static str, id: String, message: String },
    #[error("cannot write the container's description: {0}")]
    Description(#[from] oci_spec::OciSpecError),
}

impl Error {
    /// For `map_err`: names the file.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }

    pub(crate) fn invalid(
        field: &'static str,
        value: impl ToString,
        allowed: &'static str,
    ) -> Error {
        Error::Invalid { field, value: value.to_string(), allowed }
    }
}
