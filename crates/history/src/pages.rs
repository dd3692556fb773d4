//! Checksums of the pages of SQLite's file, which SQLite itself does not keep.
//!
//! In WAL mode the database changes at checkpoints alone, and those are made here: what a
//! checkpoint puts into the file is hashed from the log of changes, whose frames have checksums of
//! their own, and written beside the file. A page that does not hash to what was written was
//! damaged; so was one that a change was made on top of, which is looked at before the change is
//! taken over.
//!
//! Rejected: SQLite's `cksumvfs`, which is not part of the library's build and would have to be
//! loaded as foreign code; `PRAGMA integrity_check`, which sees that trees are well-formed and not
//! that a number in a row is the one that was written.

use crate::error::HistoryError;
use crate::store::{FILE, PATIENCE};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"CELLSUM1";
pub(crate) const SUMS: &str = "recent.sums";
const LOCK: &str = "recent.sums.lock";
/// Pages read at a time.
const AT_ONCE: usize = 256;
const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What is in the database, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sums {
    page_size: u32,
    pages: Vec<u64>,
}

/// What the log of changes has beyond the database.
#[derive(Debug, Default)]
struct Wal {
    page_size: u32,
    /// Hashes of every committed version of a page, oldest first.
    pages: BTreeMap<u32, Vec<u64>>,
    /// Pages of the database after the last change.
    count: u32,
    frames: u64,
}

/// Takes over what is in the log of changes, if nobody reads an older moment, and writes down what
/// the pages are then.
///
/// # Errors
/// When a page is damaged, or a file or the database refuses.
pub(crate) fn checkpoint(db: &Connection, dir: &Path) -> Result<(), HistoryError> {
    let _alone = lock(dir)?;
    let wal = read_wal(dir)?;
    let known = read_sums(dir)?;
    if let Some(sums) = &known {
        let pages = wal.pages.keys().copied();
        check(dir, sums, &wal, pages)?;
    }
    let (_, frames, done): (i64, i64, i64) =
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if frames > 0 && u64::try_from(frames).unwrap_or(0) != wal.frames {
        let what = format!("{frames} changes were made and {} of them read", wal.frames);
        return Err(HistoryError::Damaged { path: wal_path(dir), what });
    }
    if frames != done {
        return Ok(());
    }
    let sums = match known {
        Some(mut sums) if wal.frames > 0 => {
            sums.page_size = wal.page_size;
            sums.pages.resize(wal.count as usize, 0);
            for (page, hashes) in &wal.pages {
                let place = sums.pages.get_mut(*page as usize - 1);
                if let (Some(place), Some(last)) = (place, hashes.last()) {
                    *place = *last;
                }
            }
            sums
        }
        Some(sums) => sums,
        None => first_sums(db, dir)?,
    };
    write_sums(dir, &sums)?;
    // What was taken over need not be read again; whoever still reads it is not waited for.
    db.busy_timeout(Duration::ZERO)?;
    let emptied = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    db.busy_timeout(PATIENCE)?;
    Ok(emptied?)
}

/// Looks at every page.
///
/// # Errors
/// The first page that is not as it was written.
pub(crate) fn verify(dir: &Path) -> Result<(), HistoryError> {
    // Whoever may only read cannot lock, and then looks at a file that nobody changes.
    let _alone = lock(dir).ok();
    let Some(sums) = read_sums(dir)? else { return Ok(()) };
    let wal = loop {
        let (before, wal) = (changes(dir), read_wal(dir)?);
        if before != changes(dir) {
            continue;
        }
        if before.is_some_and(|count| count > wal.frames) {
            let what = format!("{before:?} changes were made and {} of them read", wal.frames);
            return Err(HistoryError::Damaged { path: wal_path(dir), what });
        }
        break wal;
    };
    let all = 1..=u32::try_from(sums.pages.len()).unwrap_or(u32::MAX);
    check(dir, &sums, &wal, all)
}

/// How many frames SQLite says are in the log of changes, in the index that its connections share.
fn changes(dir: &Path) -> Option<u64> {
    let mut head = [0; 20];
    let file = File::open(dir.join(format!("{FILE}-shm"))).ok()?;
    file.read_exact_at(&mut head, 0).ok()?;
    let count = head.last_chunk::<4>()?;
    Some(u64::from(u32::from_ne_bytes(*count)))
}

/// How large the database is.
pub(crate) fn size(dir: &Path) -> u64 {
    fs::metadata(dir.join(FILE)).map_or(0, |about| about.len())
}

/// How much waits to be taken over.
pub(crate) fn waiting(dir: &Path) -> u64 {
    fs::metadata(wal_path(dir)).map_or(0, |about| about.len())
}

