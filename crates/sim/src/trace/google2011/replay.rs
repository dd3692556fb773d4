//! The cell at any moment, by replaying machine and task events.
//!
//! Both tables are sorted by time, so reading stops at the first later event. A machine is up from
//! its ADD to its REMOVE, with the capacity of its last ADD or UPDATE. A task waits from SUBMIT,
//! runs from SCHEDULE, and is gone after EVICT, FAIL, FINISH, KILL and LOST until it is submitted
//! again; UPDATE events change what it requests. Some events leave fields empty (the first events
//! of tasks whose creation was not seen); then the values of an earlier event apply.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::trace::problem::FieldProblem;
use crate::trace::table::Flow;
use crate::trace::{Input, ReadReport, TraceError};

use super::files::{TraceTable, find_files};
use super::task_events::{EventKind, TaskEvent};
use super::{
    MachineEvent, MachineEventKind, MachineId, MachineRow, Platform, Snapshot, TaskKey, TaskRow,
    TaskState, UserId, machine_events, task_events,
};

/// Replays the events of a folder up to and including `time_us`.
///
/// At 0, and at any time up to the trace start at 600 s, this gives the rows of the derived
/// tables. A time beyond the last task event is an error, since nothing is known of it.
pub fn snapshot_at(folder: &Path, time_us: u64) -> Result<Snapshot, TraceError> {
    let machine_files = find_files(folder, TraceTable::MachineEvents)?;
    let task_files = find_files(folder, TraceTable::TaskEvents)?;
    let open = |file: &PathBuf| Input::open(file);
    replay(machine_files.iter().map(open), task_files.iter().map(open), time_us)
}

/// Replays parts that are opened only when the one before has ended.
fn replay(
    machine_parts: impl Iterator<Item = Result<Input, TraceError>>,
    task_parts: impl Iterator<Item = Result<Input, TraceError>>,
    time_us: u64,
) -> Result<Snapshot, TraceError> {
    let mut machines = Machines::default();
    let mut reports = replay_machines(machine_parts, time_us, &mut machines)?;
    let mut tasks = Tasks::default();
    reports.extend(replay_tasks(task_parts, time_us, &mut tasks)?);
    let (machines, machines_without_capacity) = machines.into_rows();
    let (tasks, incomplete_tasks) = tasks.into_rows();
    Ok(Snapshot { time_us, machines, tasks, machines_without_capacity, incomplete_tasks, reports })
}

/// Distinguishes events to use from later ones and from those that are out of order.
struct EventClock {
    until_us: u64,
    last_us: u64,
    is_past: bool,
}

impl EventClock {
    fn new(until_us: u64) -> EventClock {
        EventClock { until_us, last_us: 0, is_past: false }
    }

    /// Whether an event of that time is to be used; `Break` when all later ones can be left out.
    fn tick(&mut self, time_us: u64) -> Result<Flow, FieldProblem> {
        if time_us < self.last_us {
            let allowed = format!("a time from that of the row before ({}) on", self.last_us);
            return Err(FieldProblem::new("time", &time_us.to_string(), allowed));
        }
        self.last_us = time_us;
        self.is_past = time_us > self.until_us;
        Ok(if self.is_past { Flow::Break(()) } else { Flow::Continue(()) })
    }
}

fn replay_machines(
    parts: impl Iterator<Item = Result<Input, TraceError>>,
    time_us: u64,
    machines: &mut Machines,
) -> Result<Vec<ReadReport>, TraceError> {
    let mut clock = EventClock::new(time_us);
    let mut reports = Vec::new();
    for part in parts {
        reports.push(machine_events::read_checked(part?, |event| {
            let flow = clock.tick(event.time_us)?;
            if flow.is_continue() {
                machines.apply(&event);
            }
            Ok(flow)
        })?);
        if clock.is_past {
            break;
        }
    }
    Ok(reports)
}

fn replay_tasks(
    parts: impl Iterator<Item = Result<Input, TraceError>>,
    time_us: u64,
    tasks: &mut Tasks,
) -> Result<Vec<ReadReport>, TraceError> {
    let mut clock = EventClock::new(time_us);
    let mut reports = Vec::new();
    for part in parts {
        reports.push(task_events::read_checked(part?, |event| {
            let flow = clock.tick(event.time_us)?;
            if flow.is_continue() {
                tasks.apply(&event);
            }
            Ok(flow)
        })?);
        if clock.is_past {
            return Ok(reports);
        }
    }
    if time_us > clock.last_us {
        return Err(TraceError::BeyondTrace { requested_us: time_us, last_us: clock.last_us });
    }
    Ok(reports)
}

/// Texts numbered in the order in which they first appear.
#[derive(Default)]
struct Interner(HashMap<String, u32>);

