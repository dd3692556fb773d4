//! Flipped bits and cuts in the files of history: seen before an answer is given from them, and
//! mended from the feed.

use crate::pages::{self, NEXT_SUMS, SUMS};
use crate::query::{Bounds, QueryError, Reader};
use crate::store::{FILE, History, Place, Stretch};
use crate::testing::{BEGIN, DAY, Folder, feed, settings};
use crate::{HistoryError, set_aside_in};
use cellwright_cell::time::Time;
use std::fs;
use std::path::Path;

fn kept(folder: &Folder, count: u64) -> History {
    let mut history = History::open(folder.path(), settings()).unwrap();
    let facts = feed(count, 40);
    history.take(Stretch { facts: &facts, gap: false }, &|_| None).unwrap();
    history
}

fn taken_over(folder: &Folder, count: u64) -> History {
    let history = kept(folder, count);
    pages::checkpoint(&history.db, folder.path()).unwrap();
    assert_eq!(pages::waiting(folder.path()), 0, "nothing waits");
    history
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << (at % 8);
    fs::write(path, bytes).unwrap();
}

fn count(folder: &Folder) -> Result<i64, QueryError> {
    let sql = "select count(*), sum(task_index) from task_events";
    let answer = Reader::new(folder.path()).query(sql, &[], Bounds::default())?;
    match answer.rows[0][0] {
        crate::Value::Integer(count) => Ok(count),
        _ => Ok(-1),
    }
}

#[test]
fn a_flipped_bit_anywhere_in_the_database_is_seen_before_an_answer() {
    let folder = Folder::new();
    drop(taken_over(&folder, 300));
    let path = folder.path().join(FILE);
    let whole = fs::read(&path).unwrap();
    let good = count(&folder).unwrap();
    assert!(good > 100);
    for at in (0..whole.len()).step_by(509) {
        flip(&path, at);
        assert!(matches!(pages::verify(folder.path()), Err(HistoryError::Damaged { .. })), "{at}");
        let said = count(&folder);
        assert!(matches!(said, Err(QueryError::Broken(_))), "byte {at}: {said:?}");
        fs::write(&path, &whole).unwrap();
    }
    for left in [0, 100, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..left]).unwrap();
        let said = count(&folder);
        assert!(matches!(said, Err(QueryError::Broken(_))), "cut at {left}: {said:?}");
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(count(&folder).unwrap(), good);
}

#[test]
fn a_damaged_database_is_set_aside_and_made_again_from_the_feed() {
    let folder = Folder::new();
    drop(taken_over(&folder, 300));
    let good = count(&folder).unwrap();
    let path = folder.path().join(FILE);
    let len = fs::metadata(&path).unwrap().len() as usize;
    flip(&path, len / 2);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.repaired().is_some_and(|what| what.contains("page")));
    assert!(set_aside_in(folder.path()) > 0);
    assert_eq!(history.place(), Place::START, "the feed is read from its beginning");
    let facts = feed(300, 40);
    history.take(Stretch { facts: &facts, gap: false }, &|_| None).unwrap();
    assert_eq!(count(&folder).unwrap(), good);
}

#[test]
fn changes_that_wait_are_guarded_and_survive_a_crash_at_any_moment() {
    let folder = Folder::new();
    let mut history = kept(&folder, 100);
    pages::checkpoint(&history.db, folder.path()).unwrap();
    let facts = feed(200, 40);
    history.take(Stretch { facts: &facts, gap: false }, &|_| None).unwrap();
    let good = count(&folder).unwrap();
    // Killed before, and in the middle of taking over: the pages are in the file, the list of
    // them is the old one.
    let sums = fs::read(folder.path().join(SUMS)).unwrap();
    let copy = Folder::new();
    fs::create_dir_all(copy.path()).unwrap();
    for name in [FILE.to_owned(), format!("{FILE}-wal"), SUMS.to_owned()] {
        fs::copy(folder.path().join(&name), copy.path().join(&name)).unwrap();
    }
    pages::checkpoint(&history.db, folder.path()).unwrap();
    assert_ne!(fs::read(folder.path().join(SUMS)).unwrap(), sums);
    fs::copy(folder.path().join(FILE), copy.path().join(FILE)).unwrap();
    let mut again = History::open(copy.path(), settings()).unwrap();
    assert_eq!((again.repaired(), count(&copy).unwrap()), (None, good));
    drop(history);
}

#[test]
fn a_list_of_pages_that_cannot_be_written_makes_no_damage() {
    let folder = Folder::new();
    let mut history = taken_over(&folder, 100);
    let facts = feed(300, 40);
    history.take(Stretch { facts: &facts[..200], gap: false }, &|_| None).unwrap();
    // As a full disk would: nothing can be written there.
    fs::create_dir(folder.path().join(NEXT_SUMS)).unwrap();
    let taken = pages::checkpoint(&history.db, folder.path());
    assert!(matches!(taken, Err(HistoryError::File { .. })), "{taken:?}");
    fs::remove_dir(folder.path().join(NEXT_SUMS)).unwrap();
    // SQLite begins a log anew that is all in the database.
    history.take(Stretch { facts: &facts[200..], gap: false }, &|_| None).unwrap();
    pages::verify(folder.path()).unwrap();
    pages::checkpoint(&history.db, folder.path()).unwrap();
    pages::verify(folder.path()).unwrap();
}

