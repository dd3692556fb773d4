//! Writes jobs and tasks into the snapshot: which tasks are pending, what each placed task holds
//! where, and the moves between the two.

use super::constraints::MachineRequirements;
use super::machines::{BANDS_BELOW_TOP, NO_DOMAIN, NO_HOLDER};
use super::rows::{AllocRow, DomainCounts, Hold, JobRow, PlacementState, TaskPhase, TaskRow};
use super::{ClusterSnapshot, JobInfo, PendingTaskInfo, PlacedTaskInfo, machines::Room};
use crate::class::{AllocSet, ClassId, ClassRequest, SUMS, Siblings, charges};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobKind, JobSpec};
use cellwright_cell::time::Time;
use std::sync::Arc;

/// Jobs and tasks as callers know them.
impl ClusterSnapshot {
    /// Adds a job or updates a changed one.
    pub fn put_job(&mut self, id: JobId, info: &JobInfo<'_>) {
        if self.jobs.len() <= id.slot() {
            self.jobs.resize(id.slot() + 1, None);
        }
        let spec = info.spec.clone();
        let row = self.jobs[id.slot()].get_or_insert_with(|| JobRow {
            user: info.user,
            spec: spec.clone(),
            version: info.version,
            alloc_set: info.alloc_set,
            machines: info.machines.clone(),
            budget: info.budget,
            in_transition: info.in_transition,
            plain_classes: Vec::new(),
            hard_spread_counts: None,
            soft_spread_counts: None,
            domain_departures: 0,
        });
        if row.budget != info.budget {
            self.budget_changes += 1;
        }
        // A simulator may rewrite a spec without a new version; the usual case is the same `Arc`.
        let rewritten =
            row.version == info.version && !Arc::ptr_eq(&row.spec, &spec) && row.spec != spec;
        if rewritten || row.alloc_set != info.alloc_set {
            row.plain_classes.clear();
        }
        row.user = info.user;
        row.spec = spec;
        row.version = info.version;
        row.alloc_set = info.alloc_set;
        row.machines = info.machines.clone();
        row.budget = info.budget;
        row.in_transition = info.in_transition;
    }

    /// Removes a job; its tasks must be gone.
    pub fn remove_job(&mut self, id: JobId) {
        if let Some(row) = self.jobs.get_mut(id.slot()) {
            *row = None;
        }
    }

    /// Puts a pending task. Its job must have been put; otherwise nothing happens.
    pub fn put_pending(&mut self, task: TaskId, info: &PendingTaskInfo<'_>) {
        let Some(job) = self.job(info.job) else { return };
        let (spec, version) = (job.spec.clone(), job.version);
        let limits = spec.limits_of(info.index);
        let reservation = info.reservation.unwrap_or(limits);
        let amounts = (limits, reservation);
        let bounds = (info.avoid, job.machines.get(&info.index).copied());
        let class = self.class_for(info.job, &spec, version, info.index, amounts, bounds);
        self.drop_task(task);
        let row = self.row_mut(task);
        row.job = info.job;
        row.index = info.index;
        row.attempt = info.attempt;
        row.class = class;
        row.phase = TaskPhase::Assigned;
        row.retained_on_exit = 0;
        self.count_class_member(task);
        self.enqueue(task, info.not_before);
    }

