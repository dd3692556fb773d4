//! Every derived sum, count and index equals what the rows add up to. Added up here by separate
//! code, from scratch, so that a mistake in the incremental accounting shows.

use super::{Check, violation};
use crate::hold::{Hold, HoldRole};
use crate::id::{JobId, MachineId, TaskId, UserId};
use crate::job::{Job, JobState};
use crate::load::{AllocLoad, JobLoad, MachineLoad, UserLoad};
use crate::priority::{AppClass, Band};
use crate::resource::Resources;
use crate::spec::{JobKind, JobSpec};
use crate::state::State;
use crate::table::{Key, Table};
use crate::task::{Task, TaskOutcome, TaskState};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

const NAME: &str = "sums_equal_parts";

#[derive(Default)]
struct Parts {
    machines: BTreeMap<MachineId, MachineLoad>,
    jobs: BTreeMap<JobId, JobLoad>,
    users: BTreeMap<UserId, UserLoad>,
    allocs: BTreeMap<TaskId, AllocLoad>,
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
}

pub(super) fn check(state: &State) -> Check {
    let mut parts = Parts::default();
    add_machines(state, &mut parts);
    add_users_and_jobs(state, &mut parts);
    for (id, task) in state.tasks.iter() {
        add_task(state, &mut parts, id, task);
    }
    add_full_allocs(state, &mut parts);
    parts.machines.values_mut().for_each(canonical);
    compare_loads(state, &parts)?;
    compare_indexes(state, &parts)
}

fn add_machines(state: &State, parts: &mut Parts) {
    for (id, machine) in state.machines.iter() {
        let mut load = MachineLoad::default();
        let bytes = machine.retained.iter().map(|r| r.bytes);
        load.reserved.disk = bytes.fold(0, u64::saturating_add);
        parts.machines.insert(id, load);
    }
}

fn add_users_and_jobs(state: &State, parts: &mut Parts) {
    for (id, _) in state.users.iter() {
        parts.users.insert(id, UserLoad::default());
    }
    for (user, bytes) in state.components.spec_bytes() {
        parts.users.entry(user).or_default().spec_bytes += bytes;
    }
    for (id, job) in state.jobs.iter() {
        parts.jobs.insert(id, JobLoad::default());
        let load = parts.users.entry(job.user).or_default();
        load.jobs += 1;
        load.tasks += job.tasks.len() as u64;
        load.spec_bytes += job.specs.values().map(bytes_of).sum::<u64>();
        if job.is_dead() {
            continue;
        }
        let load = parts.users.entry(job.user).or_default();
        load.live_jobs += 1;
        for (band, charge) in charges(state, job) {
            let sum = load.charged.entry(band).or_default();
            *sum = sum.plus(charge);
        }
        for on in job.waits_for.iter().filter(|_| job.state == JobState::Deferred) {
            parts.dependents.entry(*on).or_default().insert(id);
        }
    }
}

/// Latency-sensitive production, which is what production is that says nothing else.
fn packed_by_limits(spec: &JobSpec) -> bool {
    spec.priority.0 >= 200 && spec.appclass != Some(AppClass::Batch)
}

fn bytes_of(spec: &impl serde::Serialize) -> u64 {
    postcard::to_stdvec(spec).map_or(0, |bytes| bytes.len() as u64)
}

/// Sum over the tasks of the maximum of the job's version, both ends of its open update and the
/// version the task itself runs, in that version's band.
fn charges(state: &State, job: &Job) -> BTreeMap<Band, Resources> {
    let mut usable = BTreeSet::from([job.version]);
    usable.extend(job.update.iter().flat_map(|update| [update.from, update.to]));
    let mut charges: BTreeMap<Band, Resources> = BTreeMap::new();
    for (index, task) in job.tasks.iter().enumerate() {
        let index = index as u32;
        let row = state.tasks.get(*task);
        let runs = row.map(|row| row.version);
        let counts = |version: &u32, spec: &JobSpec| {
            let paid = spec.alloc_set.is_none() && spec.priority.0 > 0;
            let wanted = match spec.kind {
                JobKind::Daemon => job.machines.contains_key(&index),
                _ => index < spec.count,
            };
            paid && wanted && (usable.contains(version) || runs == Some(*version))
        };
        let mut most: BTreeMap<Band, Resources> = BTreeMap::new();
        for (version, spec) in job.specs.iter().filter(|(version, spec)| counts(version, spec)) {
            let part = most.entry(spec.priority.band()).or_default();
            let requested = Resources::max(spec.limits_of(index), state.bounds.least_charge);
            let in_force = row.filter(|_| runs == Some(*version)).map(limits_in_force);
            *part = Resources::max(*part, requested.max(in_force.unwrap_or_default()));
        }
        for (band, part) in most {
            let sum = charges.entry(band).or_default();
            *sum = sum.plus(part);
        }
    }
    charges.retain(|_, sum| !sum.is_zero());
    charges
}

