//! Checksums of the pages of SQLite's file, which SQLite itself does not keep.
//!
//! In WAL mode the database changes only at checkpoints, and those are made here: the pages that a
//! checkpoint writes into the file are hashed from the WAL, whose frames have checksums of their
//! own, and the hashes are written beside the file. A page that does not match its checksum was
//! damaged; so was one on top of which a change was made, which is checked before the checkpoint.
//!
//! The checksums after a checkpoint are durable beside the list in force *before* it, so that no
//! failed write after it leaves pages without checksums. The WAL decides which of the two lists is
//! valid: SQLite begins a new one, with another salt in its header, only when all of the old one is
//! in the database, and only a checkpoint made here puts it there. As long as the WAL that the new
//! list was made of is there, the old list and that WAL explain every page; once it is not, the new
//! list does.
//!
//! Rejected: SQLite's `cksumvfs`, which is not part of the library's build and would have to be
//! loaded as foreign code; `PRAGMA integrity_check`, which checks that trees are well-formed and
//! not that a number in a row is the one that was written.

use crate::error::HistoryError;
use crate::store::{BUSY_TIMEOUT, DATABASE_FILE};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"CELLSUM1";
pub(crate) const CHECKSUM_FILE: &str = "recent.sums";
/// The checksums after a checkpoint that is under way or was interrupted.
pub(crate) const NEXT_CHECKSUM_FILE: &str = "recent.sums.new";
const LOCK_FILE: &str = "recent.sums.lock";
/// Pages read at a time.
const PAGES_PER_READ: usize = 256;
const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Stands for a page that was never written. There is one in every database beyond a gigabyte,
/// where SQLite puts its locks and no data.
const NO_CHECKSUM: u64 = 0;

/// The checksums of the database, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PageChecksums {
    page_size: u32,
    /// The salt of the WAL that these checksums include.
    wal_salt: [u8; 8],
    checksums: Vec<u64>,
}

/// What the WAL has beyond the database.
#[derive(Debug, Default)]
struct Wal {
    page_size: u32,
    /// The salt that SQLite chose for this WAL and no other; zeros where there is no WAL.
    salt: [u8; 8],
    /// Hashes of every committed version of a page, oldest first.
    page_versions: BTreeMap<u32, Vec<u64>>,
    /// Pages of the database after the last change.
    page_count: u32,
    frames: u64,
}

/// Checkpoints the WAL, if no reader needs an older snapshot, and writes the checksums of the
/// pages.
///
/// # Errors
/// When a page is damaged, or an operation on a file or the database fails.
pub(crate) fn checkpoint(db: &Connection, dir: &Path) -> Result<(), HistoryError> {
    let _alone = lock(dir)?;
    let wal = read_wal(dir)?;
    let (known, is_next) = read_checksums(dir, &wal)?;
    if is_next {
        activate_next_checksums(dir)?;
    }
    if let Some(sums) = &known {
        let pages = wal.page_versions.keys().copied();
        check_pages(dir, sums, &wal, pages)?;
    }
    if let Some(sums) = known.as_ref().filter(|_| wal.frames > 0) {
        write_next_checksums(dir, &after_checkpoint(sums, &wal))?;
    }
    let (_, frames, done): (i64, i64, i64) =
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if frames > 0 && u64::try_from(frames).unwrap_or(0) != wal.frames {
        let message = format!("{frames} changes were made and {} of them read", wal.frames);
        return Err(HistoryError::Damaged { path: wal_path(dir), what: message });
    }
    if frames != done {
        return Ok(());
    }
    if known.is_none() {
        write_next_checksums(dir, &initial_checksums(db, dir, &wal)?)?;
    }
    if known.is_none() || wal.frames > 0 {
        activate_next_checksums(dir)?;
    }
    // A checkpointed WAL need not be read again; readers that still use it are not waited for.
    db.busy_timeout(Duration::ZERO)?;
    let truncated = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    db.busy_timeout(BUSY_TIMEOUT)?;
    Ok(truncated?)
}

