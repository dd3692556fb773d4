//! Disruption budgets as controllers count them: what `apply` will find, plus what this very step
//! has already decided to stop. `apply` has the last word; this keeps commands that it would reject
//! out of the log.

use cellwright_cell::disruption::{disrupted_tasks, within_max_down};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Budgets {
    /// Running tasks that commands of this step stop.
    taken_down: BTreeMap<JobId, u32>,
    /// Those among them that the cell stops voluntarily, which jobs can limit over time.
    taken_voluntarily: BTreeMap<JobId, u32>,
}

impl Budgets {
    /// Whether the system may choose to stop `task`, and with an alloc the tasks inside it; if so,
    /// it counts from here on. `otherwise` bounds jobs that have no budget of their own.
    pub fn take(
        &mut self,
        state: &State,
        task: TaskId,
        otherwise: impl Fn(JobId) -> Option<u32>,
    ) -> bool {
        let stops = disrupted_tasks(state, task);
        let fits = stops.iter().all(|(job, tasks)| {
            let down = state.job_load(*job).map_or(0, |load| load.down());
            let taken = self.taken_down.get(job).copied().unwrap_or(0);
            let down = down.saturating_add(taken);
            match state.jobs().get(*job).map(|row| row.spec()) {
                Some(spec) if spec.max_down.is_some() => within_max_down(spec, down, *tasks),
                _ => otherwise(*job).is_none_or(|limit| down.saturating_add(*tasks) <= limit),
            }
        });
        if fits {
            add_all(&mut self.taken_down, &stops);
        }
        fits
    }

    /// The same for voluntary disruptions, which also keep to how often the job may be disrupted.
    pub fn take_voluntarily(&mut self, state: &State, task: TaskId, now: Time) -> bool {
        let stops = disrupted_tasks(state, task);
        let in_turn = stops.iter().all(|(job, tasks)| {
            let beside = self.taken_voluntarily.get(job).copied().unwrap_or(0);
            let row = state.jobs().get(*job);
            row.is_none_or(|row| row.next_disruption_at(tasks + beside, now) <= now)
        });
        let is_taken = in_turn && self.take(state, task, |_| None);
        if is_taken {
            add_all(&mut self.taken_voluntarily, &stops);
        }
        is_taken
    }

    /// `task` is stopped because it must be, whatever the budgets say.
    pub fn spend(&mut self, state: &State, task: TaskId) {
        add_all(&mut self.taken_down, &disrupted_tasks(state, task));
    }
}

fn add_all(sums: &mut BTreeMap<JobId, u32>, stops: &BTreeMap<JobId, u32>) {
    for (job, tasks) in stops {
        *sums.entry(*job).or_default() += tasks;
    }
}
