//! Writing jobs and tasks: who waits, who holds what where, and one step back for gangs and
//! what-if questions.

use super::constraints::Demands;
use super::machines::{BANDS_BELOW_TOP, NO_DOMAIN, NOBODY};
use super::rows::{AllocRow, DomainCounts, Held, Holding, JobRow, Place, TaskRow};
use super::{Board, HeldFacts, JobFacts, PendingFacts, machines::Room};
use crate::class::{AllocSet, ClassId, Request, SUMS, Siblings, charges};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::time::Time;
use std::sync::Arc;

/// Jobs and tasks as callers know them.
impl Board {
    /// Adds a job or takes over what changed of it.
    pub fn put_job(&mut self, id: JobId, facts: &JobFacts<'_>) {
        if self.jobs.len() <= id.slot() {
            self.jobs.resize(id.slot() + 1, None);
        }
        let spec = facts.spec.clone();
        let row = self.jobs[id.slot()].get_or_insert_with(|| JobRow {
            user: facts.user,
            spec: spec.clone(),
            version: facts.version,
            alloc_set: facts.alloc_set,
            budget: facts.budget,
            absent: facts.absent,
            plain_classes: Vec::new(),
            strict: None,
            soft: None,
            loosened: 0,
        });
        if row.budget != facts.budget {
            self.budgets_changed += 1;
        }
        // A simulator may rewrite a spec without a new version; the usual case is the same `Arc`.
        let rewritten =
            row.version == facts.version && !Arc::ptr_eq(&row.spec, &spec) && row.spec != spec;
        if rewritten || row.alloc_set != facts.alloc_set {
            row.plain_classes.clear();
        }
        row.user = facts.user;
        row.spec = spec;
        row.version = facts.version;
        row.alloc_set = facts.alloc_set;
        row.budget = facts.budget;
        row.absent = facts.absent;
    }

    /// Forgets a job; its tasks must be gone.
    pub fn remove_job(&mut self, id: JobId) {
        if let Some(row) = self.jobs.get_mut(id.slot()) {
            *row = None;
        }
    }

    /// A task that waits for a machine. Its job must have been put; otherwise nothing happens.
    pub fn put_pending(&mut self, task: TaskId, facts: &PendingFacts<'_>) {
        let Some(job) = self.job(facts.job) else { return };
        let (spec, version) = (job.spec.clone(), job.version);
        let limits = spec.limits_of(facts.index);
        let reservation = facts.reservation.unwrap_or(limits);
        let class =
            self.class_for(facts.job, &spec, version, facts.index, reservation, facts.avoid);
        self.drop_task(task);
        let row = self.row_mut(task);
        row.job = facts.job;
        row.index = facts.index;
        row.attempt = facts.attempt;
        row.class = class;
        row.holding = Holding::Assigned;
        row.leaves_disk = 0;
        self.enter(task);
        self.wait(task, facts.not_before);
    }

