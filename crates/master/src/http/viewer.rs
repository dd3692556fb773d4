//! Who looks at jobs, and what of them may be seen.
//!
//! Everybody in the cell sees which jobs there are, how much they ask for and how they fare. What
//! they run (commands, environment, files, packages) is for the owner, for users with `read_specs`,
//! and for those who may replace it (`administrate_jobs`). The rights are looked up whenever
//! something is shown, in the state it is shown from, so that a watch that goes on for days does
//! not outlive a right that was taken away.

use super::Api;
use super::call::Call;
use crate::handle::Caller;
use cellwright_api::error::ApiError;
use cellwright_cell::id::UserId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::reason::Refusal;
use cellwright_cell::state::State;

/// Whoever asked, as far as it matters for what is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// A part of the cell itself, or anybody on a master that asks nobody who they are.
    Trusted,
    User(Name),
    /// Known, and without a job of its own.
    Nobody,
}

impl Viewer {
    pub fn of(caller: &Caller) -> Viewer {
        match caller {
            Caller::System(_) | Caller::Anonymous | Caller::Replica(_) | Caller::Scheduler(_) => {
                Viewer::Trusted
            }
            Caller::User(name) => Viewer::User(name.clone()),
            Caller::Agent(_) => Viewer::Nobody,
        }
    }

    /// Whether what jobs of `owner` run may be seen.
    pub fn sees_inside(&self, state: &State, owner: UserId) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                state.user_named(name) == Some(owner) || self.sees_all_inside(state)
            }
        }
    }

    /// Whether what everybody's jobs run may be seen.
    pub fn sees_all_inside(&self, state: &State) -> bool {
        match self {
            Viewer::Trusted => true,
            Viewer::Nobody => false,
            Viewer::User(name) => {
                let row = state.user_named(name).and_then(|id| state.users().get(id));
                row.is_some_and(cellwright_cell::quota::User::reads_specs)
            }
        }
    }

    pub fn is(&self, user: &Name) -> bool {
        matches!(self, Viewer::User(name) if name == user)
    }
}

impl Call {
    pub fn viewer(&self) -> Result<Viewer, ApiError> {
        self.caller().map(Viewer::of)
    }
}

impl Api {
    /// Refuses what is asked of a job by whoever could not change it. Comes before anything of the
    /// job is looked at, so that a refusal tells nothing of it.
    pub(super) fn may_change(&self, caller: &Caller, job: &JobKey) -> Result<(), ApiError> {
        let Caller::User(user) = caller else { return Ok(()) };
        if *user == job.user {
            return Ok(());
        }
        let administrates = self.handle.replicated().with(|view| {
            use cellwright_cell::quota::Capability::AdministrateJobs;
            let row = view.state.user_named(user).and_then(|id| view.state.users().get(id));
            row.is_some_and(|row| row.capabilities.contains(&AdministrateJobs))
        });
        if administrates {
            return Ok(());
        }
        Err(Refusal::NotOwner { user: user.clone(), job: job.clone() }.into())
    }
}
