//! Flipped bits and truncations in the files of history: detected before a query is answered from
//! them, and repaired from the feed.

use crate::page_checksums::{self, CHECKSUM_FILE, NEXT_CHECKSUM_FILE};
use crate::query::{HistoryReader, QueryError, QueryLimits};
use crate::store::{DATABASE_FILE, FeedPosition, FeedSlice, History};
use crate::testing::{BEGIN, DAY, Folder, feed, settings};
use crate::{HistoryError, damaged_file_count};
use cellwright_cell::time::Time;
use std::fs;
use std::path::Path;

fn filled_history(folder: &Folder, count: u64) -> History {
    let mut history = History::open(folder.path(), settings()).unwrap();
    let events = feed(count, 40);
    history.ingest(FeedSlice { events: &events, gap: false }, &|_| None).unwrap();
    history
}

fn checkpointed_history(folder: &Folder, count: u64) -> History {
    let history = filled_history(folder, count);
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    assert_eq!(page_checksums::wal_size(folder.path()), 0, "nothing waits");
    history
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << (at % 8);
    fs::write(path, bytes).unwrap();
}

fn count(folder: &Folder) -> Result<i64, QueryError> {
    let sql = "select count(*), sum(task_index) from task_events";
    let answer = HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default())?;
    match answer.rows[0][0] {
        crate::Value::Integer(count) => Ok(count),
        _ => Ok(-1),
    }
}

#[test]
fn a_flipped_bit_anywhere_in_the_database_is_seen_before_an_answer() {
    let folder = Folder::new();
    drop(checkpointed_history(&folder, 300));
    let path = folder.path().join(DATABASE_FILE);
    let whole = fs::read(&path).unwrap();
    let good = count(&folder).unwrap();
    assert!(good > 100);
    for at in (0..whole.len()).step_by(509) {
        flip(&path, at);
        assert!(
            matches!(page_checksums::verify(folder.path()), Err(HistoryError::Damaged { .. })),
            "{at}"
        );
        let result = count(&folder);
        assert!(matches!(result, Err(QueryError::Broken(_))), "byte {at}: {result:?}");
        fs::write(&path, &whole).unwrap();
    }
    for left in [0, 100, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..left]).unwrap();
        let result = count(&folder);
        assert!(matches!(result, Err(QueryError::Broken(_))), "cut at {left}: {result:?}");
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(count(&folder).unwrap(), good);
}

#[test]
fn a_damaged_database_is_set_aside_and_made_again_from_the_feed() {
    let folder = Folder::new();
    drop(checkpointed_history(&folder, 300));
    let good = count(&folder).unwrap();
    let path = folder.path().join(DATABASE_FILE);
    let len = fs::metadata(&path).unwrap().len() as usize;
    flip(&path, len / 2);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.take_repair_note().is_some_and(|what| what.contains("page")));
    assert!(damaged_file_count(folder.path()) > 0);
    assert_eq!(history.position(), FeedPosition::START, "the feed is read from its beginning");
    let events = feed(300, 40);
    history.ingest(FeedSlice { events: &events, gap: false }, &|_| None).unwrap();
    assert_eq!(count(&folder).unwrap(), good);
}

#[test]
fn changes_that_wait_are_guarded_and_survive_a_crash_at_any_moment() {
    let folder = Folder::new();
    let mut history = filled_history(&folder, 100);
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    let events = feed(200, 40);
    history.ingest(FeedSlice { events: &events, gap: false }, &|_| None).unwrap();
    let good = count(&folder).unwrap();
    // Killed before a checkpoint, and in the middle of one: the pages are in the file, their list
    // is the old one.
    let sums = fs::read(folder.path().join(CHECKSUM_FILE)).unwrap();
    let copy = Folder::new();
    fs::create_dir_all(copy.path()).unwrap();
    for name in [DATABASE_FILE.to_owned(), format!("{DATABASE_FILE}-wal"), CHECKSUM_FILE.to_owned()]
    {
        fs::copy(folder.path().join(&name), copy.path().join(&name)).unwrap();
    }
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    assert_ne!(fs::read(folder.path().join(CHECKSUM_FILE)).unwrap(), sums);
    fs::copy(folder.path().join(DATABASE_FILE), copy.path().join(DATABASE_FILE)).unwrap();
    let mut reopened = History::open(copy.path(), settings()).unwrap();
    assert_eq!((reopened.take_repair_note(), count(&copy).unwrap()), (None, good));
    drop(history);
}

