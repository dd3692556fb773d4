//! Log savers (B9): programs that run on the disk that an ended alloc left behind. The alloc set
//! names a job that runs inside it; when an alloc of the set has ended, the program of that job is
//! run once more on the retained disk, on the same machine, and again until it succeeds or the
//! disk's time is over.
//!
//! A run is no task: it has no row, is charged nothing but the retained disk, and gives way to
//! every task of its machine. The program is the present one of the named job, so a log saver that
//! never succeeds can be fixed while the disk is retained: by an update, or by a job of the same
//! name once the old one is dead.
//!
//! Rejected: placing the log saver's own task there. Its alloc has no room any more, and the same
//! task may already serve the alloc that replaced it elsewhere.

use crate::apply::back_off;
use crate::desired::{Action, DesiredTask, RunSpec};
use crate::id::{JobId, MachineId, TaskId};
use crate::machine::{MachineStatus, RetainedDisk};
use crate::name::JobKey;
use crate::observed::{ObservedState, ObservedTask};
use crate::priority::{AppClass, Priority};
use crate::spec::JobSpec;
use crate::state::State;
use crate::task::ExitClass;
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Below every task that asks for a place, or equal to the lowest of them.
const LOG_SAVER_PRIORITY: Priority = Priority(0);

/// The end of a run that the state still takes for due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSaverEnd {
    pub task: TaskId,
    pub attempt: u32,
    pub run: u32,
    pub outcome: LogSaverOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogSaverOutcome {
    Succeeded,
    /// `None`: the exit was not seen.
    Failed(Option<ExitClass>),
}

impl State {
    /// The job that saves the retained disk of this task, if there is one.
    pub(crate) fn log_saver_job(&self, task: TaskId) -> Option<JobId> {
        let row = self.tasks.get(task)?;
        let set = self.job_key(row.job)?;
        let job = self.jobs.get(row.job)?.spec().retain_disk.as_ref()?.log_saver.clone()?;
        let saver = self.job_named(&JobKey { user: set.user.clone(), job })?;
        let inside = self.jobs.get(saver)?.spec().alloc_set.as_ref() == Some(&set);
        inside.then_some(saver)
    }

    fn log_saver_spec(&self, task: TaskId) -> Option<&Arc<JobSpec>> {
        Some(self.jobs.get(self.log_saver_job(task)?)?.spec())
    }
}

/// Orders about retained disk on `machine`: its folder stays, and its log saver runs.
pub(crate) fn log_saver_tasks(state: &State, machine: MachineId) -> Vec<DesiredTask> {
    let Some(row) = state.machines().get(machine) else { return Vec::new() };
    // A task that is stopping there is listed as that, until it is gone.
    let still_there = |entry: &RetainedDisk| {
        let task = state.tasks().get(entry.task);
        task.is_some_and(|task| {
            task.attempt == entry.attempt
                && task.machine() == Some(machine)
                && task.state.is_on_machine()
        })
    };
    let left = row.retained.iter().filter(|entry| !still_there(entry));
    left.flat_map(|entry| {
        let keep = keep_order(state, entry.task, entry.attempt);
        std::iter::once(keep).chain(run_order(state, entry))
    })
    .collect()
}

pub(crate) fn keep_order(state: &State, task: TaskId, attempt: u32) -> DesiredTask {
    let name = state.task_name(task);
    let action = Action::Keep;
    DesiredTask { task, attempt, log_saver_run: 0, name, action, lease: None, resizes: 0 }
}

fn run_order(state: &State, entry: &RetainedDisk) -> Option<DesiredTask> {
    let run = entry.run?;
    let spec = state.log_saver_spec(entry.task)?;
    Some(DesiredTask {
        task: entry.task,
        attempt: entry.attempt,
        log_saver_run: run,
        name: state.task_name(entry.task),
        action: Action::Run(Box::new(run_spec(spec, run))),
        lease: None,
        resizes: 0,
    })
}