impl Interner {
    fn intern(&mut self, text: &str) -> u32 {
        if let Some(number) = self.0.get(text) {
            return *number;
        }
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.insert(text.to_owned(), next);
        next
    }
}

/// The known facts of a machine so far.
struct MachineSlot {
    machine: MachineId,
    is_up: bool,
    platform: u32,
    cpu_micro: Option<u64>,
    memory_micro: Option<u64>,
}

#[derive(Default)]
struct Machines {
    platforms: Interner,
    slots: Vec<MachineSlot>,
    by_id: HashMap<MachineId, usize>,
}

impl Machines {
    fn apply(&mut self, event: &MachineEvent<'_>) {
        let platform = self.platforms.intern(event.platform.unwrap_or(""));
        let slot_index = *self.by_id.entry(event.machine).or_insert_with(|| {
            self.slots.push(MachineSlot {
                machine: event.machine,
                is_up: false,
                platform,
                cpu_micro: None,
                memory_micro: None,
            });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[slot_index];
        match event.kind {
            MachineEventKind::Add => slot.is_up = true,
            MachineEventKind::Remove => slot.is_up = false,
            MachineEventKind::Update => {}
        }
        slot.platform = platform;
        slot.cpu_micro = event.cpu_micro.or(slot.cpu_micro);
        slot.memory_micro = event.memory_micro.or(slot.memory_micro);
    }

    /// Machines that are up, and those of them without a known capacity.
    fn into_rows(self) -> (Vec<MachineRow>, Vec<MachineId>) {
        let mut rows = Vec::new();
        let mut without_capacity = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.is_up) {
            let platform = u16::try_from(slot.platform).ok();
            match (platform, slot.cpu_micro, slot.memory_micro) {
                (Some(platform), Some(cpu_micro), Some(memory_micro)) => rows.push(MachineRow {
                    machine: slot.machine,
                    platform: Platform(platform),
                    cpu_micro,
                    memory_micro,
                }),
                _ => without_capacity.push(slot.machine),
            }
        }
        (rows, without_capacity)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskPhase {
    Pending,
    Running,
    Gone,
}

/// The known facts of a task so far.
struct TaskSlot {
    task: TaskKey,
    phase: TaskPhase,
    machine: Option<MachineId>,
    user: Option<u32>,
    scheduling_class: Option<u8>,
    priority: u8,
    cpu_micro: Option<u64>,
    memory_micro: Option<u64>,
    disk_micro: Option<u64>,
    different_machines: Option<bool>,
}

impl TaskSlot {
    fn new(task: TaskKey) -> TaskSlot {
        TaskSlot {
            task,
            phase: TaskPhase::Gone,
            machine: None,
            user: None,
            scheduling_class: None,
            priority: 0,
            cpu_micro: None,
            memory_micro: None,
            disk_micro: None,
            different_machines: None,
        }
    }

    fn apply(&mut self, event: &TaskEvent<'_>, user: Option<u32>) {
        self.phase = match event.kind {
            EventKind::Submit | EventKind::UpdatePending => TaskPhase::Pending,
            EventKind::Schedule | EventKind::UpdateRunning => TaskPhase::Running,
            EventKind::Evict
            | EventKind::Fail
            | EventKind::Finish
            | EventKind::Kill
            | EventKind::Lost => TaskPhase::Gone,
        };
        self.machine = match event.kind {
            EventKind::Schedule => event.machine,
            EventKind::UpdateRunning => event.machine.or(self.machine),
            _ => None,
        };
        self.priority = event.priority;
        self.user = user.or(self.user);
        self.scheduling_class = event.scheduling_class.or(self.scheduling_class);
        self.cpu_micro = event.cpu_micro.or(self.cpu_micro);
        self.memory_micro = event.memory_micro.or(self.memory_micro);
        self.disk_micro = event.disk_micro.or(self.disk_micro);
        self.different_machines = event.different_machines.or(self.different_machines);
    }

    /// The task as a row, unless the trace leaves out something a row needs.
    fn row(&self) -> Option<TaskRow> {
        let state = match self.phase {
            TaskPhase::Running => TaskState::Running(self.machine?),
            TaskPhase::Pending | TaskPhase::Gone => TaskState::Pending,
        };
        Some(TaskRow {
            task: self.task,
            state,
            user: UserId(self.user?.checked_add(1)?),
            scheduling_class: self.scheduling_class?,
            priority: self.priority,
            cpu_micro: self.cpu_micro?,
            memory_micro: self.memory_micro?,
            disk_micro: self.disk_micro?,
            different_machines: self.different_machines?,
        })
    }
}

#[derive(Default)]
struct Tasks {
    users: Interner,
    slots: Vec<TaskSlot>,
    by_key: HashMap<TaskKey, usize>,
}

impl Tasks {
    fn apply(&mut self, event: &TaskEvent<'_>) {
        let user = event.user.map(|name| self.users.intern(name));
        let slot_index = *self.by_key.entry(event.task).or_insert_with(|| {
            self.slots.push(TaskSlot::new(event.task));
            self.slots.len() - 1
        });
        self.slots[slot_index].apply(event, user);
    }

    /// Tasks that run or wait, and those of them whose rows lack something.
    fn into_rows(self) -> (Vec<TaskRow>, Vec<TaskKey>) {
        let mut rows = Vec::new();
        let mut incomplete = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.phase != TaskPhase::Gone) {
            match slot.row() {
                Some(row) => rows.push(row),
                None => incomplete.push(slot.task),
            }
        }
        (rows, incomplete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::google2011::JobId;
    use crate::trace::total_problems;

    const MACHINES: &str = "0,1,0,P,0.5,0.25\n0,2,0,Q,,\n50,1,2,P,0.5,0.5\n90,1,1,P,0.5,0.5\n";

    fn snapshot(task_parts: &[&str], time_us: u64) -> Result<Snapshot, TraceError> {
        let part = |text: &str| Ok(Input::from_bytes("part.csv", text.into()));
        replay([part(MACHINES)].into_iter(), task_parts.iter().map(|text| part(text)), time_us)
    }

    /// Task 0 of job 1 as `state cpu`; its first event does not give the request.
    fn check(time_us: u64, expected: Option<(TaskState, u64)>) {
        let parts = [
            "0,2,1,0,,0,u,0,5,,,,\n10,,1,0,1,1,u,0,5,0.1,0.1,0.1,0\n20,,1,0,1,2,u,0,5,,,,\n",
            "20,,1,0,,0,u,0,5,,,,\n30,,1,0,,7,u,0,5,0.2,0.1,0.1,0\n40,,1,0,1,1,u,0,5,,,,\n\
             60,,1,0,1,8,u,0,5,0.3,0.1,0.1,0\n70,,1,0,1,4,u,0,5,,,,\n100,,9,0,,0,u,0,5,,,,\n",
        ];
        let seen = snapshot(&parts, time_us).expect("a time within the events");
        assert_eq!(total_problems(&seen.reports), 0);
        let task = seen.tasks.first().map(|task| (task.state, task.cpu_micro));
        assert_eq!(task, expected, "at {time_us}");
    }

    #[test]
    fn a_task_goes_through_its_states() {
        let running = TaskState::Running(MachineId(1));
        check(10, Some((running, 100_000)));
        check(19, Some((running, 100_000)));
        check(20, Some((TaskState::Pending, 100_000)));
        check(30, Some((TaskState::Pending, 200_000)));
        check(40, Some((running, 200_000)));
        check(60, Some((running, 300_000)));
        check(70, None);
    }

    #[test]
    fn what_the_trace_leaves_out_is_listed_and_not_guessed() {
        let seen = snapshot(&["0,2,1,0,,0,u,0,5,,,,\n"], 0).expect("time 0");
        assert_eq!(seen.incomplete_tasks, [TaskKey { job: JobId(1), index: 0 }]);
        assert_eq!(seen.machines_without_capacity, [MachineId(2)]);
        assert!(seen.tasks.is_empty());
        assert_eq!(seen.capacity_micro(), (500_000, 250_000));
    }

    #[test]
    fn machines_change_and_go() {
        let task = ["0,,1,0,,0,u,0,5,0,0,0,0\n100,,1,0,,0,u,0,5,0,0,0,0\n"];
        let capacity = |time| snapshot(&task, time).expect("within the events").capacity_micro();
        assert_eq!(capacity(49), (500_000, 250_000));
        assert_eq!(capacity(50), (500_000, 500_000));
        assert_eq!(capacity(90), (0, 0));
    }

    #[test]
    fn a_time_beyond_the_last_event_is_refused() {
        let task = ["0,,1,0,,0,u,0,5,0,0,0,0\n7900000,,1,0,,0,u,0,5,0,0,0,0\n"];
        assert!(snapshot(&task, 7_900_000).is_ok());
        let error = snapshot(&task, 9_000_000).expect_err("later than all events").to_string();
        assert!(error.starts_with("the cell 9 s after the start was asked for"), "{error}");
        assert!(error.ends_with("end after 7 s; allowed: 0 to 7"), "{error}");
    }

    #[test]
    fn rows_out_of_order_are_reported() {
        let row = |time: u32, index: u32| format!("{time},,1,{index},,0,u,0,5,0,0,0,0\n");
        let text = format!("{}{}{}", row(50, 0), row(40, 1), row(50, 2));
        let seen = snapshot(&[&text], 50).expect("time 50");
        assert_eq!(seen.tasks.len(), 2);
        let problem = &seen.reports[1].problems[0];
        assert_eq!((problem.line, problem.field, problem.value.as_str()), (2, "time", "40"));
    }
}
