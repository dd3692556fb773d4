//! Torn writes are cut, damage is refused, and the two are told apart.

use std::sync::Arc;

use cellwright_store::testing::open_storage;
use cellwright_store::{Machine, OpenError, Recovery, Settings, wipe};
use openraft::storage::RaftLogStorage;

use crate::support::{Adder, Cell, MemoryDisk};

const SEGMENT: &str = "log/0000000000000001";

/// What became of opening a disk: the index after the last entry and the report, or the refusal.
async fn opened(disk: &MemoryDisk, id: u64) -> Result<(u64, Recovery), OpenError> {
    let (disk, machine) = (Arc::new(disk.clone()), Box::new(Adder::default()));
    let mut storage = open_storage(id, &Settings::default(), disk, machine).await?;
    let last = storage.log.get_log_state().await.unwrap().last_log_id;
    Ok((last.map_or(0, |id| id.index + 1), storage.recovery))
}

/// The disk of a single voter, the length of its log before the last write, and the number of
/// entries before it. The last write holds `width` entries.
async fn written(width: u64) -> (MemoryDisk, usize, u64) {
    let cell = Cell::start(1, Settings::default()).await;
    for value in 1..=3 {
        cell.add(value).await;
    }
    let disk = cell.disks[&1].clone();
    let before = disk.platter().files[SEGMENT].bytes.len();
    let entries = cell.replica(1).status().last_log.unwrap() + 1;
    let leader = cell.leader().await;
    let propose = |value: u64| leader.propose(value.to_le_bytes().to_vec());
    let all: Vec<_> = (0..width).map(propose).collect();
    // Held back, so that they queue up and go out as one write, after a first one that is alone.
    disk.stall(true);
    let release = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        disk.stall(false);
    };
    let (results, ()) = tokio::join!(futures::future::join_all(all), release);
    assert!(results.iter().all(Result::is_ok));
    cell.replica(1).shutdown().await;
    (disk, before, entries)
}

