//! Torn tails, duplicates, retention limits, gaps, damage and its repair, on real files.

use super::*;
use crate::testing::TempFolder;
use cellwright_store::frame::{HEADER_LEN, TRAILER_LEN};
use std::path::PathBuf;

const KEEP: RetentionLimits =
    RetentionLimits { segment_bytes: 200, total_bytes: 1 << 20, age: Span::seconds(1_000_000) };
/// Keeps everything in one segment.
const KEEP_ONE_SEGMENT: RetentionLimits = RetentionLimits { segment_bytes: 1 << 20, ..KEEP };
/// The size of every record here except those with two digits, which have one more byte.
const RECORD_SIZE: usize = HEADER_LEN + TRAILER_LEN + b"record 1".len();

fn open(folder: &TempFolder, keep: RetentionLimits) -> (Segments, OpenReport) {
    Segments::open(folder.disk(), "r", keep).unwrap()
}

/// Records 1 to `count`, ten milliseconds apart.
fn log_with_records(folder: &TempFolder, keep: RetentionLimits, count: u64) -> Segments {
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
    let batch = log.read_from(from, usize::MAX).unwrap();
    for record in &batch.records {
        assert_eq!(record.payload, payload(record.number));
        assert_eq!(record.at, Time(record.number * 10));
    }
    (batch.records.iter().map(|record| record.number).collect(), batch.has_gap)
}

fn files(folder: &TempFolder) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.0.join("r")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| !file.ends_with(SYNC_MARK_FILE));
    files.sort();
    files
}

/// Everything a reader gets, from the first number to the last, and how many gaps it met.
fn read_all(log: &Segments) -> (Vec<u64>, usize) {
    let (mut found, mut gaps, mut from) = (Vec::new(), 0, 1);
    loop {
        let (some, gap) = numbers(log, from);
        gaps += usize::from(gap);
        let Some(last) = some.last().copied() else { return (found, gaps) };
        found.extend(some);
        from = last + 1;
    }
}

fn records(numbers: impl IntoIterator<Item = u64>) -> Vec<Record> {
    let record = |number| Record { number, at: Time(number * 10), payload: payload(number) };
    numbers.into_iter().map(record).collect()
}

/// Fills every hole as a replica that has everything up to `count` would.
fn fill_holes(log: &Segments, count: u64) {
    while let Some(first) = log.holes().first().cloned() {
        if log.is_between(&first) {
            // In steps of three numbers.
            let last = (first.after + 3).min(first.until - 1);
            let some = records(first.after + 1..=last.min(count));
            assert_eq!(log.fill_between(&first, &some, last).unwrap(), FillResult::Done);
            continue;
        }
        let group: Vec<Hole> =
            log.holes().into_iter().filter(|hole| log.is_same_segment(&first, hole)).collect();
        let wanted = group.iter().flat_map(|hole| hole.after + 1..hole.until.min(count + 1));
        assert_eq!(log.fill_inside(&group, &records(wanted)).unwrap(), FillResult::Done);
    }
}

#[test]
fn records_are_read_back_over_many_segments_and_a_restart() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 50);
    assert!(files(&folder).len() > 5);
    let check = |log: &Segments| {
        for from in [0, 1, 2, 17, 49, 50, 51] {
            let expected: Vec<u64> = (from.max(1)..=50).collect();
            assert_eq!(numbers(log, from), (expected, false), "from {from}");
        }
    };
    check(&log);
    drop(log);
    let (log, found) = open(&folder, KEEP);
    assert_eq!((found, log.last(), log.reaches_back_to()), (OpenReport::default(), 50, Some(0)));
    assert_eq!(log.holes(), []);
    check(&log);
}

#[test]
fn a_reader_gets_at_least_one_record_and_stops_at_its_room() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 9);
    let read = |max_bytes| log.read_from(3, max_bytes).unwrap().records.len();
    assert_eq!((read(0), read(8), read(16), read(17)), (1, 1, 2, 2));
}

#[test]
fn what_is_here_already_is_not_written_again() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 5);
    assert!(!log.append(5, Time(1), b"again").unwrap());
    drop(log);
    let (log, _) = open(&folder, KEEP);
    assert!(!log.append(3, Time(1), b"again").unwrap());
    assert!(log.append(9, Time(90), &payload(9)).unwrap());
    assert_eq!(numbers(&log, 4), (vec![4, 5, 9], false));
}

