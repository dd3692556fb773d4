//! One stream of a task's output on disk (log rotation): a file that is rotated when it is full, a
//! bounded number of rotated files, and a rate limit. Whatever a task writes, the disk holds at
//! most `files * file_bytes` of it, and dropped bytes are counted in the log itself.
//!
//! Beside each file stands when its parts were written (`crate::log_times`).
//!
//! Rejected: blocking a flooding task until the disk has caught up. A service that logs too much
//! would stand still; it is better to lose its log than its work.

use crate::boot;
use crate::log_times::{LogTimes, times_path};
use crate::protocol::LogSettings;
use crate::record::open_plain;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// A quiet stream may write this many seconds' worth at once.
const BURST_SECONDS: u64 = 2;

pub struct RotatedLog {
    path: PathBuf,
    settings: LogSettings,
    file: Option<File>,
    times: LogTimes,
    written: u64,
    /// Bytes that may be written now.
    allowance: u64,
    refilled: u64,
    dropped: u64,
}

impl RotatedLog {
    /// Continues in `path`, which may be there already. `now` is in milliseconds.
    #[must_use]
    pub fn new(path: PathBuf, settings: LogSettings, now: u64) -> RotatedLog {
        let written = fs::metadata(&path).map_or(0, |found| found.len());
        let allowance = settings.rate.saturating_mul(BURST_SECONDS);
        let times = LogTimes::new(times_path(&path));
        RotatedLog {
            path,
            settings,
            file: None,
            times,
            written,
            allowance,
            refilled: now,
            dropped: 0,
        }
    }

    /// Writes what the limits allow. When the disk refuses, the rest is dropped, never an error:
    /// the task goes on.
    pub fn write(&mut self, bytes: &[u8], now: u64) {
        self.write_at(bytes, now, boot::wall());
    }

    /// The same; `wall` is the time of day in milliseconds.
    pub fn write_at(&mut self, bytes: &[u8], now: u64, wall: u64) {
        self.times.wall = wall;
        self.refill(now);
        let room = usize::try_from(self.allowance).unwrap_or(usize::MAX).min(bytes.len());
        if room > 0 && self.dropped > 0 {
            self.write_dropped_note();
        }
        let (kept, lost) = bytes.split_at(room);
        self.allowance -= kept.len() as u64;
        if !kept.is_empty() && self.append(kept).is_err() {
            self.file = None;
            self.dropped += kept.len() as u64;
        }
        self.dropped += lost.len() as u64;
    }

    /// Writes the last note of dropped bytes.
    pub fn finish(&mut self) {
        if self.dropped > 0 {
            self.write_dropped_note();
        }
    }

