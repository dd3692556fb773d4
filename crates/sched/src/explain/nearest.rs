//! The machine that comes nearest to taking a task, and everything that stands against it there.
//!
//! Reasons are counted by the first thing that fails on each machine, so that they add up; whoever
//! reads them mends that one thing, and finds the next. Of one machine all of them are named: of an
//! open one, with the fewest obstacles, and of those the one that lacks least.

use super::evaluation::{PreparedClass, TargetEvaluation};
use super::tally::{LargestAmount, ReasonGroup, ReasonSubject, relative_change, subject_of};
use crate::feasible::{self, PlacementTarget};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::InfeasibleReason;

/// A target, ordered by how near it comes to taking the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NearTarget {
    /// Its machine drains or is down.
    is_closed: bool,
    failures: usize,
    /// Sum of the relative changes of limits that it lacks room for, in thousandths.
    permille: u32,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
}

impl NearTarget {
    /// The nearer one of the target known so far and this one, if something fails here.
    pub fn nearer(
        known: Option<NearTarget>,
        prepared: &PreparedClass<'_>,
        target: &PlacementTarget<'_>,
        evaluation: &TargetEvaluation,
    ) -> Option<NearTarget> {
        let (is_closed, failures) =
            (evaluation.unavailable_reason().is_some(), evaluation.failures());
        let is_nearer =
            |known: NearTarget| (known.is_closed, known.failures) < (is_closed, failures);
        if failures == 0 || known.is_some_and(is_nearer) {
            return known;
        }
        let (free, limits) = (prepared.room(target), prepared.class.request.limits.to_array());
        let short = (0..limits.len()).filter(|d| evaluation.room_dimensions & (1 << d) != 0);
        let permille = short
            .map(|d| relative_change(limits[d], prepared.max_requestable(&free, d)))
            .fold(0, u32::saturating_add);
        let PlacementTarget { machine, alloc, .. } = *target;
        let here = NearTarget { is_closed, failures, permille, machine, alloc };
        Some(known.map_or(here, |known| known.min(here)))
    }
}

/// Everything that fails at a target, each as the reason of that machine alone.
pub(super) fn obstacles(prepared: &PreparedClass<'_>, at: NearTarget) -> Vec<ReasonGroup> {
    let target = PlacementTarget { machine: at.machine, alloc: at.alloc, without: &[] };
    let all = feasible::all_reasons(prepared.snapshot, prepared.class, &target);
    let group = |reason: InfeasibleReason| {
        let subject = subject_of(prepared, &reason);
        let available = match (&reason, subject) {
            (_, ReasonSubject::Resource(d)) => {
                Some(prepared.max_requestable(&prepared.room(&target), usize::from(d)))
            }
            (
                InfeasibleReason::DynamicPorts { available, .. }
                | InfeasibleReason::Device { available, .. },
                _,
            ) => Some(u64::from(*available)),
            (InfeasibleReason::Named { available, .. }, _) => Some(*available),
            _ => None,
        };
        let holders = match reason {
            InfeasibleReason::StaticPort { holder: Some(holder), .. } => {
                vec![(holder, at.machine)]
            }
            _ => Vec::new(),
        };
        let (machine, alloc) = (at.machine, at.alloc);
        let largest = available.map(|amount| LargestAmount { amount, machine, alloc });
        ReasonGroup { subject, machines: 1, largest, holders }
    };
    all.into_iter().map(group).collect()
}
