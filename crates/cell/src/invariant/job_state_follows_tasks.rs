//! A job's state follows from its tasks': it is live while one of them is, and a stopping job has
//! no pending tasks. A dead job has no open update. A daemon lives on without tasks until it is
//! stopped.

use super::{Check, violation};
use crate::job::JobState;
use crate::state::State;
use crate::task::{StopCause, TaskState};

const NAME: &str = "life";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter() {
        let row = format!("job row {} ({})", id.0, job.name);
        let fail = |detail: String| Err(violation(NAME, &row, detail));
        let states =
            || job.tasks.iter().filter_map(|task| state.tasks.get(*task)).map(|task| task.state);
        let live = states().filter(|task| !task.is_dead()).count();
        let dead = job.is_dead();
        let waits_for_machines = job.state == JobState::Active && job.is_daemon();
        if dead != (live == 0) && !(waits_for_machines && live == 0) {
            return fail(format!("is {:?} with {live} of its tasks alive", job.state));
        }
        if dead != job.ended_at.is_some() || (dead && job.update.is_some()) {
            let update = &job.update;
            return fail(format!(
                "is {:?}, ended {:?}, update {update:?}",
                job.state, job.ended_at
            ));
        }
        let stays =
            |task: &TaskState| !task.is_dead() && *task != TaskState::Stopping(StopCause::Killed);
        if job.state == JobState::Stopping
            && let Some(task) = states().find(stays)
        {
            return fail(format!("is stopping, and one of its tasks is {task:?}"));
        }
    }
    Ok(())
}
