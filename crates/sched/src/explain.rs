//! Explains why a task is pending (B17): how many machines are infeasible for which first reason,
//! everything that the nearest machine lacks, the nearest change with which it would fit, the tasks
//! it would have to evict, and its queue position.
//!
//! Everything is data ([`Explanation`]); `cellwright_cell::words::explanation` turns it into
//! sentences. The counts add up to the machines of the cell, because every machine is counted once,
//! under the first reason in the precedence order of [`InfeasibleReason`]. One explanation is a
//! walk over the machines; tasks of a class share it. The walk is divided into ranges of fixed
//! length, so its result does not depend on the executor.
//!
//! Rejected: keeping the reasons of the last pass. A pass evaluates as few machines as it can and
//! stops at the first predicate that fails, so it does not know what would have helped.

mod counterfactual;
mod evaluation;
pub mod names;
mod nearest;
pub mod placement_ranking;
pub mod queue_position;
mod tally;
mod victims;

use crate::class::ClassId;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::executor::{self, Executor};
use cellwright_cell::explanation::{
    Counterfactual, Detail, Explanation, FITS, NearestMachine, PortHolder, ReasonCount, TooLarge,
};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::resource::{Dimension, Resources};
use evaluation::PreparedClass;
use names::NameResolver;
use nearest::NearTarget;
use queue_position::QueuePositions;
use std::cmp::Reverse;
use tally::{ReasonGroup, ReasonSubject, Tally};
use victims::HolderIndex;

/// Machine slots per part of a walk.
const MACHINES_PER_PART: usize = 2048;

/// Explains classes of one snapshot. Making it costs a walk over all tasks; each class then costs a
/// walk over all machines.
pub struct Explainer<'a> {
    snapshot: &'a ClusterSnapshot,
    names: &'a dyn NameResolver,
    executor: &'a dyn Executor,
    holders: HolderIndex,
    largest: Resources,
}

/// Why tasks of `class` are pending. For many classes, [`Explainer`] shares the preparation.
#[must_use]
pub fn explain(
    snapshot: &ClusterSnapshot,
    class: ClassId,
    names: &dyn NameResolver,
    executor: &dyn Executor,
) -> Explanation {
    Explainer::new(snapshot, names, executor).class(class)
}