    /// Puts a task that holds resources. Its job and machine must have been put.
    pub fn put_placed(&mut self, task: TaskId, info: &PlacedTaskInfo<'_>) {
        if self.job(info.job).is_none() || !self.machines.exists(info.machine.slot()) {
            return;
        }
        let amounts = (info.limits, info.limits);
        let anywhere: (&[MachineId], _) = (&[], None);
        let class =
            self.class_for(info.job, info.spec, info.version, info.index, amounts, anywhere);
        let hold = Hold {
            machine: info.machine,
            alloc: info.alloc,
            reservation: info.reservation,
            ports: info.ports.to_vec(),
            devices: info.devices.to_vec(),
        };
        let retain = info.spec.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
        // What ran inside an alloc left its disk to the alloc.
        let leaves = info.phase == TaskPhase::Running && info.alloc.is_none();
        let limited = self.budget_of(info.job).is_some();
        let inside = info.spec.limits_of(info.index);
        let same_inside = self.allocs.get(&task).is_none_or(|alloc| alloc.capacity == inside);
        let row = self.row_mut(task);
        let before = (row.phase, row.retained_on_exit);
        row.phase = info.phase;
        row.retained_on_exit = if leaves { retain } else { 0 };
        let same = (row.job, row.index, row.class) == (info.job, info.index, class) && same_inside;
        if same && row.placement.to_hold().as_ref() == Some(&hold) {
            row.attempt = info.attempt;
            // A start changes nothing on the machine, except what an eviction would mean there.
            let stuck = before.0 == TaskPhase::Restarting || row.phase == TaskPhase::Restarting;
            let changed = before != (row.phase, row.retained_on_exit);
            if changed && (stuck || limited || before.1 != row.retained_on_exit) {
                self.change_log.push(info.machine.0);
            }
            return;
        }
        // An alloc that is only read again keeps its members, and so do holds of other tasks in it;
        // what members hold elsewhere goes with them and comes back.
        let members = self.members_of(task);
        let elsewhere = self.holds_around(task, &members);
        self.drop_task(task);
        let row = self.row_mut(task);
        row.job = info.job;
        row.index = info.index;
        row.attempt = info.attempt;
        row.class = class;
        self.count_class_member(task);
        self.occupy(task, hold);
        if let Some(alloc) = self.allocs.get_mut(&task) {
            // Nobody is placed into what it is about to lose.
            (alloc.capacity, alloc.room) = (inside, Room::of(inside.to_array()));
        }
        for (member, row) in members {
            let hold = row.placement.to_hold();
            *self.row_mut(member) =
                TaskRow { placement: PlacementState::Gone, reserved: None, ..row };
            if let Some(hold) = hold.filter(|h| h.machine == info.machine) {
                self.count_class_member(member);
                self.occupy(member, hold);
            }
        }
        for (other, hold) in elsewhere {
            self.reserve(other, hold);
        }
    }

    fn members_of(&self, alloc: TaskId) -> Vec<(TaskId, TaskRow)> {
        let members = self.allocs.get(&alloc).map(|row| row.members.clone()).unwrap_or_default();
        members.into_iter().map(|m| (m, self.tasks[m.slot()].clone())).collect()
    }

    /// Holds of other tasks in the alloc, and those that its members have elsewhere.
    fn holds_around(&self, alloc: TaskId, members: &[(TaskId, TaskRow)]) -> Vec<(TaskId, Hold)> {
        self.reserved_in(alloc)
            .into_iter()
            .chain(members.iter().map(|(member, _)| *member))
            .filter_map(|other| Some((other, self.reserved_of(other)?.clone())))
            .collect()
    }

    /// Removes a task, pending or placed. Members of an alloc are removed with it.
    pub fn drop_task(&mut self, task: TaskId) {
        let Some(row) = self.tasks.get(task.slot()) else { return };
        match &row.placement {
            PlacementState::Gone => return,
            PlacementState::Pending { .. } => self.dequeue(task),
            PlacementState::Held(_) | PlacementState::PlainHeld { .. } => {
                for member in self.members(task).to_vec() {
                    self.drop_task(member);
                }
                for other in self.reserved_in(task) {
                    self.unreserve(other);
                }
                self.unreserve(task);
                self.vacate(task);
            }
        }
        self.uncount_class_member(task);
    }

    /// The class of a task of `job`: interned once per job and version in the usual case. `bounds`:
    /// the machines that it avoids, and the only one for it.
    pub(crate) fn class_for(
        &mut self,
        job: JobId,
        spec: &Arc<JobSpec>,
        version: u32,
        index: u32,
        (limits, reservation): (Resources, Resources),
        bounds: (&[MachineId], Option<MachineId>),
    ) -> ClassId {
        let alloc_index = spec.paired_index(index);
        let usual = bounds.0.is_empty()
            && bounds.1.is_none()
            && limits == spec.task.limits
            && reservation == limits
            && alloc_index.is_none();
        let known = self.job(job).and_then(|row| {
            row.plain_classes.iter().find(|(v, _)| *v == version).map(|(_, class)| *class)
        });
        if let (true, Some(class)) = (usual, known) {
            return class;
        }
        let request = self.request(job, spec, (limits, reservation), alloc_index, bounds);
        let class = self.classes.intern(request);
        if usual && let Some(row) = &mut self.jobs[job.slot()] {
            row.plain_classes.push((version, class));
        }
        class
    }

