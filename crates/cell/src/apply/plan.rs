//! Plans (B28, B32): the scheduler worked on a snapshot, so every group is checked again against
//! the present state, and is applied as a whole or not at all.
//!
//! A group of one task without victims, the usual case, decides reading only and then writes one
//! row. Any other group is tried: victims leave, tasks are placed one after the other, each checked
//! against the result of the ones before it; on a rejection the overwritten rows are restored (undo
//! log). Working on a copy of the state was rejected: a group would pay for the state's size, not
//! for its own.

use super::Context;
use crate::command::{Done, Verdict};
use crate::device::DeviceGrant;
use crate::event::TaskChange;
use crate::fit::{self, Candidate};
use crate::hold::{Hold, HoldRole, Holds};
use crate::id::{JobId, MachineId, TaskId};
use crate::job::JobState;
use crate::load::MachineLoad;
use crate::machine::{Machine, RetainedDisk};
use crate::named::{ResourceName, UNBOUNDED};
use crate::plan::{Assignment, Group, Plan, Victim};
use crate::priority::Priority;
use crate::reason::{Allowed, Conflict, Given, InfeasibleReason, Reason, Rejection, TaskAction};
use crate::resource::Resources;
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::{Grant, StopCause, Task, TaskState};
use crate::time::Span;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn commit_plan(&mut self, plan: &Plan) -> Verdict {
        if plan.groups.is_empty() {
            return Ok(Done::Unchanged);
        }
        let mut refused = Vec::new();
        for (position, group) in plan.groups.iter().enumerate() {
            if let Err(rejection) = self.commit_group(group) {
                refused.push((position as u32, rejection));
            }
        }
        Self::partial_verdict(refused)
    }

    fn commit_group(&mut self, group: &Group) -> Result<(), Rejection> {
        match (&group.victims[..], &group.assignments[..]) {
            (_, []) => {
                Err(Rejection::bad_field("group.assignments", Given::Nothing, Allowed::AtLeast(1)))
            }
            ([], [only]) => {
                self.check_assignment(only)?;
                self.check_gang(only.task, 1)?;
                self.place(only);
                Ok(())
            }
            _ => {
                let mut journal = UndoLog { events: self.events.len(), ..UndoLog::default() };
                let tried = self.try_group(group, &mut journal);
                if tried.is_err() {
                    self.roll_back(journal);
                }
                tried
            }
        }
    }

    fn try_group(&mut self, group: &Group, journal: &mut UndoLog) -> Result<(), Rejection> {
        self.check_gangs(group)?;
        let mut arrivals: BTreeMap<MachineId, Vec<&Assignment>> = BTreeMap::new();
        for assignment in &group.assignments {
            arrivals.entry(assignment.machine).or_default().push(assignment);
        }
        let mut victims = Vec::with_capacity(group.victims.len());
        let mut preemptors = Vec::with_capacity(group.victims.len());
        for victim in &group.victims {
            let (gone, by) = self.preempt(victim, &arrivals, journal)?;
            preemptors.push((gone.row.job, by));
            victims.push(gone);
        }
        victims.extend(self.preempt_rest_of_gangs(&preemptors, journal)?);
        for assignment in &group.assignments {
            self.check_assignment(assignment)?;
            journal.save_task(self.state, assignment.task);
            self.place(assignment);
        }
        for gone in &victims[..group.victims.len()] {
            if !self.is_needed(gone, &victims, &arrivals) {
                return Err(Rejection::NeedlessVictim(gone.id));
            }
        }
        Ok(())
    }

    /// Whether the group would not have fitted if the victim had stayed. A gang goes as a whole, so
    /// it is looked at as a whole.
    fn is_needed(
        &self,
        gone: &PreemptedTask,
        victims: &[PreemptedTask],
        arrivals: &BTreeMap<MachineId, Vec<&Assignment>>,
    ) -> bool {
        let job = gone.row.job;
        let is_gang = self.state.jobs.get(job).is_some_and(|row| row.spec().gang);
        let with_it =
            |other: &&PreemptedTask| other.id == gone.id || (is_gang && other.row.job == job);
        let mut stays: BTreeMap<(MachineId, Option<TaskId>), Vec<Stay<'_>>> = BTreeMap::new();
        for other in victims.iter().filter(with_it) {
            for (role, hold) in other.row.holds.iter() {
                let stay = Stay { role, hold, gone: other };
                stays.entry((hold.machine, hold.alloc)).or_default().push(stay);
            }
        }
        stays.iter().any(|(place, stays)| {
            let arrived = arrivals.get(&place.0).map_or(&[][..], |list| list);
            self.blocks_group(*place, stays, arrived)
        })
    }

    fn roll_back(&mut self, journal: UndoLog) {
        for (id, row) in journal.tasks.into_iter().rev() {
            self.state.edit_task(id, |task| *task = row);
        }
        for (id, retained) in journal.retained.into_iter().rev() {
            self.state.edit_machine(id, |machine| machine.retained = retained);
        }
        // Machines recorded as touched stay so: settling them once more changes nothing.
        self.events.truncate(journal.events);
    }

    /// Everything that must hold for one task to be placed as the plan says.
    fn check_assignment(&self, assignment: &Assignment) -> Result<(), Rejection> {
        let Assignment { task, machine, alloc, .. } = *assignment;
        let Some(candidate) = Candidate::of(self.state, task) else {
            return Err(no_such_task(task));
        };
        let row = candidate.task;
        check_attempt(task, row, assignment.attempt)?;
        if row.state != TaskState::Pending {
            let action = TaskAction::Placement;
            return Err(Rejection::WrongTaskState { task, state: row.state, action });
        }
        if row.not_before > self.now {
            return Err(Rejection::TooEarly { task, not_before: row.not_before.0 });
        }
        let state = self.state.jobs.get(row.job).map(|job| job.state);
        if state != Some(JobState::Active) {
            return Err(Rejection::WrongState(Conflict::JobNotActive(state)));
        }
        if let Some(infeasible) = fit::infeasible_reason(self.state, &candidate, machine, alloc) {
            return Err(Rejection::DoesNotFit { task, machine, infeasible });
        }
        self.check_ports_and_devices(assignment, candidate.spec)
    }

    /// Ports and devices are the scheduler's choice: they must be what the spec asks for, and free.
    pub(super) fn check_ports_and_devices(
        &self,
        assignment: &Assignment,
        spec: &JobSpec,
    ) -> Result<(), Rejection> {
        let Assignment { task, machine, ports, devices, .. } = assignment;
        let (task, machine) = (*task, *machine);
        let rows = self.state.machines.get(machine).zip(self.state.machine_load(machine));
        let Some((row, load)) = rows else { return Err(no_such_machine(machine)) };
        if !fit::ports_granted(spec, row, load, ports) {
            let taken = ports.iter().find_map(|p| Some((*p, load.port_holder(*p)?)));
            return Err(match taken {
                Some((port, holder)) => {
                    let infeasible = InfeasibleReason::StaticPort { port, holder: Some(holder) };
                    Rejection::DoesNotFit { task, machine, infeasible }
                }
                None => {
                    let (fixed, more) = (spec.task.static_ports.clone(), spec.task.ports);
                    let allowed = Allowed::PortsGranted { fixed, more, range: row.spec.ports };
                    let value = Given::Text(format!("{ports:?}"));
                    Rejection::bad_field("assignment.ports", value, allowed)
                }
            });
        }
        let requests = &spec.task.devices;
        let granted = if requests.is_empty() {
            devices.is_empty()
        } else {
            fit::devices_granted(&row.spec.devices, load, requests, devices)
        };
        if granted {
            Ok(())
        } else {
            let value = Given::Text(format!("{devices:?}"));
            Err(Rejection::bad_field("assignment.devices", value, Allowed::DevicesGranted))
        }
    }

    /// Tasks that are leaving a place, a group's victims or others: any of them may still be using
    /// what is given to a task that is placed there, or that grows there. A task that is placed in
    /// an alloc waits also for those the alloc itself waits for.
    pub(super) fn leaving(
        &self,
        machine: MachineId,
        alloc: Option<TaskId>,
        ports: &[u16],
    ) -> Vec<Victim> {
        let load = self.state.machine_load(machine);
        let Some(load) = load.filter(|load| load.stopping > 0) else { return Vec::new() };
        let outer = alloc.and_then(|alloc| self.state.tasks.get(alloc)?.grant());
        let victim = |id: &TaskId| {
            let row = self.state.tasks.get(*id)?;
            let victim = Victim { task: *id, attempt: row.attempt };
            let same = row.alloc() == alloc
                || shares_any_port(row.ports(), ports)
                || outer.is_some_and(|grant| grant.waits_for.contains(&victim));
            (!row.state.holds_resources() && same).then_some(victim)
        };
        load.tasks.iter().filter_map(victim).collect()
    }

    fn place(&mut self, assignment: &Assignment) {
        let Assignment { task, machine, alloc, ports, devices, .. } = assignment;
        let waits_for = self.leaving(*machine, *alloc, ports);
        let nothing = ports.is_empty() && devices.is_empty() && waits_for.is_empty();
        let grant = (!nothing).then(|| {
            let (ports, devices) = (ports.clone(), devices.clone());
            Arc::new(Grant { ports, devices, waits_for })
        });
        let job = self.state.tasks.get(*task).and_then(|row| self.state.jobs.get(row.job));
        let Some(version) = job.map(|job| job.version) else { return };
        self.set_task(*task, |row| {
            row.state = TaskState::Assigned;
            row.attempt = row.attempt.saturating_add(1);
            row.version = version;
            row.holds = Holds::primary_only(Hold { machine: *machine, alloc: *alloc, grant });
            row.notice_max = None;
        });
        self.task_event(*task, TaskChange::Scheduled { machine: *machine }, Reason::FoundPlace);
    }

    fn check_gangs(&self, group: &Group) -> Result<(), Rejection> {
        let mut placed: BTreeMap<JobId, (TaskId, u32)> = BTreeMap::new();
        for assignment in &group.assignments {
            let Some(row) = self.state.tasks.get(assignment.task) else {
                return Err(no_such_task(assignment.task));
            };
            placed.entry(row.job).or_insert((assignment.task, 0)).1 += 1;
        }
        placed.into_values().try_for_each(|(task, count)| self.check_gang(task, count))
    }

    /// A gang is placed when all live tasks of it are placed: stopping ones count as missing, so
    /// the rest waits for them instead of holding room for a partial gang.
    fn check_gang(&self, task: TaskId, placed: u32) -> Result<(), Rejection> {
        let row = self.state.tasks.get(task);
        let Some(job) = row.and_then(|row| self.state.jobs.get(row.job)) else {
            return Err(no_such_task(task));
        };
        if !job.spec().gang {
            return Ok(());
        }
        let missing = |id: &&TaskId| {
            let state = self.state.tasks.get(**id).map(|row| row.state);
            state.is_some_and(|state| !state.is_dead() && !state.holds_resources())
        };
        let needed = job.tasks.iter().filter(missing).count() as u32;
        if placed < needed { Err(Rejection::PartialGang { placed, needed }) } else { Ok(()) }
    }

    /// Stops a victim, if the tasks that take its room may preempt it; returns its former place and
    /// row, and who preempts it.
    fn preempt(
        &mut self,
        victim: &Victim,
        arrivals: &BTreeMap<MachineId, Vec<&Assignment>>,
        journal: &mut UndoLog,
    ) -> Result<(PreemptedTask, (Priority, TaskId)), Rejection> {
        let id = victim.task;
        let row = self.task_at_attempt(id, victim.attempt)?;
        let (TaskState::Assigned | TaskState::Running, Some(machine)) = (row.state, row.machine())
        else {
            let action = TaskAction::Preemption;
            return Err(Rejection::WrongTaskState { task: id, state: row.state, action });
        };
        let Some(priority) = self.state.spec_of(&row).map(|spec| spec.priority) else {
            return Err(no_such_task(id));
        };
        let arriving = arrivals.get(&machine).map_or(&[][..], |list| list);
        let exceeds_task_limit = self.exceeds_machine_tasks(machine, arriving.len() as u64);
        let gone = PreemptedTask { exceeds_task_limit, ..self.preempted_task(id, row) };
        let by = self.weakest_preemptor(&gone, arriving).ok_or(Rejection::NeedlessVictim(id))?;
        if !by.0.may_preempt(priority) {
            return Err(Rejection::MayNotPreempt { by: by.0, victim: priority });
        }
        self.check_budget_against(by.0, id)?;
        journal.save_victim(self.state, id, machine);
        let most = self.notice_limit(&gone, arriving);
        self.stop_task(id, StopCause::Preempted, Reason::Preempted { by: by.1 });
        if most.is_some() {
            self.limit_notice(id, most);
        }
        Ok((gone, by))
    }

    /// The task as it is before it is preempted.
    pub(super) fn preempted_task(&self, id: TaskId, row: Task) -> PreemptedTask {
        let ports = self.ports_with_inner(id, &row);
        let inner = self.state.alloc_load(id).map_or(&[][..], |load| &load.tasks).iter();
        let inner = inner.filter_map(|inner| self.state.tasks.get(*inner));
        let inner = inner.filter(|inner| inner.state.holds_resources()).count() as u64;
        let inner = inner + self.state.alloc_load(id).map_or(0, |load| load.held_for.len() as u64);
        PreemptedTask { id, row, ports, inner, exceeds_task_limit: false }
    }

    /// Whether this many more tasks would be more than the machine may hold.
    fn exceeds_machine_tasks(&self, machine: MachineId, more: u64) -> bool {
        let held = self.state.machine_load(machine).map_or(0, MachineLoad::holder_count);
        held.saturating_add(more) > self.state.bounds.machine_tasks
    }

    /// The shortest notice that the preemptors accept for the victim (B8). Non-prod preemptors
    /// shorten no notice.
    fn notice_limit(&self, victim: &PreemptedTask, arriving: &[&Assignment]) -> Option<Span> {
        let takers = arriving.iter().filter(|a| victim.is_replaced_by(a));
        let may_bound = |spec: &JobSpec| spec.priority.is_prod();
        let bounds = takers.filter_map(|a| {
            let taker = Candidate::of(self.state, a.task)?;
            taker.spec.preemption_notice_max.filter(|_| may_bound(taker.spec))
        });
        bounds.min()
    }

    /// An alloc is gone when all tasks inside it are, so a bound on its notice bounds theirs.
    pub(super) fn limit_notice(&mut self, id: TaskId, most: Option<Span>) {
        let inner = self.state.alloc_load(id).map_or_else(Vec::new, |load| load.tasks.clone());
        for task in inner.into_iter().chain([id]) {
            self.set_task(task, |row| {
                let shorter = |most: Span| row.notice_max.map_or(most, |had| had.min(most));
                row.notice_max = most.map(shorter);
            });
        }
    }

    /// Ports of a task where it is, and of those inside it when it is an alloc: they leave with it.
    fn ports_with_inner(&self, id: TaskId, row: &Task) -> Vec<u16> {
        let mut ports = row.ports().to_vec();
        for inner in self.state.alloc_load(id).map_or(&[][..], |load| &load.tasks) {
            ports.extend(self.state.tasks.get(*inner).map_or(&[][..], |task| task.ports()));
        }
        for inner in self.state.alloc_load(id).map_or(&[][..], |load| &load.held_for) {
            let hold = self.state.tasks.get(*inner).and_then(|task| task.holds.reserved());
            ports.extend(hold.map_or(&[][..], Hold::ports));
        }
        ports
    }

    /// Of the tasks that take the victim's room, one of its ports or its task slot, the one with
    /// the lowest priority: a high-priority task must not clear the way for a low-priority one of
    /// its group.
    fn weakest_preemptor(
        &self,
        victim: &PreemptedTask,
        arriving: &[&Assignment],
    ) -> Option<(Priority, TaskId)> {
        let takes = |a: &&&Assignment| victim.is_replaced_by(a);
        let priority = |a: &&Assignment| {
            let spec = Candidate::of(self.state, a.task)?.spec;
            Some((spec.priority, a.task))
        };
        arriving.iter().filter(takes).filter_map(priority).min_by_key(|(priority, _)| *priority)
    }

    /// Whether the group would not have fitted in this place if these had stayed there. Only what
    /// the arrivals ask for counts: an earlier excess is no reason to preempt.
    fn blocks_group(
        &self,
        (machine, alloc): (MachineId, Option<TaskId>),
        stays: &[Stay<'_>],
        arrived: &[&Assignment],
    ) -> bool {
        let rows = self.state.machines.get(machine).zip(self.state.machine_load(machine));
        let Some((row, load)) = rows else { return false };
        let takes_port =
            |stay: &Stay<'_>| arrived.iter().any(|a| shares_any_port(stay.ports(), &a.ports));
        let tasks: u64 = stays.iter().map(Stay::tasks).sum();
        let arrives = !arrived.is_empty();
        if stays.iter().any(takes_port) || (arrives && self.exceeds_machine_tasks(machine, tasks)) {
            return true;
        }
        let beside = arrived.iter().filter(|a| a.alloc == alloc);
        let asks: Vec<Candidate<'_>> =
            beside.filter_map(|a| Candidate::of(self.state, a.task)).collect();
        let (capacity, mut prod_limits, mut stayed) = fit::held_sums(self.state, row, load, alloc);
        let mut is_by_limits = false;
        for Stay { gone, .. } in stays {
            let Some(spec) = self.state.spec_of(&gone.row) else { continue };
            let retained = retained_disk_of(row, gone.id, &gone.row);
            stayed = stayed.minus(retained).plus(gone.row.reservation);
            if spec.is_packed_by_limits() {
                let limits = gone.row.counted_limits(spec.limits_of(gone.row.index));
                prod_limits = prod_limits.plus(limits);
                is_by_limits = true;
            }
        }
        let requested = asks.iter().fold(Resources::ZERO, |sum, c| sum.plus(c.task.reservation));
        let mut lacks = exceeds_where_requested(requested, stayed, capacity);
        if is_by_limits {
            let alike = asks.iter().filter(|c| c.spec.is_packed_by_limits());
            let requested = alike.fold(Resources::ZERO, |sum, c| sum.plus(c.limits()));
            lacks |= exceeds_where_requested(requested, prod_limits, capacity);
        }
        lacks || (alloc.is_none() && exceeds_devices_or_named(self.state, machine, stays, &asks))
    }
}

