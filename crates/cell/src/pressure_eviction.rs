//! Pressure eviction (B39): when a machine stays short of CPU or disk rate although its agent
//! throttles all the tasks it may, the agent requests an eviction, and a task has to leave the
//! machine.
//!
//! Only non-production leaves, the lowest priority first, of equals the one that is expected to use
//! most of what is short. A task without a limit of that may use any of it, and its use is unknown,
//! so it leaves after those of its priority whose use is known. One task leaves for each request,
//! and an agent requests again only after it has watched for a while that the last departure did
//! not suffice; while a victim is stopping, another request evicts no further task. So tasks whose
//! leaving is not needed stay. A victim leaves whatever its disruption budget says, because
//! production waits for it; the requests bound the rate.
//!
//! Such a machine accepts no new non-production tasks until the shortage has been over for a while:
//! see [`crate::machine::Machine::accepts_only_prod`]. Rejected: a note on the evicted task that it
//! avoids the machine. The next task in the queue would take its place, and have to leave in turn.

use crate::id::{MachineId, TaskId};
use crate::machine::{Machine, MachineStatus, ResourcePressure, ResourcePressureReport};
use crate::resource::Dimension;
use crate::spec::JobKind;
use crate::state::State;
use crate::task::{StopCause, Task, TaskState};
use crate::time::Time;
use std::cmp::Reverse;

/// The task that is to leave the machine now, and the dimension that is short; `None` while no
/// request of its agent is open, or when no candidate can be using what is short.
#[must_use]
pub fn next_victim(state: &State, machine: MachineId) -> Option<(TaskId, Dimension)> {
    let row = state.machines().get(machine).filter(|row| row.status == MachineStatus::Up)?;
    let open = row.resource_pressure.iter().filter(|shortage| shortage.is_open());
    open.map(|shortage| shortage.dimension)
        .find_map(|dimension| Some((cheapest_victim(state, machine, dimension)?, dimension)))
}

/// The victim whose eviction costs least and helps most. Tasks inside an alloc go with it, unless
/// the alloc is prod and has to stay.
fn cheapest_victim(state: &State, machine: MachineId, dimension: Dimension) -> Option<TaskId> {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    let weighed = tasks.iter().filter_map(|id| {
        let task = state.tasks().get(*id)?;
        let spec = state.spec_of(task)?;
        let stays = |alloc: TaskId| {
            let row = state.tasks().get(alloc).and_then(|row| state.spec_of(row));
            row.is_some_and(|set| set.priority.is_prod())
        };
        let may = task.state.holds_resources()
            && !spec.priority.is_prod()
            && task.alloc().is_none_or(stays);
        let uses = match spec.kind {
            JobKind::Tasks | JobKind::Daemon => expected_usage(state, task, dimension),
            JobKind::AllocSet => expected_usage_inside(state, *id, dimension),
        };
        uses.filter(|_| may).map(|uses| (spec.priority, Reverse(uses), *id))
    });
    weighed.min().map(|(_, _, id)| id)
}

/// Expected use of a task: 0 if unknown, since it states no limit; `None` if it is known to use
/// nothing.
fn expected_usage(state: &State, task: &Task, dimension: Dimension) -> Option<u64> {
    let is_unstated = state.spec_of(task)?.limits_of(task.index).get(dimension) == 0;
    let uses = task.reservation.get(dimension);
    (uses > 0 || is_unstated).then_some(uses)
}

/// An alloc itself uses nothing.
fn expected_usage_inside(state: &State, alloc: TaskId, dimension: Dimension) -> Option<u64> {
    let inner = state.alloc_load(alloc).map_or(&[][..], |load| &load.tasks);
    let uses = |id: &TaskId| {
        let task = state.tasks().get(*id).filter(|task| task.state.holds_resources())?;
        expected_usage(state, task, dimension)
    };
    inner.iter().filter_map(uses).reduce(u64::saturating_add)
}

/// Whether an evicted task is still stopping because of a shortage.
#[must_use]
pub fn is_eviction_in_progress(state: &State, machine: MachineId) -> bool {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    let stopping_for_pressure = TaskState::Stopping(StopCause::ResourcePressure);
    tasks
        .iter()
        .any(|id| state.tasks().get(*id).is_some_and(|task| task.state == stopping_for_pressure))
}

/// Merges an agent's report into the shortages on the row. A shortage that was reported before and
/// still is keeps its beginning and the number of requests answered.
#[must_use]
pub fn merge_reports(
    state: &State,
    machine: MachineId,
    reported: &[ResourcePressureReport],
) -> Vec<ResourcePressure> {
    let Some(row) = state.machines().get(machine) else { return Vec::new() };
    let (now, under_way) = (state.now(), is_eviction_in_progress(state, machine));
    let merge = |report: &ResourcePressureReport| {
        let ResourcePressureReport { dimension, lasted, requested } = *report;
        let known = row.resource_pressure.iter().find(|known| known.dimension == dimension);
        // An agent that counts from the start again, or requests again after it was well, has a new
        // one.
        let known = known.filter(|known| {
            requested == 0 || (known.requested > 0 && requested >= known.requested)
        });
        let since = known.map_or(Time(now.0.saturating_sub(lasted.0)), |known| known.since);
        let answered = known.map_or(0, |known| known.answered);
        let answered = if under_way { requested } else { answered };
        ResourcePressure { dimension, since, requested, answered }
    };
    reported.iter().map(merge).collect()
}

/// Whether an agent's report says something the row does not have yet.
#[must_use]
pub fn has_changes(row: &Machine, reported: &[ResourcePressureReport]) -> bool {
    let known =
        row.resource_pressure.iter().map(|shortage| (shortage.dimension, shortage.requested));
    !known.eq(reported.iter().map(|report| (report.dimension, report.requested)))
}
