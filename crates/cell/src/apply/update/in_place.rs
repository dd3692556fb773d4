//! In-place updates: a task takes the spec of its job's version where it is.
//!
//! Whether it still fits is found by trying: the row takes the new version, the sums follow, and if
//! the machine or alloc then holds more than it has, and more than before, the row is restored.
//! Computing the difference beforehand was rejected: it would be a second definition of what a task
//! is charged.

use super::super::{Context, task_lifecycle};
use crate::event::TaskChange;
use crate::fit;
use crate::id::{JobId, MachineId, TaskId};
use crate::machine::Machine;
use crate::named::ResourceName;
use crate::reason::Reason;
use crate::resource::{Dimension, Resources};
use crate::spec::{Domain, JobKind, JobSpec};
use crate::spec_change::{self, Effect};
use crate::state::State;
use crate::task::{Grant, Task};
use std::sync::Arc;

/// What is held in the task's place: on its machine, or inside its alloc.
#[derive(Default)]
struct HeldSums {
    prod_limits: Resources,
    reserved: Resources,
    named: Vec<(ResourceName, u64)>,
}

impl HeldSums {
    fn at(state: &State, machine: MachineId, alloc: Option<TaskId>) -> HeldSums {
        match alloc {
            Some(alloc) => {
                state.alloc_load(alloc).map_or_else(HeldSums::default, |load| HeldSums {
                    prod_limits: load.prod_limits,
                    reserved: load.reserved,
                    named: Vec::new(),
                })
            }
            None => state.machine_load(machine).map_or_else(HeldSums::default, |load| HeldSums {
                prod_limits: load.prod_limits,
                reserved: load.reserved,
                named: load.named.clone(),
            }),
        }
    }

    fn named(&self, name: &ResourceName) -> u64 {
        self.named.iter().find(|(n, _)| n == name).map_or(0, |(_, used)| *used)
    }
}

impl Context<'_> {
    /// Every task of the job that can take its version without being disturbed takes it.
    pub(in crate::apply) fn update_all_in_place(&mut self, id: JobId) {
        let Some(job) = self.state.jobs.get(id).cloned() else { return };
        for task_id in job.tasks.iter() {
            let Some(task) = self.state.tasks.get(*task_id) else { continue };
            if task.version == job.version {
                continue;
            }
            let old = job.spec_of(task.version);
            let in_place = !task.state.holds_resources()
                || spec_change::task_change(old, job.spec(), task.index).1 == Effect::InPlace;
            if in_place && self.try_update_in_place(*task_id) {
                self.task_event(*task_id, TaskChange::Updated, Reason::UpdateInPlace);
            }
        }
    }

    /// Updates a task to its job's version; false, with nothing changed, when it holds a place in
    /// which the new spec does not fit. The row is not stamped: its state stays what it was.
    pub(super) fn try_update_in_place(&mut self, id: TaskId) -> bool {
        let Some(task) = self.state.tasks.get(id).cloned() else { return false };
        let Some(job) = self.state.jobs.get(task.job) else { return false };
        let (version, new) = (job.version, job.spec().clone());
        let old = job.spec_of(task.version).clone();
        let in_force = limits_in_force_after(&task, &old, &new);
        let reservation = reservation_for(&task, in_force, &old, &new);
        let is_resized =
            old.limits_of(task.index) != new.limits_of(task.index) && task.state.holds_resources();
        let new_program = spec_change::becomes_new_program(job, &task);
        let resets_failures = new_program && !task.state.is_dead();
        let leased = old.at_most_one.is_some() || new.at_most_one.is_some();
        let apply_version = |t: &mut Task| {
            t.version = version;
            t.reservation = reservation;
            t.limits_in_force = in_force.map(Box::new);
            t.resizes = t.resizes.wrapping_add(u32::from(is_resized));
            // A reservation elsewhere is for the spec that it has run so far.
            t.holds.release_reserved();
            if new_program {
                t.crashed_on = Vec::new();
            }
            if resets_failures {
                task_lifecycle::reset_failures(t, leased);
            }
        };
        let (true, Some(machine)) = (task.state.holds_resources(), task.machine()) else {
            return self.state.edit_task(id, apply_version);
        };
        let before = HeldSums::at(self.state, machine, task.alloc());
        self.state.edit_task(id, apply_version);
        if self.still_fits(id, &task, &old, &new, &before) {
            self.touched.push(machine);
            if let Some(hold) = task.holds.reserved() {
                self.touched.push(hold.machine);
                let change = TaskChange::HoldReleased { machine: hold.machine };
                self.task_event(id, change, Reason::NoLongerRuns);
            }
            if !new.limits_of(task.index).within(old.limits_of(task.index)) {
                self.wait_for_leaving(id, &task, machine);
            }
            return true;
        }
        self.state.edit_task(id, |t| *t = task);
        false
    }

    /// A task that grows where it is may get the room of tasks that are still leaving, as if it had
    /// been placed there anew: its agent raises its limits when they are gone. Tasks that are
    /// placed in an alloc that grew wait for them as well.
    fn wait_for_leaving(&mut self, id: TaskId, task: &Task, machine: MachineId) {
        let leaving = self.leaving(machine, task.alloc(), &[]);
        if leaving.is_empty() {
            return;
        }
        self.state.edit_task(id, |t| {
            let Some(hold) = t.holds.primary_mut() else { return };
            let grant = hold.grant.get_or_insert_with(|| Arc::new(Grant::default()));
            let grant = Arc::make_mut(grant);
            let known = std::mem::take(&mut grant.waits_for);
            grant.waits_for = leaving;
            let missing = known.into_iter().filter(|v| !grant.waits_for.contains(v));
            let missing: Vec<_> = missing.collect();
            grant.waits_for.extend(missing);
        });
    }

    fn still_fits(
        &self,
        id: TaskId,
        task: &Task,
        old: &JobSpec,
        new: &JobSpec,
        before: &HeldSums,
    ) -> bool {
        let Some(machine) = task.machine() else { return false };
        let Some(row) = self.state.machines.get(machine) else { return false };
        let capacity = match task.alloc() {
            None => row.spec.capacity,
            Some(alloc) => limits_now(self.state, alloc),
        };
        let after = HeldSums::at(self.state, machine, task.alloc());
        no_worse(before.prod_limits, after.prod_limits, capacity)
            && no_worse(before.reserved, after.reserved, capacity)
            && named_no_worse(self.state, before, &after, machine)
            && (old.constraints == new.constraints || constraints_hold(new, row))
            && (old.task.isolation.volumes == new.task.isolation.volumes
                || fit::missing_host_volume(new, row).is_none())
            && (old.alloc_pairing == new.alloc_pairing
                || task.alloc().is_none_or(|alloc| new.may_enter(self.state, task.index, alloc)))
            && (old.spread == new.spread || self.spread_holds(task, new, machine, row))
            && self.inner_fits(id, task, old, new)
    }

    /// Counted with the task itself, which is there already.
    fn spread_holds(&self, task: &Task, new: &JobSpec, machine: MachineId, row: &Machine) -> bool {
        let Some(load) = self.state.job_load(task.job) else { return false };
        new.spread.iter().all(|spread| {
            let known = match spread.domain {
                Domain::Machine | Domain::Cell => true,
                Domain::Rack => row.spec.rack.is_some(),
                Domain::Power => row.spec.power.is_some(),
            };
            !known || load.in_domain(spread.domain, machine, row) <= spread.limit
        })
    }

    /// An alloc that shrinks must still hold what is inside it.
    fn inner_fits(&self, id: TaskId, task: &Task, old: &JobSpec, new: &JobSpec) -> bool {
        let limits = new.limits_of(task.index);
        if new.kind != JobKind::AllocSet || old.limits_of(task.index).within(limits) {
            return true;
        }
        let Some(inner) = self.state.alloc_load(id) else { return true };
        inner.prod_limits.within(limits) && inner.reserved.within(limits)
    }
}

