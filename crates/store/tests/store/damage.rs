//! Torn writes are cut, damage is rejected, and the two are distinguished.

use std::sync::Arc;

use cellwright_store::testing::open_storage;
use cellwright_store::{OpenError, RecoveryReport, StateMachine, StoreConfig, wipe};
use openraft::storage::RaftLogStorage;

use crate::support::{Adder, Cell, MemoryDisk};

const SEGMENT: &str = "log/0000000000000001";

/// The outcome of opening a disk: the index after the last entry and the report, or the error.
async fn try_open(disk: &MemoryDisk, id: u64) -> Result<(u64, RecoveryReport), OpenError> {
    let (disk, machine) = (Arc::new(disk.clone()), Box::new(Adder::default()));
    let mut storage = open_storage(id, &StoreConfig::default(), disk, machine).await?;
    let last = storage.log.get_log_state().await.unwrap().last_log_id;
    Ok((last.map_or(0, |id| id.index + 1), storage.recovery))
}

/// The disk of a single voter, the length of its log before the last write, and the number of
/// entries before it. The last write holds `width` entries.
async fn disk_with_writes(width: u64) -> (MemoryDisk, usize, u64) {
    let cell = Cell::start(1, StoreConfig::default()).await;
    for value in 1..=3 {
        cell.add(value).await;
    }
    let disk = cell.disks[&1].clone();
    let before = disk.state().files[SEGMENT].bytes.len();
    let entries = cell.replica(1).status().last_log.unwrap() + 1;
    let leader = cell.leader().await;
    let propose = |value: u64| leader.propose(value.to_le_bytes().to_vec());
    let all: Vec<_> = (0..width).map(propose).collect();
    // Held back, so that they queue up and are written together, after a first one that is alone.
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
    change(&mut copy.state().files.get_mut(path).unwrap().bytes);
    copy
}

#[tokio::test(start_paused = true)]
async fn a_tail_torn_at_any_byte_is_cut_and_reported() {
    let (disk, before, entries) = disk_with_writes(1).await;
    let whole = disk.state().files[SEGMENT].bytes.len();
    for cut in before..whole {
        let torn = edit(&disk, SEGMENT, |bytes| bytes.truncate(cut));
        let (next, recovery) = try_open(&torn, 1).await.unwrap();
        let report = recovery.torn_tail.map(|tail| (tail.offset, tail.bytes));
        if next == entries {
            let lost = (cut - before) as u64;
            assert_eq!(report, (lost > 0).then_some((before as u64, lost)), "cut at {cut}");
        } else {
            // The entry survived, and the state record written after it did not.
            assert_eq!(next, entries + 1, "cut at {cut}");
        }
        // After one cut the log is whole again.
        let (again, recovery) = try_open(&torn, 1).await.unwrap();
        assert_eq!((again, recovery), (next, RecoveryReport::default()));
    }
    assert_eq!(try_open(&disk, 1).await.unwrap(), (entries + 1, RecoveryReport::default()));
}