/// Verifies every page.
///
/// # Errors
/// The first page that does not match its checksum.
pub(crate) fn verify(dir: &Path) -> Result<(), HistoryError> {
    // A process without write access cannot lock, and then verifies a file that no other changes.
    let _alone = lock(dir).ok();
    let wal = loop {
        let (before, wal) = (wal_frames(dir), read_wal(dir)?);
        if before != wal_frames(dir) {
            continue;
        }
        if before.is_some_and(|count| count > wal.frames) {
            let message = format!("{before:?} changes were made and {} of them read", wal.frames);
            return Err(HistoryError::Damaged { path: wal_path(dir), what: message });
        }
        break wal;
    };
    let (Some(sums), _) = read_checksums(dir, &wal)? else { return Ok(()) };
    let all = 1..=u32::try_from(sums.checksums.len()).unwrap_or(u32::MAX);
    check_pages(dir, &sums, &wal, all)
}

/// The number of frames in the WAL, from the index that SQLite's connections share.
fn wal_frames(dir: &Path) -> Option<u64> {
    let mut head = [0; 20];
    let file = File::open(dir.join(format!("{DATABASE_FILE}-shm"))).ok()?;
    file.read_exact_at(&mut head, 0).ok()?;
    let count = head.last_chunk::<4>()?;
    Some(u64::from(u32::from_ne_bytes(*count)))
}

/// Size of the database file.
pub(crate) fn database_size(dir: &Path) -> u64 {
    fs::metadata(dir.join(DATABASE_FILE)).map_or(0, |about| about.len())
}

/// Size of the WAL, which waits for a checkpoint.
pub(crate) fn wal_size(dir: &Path) -> u64 {
    fs::metadata(wal_path(dir)).map_or(0, |about| about.len())
}

