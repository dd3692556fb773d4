//! Desired state of a machine: the tasks its agent must hold, computed from the replicated state
//! alone, so that the link shard of any replica can serve it. The list is always complete: whatever
//! runs on the machine and is not listed must be killed. Unknown tasks, superseded attempts and
//! tasks lost while the machine was silent all end that way, without a message of their own.
//!
//! A machine on which room is only reserved for a task that runs elsewhere gets no order for it:
//! there is nothing to do yet, and an attempt that is not listed is killed, which is right there.
//! The command that starts it there later lists it.
//!
//! Rejected: a stream of starts and stops. An agent that missed one would be wrong for ever; one
//! that gets the whole list is right at the next poll.

use crate::device::DeviceGrant;
use crate::health::HealthCheck;
use crate::id::{Attempt, MachineId, TaskId};
use crate::isolation::{Isolation, Secret};
use crate::log_saver;
use crate::name::Token;
use crate::notice;
use crate::plan::Victim;
use crate::priority::{AppClass, Priority};
use crate::resource::Resources;
use crate::scale::MetricsOrder;
use crate::spec::{JobKind, JobSpec, LogLimits, PackageRef};
use crate::state::State;
use crate::task::{StopCause, Task, TaskState};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The order for one task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DesiredTask {
    pub task: TaskId,
    pub attempt: u32,
    /// The run of the log saver of that attempt's retained disk; 0: the attempt itself.
    pub log_saver_run: u32,
    /// `user/job/index`.
    pub name: String,
    pub action: Action,
    /// Of an `at_most_one` job: the agent kills the task when it has not heard from a master for
    /// this long.
    pub lease: Option<Span>,
    /// Number of the change that its limits come from; 0 before the first.
    #[serde(default)]
    pub resizes: u32,
}

