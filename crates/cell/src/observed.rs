//! Observed state: what an agent reports of its tasks, and the differences from the replicated
//! state. Agents always send everything; only differences reach the log.
//!
//! The comparison is with the replicated state and not with the agent's last report: so a
//! difference that was forwarded and got lost is simply found again, and any replica can compare.
//! What the state does not want on the machine (unknown tasks, earlier attempts) makes no
//! difference here: the agent kills it because it is not in its orders. Neither does room reserved
//! for a task that runs elsewhere: nothing of the task is there to be reported.

use crate::command::{Observed, TaskReport};
use crate::id::{MachineId, TaskId};
use crate::machine::MachineStatus;
use crate::resource::Resources;
use crate::spec::JobKind;
use crate::state::State;
use crate::task::{ExitClass, NoticeOutcome, Task, TaskState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One task as its agent sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObservedTask {
    pub task: TaskId,
    pub attempt: u32,
    /// The run of the log saver of that attempt's retained disk; 0: the attempt itself.
    pub log_saver_run: u32,
    pub state: ObservedState,
    /// Of a task whose limits were changed: those in force.
    pub limits: Option<LimitsInForce>,
}

/// What the machine allows a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsInForce {
    /// The newest change of them that was looked at.
    pub resizes: u32,
    /// Where a limit is to fall below what is used, it falls as use does.
    pub limits: Resources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// Accepted, not running yet: fetching packages, waiting for room.
    Preparing,
    Running {
        healthy: bool,
    },
    /// Ended with success.
    Finished,
    Failed(ExitClass),
    /// Stopped as ordered, and seen to be gone.
    Stopped,
    /// As `Stopped`, for a task whose end was watched: the outcome of the termination notice.
    Left(NoticeOutcome),
}

/// The reports that bring `state` up to the full report of the agent of `machine` in its
/// incarnation `incarnation`. None for a machine that is unknown, down or has another incarnation:
/// it has to be declared up first. Sending them twice changes nothing, and once they have been
/// applied the same report makes no difference any more.
///
/// The report must be newer than what `state` has of the machine: a running task that is missing
/// from it is taken for lost.
#[must_use]
pub fn differences(
    state: &State,
    machine: MachineId,
    incarnation: u64,
    reported: &[ObservedTask],
) -> Vec<TaskReport> {
    let Some(row) = state.machines().get(machine) else { return Vec::new() };
    let Some(load) = state.machine_load(machine) else { return Vec::new() };
    if row.status != MachineStatus::Up || row.incarnation != incarnation {
        return Vec::new();
    }
    // Log savers are not among the tasks: see [`crate::log_saver`].
    let own = reported.iter().filter(|report| report.log_saver_run == 0);
    let seen: BTreeMap<(TaskId, u32), &ObservedTask> =
        own.map(|report| ((report.task, report.attempt), report)).collect();
    let mut found = Vec::new();
    for id in &load.tasks {
        let Some(task) = state.tasks().get(*id) else { continue };
        let is_alloc = state.spec_of(task).is_some_and(|spec| spec.kind == JobKind::AllocSet);
        let attempt = task.attempt;
        let report = seen.get(&(*id, attempt)).copied();
        let news = difference(task, is_alloc, report.map(|report| report.state));
        let limits = report.and_then(|report| resized(state, task, report));
        let reports =
            news.into_iter().chain(limits).map(|what| TaskReport { task: *id, attempt, what });
        found.extend(reports.map(|report| (task.alloc().is_none(), report)));
    }
    // Tasks inside an alloc come before the alloc: once the alloc is gone, they have no row to
    // report on.
    found.sort_by_key(|(outside, report)| (*outside, report.task));
    found.into_iter().map(|(_, report)| report).collect()
}

/// The limits in force, where they are not those that the row has.
fn resized(state: &State, task: &Task, report: &ObservedTask) -> Option<Observed> {
    let before = task.limits_in_force.as_deref().copied()?;
    let seen = report.limits?;
    let is_live = matches!(report.state, ObservedState::Preparing | ObservedState::Running { .. });
    let may_run = matches!(task.state, TaskState::Assigned | TaskState::Running);
    let is_due = task.resizes == seen.resizes && is_live && may_run;
    let limits = state.spec_of(task)?.limits_of(task.index);
    let after = seen.limits.min(before.max(limits));
    let is_news = is_due && (after != before || after == limits);
    let LimitsInForce { resizes, limits } = seen;
    is_news.then_some(Observed::LimitsInForce { resizes, limits })
}

