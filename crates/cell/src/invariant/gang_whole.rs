//! A plan that places a task of a gang leaves none of the gang's tasks pending.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::state::State;
use crate::task::TaskState;

const NAME: &str = "gang_whole";

pub(super) fn check(step: &Step<'_>) -> Check {
    let Some((Command::CommitPlan(_), _)) = step.only_command() else { return Ok(()) };
    for (id, job) in step.after.jobs.iter().filter(|(_, job)| job.spec().gang) {
        let in_state = |state: &State, wanted: TaskState| {
            let rows = job.tasks.iter().filter_map(|task| state.tasks.get(*task));
            rows.filter(|task| task.state == wanted).count()
        };
        let waited = in_state(step.before, TaskState::Pending);
        let waiting = in_state(step.after, TaskState::Pending);
        if waiting < waited && waiting > 0 {
            let row = format!("job row {} ({})", id.0, job.name);
            let detail = format!("{waited} tasks waited, {waiting} were left waiting");
            return Err(violation(NAME, row, detail));
        }
    }
    Ok(())
}