impl Attempt {
    #[must_use]
    pub fn of(desired: &DesiredTask) -> Attempt {
        Attempt {
            task: desired.task,
            number: desired.attempt,
            log_saver_run: desired.log_saver_run,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Run(Box<RunSpec>),
    /// Send the warning signal, wait for the notice to pass, kill.
    Stop {
        notice: Span,
        cause: StopCause,
    },
    /// An alloc: keep the room, run nothing. A task that waits for others to leave has the room
    /// when they are gone.
    Hold {
        limits: Resources,
        devices: Vec<DeviceGrant>,
        waits_for: Vec<Victim>,
    },
    /// Nothing of it may run here, but its files stay: as for an attempt that is not listed, except
    /// for its folder.
    Keep,
}

/// Everything needed to start a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunSpec {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub limits: Resources,
    /// Its expected use: tasks that exceed it are killed before tasks that do not.
    pub reservation: Resources,
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
    pub packages: Vec<PackageRef>,
    pub notice: Span,
    pub priority: Priority,
    pub appclass: AppClass,
    /// The alloc it runs in.
    pub alloc: Option<TaskId>,
    /// It starts when these are gone from the machine; if it runs, its limits are raised then.
    pub waits_for: Vec<Victim>,
    /// It starts no sooner than this long after the order arrived.
    pub delay: Span,
    pub health: Option<HealthCheck>,
    pub max_run: Option<Span>,
    pub files: BTreeMap<String, String>,
    pub user: Option<Token>,
    pub logs: Option<LogLimits>,
    pub isolation: Isolation,
    pub secrets: BTreeMap<Token, Secret>,
    /// Numbers that it tells, by which its job is scaled.
    #[serde(default)]
    pub metrics: Option<MetricsOrder>,
}

/// What the agent of `machine` must hold, by task. Empty for a machine without a row. Costs what is
/// on that machine and nothing else.
#[must_use]
pub fn desired_tasks(state: &State, machine: MachineId) -> Vec<DesiredTask> {
    let Some(load) = state.machine_load(machine) else { return Vec::new() };
    let order = |id: &TaskId| {
        let row = state.tasks().get(*id)?;
        let spec = state.spec_of(row)?;
        Some(DesiredTask {
            task: *id,
            attempt: row.attempt,
            log_saver_run: 0,
            name: state.task_name(*id),
            action: action(state, row, spec),
            lease: spec.at_most_one,
            resizes: row.resizes,
        })
    };
    let mut orders: Vec<DesiredTask> = load.tasks.iter().filter_map(order).collect();
    orders.extend(log_saver::log_saver_tasks(state, machine));
    orders.sort_by_key(|order| (order.task, order.attempt, order.log_saver_run));
    orders
}

/// What the agent of `machine` must not delete while the cell does not count on the machine: it is
/// silent, or has a new incarnation. Nothing may run there; data that is retained there, or becomes
/// retained when the state learns that its task has ended, stays.
#[must_use]
pub fn retained_tasks(state: &State, machine: MachineId) -> Vec<DesiredTask> {
    let Some(row) = state.machines().get(machine) else { return Vec::new() };
    let leaves = |id: &TaskId| {
        let task = state.tasks().get(*id)?;
        let leaves = task.alloc().is_none() && state.spec_of(task)?.retain_disk.is_some();
        leaves.then_some((*id, task.attempt))
    };
    let present = state.machine_load(machine).map(|load| load.tasks.iter().filter_map(leaves));
    let left = row.retained.iter().map(|entry| (entry.task, entry.attempt));
    let all: BTreeSet<(TaskId, u32)> = present.into_iter().flatten().chain(left).collect();
    all.into_iter().map(|(task, attempt)| log_saver::keep_order(state, task, attempt)).collect()
}

fn action(state: &State, row: &Task, spec: &JobSpec) -> Action {
    if let TaskState::Stopping(cause) = row.state {
        let notice = notice::notice_of_task(state, row, spec);
        return Action::Stop { notice, cause };
    }
    let limits = spec.limits_of(row.index);
    let devices = row.devices().to_vec();
    let waits_for = row.grant().map_or(Vec::new(), |grant| grant.waits_for.clone());
    if spec.kind == JobKind::AllocSet {
        return Action::Hold { limits, devices, waits_for };
    }
    Action::Run(Box::new(RunSpec {
        command: spec.command_of(row.index).to_vec(),
        env: spec.env_of(row.index).into_owned(),
        limits,
        reservation: row.reservation,
        ports: row.ports().to_vec(),
        devices,
        packages: spec.task.packages.clone(),
        notice: notice::notice_of_job(state, spec),
        priority: spec.priority,
        appclass: spec.appclass(),
        alloc: row.alloc(),
        waits_for,
        delay: Span::ZERO,
        health: spec.task.health.clone(),
        max_run: spec.task.max_run,
        files: spec.task.files.clone(),
        user: spec.task.user.clone(),
        logs: spec.task.logs,
        isolation: spec.task.isolation.clone(),
        secrets: spec.task.secrets.clone(),
        metrics: metrics_order(state, row),
    }))
}

/// By the newest version of the job: its targets are compared with what is told.
fn metrics_order(state: &State, row: &Task) -> Option<MetricsOrder> {
    state.jobs().get(row.job)?.spec().scale.as_ref()?.metrics_order()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, all, job, key};
    use crate::command::{Command, Observed};
    use crate::plan::{Assignment, Group, Plan};
    use crate::priority::Band;
    use crate::spec::TaskOverride;

    const M1: MachineId = MachineId(0);

    fn orders(cell: &Cell) -> Vec<(String, u32, Action)> {
        let list = desired_tasks(&cell.state, M1);
        assert!(list.is_sorted_by_key(|order| order.task));
        list.into_iter().map(|order| (order.name, order.attempt, order.action)).collect()
    }

