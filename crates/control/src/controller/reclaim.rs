//! Reclamation: from measured usage to reservations (B40). A link shard keeps a running estimate
//! for each task in its reports, soft state that ends with it, and decides which changes to log: a
//! rise at once, because other tasks may use that room already; decays gathered, because they only
//! make room.
//!
//! The estimate is compared with the reservation in the state, not with what was requested before:
//! a change that was lost in flight is simply requested again with the next sample.
//!
//! A shard that sees a task for the first time, after an election or a redirect, knows nothing of
//! its past. It takes the present reservation for what the past justified, as if usage had just
//! peaked there: starting from the limits would take back all reclaimed room of a replica's share
//! at every election, starting from the first sample would forget past peaks.

use cellwright_cell::command::ReservationChange;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reclaim::{Estimate, ReclaimConfig, Sample};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_messages::TaskUsage;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Most changes returned at once, beyond the rises of the report itself.
const MAX_CHANGES: usize = 1000;
/// Estimates checked per report, to forget those of tasks that are gone.
const TIDY_PER_REPORT: usize = 32;
/// Estimates use elapsed time, counted from this epoch: far enough from zero for any past.
const EPOCH: u64 = 1 << 50;

/// How usage becomes reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclamationConfig {
    pub estimate: ReclaimConfig,
    /// How long decays gather.
    pub gather_for: Span,
}

impl Default for ReclamationConfig {
    fn default() -> Self {
        ReclamationConfig { estimate: ReclaimConfig::MEDIUM, gather_for: Span::seconds(30) }
    }
}

#[derive(Debug)]
struct TrackedTask {
    attempt: u32,
    limits: Resources,
    estimate: Estimate,
}

#[derive(Debug, Default)]
pub struct ReclaimFeed {
    settings: ReclamationConfig,
    tasks: BTreeMap<TaskId, TrackedTask>,
    /// Decays that have not been logged yet.
    decays: BTreeMap<TaskId, ReservationChange>,
    last_flushed: Span,
    tidy_cursor: Option<TaskId>,
}

impl ReclaimFeed {
    #[must_use]
    pub fn new(settings: ReclamationConfig) -> ReclaimFeed {
        ReclaimFeed { settings, ..ReclaimFeed::default() }
    }

    /// Adds the usage that the agent of `machine` measured, `at` in elapsed time; returns what to
    /// log.
    pub fn on_usage(
        &mut self,
        state: &State,
        machine: MachineId,
        usage: &[TaskUsage],
        at: Span,
    ) -> Vec<ReservationChange> {
        let mut changes = Vec::new();
        for usage in usage {
            match self.sample(state, machine, usage, at) {
                Some((change, true)) => {
                    self.decays.remove(&change.task);
                    changes.push(change);
                }
                Some((change, false)) => drop(self.decays.insert(change.task, change)),
                None => {}
            }
        }
        self.forget_ended(state);
        if at.0.saturating_sub(self.last_flushed.0) >= self.settings.gather_for.0 {
            while changes.len() < MAX_CHANGES {
                let Some((_, change)) = self.decays.pop_first() else {
                    self.last_flushed = at;
                    break;
                };
                changes.push(change);
            }
        }
        changes
    }

    /// The reservation that the task should have, if it differs from the present one, and whether
    /// it rises.
    fn sample(
        &mut self,
        state: &State,
        machine: MachineId,
        usage: &TaskUsage,
        at: Span,
    ) -> Option<(ReservationChange, bool)> {
        let row = state.tasks().get(usage.task)?;
        let present = row.attempt == usage.attempt
            && row.machine() == Some(machine)
            && row.state == TaskState::Running;
        let spec = state.spec_of(row).filter(|spec| present && is_reclaimable(spec))?;
        let limits = row.counted_limits(spec.limits_of(row.index));
        let known = self.tasks.get(&usage.task);
        if known.is_none_or(|known| known.attempt != row.attempt || known.limits != limits) {
            let running = state.now().since(row.changed_at);
            let estimate = first_estimate(&self.settings.estimate, row, limits, running, at);
            self.tasks.insert(usage.task, TrackedTask { attempt: row.attempt, limits, estimate });
        }
        let watched = self.tasks.get_mut(&usage.task)?;
        watched
            .estimate
            .sample(&self.settings.estimate, Sample { at: elapsed_as_time(at), usage: usage.used });
        let kept = spec.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
        let kept = Resources { disk: kept, ..Resources::ZERO };
        let reservation = watched.estimate.logged().max(kept);
        if reservation == row.reservation {
            self.decays.remove(&usage.task);
            return None;
        }
        let rises = Dimension::ALL.into_iter().any(|d| reservation.get(d) > row.reservation.get(d));
        let change = ReservationChange { task: usage.task, attempt: row.attempt, reservation };
        Some((change, rises))
    }

    /// Forgets a few tasks that no longer run; all have their turn in time.
    fn forget_ended(&mut self, state: &State) {
        let from = self.tidy_cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.tasks.range((from, Bound::Unbounded)).take(TIDY_PER_REPORT);
        let runs = |id: TaskId, watched: &TrackedTask| {
            let row = state.tasks().get(id).filter(|row| row.state == TaskState::Running);
            row.is_some_and(|row| row.attempt == watched.attempt)
        };
        let checked: Vec<(TaskId, bool)> =
            next.map(|(id, watched)| (*id, runs(*id, watched))).collect();
        self.tidy_cursor =
            if checked.len() < TIDY_PER_REPORT { None } else { checked.last().map(|(id, _)| *id) };
        for (id, _) in checked.into_iter().filter(|(_, runs)| !runs) {
            self.tasks.remove(&id);
            self.decays.remove(&id);
        }
    }
}

fn is_reclaimable(spec: &JobSpec) -> bool {
    spec.reclaimable && spec.kind.runs_programs()
}

fn elapsed_as_time(at: Span) -> Time {
    Time(EPOCH.saturating_add(at.0))
}

/// The first estimate of a task that has run for a while with its present reservation.
fn first_estimate(
    settings: &ReclaimConfig,
    task: &Task,
    limits: Resources,
    running: Span,
    at: Span,
) -> Estimate {
    let now = elapsed_as_time(at);
    if running < settings.warm_up {
        return Estimate::new(limits, Time(now.0.saturating_sub(running.0)));
    }
    // So long ago that the usage has decayed all the way from the limits.
    let mut estimate = Estimate::new(limits, Time::ZERO);
    let mut peak = Resources::ZERO;
    for dimension in Dimension::ALL {
        let margin = u128::from(settings.dimensions[dimension as usize].margin_permille);
        let reserved = u128::from(task.reservation.get(dimension));
        let without_margin = reserved * 1000 / (1000 + margin);
        peak.set(dimension, u64::try_from(without_margin).unwrap_or(u64::MAX));
    }
    estimate.sample(settings, Sample { at: now, usage: peak });
    estimate
}

#[cfg(test)]
mod tests;