fn check(
    dir: &Path,
    sums: &Sums,
    wal: &Wal,
    pages: impl Iterator<Item = u32>,
) -> Result<(), HistoryError> {
    let path = dir.join(FILE);
    let file = File::open(&path).map_err(HistoryError::file(&path))?;
    let damaged = |page: u32| HistoryError::Damaged {
        path: path.clone(),
        what: format!("page {page} is not as it was written"),
    };
    let size = sums.page_size as usize;
    let mut held: (u32, Vec<u8>) = (0, Vec::new());
    for page in pages {
        let Some(written) = sums.pages.get(page as usize - 1) else { continue };
        let end = held.0 as usize + held.1.len() / size;
        if held.1.is_empty() || page < held.0 || page as usize >= end {
            let left = sums.pages.len() - (page as usize - 1);
            let mut bytes = vec![0; size * left.min(AT_ONCE)];
            let read = read_up_to(&file, &mut bytes, (u64::from(page) - 1) * size as u64);
            bytes.truncate(read.map_err(HistoryError::file(&path))? / size * size);
            held = (page, bytes);
        }
        let at = (page - held.0) as usize * size;
        let found = held.1.get(at..at + size).map(xxh3_64);
        // A change that waits may be in the file already: a checkpoint that was cut short.
        let waits =
            || wal.pages.get(&page).is_some_and(|all| found.is_some_and(|h| all.contains(&h)));
        if found != Some(*written) && !waits() {
            // A file that shrinks has its new length in the changes that wait.
            let is_given_back = wal.frames > 0 && page > wal.count && found.is_none();
            if !is_given_back {
                return Err(damaged(page));
            }
        }
    }
    Ok(())
}

fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// One at a time looks at the file or changes it, in any process.
fn lock(dir: &Path) -> Result<File, HistoryError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).map_err(HistoryError::file(&path))?;
    file.lock().map_err(HistoryError::file(&path))?;
    Ok(file)
}

/// The pages of a database that nobody wrote down yet, or of which that is lost.
fn first_sums(db: &Connection, dir: &Path) -> Result<Sums, HistoryError> {
    let said: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said != "ok" {
        return Err(HistoryError::Damaged { path: dir.join(FILE), what: said });
    }
    let page_size: u32 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let path = dir.join(FILE);
    let bytes = fs::read(&path).map_err(HistoryError::file(&path))?;
    Ok(Sums { page_size, pages: bytes.chunks(page_size as usize).map(xxh3_64).collect() })
}

fn read_sums(dir: &Path) -> Result<Option<Sums>, HistoryError> {
    let path = dir.join(SUMS);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(HistoryError::File { path, why }),
    };
    let sound = || {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != xxh3_64(body) || body.get(..8)? != MAGIC {
            return None;
        }
        let page_size = u32::from_le_bytes(body.get(8..12)?.try_into().ok()?);
        let words = body.get(12..)?.as_chunks::<8>().0;
        Some(Sums {
            page_size,
            pages: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        })
    };
    // One that does not read vouches for nothing; it is made again at the next checkpoint.
    Ok(sound())
}

fn write_sums(dir: &Path, sums: &Sums) -> Result<(), HistoryError> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&sums.page_size.to_le_bytes());
    for page in &sums.pages {
        bytes.extend_from_slice(&page.to_le_bytes());
    }
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let (path, fresh) = (dir.join(SUMS), dir.join(format!("{SUMS}.new")));
    let written = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(dir)?.sync_all()
    };
    written().map_err(HistoryError::file(&path))
}

fn wal_path(dir: &Path) -> PathBuf {
    dir.join(format!("{FILE}-wal"))
}

/// Reads the log of changes as SQLite does after a crash: up to the last change whose frames are
/// all sound.
fn read_wal(dir: &Path) -> Result<Wal, HistoryError> {
    let path = wal_path(dir);
    let mut file = match File::open(&path) {
        Ok(file) => io::BufReader::with_capacity(1 << 20, file),
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Wal::default()),
        Err(why) => return Err(HistoryError::File { path, why }),
    };
    let mut header = [0; WAL_HEADER];
    if !whole(&mut file, &mut header).map_err(HistoryError::file(&path))? {
        return Ok(Wal::default());
    }
    let magic = word(&header, 0);
    let is_big = magic & 1 == 1;
    let mut sums = summed((0, 0), &header[..24], is_big);
    if magic & !1 != 0x377f_0682 || sums != (word(&header, 24), word(&header, 28)) {
        return Ok(Wal::default());
    }
    let mut wal = Wal { page_size: word(&header, 8), ..Wal::default() };
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut frame = vec![0; FRAME_HEADER + wal.page_size as usize];
    while whole(&mut file, &mut frame).map_err(HistoryError::file(&path))? {
        sums = summed(sums, &frame[..8], is_big);
        sums = summed(sums, &frame[FRAME_HEADER..], is_big);
        let is_of_this = frame[8..16] == header[16..24];
        if !is_of_this || sums != (word(&frame, 16), word(&frame, 20)) {
            break;
        }
        open.push((word(&frame, 0), xxh3_64(&frame[FRAME_HEADER..])));
        let count = word(&frame, 4);
        if count == 0 {
            continue;
        }
        wal.frames += open.len() as u64;
        wal.count = count;
        for (page, hash) in open.drain(..) {
            wal.pages.entry(page).or_default().push(hash);
        }
    }
    Ok(wal)
}

/// Whether there were as many bytes as that.
fn whole(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The checksum of SQLite's log of changes, carried on over these bytes.
fn summed(from: (u32, u32), bytes: &[u8], is_big: bool) -> (u32, u32) {
    let (mut one, mut two) = from;
    for pair in bytes.as_chunks::<8>().0 {
        let read = |at: usize| {
            let word = [pair[at], pair[at + 1], pair[at + 2], pair[at + 3]];
            if is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        };
        one = one.wrapping_add(read(0)).wrapping_add(two);
        two = two.wrapping_add(read(4)).wrapping_add(one);
    }
    (one, two)
}

/// Four bytes at a place that is there.
fn word(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(four)
}
