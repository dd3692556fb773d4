//! The only writers of rows: each keeps the derived sums equal to what the rows add up to.

use crate::blob::Blob;
use crate::bounds::{Bounds, encoded_bytes};
use crate::credential::AccessToken;
use crate::device;
use crate::hold::{Hold, HoldRole};
use crate::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use crate::job::{Job, JobState};
use crate::load::{AllocLoad, JobLoad, MachineLoad, UserLoad};
use crate::machine::Machine;
use crate::name::Name;
use crate::named::ResourceName;
use crate::quota::User;
use crate::resource::Resources;
use crate::spec::{JobKind, JobSpec};
use crate::state::State;
use crate::task::Task;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a task adds to the sums of its machine or alloc.
struct Footprint<'a> {
    limits: Resources,
    spec: &'a JobSpec,
}

fn sorted_insert<T: Ord>(list: &mut Vec<T>, value: T) {
    if let Err(at) = list.binary_search(&value) {
        list.insert(at, value);
    }
}

fn sorted_remove<T: Ord>(list: &mut Vec<T>, value: &T) {
    if let Ok(at) = list.binary_search(value) {
        list.remove(at);
    }
}

fn add_or_subtract(sum: &mut Resources, by: Resources, add: bool) {
    *sum = if add { sum.plus(by) } else { sum.minus(by) };
}

/// Tasks that run in a place, and tasks that only hold room there, are listed separately.
fn update_holder_list(
    tasks: &mut Vec<TaskId>,
    held_for: &mut Vec<TaskId>,
    role: HoldRole,
    id: TaskId,
    add: bool,
) {
    let list = match role {
        HoldRole::Primary => tasks,
        HoldRole::Reserved => held_for,
    };
    if add { sorted_insert(list, id) } else { sorted_remove(list, &id) }
}

/// Whether two versions of a task row count the same in every sum but the job's counters.
fn same_task_accounting(a: &Task, b: &Task) -> bool {
    a.holds == b.holds
        && a.state.holds_resources() == b.state.holds_resources()
        && a.state.is_on_machine() == b.state.is_on_machine()
        && a.reservation == b.reservation
        && a.version == b.version
        && a.limits_in_force == b.limits_in_force
}

impl State {
    /// Changes a task row through `change`. Returns false when there is no such row.
    pub(crate) fn edit_task(&mut self, id: TaskId, change: impl FnOnce(&mut Task)) -> bool {
        let Some(row) = self.tasks.get_mut(id) else { return false };
        let before = row.clone();
        change(row);
        let (job, state, version) = (row.job, row.state, row.version);
        let restart_due = row.restart_due;
        // Most changes only move a counter of the job: those need no second copy of the row.
        let after = (!same_task_accounting(&before, row)).then(|| row.clone());
        if before.state != state
            && let Some(load) = self.job_loads.get_mut(job)
        {
            let old = load.counter(before.state);
            *old = old.saturating_sub(1);
            *load.counter(state) += 1;
        }
        if before.restart_due != restart_due
            && let Some(load) = self.job_loads.get_mut(job)
        {
            load.count_restart(restart_due);
        }
        if before.version != version
            && let Some(load) = self.job_loads.get_mut(job)
        {
            load.count_version(before.version, false);
            load.count_version(version, true);
        }
        if let Some(after) = after {
            if before.version != version || before.limits_in_force != after.limits_in_force {
                self.charge_row(&before, false);
                self.charge_row(&after, true);
            }
            self.account_task(id, &before, false);
            self.account_task(id, &after, true);
        }
        true
    }

    /// The additional charge for a row that runs a version its job no longer uses, or is still
    /// allowed more than its version says.
    fn charge_row(&mut self, task: &Task, add: bool) {
        let Some(row) = self.jobs.get(task.job) else { return };
        let least = self.bounds.least_charge;
        let Some((band, extra)) = row.additional_charge(task, least) else { return };
        if let Some(load) = self.user_loads.get_mut(row.user) {
            account_charge(load, band, extra, add);
        }
    }