#[test]
fn a_list_of_pages_that_was_not_put_in_force_is_put_in_force_later() {
    let folder = Folder::new();
    let mut history = taken_over(&folder, 100);
    let (list, next) = (folder.path().join(SUMS), folder.path().join(NEXT_SUMS));
    let facts = feed(300, 40);
    history.take(Stretch { facts: &facts[..200], gap: false }, &|_| None).unwrap();
    let old = fs::read(&list).unwrap();
    pages::checkpoint(&history.db, folder.path()).unwrap();
    let new = fs::read(&list).unwrap();
    assert_ne!(new, old);
    let refuse = || {
        fs::rename(&list, &next).unwrap();
        fs::write(&list, &old).unwrap();
    };
    refuse();
    pages::verify(folder.path()).unwrap();
    history.take(Stretch { facts: &facts[200..], gap: false }, &|_| None).unwrap();
    pages::verify(folder.path()).unwrap();
    pages::checkpoint(&history.db, folder.path()).unwrap();
    pages::verify(folder.path()).unwrap();
    assert!(!next.exists() && fs::read(&list).unwrap() != new);
    let good = count(&folder).unwrap();
    drop(history);
    let mut again = History::open(folder.path(), settings()).unwrap();
    assert_eq!((again.repaired(), count(&folder).unwrap()), (None, good));
}

#[test]
fn a_flipped_bit_in_changes_that_wait_is_seen_by_whoever_has_them_open() {
    let folder = Folder::new();
    let history = kept(&folder, 200);
    let wal = folder.path().join(format!("{FILE}-wal"));
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
    let taken = pages::checkpoint(&history.db, folder.path());
    assert!(matches!(taken, Err(HistoryError::Damaged { .. })), "{taken:?}");
}

#[test]
fn damage_under_a_change_is_not_taken_over_as_if_it_had_been_written() {
    let folder = Folder::new();
    let mut history = taken_over(&folder, 100);
    let path = folder.path().join(FILE);
    let mut page_one = fs::read(&path).unwrap();
    // A byte that no reader minds, on a page that every change touches.
    page_one[75] ^= 1;
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &page_one[..100], 0).unwrap();
    let facts = feed(200, 40);
    drop(history.take(Stretch { facts: &facts, gap: false }, &|_| None));
    let taken = pages::checkpoint(&history.db, folder.path());
    assert!(matches!(taken, Err(HistoryError::Damaged { .. })), "{taken:?}");
}

#[test]
fn a_list_of_pages_that_does_not_read_is_made_again() {
    let folder = Folder::new();
    drop(taken_over(&folder, 100));
    let good = count(&folder).unwrap();
    let sums = folder.path().join(SUMS);
    let whole = fs::read(&sums).unwrap();
    flip(&sums, whole.len() / 2);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert_eq!(history.repaired(), None);
    pages::checkpoint(&history.db, folder.path()).unwrap();
    assert_eq!(count(&folder).unwrap(), good);
    drop(history);
    let path = folder.path().join(FILE);
    flip(&path, 5000);
    assert!(pages::verify(folder.path()).is_err(), "it guards again");
}

#[test]
fn an_archive_that_the_disk_does_not_give_back_hides_no_other() {
    let folder = Folder::new();
    let mut history = kept(&folder, 400);
    history.tidy(Time(BEGIN + 10 * DAY)).unwrap();
    let days = folder.path().join("archive/task_events");
    let mut files: Vec<_> = fs::read_dir(&days).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    // Every read of it fails, for root too.
    fs::remove_file(&files[0]).unwrap();
    fs::create_dir(&files[0]).unwrap();
    flip(&files[2], 20);
    let said = history.scrub().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().any(|text| text.contains("cannot be read")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("is damaged")), "{said:?}");
    assert!(count(&folder).is_err());
}

#[test]
fn a_damaged_archive_answers_no_query_until_it_is_there_again() {
    let folder = Folder::new();
    let mut history = kept(&folder, 400);
    history.tidy(Time(BEGIN + 10 * DAY)).unwrap();
    assert_eq!(history.scrub().unwrap(), Vec::<String>::new());
    let good = count(&folder).unwrap();
    let days = folder.path().join("archive/task_events");
    let mut files: Vec<_> = fs::read_dir(&days).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let whole = fs::read(&files[2]).unwrap();
    for at in (0..whole.len()).step_by(211) {
        flip(&files[2], at);
        let said = history.scrub().unwrap();
        assert!(said.len() == 1 && said[0].contains("is damaged"), "{at}: {said:?}");
        assert_eq!(history.scrub().unwrap(), said, "{at}: it is said until it is mended");
        assert!(count(&folder).is_err(), "{at}: an answer without that day");
        history.forget_strays().unwrap();
        fs::write(&files[2], &whole).unwrap();
        assert_eq!(history.scrub().unwrap(), Vec::<String>::new(), "{at}");
        assert_eq!(count(&folder).unwrap(), good);
        let marked = files[2].with_extension("parquet.damaged");
        if marked.exists() {
            fs::remove_file(marked).unwrap();
        }
    }
    // The archives are carried over when the database is begun anew.
    pages::checkpoint(&history.db, folder.path()).unwrap();
    drop(history);
    flip(&folder.path().join(FILE), 20_000);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.repaired().is_some());
    assert_eq!(fs::read_dir(&days).unwrap().count(), files.len());
    assert_eq!(history.scrub().unwrap(), Vec::<String>::new());
}
