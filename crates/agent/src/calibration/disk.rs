//! What the disk below the agent's folder writes: bytes a second in one go, and operations a second
//! at random places. Each write is on the disk before the next begins, so a cache in memory does
//! not count.
//!
//! Bounded in bytes and in time: a slow disk is known to be slow after a few writes, and a fast one
//! after some megabytes. Reads are not measured; what was just written comes from a cache that no
//! program can empty. Rejected: measuring in the background. The machine would offer one rate and
//! then another, and tasks would be placed by the first.

use crate::record::{self, Durability, Recorded};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const DISK_FILE: &str = "disk_speed";
const DRAFT_FILE: &str = "disk_speed.trial";
const BLOCK: usize = 1 << 20;
const PAGE: usize = 4096;
/// Most bytes that are written in one go, and how long that may take.
const MOST_BYTES: u64 = 8 << 20;
const MOST_TIME: Duration = Duration::from_millis(100);
/// Most writes at random places, and how long they may take.
const MOST_OPERATIONS: u32 = 100;
/// A disk that does less would take no task that asks for any.
const LEAST_RATE: u64 = 1 << 20;

/// What a disk writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpeed {
    pub bytes_per_second: u64,
    /// Writes of 4 KiB.
    pub operations_per_second: u64,
}

/// A measurement, and the file system that it is of.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredDisk {
    device: u64,
    speed: DiskSpeed,
}

impl Recorded for MeasuredDisk {}

/// The speed that is on record for this file system, else a new measurement; `None` where the
/// folder cannot be written.
pub(super) fn load_or_measure(data: &Path) -> Option<DiskSpeed> {
    let path = data.join(DISK_FILE);
    let device = data.metadata().ok()?.dev();
    let found = record::read::<MeasuredDisk>(&path).unwrap_or_else(|error| {
        tracing::warn!(%error, "the speed of this machine's disk is measured again");
        None
    });
    if let Some(known) = found.filter(|known| known.device == device) {
        return Some(known.speed);
    }
    let speed = match measure(data) {
        Ok(speed) => speed,
        Err(error) => {
            tracing::warn!(%error, "the speed of this machine's disk is not known");
            return None;
        }
    };
    let DiskSpeed { bytes_per_second, operations_per_second } = speed;
    tracing::info!(bytes_per_second, operations_per_second, "the speed of this machine's disk");
    let measured = MeasuredDisk { device, speed };
    if let Err(error) = record::write(&path, &measured, Durability::Process) {
        tracing::warn!(%error, "the speed of this machine's disk will be measured again");
    }
    Some(speed)
}

fn measure(data: &Path) -> io::Result<DiskSpeed> {
    let file = open_trial(&data.join(DRAFT_FILE))?;
    let block = vec![0xa5; BLOCK];
    let (written, spent) =
        write_until(MOST_BYTES / BLOCK as u64, |at| file.write_all_at(&block, at * BLOCK as u64))?;
    let bytes = written * BLOCK as u64;
    let pages = bytes / PAGE as u64;
    let (operations, meanwhile) = write_until(u64::from(MOST_OPERATIONS), |at| {
        // Far from the one before, wherever that was.
        let page = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pages.max(1);
        file.write_all_at(&block[..PAGE], page * PAGE as u64)
    })?;
    Ok(DiskSpeed {
        bytes_per_second: per_second(bytes, spent).max(LEAST_RATE),
        operations_per_second: per_second(operations, meanwhile).max(1),
    })
}

/// A file without a name: whatever becomes of this process, nothing of it stays.
fn open_trial(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::DSYNC.bits() as i32)
        .open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Writes at most so often, once at least, and not much longer than it may take; how often, and how
/// long it took.
fn write_until(
    most: u64,
    mut write: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<(u64, Duration)> {
    let begun = Instant::now();
    let mut done = 0;
    while done < most && (done == 0 || begun.elapsed() < MOST_TIME) {
        write(done)?;
        done += 1;
    }
    Ok((done, begun.elapsed()))
}

fn per_second(amount: u64, spent: Duration) -> u64 {
    let micros = u64::try_from(spent.as_micros()).unwrap_or(u64::MAX).max(1);
    amount.saturating_mul(1_000_000) / micros
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;

    #[test]
    fn a_disk_is_measured_once_and_leaves_nothing_behind() {
        let scratch = Scratch::new();
        let data = scratch.path("");
        let first = load_or_measure(&data).unwrap();
        assert!(first.bytes_per_second >= LEAST_RATE && first.operations_per_second >= 1);
        let entries = std::fs::read_dir(&data).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [DISK_FILE]);
        assert_eq!(load_or_measure(&data), Some(first), "as it is on record");
        // Another disk below the same folder.
        let device = data.metadata().unwrap().dev() + 1;
        let speed = DiskSpeed { bytes_per_second: 1, operations_per_second: 1 };
        let other = MeasuredDisk { device, speed };
        record::write(&data.join(DISK_FILE), &other, Durability::Process).unwrap();
        assert_ne!(load_or_measure(&data), Some(speed));
        assert_eq!(load_or_measure(&data.join("gone")), None);
    }

    #[test]
    fn a_measurement_is_bounded_in_writes_and_in_time() {
        let mut writes = 0;
        let mut write = |_: u64| -> io::Result<()> {
            writes += 1;
            Ok(())
        };
        assert_eq!(write_until(16, &mut write).unwrap().0, 16);
        assert_eq!(write_until(0, &mut write).unwrap().0, 0);
        assert_eq!(writes, 16);
        assert_eq!(per_second(16 << 20, Duration::from_millis(500)), 32 << 20);
        assert_eq!(per_second(3, Duration::ZERO), 3_000_000);
        let failing = write_until(3, |_| Err(io::Error::other("full")));
        assert!(failing.is_err());
    }
}
