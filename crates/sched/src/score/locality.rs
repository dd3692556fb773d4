//! Package locality (B34): most of a start is spent on installing packages, so a machine that has
//! them is preferred. Quantised, so that a few kilobytes do not overrule packing.

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;

/// Steps from "all there" (0) to "all to be fetched".
const STEPS: u64 = 16;

#[inline]
pub(crate) fn missing_share(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> u8 {
    if class.request.packages.is_empty() {
        return 0;
    }
    let installed = &snapshot.machines.packages[m];
    let (mut total, mut missing) = (0u64, 0u64);
    for package in &class.request.packages {
        let bytes = snapshot.packages.get(*package).map_or(0, |p| p.bytes);
        total = total.saturating_add(bytes);
        if installed.binary_search(package).is_err() {
            missing = missing.saturating_add(bytes);
        }
    }
    if total == 0 { 0 } else { (u128::from(missing) * u128::from(STEPS) / u128::from(total)) as u8 }
}
