//! Every id, name and version in a row leads to a row, and to the right one. Checked before
//! anything else, without indexing: the loader calls this on unvalidated rows.

use super::{Check, violation};
use crate::components;
use crate::credential::{AccessToken, TokenKind};
use crate::hold::Hold;
use crate::id::{JobId, TaskId};
use crate::job::Job;
use crate::name::Name;
use crate::spec::{JobKind, JobSpec};
use crate::state::State;
use crate::task::Task;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NAME: &str = "references";

pub(super) fn check(state: &State) -> Check {
    names(state)?;
    for (_, machine) in state.machines.iter().filter(|(_, machine)| !machine.draining) {
        if machine.drain_by.is_some() {
            let row = format!("machine {}", machine.spec.name);
            return Err(violation(NAME, row, "it has a deadline and does not drain".to_owned()));
        }
    }
    state.jobs.iter().try_for_each(|(id, job)| check_job(state, id, job))?;
    check_newest_is_live(state)?;
    components::references(state)?;
    let users: BTreeSet<&Name> = state.users.iter().map(|(_, user)| &user.name).collect();
    // Indexes are built after rows are checked, so they cannot be used here.
    let ends: BTreeMap<&Name, Time> =
        state.tokens.iter().map(|(_, token)| (&token.id, token.expires)).collect();
    state.tokens.iter().try_for_each(|(_, token)| check_token(&ends, &users, token))?;
    state.tasks.iter().try_for_each(|(id, task)| check_task(state, id, task))
}

pub(crate) fn unique<T: Ord + std::fmt::Display>(
    kind: &str,
    names: impl Iterator<Item = T>,
) -> Check {
    let mut seen = BTreeSet::new();
    for name in names {
        let row = format!("{kind} {name}");
        if !seen.insert(name) {
            return Err(violation(NAME, row, "two rows have this name"));
        }
    }
    Ok(())
}

fn names(state: &State) -> Check {
    unique("machine", state.machines.iter().map(|(_, m)| &m.spec.name))?;
    unique("user", state.users.iter().map(|(_, u)| &u.name))?;
    unique("token", state.tokens.iter().map(|(_, t)| &t.id))?;
    unique("package", state.blobs.iter().map(|(_, b)| &b.digest))
}

fn check_job(state: &State, id: JobId, job: &Job) -> Check {
    let fail =
        |detail: String| Err(violation(NAME, format!("job row {} ({})", id.0, job.name), detail));
    if state.users.get(job.user).is_none() {
        return fail(format!("its owner, user row {}, does not exist", job.user.0));
    }
    if !job.specs.contains_key(&job.version) {
        return fail(format!("has no spec of its version {}", job.version));
    }
    if let Some((version, spec)) = job.specs.iter().find(|(_, s)| s.name != job.name) {
        return fail(format!("its spec of version {version} is named {}", spec.name));
    }
    let rows = job.tasks.len();
    let lacks_rows = |spec: &JobSpec| spec.kind != JobKind::Daemon && spec.count as usize > rows;
    if let Some((version, spec)) = job.specs.iter().find(|(_, spec)| lacks_rows(spec)) {
        return fail(format!("has {rows} task rows, version {version} wants {}", spec.count));
    }
    if let Some(update) = &job.update {
        for version in [update.from, update.to] {
            if !job.specs.contains_key(&version) {
                return fail(format!("its open update needs version {version}, which is gone"));
            }
        }
    }
    if let Some(on) = job.waits_for.iter().find(|on| state.jobs.get(**on).is_none()) {
        return fail(format!("waits for job row {}, which does not exist", on.0));
    }
    for (index, task) in job.tasks.iter().enumerate() {
        let found = state.tasks.get(*task).map(|t| (t.job, t.index as usize));
        if found != Some((id, index)) {
            return fail(format!("its task {index} is row {}, which is {found:?}", task.0));
        }
    }
    Ok(())
}

/// A token never outlives its user, because somebody else may get the name, nor the token that it
/// was made with.
fn check_token(
    ends: &BTreeMap<&Name, Time>,
    users: &BTreeSet<&Name>,
    token: &AccessToken,
) -> Check {
    if let Some(parent) = &token.parent
        && ends.get(parent).is_none_or(|end| *end < token.expires)
    {
        let what = format!("outlives {parent}, with which it was made");
        return Err(violation(NAME, format!("token {}", token.id), what));
    }
    match &token.kind {
        TokenKind::UserToken { user } if !users.contains(user) => {
            Err(violation(NAME, format!("token {}", token.id), format!("there is no user {user}")))
        }
        _ => Ok(()),
    }
}

/// A name may be reused once its job is dead; the live one is always the newest.
fn check_newest_is_live(state: &State) -> Check {
    let mut newest = BTreeMap::new();
    for (id, job) in state.jobs.iter() {
        newest.insert((job.user, &job.name), id);
    }
    for (id, job) in state.jobs.iter().filter(|(_, job)| !job.is_dead()) {
        let last = newest.get(&(job.user, &job.name));
        if last != Some(&id) {
            let row = format!("job row {} ({})", id.0, job.name);
            return Err(violation(NAME, row, format!("lives, but its name belongs to {last:?}")));
        }
    }
    Ok(())
}

fn check_task(state: &State, id: TaskId, task: &Task) -> Check {
    let fail = |detail: String| Err(violation(NAME, format!("task row {}", id.0), detail));
    let Some(job) = state.jobs.get(task.job) else {
        return fail(format!("its job, row {}, does not exist", task.job.0));
    };
    if job.tasks.get(task.index as usize) != Some(&id) {
        return fail(format!("its job has another row at index {}", task.index));
    }
    if !job.specs.contains_key(&task.version) {
        return fail(format!("runs version {}, whose spec is gone", task.version));
    }
    for (_, hold) in task.holds.iter() {
        let Hold { machine, alloc, .. } = hold;
        if state.machines.get(*machine).is_none() {
            return fail(format!("is on machine row {}, which does not exist", machine.0));
        }
        if let Some(alloc) = alloc.filter(|alloc| state.tasks.get(*alloc).is_none()) {
            return fail(format!("is in alloc row {}, which does not exist", alloc.0));
        }
    }
    Ok(())
}