/// Undo log: the rows a group overwrote, in order.
#[derive(Default)]
pub(super) struct UndoLog {
    tasks: Vec<(TaskId, Task)>,
    retained: Vec<(MachineId, Vec<RetainedDisk>)>,
    /// Number of events before the group.
    events: usize,
}

impl UndoLog {
    fn save_task(&mut self, state: &State, id: TaskId) {
        self.tasks.extend(state.tasks().get(id).map(|row| (id, row.clone())));
    }

    /// A victim takes the tasks inside it along, releases reservations of others there, and may
    /// leave retained disk behind.
    pub(super) fn save_victim(&mut self, state: &State, id: TaskId, machine: MachineId) {
        self.save_task(state, id);
        if let Some(load) = state.alloc_load(id) {
            let inner = load.tasks.iter().chain(&load.held_for);
            inner.for_each(|task| self.save_task(state, *task));
        }
        let row = state.machines().get(machine);
        self.retained.extend(row.map(|row| (machine, row.retained.clone())));
    }
}

fn no_such_task(task: TaskId) -> Rejection {
    Rejection::NoSuchRow(task.into())
}

fn no_such_machine(machine: MachineId) -> Rejection {
    Rejection::NoSuchRow(machine.into())
}

fn check_attempt(task: TaskId, row: &Task, expected: u32) -> Result<(), Rejection> {
    if row.attempt == expected {
        Ok(())
    } else {
        Err(Rejection::StaleAttempt { task, expected, found: row.attempt })
    }
}

