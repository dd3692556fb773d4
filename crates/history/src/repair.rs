//! Repair of damaged files: they are set aside, never deleted, and history continues without them.
//! Events are ingested again as far back as the feed reaches; missing time shows in how far history
//! reaches back.

use crate::archive::{ARCHIVE_FOLDER, day_bounds};
use crate::error::HistoryError;
use crate::page_checksums::{self, CHECKSUM_FILE, NEXT_CHECKSUM_FILE};
use crate::store::{DATABASE_FILE, History};
use crate::tables::RAW;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The directory of damaged files, beside the database.
const DAMAGED_FOLDER: &str = "damaged";

/// An archive as recorded in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveEntry {
    pub file: String,
    pub table: String,
    pub day: String,
    pub first: i64,
    pub last: i64,
    pub rows: i64,
    pub bytes: i64,
    /// The checksum of the whole file.
    pub checksum: i64,
}

impl ArchiveEntry {
    pub(crate) fn insert(&self, change: &Transaction<'_>) -> rusqlite::Result<()> {
        let sql = "INSERT INTO archives (file, what, day, first, last, rows, bytes, sum)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let ArchiveEntry { file, table: state, day, first, last, rows, bytes, checksum: sum } =
            self;
        change.execute(sql, (file, state, day, first, last, rows, bytes, sum)).map(drop)
    }

    /// Whether it matches the file that exists. The list may be from a damaged database.
    fn matches_file(&self, dir: &Path) -> bool {
        let (from, end) = day_bounds(&self.day);
        let name = format!("{}/{}", self.table, self.day);
        RAW.iter().any(|table| table.name == self.table)
            && self.file.starts_with(&name)
            && self.file.ends_with(".parquet")
            && from <= self.first
            && self.first <= self.last
            && self.last < end
            && hash_of(&dir.join(ARCHIVE_FOLDER).join(&self.file))
                .is_ok_and(|sum| sum == self.checksum)
    }
}

/// Directories and files of history are accessible to their owner only.
pub(crate) fn make_folder(dir: &Path) -> Result<(), HistoryError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(HistoryError::file(dir))
}

/// SQLite gives the files beside a database the mode of the database.
pub(crate) fn make_file(path: &Path) -> Result<(), HistoryError> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600);
    options.open(path).map(drop).map_err(HistoryError::file(path))
}

pub(crate) fn hash_of(path: &Path) -> io::Result<i64> {
    let (mut file, mut hash, mut bytes) = (File::open(path)?, Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hash.digest().cast_signed()),
            read => hash.update(&bytes[..read]),
        }
    }
}

/// Whether an error means that the content of the files is damaged.
pub(crate) fn is_damage(error: &HistoryError) -> bool {
    match error {
        HistoryError::Damaged { .. } => true,
        HistoryError::Database(error) => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ),
        _ => false,
    }
}

/// The number of files in the directory of damaged ones, until an operator has dealt with them.
#[must_use]
pub fn damaged_file_count(dir: &Path) -> usize {
    fs::read_dir(dir.join(DAMAGED_FOLDER)).map_or(0, Iterator::count)
}

/// Moves the database away; returns the archives on its list that match it.
pub(crate) fn set_aside(dir: &Path) -> Result<Vec<ArchiveEntry>, HistoryError> {
    let listed = read_archive_list(dir);
    let true_ones = listed.into_iter().filter(|archive| archive.matches_file(dir)).collect();
    let beside = [format!("{DATABASE_FILE}-wal"), format!("{DATABASE_FILE}-shm")];
    for name in
        beside.iter().map(String::as_str).chain([CHECKSUM_FILE, NEXT_CHECKSUM_FILE, DATABASE_FILE])
    {
        let path = dir.join(name);
        if path.exists() {
            move_aside(dir, &path)?;
        }
    }
    Ok(true_ones)
}

/// The list of a database that may be damaged: empty where it cannot be read.
fn read_archive_list(dir: &Path) -> Vec<ArchiveEntry> {
    let read = || -> rusqlite::Result<Vec<ArchiveEntry>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(dir.join(DATABASE_FILE), flags)?;
        all_archive_entries(&db)
    };
    read().unwrap_or_default()
}