/// What the task's machine may still allow it beyond its version.
fn limits_in_force(task: &Task) -> Resources {
    task.limits_in_force.as_deref().copied().unwrap_or_default()
}

fn add_task(state: &State, parts: &mut Parts, id: TaskId, task: &Task) {
    let Some(spec) = state.jobs.get(task.job).and_then(|job| job.specs.get(&task.version)) else {
        return;
    };
    let load = parts.jobs.entry(task.job).or_default();
    *count_of(load, task.state) += 1;
    *load.at_version.entry(task.version).or_default() += 1;
    load.to_restart += u32::from(task.restart_due);
    if !spec.spread.is_empty() && task.state.holds_resources() {
        task.holds.iter().for_each(|(_, hold)| add_domains(state, load, hold.machine));
    }
    for (role, hold) in task.holds.iter() {
        add_hold(state, parts, (id, task), (role, hold), spec);
    }
}

fn add_hold(
    state: &State,
    parts: &mut Parts,
    (id, task): (TaskId, &Task),
    (role, hold): (HoldRole, &Hold),
    spec: &JobSpec,
) {
    let holds = task.state.holds_resources();
    let load = parts.machines.entry(hold.machine).or_default();
    match role {
        HoldRole::Primary => load.tasks.push(id),
        HoldRole::Reserved => load.held_for.push(id),
    }
    load.stopping += u32::from(!holds);
    if holds {
        load.ports.extend(hold.ports().iter().map(|port| (*port, id)));
    }
    if holds && !devices_as_requested(state, hold, spec) {
        load.wrong_devices.push(id);
    }
    match hold.alloc {
        Some(alloc) => {
            let inside = parts.allocs.entry(alloc).or_default();
            match role {
                HoldRole::Primary => inside.tasks.push(id),
                HoldRole::Reserved => inside.held_for.push(id),
            }
            add_inner(inside, task, spec);
        }
        None if holds => add_holder(load, task, hold, spec),
        None => {}
    }
}

/// Whether each device held satisfies its request.
fn devices_as_requested(state: &State, hold: &Hold, spec: &JobSpec) -> bool {
    let Some(row) = state.machines.get(hold.machine) else { return true };
    let requested = spec
        .task
        .devices
        .iter()
        .flat_map(|request| (0..request.count).map(move |_| (&request.kind, request)));
    hold.devices().iter().zip(requested).all(|(grant, (kind, request))| {
        let device = row.spec.devices.get(usize::from(grant.device));
        let model = |model| request.models.is_empty() || request.models.contains(model);
        device.is_some_and(|device| device.kind == *kind && model(&device.model))
    })
}

fn add_full_allocs(state: &State, parts: &mut Parts) {
    for (alloc, inside) in &parts.allocs {
        let Some(row) = state.tasks.get(*alloc) else { continue };
        let limits = state.spec_of(row).map(|spec| spec.limits_of(row.index)).unwrap_or_default();
        let fits = inside.reserved.within(limits) && inside.prod_limits.within(limits);
        if let (false, Some(machine)) = (fits, row.machine()) {
            parts.machines.entry(machine).or_default().overfull_allocs.push(*alloc);
        }
    }
}

fn count_of(load: &mut JobLoad, state: TaskState) -> &mut u32 {
    match state {
        TaskState::Deferred => &mut load.deferred,
        TaskState::Pending => &mut load.pending,
        TaskState::Assigned => &mut load.assigned,
        TaskState::Running => &mut load.running,
        TaskState::Stopping(_) => &mut load.stopping,
        TaskState::Dead(TaskOutcome::Finished) => &mut load.finished,
        TaskState::Dead(TaskOutcome::Failed(_)) => &mut load.failed,
        TaskState::Dead(TaskOutcome::Killed | TaskOutcome::DependencyFailed) => &mut load.killed,
    }
}

fn add_domains(state: &State, load: &mut JobLoad, machine: MachineId) {
    let Some(row) = state.machines.get(machine) else { return };
    *Arc::make_mut(&mut load.on_machine).entry(machine).or_default() += 1;
    load.in_cell += 1;
    if let Some(rack) = &row.spec.rack {
        *Arc::make_mut(&mut load.in_rack).entry(rack.clone()).or_default() += 1;
    }
    if let Some(power) = &row.spec.power {
        *Arc::make_mut(&mut load.in_power).entry(power.clone()).or_default() += 1;
    }
}

