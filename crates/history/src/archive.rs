//! The archive: moves old days from SQLite into Parquet files and enforces retention.
//!
//! A day moves in two steps: its file is written and synced under a name that is on no list yet;
//! then one transaction puts the file on the list and deletes the rows. Killed in between, the file
//! is a stray that the next start deletes. A reader sees the list and the rows of one moment.
//!
//! Rejected: appending to one file per table. A Parquet file is finished when it is closed, and a
//! directory of days is what other programs expect.

use crate::columns::ParquetWriter;
use crate::day::{MILLIS, day_of};
use crate::error::HistoryError;
use crate::event_rows::to_sql_integer;
use crate::query::HistoryReader;
use crate::repair::{ArchiveEntry, damaged_path, hash_of, make_folder};
use crate::restored::RestoredPart;
use crate::store::{DATABASE_FILE, History, raise_complete_since};
use crate::tables::{RAW, ROLLUPS, Rollup, Table, USAGE, recent_table};
use cellwright_cell::time::{Span, Time};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) const ARCHIVE_FOLDER: &str = "archive";
/// Pages returned to the file system at a time.
const PAGES_PER_VACUUM: u32 = 20_000;

/// A file of old rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archive {
    pub path: PathBuf,
    pub day: String,
    pub first: i64,
    pub last: i64,
}

/// The result of [`History::enforce_retention`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionResult {
    pub archived_rows: u64,
    pub forgotten_days: u64,
}

impl History {
    /// Archives days that are old by now and deletes what is beyond the limits.
    ///
    /// # Errors
    /// When an operation on a file or the database fails. What was done stays done.
    pub fn enforce_retention(&mut self, now: Time) -> Result<RetentionResult, HistoryError> {
        let mut result = RetentionResult::default();
        let line = day_of(now.0.saturating_sub(self.settings.recent.0));
        for table in RAW {
            while let Some(day) = oldest_recent_day(&self.db, table)?.filter(|day| *day < line) {
                result.archived_rows += self.archive_day(table, &day)?;
            }
        }
        let line = day_of(now.0.saturating_sub(self.settings.keep.0));
        while let Some(day) = self.oldest_day()?.filter(|day| *day < line) {
            if self.is_held(&day, now)? {
                break;
            }
            self.delete_day(&day)?;
            result.forgotten_days += 1;
        }
        // The newest day stays whatever its size: it is still being written.
        let today = day_of(now.0);
        while self.disk_bytes()? > self.settings.max_bytes {
            let Some(day) = self.oldest_day()?.filter(|day| *day < today) else { break };
            self.delete_day(&day)?;
            result.forgotten_days += 1;
        }
        if result != RetentionResult::default() {
            self.vacuum()?;
        }
        self.checkpoint_if_large()?;
        Ok(result)
    }

    /// From now on a day whose files are not all among these is kept so much longer, for an archive
    /// elsewhere to take them. A limit in bytes holds all the same.
    pub fn hold_unarchived(&mut self, wait: Span, archived: BTreeSet<RestoredPart>) {
        self.hold = Some((wait, archived));
    }

