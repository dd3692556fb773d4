//! Small files that must be whole or absent: a line with a format and a checksum, then JSON. A file
//! is replaced by renaming a finished one over it, so a reader sees the old content or the new.
//!
//! The format is that of the value ([`Recorded`]). An older one is converted when it is read; a
//! newer one is refused by name, and neither read as far as it goes nor taken for damage: what an
//! agent cannot read it must not replace.
//!
//! Rejected: one database for the whole agent. A shim outlives its agent and writes its own exit;
//! two processes would share the database, and damage to it would lose every task at once.

use crate::protocol::{Exit, Launch, ShimRecord};
use cellwright_agent_core::book::UsageBook;
use cellwright_agent_core::orders::Orders;
use cellwright_cell::desired::DesiredTask;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const HEADER: &str = "cell-record ";
const LOCK_MODE: u32 = 0o600;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{}: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} is of format {found}; allowed: 1 to {newest}; run the newer build", path.display())]
    TooNew { path: PathBuf, found: u32, newest: u32 },
}

/// A value that is kept in a record.
///
/// After a release, a field more or another meaning of one raises `FORMAT`, and `upgrade` says what
/// the field is in records that have none.
pub trait Recorded: Serialize + DeserializeOwned {
    const FORMAT: u32 = 1;

    /// What a record of format `from` holds, as one of the format after it.
    ///
    /// # Errors
    /// When it holds something else.
    fn upgrade(from: u32, body: Value) -> Result<Value, String> {
        let _ = from;
        Ok(body)
    }
}

impl Recorded for DesiredTask {}
impl Recorded for Orders {}
impl Recorded for Launch {}
impl Recorded for ShimRecord {}
impl Recorded for Exit {}
impl Recorded for UsageBook {}
/// The first number of a range.
impl Recorded for u32 {}
/// Identities of devices.
impl Recorded for Vec<String> {}

/// What a record must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process that wrote it.
    Process,
    /// A power cut: flushed, and its folder too.
    PowerCut,
}

/// Replaces the record.
///
/// # Errors
/// When the folder cannot be written.
pub fn write<T: Recorded>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> Result<(), RecordError> {
    let draft = write_draft(path, value, durability)?;
    let io = |why| RecordError::Io { path: path.to_owned(), why };
    fs::rename(&draft, path).map_err(io)?;
    flush_folder(path, durability)
}

/// Writes the record where there is none; false where there is one. However many try, one creates
/// it: a whole draft is linked to the name, which can be done once.
///
/// # Errors
/// When the folder cannot be written.
pub fn create<T: Recorded>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> Result<bool, RecordError> {
    let draft = write_draft(path, value, durability)?;
    let linked = fs::hard_link(&draft, path);
    // A draft that is left behind does no harm.
    let _ = fs::remove_file(&draft);
    match linked {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(why) => Err(RecordError::Io { path: path.to_owned(), why }),
        Ok(()) => flush_folder(path, durability).map(|()| true),
    }
}

/// The whole record, under a name of this process.
fn write_draft<T: Recorded>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> Result<PathBuf, RecordError> {
    let io = |why| RecordError::Io { path: path.to_owned(), why };
    let body = serde_json::to_string(value)
        .map_err(|why| RecordError::Damaged { path: path.to_owned(), why: why.to_string() })?;
    let sum = xxh3_64(body.as_bytes());
    let text = format!("{HEADER}{} {sum:016x}\n{body}\n", T::FORMAT);
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(&draft).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    if durability == Durability::PowerCut {
        file.sync_all().map_err(io)?;
    }
    Ok(draft)
}

fn flush_folder(path: &Path, durability: Durability) -> Result<(), RecordError> {
    if durability == Durability::Process {
        return Ok(());
    }
    let io = |why| RecordError::Io { path: path.to_owned(), why };
    // A bare name is in the working directory.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(io)
}

/// The record; nothing when there is none.
///
/// # Errors
/// When it cannot be read, or is not what was written.
pub fn read<T: Recorded>(path: &Path) -> Result<Option<T>, RecordError> {
    let damaged = |why: &str| RecordError::Damaged { path: path.to_owned(), why: why.to_owned() };
    let text = match read_text(path) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Neither is temporary.
        Err(why) if why.kind() == io::ErrorKind::InvalidData || is_link(&why) => {
            return Err(damaged(&why.to_string()));
        }
        Err(why) => return Err(RecordError::Io { path: path.to_owned(), why }),
    };
    let rest = text.strip_prefix(HEADER).ok_or_else(|| damaged("no head"))?;
    let (format, rest) = rest.split_once(' ').ok_or_else(|| damaged("no format"))?;
    let (sum, body) = rest.split_once('\n').ok_or_else(|| damaged("no body"))?;
    let body = body.strip_suffix('\n').ok_or_else(|| damaged("cut off"))?;
    if format!("{:016x}", xxh3_64(body.as_bytes())) != sum {
        return Err(damaged("the checksum differs"));
    }
    let found = format.parse().ok().filter(|found| *found > 0);
    let found: u32 = found.ok_or_else(|| damaged("its format is no number"))?;
    if found > T::FORMAT {
        return Err(RecordError::TooNew { path: path.to_owned(), found, newest: T::FORMAT });
    }
    upgraded::<T>(found, body).map(Some).map_err(|why| damaged(&why))
}

