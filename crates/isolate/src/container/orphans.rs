//! Removes orphans of a crash: containers without an owner, mounts, bundles. An agent sweeps when
//! it starts, after it knows which containers it still wants.

use super::bundle::Bundle;
use super::runtime::Runtime;
use super::spec::ContainerId;
use crate::Error;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// What was found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    pub containers: Vec<ContainerId>,
    pub bundles: Vec<ContainerId>,
    /// What could not be removed; the rest was swept all the same.
    pub stuck: Vec<String>,
}

/// Kills and deletes every container and every bundle below `run` that is not in `keep`.
///
/// # Errors
/// When they cannot be listed.
pub fn sweep(
    runtime: &dyn Runtime,
    run: &Path,
    keep: &BTreeSet<ContainerId>,
) -> Result<SweepReport, Error> {
    let mut swept = SweepReport::default();
    for id in runtime.list()?.into_iter().filter(|id| !keep.contains(id)) {
        match runtime.delete(&id) {
            Ok(()) => swept.containers.push(id),
            Err(e) => swept.stuck.push(e.to_string()),
        }
    }
    for id in bundles(run)?.into_iter().filter(|id| !keep.contains(id)) {
        match Bundle::at(run, &id).remove() {
            Ok(()) => swept.bundles.push(id),
            Err(e) => swept.stuck.push(e.to_string()),
        }
    }
    Ok(swept)
}

/// Only directories named like containers are bundles; anything else is not ours to delete.
fn bundles(run: &Path) -> Result<Vec<ContainerId>, Error> {
    let entries = match fs::read_dir(run) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("list", run)(e)),
    };
    let bundle = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_bundle = entry.path().join("rootfs").is_dir();
        ContainerId::new(entry.file_name().to_str()?).ok().filter(|_| is_bundle)
    };
    let mut ids: Vec<ContainerId> = entries.filter_map(bundle).collect();
    ids.sort_unstable();
    Ok(ids)
}
