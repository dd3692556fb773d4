//! Disruption budgets as controllers count them: what `apply` will find, plus what this very step
//! has already decided to stop. `apply` has the last word; this keeps what it would refuse out of
//! the log.

use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Budgets {
    /// Running tasks that commands of this step stop.
    taken: BTreeMap<JobId, u32>,
}

impl Budgets {
    /// Whether the system may choose to stop `task`, and with an alloc what runs inside it; if so,
    /// it counts from here on. `otherwise` bounds jobs that have no budget of their own.
    pub fn take(
        &mut self,
        state: &State,
        task: TaskId,
        otherwise: impl Fn(JobId) -> Option<u32>,
    ) -> bool {
        let stops = disrupted(state, task);
        let fits = stops.iter().all(|(job, tasks)| {
            let own = state.jobs().get(*job).and_then(|row| row.spec().max_down);
            let Some(most) = own.or_else(|| otherwise(*job)) else { return true };
            let down = state.job_load(*job).map_or(0, |load| load.down());
            let taken = self.taken.get(job).copied().unwrap_or(0);
            down.saturating_add(taken).saturating_add(*tasks) <= most
        });
        if fits {
            self.count(&stops);
        }
        fits
    }

    /// `task` is stopped because it must be, whatever the budgets say.
    pub fn spend(&mut self, state: &State, task: TaskId) {
        self.count(&disrupted(state, task));
    }

    fn count(&mut self, stops: &BTreeMap<JobId, u32>) {
        for (job, tasks) in stops {
            *self.taken.entry(*job).or_default() += tasks;
        }
    }
}

/// Running tasks by job that go down with `task`. What does not run is down already.
fn disrupted(state: &State, task: TaskId) -> BTreeMap<JobId, u32> {
    let inner = state.alloc_load(task).map_or(&[][..], |load| &load.tasks);
    let mut stops = BTreeMap::new();
    for id in std::iter::once(&task).chain(inner) {
        let running = state.tasks().get(*id).filter(|row| row.state == TaskState::Running);
        if let Some(row) = running {
            *stops.entry(row.job).or_default() += 1;
        }
    }
    stops
}