fn add_inner(load: &mut AllocLoad, task: &Task, spec: &JobSpec) {
    if !task.state.holds_resources() {
        return;
    }
    load.reserved = load.reserved.plus(task.reservation);
    if packed_by_limits(spec) {
        let limits = Resources::max(spec.limits_of(task.index), limits_in_force(task));
        load.prod_limits = load.prod_limits.plus(limits);
    }
}

fn add_holder(load: &mut MachineLoad, task: &Task, hold: &Hold, spec: &JobSpec) {
    let limits = Resources::max(spec.limits_of(task.index), limits_in_force(task));
    load.reserved = load.reserved.plus(task.reservation);
    load.limits = load.limits.plus(limits);
    if packed_by_limits(spec) {
        load.prod_limits = load.prod_limits.plus(limits);
    }
    for grant in hold.devices() {
        let at = usize::from(grant.device);
        load.devices.resize(load.devices.len().max(at + 1), 0);
        load.devices[at] = load.devices[at].saturating_add(grant.milli);
    }
    for named in spec.named_demand().iter() {
        load.named.push((named.name.clone(), named.amount));
    }
}

/// Sorted, with amounts of one name added up, and without zeros.
fn canonical(load: &mut MachineLoad) {
    load.ports.sort_unstable();
    let mut named = BTreeMap::new();
    for (name, amount) in load.named.drain(..).filter(|(_, amount)| *amount > 0) {
        let sum: &mut u64 = named.entry(name).or_default();
        *sum = sum.saturating_add(amount);
    }
    load.named = named.into_iter().collect();
    while load.devices.last() == Some(&0) {
        load.devices.pop();
    }
}

pub(crate) fn equal<T: PartialEq + Debug>(row: String, kept: &T, parts: &T) -> Check {
    if kept == parts {
        Ok(())
    } else {
        Err(violation(NAME, row, format!("kept {kept:?}; parts add up to {parts:?}")))
    }
}

fn equal_table<K: Key + Ord + Debug, V: Clone + PartialEq + Debug>(
    what: &str,
    kept: &Table<K, V>,
    parts: &BTreeMap<K, V>,
) -> Check {
    let kept: BTreeMap<K, V> = kept.iter().map(|(k, v)| (k, v.clone())).collect();
    equal_map(what, kept, parts)
}

pub(crate) fn equal_map<K: Ord + Debug, V: PartialEq + Debug>(
    what: &str,
    kept: BTreeMap<K, V>,
    parts: &BTreeMap<K, V>,
) -> Check {
    let keys: BTreeSet<&K> = kept.keys().chain(parts.keys()).collect();
    keys.into_iter()
        .try_for_each(|key| equal(format!("{what} {key:?}"), &kept.get(key), &parts.get(key)))
}

fn compare_loads(state: &State, parts: &Parts) -> Check {
    equal_table("machine load", &state.machine_loads, &parts.machines)?;
    equal_table("job load", &state.job_loads, &parts.jobs)?;
    equal_table("user load", &state.user_loads, &parts.users)?;
    let allocs = state.alloc_loads.iter().map(|(k, v)| (*k, v.clone())).collect();
    equal_map("alloc load", allocs, &parts.allocs)?;
    let capacity = state
        .machines
        .iter()
        .fold(Resources::ZERO, |sum, (_, machine)| sum.plus(machine.spec.capacity));
    equal("capacity of the cell".to_owned(), &state.capacity, &capacity)
}

fn compare_indexes(state: &State, parts: &Parts) -> Check {
    let dependents = state.dependents.iter().map(|(k, v)| (*k, v.clone())).collect();
    equal_map("dependents", dependents, &parts.dependents)?;
    let machines = state.machines.iter().map(|(id, m)| (m.spec.name.clone(), id)).collect();
    let kept = state.machine_names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("machine name", kept, &machines)?;
    let users = state.users.iter().map(|(id, u)| (u.name.clone(), id)).collect();
    let kept = state.user_names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("user name", kept, &users)?;
    // Later rows overwrite earlier ones: a name belongs to its newest job.
    let jobs = state.jobs.iter().map(|(id, j)| ((j.user, j.name.clone()), id)).collect();
    let kept = state.job_names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("job name", kept, &jobs)?;
    let tokens = state.tokens.iter().map(|(id, t)| (t.id.clone(), id)).collect();
    let kept = state.token_names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("token id", kept, &tokens)?;
    let blobs = state.blobs.iter().map(|(id, b)| (b.digest.clone(), id)).collect();
    let kept = state.blob_names.iter().map(|(k, v)| (k.clone(), *v)).collect();
    equal_map("package digest", kept, &blobs)?;
    let vacant: BTreeSet<TaskId> = (0..state.tasks.slots())
        .map(TaskId::from_slot)
        .filter(|id| state.tasks.get(*id).is_none())
        .collect();
    equal("vacant task rows".to_owned(), &*state.vacant_tasks, &vacant)
}