fn upgraded<T: Recorded>(found: u32, body: &str) -> Result<T, String> {
    let text = |why: serde_json::Error| why.to_string();
    if found == T::FORMAT {
        return serde_json::from_str(body).map_err(text);
    }
    let old = serde_json::from_str(body).map_err(text)?;
    let body = (found..T::FORMAT).try_fold(old, |body, from| T::upgrade(from, body))?;
    serde_json::from_value(body).map_err(text)
}

/// Some of these files lie where a task of the agent's own account can reach them: a link there is
/// not followed, and a pipe blocks no reader.
fn read_text(path: &Path) -> io::Result<String> {
    io::read_to_string(open_plain(path, OpenOptions::new().read(true))?)
}

/// Opens a regular file, and nothing else.
///
/// # Errors
/// When it is not there, cannot be opened, or is something else.
pub fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let file = options.custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "not a plain file"))
    }
}

/// Opens a file to be locked, with permissions for its owner alone: any process that can open it,
/// if only to read it, can take the lock and keep it.
///
/// # Errors
/// As [`open_plain`].
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(LOCK_MODE);
    open_plain(path, &mut options)
}

/// Whether [`open_plain`] found a link.
#[must_use]
pub fn is_link(why: &io::Error) -> bool {
    why.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use serde::Deserialize;
    use std::os::unix::fs::PermissionsExt;

    impl Recorded for Vec<u32> {}

    /// As a build knows it in which a field was added twice.
    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Grown {
        numbers: Vec<u32>,
        first: u32,
        name: String,
    }

    impl Recorded for Grown {
        const FORMAT: u32 = 3;

        fn upgrade(from: u32, body: Value) -> Result<Value, String> {
            match (from, body) {
                (1, numbers) => Ok(serde_json::json!({ "first": numbers[0], "numbers": numbers })),
                (2, Value::Object(mut fields)) => {
                    fields.insert("name".into(), "none".into());
                    Ok(Value::Object(fields))
                }
                (from, body) => Err(format!("{body} is no record of format {from}")),
            }
        }
    }

    #[test]
    fn an_older_format_is_converted_and_a_newer_one_named_and_left_alone() {
        let scratch = Scratch::new();
        let path = scratch.path("life");
        write(&path, &vec![3u32, 1], Durability::Process).unwrap();
        let grown = Grown { numbers: vec![3, 1], first: 3, name: "none".into() };
        assert_eq!(read::<Grown>(&path).unwrap().as_ref(), Some(&grown));
        write(&path, &grown, Durability::Process).unwrap();
        assert_eq!(read::<Grown>(&path).unwrap(), Some(grown));
        let refused = read::<Vec<u32>>(&path).unwrap_err();
        assert!(matches!(refused, RecordError::TooNew { found: 3, newest: 1, .. }), "{refused}");
        let expected =
            format!("{} is of format 3; allowed: 1 to 1; run the newer build", path.display());
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn nobody_else_can_open_what_is_locked() {
        let scratch = Scratch::new();
        let lock = open_lock(&scratch.path("lock")).unwrap();
        assert_eq!(lock.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn neither_a_pipe_nor_a_link_is_taken_for_a_record() {
        let scratch = Scratch::new();
        let (real, path) = (scratch.path("real"), scratch.path("exit"));
        write(&real, &vec![1], Durability::Process).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        assert!(read::<Vec<u32>>(&path).is_err());
        fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(read::<Vec<u32>>(&path).is_err());
        // Written again, it is a valid record.
        write(&path, &vec![2], Durability::Process).unwrap();
        assert_eq!(read::<Vec<u32>>(&path).unwrap(), Some(vec![2]));
    }

    #[test]
    fn one_caller_creates_a_record_and_no_draft_stays() {
        let scratch = Scratch::new();
        let folder = scratch.path("attempt");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("begun");
        for durability in [Durability::Process, Durability::PowerCut] {
            assert!(create(&path, &vec![1], durability).unwrap());
            assert!(!create(&path, &vec![2], durability).unwrap());
            assert_eq!(read::<Vec<u32>>(&path).unwrap(), Some(vec![1]));
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
            fs::remove_file(&path).unwrap();
        }
        assert!(create(&scratch.path("absent/begun"), &1, Durability::Process).is_err());
    }

    #[test]
    fn a_record_is_read_as_written_and_any_damage_is_seen() {
        let scratch = Scratch::new();
        let path = scratch.path("exit");
        assert!(read::<Vec<u32>>(&path).unwrap().is_none());
        for durability in [Durability::Process, Durability::PowerCut] {
            write(&path, &vec![3, 1, 4], durability).unwrap();
            assert_eq!(read::<Vec<u32>>(&path).unwrap(), Some(vec![3, 1, 4]));
        }
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(read::<Vec<u32>>(&path).is_err(), "byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(read::<Vec<u32>>(&path).is_err(), "cut at {at}");
        }
    }
}
