//! Why a folder cannot be built into a package, or a package not be unpacked. Every case names the
//! entry or field, its value and what is allowed, because the reader of the message wrote the
//! package.

use crate::digest::PackageDigest;
use std::io;
use std::path::{Path, PathBuf};

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Entries,
    /// Bytes of all files together.
    Bytes,
    /// Bytes of the head.
    Head,
    /// Bytes of an extended header: a long name, an attribute.
    Extension,
    /// Bytes on disk: a small file takes a block, a folder too.
    Disk,
    /// Bytes of all names and links of an image's layer together.
    Names,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limit::Entries => "entries",
            Limit::Bytes => "bytes unpacked",
            Limit::Head => "bytes of head",
            Limit::Extension => "bytes of extended header",
            Limit::Disk => "bytes on disk",
            Limit::Names => "bytes of names",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("not a package: {why}")]
    NotAPackage { why: String },
    #[error("field {field} of the package's head is {value}; allowed: {allowed}")]
    BadHead { field: &'static str, value: String, allowed: String },
    #[error("the package cannot be read at byte {at}: {why}")]
    Unreadable { at: u64, why: io::Error },
    #[error("path {path:?} is refused: {rule}")]
    BadPath { path: String, rule: &'static str },
    #[error("link {path:?} to {target:?} is refused: {rule}")]
    BadLink { path: String, target: String, rule: &'static str },
    #[error("mode {mode:o} of {path:?} is refused; allowed: {allowed}")]
    BadMode { path: String, mode: u32, allowed: &'static str },
    #[error("{path:?} is {kind}; allowed: files, folders and links")]
    BadKind { path: String, kind: &'static str },
    #[error("{path:?} is there twice")]
    Twice { path: String },
    #[error("{path:?} comes after {previous:?}: entries are sorted by path")]
    Unsorted { path: String, previous: String },
    #[error("{path:?} is to be made in {place}, which is no folder of the package")]
    NoFolder { path: String, place: String },
    #[error("the package has {found} {limit}; allowed: at most {most}")]
    Beyond { limit: Limit, found: u64, most: u64 },
    #[error("chunk {chunk} is damaged: its digest is not the one the package's head names")]
    DamagedChunk { chunk: u32 },
    #[error("the content's digest is {found}, not {expected}")]
    OtherContent { expected: PackageDigest, found: PackageDigest },
    #[error("{path} is there already")]
    Exists { path: PathBuf },
    #[error("image: {0}")]
    Image(String),
}

impl PackageError {
    pub(crate) fn not_a_package(why: impl Into<String>) -> PackageError {
        PackageError::NotAPackage { why: why.into() }
    }
}

/// For `map_err`: names the path.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> PackageError {
    let path = path.to_owned();
    move |why| PackageError::Io { path: path.clone(), why }
}

/// As [`at`], for system calls that return error numbers.
pub(crate) fn at_errno(path: &Path) -> impl Fn(rustix::io::Errno) -> PackageError {
    let path = path.to_owned();
    move |why| PackageError::Io { path: path.clone(), why: why.into() }
}
