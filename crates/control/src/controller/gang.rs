//! The gang controller: gangs that lost a task and were not made whole in time give back what they
//! still hold. The rule is in [`cellwright_cell::gang`], here as in `apply`.
//!
//! A new leader may not have seen all gangs yet when the time of one is over. It then asks for what
//! `apply` finds too early, and asks again.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::gang;
use cellwright_cell::id::JobId;
use cellwright_cell::job::JobState;

#[derive(Debug, Default)]
pub struct Gangs {
    jobs: Sweep<JobId>,
}

impl Controller for Gangs {
    fn name(&self) -> ControllerName {
        ControllerName::Gang
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let (state, bugs) = (view.state, view.settings.bugs);
        if bugs.keeps_broken_gangs {
            return;
        }
        self.jobs.scan(state.jobs(), view.settings.rows_per_step, |job| {
            job.state == JobState::Active && job.spec().gang
        });
        for broken in gang::broken_gangs(state, self.jobs.in_turn()) {
            let is_due = broken.gives_back_at <= view.now || bugs.gives_back_at_once;
            let Some(job) = state.job_key(broken.job).filter(|_| is_due) else { continue };
            let give_back = Command::GiveBack { job };
            if draft.accepts(&give_back) {
                self.jobs.last_served(broken.job);
                draft.push(give_back);
            }
        }
    }
}
