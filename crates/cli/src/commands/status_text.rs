//! The status of a task or job in words: what it does, and if it does not run, why not and when it
//! is retried.

use crate::format;
use cellwright_api::types::{EndView, JobView, TaskCounts, TaskHealth, TaskView};
use cellwright_cell::daemon::DaemonMachines;
use cellwright_cell::job::{JobOutcome, JobState};
use cellwright_cell::reason::Reason;
use cellwright_cell::task::{ExitClass, StopCause, TaskOutcome, TaskState};
use cellwright_cell::time::Time;
use cellwright_cell::words;

/// How an attempt ended.
pub fn exit_text(class: ExitClass) -> String {
    match class {
        ExitClass::Code(code) => format!("exit code {code}"),
        other => words::ended_coded(other.code(), other.number().map(i64::from)),
    }
}

/// Whether the task is pending only because it failed, or could not be started. One that the cell
/// took from its machine since is not, however often it failed before.
pub fn is_failing(task: &TaskView) -> bool {
    let was_moved = task.last_end.as_ref().is_some_and(|end| is_move(&end.why));
    task.failures_in_row > 0 && !task.state.is_dead() && !was_moved
}

/// Whether an attempt ended for a reason of the cell or its machine.
fn is_move(why: &Reason) -> bool {
    matches!(
        why,
        Reason::Preempted { .. }
            | Reason::Drained
            | Reason::OverCommitted
            | Reason::AllocMoved
            | Reason::UpdateRestart
            | Reason::UpdateMove
            | Reason::MachineDown
            | Reason::MachineRemoved
            | Reason::Rebalanced
            | Reason::ResourcePressure(_)
    )
}

/// The words of [`state`], as `--state` takes them.
pub const TASK_STATES: [&str; 11] = [
    "failed",
    "failing",
    "unhealthy",
    "pending",
    "deferred",
    "starting",
    "running",
    "stopping",
    "finished",
    "stopped",
    "never-ran",
];

/// Whether the task is in the state of this word.
pub fn is_in_state(task: &TaskView, word: &str) -> bool {
    state(task).replace(' ', "-") == word || (word == "failing" && is_failing(task))
}

/// Sorts what a person has to look at to the front; alike ones stay in their order.
pub fn failures_first(tasks: &mut [TaskView]) {
    tasks.sort_by_key(|task| match task.state {
        TaskState::Dead(TaskOutcome::Failed(_)) => 0,
        _ if is_failing(task) => 1,
        TaskState::Running if !task.healthy => 2,
        _ => 3,
    });
}

/// The state in one word, or two.
pub fn state(task: &TaskView) -> String {
    let word = match task.state {
        TaskState::Pending if is_failing(task) => "failing",
        TaskState::Deferred => "deferred",
        TaskState::Pending => "pending",
        TaskState::Assigned => "starting",
        TaskState::Running if !task.healthy => "unhealthy",
        TaskState::Running => "running",
        TaskState::Stopping(_) => "stopping",
        TaskState::Dead(TaskOutcome::Finished) => "finished",
        TaskState::Dead(TaskOutcome::Failed(_)) => "failed",
        TaskState::Dead(TaskOutcome::Killed) => "stopped",
        TaskState::Dead(TaskOutcome::DependencyFailed) => "never ran",
    };
    word.into()
}

/// A note beyond the state; empty for a task that runs normally.
pub fn note(task: &TaskView, now: Time) -> String {
    match task.state {
        TaskState::Dead(TaskOutcome::Failed(class)) => final_failure_note(task, class),
        TaskState::Dead(TaskOutcome::DependencyFailed) => match &task.needed {
            Some(job) => format!("{job}, which it needed, did not succeed"),
            None => "a job it needed did not succeed".into(),
        },
        TaskState::Stopping(StopCause::Killed) => "by request".into(),
        TaskState::Stopping(cause) => super::enum_words::enum_text(&cause),
        TaskState::Pending if is_failing(task) => failing_note(task, now),
        TaskState::Assigned | TaskState::Running if is_failing(task) => {
            let why = task.last_end.as_ref().map(|end| format!(": {}", end_text(end)));
            let why = why.unwrap_or_default();
            format!(
                "{}failed {} before{why}",
                not_yet_healthy_note(task, "; "),
                times(task.failures_in_row)
            )
        }
        TaskState::Assigned => not_yet_healthy_note(task, ""),
        TaskState::Pending => pending_note(task, now),
        TaskState::Running => resize_note(task),
        _ => String::new(),
    }
}