/// A victim as it was before the group.
pub(super) struct PreemptedTask {
    id: TaskId,
    row: Task,
    ports: Vec<u16>,
    /// Tasks inside it that leave with it.
    inner: u64,
    /// The machine could not hold that many tasks with the victim, whatever they ask for.
    exceeds_task_limit: bool,
}

impl PreemptedTask {
    fn is_replaced_by(&self, assignment: &Assignment) -> bool {
        self.exceeds_task_limit
            || assignment.alloc == self.row.alloc()
            || self.shares_port(assignment)
    }

    fn shares_port(&self, assignment: &Assignment) -> bool {
        shares_any_port(&self.ports, &assignment.ports)
    }
}

/// A hold of a victim, as if it had stayed.
struct Stay<'a> {
    role: HoldRole,
    hold: &'a Hold,
    gone: &'a PreemptedTask,
}

impl Stay<'_> {
    fn ports(&self) -> &[u16] {
        match self.role {
            HoldRole::Primary => &self.gone.ports,
            HoldRole::Reserved => self.hold.ports(),
        }
    }

    /// Tasks there, with those inside it.
    fn tasks(&self) -> u64 {
        match self.role {
            HoldRole::Primary => 1 + self.gone.inner,
            HoldRole::Reserved => 1,
        }
    }
}