    /// A task that holds resources. Its job and machine must have been put.
    pub fn put_held(&mut self, task: TaskId, facts: &HeldFacts<'_>) {
        if self.job(facts.job).is_none() || !self.machines.exists(facts.machine.slot()) {
            return;
        }
        let limits = facts.spec.limits_of(facts.index);
        let class = self.class_for(facts.job, facts.spec, facts.version, facts.index, limits, &[]);
        let held = Held {
            machine: facts.machine,
            alloc: facts.alloc,
            reservation: facts.reservation,
            ports: facts.ports.to_vec(),
            devices: facts.devices.to_vec(),
        };
        let retain = facts.spec.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
        // What ran inside an alloc left its disk to the alloc.
        let leaves = facts.holding == Holding::Running && facts.alloc.is_none();
        let limited = self.budget_of(facts.job).is_some();
        let row = self.row_mut(task);
        let before = (row.holding, row.leaves_disk);
        row.holding = facts.holding;
        row.leaves_disk = if leaves { retain } else { 0 };
        let same = (row.job, row.index, row.class) == (facts.job, facts.index, class);
        if same && row.place.to_held().as_ref() == Some(&held) {
            row.attempt = facts.attempt;
            // A start changes nothing on the machine, except what an eviction would mean there.
            let stuck = before.0 == Holding::Restarting || row.holding == Holding::Restarting;
            let changed = before != (row.holding, row.leaves_disk);
            if changed && (stuck || limited || before.1 != row.leaves_disk) {
                self.log.push(facts.machine.0);
            }
            return;
        }
        // An alloc that is only read again keeps its members.
        let members = self.allocs.get(&task).map(|row| row.members.clone()).unwrap_or_default();
        let members: Vec<(TaskId, TaskRow)> =
            members.into_iter().map(|m| (m, self.tasks[m.slot()].clone())).collect();
        // And what others hold in it; what members hold elsewhere goes with them and comes back.
        let elsewhere: Vec<(TaskId, Held)> = self
            .reserved_in(task)
            .into_iter()
            .chain(members.iter().map(|(member, _)| *member))
            .filter_map(|other| Some((other, self.reserved_of(other)?.clone())))
            .collect();
        self.drop_task(task);
        let row = self.row_mut(task);
        row.job = facts.job;
        row.index = facts.index;
        row.attempt = facts.attempt;
        row.class = class;
        self.enter(task);
        self.settle(task, held);
        for (member, row) in members {
            let held = row.place.to_held();
            *self.row_mut(member) = TaskRow { place: Place::Gone, reserved: None, ..row };
            if let Some(held) = held.filter(|h| h.machine == facts.machine) {
                self.enter(member);
                self.settle(member, held);
            }
        }
        for (other, held) in elsewhere {
            self.reserve(other, held);
        }
    }

    /// Forgets a task, pending or held. Members of an alloc are forgotten with it.
    pub fn drop_task(&mut self, task: TaskId) {
        let Some(row) = self.tasks.get(task.slot()) else { return };
        match &row.place {
            Place::Gone => return,
            Place::Pending { .. } => self.leave_queue(task),
            Place::Held(_) | Place::HeldPlain { .. } => {
                for member in self.members(task).to_vec() {
                    self.drop_task(member);
                }
                for other in self.reserved_in(task) {
                    self.unreserve(other);
                }
                self.unreserve(task);
                self.unsettle(task);
            }
        }
        self.leave(task);
    }

    /// How a class sees a task of `job`: interned once per job and version in the usual case.
    pub(crate) fn class_for(
        &mut self,
        job: JobId,
        spec: &Arc<JobSpec>,
        version: u32,
        index: u32,
        reservation: Resources,
        avoid: &[MachineId],
    ) -> ClassId {
        let limits = spec.limits_of(index);
        let usual = avoid.is_empty() && limits == spec.task.limits && reservation == limits;
        let known = self.job(job).and_then(|row| {
            row.plain_classes.iter().find(|(v, _)| *v == version).map(|(_, class)| *class)
        });
        if let (true, Some(class)) = (usual, known) {
            return class;
        }
        let request = self.request(job, spec, limits, reservation, avoid);
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
        limits: Resources,
        reservation: Resources,
        avoid: &[MachineId],
    ) -> Request {
        let mut packages: Vec<u32> =
            spec.task.packages.iter().map(|p| self.packages.intern(p)).collect();
        packages.sort_unstable();
        let mut avoid = avoid.to_vec();
        avoid.sort_unstable();
        let named = spec.task.named.iter().map(|n| (self.names.intern(&n.name), n.amount));
        Request {
            priority: spec.priority,
            limits,
            reservation,
            ports: spec.task.ports,
            static_ports: spec.task.static_ports.clone(),
            named: named.collect(),
            devices: spec.task.devices.clone(),
            constraints: Demands::of(spec).map(|demands| self.constraints.list(&demands)),
            packages,
            alloc_set: spec
                .alloc_set
                .as_ref()
                .map(|_| AllocSet(self.job(job).and_then(|row| row.alloc_set))),
            spread: spec.spread.clone(),
            siblings: siblings(job, spec),
            avoid,
        }
    }
}

/// Tasks of a job matter to each other when it asked for spread limits, or when it is a prod
/// service of several tasks, which is better not lost in one piece.
fn siblings(job: JobId, spec: &JobSpec) -> Option<Siblings> {
    let strict = !spec.spread.is_empty();
    let service =
        spec.count > 1 && spec.priority.is_prod() && spec.appclass == AppClass::LatencySensitive;
    (strict || service).then_some(Siblings { job, count: spec.count, strict })
}

