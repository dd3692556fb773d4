//! A folder that a past build wrote, days of it in Parquet files and the rest in SQLite, is read
//! and written on as if this build had written it.
//!
//! `UPDATE_PAST=1` records it, until the first release. Its content is a fold of a feed that is the
//! same for all, so this build makes what is expected.

use crate::archive::ARCHIVE_FOLDER;
use crate::store::History;
use crate::testing::{Folder, dump_all, feed, ingest, settings};
use cellwright_cell::time::{Span, Time};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ten days of events, and how many of them the recorded folder has.
const EVENTS: usize = 60;
const RECORDED: usize = 48;

fn archive() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("past/history-1.tar.gz")
}

fn tar(words: &[&str], folder: &Path) {
    let mut tar = Command::new("tar");
    tar.args(words).arg("-f").arg(archive()).arg("-C").arg(folder);
    if words.contains(&"-c") {
        tar.arg(".");
    }
    let done = tar.status().unwrap();
    assert!(done.success(), "{done}");
}

/// A folder with the first events, of which old days were archived.
fn written() -> Folder {
    let (folder, events) = (Folder::new(), feed(EVENTS as u64, 6));
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &events[..RECORDED]);
    let done = history.enforce_retention(events[RECORDED - 1].event.at).unwrap();
    assert!(done.archived_rows > 0, "{done:?}");
    folder
}

fn go_on(folder: &Folder) {
    let events = feed(EVENTS as u64, 6);
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &events[RECORDED..]);
    let end = Time(events[EVENTS - 1].event.at.0 + Span::seconds(86_400).0);
    history.enforce_retention(end).unwrap();
}

#[test]
fn archives_and_recent_rows_of_a_past_build_are_read_and_written_on() {
    if std::env::var_os("UPDATE_PAST").is_some() {
        let words = ["-c", "-z", "--sort=name", "--owner=0", "--group=0", "--exclude=*-shm"];
        tar(&words, written().path());
    }
    let (past, present) = (Folder::new(), written());
    std::fs::create_dir_all(past.path()).unwrap();
    tar(&["-x", "-z"], past.path());
    let archives = |folder: &Folder| {
        let all = std::fs::read_dir(folder.path().join(ARCHIVE_FOLDER)).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(archives(&past), archives(&present));
    assert_eq!(dump_all(&past), dump_all(&present), "as it was recorded");
    go_on(&past);
    go_on(&present);
    assert_eq!(dump_all(&past), dump_all(&present), "as it goes on");
}