    fn request(
        &mut self,
        job: JobId,
        spec: &JobSpec,
        (limits, reservation): (Resources, Resources),
        alloc_index: Option<u32>,
        (avoid, machine): (&[MachineId], Option<MachineId>),
    ) -> ClassRequest {
        let mut packages: Vec<u32> =
            spec.task.packages.iter().map(|p| self.packages.intern(p)).collect();
        packages.sort_unstable();
        let mut avoid = avoid.to_vec();
        avoid.sort_unstable();
        let demand = spec.named_demand();
        let named = demand.iter().map(|n| (self.resource_names.intern(&n.name), n.amount));
        ClassRequest {
            priority: spec.priority,
            by_limits: spec.is_packed_by_limits(),
            limits,
            reservation,
            ports: spec.task.ports,
            static_ports: spec.task.static_ports.clone(),
            named: named.collect(),
            devices: spec.task.devices.clone(),
            constraints: MachineRequirements::of(spec)
                .map(|requirements| self.constraints.intern_requirements(&requirements)),
            packages,
            alloc_set: spec
                .alloc_set
                .as_ref()
                .map(|_| AllocSet(self.job(job).and_then(|row| row.alloc_set))),
            alloc_index,
            spread: spec.spread.clone(),
            siblings: siblings(job, spec),
            avoid,
            machine,
        }
    }
}

/// Tasks of a job affect each other's placement when it has spread limits, or when it is a service
/// of several tasks, which are preferably not all lost with one machine. A service is what its
/// owner calls latency-sensitive, or what is started again whenever it ends, whatever its priority;
/// the tasks of other jobs each do their part and are run again where they are lost.
fn siblings(job: JobId, spec: &JobSpec) -> Option<Siblings> {
    let strict = !spec.spread.is_empty();
    let said = spec.appclass == Some(AppClass::LatencySensitive);
    let service = said || spec.restart.restart_on_success;
    (strict || service && spec.count > 1).then_some(Siblings { job, count: spec.count, strict })
}

/// Moves of tasks between the queue and machines.
impl ClusterSnapshot {
    pub(super) fn row_mut(&mut self, task: TaskId) -> &mut TaskRow {
        if self.tasks.len() <= task.slot() {
            self.tasks.resize(task.slot() + 1, TaskRow::default());
        }
        &mut self.tasks[task.slot()]
    }

    pub(super) fn count_class_member(&mut self, task: TaskId) {
        self.classes.count_task(self.tasks[task.slot()].class, true);
    }

    pub(super) fn uncount_class_member(&mut self, task: TaskId) {
        self.classes.count_task(self.tasks[task.slot()].class, false);
    }

    pub(super) fn enqueue(&mut self, task: TaskId, not_before: Time) {
        let at = self.pending.len() as u32;
        self.pending.push(task);
        let row = self.row_mut(task);
        row.list_position = at;
        row.placement = PlacementState::Pending { not_before };
    }

    pub(super) fn dequeue(&mut self, task: TaskId) {
        let at = self.tasks[task.slot()].list_position as usize;
        self.pending.swap_remove(at);
        if let Some(moved) = self.pending.get(at) {
            self.tasks[moved.slot()].list_position = at as u32;
        }
        self.tasks[task.slot()].placement = PlacementState::Gone;
    }