    /// Inserts the row of a new task into the smallest vacant slot.
    pub(crate) fn insert_task(&mut self, task: Task) -> TaskId {
        let vacant = self.vacant_tasks.first().copied();
        let id = match vacant {
            Some(id) => {
                Arc::make_mut(&mut self.vacant_tasks).remove(&id);
                self.tasks.refill(id, task.clone());
                id
            }
            None => self.tasks.push(task.clone()),
        };
        self.count_task(id, &task, true);
        id
    }

    pub(crate) fn remove_task(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.remove(id) {
            self.count_task(id, &task, false);
            self.attempt_floor = self.attempt_floor.max(task.attempt.saturating_add(1));
            Arc::make_mut(&mut self.vacant_tasks).insert(id);
        }
    }

    /// Adds a whole row to every sum, or takes it out; used for new, purged and loaded rows.
    pub(crate) fn count_task(&mut self, id: TaskId, task: &Task, add: bool) {
        if let Some(load) = self.job_loads.get_mut(task.job) {
            let counter = load.counter(task.state);
            *counter = if add { *counter + 1 } else { counter.saturating_sub(1) };
            load.count_version(task.version, add);
            if task.restart_due {
                load.count_restart(add);
            }
        }
        self.account_task(id, task, add);
    }

    /// Adds every hold of a task to the sums of its machine and alloc, or takes it out.
    fn account_task(&mut self, id: TaskId, task: &Task, add: bool) {
        if task.holds.is_empty() || !task.state.is_on_machine() {
            return;
        }
        let Some(spec) = self.spec_of(task).cloned() else { return };
        for (role, hold) in task.holds.iter() {
            self.account_hold(id, task, (role, hold), &spec, add);
        }
    }

    fn account_hold(
        &mut self,
        id: TaskId,
        task: &Task,
        (role, hold): (HoldRole, &Hold),
        spec: &JobSpec,
        add: bool,
    ) {
        let machine = hold.machine;
        if let Some(load) = self.machine_loads.get_mut(machine) {
            update_holder_list(&mut load.tasks, &mut load.held_for, role, id, add);
            if role == HoldRole::Primary && !task.state.holds_resources() {
                let leaving = load.stopping;
                load.stopping = if add { leaving + 1 } else { leaving.saturating_sub(1) };
            }
        }
        if let Some(alloc) = hold.alloc {
            self.edit_alloc_load(alloc, |load| {
                update_holder_list(&mut load.tasks, &mut load.held_for, role, id, add);
            });
        }
        if task.state.holds_resources() {
            let limits = task.counted_limits(spec.limits_of(task.index));
            let footprint = Footprint { limits, spec };
            self.account_hold_resources(id, task, hold, &footprint, add);
        }
        if spec.kind == JobKind::AllocSet && !add {
            self.set_full_alloc(machine, id, false);
        } else if spec.kind == JobKind::AllocSet || hold.alloc.is_some() {
            self.recheck_full_alloc(hold.alloc.unwrap_or(id));
        }
    }

    /// Recomputes whether more is held inside `alloc` than it has.
    fn recheck_full_alloc(&mut self, alloc: TaskId) {
        let Some(row) = self.tasks.get(alloc) else { return };
        let (Some(machine), Some(spec)) = (row.machine(), self.spec_of(row)) else { return };
        let limits = spec.limits_of(row.index);
        let full = self.alloc_loads.get(&alloc).is_some_and(|load| load.exceeds(limits));
        self.set_full_alloc(machine, alloc, full);
    }

    fn set_full_alloc(&mut self, machine: MachineId, alloc: TaskId, full: bool) {
        if let Some(load) = self.machine_loads.get_mut(machine) {
            if full {
                sorted_insert(&mut load.overfull_allocs, alloc)
            } else {
                sorted_remove(&mut load.overfull_allocs, &alloc)
            }
        }
    }

