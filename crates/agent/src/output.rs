//! Reads a task's output from the log files that shims write, across the files of a stream. A
//! position in a stream is a file and an offset in it. A file is identified by its inode number and
//! its birth time: it keeps both when it is rotated, so a reader that waits does not lose the piece
//! in between; the inode number alone is used again for a later file.

use crate::shim::log_times::read_times;
use crate::shim::protocol::LOGS;
use cellwright_api::output::Stream;
use cellwright_cell::id::Attempt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;
use xxhash_rust::xxh3::xxh3_64;

/// Most bytes of one piece.
pub const MAX_PIECE_BYTES: u64 = 256 * 1024;
/// Most files of one stream that are read; more are never kept.
const MAX_FILES: u32 = 100;

/// How far back lines are counted.
pub const MAX_LINE_SCAN_BYTES: u64 = 1 << 20;

/// A position in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// 0: before the first.
    file: u64,
    offset: u64,
}

impl StreamPosition {
    #[must_use]
    pub fn to_text(self) -> String {
        format!("{}-{}", self.file, self.offset)
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<StreamPosition> {
        let (file, offset) = text.split_once('-')?;
        Some(StreamPosition { file: file.parse().ok()?, offset: offset.parse().ok()? })
    }
}

/// The output of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptOutput {
    pub attempt: Attempt,
    pub folder: std::path::PathBuf,
}

/// The position `tail` bytes before the end, but not before the oldest file that is kept.
///
/// # Errors
/// When the files cannot be read.
pub fn tail_position(folder: &Path, stream: Stream, tail: u64) -> io::Result<StreamPosition> {
    let files = files(folder, stream)?;
    let mut left = tail;
    let mut position = StreamPosition::default();
    for (_, file, length) in files.iter().rev() {
        position = StreamPosition { file: *file, offset: length.saturating_sub(left) };
        left = left.saturating_sub(*length);
        if left == 0 {
            break;
        }
    }
    Ok(position)
}

/// The position `lines` lines before the end, or less far back when they are long.
///
/// # Errors
/// When the files cannot be read.
pub fn last_lines_position(
    folder: &Path,
    stream: Stream,
    lines: u32,
) -> io::Result<StreamPosition> {
    let mut position = tail_position(folder, stream, 0)?;
    let (mut left, mut room, mut is_last) = (lines, MAX_LINE_SCAN_BYTES, true);
    if left == 0 {
        return Ok(position);
    }
    for (path, file, length) in files(folder, stream)?.into_iter().rev() {
        let begin = length.saturating_sub(room);
        let mut open = File::open(path)?;
        open.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        open.take(length - begin).read_to_end(&mut bytes)?;
        for (at, byte) in bytes.iter().enumerate().rev() {
            // The newline of the last line begins no other.
            if *byte == b'\n' && !std::mem::take(&mut is_last) {
                left -= 1;
            }
            is_last = false;
            if left == 0 {
                return Ok(StreamPosition { file, offset: begin + at as u64 + 1 });
            }
        }
        position = StreamPosition { file, offset: begin };
        room -= length - begin;
        if room == 0 {
            break;
        }
    }
    Ok(position)
}

/// Leaves an incomplete character at the end to the next piece, and returns the position where that
/// begins then.
pub fn split_at_character(bytes: &mut Vec<u8>, next: StreamPosition) -> StreamPosition {
    for back in 1..=bytes.len().min(3) {
        let length = match bytes[bytes.len() - back] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        if length > back && next.offset >= back as u64 {
            bytes.truncate(bytes.len() - back);
            return StreamPosition { offset: next.offset - back as u64, ..next };
        }
        break;
    }
    next
}

/// The output after `from`, and the position where it ends. A position in a file that is gone
/// counts as before the oldest that is kept.
///
/// # Errors
/// When the files cannot be read.
pub fn read_from(
    folder: &Path,
    stream: Stream,
    from: StreamPosition,
) -> io::Result<(Vec<u8>, StreamPosition)> {
    let read = read_timed(folder, stream, from, MAX_PIECE_BYTES)?;
    Ok((read.bytes, read.next))
}

/// Output of one stream, and what is known of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedOutput {
    pub bytes: Vec<u8>,
    /// Where in `bytes` each file begins, and the position of that byte.
    pub files: Vec<(usize, StreamPosition)>,
    /// Where in `bytes` what was written at a time begins. Before the first: not known.
    pub times: Vec<(usize, Option<u64>)>,
    pub next: StreamPosition,
}

