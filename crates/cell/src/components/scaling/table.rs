//! The table of scaled jobs, its readers and its only writers.

use super::{Command, Scaling, ScalingId, invariant, sizes_are_taken_as_decided};
use crate::apply::Context;
use crate::command::Verdict;
use crate::components::Component;
use crate::id::JobId;
use crate::index::Index;
use crate::invariant::{Check, Step};
use crate::state::State;
use crate::table::Table;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub scalings: Table<ScalingId, Scaling>,
    // Derived.
    pub by_job: Index<JobId, ScalingId>,
}

impl Component for Tables {
    type Command = Command;

    fn apply(context: &mut Context<'_>, command: &Command) -> Verdict {
        match command {
            Command::Measure { loads } => context.measure_jobs(loads),
            Command::Decide { job, decision } => context.scale_job(*job, decision),
            Command::SetMode { job, manual } => context.set_scale_mode(job, *manual),
            Command::Forget { job } => context.forget_scaling(*job),
        }
    }

    fn derive(state: &mut State) {
        let rows = state.components.scaling.scalings.clone();
        for (id, row) in rows.iter() {
            state.components.scaling.by_job.insert(row.job, id);
        }
    }

    fn references(state: &State) -> Check {
        invariant::references(state)
    }

    fn check_state(state: &State) -> Check {
        invariant::index(state)
    }

    fn check_step(step: &Step<'_>) -> Check {
        sizes_are_taken_as_decided::check(step)
    }
}

/// Reading.
impl State {
    pub fn scalings(&self) -> &Table<ScalingId, Scaling> {
        &self.components.scaling.scalings
    }

    /// What is remembered of the scaling of a job.
    pub fn scaling_of(&self, job: JobId) -> Option<(ScalingId, &Scaling)> {
        let id = *self.components.scaling.by_job.get(&job)?;
        Some((id, self.scalings().get(id)?))
    }
}

/// Writing.
impl State {
    /// Changes a row. Its job must stay as it is.
    pub(super) fn edit_scaling(&mut self, id: ScalingId, change: impl FnOnce(&mut Scaling)) {
        if let Some(row) = self.components.scaling.scalings.get_mut(id) {
            change(row);
        }
    }

    pub(super) fn insert_scaling(&mut self, row: Scaling) -> ScalingId {
        let job = row.job;
        let id = self.components.scaling.scalings.push(row);
        self.components.scaling.by_job.insert(job, id);
        id
    }

    pub(super) fn drop_scaling(&mut self, id: ScalingId) {
        if let Some(row) = self.components.scaling.scalings.remove(id) {
            self.components.scaling.by_job.remove(&row.job);
        }
    }
}