    /// Puts a task that is neither pending nor placed onto its machine and into the sums. A member
    /// of an alloc that does not exist is not placed.
    pub(super) fn occupy(&mut self, task: TaskId, hold: Hold) {
        if hold.alloc.is_some_and(|alloc| !self.allocs.contains_key(&alloc)) {
            self.uncount_class_member(task);
            return;
        }
        let (m, row) = (hold.machine.slot(), &self.tasks[task.slot()]);
        let (job, class) = (row.job, self.classes.get(row.class));
        let is_alloc = self.job(job).is_some_and(|j| j.spec.kind == JobKind::AllocSet);
        let list = match hold.alloc.and_then(|alloc| self.allocs.get_mut(&alloc)) {
            Some(alloc) => &mut alloc.members,
            None => {
                let lowest = &mut self.machines.lowest_priority[m];
                *lowest = (*lowest).min(class.request.priority.0);
                &mut self.machines.holders[m]
            }
        };
        let at = list.len() as u32;
        list.push(task);
        if is_alloc {
            let capacity = class.request.limits;
            let (machine, room) = (hold.machine, Room::of(capacity.to_array()));
            let row = AllocRow { machine, set: job, capacity, room, members: Vec::new() };
            self.allocs.insert(task, row);
            let set = self.alloc_sets.entry(job).or_default();
            if let Err(position) = set.binary_search(&task) {
                set.insert(position, task);
            }
        }
        let row = &mut self.tasks[task.slot()];
        row.list_position = at;
        row.placement = PlacementState::from_hold(hold);
        self.add_to_sums(task);
        self.join_gang(task);
        self.change_log.push(m as u32);
    }

    /// Takes a task off its machine and out of the sums. Members of an alloc must have left.
    pub(super) fn vacate(&mut self, task: TaskId) -> Option<Hold> {
        self.remove_from_sums(task);
        let row = &mut self.tasks[task.slot()];
        let (job, at, class) = (row.job, row.list_position as usize, row.class);
        let hold = std::mem::take(&mut row.placement).to_hold()?;
        self.leave_gang(task, hold.alloc);
        let m = hold.machine.slot();
        let list = match hold.alloc.and_then(|alloc| self.allocs.get_mut(&alloc)) {
            Some(alloc) => &mut alloc.members,
            None => &mut self.machines.holders[m],
        };
        list.swap_remove(at);
        if let Some(moved) = list.get(at) {
            self.tasks[moved.slot()].list_position = at as u32;
        }
        if self.allocs.remove(&task).is_some()
            && let Some(set) = self.alloc_sets.get_mut(&job)
        {
            set.retain(|alloc| *alloc != task);
        }
        if hold.alloc.is_none()
            && self.classes.get(class).request.priority.0 == self.machines.lowest_priority[m]
        {
            self.machines.lowest_priority[m] = self.lowest_priority_on(m);
        }
        self.change_log.push(m as u32);
        Some(hold)
    }

    fn lowest_priority_on(&self, m: usize) -> u16 {
        let priority = |t: &TaskId| self.classes.get(self.tasks[t.slot()].class).request.priority.0;
        self.machines.holders[m].iter().map(priority).min().unwrap_or(NO_HOLDER)
    }

    /// Takes all tasks of a machine out of the sums and returns them, leaving them in its lists.
    /// Tasks that hold room there without running there are taken out as well.
    pub(crate) fn remove_all_from_sums(&mut self, m: usize) -> Vec<TaskId> {
        let elsewhere = self.reserved_on(MachineId(m as u32));
        elsewhere.into_iter().for_each(|task| self.update_reserved_sums(task, false));
        let mut all = self.machines.holders[m].clone();
        for holder in self.machines.holders[m].clone() {
            all.extend_from_slice(self.members(holder));
        }
        all.iter().for_each(|task| self.remove_from_sums(*task));
        all
    }

    pub(crate) fn add_to_sums(&mut self, task: TaskId) {
        self.update_sums(task, true);
    }

    fn remove_from_sums(&mut self, task: TaskId) {
        self.update_sums(task, false);
    }

    fn update_sums(&mut self, task: TaskId, add: bool) {
        let placement = std::mem::take(&mut self.tasks[task.slot()].placement);
        self.update_hold_sums(task, &placement, false, add);
        self.tasks[task.slot()].placement = placement;
    }