impl<'a> Explainer<'a> {
    #[must_use]
    pub fn new(
        snapshot: &'a ClusterSnapshot,
        names: &'a dyn NameResolver,
        executor: &'a dyn Executor,
    ) -> Explainer<'a> {
        let largest =
            snapshot.machine_ids().fold(Resources::ZERO, |most, m| most.max(snapshot.capacity(m)));
        Explainer { snapshot, names, executor, holders: HolderIndex::new(snapshot), largest }
    }

    #[must_use]
    pub fn class(&self, class: ClassId) -> Explanation {
        let prepared = PreparedClass::new(self.snapshot, &self.holders, self.snapshot.class(class));
        let tallies = executor::map(self.executor, self.parts(), |part| walk(&prepared, part));
        self.build_explanation(&prepared, tallies)
    }

    /// Explanations of many classes, in their order.
    #[must_use]
    pub fn classes(&self, classes: &[ClassId]) -> Vec<Explanation> {
        let prepared: Vec<PreparedClass<'_>> = classes
            .iter()
            .map(|class| {
                PreparedClass::new(self.snapshot, &self.holders, self.snapshot.class(*class))
            })
            .collect();
        let parts = self.parts();
        let work = |part: usize| walk(&prepared[part / parts], part % parts);
        let tallies = executor::map(self.executor, prepared.len() * parts, work);
        let mut tallies = tallies.into_iter();
        prepared
            .iter()
            .map(|class| self.build_explanation(class, tallies.by_ref().take(parts)))
            .collect()
    }

    /// Why this task is pending, with its queue position; `None` for a task that is not.
    #[must_use]
    pub fn task(&self, task: TaskId, positions: &QueuePositions) -> Option<Explanation> {
        let position = positions.of(self.snapshot, task)?;
        let (job, _) = self.snapshot.identity_of(task)?;
        let mut explanation = self.class(self.snapshot.class_of(task)?);
        explanation.queue_position = Some(position);
        explanation.gang = self.gang_size(job);
        Some(explanation)
    }

    /// How many tasks of a gang are to be placed together.
    fn gang_size(&self, job: JobId) -> Option<u32> {
        self.snapshot.job_spec(job).filter(|spec| spec.gang)?;
        let of_job = |task: &&TaskId| {
            self.snapshot.identity_of(**task).is_some_and(|(its_job, _)| its_job == job)
        };
        Some(self.snapshot.pending().iter().filter(of_job).count() as u32)
    }

    /// At least one, so that an empty cell has a tally too.
    fn parts(&self) -> usize {
        self.snapshot.machine_slots().div_ceil(MACHINES_PER_PART).max(1)
    }

    fn build_explanation(
        &self,
        prepared: &PreparedClass<'_>,
        tallies: impl IntoIterator<Item = Tally>,
    ) -> Explanation {
        let mut tally = Tally::default();
        tallies.into_iter().for_each(|later| tally.merge(later));
        // Machines that are not the task's own say nothing, however many they are.
        let is_other = |g: &ReasonGroup| g.subject == ReasonSubject::OtherMachine;
        tally.groups.sort_unstable_by_key(|g| (is_other(g), Reverse(g.machines), g.subject));
        let request = &prepared.class.request;
        let fits = tally.fitting() > 0;
        let mut changes = if fits {
            vec![]
        } else {
            counterfactual::single_changes(prepared, &tally, self.names)
        };
        if let Some(pair) = &tally.pair
            && !fits
            && !changes.iter().any(Counterfactual::is_ours)
        {
            changes.insert(0, counterfactual::pair_change(prepared, pair, self.names));
        }
        let mut changes = changes.into_iter();
        Explanation {
            priority: request.priority,
            limits: request.limits,
            reservation: request.reservation,
            machines_total: self.snapshot.machine_count() as u32,
            reasons: tally.groups.iter().map(|group| self.reason_count(prepared, group)).collect(),
            counterfactual: changes.next(),
            alternatives: changes.collect(),
            when_empty: tally.when_empty,
            kept_apart: tally.kept_apart,
            once_open: tally.once_open,
            too_large: self.too_large(request.limits),
            nearest: tally
                .nearest
                .filter(|_| !fits)
                .map(|nearest| self.nearest_machine(prepared, nearest)),
            victims: if fits { None } else { tally.candidates.cheapest(prepared, self.names) },
            gang: None,
            queue_position: None,
        }
    }

    fn nearest_machine(&self, prepared: &PreparedClass<'_>, at: NearTarget) -> NearestMachine {
        let obstacles = nearest::obstacles(prepared, at);
        NearestMachine {
            machine: names::machine_ref(self.names, at.machine),
            alloc: at.alloc.map(|alloc| names::task_ref(self.names, alloc)),
            obstacles: obstacles
                .iter()
                .map(|group| on_one_machine(self.reason_count(prepared, group)))
                .collect(),
        }
    }

    fn too_large(&self, limits: Resources) -> Vec<TooLarge> {
        let beyond = |dimension: Dimension| {
            let (requested, largest) = (limits.get(dimension), self.largest.get(dimension));
            (requested > largest).then_some(TooLarge { dimension, requested, largest })
        };
        Dimension::ALL.into_iter().filter_map(beyond).collect()
    }

    fn reason_count(&self, prepared: &PreparedClass<'_>, group: &ReasonGroup) -> ReasonCount {
        let request = &prepared.class.request;
        let available = group.largest.map_or(0, |most| most.amount);
        let machine = group.largest.map(|most| names::machine_ref(self.names, most.machine));
        let (code, detail) = match group.subject {
            ReasonSubject::Fits => (FITS, Detail::Nothing),
            ReasonSubject::OtherMachine => (InfeasibleReason::OtherMachine.code(), Detail::Nothing),
            ReasonSubject::Down => (InfeasibleReason::MachineDown.code(), Detail::Nothing),
            ReasonSubject::Draining => (InfeasibleReason::MachineDraining.code(), Detail::Nothing),
            ReasonSubject::Crashed => (InfeasibleReason::CrashedHere.code(), Detail::Nothing),
            ReasonSubject::UnderPressure => {
                (InfeasibleReason::ResourcePressure.code(), Detail::Nothing)
            }
            ReasonSubject::Full => {
                let max_tasks = self.snapshot.max_tasks_per_machine.unwrap_or(u64::MAX);
                ("machine-full", Detail::Tasks { most: max_tasks })
            }
            ReasonSubject::NoAlloc => (InfeasibleReason::NoAllocHere.code(), Detail::Nothing),
            ReasonSubject::Constraint(position) => {
                let constraint = constraint_text(prepared, position);
                ("constraint", Detail::Constraint { position, constraint })
            }
            ReasonSubject::Volume(i) => {
                let host_volume = prepared.host_volumes().get(i as usize).cloned();
                ("volume", host_volume.map_or(Detail::Nothing, Detail::Volume))
            }
            ReasonSubject::Spread(i) => {
                let limit = request.spread[i as usize];
                ("spread", Detail::Spread { domain: limit.domain, limit: limit.limit })
            }
            ReasonSubject::StaticPort(port) => {
                let holders = group.holders.iter().map(|(task, machine)| PortHolder {
                    task: names::task_ref(self.names, *task),
                    machine: names::machine_ref(self.names, *machine),
                });
                ("static-port", Detail::StaticPort { port, holders: holders.collect() })
            }
            ReasonSubject::DynamicPorts => {
                let requested = u64::from(request.ports);
                ("dynamic-ports", Detail::DynamicPorts { requested, available, machine })
            }
            ReasonSubject::Device(i) => {
                let device = &request.devices[i as usize];
                let (kind, requested) = (device.kind.clone(), u32::from(device.count));
                let (models, milli) = (device.models.clone(), device.milli);
                ("device", Detail::Device { kind, models, requested, milli, available, machine })
            }
            ReasonSubject::Named(i) => {
                let (id, amount) = request.named[i as usize];
                let detail = self.snapshot.resource_name(id).map_or(Detail::Nothing, |name| {
                    Detail::Named { name: name.clone(), requested: amount, available, machine }
                });
                ("named-resource", detail)
            }
            ReasonSubject::Resource(d) => {
                let dimension = Dimension::ALL[usize::from(d)];
                let requested = request.limits.get(dimension);
                ("resource", Detail::Resource { dimension, requested, available, machine })
            }
        };
        ReasonCount { code, machines: group.machines, detail }
    }
}

/// A reason of the machine that was named before it.
fn on_one_machine(mut reason: ReasonCount) -> ReasonCount {
    match &mut reason.detail {
        Detail::DynamicPorts { machine, .. }
        | Detail::Device { machine, .. }
        | Detail::Named { machine, .. }
        | Detail::Resource { machine, .. } => *machine = None,
        Detail::Nothing
        | Detail::Constraint { .. }
        | Detail::Volume(_)
        | Detail::Spread { .. }
        | Detail::StaticPort { .. }
        | Detail::Tasks { .. } => {}
    }
    reason
}

fn walk(prepared: &PreparedClass<'_>, part: usize) -> Tally {
    let end = prepared.snapshot.machine_slots().min((part + 1) * MACHINES_PER_PART);
    Tally::walk(prepared, part * MACHINES_PER_PART..end)
}

/// The constraint at `position` of the class, as users write it.
fn constraint_text(prepared: &PreparedClass<'_>, position: u32) -> String {
    let list = prepared.class.request.constraints;
    let constraints = list.map_or(&[][..], |list| prepared.snapshot.constraints.constraints(list));
    constraints.get(position as usize).map_or_else(String::new, ToString::to_string)
}