#[test]
fn a_torn_tail_is_cut_at_every_length() {
    let folder = TempFolder::new();
    drop(log_with_records(&folder, KEEP_ONE_SEGMENT, 3));
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    for left in whole.len() - RECORD_SIZE..whole.len() {
        std::fs::write(&file, &whole[..left]).unwrap();
        let (log, found) = open(&folder, KEEP_ONE_SEGMENT);
        let rest = (left - (whole.len() - RECORD_SIZE)) as u64;
        assert_eq!(found, OpenReport { torn: rest, ..OpenReport::default() });
        assert_eq!(numbers(&log, 1), (vec![1, 2], false));
        assert_eq!(log.holes(), []);
        assert!(log.append(3, Time(30), &payload(3)).unwrap(), "the same number is free again");
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
}

#[test]
fn a_flipped_bit_costs_one_record_and_is_a_gap_wherever_it_is() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP_ONE_SEGMENT, 5);
    log.sync(5).unwrap();
    drop(log);
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    // One bit of every byte, each of the eight bits in turn.
    for bit in (0..whole.len()).map(|at| at * 8 + at % 8) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&file, &damaged).unwrap();
        let (log, found) = open(&folder, KEEP_ONE_SEGMENT);
        let hit = (bit / 8).checked_sub(SEGMENT_HEADER_LEN).map(|at| (at / RECORD_SIZE) as u64 + 1);
        let left: Vec<u64> = (1..=5).filter(|number| Some(*number) != hit).collect();
        match hit {
            // Nothing sound follows, and still it is no torn write, because it had been synced.
            Some(5) => {
                assert_eq!((found.lost, read_all(&log)), (Some(5), (left, 0)), "bit {bit}");
                log.skip_to(5).unwrap();
                assert_eq!(read_all(&log), (vec![1, 2, 3, 4], 1), "bit {bit}");
                log.append(6, Time(60), &payload(6)).unwrap();
                assert_eq!(read_all(&log), (vec![1, 2, 3, 4, 6], 1), "bit {bit}");
                fill_holes(&log, 6);
                assert_eq!(read_all(&log), ((1..=6).collect(), 0), "bit {bit}");
            }
            Some(number) => {
                assert_eq!(read_all(&log), (left, 1), "bit {bit}");
                let offset = SEGMENT_HEADER_LEN + (number as usize - 1) * RECORD_SIZE;
                let hole = log.holes().remove(0);
                assert_eq!((hole.after, hole.until), (number - 1, number + 1), "bit {bit}");
                assert_eq!((hole.offset, hole.is_damage), (offset as u64, true));
                drop(log);
                // The next start neither drops nor extends it.
                let (log, _) = open(&folder, KEEP_ONE_SEGMENT);
                assert_eq!(log.holes(), [hole]);
                fill_holes(&log, 5);
                assert_eq!((read_all(&log), log.holes()), (((1..=5).collect(), 0), vec![]));
                assert_eq!(std::fs::read(&file).unwrap(), whole, "bit {bit}");
            }
            None => {
                assert_eq!(read_all(&log), (left, 0), "bit {bit}");
                assert_eq!(log.holes().len(), 1, "bit {bit} of the header");
                fill_holes(&log, 5);
                assert_eq!(std::fs::read(&file).unwrap(), whole, "bit {bit}");
            }
        }
        for file in files(&folder) {
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn what_had_been_synced_is_missed_wherever_the_file_is_cut() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP_ONE_SEGMENT, 4);
    log.sync(4).unwrap();
    for number in 5..=6 {
        log.append(number, Time(number * 10), &payload(number)).unwrap();
    }
    drop(log);
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    for left in 0..whole.len() {
        std::fs::write(&file, &whole[..left]).unwrap();
        let (log, found) = open(&folder, KEEP_ONE_SEGMENT);
        let kept = (left.saturating_sub(SEGMENT_HEADER_LEN) / RECORD_SIZE) as u64;
        assert_eq!(read_all(&log).0, (1..=kept).collect::<Vec<_>>(), "cut at {left}");
        assert_eq!(found.lost, (kept < 4).then_some(4), "cut at {left}");
        assert_eq!(found.covered, if kept < 4 { 0 } else { 4 }, "cut at {left}");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(open(&folder, KEEP_ONE_SEGMENT).1.lost, Some(4), "the whole file is gone");
}