    fn account_hold_resources(
        &mut self,
        id: TaskId,
        task: &Task,
        hold: &Hold,
        footprint: &Footprint<'_>,
        add: bool,
    ) {
        let Footprint { limits, spec } = *footprint;
        let (machine, by_limits) = (hold.machine, spec.is_packed_by_limits());
        if let Some(load) = self.machine_loads.get_mut(machine) {
            for port in hold.ports() {
                if add {
                    sorted_insert(&mut load.ports, (*port, id))
                } else {
                    sorted_remove(&mut load.ports, &(*port, id))
                }
            }
            if hold.alloc.is_none() {
                account_top_level(load, task.reservation, hold, footprint, add);
            }
        }
        if hold.alloc.is_none() && !hold.devices().is_empty() {
            self.update_wrong_devices(id, hold, spec, add);
        }
        if let Some(alloc) = hold.alloc {
            self.edit_alloc_load(alloc, |load| {
                add_or_subtract(&mut load.reserved, task.reservation, add);
                if by_limits {
                    add_or_subtract(&mut load.prod_limits, limits, add);
                }
            });
        }
        if !spec.spread.is_empty()
            && let Some(row) = self.machines.get(machine)
            && let Some(load) = self.job_loads.get_mut(task.job)
        {
            load.count_domains(machine, row, add);
        }
    }

    /// Records a holder of devices it did not ask for; see [`MachineLoad::wrong_devices`].
    fn update_wrong_devices(&mut self, id: TaskId, hold: &Hold, spec: &JobSpec, add: bool) {
        let Some(row) = self.machines.get(hold.machine) else { return };
        let right =
            device::grants_match_requests(&row.spec.devices, &spec.task.devices, hold.devices());
        if let Some(load) = self.machine_loads.get_mut(hold.machine) {
            if add && !right {
                sorted_insert(&mut load.wrong_devices, id)
            } else {
                sorted_remove(&mut load.wrong_devices, &id)
            }
        }
    }

    /// Changes the load of an alloc. Empty loads are removed, so that the sums are canonical.
    fn edit_alloc_load(&mut self, alloc: TaskId, change: impl FnOnce(&mut AllocLoad)) {
        let mut load = self.alloc_loads.get(&alloc).cloned().unwrap_or_default();
        change(&mut load);
        if load == AllocLoad::default() {
            self.alloc_loads.remove(&alloc);
        } else {
            self.alloc_loads.insert(alloc, load);
        }
    }

    /// Changes a job row; charges, names and dependents follow. Changing what running tasks weigh
    /// (limits of a version in use) is not possible here: versions are immutable.
    pub(crate) fn edit_job(&mut self, id: JobId, change: impl FnOnce(&mut Job)) -> bool {
        let Some(before) = self.jobs.get(id).cloned() else { return false };
        let mut after = before.clone();
        change(&mut after);
        if !same_job_accounting(&before, &after) {
            self.count_job(id, &before, false);
            self.count_job(id, &after, true);
        }
        if let Some(row) = self.jobs.get_mut(id) {
            *row = after;
        }
        true
    }

    pub(crate) fn insert_job(&mut self, job: Job) -> JobId {
        self.job_loads.push(JobLoad::default());
        let id = self.jobs.push(job.clone());
        self.job_names.insert((job.user, job.name.clone()), id);
        self.count_job(id, &job, true);
        id
    }

    /// Removes a dead job whose task rows are removed already.
    pub(crate) fn remove_job(&mut self, id: JobId) {
        self.forget_versions(id);
        if let Some(job) = self.jobs.remove(id) {
            self.count_job(id, &job, false);
            self.job_loads.remove(id);
            let key = (job.user, job.name);
            if self.job_names.get(&key) == Some(&id) {
                self.job_names.remove(&key);
            }
        }
    }

    pub(crate) fn count_job(&mut self, id: JobId, job: &Job, add: bool) {
        let charges = job.charges(&self.tasks, self.bounds.least_charge);
        if let Some(load) = self.user_loads.get_mut(job.user) {
            add_or_subtract_count(&mut load.jobs, 1, add);
            add_or_subtract_count(&mut load.tasks, job.tasks.len() as u64, add);
            let bytes = job.specs.values().map(encoded_bytes).fold(0, u64::saturating_add);
            add_or_subtract_count(&mut load.spec_bytes, bytes, add);
            for (band, charge) in charges {
                account_charge(load, band, charge, add);
            }
            if !job.is_dead() {
                let jobs = load.live_jobs;
                load.live_jobs = if add { jobs + 1 } else { jobs.saturating_sub(1) };
            }
        }
        let waits_for = job.waits_for.iter().filter(|_| job.state == JobState::Deferred);
        for on in waits_for.copied() {
            let mut set = self.dependents.get(&on).cloned().unwrap_or_default();
            if add {
                set.insert(id)
            } else {
                set.remove(&id)
            };
            if set.is_empty() {
                self.dependents.remove(&on)
            } else {
                self.dependents.insert(on, set)
            };
        }
    }

