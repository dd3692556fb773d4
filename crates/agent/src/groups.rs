//! The control groups of this machine's tasks: one group for each task, inside that of its alloc
//! where it has one, all below a group of this agent's own.
//!
//! Groups need root. An agent without them says why and runs tasks all the same: then nothing but
//! the shim's list of processes stands around a task.

use crate::core::Attempt;
use cellwright_cell::desired::Work;
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_isolate::Error;
use cellwright_isolate::cgroup::{Controller, Group, GroupPath, Layout, Limits, Tree, cpu_weight};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What latency-sensitive work weighs more than batch of the same size, when both want the CPU.
const BATCH_WEIGHS_LESS: u64 = 10;
/// For what was left behind and is killed at the start; only a hung kernel uses it up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The groups of one agent, or why there are none.
#[derive(Clone, Debug)]
pub struct Groups(Result<Tree, String>);

impl Groups {
    /// Agents with different folders never share a group, so several can run on one machine.
    #[must_use]
    pub fn open(data_dir: &Path) -> Groups {
        Groups(open(data_dir).map_err(|error| error.to_string()))
    }

    #[cfg(test)]
    pub(crate) fn none() -> Groups {
        Groups(Err("a test".into()))
    }

    #[must_use]
    pub fn off(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    /// The group that a task of this attempt has, inside that of its alloc.
    #[must_use]
    pub fn of_task(&self, attempt: Attempt, alloc: Option<Attempt>) -> Option<Group> {
        let outer = match alloc {
            Some(alloc) => self.of_alloc(alloc)?.child(&format!("task-{attempt}")),
            None => self.0.as_ref().ok()?.group(&format!("task-{attempt}")),
        };
        outer.ok()
    }

    /// The group of this path, which a launch names.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<Group> {
        Some(self.0.as_ref().ok()?.at(GroupPath::new(path).ok()?))
    }

    #[must_use]
    pub fn of_alloc(&self, attempt: Attempt) -> Option<Group> {
        self.0.as_ref().ok()?.group(&format!("alloc-{attempt}")).ok()
    }

    /// Removes the group around all others when nothing is in it.
    pub fn close(&self) {
        let Ok(tree) = &self.0 else { return };
        if tree.names().is_ok_and(|names| names.is_empty()) {
            // Somebody may just have come in; then it stays.
            let _ = tree.base().remove();
        }
    }

    /// Kills and removes the groups of those who have no folder any more.
    pub fn sweep(&self, kept: &BTreeSet<Attempt>) {
        let Ok(tree) = &self.0 else { return };
        let wanted: BTreeSet<String> = kept
            .iter()
            .flat_map(|kept| [format!("task-{kept}"), format!("alloc-{kept}")])
            .collect();
        for name in tree.names().unwrap_or_default() {
            let swept = tree.group(&name).and_then(|group| match wanted.contains(&name) {
                true => Ok(()),
                false => group.kill(PATIENCE).and_then(|()| group.remove()),
            });
            if let Err(error) = swept {
                tracing::error!(%error, "a group that nobody wants stays");
            }
        }
    }
}

/// The group around all others of the agent with this folder.
#[must_use]
pub fn base_name(data_dir: &Path) -> String {
    format!("cellwright-{:016x}", xxh3_64(data_dir.to_string_lossy().as_bytes()))
}

fn open(data_dir: &Path) -> Result<Tree, Error> {
    let tree = Tree::new(Layout::detect()?, GroupPath::new(&base_name(data_dir))?);
    tree.base().create()?;
    Ok(tree)
}

/// Makes the group of a task and sets its limits. Says what of them this machine cannot hold it to.
///
/// # Errors
/// When the kernel refuses.
pub fn make_task(group: &Group, work: &Work) -> Result<Vec<Controller>, Error> {
    let Work { limits, isolation, appclass, .. } = work;
    let weight = match appclass {
        AppClass::LatencySensitive => cpu_weight(limits.cpu),
        AppClass::Batch => (cpu_weight(limits.cpu) / BATCH_WEIGHS_LESS).max(1),
    };
    make(
        group,
        &Limits {
            cpu_weight: Some(weight),
            cpu_cap: (!isolation.slack_cpu).then_some(limits.cpu.max(1)),
            memory_limit: (!isolation.slack_ram).then_some(limits.ram),
            pids_max: Some(u64::from(isolation.processes)),
            ..Limits::default()
        },
    )
}

/// Makes the group of an alloc: its tasks together get no more memory than it has.
///
/// # Errors
/// When the kernel refuses.
pub fn make_alloc(group: &Group, limits: Resources) -> Result<Vec<Controller>, Error> {
    make(
        group,
        &Limits {
            cpu_weight: Some(cpu_weight(limits.cpu)),
            memory_limit: Some(limits.ram),
            ..Limits::default()
        },
    )
}

fn make(group: &Group, limits: &Limits) -> Result<Vec<Controller>, Error> {
    group.create()?;
    group.apply(limits)
}