fn edit(disk: &MemoryDisk, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> MemoryDisk {
    let copy = disk.copy();
    change(&mut copy.platter().files.get_mut(path).unwrap().bytes);
    copy
}

#[tokio::test(start_paused = true)]
async fn a_tail_torn_at_any_byte_is_cut_and_reported() {
    let (disk, before, entries) = written(1).await;
    let whole = disk.platter().files[SEGMENT].bytes.len();
    for cut in before..whole {
        let torn = edit(&disk, SEGMENT, |bytes| bytes.truncate(cut));
        let (next, recovery) = opened(&torn, 1).await.unwrap();
        let report = recovery.torn_tail.map(|tail| (tail.offset, tail.bytes));
        if next == entries {
            let lost = (cut - before) as u64;
            assert_eq!(report, (lost > 0).then_some((before as u64, lost)), "cut at {cut}");
        } else {
            // The entry survived and the state record written after it did not.
            assert_eq!(next, entries + 1, "cut at {cut}");
        }
        // Cut once, the log is whole again.
        let (again, recovery) = opened(&torn, 1).await.unwrap();
        assert_eq!((again, recovery), (next, Recovery::default()));
    }
    assert_eq!(opened(&disk, 1).await.unwrap(), (entries + 1, Recovery::default()));
}

#[tokio::test(start_paused = true)]
async fn pieces_of_one_write_may_arrive_in_any_order() {
    let (disk, before, entries) = written(20).await;
    // The first proposal went alone; the rest is one write. Lose a block in the middle of it.
    let whole = disk.platter().files[SEGMENT].bytes.len();
    for hole in [before + 200, before + 400, whole - 300] {
        let torn = edit(&disk, SEGMENT, |bytes| bytes[hole..hole + 64].fill(0));
        let (next, recovery) = opened(&torn, 1).await.unwrap();
        assert!(recovery.torn_tail.is_some());
        assert!(next >= entries && next < entries + 20, "{next} of {entries}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flipped_byte_is_refused_or_cut_with_the_tail() {
    let (disk, before, _) = written(1).await;
    let whole = disk.platter().files[SEGMENT].bytes.len();
    let mut refused = 0;
    for at in 0..whole {
        let bad = edit(&disk, SEGMENT, |bytes| bytes[at] ^= 0x10);
        match opened(&bad, 1).await {
            Ok((_, recovery)) => {
                let tail = recovery.torn_tail.expect("the flip must be noticed");
                assert!(at >= before && tail.offset >= before as u64, "flip at {at}: {tail:?}");
            }
            Err(OpenError::Damaged { file, offset, .. }) => {
                assert_eq!(file, SEGMENT);
                assert!(offset as usize <= at, "flip at {at}, reported at {offset}");
                refused += 1;
            }
            Err(other) => panic!("flip at {at}: {other}"),
        }
    }
    assert!(refused >= before, "only {refused} of {before} bytes are guarded");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_what_to_do() {
    let (disk, ..) = written(1).await;
    let bad = edit(&disk, SEGMENT, |bytes| bytes[100] ^= 1);
    let text = opened(&bad, 1).await.unwrap_err().to_string();
    assert!(text.starts_with("log/0000000000000001 is damaged at byte 64"), "{text}");
    assert!(text.contains("cell master repair"), "{text}");
    wipe(&bad).unwrap();
    assert_eq!(opened(&bad, 2).await.unwrap(), (0, Recovery::default()));
}

#[tokio::test(start_paused = true)]
async fn files_of_another_replica_or_cell_are_refused() {
    let (disk, ..) = written(1).await;
    assert!(matches!(opened(&disk, 2).await, Err(OpenError::Foreign { .. })));
    let settings = Settings { cell: [1; 16], ..Settings::default() };
    let machine = Box::new(Adder::default());
    let other = open_storage(1, &settings, Arc::new(disk), machine).await;
    assert!(matches!(other.map(|_| ()), Err(OpenError::Foreign { .. })));
}

fn small() -> Settings {
    Settings { segment_bytes: 1000, snapshot_entries: 20, keep_entries: 40, ..Settings::default() }
}

/// A single voter that has been through many segments and snapshots, stopped.
async fn long_lived() -> Cell {
    let cell = Cell::start(1, small()).await;
    for value in 1..=200 {
        cell.add(value).await;
    }
    cell.replica(1).snapshot_now().await.unwrap();
    for value in 201..=210 {
        cell.add(value).await;
    }
    cell.replica(1).shutdown().await;
    cell
}

async fn total_after_open(cell: &mut Cell) -> u64 {
    cell.open(1).await;
    cell.leader().await;
    cell.settle().await;
    let total = cell.sums(1).total;
    cell.replica(1).shutdown().await;
    total
}

const TOTAL: u64 = 210 * 211 / 2;

#[tokio::test(start_paused = true)]
async fn old_segments_and_snapshots_go_and_the_rest_is_enough() {
    let mut cell = long_lived().await;
    let disk = cell.disks[&1].clone();
    let segments = disk.names("log");
    assert!(segments.len() > 2 && segments[0] != "0000000000000001", "{segments:?}");
    assert_eq!(disk.names("snap").len(), 2);
    assert_eq!(total_after_open(&mut cell).await, TOTAL);
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_is_refused() {
    let cell = long_lived().await;
    let names = cell.disks[&1].names("log");
    for (nth, name) in names.iter().enumerate().take(names.len() - 1) {
        let disk = cell.disks[&1].copy();
        disk.platter().files.remove(&format!("log/{name}"));
        let result = opened(&disk, 1).await;
        let Err(OpenError::Damaged { what, .. }) = result else { panic!("{nth}: {result:?}") };
        assert!(what.contains("missing"), "{what}");
    }
    let disk = cell.disks[&1].copy();
    disk.platter().files.retain(|path, _| !path.starts_with("log/"));
    let result = opened(&disk, 1).await;
    assert!(matches!(&result, Err(OpenError::Damaged { what, .. }) if what.contains("no log")));
}

#[tokio::test(start_paused = true)]
async fn damage_before_the_last_segment_is_never_a_torn_tail() {
    let cell = long_lived().await;
    let names = cell.disks[&1].names("log");
    let path = format!("log/{}", names[names.len() - 2]);
    let cut = edit(&cell.disks[&1], &path, |bytes| bytes.truncate(bytes.len() - 5));
    assert!(matches!(opened(&cut, 1).await, Err(OpenError::Damaged { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_made_up_for_by_the_older_one() {
    let mut cell = long_lived().await;
    let names = cell.disks[&1].names("snap");
    let newest = format!("snap/{}", names[1]);
    cell.disks.insert(1, edit(&cell.disks[&1], &newest, |bytes| bytes[150] ^= 1));
    assert_eq!(total_after_open(&mut cell).await, TOTAL);
    let passed_over = cell.replica(1).recovery().passed_over.clone();
    assert_eq!(passed_over.len(), 1);
    assert!(passed_over[0].starts_with(&newest), "{passed_over:?}");

    let cell = long_lived().await;
    let disk = cell.disks[&1].copy();
    for name in disk.names("snap") {
        disk.platter().files.get_mut(&format!("snap/{name}")).unwrap().bytes[150] ^= 1;
    }
    let result = opened(&disk, 1).await;
    assert!(matches!(&result, Err(OpenError::Damaged { file, .. }) if *file == newest));
}

/// Where every write to a segment ended, by trying: a cut there leaves whole records only.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![64];
    while let Some(head) = bytes.get(ends[ends.len() - 1]..).and_then(|rest| rest.get(..48)) {
        let body = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        ends.push(ends[ends.len() - 1] + 48 + body + 8);
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn a_log_that_ends_before_its_snapshot_is_refused_wherever_it_was_cut() {
    let cell = Cell::start(1, Settings::default()).await;
    for value in 1..=5 {
        cell.add(value).await;
    }
    cell.replica(1).snapshot_now().await.unwrap();
    let covered = cell.replica(1).status().last_log.unwrap() + 1;
    cell.add(6).await;
    cell.replica(1).shutdown().await;
    let disk = cell.disks[&1].clone();
    let ends = ends(&disk.platter().files[SEGMENT].bytes);
    let (mut refused, mut taken) = (0, 0);
    for end in ends {
        let cut = edit(&disk, SEGMENT, |bytes| bytes.truncate(end));
        match opened(&cut, 1).await {
            Ok((next, _)) => {
                assert!(next >= covered, "cut at {end}: {next} is before the snapshot {covered}");
                taken += 1;
            }
            Err(OpenError::Damaged { file, what, .. }) => {
                assert_eq!(file, SEGMENT);
                assert!(what.contains("its snapshot"), "{what}");
                refused += 1;
            }
            Err(other) => panic!("cut at {end}: {other}"),
        }
    }
    assert!(refused > 5 && taken > 0, "{refused} refused, {taken} taken");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_replica_may_be_ahead_of_the_log_until_the_log_follows() {
    let cell = Cell::start(3, small()).await;
    let late = if cell.leader().await.status().id == 3 { 2 } else { 3 };
    let before = cell.disks[&late].copy();
    cell.net.cut_off(late, [1, 2, 3]);
    for value in 1..=100 {
        cell.add(value).await;
    }
    cell.net.heal();
    cell.settle().await;
    let after = cell.disks[&late].clone();
    let sent = after.names("snap").pop().expect("it was sent a snapshot");
    assert!(!after.names("log").contains(&"installing".to_owned()), "the log has followed");
    cell.replica(late).shutdown().await;
    // The old log beside the new snapshot: the power failed while it was being saved, or the log
    // was cut. What tells them apart is written first.
    let path = format!("snap/{sent}");
    let snapshot = after.platter().files[&path].clone();
    before.platter().files.insert(path, snapshot.clone());
    let result = opened(&before, late).await;
    assert!(matches!(&result, Err(OpenError::Damaged { .. })), "{result:?}");
    let (index, term) = sent.split_once('-').unwrap();
    let leader = leader_of(&snapshot.bytes);
    let words = [term.parse().unwrap(), leader, index.parse::<u64>().unwrap()];
    let mut mark: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    mark.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&mark, 0).to_le_bytes());
    let bytes = mark.clone();
    let file = crate::support::File { synced: bytes.len(), bytes };
    before.platter().files.insert("log/installing".to_owned(), file);
    assert!(opened(&before, late).await.is_ok());
    for bit in 0..mark.len() * 8 {
        let bad = edit(&before, "log/installing", |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        assert!(opened(&bad, late).await.is_err(), "bit {bit} of the mark");
    }
}

/// A machine whose own files say what it has applied.
struct Remembers(Adder, u64);

impl Machine for Remembers {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        self.0.apply(index, term, payload)
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        self.0.snapshot()
    }

    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.restore(index, bytes)
    }

    fn witnessed(&self) -> Option<u64> {
        Some(self.1)
    }
}

/// A snapshot of another replica is restored before it is saved, and killed in between a replica
/// has lost nothing.
#[tokio::test(start_paused = true)]
async fn files_of_the_machine_may_be_ahead_of_the_log_while_a_snapshot_is_installed() {
    let (disk, _, _) = written(2).await;
    let (next, _) = opened(&disk, 1).await.unwrap();
    let remembered = async |applied: u64| {
        let machine = Box::new(Remembers(Adder::default(), applied));
        let opened = open_storage(1, &Settings::default(), Arc::new(disk.clone()), machine).await;
        opened.map(drop)
    };
    assert!(remembered(next - 1).await.is_ok());
    let refused = remembered(next + 7).await;
    assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
    let mut mark: Vec<u8> = [1, 2, next + 7].into_iter().flat_map(u64::to_le_bytes).collect();
    mark.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&mark, 0).to_le_bytes());
    let file = crate::support::File { synced: mark.len(), bytes: mark };
    disk.platter().files.insert("log/installing".to_owned(), file);
    assert!(remembered(next + 7).await.is_ok());
    let refused = remembered(next + 8).await;
    assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
    disk.platter().files.get_mut("log/installing").unwrap().bytes[16] ^= 1;
    assert!(remembered(next + 7).await.is_err(), "a mark that is not whole excuses nothing");
}

/// The node of the last entry in a snapshot's facts: a presence byte, then term and node, each
/// short enough here to be one byte.
fn leader_of(snapshot: &[u8]) -> u64 {
    u64::from(snapshot[42])
}