    /// Changes a machine row. Domain counts follow a changed rack or power domain.
    pub(crate) fn edit_machine(
        &mut self,
        id: MachineId,
        change: impl FnOnce(&mut Machine),
    ) -> bool {
        let Some(before) = self.machines.get(id).cloned() else { return false };
        let mut after = before.clone();
        change(&mut after);
        let moved = before.spec.rack != after.spec.rack || before.spec.power != after.spec.power;
        let other_devices = before.spec.devices != after.spec.devices;
        if moved {
            self.recount_domains(id, false);
        }
        self.capacity = self.capacity.minus(before.spec.capacity).plus(after.spec.capacity);
        if let Some(load) = self.machine_loads.get_mut(id) {
            add_or_subtract(&mut load.reserved, retained_disk(&before), false);
            add_or_subtract(&mut load.reserved, retained_disk(&after), true);
        }
        if let Some(row) = self.machines.get_mut(id) {
            *row = after;
        }
        if moved {
            self.recount_domains(id, true);
        }
        if other_devices {
            self.recount_devices(id);
        }
        true
    }

    fn recount_devices(&mut self, machine: MachineId) {
        for id in self.holders_on(machine) {
            let Some(task) = self.tasks.get(id).cloned() else { continue };
            let Some((_, hold)) = task.holds.on(machine) else { continue };
            let holds = task.state.holds_resources() && !hold.devices().is_empty();
            if let Some(spec) = self.spec_of(&task).cloned().filter(|_| holds) {
                self.update_wrong_devices(id, hold, &spec, true);
            }
        }
    }

    /// Tasks that run on the machine, and tasks that run elsewhere and hold room there.
    fn holders_on(&self, machine: MachineId) -> Vec<TaskId> {
        let load = self.machine_loads.get(machine);
        load.map_or_else(Vec::new, |load| [&load.tasks[..], &load.held_for].concat())
    }

    fn recount_domains(&mut self, machine: MachineId, add: bool) {
        for id in self.holders_on(machine) {
            let Some(task) = self.tasks.get(id) else { continue };
            let spread = self.spec_of(task).is_some_and(|spec| !spec.spread.is_empty());
            let job = task.job;
            if spread
                && task.state.holds_resources()
                && let Some(row) = self.machines.get(machine)
                && let Some(load) = self.job_loads.get_mut(job)
            {
                load.count_domains(machine, row, add);
            }
        }
    }

    pub(crate) fn insert_machine(&mut self, machine: Machine) -> MachineId {
        let reserved = retained_disk(&machine);
        self.machine_loads.push(MachineLoad { reserved, ..MachineLoad::default() });
        self.capacity = self.capacity.plus(machine.spec.capacity);
        let id = self.machines.next_key();
        self.machine_names.insert(machine.spec.name.clone(), id);
        self.machines.push(machine)
    }

    /// Removes a machine on which nothing is left.
    pub(crate) fn remove_machine(&mut self, id: MachineId) {
        if let Some(machine) = self.machines.remove(id) {
            self.components.forget_machine(id);
            self.machine_loads.remove(id);
            self.capacity = self.capacity.minus(machine.spec.capacity);
            self.machine_names.remove(&machine.spec.name);
        }
    }

    pub(crate) fn insert_user(&mut self, name: Name) -> UserId {
        self.user_loads.push(UserLoad::default());
        let id = self.users.push(User {
            name: name.clone(),
            version: 1,
            capabilities: BTreeSet::new(),
            quota: Default::default(),
            exceeded: BTreeSet::new(),
        });
        self.user_names.insert(name, id);
        id
    }