impl TimedOutput {
    /// When the byte at this place was written.
    #[must_use]
    pub fn time_at(&self, at: usize) -> Option<u64> {
        let after = self.times.partition_point(|(begin, _)| *begin <= at);
        after.checked_sub(1).and_then(|index| self.times[index].1)
    }

    /// The position of the byte at this place.
    #[must_use]
    pub fn position_at(&self, at: usize) -> StreamPosition {
        let after = self.files.partition_point(|(begin, _)| *begin <= at);
        match after.checked_sub(1).map(|index| self.files[index]) {
            Some((begin, position)) => {
                StreamPosition { offset: position.offset + (at - begin) as u64, ..position }
            }
            None => self.next,
        }
    }
}

/// The same as [`read_from`] with times, and at most so many bytes.
///
/// # Errors
/// When the files cannot be read.
pub fn read_timed(
    folder: &Path,
    stream: Stream,
    from: StreamPosition,
    max_bytes: u64,
) -> io::Result<TimedOutput> {
    let files = files(folder, stream)?;
    let at = files.iter().position(|(_, file, _)| *file == from.file);
    let position = if at.is_some() { from } else { StreamPosition::default() };
    let mut read = TimedOutput { next: position, ..TimedOutput::default() };
    for (path, file, _) in files.into_iter().skip(at.unwrap_or(0)) {
        let offset = if file == position.file { position.offset } else { 0 };
        let mut open = File::open(&path)?;
        let inode = open.metadata()?.ino();
        open.seek(SeekFrom::Start(offset))?;
        let (begin, room) = (read.bytes.len(), max_bytes - read.bytes.len() as u64);
        let count = open.take(room).read_to_end(&mut read.bytes)? as u64;
        if count > 0 {
            read.files.push((begin, StreamPosition { file, offset }));
            read.times.extend(times_of(&read_times(&path, inode), begin, offset, count));
        }
        read.next = StreamPosition { file, offset: offset + count };
        if read.bytes.len() as u64 == max_bytes {
            break;
        }
    }
    Ok(read)
}

/// The times of `count` bytes of a file from `offset` on, which are at `begin` of what is read.
fn times_of(
    times: &[(u64, u64)],
    begin: usize,
    offset: u64,
    count: u64,
) -> Vec<(usize, Option<u64>)> {
    let first = times.partition_point(|(at, _)| *at <= offset);
    let before = first.checked_sub(1).map(|index| times[index].1);
    let within = times[first..].iter().take_while(|(at, _)| *at < offset + count);
    let place = |at: u64| begin + usize::try_from(at - offset).unwrap_or(usize::MAX);
    let within = within.map(|(at, time)| (place(*at), Some(*time)));
    std::iter::once((begin, before)).chain(within).collect()
}

/// The position of the first output that was written at `since` or later; where times are not
/// known, the file says when it was written last.
///
/// # Errors
/// When the files cannot be read.
pub fn since_position(folder: &Path, stream: Stream, since: u64) -> io::Result<StreamPosition> {
    let mut position = StreamPosition::default();
    for (path, file, length) in files(folder, stream)? {
        let about = path.metadata()?;
        let times = read_times(&path, about.ino());
        let changed = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = match times.iter().find(|(_, at)| *at >= since) {
            Some((offset, _)) => Some(*offset),
            None if times.is_empty() => (changed.as_millis() >= u128::from(since)).then_some(0),
            None => None,
        };
        if let Some(offset) = first {
            return Ok(StreamPosition { file, offset });
        }
        position = StreamPosition { file, offset: length };
    }
    Ok(position)
}