/// What to run: the job's program without anything that only a placement could give.
fn run_spec(spec: &JobSpec, run: u32) -> RunSpec {
    let task = &spec.task;
    let (first, most) = (spec.restart.backoff, spec.restart.backoff_max);
    let delay = match run.saturating_sub(1) {
        0 => Span::ZERO,
        failures => back_off(first, most, failures),
    };
    let mut isolation = task.isolation.clone();
    isolation.whole_cores = 0;
    RunSpec {
        command: task.command.clone(),
        env: task.env.clone(),
        limits: task.limits,
        reservation: task.limits,
        ports: Vec::new(),
        devices: Vec::new(),
        packages: task.packages.clone(),
        notice: task.notice,
        priority: LOG_SAVER_PRIORITY,
        appclass: AppClass::Batch,
        alloc: None,
        waits_for: Vec::new(),
        delay,
        health: None,
        max_run: task.max_run,
        files: task.files.clone(),
        user: task.user.clone(),
        logs: task.logs,
        isolation,
        secrets: task.secrets.clone(),
        metrics: None,
    }
}

/// Runs that the agent of `machine` reports as ended and that the state takes for due. Once they
/// have been applied the same report has none.
#[must_use]
pub fn log_saver_ends(
    state: &State,
    machine: MachineId,
    incarnation: u64,
    reported: &[ObservedTask],
) -> Vec<LogSaverEnd> {
    let Some(row) = state.machines().get(machine) else { return Vec::new() };
    if row.status != MachineStatus::Up || row.incarnation != incarnation {
        return Vec::new();
    }
    let ended = |seen: &ObservedTask| {
        let how = match seen.state {
            ObservedState::Preparing | ObservedState::Running { .. } => return None,
            ObservedState::Finished => LogSaverOutcome::Succeeded,
            ObservedState::Failed(exit) => LogSaverOutcome::Failed(Some(exit)),
            ObservedState::Stopped | ObservedState::Left(_) => LogSaverOutcome::Failed(None),
        };
        let ObservedTask { task, attempt, log_saver_run: run, .. } = *seen;
        let due = |entry: &RetainedDisk| {
            (entry.task, entry.attempt, entry.run) == (task, attempt, Some(run))
        };
        row.retained.iter().any(due).then_some(LogSaverEnd { task, attempt, run, outcome: how })
    };
    reported.iter().filter(|seen| seen.log_saver_run > 0).filter_map(ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Done, Observed};
    use crate::desired::{desired_tasks, retained_tasks};
    use crate::spec::{JobKind, RetainDisk};
    use crate::time::Time;

    const M1: MachineId = MachineId(0);

    /// An alloc on `m1` that has just ended and left 4 bytes for `save`, which runs in it.
    fn ended() -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut set = job("set", 1, 100);
        set.kind = JobKind::AllocSet;
        let saver = Some(name("save"));
        set.retain_disk = Some(RetainDisk { bytes: 4, keep: Span::seconds(100), log_saver: saver });
        cell.submit(&set);
        cell.run("set", 0, "m1");
        let mut save = job("save", 1, 100);
        save.alloc_set = Some(key("ubar/set"));
        save.task.command = vec!["save".into()];
        save.task.limits.disk = 0;
        save.restart.backoff = Span::seconds(2);
        cell.submit(&save);
        cell.ok(Command::StopJob { job: key("ubar/set"), expect: None });
        // The order is to stop the alloc, and nothing else, until it is seen to be gone.
        let actions: Vec<Action> =
            desired_on_m1(&cell).into_iter().map(|order| order.action).collect();
        assert!(matches!(actions[..], [Action::Stop { .. }]), "{actions:?}");
        cell.report("set", 0, Observed::Stopped);
        cell
    }

    fn desired_on_m1(cell: &Cell) -> Vec<DesiredTask> {
        desired_tasks(&cell.state, M1)
    }

    fn desired_run(cell: &Cell) -> (u32, RunSpec) {
        let list = desired_on_m1(cell);
        let [keep, run] = &list[..] else { panic!("{list:?}") };
        assert_eq!((keep.action.clone(), keep.log_saver_run), (Action::Keep, 0));
        assert_eq!((run.task, run.attempt, run.name.as_str()), (keep.task, 1, "ubar/set/0"));
        let Action::Run(work) = &run.action else { panic!("{run:?}") };
        (run.log_saver_run, (**work).clone())
    }

    fn report_run(cell: &mut Cell, run: u32, state: ObservedState) -> Vec<LogSaverEnd> {
        let task = cell.task_id("set", 0);
        let seen = [ObservedTask { task, attempt: 1, log_saver_run: run, state, limits: None }];
        assert_eq!(log_saver_ends(&cell.state, M1, 2, &seen), [], "another life");
        let ends = log_saver_ends(&cell.state, M1, 1, &seen);
        for LogSaverEnd { task, attempt, run, outcome: how } in ends.clone() {
            let command = match how {
                LogSaverOutcome::Succeeded => {
                    Command::ReleaseRetained { machine: M1, task, attempt }
                }
                LogSaverOutcome::Failed(exit) => {
                    Command::LogSaverFailed { machine: M1, task, attempt, run, exit }
                }
            };
            assert_eq!(cell.ok(command.clone()), Done::Applied);
        }
        assert_eq!(log_saver_ends(&cell.state, M1, 1, &seen), [], "told once");
        ends
    }

    #[test]
    fn the_saver_runs_on_what_is_left_again_and_again_until_it_succeeds() {
        let mut cell = ended();
        let (run, work) = desired_run(&cell);
        assert_eq!((run, work.delay, work.command[0].as_str()), (1, Span::ZERO, "save"));
        assert_eq!((work.priority, work.alloc), (LOG_SAVER_PRIORITY, None));
        assert_eq!(report_run(&mut cell, 1, ObservedState::Running { healthy: true }), []);
        report_run(&mut cell, 1, ObservedState::Failed(ExitClass::Code(3)));
        assert!(cell.event_lines[0].contains("not saved yet"), "{:?}", cell.event_lines);
        assert_eq!((desired_run(&cell).0, desired_run(&cell).1.delay), (2, Span::seconds(2)));
        report_run(&mut cell, 2, ObservedState::Stopped);
        assert_eq!((desired_run(&cell).0, desired_run(&cell).1.delay), (3, Span::seconds(4)));
        // A report of a run that is no longer due changes nothing.
        assert_eq!(report_run(&mut cell, 2, ObservedState::Finished), []);
        report_run(&mut cell, 3, ObservedState::Finished);
        assert!(cell.event_lines[0].contains("is saved"), "{:?}", cell.event_lines);
        assert_eq!(desired_on_m1(&cell), []);
        assert_eq!(cell.state.machine_load(M1).unwrap().reserved.disk, 0);
    }

    #[test]
    fn what_is_not_saved_in_time_is_let_go_and_said() {
        let mut cell = ended();
        cell.now += 99_000;
        cell.ok(Command::Expire);
        assert_eq!(desired_run(&cell).0, 1);
        cell.now += 2000;
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        assert!(cell.event_lines[0].contains("never saved"), "{:?}", cell.event_lines);
        assert_eq!(desired_on_m1(&cell), []);
    }

    #[test]
    fn the_saver_is_not_forgotten_before_its_work_is_done_and_can_be_mended() {
        let mut cell = ended();
        cell.ok(Command::StopJob { job: key("ubar/save"), expect: None });
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: Time(1 << 40) }), Done::Unchanged);
        assert_eq!(desired_run(&cell).0, 1);
        // A job of that name that is not inside the set saves nothing.
        cell.submit(&job("save", 1, 100));
        assert!(matches!(&desired_on_m1(&cell)[..], [keep] if keep.action == Action::Keep));
    }

    #[test]
    fn a_machine_that_is_not_counted_on_keeps_what_it_has() {
        let mut cell = ended();
        let keeps = |cell: &Cell| -> Vec<(TaskId, u32)> {
            let list = retained_tasks(&cell.state, M1);
            assert!(list.iter().all(|order| order.action == Action::Keep));
            list.iter().map(|order| (order.task, order.attempt)).collect()
        };
        let left = (cell.task_id("set", 0), 1);
        assert_eq!(keeps(&cell), [left]);
        // A task that still runs there leaves its disk when the machine is lost.
        let mut other = job("other", 1, 100);
        other.retain_disk = Some(RetainDisk { bytes: 2, keep: Span::seconds(9), log_saver: None });
        cell.submit(&other);
        cell.submit(&job("plain", 1, 100));
        cell.run("other", 0, "m1");
        cell.run("plain", 0, "m1");
        let running = (cell.task_id("other", 0), 1);
        let mut all = vec![left, running];
        all.sort_unstable();
        assert_eq!(keeps(&cell), all);
        cell.ok(Command::MachineDown { machine: M1 });
        assert_eq!(keeps(&cell), all);
    }
}