    /// Removes a user without jobs.
    pub(crate) fn remove_user(&mut self, id: UserId) {
        if let Some(user) = self.users.remove(id) {
            self.user_loads.remove(id);
            self.user_names.remove(&user.name);
        }
    }

    /// Sets other bounds, and recounts the sums that depend on them.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        let jobs = self.jobs.clone();
        jobs.iter().for_each(|(id, job)| self.count_job(id, job, false));
        self.bounds = bounds;
        jobs.iter().for_each(|(id, job)| self.count_job(id, job, true));
    }

    pub(crate) fn insert_token(&mut self, token: AccessToken) -> TokenId {
        let name = token.id.clone();
        let id = self.tokens.push(token);
        self.token_names.insert(name, id);
        id
    }

    pub(crate) fn remove_token(&mut self, id: TokenId) {
        if let Some(row) = self.tokens.remove(id) {
            self.token_names.remove(&row.id);
        }
    }

    pub(crate) fn insert_blob(&mut self, blob: Blob) -> BlobId {
        let digest = blob.digest.clone();
        let id = self.blobs.push(blob);
        self.blob_names.insert(digest, id);
        id
    }

    pub(crate) fn remove_blob(&mut self, id: BlobId) {
        if let Some(row) = self.blobs.remove(id) {
            self.blob_names.remove(&row.digest);
        }
    }
}

/// Whether a change of a job's row leaves its charges and its dependencies as they were.
fn same_job_accounting(a: &Job, b: &Job) -> bool {
    let ends = |job: &Job| job.update.as_ref().map(|update| (update.from, update.to));
    a.state == b.state
        && a.waits_for == b.waits_for
        && a.version == b.version
        && ends(a) == ends(b)
        && a.tasks.len() == b.tasks.len()
        && a.machines.len() == b.machines.len()
        && a.specs == b.specs
}

fn add_or_subtract_count(sum: &mut u64, by: u64, add: bool) {
    *sum = if add { sum.saturating_add(by) } else { sum.saturating_sub(by) };
}

fn account_charge(load: &mut UserLoad, band: crate::priority::Band, charge: Resources, add: bool) {
    if charge.is_zero() {
        return;
    }
    let sum = load.charged.entry(band).or_default();
    add_or_subtract(sum, charge, add);
    if sum.is_zero() {
        load.charged.remove(&band);
    }
}

/// Disk retained for log savers, which stays charged to the machine.
pub(crate) fn retained_disk(machine: &Machine) -> Resources {
    let disk = machine.retained.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
    Resources { disk, ..Resources::ZERO }
}

fn account_top_level(
    load: &mut MachineLoad,
    reservation: Resources,
    hold: &Hold,
    footprint: &Footprint<'_>,
    add: bool,
) {
    let Footprint { limits, spec } = *footprint;
    add_or_subtract(&mut load.reserved, reservation, add);
    add_or_subtract(&mut load.limits, limits, add);
    if spec.is_packed_by_limits() {
        add_or_subtract(&mut load.prod_limits, limits, add);
    }
    for grant in hold.devices() {
        let at = usize::from(grant.device);
        if load.devices.len() <= at {
            load.devices.resize(at + 1, 0);
        }
        let used = load.devices[at];
        load.devices[at] =
            if add { used.saturating_add(grant.milli) } else { used.saturating_sub(grant.milli) };
        while load.devices.last() == Some(&0) {
            load.devices.pop();
        }
    }
    for named in spec.named_demand().iter() {
        account_named(&mut load.named, &named.name, named.amount, add);
    }
}

fn account_named(list: &mut Vec<(ResourceName, u64)>, name: &ResourceName, by: u64, add: bool) {
    match list.binary_search_by(|(n, _)| n.cmp(name)) {
        Ok(at) if add => list[at].1 = list[at].1.saturating_add(by),
        Ok(at) => {
            list[at].1 = list[at].1.saturating_sub(by);
            if list[at].1 == 0 {
                list.remove(at);
            }
        }
        Err(at) if add && by > 0 => list.insert(at, (name.clone(), by)),
        Err(_) => {}
    }
}
