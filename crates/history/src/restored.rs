//! Days that were forgotten here and came back from an archive elsewhere, for a while: Parquet
//! files beside those of one's own, in the folder `restored`. A query sees them as it sees its own,
//! a day that is here anyway from here alone. Sums of days do not come back: they are in no
//! archive.

use crate::archive::{Archive, day_bounds, oldest_recent_day};
use crate::error::HistoryError;
use crate::repair::make_folder;
use crate::tables::{RAW, Table};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const FOLDER: &str = "restored";
const ENDING: &str = ".parquet";
/// Every Parquet file begins and ends so.
const MAGIC: &[u8] = b"PAR1";

/// A file that came back: its table, and its day with the number of its part.
pub type RestoredPart = (String, String);

/// Files of a table that came back, of days that are not here anyway.
pub(crate) fn restored_archives(
    db: &Connection,
    dir: &Path,
    table: &'static Table,
    own: &[Archive],
) -> rusqlite::Result<Vec<Archive>> {
    let parts = parts_of(dir, table.name);
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let here: BTreeSet<&str> = own.iter().map(|archive| archive.day.as_str()).collect();
    let recent = oldest_recent_day(db, table)?;
    let restored = parts.into_iter().filter_map(|part| {
        let day = part.split('.').next().unwrap_or_default().to_owned();
        let is_here = here.contains(day.as_str()) || recent.as_ref().is_some_and(|at| day >= *at);
        let (first, end) = day_bounds(&day);
        let path = path_of(dir, table.name, &part);
        (!is_here && first < end).then(|| Archive { path, day, first, last: end - 1 })
    });
    Ok(restored.collect())
}

/// What is here of what came back.
#[must_use]
pub fn restored_parts(dir: &Path) -> BTreeSet<RestoredPart> {
    let of = |table: &'static str| {
        parts_of(dir, table).into_iter().map(move |part| (table.to_owned(), part))
    };
    RAW.iter().flat_map(|table| of(table.name)).collect()
}

/// Puts a file there, whole or not at all. A table that is not known here is left out.
///
/// # Errors
/// When it is no Parquet file, or cannot be written.
pub fn restore_part(
    dir: &Path,
    table: &str,
    part: &str,
    content: &[u8],
) -> Result<(), HistoryError> {
    if !RAW.iter().any(|known| known.name == table) {
        return Ok(());
    }
    let path = path_of(dir, table, part);
    if !content.starts_with(MAGIC) || !content.ends_with(MAGIC) {
        return Err(HistoryError::Archive { path, why: "it is no Parquet file".into() });
    }
    let folder = path.parent().unwrap_or(dir);
    make_folder(folder)?;
    let unfinished = folder.join(format!("{part}.unfinished"));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&unfinished).and_then(|mut file| file.write_all(content));
    written.map_err(HistoryError::file(&unfinished))?;
    fs::rename(&unfinished, &path).map_err(HistoryError::file(&path))
}

/// Takes a file away again; the archive has it still.
///
/// # Errors
/// When it cannot be removed.
pub fn drop_restored_part(dir: &Path, (table, part): &RestoredPart) -> Result<(), HistoryError> {
    let path = path_of(dir, table, part);
    match fs::remove_file(&path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            Err(HistoryError::File { path, why })
        }
        _ => Ok(()),
    }
}

fn path_of(dir: &Path, table: &str, part: &str) -> PathBuf {
    dir.join(FOLDER).join(table).join(format!("{part}{ENDING}"))
}

fn parts_of(dir: &Path, table: &str) -> Vec<String> {
    let entries = fs::read_dir(dir.join(FOLDER).join(table)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    let mut parts: Vec<String> = entries
        .filter_map(name)
        .filter_map(|name| Some(name.strip_suffix(ENDING)?.to_owned()))
        .collect();
    parts.sort();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::archived_files;
    use crate::query::Value;
    use crate::store::{History, RetentionConfig};
    use crate::testing::{BEGIN, DAY, Folder, feed, ingest, query, settings};
    use cellwright_cell::time::{Span, Time};

    #[test]
    fn a_day_that_was_forgotten_comes_back_for_a_while() {
        let folder = Folder::new();
        let mut history = History::open(folder.path(), settings()).unwrap();
        ingest(&mut history, &feed(1000, 100));
        history.enforce_retention(Time(BEGIN + 10 * DAY - 1)).unwrap();
        let sql = "select day, count(*) from task_events group by day order by day";
        let before = query(&folder, sql).rows;
        let kept: Vec<(RestoredPart, Vec<u8>)> = archived_files(folder.path())
            .unwrap()
            .into_iter()
            .map(|file| ((file.table, file.part), fs::read(file.path).unwrap()))
            .collect();
        assert!(kept.len() > 5);
        drop(history);
        let keep = RetentionConfig { keep: Span(5 * DAY), ..settings() };
        let mut history = History::open(folder.path(), keep).unwrap();
        history.enforce_retention(Time(BEGIN + 10 * DAY - 1)).unwrap();
        let after = query(&folder, sql).rows;
        assert!(after.len() < before.len());
        for ((table, part), content) in &kept {
            restore_part(folder.path(), table, part, content).unwrap();
        }
        // Those that never went are counted once.
        assert_eq!(query(&folder, sql).rows, before);
        assert_eq!(restored_parts(folder.path()).len(), kept.len());
        let one = "select count(*) from task_events where day = '2026-11-02'";
        assert_ne!(query(&folder, one).rows, [[Value::Integer(0)]]);
        for part in restored_parts(folder.path()) {
            drop_restored_part(folder.path(), &part).unwrap();
        }
        assert_eq!(query(&folder, sql).rows, after);
        let broken = restore_part(folder.path(), "task_events", "2026-11-02", b"PAR1x");
        assert!(broken.unwrap_err().to_string().contains("no Parquet file"));
        assert!(restore_part(folder.path(), "../x", "2026-11-02", b"PAR1").is_ok());
        assert!(restored_parts(folder.path()).is_empty());
    }

    #[test]
    fn a_day_that_is_archived_nowhere_waits_for_that_and_not_for_ever() {
        let folder = Folder::new();
        let keep = RetentionConfig { keep: Span(5 * DAY), ..settings() };
        let mut history = History::open(folder.path(), keep).unwrap();
        ingest(&mut history, &feed(1000, 100));
        let now = Time(BEGIN + 10 * DAY - 1);
        history.hold_unarchived(Span(2 * DAY), BTreeSet::new());
        assert_eq!(history.enforce_retention(now).unwrap().forgotten_days, 2, "the wait is over");
        let all = archived_files(folder.path()).unwrap();
        let all = all.into_iter().map(|file| (file.table, file.part)).collect();
        history.hold_unarchived(Span(2 * DAY), all);
        assert_eq!(history.enforce_retention(now).unwrap().forgotten_days, 2);
    }
}