    fn write_dropped_note(&mut self) {
        let line = format!("\n[cell: dropped {} bytes]\n", self.dropped);
        if self.append(line.as_bytes()).is_ok() {
            self.dropped = 0;
        }
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.refilled);
        let earned = self.settings.rate.saturating_mul(passed) / 1000;
        if earned > 0 {
            self.refilled = now;
            let most = self.settings.rate.saturating_mul(BURST_SECONDS);
            self.allowance = self.allowance.saturating_add(earned).min(most);
        }
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.written >= self.settings.file_bytes {
                self.rotate()?;
            }
            let room = self.settings.file_bytes - self.written;
            let part = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            self.open()?;
            if let Some(file) = &mut self.file {
                self.times.record(file, self.written);
                file.write_all(&bytes[..part])?;
            }
            self.written += part as u64;
            bytes = &bytes[part..];
        }
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            // A task that can reach its own log may put a pipe there, on which the shim would wait
            // for ever.
            let options = &mut OpenOptions::new();
            self.file = Some(open_plain(&self.path, options.append(true).create(true))?);
        }
        Ok(())
    }

    /// The current file becomes number 1, 1 becomes 2, and the oldest is removed.
    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let numbered = |number: u32| self.path.with_extension(number.to_string());
        let kept = self.settings.files.saturating_sub(1);
        self.times.rotate(&self.path, kept);
        if kept == 0 {
            fs::remove_file(&self.path)?;
        } else {
            for number in (1..kept).rev() {
                match fs::rename(numbered(number), numbered(number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            fs::rename(&self.path, numbered(1))?;
        }
        self.written = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_is_no_file_loses_the_log_and_holds_nobody() {
        let scratch = Scratch::new();
        let (path, other) = (scratch.path("out"), scratch.path("other"));
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        log(&scratch, 1000, 2, 1000).write(b"abc", 0);
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut out = log(&scratch, 1000, 2, 1000);
        out.write(b"abc", 0);
        fs::remove_file(&path).unwrap();
        out.write(b"def", 0);
        assert_eq!(content(&scratch), ["\n[cell: dropped 3 bytes]\ndef"]);
    }

    fn log(scratch: &Scratch, file_bytes: u64, files: u32, rate: u64) -> RotatedLog {
        RotatedLog::new(scratch.path("out"), LogSettings { file_bytes, files, rate }, 0)
    }

    fn content(scratch: &Scratch) -> Vec<String> {
        let names = ["out", "out.1", "out.2", "out.3"];
        let read = |name: &&str| fs::read_to_string(scratch.path(name)).ok();
        names.iter().filter_map(read).collect()
    }

    #[test]
    fn files_are_put_aside_when_full_and_the_oldest_goes() {
        let scratch = Scratch::new();
        let mut out = log(&scratch, 4, 3, 1000);
        out.write(b"abcdef", 0);
        assert_eq!(content(&scratch), ["ef", "abcd"]);
        out.write(b"ghijklmno", 0);
        assert_eq!(content(&scratch), ["mno", "ijkl", "efgh"]);
        // Another shim version continues where the last stopped.
        log(&scratch, 4, 3, 1000).write(b"pq", 0);
        assert_eq!(content(&scratch), ["q", "mnop", "ijkl"]);
    }

    #[test]
    fn when_parts_were_written_stands_beside_each_file() {
        let scratch = Scratch::new();
        let mut out = log(&scratch, 8, 2, 1000);
        out.write_at(b"abc", 0, 100);
        out.write_at(b"de", 0, 100);
        out.write_at(b"fghij", 0, 250);
        let read = |name: &str| {
            let path = scratch.path(name);
            let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
            crate::log_times::read_times(&path, inode)
        };
        assert_eq!(content(&scratch), ["ij", "abcdefgh"]);
        assert_eq!(read("out.1"), [(0, 100), (5, 250)]);
        assert_eq!(read("out"), [(0, 250)]);
        // Times of another file are not taken for those of this.
        fs::copy(scratch.path("out.1.times"), scratch.path("out.times")).unwrap();
        assert_eq!(read("out"), []);
        // The next shim goes on after the last, and says when.
        fs::remove_file(scratch.path("out.times")).unwrap();
        log(&scratch, 8, 2, 1000).write_at(b"k", 0, 300);
        assert_eq!(read("out"), [(2, 300)]);
    }

    #[test]
    fn a_stream_of_single_bytes_does_not_fill_the_disk_with_times() {
        let scratch = Scratch::new();
        let mut out = log(&scratch, 1 << 16, 2, 1 << 20);
        for at in 0..20_000 {
            out.write_at(b"x", 0, at);
        }
        let times = fs::metadata(scratch.path("out.times")).unwrap().len();
        assert!(times <= 16 * 66 + 20_000 / 16, "{times}");
        let inode =
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(scratch.path("out")).unwrap());
        let read = crate::log_times::read_times(&scratch.path("out"), inode);
        assert!(read.len() > 64 && read.last().is_some_and(|(at, _)| *at > 19_000), "{read:?}");
    }

    #[test]
    fn one_file_is_begun_again() {
        let scratch = Scratch::new();
        log(&scratch, 4, 1, 1000).write(b"abcdef", 0);
        assert_eq!(content(&scratch), ["ef"]);
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let scratch = Scratch::new();
        let mut out = log(&scratch, 1000, 2, 5);
        out.write(b"0123456789abcdef", 0);
        assert_eq!(content(&scratch), ["0123456789"]);
        out.write(b"lost", 100);
        assert_eq!(content(&scratch), ["0123456789"]);
        out.write(b"later", 1100);
        let want = "0123456789\n[cell: dropped 10 bytes]\nlater";
        assert_eq!(content(&scratch), [want]);
        out.write(b"more", 1100);
        out.finish();
        assert_eq!(content(&scratch), [format!("{want}\n[cell: dropped 4 bytes]\n")]);
    }

    #[test]
    fn a_disk_that_refuses_loses_the_log_and_nothing_else() {
        let scratch = Scratch::new();
        let settings = LogSettings { file_bytes: 100, files: 2, rate: 1000 };
        let mut out = RotatedLog::new(scratch.path("absent/out"), settings, 0);
        out.write(b"abc", 0);
        fs::create_dir(scratch.path("absent")).unwrap();
        out.write(b"def", 0);
        let text = fs::read_to_string(scratch.path("absent/out")).unwrap();
        assert_eq!(text, "\n[cell: dropped 3 bytes]\ndef");
    }
}
