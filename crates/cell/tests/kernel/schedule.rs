//! A scheduler as simple as can be: it takes any feasible place, in the given order, and uses the
//! kernel's own definition of "fits". It finds plans worth committing, not good ones.

use crate::draw::Draw;
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::load::MachineLoad;
use cellwright_cell::plan::{Assignment, Group, Plan, Victim};
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;

/// A plan for some of the pending tasks.
pub fn plan(state: &State, draw: &mut Draw) -> Plan {
    let mut waiting: Vec<TaskId> = state
        .tasks()
        .iter()
        .filter(|(_, task)| task.state == TaskState::Pending)
        .map(|(id, _)| id)
        .collect();
    draw.shuffle(&mut waiting);
    let most = 1 + draw.below(6) as usize;
    let groups = waiting.into_iter().take(most).filter_map(|task| group(state, task, draw));
    Plan { made_at: state.applied(), groups: groups.collect() }
}

fn group(state: &State, task: TaskId, draw: &mut Draw) -> Option<Group> {
    let row = state.tasks().get(task)?;
    if state.jobs().get(row.job)?.spec().gang {
        return gang(state, row.job, draw);
    }
    let places = places(state, task, draw);
    let fitting = places.iter().find(|(machine, alloc)| {
        Candidate::of(state, task)
            .is_some_and(|c| fit::infeasible_reason(state, &c, *machine, *alloc).is_none())
    });
    match fitting {
        Some((machine, alloc)) => {
            let assignment = assign(state, task, *machine, *alloc, &[])?;
            Some(Group { victims: Vec::new(), assignments: vec![assignment] })
        }
        None => places.iter().find_map(|(machine, alloc)| preempt(state, task, *machine, *alloc)),
    }
}

/// Machines, or allocs of the job's set, in random order.
fn places(state: &State, task: TaskId, draw: &mut Draw) -> Vec<(MachineId, Option<TaskId>)> {
    let spec = Candidate::of(state, task).map(|candidate| candidate.spec);
    let mut places: Vec<_> = match spec.and_then(|spec| spec.alloc_set.as_ref()) {
        None => state.machines().iter().map(|(id, _)| (id, None)).collect(),
        Some(set) => {
            let set = state.job_named(set);
            let rows = state.tasks().iter().filter(|(_, row)| Some(row.job) == set);
            rows.filter_map(|(id, row)| Some((row.machine()?, Some(id)))).collect()
        }
    };
    draw.shuffle(&mut places);
    places
}

/// The whole gang, one task to each machine as far as they go.
fn gang(state: &State, job: JobId, draw: &mut Draw) -> Option<Group> {
    let row = state.jobs().get(job)?;
    let waits = |task: &&TaskId| {
        state.tasks().get(**task).is_some_and(|row| row.state == TaskState::Pending)
    };
    let mut assignments = Vec::new();
    for (turn, task) in row.tasks.iter().filter(waits).enumerate() {
        let candidate = Candidate::of(state, *task)?;
        let mut places = places(state, *task, draw);
        places.retain(|(machine, alloc)| {
            fit::infeasible_reason(state, &candidate, *machine, *alloc).is_none()
        });
        places.sort_by_key(|(machine, _)| {
            let taken = |a: &&Assignment| a.machine == *machine;
            assignments.iter().filter(taken).count()
        });
        let (machine, alloc) = places.first().or_else(|| places.get(turn))?;
        assignments.push(assign(state, *task, *machine, *alloc, &[])?);
    }
    Some(Group { victims: Vec::new(), assignments })
}

/// The assignment of a task, with the lowest free ports and the fullest fitting devices once
/// `victims` are gone.
pub fn assign(
    state: &State,
    task: TaskId,
    machine: MachineId,
    alloc: Option<TaskId>,
    victims: &[TaskId],
) -> Option<Assignment> {
    let candidate = Candidate::of(state, task)?;
    let row = state.machines().get(machine)?;
    let load = load_without(state, machine, victims)?;
    let ports = fit::choose_ports(candidate.spec, row, &load);
    let requests = &candidate.spec.task.devices;
    let devices = fit::choose_devices(&row.spec.devices, &load, requests).unwrap_or_default();
    let attempt = candidate.task.attempt;
    Some(Assignment { task, attempt, machine, alloc, ports, devices })
}

