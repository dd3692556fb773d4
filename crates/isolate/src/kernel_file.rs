//! The small text files through which the kernel reports and accepts settings: one number, a list
//! of `key number` lines, or a list of ranges.
//!
//! Parsing is strict: an invalid value is an error with file and field, never a zero, because a
//! zero would look like an idle task.

use crate::Error;
use std::fs;
use std::io;
use std::path::Path;

pub fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// `None` when this kernel does not have the file.
pub fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::file("read", path)(source)),
    }
}

/// One `write` call with the whole value, as these files demand. Never creates a file.
pub fn write(path: &Path, value: &str) -> Result<(), Error> {
    let open = fs::OpenOptions::new().write(true).open(path);
    let written = open.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|source| {
        let (path, value) = (path.to_owned(), value.trim_end().to_owned());
        Error::Write { path, value, source }
    })
}

pub fn number(path: &Path, text: &str) -> Result<u64, Error> {
    parse(path, "value", text.trim())
}

/// A number or `max`, which is `None`.
pub fn number_or_max(path: &Path, text: &str) -> Result<Option<u64>, Error> {
    if text.trim() == "max" {
        return Ok(None);
    }
    number(path, text).map(Some)
}

/// The number behind `key` in lines of `key number`; `None` when there is no such line.
pub fn keyed(path: &Path, text: &str, key: &'static str) -> Result<Option<u64>, Error> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then_some(value)
    });
    value.map(|value| parse(path, key, value.trim())).transpose()
}

pub fn parse(path: &Path, field: &'static str, value: &str) -> Result<u64, Error> {
    value.parse().map_err(|_| Error::Unreadable {
        path: path.to_owned(),
        field,
        value: value.chars().take(80).collect(),
        expected: "a whole number",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_strictly() {
        let path = Path::new("memory.max");
        assert_eq!(number(path, "4096\n").unwrap(), 4096);
        assert_eq!(number_or_max(path, "max\n").unwrap(), None);
        let text = "oom 1\noom_kill 2\n";
        assert_eq!(keyed(path, text, "oom_kill").unwrap(), Some(2));
        assert_eq!(keyed(path, text, "kill").unwrap(), None);
        let wrong = number(path, "-1").unwrap_err().to_string();
        assert_eq!(wrong, "memory.max: value is `-1`, expected a whole number");
    }

    #[test]
    fn writing_creates_nothing() {
        let path = Path::new("/proc/self/no-such-file");
        let wrong = write(path, "1").unwrap_err().to_string();
        assert!(wrong.starts_with("cannot write `1` to /proc/self/no-such-file"), "{wrong}");
    }
}