fn shares_any_port(ports: &[u16], others: &[u16]) -> bool {
    ports.iter().any(|port| others.contains(port))
}

/// Disk retained because the victim left.
fn retained_disk_of(row: &Machine, id: TaskId, victim: &Task) -> Resources {
    let mine = row.retained.iter().filter(|r| r.task == id && r.attempt == victim.attempt);
    let disk = mine.fold(0, |sum: u64, r| sum.saturating_add(r.bytes));
    Resources { disk, ..Resources::ZERO }
}

/// Whether `sum` exceeds `capacity` in a dimension that was requested.
fn exceeds_where_requested(requested: Resources, sum: Resources, capacity: Resources) -> bool {
    let triples = requested.to_array().into_iter().zip(sum.to_array()).zip(capacity.to_array());
    triples.into_iter().any(|((requested, sum), capacity)| requested > 0 && sum > capacity)
}

/// The same for devices and named resources.
fn exceeds_devices_or_named(
    state: &State,
    machine: MachineId,
    stays: &[Stay<'_>],
    asks: &[Candidate<'_>],
) -> bool {
    let Some(load) = state.machine_load(machine) else { return false };
    let device = |at: u8| {
        let held = |devices: &[DeviceGrant]| -> u32 {
            let mine = devices.iter().filter(|grant| grant.device == at);
            mine.map(|grant| u32::from(grant.milli)).sum()
        };
        let free = u32::from(load.device_free(usize::from(at)));
        let stayed: u32 = stays.iter().map(|stay| held(stay.hold.devices())).sum();
        stayed > free && asks.iter().any(|c| held(c.task.devices()) > 0)
    };
    let mut amounts: BTreeMap<ResourceName, u64> = BTreeMap::new();
    for spec in stays.iter().filter_map(|stay| state.spec_of(&stay.gone.row)) {
        for mine in spec.named_demand().iter() {
            let sum = amounts.entry(mine.name.clone()).or_default();
            *sum = sum.saturating_add(mine.amount);
        }
    }
    let named = amounts.into_iter().any(|(name, amount)| {
        let capacity = state.named_capacity(machine, &name);
        let used = load.named_used(&name).saturating_add(amount);
        let requested =
            |c: &Candidate<'_>| c.spec.named_demand().iter().any(|ask| ask.name == name);
        capacity != UNBOUNDED && used > capacity && asks.iter().any(requested)
    });
    named || stays.iter().flat_map(|stay| stay.hold.devices()).any(|grant| device(grant.device))
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::bounds::Bounds;
    use crate::command::{Command, Observed};
    use crate::constraint::AttributeValue;
    use crate::device::{Device, DeviceGrant, DeviceRequest};
    use crate::id::MachineId;
    use crate::isolation::{HOST_VOLUME_READ_ONLY, Volume, host_volume_attribute};
    use crate::name::Token;
    use crate::plan::{Assignment, Group, Plan, Victim};
    use crate::priority::Band;
    use crate::spec::{JobKind, JobSpec, RetainDisk};
    use crate::task::{StopCause, TaskState};
    use crate::time::Span;
    use crate::words;

    const STOPPING: TaskState = TaskState::Stopping(StopCause::Preempted);

    /// `job/index@machine`, at the attempt the task is at.
    fn assign(cell: &Cell, text: &str) -> Assignment {
        let (task, machine) = text.split_once('@').unwrap();
        let (job, index) = task.split_once('/').unwrap();
        let index = index.parse().unwrap();
        Assignment {
            task: cell.task_id(job, index),
            attempt: cell.task(job, index).attempt,
            machine: MachineId(machine[1..].parse::<u32>().unwrap() - 1),
            alloc: None,
            ports: Vec::new(),
            devices: Vec::new(),
        }
    }

    fn group(cell: &Cell, victims: &[&str], assignments: &[&str]) -> Group {
        let victim = |text: &&str| {
            let (job, index) = text.split_once('/').unwrap();
            let index = index.parse().unwrap();
            Victim { task: cell.task_id(job, index), attempt: cell.task(job, index).attempt }
        };
        Group {
            victims: victims.iter().map(victim).collect(),
            assignments: assignments.iter().map(|text| assign(cell, text)).collect(),
        }
    }

    fn commit(cell: &mut Cell, groups: Vec<Group>) -> String {
        let command = Command::CommitPlan(Plan { made_at: 0, groups });
        let verdict = cell.send(command);
        words::verdict(&cell.state, &verdict)
    }

    /// Two machines full of best effort (50 each: `jlow/0`, `jlow/1`) and batch (50 each:
    /// `jmid/0`, `jmid/1`); a prod job `jtop` of 50, and a batch job `jpal` of 50, wait.
    fn full_cell() -> Cell {
        full_cell_with(|_| {})
    }

    fn full_cell_with(low: fn(&mut JobSpec)) -> Cell {
        let mut cell = Cell::with_machines(2);
        for band in [Band::BestEffort, Band::Batch, Band::Production] {
            cell.grant("ubar", band, 200);
        }
        let mut spec = job("jlow", 2, 50);
        spec.task.limits = all(50);
        low(&mut spec);
        cell.submit(&spec);
        for (name, count, priority) in [("jmid", 2, 100), ("jtop", 2, 200), ("jpal", 1, 100)] {
            let mut spec = job(name, count, priority);
            spec.task.limits = all(50);
            cell.submit(&spec);
        }
        for job in ["jlow", "jmid"] {
            cell.run(job, 0, "m1");
            cell.run(job, 1, "m2");
        }
        cell
    }

    fn check(victims: &[&str], assignments: &[&str], want: &str) {
        let mut cell = full_cell();
        let mut hash = cell.state.clone();
        let group = group(&cell, victims, assignments);
        let message = commit(&mut cell, vec![group]);
        let context = format!("{victims:?} {assignments:?}");
        match want {
            "done" => assert_eq!(message, "done", "{context}"),
            _ => {
                assert!(message.contains(want), "{context}: {message}");
                assert!(cell.event_lines.is_empty(), "{context}: {:?}", cell.event_lines);
                // Time and the count of entries moved on; no row did.
                hash.now = cell.state.now;
                hash.applied = cell.state.applied;
                assert_eq!(hash.hash(), cell.state.hash(), "{context}");
            }
        }
    }

    #[test]
    fn victims_are_weaker_on_the_spot_and_needed() {
        check(&["jlow/0"], &["jtop/0@m1"], "done");
        check(&["jmid/0"], &["jtop/0@m1"], "done");
        check(&["jlow/0"], &["jpal/0@m1"], "done");
        check(&["jlow/0", "jlow/1"], &["jtop/0@m1", "jtop/1@m2"], "done");
        check(&["jlow/0", "jmid/0"], &["jtop/0@m1", "jtop/1@m1"], "done");
        check(&[], &["jtop/0@m1"], "cpu");
        check(&["jlow/0"], &["jtop/0@m2"], "need not give way");
        check(&["jlow/0", "jmid/0"], &["jtop/0@m1"], "need not give way");
        check(&["jmid/0"], &["jpal/0@m1"], "priority 100 may not preempt priority 100");
        // A high-priority task must not clear the way for a low-priority one beside it.
        let cleared = &["jtop/0@m1", "jpal/0@m1"];
        check(&["jlow/0", "jmid/0"], cleared, "priority 100 may not preempt priority 100");
        check(&["jlow/0", "jlow/0"], &["jtop/0@m1"], "only assigned and running tasks give way");
        check(&["jlow/0"], &["jtop/0@m1", "jtop/1@m2"], "cpu");
        check(&["jlow/0"], &["jtop/0@m1", "jtop/0@m1"], "at attempt 1, not 0");
        check(&["jlow/0"], &[], "group.assignments");
        check(&["jtop/0"], &["jtop/1@m1"], "only assigned and running tasks give way");
    }

    #[test]
    fn a_victim_hands_its_room_over_and_keeps_to_its_budget() {
        let mut cell = full_cell();
        let group1 = group(&cell, &["jlow/0"], &["jtop/0@m1"]);
        assert_eq!(commit(&mut cell, vec![group1]), "done");
        assert_eq!(cell.states("jlow"), [STOPPING, TaskState::Running]);
        let top = cell.task("jtop", 0);
        assert_eq!((top.state, top.attempt), (TaskState::Assigned, 1));
        let low = Victim { task: cell.task_id("jlow", 0), attempt: 1 };
        assert_eq!(top.grant().unwrap().waits_for, [low]);
        // A budget protects from its own band, and from no higher one.
        let check = |most, priority, want: [&str; 2]| {
            let mut cell = full_cell();
            cell.grant("ubar", Band::Batch, 300);
            let mut spec = job("jlow", 2, 50);
            (spec.task.limits, spec.max_down) = (all(50), Some(most));
            cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
            let mut taker = job("jtaker", 2, priority);
            taker.task.limits = all(50);
            cell.submit(&taker);
            for (index, want) in want.into_iter().enumerate() {
                let (victim, taker) = (format!("jlow/{index}"), format!("jtaker/{index}"));
                let one = group(&cell, &[&victim], &[&format!("{taker}@m{}", index + 1)]);
                let message = commit(&mut cell, vec![one]);
                assert!(message.contains(want), "{most} for {priority}: {message}");
            }
        };
        check(0, 60, ["at most 0 allowed", "at most 0 allowed"]);
        check(1, 60, ["done", "at most 1 allowed"]);
        check(0, 100, ["done", "done"]);
        check(1, 200, ["done", "done"]);
    }

    /// Disk that a victim leaves behind is charged at once, and released when the group is
    /// rejected.
    #[test]
    fn retained_disk_of_a_victim_comes_and_goes_with_the_group() {
        let retains = |low: &mut JobSpec| {
            low.retain_disk =
                Some(RetainDisk { bytes: 20, keep: Span::seconds(60), log_saver: None });
        };
        let mut cell = full_cell_with(retains);
        let refused = group(&cell, &["jlow/0"], &["jtop/0@m1"]);
        let message = commit(&mut cell, vec![refused]);
        assert!(message.contains("disk"), "{message}");
        let machine = cell.state.machines().get(MachineId(0)).unwrap();
        assert_eq!(machine.retained, []);
        let mut small = job("jsmall", 1, 200);
        small.task.limits = all(30);
        cell.submit(&small);
        let taken = group(&cell, &["jlow/0"], &["jsmall/0@m1"]);
        assert_eq!(commit(&mut cell, vec![taken]), "done");
        let load = cell.state.machine_load(MachineId(0)).unwrap();
        assert_eq!((load.reserved.disk, load.reserved.cpu), (100, 80));
    }

    /// `m1` offers `/srv` read-only and `m2` nothing; both tasks of `jfoo` need it.
    #[test]
    fn a_task_that_borrows_goes_only_where_its_volume_is_lent() {
        let borrows = |writable| {
            let mut cell = Cell::with_machines(2);
            let mut lender = machine("m1", 100);
            let how = AttributeValue::Text(HOST_VOLUME_READ_ONLY.into());
            lender.attributes.insert(host_volume_attribute("/srv").unwrap(), how);
            cell.ok(Command::UpdateMachine { spec: lender, expect: None });
            let mut spec = job("jfoo", 2, 100);
            let (source, target) = ("/srv/data".into(), "/data".into());
            spec.task.isolation.volumes = vec![Volume { source, target, writable }];
            cell.submit(&spec);
            cell
        };
        let place = |cell: &mut Cell, text: &str| {
            let group = group(cell, &[], &[text]);
            commit(cell, vec![group])
        };
        let mut cell = borrows(false);
        let message = place(&mut cell, "jfoo/0@m2");
        assert!(message.contains("the machine does not lend volume /srv/data"), "{message}");
        assert_eq!(place(&mut cell, "jfoo/0@m1"), "done");
        // A plan that was made before the operator removed the volume is too late.
        cell.ok(Command::UpdateMachine { spec: machine("m1", 100), expect: None });
        let message = place(&mut cell, "jfoo/1@m1");
        assert!(message.contains("the machine does not lend volume /srv/data"), "{message}");
        let message = place(&mut borrows(true), "jfoo/0@m1");
        assert!(message.contains("does not lend volume /srv/data for writing"), "{message}");
    }

    /// A pending task that `spoil` makes unfit to be placed as planned.
    fn check_single(spoil: fn(&mut Cell, &mut Assignment), want: &str) {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = None;
        cell.submit(&spec);
        let mut assignment = assign(&cell, "jfoo/0@m1");
        spoil(&mut cell, &mut assignment);
        let group = Group { victims: vec![], assignments: vec![assignment] };
        let message = commit(&mut cell, vec![group]);
        assert!(message.contains(want), "{message}, not {want}");
    }

    #[test]
    fn a_stale_assignment_is_refused() {
        use crate::command::Observed;
        use crate::task::ExitClass;
        check_single(|_, _| {}, "done");
        check_single(|_, a| a.attempt = 3, "is at attempt 0, not 3");
        check_single(|_, a| a.machine = MachineId(9), "down");
        check_single(|_, a| a.task = crate::id::TaskId(99), "no such row: task 99");
        check_single(
            |cell, a| {
                cell.run("jfoo", 0, "m1");
                a.attempt = 1;
            },
            "only pending tasks are placed",
        );
        check_single(
            |cell, a| {
                cell.run("jfoo", 0, "m1");
                cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(1)));
                a.attempt = 1;
            },
            "may not start before",
        );
        check_single(
            |cell, _| {
                cell.ok(Command::MachineDown { machine: MachineId(0) });
            },
            "down",
        );
        check_single(
            |cell, _| {
                let name = crate::apply::fixture::name("m1");
                cell.ok(Command::StartDrain { name, expect: None });
            },
            "drain",
        );
        check_single(|_, a| a.alloc = Some(a.task), "alloc");
        check_single(|_, a| a.alloc = Some(crate::id::TaskId(99)), "alloc");
    }

    /// Grants for a task with one static and one chosen port and two devices.
    fn check_choices(ports: &[u16], devices: &[(u8, u16)], want: &str) {
        let mut cell = Cell::with_machines(0);
        let token = |text| Token::new(text).unwrap();
        let mut machine = crate::apply::fixture::machine("m1", 100);
        let gpu = Device { kind: token("gpu"), model: token("a") };
        machine.devices = vec![gpu.clone(), gpu, Device { kind: token("nic"), model: token("a") }];
        cell.ok(Command::AddMachine(machine));
        cell.ok(Command::MachineUp { machine: MachineId(0), incarnation: 1 });
        let mut holder = job("jbar", 1, 100);
        holder.task.ports = 1;
        cell.submit(&holder);
        cell.run("jbar", 0, "m1");
        let mut spec = job("jfoo", 1, 100);
        spec.task.static_ports = vec![80];
        spec.task.ports = 1;
        let kind = token("gpu");
        spec.task.devices = vec![DeviceRequest { kind, models: vec![], count: 2, milli: 1000 }];
        cell.submit(&spec);
        let mut assignment = assign(&cell, "jfoo/0@m1");
        assignment.ports = ports.to_vec();
        let grant = |(device, milli): &(u8, u16)| DeviceGrant { device: *device, milli: *milli };
        assignment.devices = devices.iter().map(grant).collect();
        let message =
            commit(&mut cell, vec![Group { victims: vec![], assignments: vec![assignment] }]);
        assert!(message.contains(want), "{ports:?} {devices:?}: {message}");
    }

    #[test]
    fn ports_and_devices_are_what_was_asked_for_and_free() {
        let both = [(0, 1000), (1, 1000)];
        check_choices(&[80, 20_001], &both, "done");
        check_choices(&[80, 20_000], &both, "20000");
        check_choices(&[80], &both, "assignment.ports");
        check_choices(&[81, 20_001], &both, "assignment.ports");
        check_choices(&[80, 80], &both, "assignment.ports");
        check_choices(&[80, 5], &both, "assignment.ports");
        check_choices(&[80, 20_001], &both[..1], "assignment.devices");
        check_choices(&[80, 20_001], &[(0, 1000), (0, 1000)], "assignment.devices");
        check_choices(&[80, 20_001], &[(0, 1000), (2, 1000)], "assignment.devices");
        check_choices(&[80, 20_001], &[(0, 1000), (9, 1000)], "assignment.devices");
        check_choices(&[80, 20_001], &[(0, 1000), (1, 400)], "assignment.devices");
    }

    #[test]
    fn a_port_is_worth_a_preemption() {
        let mut cell = Cell::with_machines(1);
        for (name, priority) in [("jlow", 100), ("jtop", 200)] {
            let mut spec = job(name, 1, priority);
            spec.task.static_ports = vec![80];
            cell.submit(&spec);
        }
        cell.run("jlow", 0, "m1");
        let mut clash = group(&cell, &["jlow/0"], &["jtop/0@m1"]);
        clash.assignments[0].ports = vec![80];
        assert_eq!(commit(&mut cell, vec![clash]), "done");
    }

    /// Tasks that ask for nothing still fill a machine, and are preempted like others.
    #[test]
    fn a_machine_holds_as_many_tasks_as_it_may_whatever_they_ask_for() {
        let mut cell = Cell::with_machines(2);
        let bounds = |machine_tasks| Bounds { machine_tasks, ..Bounds::default() };
        assert!(cell.rejection_text(Command::SetBounds(bounds(0))).contains("machine_tasks"));
        cell.ok(Command::SetBounds(bounds(3)));
        for (name, count, priority) in [("jnil", 9, 0), ("jtop", 2, 200)] {
            let mut spec = job(name, count, priority);
            spec.task.limits = all(0);
            cell.submit(&spec);
        }
        let place = |cell: &mut Cell, victims: &[&str], text: &[&str]| {
            let group = group(cell, victims, text);
            commit(cell, vec![group])
        };
        let full = "the machine has as many tasks as it may: 3";
        assert_eq!(place(&mut cell, &[], &["jnil/0@m1", "jnil/1@m1", "jnil/2@m1"]), "done");
        assert!(place(&mut cell, &[], &["jnil/3@m1"]).contains(full));
        let message = place(&mut cell, &[], &["jnil/3@m2", "jnil/4@m2", "jnil/5@m2", "jnil/6@m2"]);
        assert!(message.contains(full), "{message}");
        assert_eq!(cell.task("jnil", 3).state, TaskState::Pending, "nothing of the group");
        // A preemptor takes the place of one task, and evicts no more than it needs.
        let message = place(&mut cell, &["jnil/0", "jnil/1"], &["jtop/0@m1"]);
        assert!(message.contains("need not give way"), "{message}");
        let message = place(&mut cell, &["jnil/0"], &["jnil/3@m1"]);
        assert!(message.contains("may not preempt"), "{message}");
        assert_eq!(place(&mut cell, &["jnil/0"], &["jtop/0@m1"]), "done");
        assert!(place(&mut cell, &[], &["jtop/1@m1"]).contains(full));
        // A stopping task holds nothing any more; a lower bound evicts no task.
        cell.ok(Command::SetBounds(bounds(1)));
        assert_eq!(cell.state.machine_load(MachineId(0)).map(|load| load.holder_count()), Some(3));
    }

    /// Tasks inside an alloc count, and on a full machine a task that goes into an alloc may
    /// preempt anywhere on that machine.
    #[test]
    fn tasks_inside_an_alloc_count_among_those_that_a_machine_may_hold() {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::SetBounds(Bounds { machine_tasks: 3, ..Bounds::default() }));
        let mut set = job("jset", 1, 200);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        let mut inner = job("jin", 2, 200);
        inner.alloc_set = Some(key("ubar/jset"));
        inner.task.limits = all(0);
        cell.submit(&inner);
        let mut other = job("jnil", 2, 0);
        other.task.limits = all(0);
        cell.submit(&other);
        let alloc = cell.task_id("jset", 0);
        let filled = group(&cell, &[], &["jset/0@m1", "jnil/0@m1", "jnil/1@m1"]);
        assert_eq!(commit(&mut cell, vec![filled]), "done");
        let into = |cell: &Cell, victims: &[&str]| {
            let mut group = group(cell, victims, &["jin/0@m1"]);
            group.assignments[0].alloc = Some(alloc);
            group
        };
        let alone = into(&cell, &[]);
        assert!(commit(&mut cell, vec![alone]).contains("as many tasks as it may: 3"));
        let both = into(&cell, &["jnil/0", "jnil/1"]);
        assert!(commit(&mut cell, vec![both]).contains("need not give way"));
        let one = into(&cell, &["jnil/0"]);
        assert_eq!(commit(&mut cell, vec![one]), "done");
    }

    #[test]
    fn a_gang_is_placed_whole_or_not_at_all() {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("jfoo", 3, 100);
        spec.gang = true;
        spec.task.limits = all(30);
        cell.submit(&spec);
        let whole = ["jfoo/0@m1", "jfoo/1@m1", "jfoo/2@m2"];
        for (part, want) in [
            (&whole[..1], "1 of 3 tasks in the group"),
            (&whole[..2], "2 of 3 tasks in the group"),
            (&whole[..], "done"),
        ] {
            let group = group(&cell, &[], part);
            let message = commit(&mut cell, vec![group]);
            assert!(message.contains(want), "{part:?}: {message}");
        }
        // A lost one comes back alone: with it the gang is whole.
        cell.ok(Command::MachineDown { machine: MachineId(1) });
        let alone = group(&cell, &[], &["jfoo/2@m1"]);
        assert_eq!(commit(&mut cell, vec![alone]), "done");
    }

    #[test]
    fn an_alloc_is_placed_with_its_tasks_in_one_group() {
        let mut cell = Cell::with_machines(1);
        let mut set = job("jset", 1, 100);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        let mut inner = job("jfoo", 2, 100);
        inner.alloc_set = Some(key("ubar/jset"));
        inner.task.limits = all(5);
        cell.submit(&inner);
        let alloc = cell.task_id("jset", 0);
        let mut group = group(&cell, &[], &["jset/0@m1", "jfoo/0@m1", "jfoo/1@m1"]);
        group.assignments[1].alloc = Some(alloc);
        group.assignments[2].alloc = Some(alloc);
        group.assignments.swap(0, 1);
        let message = commit(&mut cell, vec![group.clone()]);
        assert!(message.contains("alloc"), "an alloc comes before what goes into it: {message}");
        group.assignments.swap(0, 1);
        assert_eq!(commit(&mut cell, vec![group]), "done");
        assert_eq!(cell.state.alloc_load(alloc).unwrap().tasks.len(), 2);
    }

    #[test]
    fn whoever_gets_a_place_waits_for_all_who_are_leaving_it() {
        let mut cell = full_cell();
        cell.ok(Command::StopJob { job: key("ubar/jmid"), expect: None });
        let placed = group(&cell, &[], &["jpal/0@m1"]);
        assert_eq!(commit(&mut cell, vec![placed]), "done");
        let mid = Victim { task: cell.task_id("jmid", 0), attempt: 1 };
        assert_eq!(cell.task("jpal", 0).grant().unwrap().waits_for, [mid]);
        cell.report("jmid", 0, Observed::Stopped);
        cell.report("jpal", 0, Observed::Started);
        assert_eq!(cell.task("jpal", 0).grant(), None);
        assert_eq!(cell.state.machine_load(MachineId(0)).map(|load| load.stopping), Some(0));
        // No leaving tasks, nothing to wait for.
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        assert_eq!(cell.task("jfoo", 0).grant(), None);
    }
}