#[tokio::test(start_paused = true)]
async fn pieces_of_one_write_may_arrive_in_any_order() {
    let (disk, before, entries) = disk_with_writes(20).await;
    // The first proposal is a write of its own; the rest is one write. Lose a block in the middle
    // of it.
    let whole = disk.state().files[SEGMENT].bytes.len();
    for hole in [before + 200, before + 400, whole - 300] {
        let torn = edit(&disk, SEGMENT, |bytes| bytes[hole..hole + 64].fill(0));
        let (next, recovery) = try_open(&torn, 1).await.unwrap();
        assert!(recovery.torn_tail.is_some());
        assert!(next >= entries && next < entries + 20, "{next} of {entries}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flipped_byte_is_refused_or_cut_with_the_tail() {
    let (disk, before, _) = disk_with_writes(1).await;
    let whole = disk.state().files[SEGMENT].bytes.len();
    let mut rejected = 0;
    for at in 0..whole {
        let bad = edit(&disk, SEGMENT, |bytes| bytes[at] ^= 0x10);
        match try_open(&bad, 1).await {
            Ok((_, recovery)) => {
                let tail = recovery.torn_tail.expect("the flip must be noticed");
                assert!(at >= before && tail.offset >= before as u64, "flip at {at}: {tail:?}");
            }
            Err(OpenError::Damaged { file, offset, .. }) => {
                assert_eq!(file, SEGMENT);
                assert!(offset as usize <= at, "flip at {at}, reported at {offset}");
                rejected += 1;
            }
            Err(other) => panic!("flip at {at}: {other}"),
        }
    }
    assert!(rejected >= before, "only {rejected} of {before} bytes are guarded");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_what_to_do() {
    let (disk, ..) = disk_with_writes(1).await;
    let bad = edit(&disk, SEGMENT, |bytes| bytes[100] ^= 1);
    let text = try_open(&bad, 1).await.unwrap_err().to_string();
    assert!(text.starts_with("log/0000000000000001 is damaged at byte 64"), "{text}");
    assert!(text.contains("cell master repair"), "{text}");
    wipe(&bad).unwrap();
    assert_eq!(try_open(&bad, 2).await.unwrap(), (0, RecoveryReport::default()));
}

#[tokio::test(start_paused = true)]
async fn files_of_another_replica_or_cell_are_refused() {
    let (disk, ..) = disk_with_writes(1).await;
    assert!(matches!(try_open(&disk, 2).await, Err(OpenError::WrongOwner { .. })));
    let settings = StoreConfig { cell: [1; 16], ..StoreConfig::default() };
    let machine = Box::new(Adder::default());
    let other = open_storage(1, &settings, Arc::new(disk), machine).await;
    assert!(matches!(other.map(|_| ()), Err(OpenError::WrongOwner { .. })));
}

fn small_segments() -> StoreConfig {
    StoreConfig {
        segment_bytes: 1000,
        snapshot_entries: 20,
        keep_entries: 40,
        ..StoreConfig::default()
    }
}

/// A single voter that has been through many segments and snapshots, stopped.
async fn compacted_cell() -> Cell {
    let cell = Cell::start(1, small_segments()).await;
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
    let total = cell.adder_state(1).total;
    cell.replica(1).shutdown().await;
    total
}

const TOTAL: u64 = 210 * 211 / 2;

#[tokio::test(start_paused = true)]
async fn old_segments_and_snapshots_go_and_the_rest_is_enough() {
    let mut cell = compacted_cell().await;
    let disk = cell.disks[&1].clone();
    let segments = disk.names("log");
    assert!(segments.len() > 2 && segments[0] != "0000000000000001", "{segments:?}");
    assert_eq!(disk.names("snap").len(), 2);
    assert_eq!(total_after_open(&mut cell).await, TOTAL);
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_is_refused() {
    let cell = compacted_cell().await;
    let names = cell.disks[&1].names("log");
    for (nth, name) in names.iter().enumerate().take(names.len() - 1) {
        let disk = cell.disks[&1].copy();
        disk.state().files.remove(&format!("log/{name}"));
        let result = try_open(&disk, 1).await;
        let Err(OpenError::Damaged { what, .. }) = result else { panic!("{nth}: {result:?}") };
        assert!(what.contains("missing"), "{what}");
    }
    let disk = cell.disks[&1].copy();
    disk.state().files.retain(|path, _| !path.starts_with("log/"));
    let result = try_open(&disk, 1).await;
    assert!(matches!(&result, Err(OpenError::Damaged { what, .. }) if what.contains("no log")));
}

#[tokio::test(start_paused = true)]
async fn damage_before_the_last_segment_is_never_a_torn_tail() {
    let cell = compacted_cell().await;
    let names = cell.disks[&1].names("log");
    let path = format!("log/{}", names[names.len() - 2]);
    let cut = edit(&cell.disks[&1], &path, |bytes| bytes.truncate(bytes.len() - 5));
    assert!(matches!(try_open(&cut, 1).await, Err(OpenError::Damaged { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_made_up_for_by_the_older_one() {
    let mut cell = compacted_cell().await;
    let names = cell.disks[&1].names("snap");
    let newest = format!("snap/{}", names[1]);
    cell.disks.insert(1, edit(&cell.disks[&1], &newest, |bytes| bytes[150] ^= 1));
    assert_eq!(total_after_open(&mut cell).await, TOTAL);
    let passed_over = cell.replica(1).recovery().skipped_snapshots.clone();
    assert_eq!(passed_over.len(), 1);
    assert!(passed_over[0].starts_with(&newest), "{passed_over:?}");

    let cell = compacted_cell().await;
    let disk = cell.disks[&1].copy();
    for name in disk.names("snap") {
        disk.state().files.get_mut(&format!("snap/{name}")).unwrap().bytes[150] ^= 1;
    }
    let result = try_open(&disk, 1).await;
    assert!(matches!(&result, Err(OpenError::Damaged { file, .. }) if *file == newest));
}

/// Where every write to a segment ended, found by trying: a cut there leaves whole records only.
fn write_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![64];
    while let Some(head) = bytes.get(ends[ends.len() - 1]..).and_then(|rest| rest.get(..48)) {
        let body = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        ends.push(ends[ends.len() - 1] + 48 + body + 8);
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn a_log_that_ends_before_its_snapshot_is_refused_wherever_it_was_cut() {
    let cell = Cell::start(1, StoreConfig::default()).await;
    for value in 1..=5 {
        cell.add(value).await;
    }
    cell.replica(1).snapshot_now().await.unwrap();
    let covered = cell.replica(1).status().last_log.unwrap() + 1;
    cell.add(6).await;
    cell.replica(1).shutdown().await;
    let disk = cell.disks[&1].clone();
    let ends = write_ends(&disk.state().files[SEGMENT].bytes);
    let (mut rejected, mut taken) = (0, 0);
    for end in ends {
        let cut = edit(&disk, SEGMENT, |bytes| bytes.truncate(end));
        match try_open(&cut, 1).await {
            Ok((next, _)) => {
                assert!(next >= covered, "cut at {end}: {next} is before the snapshot {covered}");
                taken += 1;
            }
            Err(OpenError::Damaged { file, what, .. }) => {
                assert_eq!(file, SEGMENT);
                assert!(what.contains("its snapshot"), "{what}");
                rejected += 1;
            }
            Err(other) => panic!("cut at {end}: {other}"),
        }
    }
    assert!(rejected > 5 && taken > 0, "{rejected} refused, {taken} taken");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_replica_may_be_ahead_of_the_log_until_the_log_follows() {
    let cell = Cell::start(3, small_segments()).await;
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
    // was cut. What distinguishes the two is written first.
    let path = format!("snap/{sent}");
    let snapshot = after.state().files[&path].clone();
    before.state().files.insert(path, snapshot.clone());
    let result = try_open(&before, late).await;
    assert!(matches!(&result, Err(OpenError::Damaged { .. })), "{result:?}");
    let (index, term) = sent.split_once('-').unwrap();
    let leader = leader_of(&snapshot.bytes);
    let words = [term.parse().unwrap(), leader, index.parse::<u64>().unwrap()];
    let mut mark: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    mark.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&mark, 0).to_le_bytes());
    let bytes = mark.clone();
    let file = crate::support::File { synced: bytes.len(), bytes };
    before.state().files.insert("log/installing".to_owned(), file);
    assert!(try_open(&before, late).await.is_ok());
    for bit in 0..mark.len() * 8 {
        let bad = edit(&before, "log/installing", |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        assert!(try_open(&bad, late).await.is_err(), "bit {bit} of the mark");
    }
}

/// A state machine whose own files record what it has applied.
struct WitnessedAdder(Adder, u64);

impl StateMachine for WitnessedAdder {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        self.0.apply(index, term, payload)
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        self.0.snapshot()
    }

    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.restore(index, bytes)
    }

    fn durable_applied(&self) -> Option<u64> {
        Some(self.1)
    }
}

/// A snapshot of another replica is restored before it is saved; a replica that is killed in
/// between has lost nothing.
#[tokio::test(start_paused = true)]
async fn files_of_the_machine_may_be_ahead_of_the_log_while_a_snapshot_is_installed() {
    let (disk, _, _) = disk_with_writes(2).await;
    let (next, _) = try_open(&disk, 1).await.unwrap();
    let open_with_applied = async |applied: u64| {
        let machine = Box::new(WitnessedAdder(Adder::default(), applied));
        let opened =
            open_storage(1, &StoreConfig::default(), Arc::new(disk.clone()), machine).await;
        opened.map(drop)
    };
    assert!(open_with_applied(next - 1).await.is_ok());
    let rejected = open_with_applied(next + 7).await;
    assert!(matches!(rejected, Err(OpenError::Damaged { .. })), "{rejected:?}");
    let mut mark: Vec<u8> = [1, 2, next + 7].into_iter().flat_map(u64::to_le_bytes).collect();
    mark.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&mark, 0).to_le_bytes());
    let file = crate::support::File { synced: mark.len(), bytes: mark };
    disk.state().files.insert("log/installing".to_owned(), file);
    assert!(open_with_applied(next + 7).await.is_ok());
    let rejected = open_with_applied(next + 8).await;
    assert!(matches!(rejected, Err(OpenError::Damaged { .. })), "{rejected:?}");
    disk.state().files.get_mut("log/installing").unwrap().bytes[16] ^= 1;
    assert!(open_with_applied(next + 7).await.is_err(), "a mark that is not whole excuses nothing");
}

/// The node of the last entry in a snapshot's metadata: a presence byte, then term and node, each
/// short enough here to be one byte.
fn leader_of(snapshot: &[u8]) -> u64 {
    u64::from(snapshot[42])
}
