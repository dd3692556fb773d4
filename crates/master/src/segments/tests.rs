//! Torn tails, duplicates, bounds, gaps and damage, on real files.

use super::*;
use cellwright_store::RealDisk;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of its own that goes away with the test.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-records-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(&self.0).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

const KEEP: Keep = Keep { segment_bytes: 200, total_bytes: 1 << 20, age: Span::seconds(1_000_000) };

fn open(folder: &Folder, keep: Keep) -> (Segments, Option<Cut>) {
    Segments::open(folder.disk(), "r", keep).unwrap()
}

/// Records 1 to `count`, ten milliseconds apart.
fn filled(folder: &Folder, keep: Keep, count: u64) -> Segments {
    let (log, _) = open(folder, keep);
    for number in 1..=count {
        assert!(log.append(number, Time(number * 10), &payload(number)).unwrap());
    }
    log
}

fn payload(number: u64) -> Vec<u8> {
    format!("record {number}").into_bytes()
}

fn numbers(log: &Segments, from: u64) -> (Vec<u64>, bool) {
    let stretch = log.read_from(from, usize::MAX).unwrap();
    for record in &stretch.records {
        assert_eq!(record.payload, payload(record.number));
        assert_eq!(record.at, Time(record.number * 10));
    }
    (stretch.records.iter().map(|record| record.number).collect(), stretch.gap)
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.0.join("r")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn records_are_read_back_over_many_segments_and_a_restart() {
    let folder = Folder::new();
    let log = filled(&folder, KEEP, 50);
    assert!(files(&folder).len() > 5);
    let check = |log: &Segments| {
        for from in [0, 1, 2, 17, 49, 50, 51] {
            let expected: Vec<u64> = (from.max(1)..=50).collect();
            assert_eq!(numbers(log, from), (expected, false), "from {from}");
        }
    };
    check(&log);
    drop(log);
    let (log, cut) = open(&folder, KEEP);
    assert_eq!((cut, log.last(), log.reaches_back_to()), (None, 50, Some(0)));
    check(&log);
}

#[test]
fn a_reader_gets_at_least_one_record_and_stops_at_its_room() {
    let folder = Folder::new();
    let log = filled(&folder, KEEP, 9);
    let read = |room| log.read_from(3, room).unwrap().records.len();
    assert_eq!((read(0), read(8), read(16), read(17)), (1, 1, 2, 2));
}

#[test]
fn what_is_here_already_is_not_written_again() {
    let folder = Folder::new();
    let log = filled(&folder, KEEP, 5);
    assert!(!log.append(5, Time(1), b"again").unwrap());
    drop(log);
    let (log, _) = open(&folder, KEEP);
    assert!(!log.append(3, Time(1), b"again").unwrap());
    assert!(log.append(9, Time(90), &payload(9)).unwrap());
    assert_eq!(numbers(&log, 4), (vec![4, 5, 9], false));
}

#[test]
fn a_torn_tail_is_cut_at_every_length() {
    let folder = Folder::new();
    let keep = Keep { segment_bytes: 1 << 20, ..KEEP };
    let log = filled(&folder, keep, 3);
    drop(log);
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let record = HEAD + payload(3).len();
    for left in whole.len() - record..whole.len() {
        std::fs::write(&file, &whole[..left]).unwrap();
        let (log, cut) = open(&folder, keep);
        let rest = (left - (whole.len() - record)) as u64;
        assert_eq!(cut.map_or(0, |cut| cut.bytes), rest);
        assert_eq!(numbers(&log, 1), (vec![1, 2], false));
        assert!(log.append(3, Time(30), &payload(3)).unwrap(), "the same number is free again");
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
}

#[test]
fn a_flipped_byte_is_never_read_as_a_record() {
    let folder = Folder::new();
    let keep = Keep { segment_bytes: 1 << 20, ..KEEP };
    drop(filled(&folder, keep, 3));
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    for at in HEADER..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&file, &damaged).unwrap();
        let (log, cut) = open(&folder, keep);
        let record = (at - HEADER) / (HEAD + payload(1).len());
        assert_eq!(numbers(&log, 1).0, (1..=record as u64).collect::<Vec<_>>(), "byte {at}");
        assert!(cut.is_some());
    }
}

#[test]
fn damage_in_an_older_segment_is_reported_not_skipped() {
    let folder = Folder::new();
    drop(filled(&folder, KEEP, 30));
    let file = files(&folder).remove(1);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[HEADER + HEAD] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (log, _) = open(&folder, KEEP);
    let error = log.read_from(1, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("r/0000"), "{error}");
    assert_eq!(numbers(&log, 30), (vec![30], false));
}

#[test]
fn the_oldest_go_by_size_and_by_age() {
    let folder = Folder::new();
    let small = Keep { total_bytes: 500, ..KEEP };
    let log = filled(&folder, small, 50);
    log.trim(Time(500)).unwrap();
    let back = log.reaches_back_to().unwrap();
    assert!(back > 30 && back < 50, "{back}");
    let kept: Vec<u64> = (back + 1..=50).collect();
    assert_eq!(numbers(&log, back + 1), (kept.clone(), false), "nothing asked for is gone");
    assert_eq!(numbers(&log, back), (kept.clone(), true));
    assert_eq!(numbers(&log, 1), (kept, true));
    drop(log);
    let young = Keep { age: Span(100), ..KEEP };
    let (log, _) = open(&folder, young);
    log.trim(Time(100_000)).unwrap();
    assert_eq!(files(&folder).len(), 1, "the newest segment stays");
    assert!(log.append(51, Time(510), &payload(51)).unwrap());
}

#[test]
fn what_was_skipped_is_a_gap_for_readers_across_it() {
    let folder = Folder::new();
    let log = filled(&folder, KEEP, 5);
    log.skip_to(3).unwrap();
    log.skip_to(20).unwrap();
    log.append(21, Time(210), &payload(21)).unwrap();
    let check = |log: &Segments| {
        assert_eq!(log.last(), 21);
        assert_eq!(numbers(log, 4), (vec![4, 5], false), "stops before the gap");
        assert_eq!(numbers(log, 6), (vec![21], true));
        assert_eq!(numbers(log, 20), (vec![21], true));
        assert_eq!(numbers(log, 21), (vec![21], false));
    };
    check(&log);
    assert!(!log.append(15, Time(150), b"late").unwrap());
    drop(log);
    check(&open(&folder, KEEP).0);
}
