//! Package locality (B34): most of a start is spent on fetching and installing packages, so a
//! machine that has them is preferred. What counts is the time that the task would wait: the bytes
//! that are missing, over the rate at which a machine takes packages in. A package that is there
//! in less than a second counts as nothing, so a program of a few kilobytes decides nothing.
//!
//! The term stands behind spread: a start that takes longer happens once, tasks that share a rack
//! are lost together for as long as they run. Rejected: the share of the bytes that is missing,
//! which says as much of four kilobytes as of forty gigabytes.

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;

/// Bytes of packages that a machine is expected to fetch, check and write in a second. A round
/// figure below what one disk or a link of a gigabit sustains; only its order of magnitude
/// matters.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// Longer fetches are all alike: what takes minutes is to be avoided in any case.
pub(crate) const MAX_SECONDS: u8 = u8::MAX;

/// Seconds until the missing packages are there, rounded down.
#[inline]
pub(crate) fn fetch_seconds(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> u8 {
    if class.request.packages.is_empty() {
        return 0;
    }
    let installed = &snapshot.machines.packages[m];
    let missing = class.request.packages.iter().filter(|p| installed.binary_search(p).is_err());
    let bytes = missing.fold(0u64, |sum, package| {
        sum.saturating_add(snapshot.packages.get(*package).map_or(0, |p| p.bytes))
    });
    (bytes / BYTES_PER_SECOND).min(u64::from(MAX_SECONDS)) as u8
}
