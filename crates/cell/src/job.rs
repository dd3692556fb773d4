//! A job as the cell keeps it: its specs by version, its state, and an update in progress (B7).

use crate::id::{JobId, MachineId, TaskId, UserId};
use crate::load::JobLoad;
use crate::name::Name;
use crate::priority::{Band, Priority};
use crate::resource::Resources;
use crate::spec::{JobKind, JobSpec};
use crate::table::Table;
use crate::task::Task;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Accepted; starts when the jobs it depends on have ended (B6).
    Deferred,
    Active,
    /// Ordered to stop; tasks are still stopping.
    Stopping,
    Dead(JobOutcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Every task finished.
    Succeeded,
    /// Some task failed for good.
    Failed,
    Killed,
    DependencyFailed,
}

/// A rolling update from one version to another; can be undone until closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Update {
    pub from: u32,
    pub to: u32,
    pub opened_at: Time,
    /// Tasks that this update has stopped or moved so far.
    pub disruptions: u32,
    /// Tasks whose change was skipped because it would have disrupted too many.
    pub skipped: BTreeSet<u32>,
    pub undoing: bool,
    /// Its owner asked for the tasks that it skipped too: its disruptions are not bounded any more.
    #[serde(default)]
    pub finishing: bool,
    /// Tasks with lower indices try the new version; the others wait until it is promoted. 0: none
    /// tries, or it was promoted.
    #[serde(default)]
    pub canaries: u32,
    /// When attempts at the new version failed or turned unhealthy, oldest first. Invariant: in
    /// order, none in the future, at most as many as bring the old version back.
    #[serde(default)]
    pub failed_at: Vec<Time>,
    /// When every task ran the new version for the first time.
    #[serde(default)]
    pub completed_at: Option<Time>,
    /// It is undone because too many tasks of the new version failed.
    #[serde(default)]
    pub rolled_back: bool,
    /// Of nothing but limits, so that there is nothing to undo: closed when it is complete.
    #[serde(default)]
    pub limits_only: bool,
}

impl Update {
    /// One that has just been opened, and has done nothing yet.
    #[must_use]
    pub const fn opened(from: u32, to: u32, opened_at: Time) -> Update {
        Update {
            from,
            to,
            opened_at,
            disruptions: 0,
            skipped: BTreeSet::new(),
            undoing: false,
            finishing: false,
            canaries: 0,
            failed_at: Vec::new(),
            completed_at: None,
            rolled_back: false,
            limits_only: false,
        }
    }
}