    /// Whether an old day still waits for an archive elsewhere.
    fn is_held(&self, day: &str, now: Time) -> Result<bool, HistoryError> {
        let Some((wait, archived)) = &self.hold else { return Ok(false) };
        let line = now.0.saturating_sub(self.settings.keep.0).saturating_sub(wait.0);
        if day < day_of(line).as_str() {
            return Ok(false);
        }
        for table in RAW {
            for file in archives(&self.db, &self.dir, table)?.iter().filter(|file| file.day == day)
            {
                let part = file.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                if !archived.contains(&(table.name.to_owned(), part.unwrap_or_default())) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Disk space used by the whole history, without free space inside the database.
    ///
    /// # Errors
    /// When reading from the database fails.
    pub fn disk_bytes(&self) -> Result<u64, HistoryError> {
        let pragma =
            |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let pages = pragma("page_count")? - pragma("freelist_count")?;
        let recent = pages.saturating_mul(pragma("page_size")?);
        let sql = "SELECT coalesce(sum(bytes), 0) FROM archives";
        let old: i64 = self.db.query_row(sql, [], |row| row.get(0))?;
        Ok(u64::try_from(recent.saturating_add(old)).unwrap_or(0))
    }

    /// Files on no list: of an interrupted archiving, or dropped from the list and not yet deleted.
    pub(crate) fn delete_strays(&mut self) -> Result<(), HistoryError> {
        let mut known = BTreeSet::new();
        let mut select = self.db.prepare("SELECT file FROM archives")?;
        for file in select.query_map([], |row| row.get::<_, String>(0))? {
            let path = self.dir.join(ARCHIVE_FOLDER).join(file?);
            known.insert(damaged_path(&path));
            known.insert(path);
        }
        for table in RAW {
            let folder = self.dir.join(ARCHIVE_FOLDER).join(table.name);
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries {
                let path = entry.map_err(HistoryError::file(&folder))?.path();
                if !known.contains(&path) {
                    fs::remove_file(&path).map_err(HistoryError::file(&path))?;
                }
            }
        }
        Ok(())
    }

    fn archive_day(&mut self, table: &'static Table, day: &str) -> Result<u64, HistoryError> {
        let change = self.db.transaction()?;
        let sql = "SELECT count(*) FROM archives WHERE what = ?1 AND day = ?2";
        let before: i64 = change.query_row(sql, (table.name, day), |row| row.get(0))?;
        let part = if before == 0 { String::new() } else { format!(".{}", before + 1) };
        let file = format!("{}/{day}{part}.parquet", table.name);
        let path = self.dir.join(ARCHIVE_FOLDER).join(&file);
        let stats = write_day(&change, table, day, &path)?;
        let listed = ArchiveEntry {
            file,
            table: table.name.to_owned(),
            day: day.to_owned(),
            first: stats.first,
            last: stats.last,
            rows: to_sql_integer(stats.rows),
            bytes: to_sql_integer(stats.bytes),
            checksum: hash_of(&path).map_err(HistoryError::file(&path))?,
        };
        listed.insert(&change)?;
        let (from, end) = day_bounds(day);
        let sql = format!("DELETE FROM {} WHERE time >= ?1 AND time < ?2", recent_table(table));
        change.execute(&sql, (from, end))?;
        change.commit()?;
        Ok(stats.rows)
    }

    /// The oldest day with raw rows.
    fn oldest_day(&self) -> Result<Option<String>, HistoryError> {
        let sql = "SELECT min(day) FROM archives";
        let mut oldest: Option<String> = self.db.query_row(sql, [], |row| row.get(0))?;
        for table in RAW {
            let found = oldest_recent_day(&self.db, table)?;
            oldest = [oldest, found].into_iter().flatten().min();
        }
        Ok(oldest)
    }

    fn delete_day(&mut self, day: &str) -> Result<(), HistoryError> {
        let change = self.db.transaction()?;
        let files: Vec<String> = {
            let mut select = change.prepare("SELECT file FROM archives WHERE day = ?1")?;
            select.query_map([day], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
        };
        change.execute("DELETE FROM archives WHERE day = ?1", [day])?;
        let (from, end) = day_bounds(day);
        for table in RAW {
            let sql = format!("DELETE FROM {} WHERE time >= ?1 AND time < ?2", recent_table(table));
            change.execute(&sql, (from, end))?;
        }
        for Rollup { table, .. } in ROLLUPS {
            change
                .execute(&format!("DELETE FROM {} WHERE day <= ?1", recent_table(table)), [day])?;
        }
        let then = Time(u64::try_from(end).unwrap_or(0));
        for table_name in ["events", USAGE.name] {
            let known = "SELECT 1 FROM reach WHERE what = ?1";
            if change.query_row(known, [table_name], |_| Ok(())).optional()?.is_some() {
                raise_complete_since(&change, table_name, then)?;
            }
        }
        change.commit()?;
        for file in files {
            let path = self.dir.join(ARCHIVE_FOLDER).join(file);
            match fs::remove_file(&path) {
                Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                    return Err(HistoryError::File { path, why });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns free pages to the file system, a few at a time so that readers are not held up.
    fn vacuum(&mut self) -> Result<(), HistoryError> {
        let free = |db: &Connection| {
            db.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0))
        };
        let mut left = free(&self.db)?;
        while left > 0 {
            self.db.execute_batch(&format!("PRAGMA incremental_vacuum({PAGES_PER_VACUUM})"))?;
            let now = free(&self.db)?;
            if now >= left {
                break;
            }
            left = now;
        }
        Ok(())
    }
}

/// Archives of a table, oldest first.
pub(crate) fn archives(
    db: &Connection,
    dir: &Path,
    table: &Table,
) -> rusqlite::Result<Vec<Archive>> {
    let sql = "SELECT file, day, first, last FROM archives WHERE what = ?1 ORDER BY day, file";
    let mut select = db.prepare(sql)?;
    let rows = select.query_map([table.name], |row| {
        let file: String = row.get(0)?;
        let path = dir.join(ARCHIVE_FOLDER).join(file);
        Ok(Archive { path, day: row.get(1)?, first: row.get(2)?, last: row.get(3)? })
    })?;
    rows.collect()
}

/// A file of old rows, for whoever keeps a copy of it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedFile {
    pub table: String,
    /// The day, `2026-11-19`; of a further file of that day `2026-11-19.2`.
    pub part: String,
    pub path: PathBuf,
}

/// The finished files of a history directory; none where there is no history yet.
///
/// # Errors
/// When the database cannot be read.
pub fn archived_files(dir: &Path) -> Result<Vec<ArchivedFile>, HistoryError> {
    if !exists(dir) {
        return Ok(Vec::new());
    }
    let db = HistoryReader::new(dir).connect()?;
    let mut files = Vec::new();
    for table in RAW {
        files.extend(archives(&db, dir, table)?.into_iter().filter_map(|archive| {
            let part = archive.path.file_stem()?.to_str()?.to_owned();
            Some(ArchivedFile { table: table.name.to_owned(), part, path: archive.path })
        }));
    }
    Ok(files)
}

/// Whether there is a history directory at all.
#[must_use]
pub fn exists(dir: &Path) -> bool {
    dir.join(DATABASE_FILE).is_file()
}

pub(crate) fn oldest_recent_day(
    db: &Connection,
    table: &Table,
) -> rusqlite::Result<Option<String>> {
    let sql = format!("SELECT min(time) FROM {}", recent_table(table));
    let found: Option<i64> = db.query_row(&sql, [], |row| row.get(0))?;
    Ok(found.map(|millis| day_of(u64::try_from(millis).unwrap_or(0))))
}

/// The first millisecond of a day and of the next.
pub(crate) fn day_bounds(day: &str) -> (i64, i64) {
    let number = |at: std::ops::Range<usize>| day.get(at).and_then(|text| text.parse::<i32>().ok());
    let date = || {
        let month = u8::try_from(number(5..7)?).ok()?;
        let day = u8::try_from(number(8..10)?).ok()?;
        time::Date::from_calendar_date(number(0..4)?, month.try_into().ok()?, day).ok()
    };
    let Some(date) = date() else { return (0, 0) };
    let first = date.midnight().assume_utc().unix_timestamp().saturating_mul(1000);
    // Times beyond the calendar belong to its last day.
    let after = if date == time::Date::MAX { i64::MAX } else { first + to_sql_integer(MILLIS) };
    (first, after)
}

struct ArchiveStats {
    first: i64,
    last: i64,
    rows: u64,
    bytes: u64,
}

fn write_day(
    db: &Connection,
    table: &'static Table,
    day: &str,
    path: &Path,
) -> Result<ArchiveStats, HistoryError> {
    let folder = path.parent().unwrap_or(path);
    make_folder(folder)?;
    let broken = |why: parquet::errors::ParquetError| HistoryError::Archive {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path).map_err(HistoryError::file(path))?;
    let mut writer = ParquetWriter::new(table, file).map_err(broken)?;
    let (from, end) = day_bounds(day);
    let sql = format!(
        "SELECT {} FROM {} WHERE time >= ?1 AND time < ?2 ORDER BY time, rowid",
        table.column_list(),
        recent_table(table)
    );
    let mut select = db.prepare(&sql)?;
    let mut rows = select.query((from, end))?;
    let mut stats = ArchiveStats { first: i64::MAX, last: i64::MIN, rows: 0, bytes: 0 };
    while let Some(row) = rows.next()? {
        let values: Vec<Value> =
            (0..table.columns.len()).map(|at| row.get(at)).collect::<rusqlite::Result<_>>()?;
        if let Some(Value::Integer(time)) = values.first() {
            stats.first = stats.first.min(*time);
            stats.last = stats.last.max(*time);
        }
        stats.rows += 1;
        writer.add(values.into_iter()).map_err(broken)?;
    }
    let file = writer.close().map_err(broken)?;
    file.sync_all().map_err(HistoryError::file(path))?;
    stats.bytes = file.metadata().map_err(HistoryError::file(path))?.len();
    File::open(folder).and_then(|dir| dir.sync_all()).map_err(HistoryError::file(folder))?;
    Ok(stats)
}
