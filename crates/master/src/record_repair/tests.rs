//! Numbers for the records of peers, and how often peers are asked.

use super::*;
use crate::segments::RetentionLimits;
use crate::testing::TempFolder;
use cellwright_cell::time::Span;

fn hole(after: u64, until: u64, is_damage: bool) -> Hole {
    Hole { after, until, file: "audit/0".to_owned(), offset: 25, is_damage }
}

/// Checks the numbers, the times, and what a line at the end reports as lost.
fn check(hole: &Hole, record_count: u64, expected: (Vec<u64>, u64, Option<&str>)) {
    let sides = HoleNeighbours { after: 10, until: 90, at: Time(7) };
    let records = (0..record_count).map(|nth| (11 + nth, 1000 + nth, b"told".to_vec())).collect();
    let fill = assign_numbers(hole, &sides, PeerRecords { records, upto: 89 }).unwrap();
    let lost = fill.records.last().filter(|record| record.payload != b"told");
    let line = lost.map(|record| decode(record).unwrap().lines.remove(0));
    let summary = line.map(|line| format!("{} {}", line.command, line.object));
    let numbers = fill.records.iter().map(|record| record.number).collect();
    let newest = fill.records.last().map_or(0, |record| record.at.0);
    assert_eq!(
        (numbers, newest, summary.as_deref()),
        expected,
        "{record_count} told into {hole:?}"
    );
    assert_eq!(fill.last, hole.until - 1);
}

#[test]
fn what_has_no_number_is_said_to_be_lost() {
    let refused = |count: u64| format!("refused_requests {count} of this replica");
    check(&hole(4, 8, true), 3, (vec![5, 6, 7], 1002, None));
    check(&hole(4, 8, true), 1, (vec![5, 7], 1000, Some(&refused(2))));
    // The time is a neighbour's where no peer had a record.
    check(&hole(4, 8, true), 0, (vec![7], 7, Some(&refused(3))));
    check(&hole(4, 8, true), 5, (vec![5, 6, 7], 1004, Some("requests 3 for want of numbers")));
    check(&hole(4, 6, true), 2, (vec![5], 1001, Some("requests 2 for want of numbers")));
    // Numbers that a snapshot assigned to entries without requests belong to no record.
    check(&hole(4, 8, false), 1, (vec![5], 1000, None));
}

#[test]
fn a_piece_that_is_not_all_says_nothing_of_the_rest() {
    let sides = HoleNeighbours { after: 10, until: 90, at: Time(7) };
    let received = PeerRecords { records: vec![(11, 1000, Vec::new())], upto: 30 };
    let fill = assign_numbers(&hole(4, 8, true), &sides, received).unwrap();
    assert_eq!((fill.records.len(), fill.last), (1, 5));
}

#[test]
fn nobody_is_asked_again_and_again_for_what_nobody_has() {
    let (start, holes) = (Instant::now(), vec![hole(4, 8, true)]);
    let mut rest = RepairBackoff::default();
    assert!(!rest.is_over(&[], start) && rest.is_over(&holes, start));
    let (mut now, mut tries) = (start, 0);
    while now < start + Duration::from_secs(3600) {
        if rest.is_over(&holes, now) {
            rest.start(holes.clone(), now);
            tries += 1;
        }
        now += CHECK_INTERVAL;
    }
    assert!((25..40).contains(&tries), "{tries} in an hour");
    let changed = [holes[0].clone(), hole(20, 30, true)];
    assert!(rest.is_over(&changed, now - CHECK_INTERVAL), "a new one does not wait");
}

#[test]
fn nothing_is_told_of_what_lies_before_everything() {
    let folder = TempFolder::new();
    let keep =
        RetentionLimits { segment_bytes: 200, total_bytes: 1 << 20, age: Span::seconds(1000) };
    let range = AuditLog::open(folder.disk(), keep).unwrap().records_between(0, 0, 0).unwrap();
    assert_eq!((range.records.len(), range.upto), (0, Some(0)));
    let range =
        EventLog::open(folder.disk(), keep).unwrap().records_between(u64::MAX, 0, 0).unwrap();
    assert_eq!((range.records.len(), range.upto), (0, Some(0)));
}