    #[test]
    fn a_task_is_run_and_then_stopped_and_then_no_longer_listed() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 2, 100);
        spec.task.ports = 1;
        spec.task.command = vec!["serve".into()];
        spec.task.env.insert("A".into(), "b".into());
        let own = Some(vec!["lead".into()]);
        spec.overrides.insert(1, TaskOverride { command: own, ..TaskOverride::default() });
        spec.at_most_one = Some(Span::seconds(30));
        cell.submit(&spec);
        assert_eq!(orders(&cell), []);
        cell.run("jfoo", 1, "m1");
        let list = desired_tasks(&cell.state, M1);
        let [only] = &list[..] else { panic!("{list:?}") };
        assert_eq!((only.name.as_str(), only.attempt), ("ubar/jfoo/1", 1));
        assert_eq!(only.lease, Some(Span::seconds(30)));
        let Action::Run(work) = &only.action else { panic!("{only:?}") };
        assert_eq!((&work.command[..], work.limits), (&["lead".to_owned()][..], all(10)));
        assert_eq!((work.env["A"].as_str(), work.ports.len()), ("b", 1));
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        let stop = Action::Stop { notice: Span::seconds(10), cause: StopCause::Killed };
        assert_eq!(orders(&cell), [("ubar/jfoo/1".to_owned(), 1, stop)]);
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(orders(&cell), []);
        assert_eq!(desired_tasks(&cell.state, MachineId(9)), []);
    }

    /// The notices of `low/0`, which asks for a day, and of what runs inside it if it is an alloc,
    /// when `high/0` with this bound preempts it.
    fn notices(kind: JobKind, most: Option<Span>) -> Vec<Span> {
        notices_for(200, kind, most)
    }

    fn notices_for(priority: u16, kind: JobKind, most: Option<Span>) -> Vec<Span> {
        let mut cell = Cell::with_machines(1);
        let day = Span::seconds(86_400);
        let mut low = job("low", 1, 100);
        (low.kind, low.task.limits, low.task.notice) = (kind, all(90), day);
        cell.submit(&low);
        cell.run("low", 0, "m1");
        if kind == JobKind::AllocSet {
            let mut inner = job("inner", 1, 100);
            (inner.alloc_set, inner.task.notice) = (Some(key("ubar/low")), day);
            cell.submit(&inner);
            let alloc = cell.task_id("low", 0);
            cell.run_in("inner", 0, "m1", Some(alloc));
        }
        let mut high = job("high", 1, priority);
        (high.task.limits, high.preemption_notice_max) = (all(50), most);
        cell.grant("ubar", Band::Batch, 200);
        cell.submit(&high);
        let victim = Victim { task: cell.task_id("low", 0), attempt: 1 };
        let task = cell.task_id("high", 0);
        let (ports, devices) = (Vec::new(), Vec::new());
        let assignment = Assignment { task, attempt: 0, machine: M1, alloc: None, ports, devices };
        let group = Group { victims: vec![victim], assignments: vec![assignment] };
        cell.ok(Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }));
        let stops =
            desired_tasks(&cell.state, M1).into_iter().filter_map(|order| match order.action {
                Action::Stop { notice, .. } => Some(notice),
                _ => None,
            });
        stops.collect()
    }

    #[test]
    fn who_takes_the_room_may_bound_the_notice() {
        let (day, short) = (Span::seconds(86_400), Span::seconds(5));
        assert_eq!(notices(JobKind::Tasks, None), [day]);
        assert_eq!(notices(JobKind::Tasks, Some(short)), [short]);
        assert_eq!(notices(JobKind::Tasks, Some(Span::seconds(86_405))), [day]);
        // Batch tasks can wait: they preempt, but shorten nobody's notice.
        assert_eq!(notices_for(150, JobKind::Tasks, None), [day]);
        assert_eq!(notices(JobKind::AllocSet, None), [day, day]);
        assert_eq!(notices(JobKind::AllocSet, Some(short)), [short, short]);
    }

    #[test]
    fn a_preempted_task_that_found_another_place_has_its_own_notice_again() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("low", 1, 100));
        cell.run("low", 0, "m1");
        let low = cell.task_id("low", 0);
        cell.state.edit_task(low, |row| row.notice_max = Some(Span::ZERO));
        cell.report("low", 0, Observed::Lost);
        cell.run("low", 0, "m1");
        assert_eq!(cell.task("low", 0).notice_max, None);
    }

    #[test]
    fn a_preemptor_waits_for_its_victim_and_an_alloc_is_held() {
        let mut cell = Cell::with_machines(1);
        let mut set = job("set", 1, 200);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        cell.run("set", 0, "m1");
        let mut low = job("low", 1, 100);
        low.task.limits = all(90);
        cell.submit(&low);
        cell.run("low", 0, "m1");
        let mut high = job("high", 1, 200);
        high.task.limits = all(50);
        cell.submit(&high);
        let victim = Victim { task: cell.task_id("low", 0), attempt: 1 };
        let task = cell.task_id("high", 0);
        let (ports, devices) = (Vec::new(), Vec::new());
        let assignment = Assignment { task, attempt: 0, machine: M1, alloc: None, ports, devices };
        let group = Group { victims: vec![victim], assignments: vec![assignment] };
        cell.ok(Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }));
        let list = desired_tasks(&cell.state, M1);
        let hold = Action::Hold { limits: all(10), devices: vec![], waits_for: vec![] };
        assert_eq!(list[0].action, hold);
        let cause = StopCause::Preempted;
        assert_eq!(list[1].action, Action::Stop { notice: Span::seconds(10), cause });
        let Action::Run(work) = &list[2].action else { panic!("{:?}", list[2]) };
        assert_eq!(work.waits_for, [victim]);
    }
}
