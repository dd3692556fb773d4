//! A job as the cell keeps it: its specs by version, its state, and an update in progress (B7).

use crate::id::{JobId, TaskId, UserId};
use crate::name::Name;
use crate::priority::{Band, Priority};
use crate::resource::Resources;
use crate::spec::JobSpec;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// Accepted; starts when its predecessor has ended (B6).
    Deferred,
    Active,
    /// Told to stop; tasks are still going down.
    Stopping,
    Dead(JobOutcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobOutcome {
    /// Every task finished.
    Succeeded,
    /// Some task failed for good.
    Failed,
    Killed,
    DependencyFailed,
}

/// A non-atomic roll from one version to another; can be undone until closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Update {
    pub from: u32,
    pub to: u32,
    pub opened_at: Time,
    /// Tasks stopped or moved by this update so far.
    pub disruptions: u32,
    /// Tasks whose change was skipped because it would have disrupted too many.
    pub skipped: BTreeSet<u32>,
    pub undoing: bool,
}

/// What a change of spec does to a running task, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangeClass {
    /// Priority, labels, budgets: takes effect at once.
    NoRestart,
    /// A new program, new packages or smaller limits: stop and start on the same machine.
    Restart,
    /// Larger limits, new constraints, ports or devices: may no longer fit where it is.
    MayMove,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    pub user: UserId,
    pub name: Name,
    pub state: JobState,
    /// Version new placements use. Invariant: deferred, pending and dead tasks are at it.
    pub version: u32,
    /// Highest version so far. Numbers are never given twice, so comparing them is safe.
    pub last_version: u32,
    /// Specs some task runs, or an open update may return to. Invariant: holds `version`.
    pub specs: BTreeMap<u32, Arc<JobSpec>>,
    pub update: Option<Update>,
    /// Rows by task index. Invariant: the row at position i has index i.
    pub tasks: Arc<Vec<TaskId>>,
    /// The job it waits for. Invariant: `Some` exactly when deferred.
    pub waits_for: Option<JobId>,
    pub submitted_at: Time,
    pub ended_at: Option<Time>,
}

impl Job {
    /// The spec new placements use.
    #[must_use]
    pub fn spec(&self) -> &Arc<JobSpec> {
        // `specs` holds `version`: checked by the invariants and by the loader.
        &self.specs[&self.version]
    }

    /// The spec a task of `version` runs.
    #[must_use]
    pub fn spec_of(&self, version: u32) -> &Arc<JobSpec> {
        self.specs.get(&version).unwrap_or_else(|| self.spec())
    }

    /// What admission charges, by band: for each task the most that any version kept asks for it,
    /// so that neither end of an open update, nor a task that an update skipped, goes uncharged.
    /// Nothing once dead; tasks inside an alloc set charge the set alone; priority zero is free.
    #[must_use]
    pub fn charges(&self) -> BTreeMap<Band, Resources> {
        let mut versions: BTreeMap<Band, Vec<&JobSpec>> = BTreeMap::new();
        let charged = |spec: &JobSpec| spec.alloc_set.is_none() && spec.priority != Priority(0);
        if !self.is_dead() {
            for spec in self.specs.values().filter(|spec| charged(spec)) {
                versions.entry(spec.priority.band()).or_default().push(spec);
            }
        }
        versions.into_iter().map(|(band, specs)| (band, most_of_each(&specs))).collect()
    }

    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, JobState::Dead(_))
    }
}

/// Sum over the tasks of the most that any of `specs` allows each.
fn most_of_each(specs: &[&JobSpec]) -> Resources {
    if let [only] = specs {
        return only.total_limits();
    }
    let count = specs.iter().map(|spec| spec.count).max().unwrap_or(0);
    let most = |index: u32| {
        let counting = specs.iter().filter(|spec| index < spec.count);
        counting.fold(Resources::ZERO, |most, spec| most.max(spec.limits_of(index)))
    };
    // Between two indices with an override of their own, or at which a version ends, all tasks
    // are alike.
    let marks = specs.iter().flat_map(|spec| {
        let own = spec.overrides.range(..spec.count).flat_map(|(i, _)| [*i, i.saturating_add(1)]);
        own.chain([spec.count])
    });
    let mut cuts: BTreeSet<u32> = marks.filter(|at| *at <= count).collect();
    cuts.insert(0);
    let ends = cuts.iter().skip(1).copied();
    cuts.iter()
        .zip(ends)
        .fold(Resources::ZERO, |sum, (from, to)| sum.plus(most(*from).times(u64::from(to - from))))
}
