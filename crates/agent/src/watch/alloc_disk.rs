//! The disk usage of an alloc's tasks together. The folder of the alloc is open to all of them, and
//! it cannot be determined which of them created a file there. So it counts against the alloc: when
//! that is over its limit, with what its tasks have in their own folders, all of them are killed.
//!
//! Rejected: counting the folder for each task. A task that never wrote there would be over its
//! limit.

use super::recent_kills::RecentKills;
use super::{Finding, WatchedTask};
use cellwright_cell::id::Attempt;
use cellwright_cell::task::ExitClass;
use cellwright_isolate::cgroup::Group;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The folder of an alloc.
#[derive(Clone, Debug)]
pub struct AllocDisk {
    pub alloc: Attempt,
    /// The cgroup around those of all its tasks.
    pub group: Option<Group>,
    pub folder: PathBuf,
    /// Bytes that the alloc may have on disk; 0 for no limit.
    pub limit: u64,
}

/// Tasks whose allocs are over their limits, by the counted usage of each task and of each alloc's
/// folder; each once, and again after a while.
pub fn over_limit(
    tasks: &[WatchedTask],
    used: impl Fn(Attempt) -> u64,
    recent_kills: &mut RecentKills,
    now: u64,
) -> Vec<(Attempt, Finding)> {
    let mut allocs: BTreeMap<Attempt, (&AllocDisk, Vec<&WatchedTask>)> = BTreeMap::new();
    for task in tasks {
        if let Some(alloc_disk) = task.alloc_disk.as_ref().filter(|shared| shared.limit > 0) {
            allocs.entry(alloc_disk.alloc).or_insert_with(|| (alloc_disk, Vec::new())).1.push(task);
        }
    }
    let mut findings = Vec::new();
    for (alloc, (alloc_disk, inside)) in allocs {
        let own = inside.iter().map(|task| used(task.attempt));
        let all = own.fold(used(alloc), u64::saturating_add);
        let Some(over) = all.checked_sub(alloc_disk.limit).filter(|over| *over > 0) else {
            continue;
        };
        let why =
            format!("disk: its alloc used {all}, {over} over its limit of {}", alloc_disk.limit);
        let due = |task: &&WatchedTask| recent_kills.is_due(task.attempt, now);
        for task in inside.into_iter().filter(due) {
            tracing::warn!(task = task.name, why, "killed");
            let class = Some(ExitClass::OverDiskLimit);
            findings.push((task.attempt, Finding::Condemned { class, why: why.clone() }));
        }
    }
    findings
}