    /// Adds or removes what the task holds here. It cannot be preempted where it `is_unevictable`.
    pub(super) fn update_hold_sums(
        &mut self,
        task: TaskId,
        placement: &PlacementState,
        is_unevictable: bool,
        add: bool,
    ) {
        let Some(machine) = placement.machine() else { return };
        let row = &self.tasks[task.slot()];
        let (job, class) = (row.job, row.class);
        let m = machine.slot();
        let request = &self.classes.get(class).request;
        let amounts = charges(request.by_limits, request.limits, placement.reservation());
        let siblings = request.siblings;
        let tasks = &mut self.machines.task_counts[m];
        *tasks = if add { *tasks + 1 } else { tasks.saturating_sub(1) };
        match placement.alloc() {
            None => {
                adjust_room(&mut self.machines.room[m], &amounts, add);
                let band = request.priority.band() as usize;
                let above = if is_unevictable { BANDS_BELOW_TOP } else { band };
                for rooms in &mut self.machines.room_without_band[..above] {
                    adjust_room(&mut rooms[m], &amounts, add);
                }
            }
            Some(alloc) => {
                if let Some(row) = self.allocs.get_mut(&alloc) {
                    adjust_room(&mut row.room, &amounts, add);
                }
            }
        }
        if placement.alloc().is_none() && !request.named.is_empty() {
            for (name, amount) in request.named.clone() {
                let used = &mut self.machines.named_usage_mut(m, name).used;
                *used = adjust_amount(*used, amount, add);
            }
        }
        self.update_ports_and_devices(m, task, placement, add);
        if let Some(siblings) = siblings {
            self.update_domain_counts(job, m, siblings.strict, add);
        }
    }

    fn update_ports_and_devices(
        &mut self,
        m: usize,
        task: TaskId,
        placement: &PlacementState,
        add: bool,
    ) {
        let ports = &mut self.machines.ports[m];
        for port in placement.ports() {
            let entry = (*port, task);
            let inside = u32::from(ports.range.contains(*port));
            match (ports.used.binary_search(&entry), add) {
                (Err(at), true) => {
                    ports.used.insert(at, entry);
                    ports.used_in_range += inside;
                }
                (Ok(at), false) => {
                    ports.used.remove(at);
                    ports.used_in_range -= inside;
                }
                _ => {}
            }
        }
        if placement.alloc().is_none() {
            for grant in placement.devices() {
                if let Some(slot) = self.machines.devices[m].get_mut(usize::from(grant.device)) {
                    slot.used = if add {
                        slot.used.saturating_add(grant.milli)
                    } else {
                        slot.used.saturating_sub(grant.milli)
                    };
                }
            }
        }
    }

    fn update_domain_counts(&mut self, job: JobId, m: usize, strict: bool, add: bool) {
        let (rack, power) = (self.machines.rack[m], self.machines.power[m]);
        let Some(row) = self.jobs.get_mut(job.slot()).and_then(Option::as_mut) else { return };
        let counts = if strict { &mut row.hard_spread_counts } else { &mut row.soft_spread_counts };
        let counts = counts.get_or_insert_with(|| Box::new(DomainCounts::default()));
        let known = |domain: u32| domain != NO_DOMAIN;
        if add {
            counts.machine.add(m as u32);
            known(rack).then(|| counts.rack.add(rack));
            known(power).then(|| counts.power.add(power));
            counts.cell = counts.cell.saturating_add(1);
        } else {
            counts.machine.remove(m as u32);
            known(rack).then(|| counts.rack.remove(rack));
            known(power).then(|| counts.power.remove(power));
            counts.cell = counts.cell.saturating_sub(1);
            let bounded = row.spec.spread.iter().any(|limit| limit.domain == Domain::Cell);
            row.domain_departures += u64::from(known(rack) || known(power) || bounded);
        }
    }
}

fn adjust_room(room: &mut Room, amounts: &[i64; SUMS], add: bool) {
    if add { room.take(amounts) } else { room.give(amounts) }
}

fn adjust_amount(value: u64, by: u64, add: bool) -> u64 {
    if add { value.saturating_add(by) } else { value.saturating_sub(by) }
}
