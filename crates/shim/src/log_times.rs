//! When the parts of a log file were written: a file beside it, `stdout.times` for `stdout`, of
//! pairs of numbers, an offset in the log and the milliseconds since 1970. From these the lines of
//! both streams are put in order, and readers begin at a time.
//!
//! The first pair has the inode of the log it belongs to: files are rotated one after the other,
//! and a reader in between would take the times of one for those of another. What is wrong, or
//! missing, costs the times and nothing else. How many pairs there are is bounded by what the log
//! holds.
//!
//! Rejected: times inside of the log. What a program writes is kept as it is, for every other
//! reader of the file.

use crate::record::open_plain;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a pair.
const PAIR: usize = 16;
/// So many pairs are free; each one more takes so many bytes of the log.
const FREE_PAIRS: u64 = 64;
const BYTES_PER_PAIR: u64 = 256;
/// Most bytes that are read: the times of a log of a gibibyte.
const MAX_READ: u64 = 64 << 20;

/// The file with the times of a log file.
#[must_use]
pub fn times_path(log: &Path) -> PathBuf {
    let mut name = log.file_name().unwrap_or_default().to_owned();
    name.push(".times");
    log.with_file_name(name)
}

/// Writes the times of the current file of a log.
pub struct LogTimes {
    path: PathBuf,
    file: Option<File>,
    /// Pairs in the file.
    count: u64,
    /// The last time in the file.
    last: Option<u64>,
    /// The time of what is written next.
    pub wall: u64,
}

impl LogTimes {
    #[must_use]
    pub fn new(path: PathBuf) -> LogTimes {
        LogTimes { path, file: None, count: 0, last: None, wall: 0 }
    }

    /// Notes that what comes at this offset of the log is written now, if that is worth a pair.
    pub fn record(&mut self, log: &File, offset: u64) {
        let has_room = self.count < FREE_PAIRS + offset / BYTES_PER_PAIR;
        if self.last == Some(self.wall) || (self.file.is_some() && !has_room) {
            return;
        }
        if self.append(log, offset).is_some() {
            self.last = Some(self.wall);
        }
    }

    fn append(&mut self, log: &File, offset: u64) -> Option<()> {
        let mut bytes = Vec::with_capacity(2 * PAIR);
        if self.file.is_none() {
            let inode = log.metadata().ok()?.ino();
            let mut options = OpenOptions::new();
            let options = options.read(true).append(true).create(true);
            let file = open_plain(&self.path, options).ok()?;
            let length = file.metadata().ok()?.len();
            if length == 0 {
                bytes.extend_from_slice(&pair(inode, 0));
            }
            self.count = length / PAIR as u64;
            self.file = Some(file);
        }
        bytes.extend_from_slice(&pair(offset, self.wall));
        let written = self.file.as_mut()?.write_all(&bytes);
        if written.is_err() {
            self.file = None;
        }
        self.count += (bytes.len() / PAIR) as u64;
        written.ok()
    }

    /// The log is rotated next; `kept` files of it stay beside the current one.
    pub fn rotate(&mut self, log: &Path, kept: u32) {
        let numbered = |number: u32| times_path(&log.with_extension(number.to_string()));
        self.file = None;
        (self.count, self.last) = (0, None);
        // What fails here costs times: those of another file are not taken for this one's.
        for number in (1..kept).rev() {
            let _ = fs::rename(numbered(number), numbered(number + 1));
        }
        let _ = match kept {
            0 => fs::remove_file(&self.path),
            _ => fs::rename(&self.path, numbered(1)),
        };
    }
}

fn pair(one: u64, other: u64) -> [u8; PAIR] {
    let mut bytes = [0; PAIR];
    bytes[..8].copy_from_slice(&one.to_le_bytes());
    bytes[8..].copy_from_slice(&other.to_le_bytes());
    bytes
}

/// Offsets in a log file and the times of what is written there, in order; nothing where they are
/// not known. `inode`: that of the log file.
#[must_use]
pub fn read_times(log: &Path, inode: u64) -> Vec<(u64, u64)> {
    let mut bytes = Vec::new();
    let opened = open_plain(&times_path(log), OpenOptions::new().read(true));
    if opened.and_then(|file| file.take(MAX_READ).read_to_end(&mut bytes)).is_err() {
        return Vec::new();
    }
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let mut pairs = bytes.chunks_exact(PAIR).map(|both| (number(&both[..8]), number(&both[8..])));
    if pairs.next() != Some((inode, 0)) {
        return Vec::new();
    }
    let mut times: Vec<(u64, u64)> = Vec::new();
    for (offset, at) in pairs {
        // A clock that was set back puts no line before the one above it.
        let (last_offset, last) = times.last().copied().unwrap_or_default();
        if times.is_empty() || offset > last_offset {
            times.push((offset, at.max(last)));
        }
    }
    times
}
