//! Tasks that have been placed and have not passed their health check: the cell counts such a task
//! as starting until it does, whether or not its program runs already.

use cellwright_cell::health::{HealthCheck, Probe};
use cellwright_cell::id::TaskId;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::Time;
use cellwright_cell::words::quantity::span;
use cellwright_master::usage::UsageSnapshot;

/// Whether it has been placed, and its start completes only with its first passed check.
pub(super) fn is_start_awaited(state: &State, row: &Task) -> bool {
    row.state == TaskState::Assigned && health_check_of(state, row).is_some()
}

/// The sentence that it is starting, as far as that is known. Its machine reports the same of a
/// program that does not run yet and of one that does not answer; usage shows that a program runs.
pub(super) fn starting_text(
    state: &State,
    usage: &UsageSnapshot,
    id: TaskId,
    machine: &str,
    now: Time,
) -> String {
    let Some(row) = state.tasks().get(id) else { return String::new() };
    let Some(check) = health_check_of(state, row) else {
        return format!("starting: {machine} has still to start it.");
    };
    let since = span(now.since(row.changed_at));
    let runs = row.machine().is_some_and(|on| usage.of_task(on, id, row.attempt).is_some());
    let sentence = if runs {
        format!("it runs on {machine} and has not passed its health check yet")
    } else {
        format!("{machine} prepares it, or it has not passed its health check yet")
    };
    format!("starting: {sentence}: {}. It was placed {since} ago.", check_text(&check))
}

fn health_check_of(state: &State, row: &Task) -> Option<HealthCheck> {
    state.spec_of(row)?.task.health.clone()
}

/// What the check does, and from when on its failures count.
fn check_text(check: &HealthCheck) -> String {
    let asks = match &check.probe {
        Probe::Http { port, path } => format!("GET {path} at its port {port}"),
        Probe::Tcp { port } => format!("a connection to its port {port}"),
        Probe::Command(words) => words.join(" "),
    };
    format!("{asks}, where failures count from {} after its start", span(check.start_period))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::resource::Resources;
    use cellwright_cell::time::Span;
    use cellwright_control::controller::testing::{Cell, job};
    use cellwright_master::usage::UsageCache;
    use cellwright_messages::TaskUsage;

    #[test]
    fn one_that_runs_and_has_not_passed_its_check_is_told_from_one_that_may_not_run_yet() {
        let mut cell = Cell::with_machines(1);
        let mut checked = job("jfoo", 1);
        let check = serde_json::json!({ "probe": { "command": ["test", "-e", "up"] } });
        checked.task.health = serde_json::from_value(check).unwrap();
        cell.submit(&checked);
        cell.submit(&job("jbar", 1));
        cell.place_pending();
        let now = cell.task("jfoo", 0).changed_at.plus(Span::seconds(5));
        let text_of = |usage: &UsageSnapshot, job: &str| {
            starting_text(&cell.state, usage, cell.task_id(job, 0), "m0", now)
        };
        let nothing = UsageSnapshot::default();
        assert_eq!(text_of(&nothing, "jbar"), "starting: m0 has still to start it.");
        let open = text_of(&nothing, "jfoo");
        let either = "starting: m0 prepares it, or it has not passed its health check yet: test";
        assert!(open.starts_with(either), "{open}");
        let (row, task) = (cell.task("jfoo", 0), cell.task_id("jfoo", 0));
        let book = UsageCache::default();
        let used = Resources::new(1, 1, 0, 0);
        book.record_report(
            row.machine().unwrap(),
            vec![TaskUsage { task, attempt: row.attempt, used }],
            vec![],
        );
        let runs = text_of(&book.read(), "jfoo");
        let sure = "starting: it runs on m0 and has not passed its health check yet: test -e up, \
                    where failures count from 30 s after its start. It was placed 5 s ago.";
        assert_eq!(runs, sure);
        assert!(
            is_start_awaited(&cell.state, row)
                && !is_start_awaited(&cell.state, cell.task("jbar", 0))
        );
    }
}