/// Moves of tasks between the queue and machines.
impl Board {
    pub(super) fn row_mut(&mut self, task: TaskId) -> &mut TaskRow {
        if self.tasks.len() <= task.slot() {
            self.tasks.resize(task.slot() + 1, TaskRow::default());
        }
        &mut self.tasks[task.slot()]
    }

    pub(super) fn enter(&mut self, task: TaskId) {
        self.classes.count(self.tasks[task.slot()].class, true);
    }

    pub(super) fn leave(&mut self, task: TaskId) {
        self.classes.count(self.tasks[task.slot()].class, false);
    }

    pub(super) fn wait(&mut self, task: TaskId, not_before: Time) {
        let at = self.pending.len() as u32;
        self.pending.push(task);
        let row = self.row_mut(task);
        row.at = at;
        row.place = Place::Pending { not_before };
    }

    pub(super) fn leave_queue(&mut self, task: TaskId) {
        let at = self.tasks[task.slot()].at as usize;
        self.pending.swap_remove(at);
        if let Some(moved) = self.pending.get(at) {
            self.tasks[moved.slot()].at = at as u32;
        }
        self.tasks[task.slot()].place = Place::Gone;
    }

    /// Puts a task that is nowhere onto its machine and into the sums. A member of an alloc that is
    /// not there stays nowhere.
    pub(super) fn settle(&mut self, task: TaskId, held: Held) {
        if held.alloc.is_some_and(|alloc| !self.allocs.contains_key(&alloc)) {
            self.leave(task);
            return;
        }
        let (m, row) = (held.machine.slot(), &self.tasks[task.slot()]);
        let (job, class) = (row.job, self.classes.get(row.class));
        let is_alloc = self.job(job).is_some_and(|j| j.spec.kind == JobKind::AllocSet);
        let list = match held.alloc.and_then(|alloc| self.allocs.get_mut(&alloc)) {
            Some(alloc) => &mut alloc.members,
            None => {
                let lowest = &mut self.machines.lowest[m];
                *lowest = (*lowest).min(class.request.priority.0);
                &mut self.machines.holders[m]
            }
        };
        let at = list.len() as u32;
        list.push(task);
        if is_alloc {
            let room = Room::of(class.request.limits.to_array());
            let machine = held.machine;
            self.allocs.insert(task, AllocRow { machine, set: job, room, members: Vec::new() });
            let set = self.sets.entry(job).or_default();
            if let Err(position) = set.binary_search(&task) {
                set.insert(position, task);
            }
        }
        let row = &mut self.tasks[task.slot()];
        row.at = at;
        row.place = Place::held(held);
        self.count_in(task);
        self.log.push(m as u32);
    }

    /// Takes a task off its machine and out of the sums. Members of an alloc must have left.
    pub(super) fn unsettle(&mut self, task: TaskId) -> Option<Held> {
        self.count_out(task);
        let row = &mut self.tasks[task.slot()];
        let (job, at, class) = (row.job, row.at as usize, row.class);
        let held = std::mem::take(&mut row.place).to_held()?;
        let m = held.machine.slot();
        let list = match held.alloc.and_then(|alloc| self.allocs.get_mut(&alloc)) {
            Some(alloc) => &mut alloc.members,
            None => &mut self.machines.holders[m],
        };
        list.swap_remove(at);
        if let Some(moved) = list.get(at) {
            self.tasks[moved.slot()].at = at as u32;
        }
        if self.allocs.remove(&task).is_some()
            && let Some(set) = self.sets.get_mut(&job)
        {
            set.retain(|alloc| *alloc != task);
        }
        if held.alloc.is_none()
            && self.classes.get(class).request.priority.0 == self.machines.lowest[m]
        {
            self.machines.lowest[m] = self.lowest_on(m);
        }
        self.log.push(m as u32);
        Some(held)
    }

    fn lowest_on(&self, m: usize) -> u16 {
        let priority = |t: &TaskId| self.classes.get(self.tasks[t.slot()].class).request.priority.0;
        self.machines.holders[m].iter().map(priority).min().unwrap_or(NOBODY)
    }

