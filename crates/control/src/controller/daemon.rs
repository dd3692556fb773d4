//! The daemon controller: gives each machine its task of every daemon, and takes the tasks of
//! machines that are no longer theirs. Which machines those are, and how far quota goes, is decided
//! by `cell::daemon` and `apply`; this only asks for it where something differs.
//!
//! Rejected: following the machines in the commands that change them. A machine that joins would
//! look at every job there is, and a lost connection of many machines at once would do so for each.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::daemon;
use cellwright_cell::id::JobId;
use cellwright_cell::job::{Job, JobState};

#[derive(Debug, Default)]
pub struct Daemon {
    jobs: Sweep<JobId>,
}

impl Controller for Daemon {
    fn name(&self) -> ControllerName {
        ControllerName::Daemon
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let (state, rows) = (view.state, view.settings.rows_per_step);
        let is_live = |job: &Job| job.state == JobState::Active && job.is_daemon();
        self.jobs.scan(state.jobs(), rows, is_live);
        // Each is compared with all machines.
        let most = (rows / state.machines().len().max(1)).max(1);
        for id in self.jobs.in_turn().into_iter().take(most) {
            if draft.is_full() {
                return;
            }
            self.jobs.last_served(id);
            let (Some(job), Some(key)) = (state.jobs().get(id), state.job_key(id)) else {
                continue;
            };
            let follow = Command::MatchMachines { job: key };
            let is_behind = if view.settings.bugs.forgets_returned_machines {
                !daemon::machine_changes(state, job).leave.is_empty()
            } else {
                daemon::is_behind(state, job)
            };
            if is_behind && draft.accepts(&follow) {
                draft.push(follow);
            }
        }
    }
}