/// What a change of spec does to a running task, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeClass {
    /// Priority, labels, budgets, smaller limits: takes effect without a restart.
    NoRestart,
    /// A new program or new packages: stop and start on the same machine.
    Restart,
    /// Larger limits, new constraints, ports or devices: may no longer fit where it is.
    MayMove,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Job {
    pub user: UserId,
    pub name: Name,
    pub state: JobState,
    /// The version that new placements use. Invariant: deferred, pending and dead tasks are at it.
    pub version: u32,
    /// Highest version so far. Numbers are never reused, so comparing them is safe.
    pub last_version: u32,
    /// Specs that some task runs, or that an open update may return to. Invariant: holds `version`.
    pub specs: BTreeMap<u32, Arc<JobSpec>>,
    pub update: Option<Update>,
    /// Rows by task index. Invariant: the row at position i has index i.
    pub tasks: Arc<Vec<TaskId>>,
    /// Of a daemon: the machine of each task that it wants, by index. Invariant: each machine once,
    /// none that has left the cell; empty for other jobs, and for those that have ended.
    pub machines: Arc<BTreeMap<u32, MachineId>>,
    /// Of a daemon: machines that lack a task because the owner's quota, or a limit for each user,
    /// did not suffice when they were last looked at.
    pub machines_left_out: u32,
    /// The jobs it still waits for. Invariant: some exactly when deferred.
    pub waits_for: BTreeSet<JobId>,
    pub submitted_at: Time,
    pub ended_at: Option<Time>,
    /// When the cell disrupted tasks of a job with a disruption limit, oldest first, one time for
    /// each task. Invariant: in order, none in the future, at most
    /// [`MAX_DISRUPTIONS`](crate::disruption::MAX_DISRUPTIONS).
    pub disrupted_at: Vec<Time>,
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

    /// Whether its open update has nothing left to do: every live task runs the new version, which
    /// waits for no promotion, none was skipped, and none has failed for good, which its owner
    /// should look at first. An update that is being undone ends by itself.
    #[must_use]
    pub fn update_is_complete(&self, load: &JobLoad) -> bool {
        let is_settled = |update: &Update| {
            !update.undoing && update.skipped.is_empty() && !update.tries_canaries()
        };
        self.update.as_ref().is_some_and(is_settled)
            && load.at_version.keys().all(|version| *version == self.version)
            && (load.down(), load.failed) == (0, 0)
    }

    /// What admission charges, by band: for each task the maximum over the job's version, both ends
    /// of an open update, the version its row still runs, and what its machine may still allow it.
    /// So neither a version that an update
    /// may lead to nor a task that an update skipped goes uncharged, and an old version that one
    /// task still runs charges nothing for the others. Dead jobs are charged nothing; tasks inside
    /// an alloc set charge the set alone; priority zero is free. A task that ended stays charged
    /// with its job, because the whole job was admitted. No task is charged less than `least`: a
    /// task that asks for nothing still takes a row and a share of the agent's work.
    #[must_use]
    pub fn charges(
        &self,
        tasks: &Table<TaskId, Task>,
        least: Resources,
    ) -> BTreeMap<Band, Resources> {
        if self.is_dead() {
            return BTreeMap::new();
        }
        let mut versions: BTreeMap<Band, Vec<&JobSpec>> = BTreeMap::new();
        for (_, spec) in
            self.specs.iter().filter(|(v, spec)| self.is_reachable(**v) && is_charged(spec))
        {
            versions.entry(spec.priority.band()).or_default().push(spec);
        }
        let most = versions.into_iter().map(|(band, specs)| {
            let sum = match specs.first() {
                Some(spec) if spec.kind == JobKind::Daemon => self.sum_of_daemon(&specs, least),
                _ => sum_of_task_maxima(&specs, least),
            };
            (band, sum)
        });
        let mut charges: BTreeMap<Band, Resources> = most.collect();
        // The limits of a job that was never changed are in force wherever its tasks are.
        if self.last_version <= 1 && self.specs.keys().all(|v| self.is_reachable(*v)) {
            return charges;
        }
        let rows = self.tasks.iter().filter_map(|task| tasks.get(*task));
        for (band, extra) in rows.filter_map(|row| self.additional_charge(row, least)) {
            let sum = charges.entry(band).or_default();
            *sum = sum.plus(extra);
        }
        charges
    }

    /// The additional charge of a task for running a version that neither placements nor an open
    /// update use any more, and for limits that are still in force on its machine.
    pub(crate) fn additional_charge(
        &self,
        task: &Task,
        least: Resources,
    ) -> Option<(Band, Resources)> {
        let (index, version) = (task.index, task.version);
        if self.is_dead() || (self.is_reachable(version) && task.limits_in_force.is_none()) {
            return None;
        }
        let spec = self
            .specs
            .get(&version)
            .filter(|spec| is_charged(spec) && self.wants_by(spec, index))?;
        let band = spec.priority.band();
        let own = task.counted_limits(spec.charge_of(index, least));
        let charged_already = self
            .specs
            .iter()
            .filter(|(version, _)| self.is_reachable(**version))
            .filter(|(_, spec)| {
                is_charged(spec) && spec.priority.band() == band && self.wants_by(spec, index)
            })
            .fold(Resources::ZERO, |most, (_, spec)| most.max(spec.charge_of(index, least)));
        Some((band, own.max(charged_already).minus(charged_already)))
    }

    /// What a daemon is charged by these versions: its tasks are alike, one for each machine.
    fn sum_of_daemon(&self, specs: &[&JobSpec], least: Resources) -> Resources {
        let most = specs.iter().map(|spec| spec.charge_of(0, least));
        most.fold(Resources::ZERO, Resources::max).times(self.machines.len() as u64)
    }

    /// Whether placements use `version`, or an open update can lead to it.
    fn is_reachable(&self, version: u32) -> bool {
        let end = |update: &Update| update.from == version || update.to == version;
        version == self.version || self.update.as_ref().is_some_and(end)
    }

    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, JobState::Dead(_))
    }
}

fn is_charged(spec: &JobSpec) -> bool {
    spec.alloc_set.is_none() && spec.priority != Priority(0)
}

/// Sum over the tasks of the maximum that any of `specs` charges for each.
fn sum_of_task_maxima(specs: &[&JobSpec], least: Resources) -> Resources {
    if let [only] = specs {
        return only.total_charge(least);
    }
    let count = specs.iter().map(|spec| spec.count).max().unwrap_or(0);
    let most = |index: u32| {
        let counting = specs.iter().filter(|spec| index < spec.count);
        counting.fold(Resources::ZERO, |most, spec| most.max(spec.charge_of(index, least)))
    };
    // Between two indices with an override of their own, or where a version's tasks end, all tasks
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