/// Paths, numbers and lengths, the oldest first.
fn files(folder: &Path, stream: Stream) -> io::Result<Vec<(std::path::PathBuf, u64, u64)>> {
    let present = folder.join(LOGS).join(stream.name());
    let mut found = Vec::new();
    for number in 0..MAX_FILES {
        let path = match number {
            0 => present.clone(),
            aside => present.with_extension(aside.to_string()),
        };
        match path.metadata() {
            Ok(about) => found.push((path, file_id(&about), about.len())),
            // Between the rotation and the creation of the next file there is no current one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && number == 0 => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    found.reverse();
    Ok(found)
}

/// Never 0, which is before the first.
fn file_id(about: &Metadata) -> u64 {
    let born = about.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let born = born.unwrap_or_default().as_nanos();
    let bytes = [&about.ino().to_le_bytes()[..], &born.to_le_bytes()].concat();
    xxh3_64(&bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::log::RotatedLog;
    use crate::shim::protocol::LogSettings;
    use crate::state_dir::scratch::Scratch;

    #[test]
    fn a_reader_goes_on_across_files_that_are_put_aside() {
        let scratch = Scratch::new();
        let folder = scratch.path("");
        std::fs::create_dir(scratch.path(LOGS)).unwrap();
        let settings = LogSettings { file_bytes: 4, files: 3, rate: 1000 };
        let mut log = RotatedLog::new(scratch.path(LOGS).join("stdout"), settings, 0);
        let read = |from: StreamPosition| {
            let (bytes, next) = read_from(&folder, Stream::Stdout, from).unwrap();
            (String::from_utf8(bytes).unwrap(), next)
        };
        assert_eq!(read(StreamPosition::default()), (String::new(), StreamPosition::default()));
        log.write(b"abcdef", 0);
        let (text, next) = read(StreamPosition::default());
        assert_eq!(text, "abcdef");
        assert_eq!(StreamPosition::parse(&next.to_text()), Some(next));
        assert_eq!(read(next), (String::new(), next));
        log.write(b"ghijk", 0);
        assert_eq!(read(next).0, "ghijk");
        // Four files later its file is gone: the reader gets what is left.
        log.write(b"lmnopqrstuvw", 0);
        assert_eq!(read(next).0, "mnopqrstuvw");
        let position = tail_position(&folder, Stream::Stdout, 6).unwrap();
        assert_eq!(read(position).0, "rstuvw");
        let position = tail_position(&folder, Stream::Stdout, 600).unwrap();
        assert_eq!(read(position).0, "mnopqrstuvw");
        assert_eq!(read(tail_position(&folder, Stream::Stdout, 0).unwrap()).0, "");
        assert_eq!(StreamPosition::parse("x-1"), None);
    }

    #[test]
    fn lines_are_counted_from_the_end_across_files() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path(LOGS)).unwrap();
        let settings = LogSettings { file_bytes: 5, files: 9, rate: 1000 };
        let mut log = RotatedLog::new(scratch.path(LOGS).join("stdout"), settings, 0);
        let last = |lines: u32| {
            let position = last_lines_position(&scratch.path(""), Stream::Stdout, lines).unwrap();
            let (bytes, _) = read_from(&scratch.path(""), Stream::Stdout, position).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(last(3), "");
        log.write(b"one\ntwo\n\nfour\n", 0);
        let want = ["", "four\n", "\nfour\n", "two\n\nfour\n", "one\ntwo\n\nfour\n"];
        for (lines, want) in want.into_iter().enumerate() {
            assert_eq!(last(u32::try_from(lines).unwrap()), want);
        }
        log.write(b"fi", 0);
        assert_eq!((last(1).as_str(), last(2).as_str()), ("fi", "four\nfi"));
        assert_eq!(last(99), "one\ntwo\n\nfour\nfi");
    }

    #[test]
    fn a_character_is_not_cut_in_two() {
        let position = |offset| StreamPosition { file: 7, offset };
        let cut = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let next = split_at_character(&mut bytes, position(100));
            assert_eq!(next.file, 7);
            (bytes.len(), 100 - next.offset)
        };
        let euro = "a\u{20ac}".as_bytes();
        assert_eq!(cut(euro), (4, 0));
        assert_eq!(cut(&euro[..3]), (1, 2));
        assert_eq!(cut(&euro[..2]), (1, 1));
        assert_eq!(cut("\u{1f600}".as_bytes()), (4, 0));
        assert_eq!(cut(&"\u{1f600}".as_bytes()[..3]), (0, 3));
        // An invalid character is not waited for.
        assert_eq!(cut(&[b'a', 0xff]), (2, 0));
        assert_eq!(cut(&[0x80, 0x80, 0x80, 0x80]), (4, 0));
        assert_eq!(cut(b""), (0, 0));
        assert_eq!(split_at_character(&mut vec![0xe2], position(0)), position(0));
    }
}