#[test]
fn a_list_of_pages_that_cannot_be_written_makes_no_damage() {
    let folder = Folder::new();
    let mut history = checkpointed_history(&folder, 100);
    let events = feed(300, 40);
    history.ingest(FeedSlice { events: &events[..200], gap: false }, &|_| None).unwrap();
    // As a full disk would: nothing can be written there.
    fs::create_dir(folder.path().join(NEXT_CHECKSUM_FILE)).unwrap();
    let checkpoint_result = page_checksums::checkpoint(&history.db, folder.path());
    assert!(matches!(checkpoint_result, Err(HistoryError::File { .. })), "{checkpoint_result:?}");
    fs::remove_dir(folder.path().join(NEXT_CHECKSUM_FILE)).unwrap();
    // SQLite restarts a WAL that is all in the database.
    history.ingest(FeedSlice { events: &events[200..], gap: false }, &|_| None).unwrap();
    page_checksums::verify(folder.path()).unwrap();
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    page_checksums::verify(folder.path()).unwrap();
}

#[test]
fn a_list_of_pages_that_was_not_put_in_force_is_put_in_force_later() {
    let folder = Folder::new();
    let mut history = checkpointed_history(&folder, 100);
    let (list, next) = (folder.path().join(CHECKSUM_FILE), folder.path().join(NEXT_CHECKSUM_FILE));
    let events = feed(300, 40);
    history.ingest(FeedSlice { events: &events[..200], gap: false }, &|_| None).unwrap();
    let old = fs::read(&list).unwrap();
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    let new = fs::read(&list).unwrap();
    assert_ne!(new, old);
    let fail_rename = || {
        fs::rename(&list, &next).unwrap();
        fs::write(&list, &old).unwrap();
    };
    fail_rename();
    page_checksums::verify(folder.path()).unwrap();
    history.ingest(FeedSlice { events: &events[200..], gap: false }, &|_| None).unwrap();
    page_checksums::verify(folder.path()).unwrap();
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    page_checksums::verify(folder.path()).unwrap();
    assert!(!next.exists() && fs::read(&list).unwrap() != new);
    let good = count(&folder).unwrap();
    drop(history);
    let mut reopened = History::open(folder.path(), settings()).unwrap();
    assert_eq!((reopened.take_repair_note(), count(&folder).unwrap()), (None, good));
}

#[test]
fn a_flipped_bit_in_changes_that_wait_is_seen_by_whoever_has_them_open() {
    let folder = Folder::new();
    let history = filled_history(&folder, 200);
    let wal = folder.path().join(format!("{DATABASE_FILE}-wal"));
    let len = fs::metadata(&wal).unwrap().len() as usize;
    let mut bytes = fs::read(&wal).unwrap();
    bytes[len / 2] ^= 4;
    // In place: SQLite holds the file open.
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(&wal).unwrap(),
        &bytes,
        0,
    )
    .unwrap();
    assert!(matches!(count(&folder), Err(QueryError::Broken(_))));
    let checkpoint_result = page_checksums::checkpoint(&history.db, folder.path());
    assert!(
        matches!(checkpoint_result, Err(HistoryError::Damaged { .. })),
        "{checkpoint_result:?}"
    );
}

#[test]
fn damage_under_a_change_is_not_taken_over_as_if_it_had_been_written() {
    let folder = Folder::new();
    let mut history = checkpointed_history(&folder, 100);
    let path = folder.path().join(DATABASE_FILE);
    let mut page_one = fs::read(&path).unwrap();
    // A byte that no reader depends on, on a page that every change touches.
    page_one[75] ^= 1;
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &page_one[..100], 0).unwrap();
    let events = feed(200, 40);
    drop(history.ingest(FeedSlice { events: &events, gap: false }, &|_| None));
    let checkpoint_result = page_checksums::checkpoint(&history.db, folder.path());
    assert!(
        matches!(checkpoint_result, Err(HistoryError::Damaged { .. })),
        "{checkpoint_result:?}"
    );
}