#[test]
fn older_segments_are_never_silently_shorter() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 30);
    log.sync(30).unwrap();
    drop(log);
    let names = files(&folder);
    let good: Vec<Vec<u8>> = names.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let restore = || {
        for (file, bytes) in names.iter().zip(&good) {
            std::fs::write(file, bytes).unwrap();
        }
    };
    let check = |step: &str| {
        let (log, _) = open(&folder, KEEP);
        let mut from = Some(0);
        while let Some(at) = from {
            from = log.scrub(at);
        }
        let (found, gaps) = read_all(&log);
        let missing = (1..=30).any(|number| !found.contains(&number));
        assert!(!missing || gaps > 0, "{step}: {found:?} without a gap");
        assert!(!log.holes().is_empty(), "{step}: no hole");
        fill_holes(&log, 30);
        assert_eq!(read_all(&log), ((1..=30).collect(), 0), "{step}");
        drop(log);
        let (log, _) = open(&folder, KEEP);
        assert_eq!((read_all(&log), log.holes()), (((1..=30).collect(), 0), vec![]), "{step}");
    };
    for bit in (0..good[1].len()).map(|at| at * 8 + at % 8) {
        let mut damaged = good[1].clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&names[1], &damaged).unwrap();
        check(&format!("bit {bit}"));
        restore();
    }
    for left in 0..good[1].len() {
        std::fs::write(&names[1], &good[1][..left]).unwrap();
        check(&format!("cut at {left}"));
        restore();
    }
    std::fs::remove_file(&names[1]).unwrap();
    check("a segment is gone");
}

#[test]
fn a_segment_that_the_disk_does_not_give_back_hides_no_other_damage() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 30);
    log.sync(30).unwrap();
    let names = files(&folder);
    // Every read of it fails, even for root.
    std::fs::remove_file(&names[1]).unwrap();
    std::fs::create_dir(&names[1]).unwrap();
    let mut bytes = std::fs::read(&names[3]).unwrap();
    bytes[SEGMENT_HEADER_LEN + HEADER_LEN] ^= 1;
    std::fs::write(&names[3], bytes).unwrap();
    let (mut from, mut segments_read) = (Some(0), 0);
    while let Some(at) = from {
        from = log.scrub(at);
        segments_read += 1;
    }
    assert_eq!(segments_read, names.len() + 1, "one look at each, and one at the end");
    let holes = log.holes();
    assert_eq!(holes.len(), 2, "{holes:?}");
    let after = |at: usize| names[at].file_name().unwrap().to_str().unwrap().parse::<u64>();
    assert_eq!((holes[0].after, holes[0].until), (after(1).unwrap(), after(2).unwrap() + 1));
    std::fs::remove_dir(&names[1]).unwrap();
    fill_holes(&log, 30);
    assert_eq!((read_all(&log), log.holes()), (((1..=30).collect(), 0), vec![]));
}

#[test]
fn a_damaged_header_of_the_oldest_segment_is_mended() {
    let folder = TempFolder::new();
    let small = RetentionLimits { total_bytes: 500, ..KEEP };
    let log = log_with_records(&folder, small, 50);
    log.trim(Time(500)).unwrap();
    let back = log.reaches_back_to().unwrap();
    assert!(back > 0);
    drop(log);
    let oldest = files(&folder).remove(0);
    let whole = std::fs::read(&oldest).unwrap();
    let mut bytes = whole.clone();
    bytes[9] ^= 1;
    std::fs::write(&oldest, bytes).unwrap();
    let (log, _) = open(&folder, small);
    let hole = log.holes().remove(0);
    assert_eq!((hole.after, hole.until), (back, back + 1), "no record is missing");
    fill_holes(&log, 50);
    assert_eq!((log.holes(), std::fs::read(&oldest).unwrap()), (vec![], whole));
}

#[test]
fn a_large_hole_is_filled_by_segments_of_its_own() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 5);
    log.skip_to(40).unwrap();
    log.append(41, Time(410), &payload(41)).unwrap();
    let before = files(&folder);
    let old: Vec<Vec<u8>> = before.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let hole = log.holes().remove(0);
    assert_eq!((hole.after, hole.until), (5, 41));
    let fill = |log: &Segments, from: u64, last: u64| {
        let hole = log.holes().remove(0);
        log.fill_between(&hole, &records(from..=last), last).unwrap()
    };
    assert_eq!(fill(&log, 6, 20), FillResult::Done);
    assert_eq!(log.fill_between(&hole, &records(6..=9), 9).unwrap(), FillResult::Retry);
    assert_eq!(read_all(&log), ((1..=20).chain([41]).collect(), 1));
    drop(log);
    // The next start finds it where a crash left it.
    let (log, _) = open(&folder, KEEP);
    assert_eq!(read_all(&log), ((1..=20).chain([41]).collect(), 1));
    assert_eq!(fill(&log, 21, 40), FillResult::Done);
    assert_eq!((read_all(&log), log.holes()), (((1..=41).collect(), 0), vec![]));
    assert!(log.append(42, Time(420), &payload(42)).unwrap());
    drop(log);
    let (log, _) = open(&folder, KEEP);
    assert_eq!((read_all(&log), log.holes()), (((1..=42).collect(), 0), vec![]));
    for (file, old) in before.iter().zip(old) {
        assert!(std::fs::read(file).unwrap().starts_with(&old), "{file:?} was written anew");
    }
}

