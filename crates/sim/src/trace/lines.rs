//! Input of rows: a file or bytes, unpacked by extension, cut into bounded lines.
//!
//! Neither `BufRead::lines` nor `read_line` will do: both grow without limit on a file that has no
//! line ends, and both stop at the first byte that is not UTF-8. Here such lines are reported one
//! by one and reading goes on after them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::str;

use flate2::bufread::MultiGzDecoder;

use super::problem::TraceError;

/// Longest line that is read, without its line end. The longest of the known traces has 200 bytes.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

const BUFFER_BYTES: usize = 128 * 1024;

/// An opened file, or bytes in place of one.
pub struct Input {
    name: String,
    reader: Box<dyn BufRead>,
}

impl Input {
    /// Opens a file; one whose name ends in `.gz` is unpacked while it is read.
    pub fn open(path: &Path) -> Result<Input, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::open(path, source))?;
        let is_folder = file.metadata().is_ok_and(|data| data.is_dir());
        if is_folder {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(TraceError::open(path, source));
        }
        Ok(Input::from_reader(&path.display().to_string(), file))
    }

    /// Reads what `reader` returns under the name of a file; `.gz` names are unpacked too.
    pub fn from_reader(name: &str, reader: impl Read + 'static) -> Input {
        let raw = BufReader::with_capacity(BUFFER_BYTES, reader);
        let reader: Box<dyn BufRead> = if name.ends_with(".gz") {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        Input { name: name.to_owned(), reader }
    }

    /// The bytes of a file that is already in memory.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Input {
        Input::from_reader(name, io::Cursor::new(bytes))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn into_lines(self) -> Lines {
        Lines { name: self.name, reader: self.reader, buffer: Vec::new(), number: 0 }
    }
}

/// One line without its line end (`\n` or `\r\n`).
pub enum Line<'a> {
    Text(&'a str),
    NotUtf8(&'a [u8]),
    /// The first bytes of a line above [`MAX_LINE_BYTES`]; the rest has been skipped.
    TooLong(&'a [u8]),
}

/// The lines of an input, one at a time in the same buffer.
pub struct Lines {
    name: String,
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    number: u64,
}

impl Lines {
    /// The next line and its number, counted from 1; `None` at the end.
    pub fn next_line(&mut self) -> Result<Option<(u64, Line<'_>)>, TraceError> {
        match self.fill() {
            Err(source) => {
                let (file, line) = (self.name.clone(), self.number);
                Err(TraceError::Read { file, line, source })
            }
            Ok(None) => Ok(None),
            Ok(Some(is_whole)) => {
                self.number += 1;
                Ok(Some((self.number, self.line(is_whole))))
            }
        }
    }

    /// Reads one line into the buffer; returns whether it fitted, or `None` at the end.
    fn fill(&mut self) -> io::Result<Option<bool>> {
        self.buffer.clear();
        let limit = MAX_LINE_BYTES + 1;
        let read = self.reader.by_ref().take(limit as u64).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        let is_whole = read < limit || self.buffer.last() == Some(&b'\n');
        if !is_whole {
            self.reader.skip_until(b'\n')?;
        }
        Ok(Some(is_whole))
    }

    fn line(&self, is_whole: bool) -> Line<'_> {
        if !is_whole {
            return Line::TooLong(&self.buffer);
        }
        let bytes = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        str::from_utf8(bytes).map_or(Line::NotUtf8(bytes), Line::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(bytes: &[u8]) -> Vec<String> {
        let mut lines = Input::from_bytes("x", bytes.to_vec()).into_lines();
        let mut seen = Vec::new();
        while let Some((number, line)) = lines.next_line().expect("bytes in memory") {
            seen.push(match line {
                Line::Text(text) => format!("{number} {text}"),
                Line::NotUtf8(bytes) => format!("{number} not utf-8, {} bytes", bytes.len()),
                Line::TooLong(_) => format!("{number} too long"),
            });
        }
        seen
    }

    #[test]
    fn line_ends_are_taken_off_and_a_last_line_needs_none() {
        assert_eq!(kinds(b"a\r\nb\n\nc"), ["1 a", "2 b", "3 ", "4 c"]);
        assert!(kinds(b"").is_empty());
    }

    #[test]
    fn a_bad_line_does_not_end_the_file() {
        let mut bytes = b"a\n\xff\xfe\n".to_vec();
        bytes.extend(vec![b'x'; MAX_LINE_BYTES]);
        bytes.push(b'\n');
        bytes.extend(vec![b'y'; MAX_LINE_BYTES + 1]);
        bytes.extend(b"\nz");
        let seen = kinds(&bytes);
        assert_eq!(seen[1], "2 not utf-8, 2 bytes");
        assert_eq!(seen[2].len(), MAX_LINE_BYTES + 2);
        assert_eq!(seen[3..], ["4 too long", "5 z"]);
    }

    #[test]
    fn a_folder_is_not_a_file() {
        let error = Input::open(Path::new("/")).err().expect("a folder").to_string();
        assert!(error.starts_with("cannot open /: "), "{error}");
    }
}