#[test]
fn a_list_of_pages_that_does_not_read_is_made_again() {
    let folder = Folder::new();
    drop(checkpointed_history(&folder, 100));
    let good = count(&folder).unwrap();
    let sums = folder.path().join(CHECKSUM_FILE);
    let whole = fs::read(&sums).unwrap();
    flip(&sums, whole.len() / 2);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert_eq!(history.take_repair_note(), None);
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    assert_eq!(count(&folder).unwrap(), good);
    drop(history);
    let path = folder.path().join(DATABASE_FILE);
    flip(&path, 5000);
    assert!(page_checksums::verify(folder.path()).is_err(), "it guards again");
}

#[test]
fn an_archive_that_the_disk_does_not_give_back_hides_no_other() {
    let folder = Folder::new();
    let mut history = filled_history(&folder, 400);
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    let days = folder.path().join("archive/task_events");
    let mut files: Vec<_> = fs::read_dir(&days).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    // Every read of it fails, for root too.
    fs::remove_file(&files[0]).unwrap();
    fs::create_dir(&files[0]).unwrap();
    flip(&files[2], 20);
    let result = history.scrub().unwrap();
    assert_eq!(result.len(), 2, "{result:?}");
    assert!(result.iter().any(|text| text.contains("cannot be read")), "{result:?}");
    assert!(result.iter().any(|text| text.contains("is damaged")), "{result:?}");
    assert!(count(&folder).is_err());
}

#[test]
fn a_damaged_archive_answers_no_query_until_it_is_there_again() {
    let folder = Folder::new();
    let mut history = filled_history(&folder, 400);
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    assert_eq!(history.scrub().unwrap(), Vec::<String>::new());
    let good = count(&folder).unwrap();
    let days = folder.path().join("archive/task_events");
    let mut files: Vec<_> = fs::read_dir(&days).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let whole = fs::read(&files[2]).unwrap();
    for at in (0..whole.len()).step_by(211) {
        flip(&files[2], at);
        let result = history.scrub().unwrap();
        assert!(result.len() == 1 && result[0].contains("is damaged"), "{at}: {result:?}");
        assert_eq!(history.scrub().unwrap(), result, "{at}: it is said until it is mended");
        assert!(count(&folder).is_err(), "{at}: an answer without that day");
        history.delete_strays().unwrap();
        fs::write(&files[2], &whole).unwrap();
        assert_eq!(history.scrub().unwrap(), Vec::<String>::new(), "{at}");
        assert_eq!(count(&folder).unwrap(), good);
        let damaged = files[2].with_extension("parquet.damaged");
        if damaged.exists() {
            fs::remove_file(damaged).unwrap();
        }
    }
    // The archives are kept when the database is created anew.
    page_checksums::checkpoint(&history.db, folder.path()).unwrap();
    drop(history);
    flip(&folder.path().join(DATABASE_FILE), 20_000);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.take_repair_note().is_some());
    assert_eq!(fs::read_dir(&days).unwrap().count(), files.len());
    assert_eq!(history.scrub().unwrap(), Vec::<String>::new());
}

/// Two writers, as when a master is started while the one before still ends: each would checkpoint
/// pages of the other that its own checksums do not know.
#[test]
fn a_second_writer_is_refused_until_the_first_has_ended() {
    let folder = Folder::new();
    let first = filled_history(&folder, 50);
    for _ in 0..2 {
        let second = History::open(folder.path(), settings());
        assert!(matches!(second, Err(HistoryError::InUse { .. })), "{:?}", second.err());
    }
    assert!(count(&folder).unwrap() > 10, "readers are not kept out");
    drop(first);
    let second = History::open(folder.path(), settings()).unwrap();
    page_checksums::checkpoint(&second.db, folder.path()).unwrap();
    page_checksums::verify(folder.path()).unwrap();
}