#[test]
fn the_records_around_a_hole_are_found_from_it() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 20);
    log.skip_to(30).unwrap();
    log.append(31, Time(310), &payload(31)).unwrap();
    // Records far before it are not read.
    let oldest = files(&folder).remove(0);
    std::fs::remove_file(&oldest).unwrap();
    std::fs::create_dir(&oldest).unwrap();
    let (before, next) = log.neighbours(&log.holes()[0]).unwrap();
    assert_eq!((before.unwrap().number, next.unwrap().number), (20, 31));
}

#[test]
fn two_holes_of_a_segment_are_filled_together_or_not_at_all() {
    let folder = TempFolder::new();
    drop(log_with_records(&folder, KEEP_ONE_SEGMENT, 7));
    let file = files(&folder).pop().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[SEGMENT_HEADER_LEN + RECORD_SIZE + HEADER_LEN] ^= 1;
    bytes[SEGMENT_HEADER_LEN + 4 * RECORD_SIZE + HEADER_LEN] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (log, _) = open(&folder, KEEP_ONE_SEGMENT);
    assert_eq!(read_all(&log), (vec![1, 3, 4, 6, 7], 2));
    let holes = log.holes();
    assert_eq!(log.fill_inside(&holes[..1], &records([2])).unwrap(), FillResult::Retry);
    assert_eq!(read_all(&log), (vec![1, 3, 4, 6, 7], 2));
    assert_eq!(log.fill_inside(&holes, &records([2, 5])).unwrap(), FillResult::Done);
    assert!(log.append(8, Time(80), &payload(8)).unwrap());
    drop(log);
    let (log, _) = open(&folder, KEEP_ONE_SEGMENT);
    assert_eq!((read_all(&log), log.holes()), (((1..=8).collect(), 0), vec![]));
}

#[test]
fn what_the_log_tells_again_is_written_again_from_the_damage_on() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 30);
    log.sync(30).unwrap();
    drop(log);
    let file = files(&folder).remove(2);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[SEGMENT_HEADER_LEN + RECORD_SIZE] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (log, _) = open(&folder, KEEP);
    let mut from = Some(0);
    while let Some(at) = from {
        from = log.scrub(at);
    }
    let hole = log.holes().remove(0);
    log.rewind(hole.after + 1).unwrap();
    assert_eq!((log.holes().len(), log.last()), (1, 30), "not told again from there");
    log.rewind(hole.after).unwrap();
    assert_eq!((log.holes(), log.last()), (vec![], hole.after));
    for number in 1..=30 {
        log.append(number, Time(number * 10), &payload(number)).unwrap();
    }
    drop(log);
    let (log, found) = open(&folder, KEEP);
    assert_eq!((read_all(&log), found.lost), (((1..=30).collect(), 0), None));
}

#[test]
fn a_note_of_what_was_synced_that_does_not_read_vouches_for_nothing() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP_ONE_SEGMENT, 3);
    log.sync(3).unwrap();
    drop(log);
    let path = folder.0.join("r").join(SYNC_MARK_FILE);
    let good = std::fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bad).unwrap();
        let (log, found) = open(&folder, KEEP_ONE_SEGMENT);
        assert_eq!(
            (read_all(&log), found),
            ((vec![1, 2, 3], 0), OpenReport::default()),
            "bit {bit}"
        );
    }
}

#[test]
fn the_oldest_go_by_size_and_by_age() {
    let folder = TempFolder::new();
    let small = RetentionLimits { total_bytes: 500, ..KEEP };
    let log = log_with_records(&folder, small, 50);
    log.trim(Time(500)).unwrap();
    let back = log.reaches_back_to().unwrap();
    assert!(back > 30 && back < 50, "{back}");
    let kept: Vec<u64> = (back + 1..=50).collect();
    assert_eq!(numbers(&log, back + 1), (kept.clone(), false), "nothing asked for is gone");
    assert_eq!(numbers(&log, back), (kept.clone(), true));
    assert_eq!(numbers(&log, 1), (kept, true));
    drop(log);
    let young = RetentionLimits { age: Span(100), ..KEEP };
    let (log, _) = open(&folder, young);
    log.trim(Time(100_000)).unwrap();
    assert_eq!(files(&folder).len(), 1, "the newest segment stays");
    assert!(log.append(51, Time(510), &payload(51)).unwrap());
}

#[test]
fn what_was_skipped_is_a_gap_for_readers_across_it() {
    let folder = TempFolder::new();
    let log = log_with_records(&folder, KEEP, 5);
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