/// The change of limits that is not in force yet: memory and disk shrink as their use does.
fn resize_note(task: &TaskView) -> String {
    let change = task.limits_in_force.and_then(|before| words::limits_change(before, task.limits));
    change.map_or_else(String::new, |change| format!("resizing: {change}"))
}

/// The note for a task whose program runs but is not healthy yet: its usage is known, and still it
/// does not count as running.
fn not_yet_healthy_note(task: &TaskView, separator: &str) -> String {
    if task.health == Some(TaskHealth::NotYetHealthy) && task.used.is_some() {
        format!("runs, has not passed its health check yet{separator}")
    } else {
        String::new()
    }
}

/// How the task ended for good, or the rule that made it final.
fn final_failure_note(task: &TaskView, class: ExitClass) -> String {
    match (class, task.last_end.as_ref().map(|end| &end.why)) {
        (_, Some(Reason::NotRetried { exit, forgiven })) => words::not_retried(*exit, *forgiven),
        (ExitClass::Lost | ExitClass::Evicted, _) => format!("{}; not retried", exit_text(class)),
        _ => exit_text(class),
    }
}

fn failing_note(task: &TaskView, now: Time) -> String {
    let why = task.last_end.as_ref().map(|end| match &end.why {
        Reason::Exited(ExitClass::Code(code)) => format!(", exit {code}"),
        _ => format!(", {}", end_text(end)),
    });
    format!(
        "failed {}{}, {}",
        times(task.failures_in_row),
        why.unwrap_or_default(),
        next_try(task.not_before, now)
    )
}

/// How the last attempt ended, shorter than in the event.
pub fn end_text(end: &EndView) -> String {
    match &end.why {
        Reason::Exited(class) => exit_text(*class),
        _ => end.text.clone(),
    }
}

fn pending_note(task: &TaskView, now: Time) -> String {
    let next_attempt =
        if task.not_before > now { next_try(task.not_before, now) } else { String::new() };
    match &task.last_end {
        Some(end) if next_attempt.is_empty() => end_text(end),
        Some(end) => format!("{}; {next_attempt}", end_text(end)),
        None => next_attempt,
    }
}

fn next_try(at: Time, now: Time) -> String {
    if at > now {
        format!("next try in {}", format::duration(cellwright_cell::time::Span(at.0 - now.0)))
    } else {
        "next try now".into()
    }
}

fn times(count: u32) -> String {
    format::times_text(u64::from(count))
}

/// The non-zero task counts: `2 running, 1 pending`.
pub fn task_counts(tasks: &TaskCounts) -> String {
    named_counts(tasks, "running")
}

/// The same for a job: with a health check, running tasks are healthy ones.
pub fn job_task_counts(job: &JobView) -> String {
    let is_checked = job.spec.task.health.is_some();
    match &job.daemon {
        Some(machines) => daemon_counts(&job.tasks, machines, is_checked),
        None if is_checked => named_counts(&job.tasks, "running and healthy"),
        None => task_counts(&job.tasks),
    }
}

/// `runs on 5 of 7 machines, 1 pending, 1 down`. Tasks whose machines left are not mentioned.
fn daemon_counts(tasks: &TaskCounts, machines: &DaemonMachines, is_checked: bool) -> String {
    let runs = if is_checked { "healthy" } else { "runs" };
    let of = format::pluralize(u64::from(machines.matching), "machine");
    let mut text = format!("{runs} on {} of {of}", format::count(u64::from(tasks.running)));
    let named = [
        (tasks.pending, "pending"),
        (tasks.assigned, "starting"),
        (tasks.stopping, "stopping"),
        (tasks.finished, "finished"),
        (tasks.failed, "failed"),
        (machines.down, "down"),
        (machines.draining, "draining"),
        (machines.without_quota, "beyond quota"),
    ];
    for (count, name) in named.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!(", {} {name}", format::count(u64::from(count))));
    }
    text
}

fn named_counts(tasks: &TaskCounts, running: &str) -> String {
    let named = [
        (tasks.running, running),
        (tasks.pending, "pending"),
        (tasks.assigned, "starting"),
        (tasks.deferred, "deferred"),
        (tasks.stopping, "stopping"),
        (tasks.finished, "finished"),
        (tasks.failed, "failed"),
        (tasks.killed, "stopped"),
    ];
    let some = named.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        some.map(|(count, name)| format!("{} {name}", format::count(u64::from(*count)))).collect();
    if texts.is_empty() { "no tasks".into() } else { texts.join(", ") }
}