/// What the agent knows of one task that its row does not; two reports for one that started and is
/// unhealthy.
fn difference(task: &Task, is_alloc: bool, seen: Option<ObservedState>) -> Vec<Observed> {
    use ObservedState as S;
    let started = task.state == TaskState::Running;
    match (task.state, seen) {
        // The order to start may still be on its way.
        (TaskState::Assigned, None) => vec![],
        (TaskState::Stopping(_), None) => vec![Observed::Stopped],
        (_, None) => vec![Observed::Lost],
        (_, Some(S::Preparing)) => vec![],
        (TaskState::Stopping(_), Some(S::Running { .. })) => vec![],
        (_, Some(S::Running { healthy })) => {
            let start = (!started).then_some(Observed::Started);
            let ill = (!healthy && !is_alloc).then_some(Observed::Unhealthy);
            start.into_iter().chain(ill).collect()
        }
        (_, Some(S::Failed(exit))) => vec![Observed::Failed(exit)],
        (TaskState::Stopping(_), Some(S::Stopped)) => vec![Observed::Stopped],
        (TaskState::Stopping(_), Some(S::Left(notice))) => vec![Observed::Left(notice)],
        (_, Some(S::Finished)) if !is_alloc => vec![Observed::Finished],
        (TaskState::Stopping(_), Some(S::Finished)) => vec![Observed::Stopped],
        // It ended without an order and without an exit of its program.
        (_, Some(S::Finished | S::Stopped | S::Left(_))) => vec![Observed::Lost],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key};
    use crate::command::{Command, Done};
    use crate::spec::JobSpec;
    use crate::task::{StopCause, TaskOutcome};

    const M1: MachineId = MachineId(0);

    /// `jfoo/0` on `m1`, running or ordered to stop, then observed like this by its agent.
    fn check(
        shape: fn(&mut JobSpec),
        stop: bool,
        seen: Option<ObservedState>,
        want: &[Observed],
        after: TaskState,
    ) {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = None;
        shape(&mut spec);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        if stop {
            cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        }
        let task = cell.task_id("jfoo", 0);
        let seen: Vec<ObservedTask> = seen
            .into_iter()
            .map(|state| ObservedTask { task, attempt: 1, log_saver_run: 0, state, limits: None })
            .collect();
        let reports = differences(&cell.state, M1, 1, &seen);
        let got: Vec<Observed> = reports.iter().map(|report| report.what).collect();
        assert_eq!(got, want, "{seen:?}");
        assert_eq!(differences(&cell.state, M1, 2, &seen), [], "another life");
        if !want.is_empty() {
            let command = Command::TaskReports { machine: M1, incarnation: 1, reports };
            assert_eq!(cell.ok(command), Done::Applied, "{seen:?}");
        }
        assert_eq!(cell.states("jfoo"), [after], "{seen:?}");
        assert_eq!(differences(&cell.state, M1, 1, &seen), [], "{seen:?}");
    }

    #[test]
    fn only_what_the_state_does_not_know_is_reported() {
        use ObservedState::{Failed, Finished, Left, Preparing, Running, Stopped};
        use TaskState::{Dead, Pending, Stopping};
        let none = |_: &mut JobSpec| ();
        let (well, ill) = (Running { healthy: true }, Running { healthy: false });
        let crash = ExitClass::Code(1);
        let killing = Stopping(StopCause::Killed);
        check(none, false, Some(well), &[], TaskState::Running);
        check(none, false, Some(Preparing), &[], TaskState::Running);
        check(none, false, Some(ill), &[Observed::Unhealthy], Stopping(StopCause::Unhealthy));
        check(none, false, Some(Finished), &[Observed::Finished], Dead(TaskOutcome::Finished));
        check(none, false, Some(Failed(crash)), &[Observed::Failed(crash)], Pending);
        check(none, false, Some(Stopped), &[Observed::Lost], Pending);
        check(none, false, None, &[Observed::Lost], Pending);
        check(none, true, Some(well), &[], killing);
        check(none, true, Some(ill), &[], killing);
        check(none, true, Some(Stopped), &[Observed::Stopped], Dead(TaskOutcome::Killed));
        check(none, true, None, &[Observed::Stopped], Dead(TaskOutcome::Killed));
        let overrun = NoticeOutcome::Overrun;
        check(
            none,
            true,
            Some(Left(overrun)),
            &[Observed::Left(overrun)],
            Dead(TaskOutcome::Killed),
        );
        check(none, false, Some(Left(overrun)), &[Observed::Lost], Pending);
        let alloc = |spec: &mut JobSpec| spec.kind = JobKind::AllocSet;
        check(alloc, false, Some(ill), &[], TaskState::Running);
        check(alloc, false, Some(Finished), &[Observed::Lost], Pending);
        check(alloc, true, Some(Finished), &[Observed::Stopped], Dead(TaskOutcome::Killed));
    }

    #[test]
    fn a_task_the_agent_lost_did_not_fail() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.at_most_one = Some(crate::time::Span::seconds(30));
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let reports = differences(&cell.state, M1, 1, &[]);
        cell.ok(Command::TaskReports { machine: M1, incarnation: 1, reports });
        assert_eq!(
            cell.event_lines,
            ["ubar/jfoo/0 lost with m1, pending again: \
            seen by the machine's agent"]
        );
        let row = cell.task("jfoo", 0);
        assert_eq!((row.state, row.failures_in_row), (TaskState::Pending, 0));
        assert!(row.crashed_on.is_empty());
        // Its end was not seen, so its lease has to run out like that of a lost machine's task.
        assert!(row.not_before.0 > cell.now + 30_000);
    }
}