/// Places where room for a running task could be reserved.
pub fn targets(state: &State, task: TaskId) -> Vec<(MachineId, Option<TaskId>)> {
    let row = state.tasks().get(task);
    let Some((row, spec)) = row.and_then(|row| Some((row, state.spec_of(row)?))) else {
        return Vec::new();
    };
    let all: Vec<(MachineId, Option<TaskId>)> = match &spec.alloc_set {
        None => state.machines().iter().map(|(id, _)| (id, None)).collect(),
        Some(_) => {
            let rows = state.tasks().iter();
            rows.filter_map(|(id, row)| Some((row.machine()?, Some(id)))).collect()
        }
    };
    let candidate = Candidate { task: row, spec };
    let fits = |(machine, alloc): &(MachineId, Option<TaskId>)| {
        row.holds.on(*machine).is_none()
            && fit::infeasible_reason(state, &candidate, *machine, *alloc).is_none()
    };
    all.into_iter().filter(fits).collect()
}

/// The load of the machine without `victims`: ports and devices alone, which is all that choosing
/// uses.
fn load_without(state: &State, machine: MachineId, victims: &[TaskId]) -> Option<MachineLoad> {
    let mut load = state.machine_load(machine)?.clone();
    load.ports.retain(|(_, holder)| !victims.contains(holder));
    for victim in victims.iter().filter_map(|victim| state.tasks().get(*victim)) {
        let hold = victim.holds.on(machine).map(|(_, hold)| hold);
        for grant in hold.map_or(&[][..], |hold| hold.devices()) {
            if let Some(used) = load.devices.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    Some(load)
}

/// Takes the weakest holders out until there is room, then reprieves those not needed.
fn preempt(
    state: &State,
    task: TaskId,
    machine: MachineId,
    alloc: Option<TaskId>,
) -> Option<Group> {
    let candidate = Candidate::of(state, task)?;
    let row = state.machines().get(machine)?;
    let load = state.machine_load(machine)?;
    if alloc.is_some() || !row.is_schedulable() {
        return None;
    }
    let prod = candidate.spec.priority.is_prod();
    let fits = |out: &[Holder]| {
        let gone = |f: fn(&Holder) -> Resources| {
            out.iter().fold(Resources::ZERO, |sum, holder| sum.plus(f(holder)))
        };
        let reserved = load.reserved.minus(gone(|h| h.reservation));
        let limits = load.prod_limits.minus(gone(|h| h.prod_limits));
        let capacity = row.spec.capacity;
        let by_limits = !prod || candidate.limits().plus(limits).within(capacity);
        by_limits && candidate.task.reservation.plus(reserved).within(capacity)
    };
    let mut out = Vec::new();
    for holder in weaker_holders(state, &candidate, machine) {
        if fits(&out) {
            break;
        }
        out.push(holder);
    }
    for at in (0..out.len()).rev() {
        let mut fewer = out.clone();
        fewer.remove(at);
        if fits(&fewer) {
            out = fewer;
        }
    }
    if out.is_empty() || !fits(&out) {
        return None;
    }
    let ids: Vec<TaskId> = out.iter().map(|holder| holder.id).collect();
    let victims = out.iter().map(|h| Victim { task: h.id, attempt: h.attempt }).collect();
    let assignment = assign(state, task, machine, alloc, &ids)?;
    Some(Group { victims, assignments: vec![assignment] })
}

#[derive(Clone)]
struct Holder {
    id: TaskId,
    attempt: u32,
    reservation: Resources,
    prod_limits: Resources,
}

fn weaker_holders(state: &State, by: &Candidate<'_>, machine: MachineId) -> Vec<Holder> {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    let mut holders: Vec<_> = tasks
        .iter()
        .filter_map(|id| {
            let row = state.tasks().get(*id)?;
            let spec = state.spec_of(row)?;
            let gives_way = matches!(row.state, TaskState::Assigned | TaskState::Running)
                && row.alloc().is_none()
                && by.spec.priority.may_preempt(spec.priority);
            let limits = row.counted_limits(spec.limits_of(row.index));
            let prod_limits = if spec.priority.is_prod() { limits } else { Resources::ZERO };
            let (attempt, reservation) = (row.attempt, row.reservation);
            gives_way
                .then_some((spec.priority, Holder { id: *id, attempt, reservation, prod_limits }))
        })
        .collect();
    holders.sort_by_key(|(priority, holder)| (*priority, holder.id));
    holders.into_iter().map(|(_, holder)| holder).collect()
}