/// The state of a job in one word, or in two.
pub fn job_state(job: &JobView) -> &'static str {
    match job.state {
        JobState::Deferred => "deferred",
        JobState::Active if job.update.as_ref().is_some_and(|update| update.rolled_back) => {
            "rolling back"
        }
        JobState::Active if job.update.as_ref().is_some_and(|update| update.undoing) => "undoing",
        JobState::Active if job.update.as_ref().is_some_and(|update| update.canaries > 0) => {
            "trying"
        }
        JobState::Active if job.update_complete => "updated",
        JobState::Active if job.update.is_some() => "updating",
        JobState::Active if job.restarting > 0 => "restarting",
        JobState::Active => "active",
        JobState::Stopping => "stopping",
        JobState::Dead(JobOutcome::Succeeded) => "succeeded",
        JobState::Dead(JobOutcome::Failed) => "failed",
        JobState::Dead(JobOutcome::Killed) => "stopped",
        JobState::Dead(JobOutcome::DependencyFailed) => "never ran",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task(fields: serde_json::Value) -> TaskView {
        let mut whole = json!({
            "name": "dev/hog/0", "index": 0, "state": "pending", "healthy": true, "attempt": 3,
            "version": 1, "machine": null, "alloc": null,
            "limits": {"cpu": 1, "ram": 1}, "reservation": {"cpu": 1, "ram": 1},
            "ports": [], "devices": [], "waits_for": [], "failures_in_row": 0,
            "not_before": 0, "changed_at": 0, "crashed_on": [],
        });
        for (name, value) in fields.as_object().unwrap() {
            whole[name] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn a_daemon_says_on_how_many_of_its_machines_it_runs() {
        let tasks = TaskCounts { running: 5, pending: 1, killed: 3, ..TaskCounts::default() };
        let machines =
            DaemonMachines { matching: 8, with_task: 6, down: 1, draining: 0, without_quota: 1 };
        assert_eq!(
            daemon_counts(&tasks, &machines, false),
            "runs on 5 of 8 machines, 1 pending, 1 down, 1 beyond quota"
        );
    }

    #[test]
    fn a_failing_task_reads_as_failing() {
        let end = json!({
            "attempt": 3, "at": 0, "machine": "m1", "code": "exited",
            "why": {"exited": {"code": 5}}, "text": "exited with code 5",
        });
        let failing = task(json!({"failures_in_row": 3, "not_before": 12_000, "last_end": end}));
        assert_eq!(state(&failing), "failing");
        assert_eq!(note(&failing, Time(0)), "failed 3 times, exit 5, next try in 12 s");
        assert_eq!(note(&failing, Time(20_000)), "failed 3 times, exit 5, next try now");
        let waiting = task(json!({}));
        assert_eq!((state(&waiting).as_str(), note(&waiting, Time(0)).as_str()), ("pending", ""));
        let ended = task(json!({"state": {"dead": {"failed": "out_of_memory"}}}));
        assert_eq!(note(&ended, Time(0)), "out of memory at its own limit");
    }

    #[test]
    fn one_that_was_drained_is_not_failing_however_often_it_failed_before() {
        for (why, want) in [
            (json!("drained"), "pending"),
            (json!("machine_down"), "pending"),
            (json!({"preempted": {"by": 3}}), "pending"),
            (json!({"exited": {"code": 5}}), "failing"),
            (json!("unhealthy"), "failing"),
        ] {
            let end = json!({
                "attempt": 3, "at": 0, "machine": "m1", "code": "x", "why": why, "text": "x",
            });
            assert_eq!(state(&task(json!({"failures_in_row": 2, "last_end": end}))), want, "{why}");
        }
    }

    #[test]
    fn what_failed_comes_first_and_states_are_asked_for_by_their_words() {
        let named = |name: &str, mut fields: serde_json::Value| {
            fields["name"] = json!(name);
            task(fields)
        };
        let mut tasks = vec![
            named("a", json!({"state": "running"})),
            named("b", json!({"failures_in_row": 1})),
            named("c", json!({"state": "running", "healthy": false})),
            named("d", json!({"state": {"dead": {"failed": "out_of_memory"}}})),
            named("e", json!({})),
            named("f", json!({"state": {"dead": "dependency_failed"}})),
        ];
        failures_first(&mut tasks);
        let names = |tasks: &[TaskView]| tasks.iter().map(|t| t.name.clone()).collect::<String>();
        assert_eq!(names(&tasks), "dbcaef");
        let of = |word: &str| {
            names(&tasks.iter().filter(|t| is_in_state(t, word)).cloned().collect::<Vec<_>>())
        };
        assert_eq!(
            (of("failed"), of("failing"), of("pending")),
            ("d".into(), "b".into(), "e".into())
        );
        assert_eq!(
            (of("never-ran"), of("running"), of("unhealthy")),
            ("f".into(), "a".into(), "c".into())
        );
        assert!(tasks.iter().all(|t| TASK_STATES.iter().any(|word| is_in_state(t, word))));
    }

    #[test]
    fn one_that_never_ran_says_for_want_of_what() {
        let dead = json!({"dead": "dependency_failed"});
        let never = task(json!({"state": dead.clone(), "needed": "dev/right"}));
        assert_eq!(note(&never, Time(0)), "dev/right, which it needed, did not succeed");
        let forgotten = task(json!({"state": dead}));
        assert_eq!(note(&forgotten, Time(0)), "a job it needed did not succeed");
    }

    #[test]
    fn what_is_not_tried_again_says_by_which_rule() {
        let end = json!({
            "attempt": 1, "at": 0, "machine": "m1", "code": "not-retried",
            "why": {"not_retried": {"exit": {"code": 42}, "forgiven": 0}}, "text": "",
        });
        let state = json!({"dead": {"failed": {"code": 42}}});
        let broken = task(json!({"state": state, "last_end": end, "failures_in_row": 1}));
        assert_eq!(note(&broken, Time(0)), "not retried: exit 42 is final");
        let lost = task(json!({"state": {"dead": {"failed": "lost"}}}));
        assert_eq!(note(&lost, Time(0)), "lost with its machine; not retried");
    }

    #[test]
    fn one_that_runs_again_says_what_was_the_matter() {
        let end = json!({
            "attempt": 1, "at": 0, "machine": "m1", "code": "unhealthy",
            "why": "unhealthy", "text": "failed its health check",
        });
        let again = task(json!({"state": "running", "last_end": end, "failures_in_row": 1}));
        assert_eq!(note(&again, Time(0)), "failed once before: failed its health check");
    }

    #[test]
    fn one_that_runs_and_has_not_passed_its_check_says_so() {
        let used = json!({"cpu": 1, "ram": 1});
        let starting = json!({"state": "assigned", "health": "not_yet_healthy"});
        assert_eq!(note(&task(starting.clone()), Time(0)), "", "it may not run yet");
        let mut runs = starting;
        runs["used"] = used;
        let actual = (state(&task(runs.clone())), note(&task(runs.clone()), Time(0)));
        let want = "runs, has not passed its health check yet";
        assert_eq!(actual, ("starting".to_owned(), want.to_owned()));
        runs["failures_in_row"] = json!(2);
        assert_eq!(note(&task(runs), Time(0)), format!("{want}; failed twice before"));
    }

    #[test]
    fn a_job_with_a_check_says_that_its_tasks_are_healthy_and_when_its_update_is_complete() {
        let tasks = json!({
            "deferred": 0, "pending": 1, "assigned": 0, "running": 2, "stopping": 0,
            "finished": 0, "failed": 0, "killed": 0,
        });
        let spec = json!({
            "name": "web", "priority": 100, "count": 3,
            "task": {"limits": {"cpu": 1, "ram": 1}, "command": ["x"]},
        });
        let mut job = json!({
            "user": "dev", "name": "web", "state": "active", "version": 2, "spec": spec,
            "redacted": false, "update": null, "update_complete": false, "tasks": tasks,
            "waits_for": [], "submitted_at": 0, "ended_at": null,
        });
        let read =
            |job: &serde_json::Value| -> JobView { serde_json::from_value(job.clone()).unwrap() };
        assert_eq!(job_task_counts(&read(&job)), "2 running, 1 pending");
        job["spec"]["task"]["health"] = json!({"probe": {"tcp": {"port": 0}}});
        assert_eq!(job_task_counts(&read(&job)), "2 running and healthy, 1 pending");
        job["update"] = json!({
            "from": 1, "to": 2, "opened_at": 0, "disruptions": 3, "skipped": [], "undoing": false,
        });
        assert_eq!(job_state(&read(&job)), "updating");
        job["update_complete"] = json!(true);
        assert_eq!(job_state(&read(&job)), "updated");
    }
}