/// The most that the machine may allow the task until its agent has reported the new limits in
/// force: whatever it was allowed before.
fn limits_in_force_after(task: &Task, old: &JobSpec, new: &JobSpec) -> Option<Resources> {
    let before = old.limits_of(task.index);
    if !task.state.holds_resources() {
        None
    } else if before == new.limits_of(task.index) {
        task.limits_in_force.as_deref().copied()
    } else {
        Some(task.counted_limits(before))
    }
}

/// An estimate of usage is valid up to the limits it was made under: where they grow, nothing is
/// known of what the task will use.
fn reservation_for(
    task: &Task,
    in_force: Option<Resources>,
    old: &JobSpec,
    new: &JobSpec,
) -> Resources {
    let (before, limits) = (old.limits_of(task.index), new.limits_of(task.index));
    let counted = in_force.map_or(limits, |in_force| limits.max(in_force));
    let is_estimated = new.reclaimable && new.kind.runs_programs();
    if !is_estimated || !task.state.holds_resources() {
        return counted;
    }
    let disk = new.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
    let mut reservation = task.reservation.max(Resources { disk, ..Resources::ZERO });
    for dimension in Dimension::ALL {
        let wanted = limits.get(dimension);
        if wanted > before.get(dimension) {
            reservation.set(dimension, wanted.max(reservation.get(dimension)));
        }
    }
    reservation.min(counted)
}

fn limits_now(state: &State, alloc: TaskId) -> Resources {
    let row = state.tasks().get(alloc);
    let limits = row.and_then(|task| Some(state.spec_of(task)?.limits_of(task.index)));
    limits.unwrap_or_default()
}

fn no_worse(before: Resources, after: Resources, capacity: Resources) -> bool {
    Dimension::ALL
        .into_iter()
        .all(|dimension| after.get(dimension) <= capacity.get(dimension).max(before.get(dimension)))
}

fn named_no_worse(state: &State, before: &HeldSums, after: &HeldSums, machine: MachineId) -> bool {
    let capacity = |name| state.named_capacity(machine, name);
    after.named.iter().all(|(name, used)| *used <= capacity(name).max(before.named(name)))
}

fn constraints_hold(spec: &JobSpec, row: &Machine) -> bool {
    spec.constraints.iter().filter(|c| c.is_hard()).all(|c| c.holds_on(&row.spec))
}