fn all_archive_entries(db: &Connection) -> rusqlite::Result<Vec<ArchiveEntry>> {
    let sql = "SELECT file, what, day, first, last, rows, bytes, sum FROM archives";
    let mut select = db.prepare(sql)?;
    let rows = select.query_map([], |row| {
        Ok(ArchiveEntry {
            file: row.get(0)?,
            table: row.get(1)?,
            day: row.get(2)?,
            first: row.get(3)?,
            last: row.get(4)?,
            rows: row.get(5)?,
            bytes: row.get(6)?,
            checksum: row.get(7)?,
        })
    })?;
    rows.collect()
}

fn move_aside(dir: &Path, path: &Path) -> Result<(), HistoryError> {
    let damaged_dir = dir.join(DAMAGED_FOLDER);
    make_folder(&damaged_dir)?;
    let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
    let free = (0..).map(|nth: u32| damaged_dir.join(format!("{nth:04}-{name}")));
    let target: Option<PathBuf> = free.into_iter().find(|target| !target.exists());
    let target = target.unwrap_or_else(|| damaged_dir.join(&*name));
    fs::rename(path, &target).map_err(HistoryError::file(path))
}

impl History {
    /// Puts archives on the list of a new database; files that are not among them are set aside.
    pub(crate) fn restore_archive_list(
        &mut self,
        archives: &[ArchiveEntry],
    ) -> Result<(), HistoryError> {
        for table in RAW {
            let folder = self.dir.join(ARCHIVE_FOLDER).join(table.name);
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries {
                let path = entry.map_err(HistoryError::file(&folder))?.path();
                let is_listed =
                    |entry: &ArchiveEntry| self.dir.join(ARCHIVE_FOLDER).join(&entry.file) == path;
                if !archives.iter().any(is_listed) {
                    move_aside(&self.dir, &path)?;
                }
            }
        }
        let change = self.db.transaction()?;
        for archive in archives {
            archive.insert(&change)?;
        }
        change.commit()?;
        Ok(())
    }

    /// Verifies every page and every archive; returns what is wrong with archives, one text each. A
    /// damaged archive gets another name, so that a query which needs it fails. A file that an
    /// operator puts in its place is accepted as it is.
    ///
    /// # Errors
    /// That the database is damaged: it has to be opened again.
    pub fn scrub(&mut self) -> Result<Vec<String>, HistoryError> {
        page_checksums::verify(&self.dir)?;
        let mut damage = Vec::new();
        for archive in all_archive_entries(&self.db)? {
            let path = self.dir.join(ARCHIVE_FOLDER).join(&archive.file);
            let renamed = damaged_path(&path);
            let found = match hash_of(&path) {
                Ok(sum) => Some(sum),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                // Perhaps only this file cannot be read. It keeps its name: a query that needs it
                // fails by itself, and a disk may recover.
                Err(error) => {
                    let path = path.display();
                    damage
                        .push(format!("{path} cannot be read: {error}: queries that need it fail"));
                    continue;
                }
            };
            match found {
                Some(sum) if sum == archive.checksum => continue,
                Some(sum) if renamed.exists() => {
                    let sql = "UPDATE archives SET sum = ?1 WHERE file = ?2";
                    self.db.execute(sql, (sum, &archive.file))?;
                    move_aside(&self.dir, &renamed)?;
                    continue;
                }
                Some(_) => fs::rename(&path, &renamed).map_err(HistoryError::file(&path))?,
                None => {}
            }
            let state = if renamed.exists() { "is damaged" } else { "is gone" };
            damage.push(format!(
                "{} {state}: queries that need it are refused until it is there again",
                path.display()
            ));
        }
        Ok(damage)
    }
}

/// The name of a damaged archive.
pub(crate) fn damaged_path(path: &Path) -> PathBuf {
    path.with_extension("parquet.damaged")
}