    /// Takes all tasks of a machine out of the sums, leaving them in its lists; gives them back.
    /// Those that hold room there without running there are taken out as well.
    pub(crate) fn uncount_all(&mut self, m: usize) -> Vec<TaskId> {
        let elsewhere = self.reserved_on(MachineId(m as u32));
        elsewhere.into_iter().for_each(|task| self.count_reserved(task, false));
        let mut all = self.machines.holders[m].clone();
        for holder in self.machines.holders[m].clone() {
            all.extend_from_slice(self.members(holder));
        }
        all.iter().for_each(|task| self.count_out(*task));
        all
    }

    pub(crate) fn count_in(&mut self, task: TaskId) {
        self.count(task, true);
    }

    fn count_out(&mut self, task: TaskId) {
        self.count(task, false);
    }

    fn count(&mut self, task: TaskId, add: bool) {
        let place = std::mem::take(&mut self.tasks[task.slot()].place);
        self.count_place(task, &place, false, add);
        self.tasks[task.slot()].place = place;
    }

    /// What the task holds in this place. Nobody can preempt it where it `stays`.
    pub(super) fn count_place(&mut self, task: TaskId, place: &Place, stays: bool, add: bool) {
        let Some(machine) = place.machine() else { return };
        let row = &self.tasks[task.slot()];
        let (job, class) = (row.job, row.class);
        let m = machine.slot();
        let request = &self.classes.get(class).request;
        let amounts = charges(request.priority, request.limits, place.reservation());
        let siblings = request.siblings;
        let tasks = &mut self.machines.tasks[m];
        *tasks = if add { *tasks + 1 } else { tasks.saturating_sub(1) };
        match place.alloc() {
            None => {
                shift(&mut self.machines.room[m], &amounts, add);
                let band = request.priority.band() as usize;
                let above = if stays { BANDS_BELOW_TOP } else { band };
                for rooms in &mut self.machines.without_band[..above] {
                    shift(&mut rooms[m], &amounts, add);
                }
            }
            Some(alloc) => {
                if let Some(row) = self.allocs.get_mut(&alloc) {
                    shift(&mut row.room, &amounts, add);
                }
            }
        }
        if place.alloc().is_none() && !request.named.is_empty() {
            for (name, amount) in request.named.clone() {
                let used = &mut self.machines.named_entry(m, name).used;
                *used = step(*used, amount, add);
            }
        }
        self.count_extras(m, task, place, add);
        if let Some(siblings) = siblings {
            self.count_domains(job, m, siblings.strict, add);
        }
    }

    fn count_extras(&mut self, m: usize, task: TaskId, place: &Place, add: bool) {
        let ports = &mut self.machines.ports[m];
        for port in place.ports() {
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
        if place.alloc().is_none() {
            for grant in place.devices() {
                if let Some(slot) = self.machines.devices[m].get_mut(usize::from(grant.device)) {
                    slot.used = match add {
                        true => slot.used.saturating_add(grant.milli),
                        false => slot.used.saturating_sub(grant.milli),
                    };
                }
            }
        }
    }

    fn count_domains(&mut self, job: JobId, m: usize, strict: bool, add: bool) {
        let (rack, power) = (self.machines.rack[m], self.machines.power[m]);
        let Some(row) = self.jobs.get_mut(job.slot()).and_then(Option::as_mut) else { return };
        let counts = if strict { &mut row.strict } else { &mut row.soft };
        let counts = counts.get_or_insert_with(|| Box::new(DomainCounts::default()));
        let known = |domain: u32| domain != NO_DOMAIN;
        if add {
            counts.machine.add(m as u32);
            known(rack).then(|| counts.rack.add(rack));
            known(power).then(|| counts.power.add(power));
        } else {
            counts.machine.take(m as u32);
            known(rack).then(|| counts.rack.take(rack));
            known(power).then(|| counts.power.take(power));
            row.loosened += u64::from(known(rack) || known(power));
        }
    }
}

fn shift(room: &mut Room, amounts: &[i64; SUMS], add: bool) {
    if add { room.take(amounts) } else { room.give(amounts) }
}

fn step(value: u64, by: u64, add: bool) -> u64 {
    if add { value.saturating_add(by) } else { value.saturating_sub(by) }
}
