//! What people call rows and states.

use crate::credential::TokenKind;
use crate::id::{BlobId, JobId, MachineId, TokenId, UserId};
use crate::spec::Domain;
use crate::state::State;

pub(super) fn task_state(state: crate::task::TaskState) -> &'static str {
    use crate::task::TaskState as S;
    match state {
        S::Deferred => "deferred",
        S::Pending => "pending",
        S::Assigned => "assigned",
        S::Running => "running",
        S::Stopping(_) => "stopping",
        S::Dead(_) => "dead",
    }
}

pub(super) fn domain_name(domain: Domain) -> &'static str {
    match domain {
        Domain::Machine => "the machine",
        Domain::Rack => "its rack",
        Domain::Power => "its power domain",
        Domain::Cell => "the cell",
    }
}

pub(crate) fn job_name(state: &State, job: JobId) -> String {
    state.job_key(job).map_or_else(|| format!("job#{}", job.0), |key| key.to_string())
}

/// As its operator named it, or by its number once it is gone.
#[must_use]
pub fn machine_name(state: &State, machine: MachineId) -> String {
    let row = state.machines().get(machine);
    row.map_or_else(|| format!("machine#{}", machine.0), |row| row.spec.name.to_string())
}

pub(super) fn user_name(state: &State, user: UserId) -> String {
    let row = state.users().get(user);
    row.map_or_else(|| format!("user#{}", user.0), |row| format!("user {}", row.name))
}

pub(super) fn token_name(state: &State, token: TokenId) -> String {
    let Some(row) = state.tokens().get(token) else { return format!("token#{}", token.0) };
    match &row.kind {
        TokenKind::UserToken { user } => format!("token {} of user {user}", row.id),
        TokenKind::JoinAgent { machine } => format!("token {} for machine {machine}", row.id),
        TokenKind::JoinReplica { name } => format!("token {} for replica {name}", row.id),
        TokenKind::JoinScheduler { name } => format!("token {} for scheduler {name}", row.id),
        TokenKind::Revocation { part, name } => format!("revocation of {part} {name}"),
    }
}

pub(super) fn blob_name(state: &State, blob: BlobId) -> String {
    let row = state.blobs().get(blob);
    row.map_or_else(
        || format!("package#{}", blob.0),
        |row| format!("package {}", row.short_digest()),
    )
}