fn check_pages(
    dir: &Path,
    sums: &PageChecksums,
    wal: &Wal,
    pages: impl Iterator<Item = u32>,
) -> Result<(), HistoryError> {
    let path = dir.join(DATABASE_FILE);
    let file = File::open(&path).map_err(HistoryError::file(&path))?;
    let damaged = |page: u32| HistoryError::Damaged {
        path: path.clone(),
        what: format!("page {page} is not as it was written"),
    };
    let size = sums.page_size as usize;
    let mut held: (u32, Vec<u8>) = (0, Vec::new());
    for page in pages {
        let expected = sums.checksums.get(page as usize - 1);
        let Some(expected) = expected.filter(|sum| **sum != NO_CHECKSUM) else { continue };
        let end = held.0 as usize + held.1.len() / size;
        if held.1.is_empty() || page < held.0 || page as usize >= end {
            let left = sums.checksums.len() - (page as usize - 1);
            let mut bytes = vec![0; size * left.min(PAGES_PER_READ)];
            let read = read_up_to(&file, &mut bytes, (u64::from(page) - 1) * size as u64);
            bytes.truncate(read.map_err(HistoryError::file(&path))? / size * size);
            held = (page, bytes);
        }
        let at = (page - held.0) as usize * size;
        let found = held.1.get(at..at + size).map(xxh3_64);
        // A change in the WAL may be in the file already, after an interrupted checkpoint.
        let is_in_wal = || {
            wal.page_versions.get(&page).is_some_and(|all| found.is_some_and(|h| all.contains(&h)))
        };
        if found != Some(*expected) && !is_in_wal() {
            // A file that shrinks has its new length in the WAL.
            let is_truncated = wal.frames > 0 && page > wal.page_count && found.is_none();
            if !is_truncated {
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

/// Only one process or thread at a time verifies the file or changes it.
fn lock(dir: &Path) -> Result<File, HistoryError> {
    let path = dir.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).map_err(HistoryError::file(&path))?;
    file.lock().map_err(HistoryError::file(&path))?;
    Ok(file)
}

/// The checksums once all of the WAL is in the database.
fn after_checkpoint(sums: &PageChecksums, wal: &Wal) -> PageChecksums {
    let mut pages = sums.checksums.clone();
    pages.resize(wal.page_count as usize, NO_CHECKSUM);
    for (page, hashes) in &wal.page_versions {
        let slot = pages.get_mut(*page as usize - 1);
        if let (Some(slot), Some(last)) = (slot, hashes.last()) {
            *slot = *last;
        }
    }
    PageChecksums { page_size: wal.page_size, wal_salt: wal.salt, checksums: pages }
}

/// The checksums of a database without a list, or whose list is lost.
fn initial_checksums(
    db: &Connection,
    dir: &Path,
    wal: &Wal,
) -> Result<PageChecksums, HistoryError> {
    let result: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if result != "ok" {
        return Err(HistoryError::Damaged { path: dir.join(DATABASE_FILE), what: result });
    }
    let page_size: u32 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let path = dir.join(DATABASE_FILE);
    let bytes = fs::read(&path).map_err(HistoryError::file(&path))?;
    let pages = bytes.chunks(page_size as usize).map(xxh3_64).collect();
    Ok(PageChecksums { page_size, wal_salt: wal.salt, checksums: pages })
}

/// The list that is valid beside this WAL, and whether it is that of an interrupted checkpoint.
fn read_checksums(dir: &Path, wal: &Wal) -> Result<(Option<PageChecksums>, bool), HistoryError> {
    let next = parse_checksums(dir.join(NEXT_CHECKSUM_FILE))?;
    match next.filter(|next| next.wal_salt != wal.salt) {
        Some(next) => Ok((Some(next), true)),
        None => Ok((parse_checksums(dir.join(CHECKSUM_FILE))?, false)),
    }
}

fn parse_checksums(path: PathBuf) -> Result<Option<PageChecksums>, HistoryError> {
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(HistoryError::File { path, why }),
    };
    let parse = || {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != xxh3_64(body) || body.get(..8)? != MAGIC {
            return None;
        }
        let page_size = u32::from_le_bytes(body.get(8..12)?.try_into().ok()?);
        let salt = body.get(12..20)?.try_into().ok()?;
        let checksums = body.get(20..)?.as_chunks::<8>().0;
        Some(PageChecksums {
            page_size,
            wal_salt: salt,
            checksums: checksums.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        })
    };
    // An unreadable list is worth nothing; it is written again at the next checkpoint.
    Ok(parse())
}

/// Writes the checksums after the checkpoint. Before that the WAL they are computed from is made
/// durable: a power cut that lost the WAL would make a list valid that does not match the database.
fn write_next_checksums(dir: &Path, sums: &PageChecksums) -> Result<(), HistoryError> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&sums.page_size.to_le_bytes());
    bytes.extend_from_slice(&sums.wal_salt);
    for page in &sums.checksums {
        bytes.extend_from_slice(&page.to_le_bytes());
    }
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let path = dir.join(NEXT_CHECKSUM_FILE);
    let expected = || {
        match File::open(wal_path(dir)) {
            Ok(wal) => wal.sync_all()?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => return Err(why),
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    expected().map_err(HistoryError::file(&path))
}

/// Makes the new list the valid one: all of its WAL is in the database.
fn activate_next_checksums(dir: &Path) -> Result<(), HistoryError> {
    let path = dir.join(CHECKSUM_FILE);
    let renamed = fs::rename(dir.join(NEXT_CHECKSUM_FILE), &path);
    let renamed = renamed.and_then(|()| File::open(dir)?.sync_all());
    renamed.map_err(HistoryError::file(&path))
}

fn wal_path(dir: &Path) -> PathBuf {
    dir.join(format!("{DATABASE_FILE}-wal"))
}

/// Reads the WAL as SQLite does after a crash: up to the last transaction whose frames are all
/// valid.
fn read_wal(dir: &Path) -> Result<Wal, HistoryError> {
    let path = wal_path(dir);
    let mut file = match File::open(&path) {
        Ok(file) => io::BufReader::with_capacity(1 << 20, file),
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Wal::default()),
        Err(why) => return Err(HistoryError::File { path, why }),
    };
    let mut header = [0; WAL_HEADER];
    if !read_exact_or_end(&mut file, &mut header).map_err(HistoryError::file(&path))? {
        return Ok(Wal::default());
    }
    let magic = read_u32(&header, 0);
    let is_big = magic & 1 == 1;
    let mut sums = wal_checksum((0, 0), &header[..24], is_big);
    if magic & !1 != 0x377f_0682 || sums != (read_u32(&header, 24), read_u32(&header, 28)) {
        return Ok(Wal::default());
    }
    let mut wal = Wal { page_size: read_u32(&header, 8), ..Wal::default() };
    wal.salt.copy_from_slice(&header[16..24]);
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut frame = vec![0; FRAME_HEADER + wal.page_size as usize];
    while read_exact_or_end(&mut file, &mut frame).map_err(HistoryError::file(&path))? {
        sums = wal_checksum(sums, &frame[..8], is_big);
        sums = wal_checksum(sums, &frame[FRAME_HEADER..], is_big);
        let is_of_this = frame[8..16] == header[16..24];
        if !is_of_this || sums != (read_u32(&frame, 16), read_u32(&frame, 20)) {
            break;
        }
        open.push((read_u32(&frame, 0), xxh3_64(&frame[FRAME_HEADER..])));
        let count = read_u32(&frame, 4);
        if count == 0 {
            continue;
        }
        wal.frames += open.len() as u64;
        wal.page_count = count;
        for (page, hash) in open.drain(..) {
            wal.page_versions.entry(page).or_default().push(hash);
        }
    }
    Ok(wal)
}

/// Reads exactly that many bytes; false when the file ends before.
fn read_exact_or_end(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The checksum of SQLite's WAL, continued over these bytes.
fn wal_checksum(from: (u32, u32), bytes: &[u8], is_big: bool) -> (u32, u32) {
    let (mut sum1, mut sum2) = from;
    for pair in bytes.as_chunks::<8>().0 {
        let read = |at: usize| {
            let word = [pair[at], pair[at + 1], pair[at + 2], pair[at + 3]];
            if is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        };
        sum1 = sum1.wrapping_add(read(0)).wrapping_add(sum2);
        sum2 = sum2.wrapping_add(read(4)).wrapping_add(sum1);
    }
    (sum1, sum2)
}

/// Four bytes at a position that exists.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(four)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    const PAGE: usize = 512;

    /// A database beyond a gigabyte has a page that SQLite never writes; here it is the third.
    #[test]
    fn a_page_that_no_change_brought_is_not_damaged() {
        let folder = Folder::new();
        fs::create_dir_all(folder.path()).unwrap();
        let path = folder.path().join(DATABASE_FILE);
        let mut bytes: Vec<u8> = (1..=5).flat_map(|page| [page; PAGE]).collect();
        bytes[2 * PAGE..3 * PAGE].fill(0);
        let hash = |page: usize| xxh3_64(&bytes[(page - 1) * PAGE..page * PAGE]);
        let before =
            PageChecksums { page_size: PAGE as u32, checksums: vec![hash(1), 7], wal_salt: [1; 8] };
        let pages = [2, 4, 5].map(|page: u32| (page, vec![9, hash(page as usize)])).into();
        let wal = Wal {
            page_size: PAGE as u32,
            salt: [2; 8],
            page_versions: pages,
            page_count: 5,
            frames: 6,
        };
        let sums = after_checkpoint(&before, &wal);
        assert_eq!(sums.checksums, [hash(1), hash(2), NO_CHECKSUM, hash(4), hash(5)]);
        fs::write(&path, &bytes).unwrap();
        check_pages(folder.path(), &sums, &Wal::default(), 1..=5).unwrap();
        for page in [1, 2, 4, 5] {
            let mut bad = bytes.clone();
            bad[page * PAGE - 1] ^= 1;
            fs::write(&path, &bad).unwrap();
            let result = check_pages(folder.path(), &sums, &Wal::default(), 1..=5);
            assert!(matches!(result, Err(HistoryError::Damaged { .. })), "page {page}: {result:?}");
        }
    }
}
