//! What is said of a job that stays as it is although somebody ran its file: that it has ended, or
//! that some of its tasks were stopped or skipped.

use crate::commands::pagination;
use crate::commands::update::skipped_text;
use crate::commands::wait::goal;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::output::print_notice;
use cellwright_api::types::TaskView;
use cellwright_cell::name::JobKey;
use cellwright_cell::task::{StopCause, TaskOutcome, TaskState};

/// What to type for a batch job that has ended and is not run once more by itself.
pub(super) fn ended_text(job: &JobKey) -> String {
    format!(
        "job {job} has ended and is as the file says; to run all of it again: --again; what failed \
         of it: cell run --failed {job}"
    )
}

/// Whether the task was stopped permanently, by a user.
fn is_stopped(task: &TaskView) -> bool {
    matches!(
        task.state,
        TaskState::Stopping(StopCause::Killed) | TaskState::Dead(TaskOutcome::Killed)
    )
}

/// Warns about stopped tasks, and about those that an update skipped: a job that matches its file
/// does not necessarily run completely.
pub(super) async fn warn_stopped_tasks(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let job = cell.client.job(key).await?.value.item;
    let skipped = goal::skipped(&job);
    if skipped > 0 {
        print_notice(&skipped_text(&key.to_string(), skipped));
    }
    if job.tasks.killed == 0 && job.tasks.stopping == 0 {
        return Ok(());
    }
    let tasks = pagination::tasks(cell, key).await?;
    let specified_tasks = tasks.iter().filter(|task| job.wants(task));
    let stopped: Vec<&str> =
        specified_tasks.filter(|task| is_stopped(task)).map(|task| task.name.as_str()).collect();
    if let Some(text) = stopped_tasks_text(key, &stopped) {
        print_notice(&text);
    }
    Ok(())
}

fn stopped_tasks_text(job: &JobKey, stopped: &[&str]) -> Option<String> {
    Some(match stopped {
        [] => return None,
        [single] => format!(
            "task {single} was stopped alone and stays stopped; to start it again: cell start \
             {single}"
        ),
        [first, rest @ ..] => format!(
            "{} tasks were stopped alone and stay stopped, as {first}; to start them again: cell \
             start '{job}/[…]'",
            rest.len() + 1
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Name;

    #[test]
    fn tasks_that_stay_stopped_are_told_with_what_to_type() {
        let name = |text: &str| Name::new(text).unwrap();
        let key = JobKey { user: name("dev"), job: name("web") };
        assert_eq!(stopped_tasks_text(&key, &[]), None);
        let single = stopped_tasks_text(&key, &["dev/web/2"]).unwrap();
        assert!(
            single.starts_with("task dev/web/2 was stopped alone and stays stopped; "),
            "{single}"
        );
        assert!(single.ends_with("to start it again: cell start dev/web/2"), "{single}");
        let two = stopped_tasks_text(&key, &["dev/web/1", "dev/web/2"]).unwrap();
        let want = "2 tasks were stopped alone and stay stopped, as dev/web/1; ";
        assert!(two.starts_with(want), "{two}");
    }
}
