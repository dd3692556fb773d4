//! Every row that changed has an event that says so, and every event belongs to a row that changed
//! (a rejection, which changes nothing, aside). So a reader of events misses nothing: history,
//! names and the scheduler's copy are folds over them.

use super::{Check, Step, violation};
use crate::event::{Event, TaskChange, What};
use crate::id::{BlobId, CronId, JobId, MachineId, ResourceId, TaskId, TokenId, UserId};
use crate::job::Job;
use crate::machine::Machine;
use crate::table::{Key, Table};
use std::collections::BTreeSet;

const NAME: &str = "events_cover_changes";

/// Rows that differ between two states, or that events speak of.
#[derive(Default)]
struct Touched {
    tasks: BTreeSet<TaskId>,
    jobs: BTreeSet<JobId>,
    machines: BTreeSet<MachineId>,
    users: BTreeSet<UserId>,
    resources: BTreeSet<ResourceId>,
    crons: BTreeSet<CronId>,
    tokens: BTreeSet<TokenId>,
    blobs: BTreeSet<BlobId>,
    /// Jobs of which a task is touched, and machines on which a resource is: their rows keep the
    /// books of that.
    jobs_through_tasks: BTreeSet<JobId>,
    machines_through_resources: BTreeSet<MachineId>,
    level: bool,
    bounds: bool,
}

pub(super) fn check(step: &Step<'_>) -> Check {
    let told = told(step.events);
    let changed = changed(step);
    every_change_is_told(step, &changed, &told)?;
    // Two commands can undo each other; one cannot.
    match step.only() {
        Some(_) => step.events.iter().try_for_each(|event| is_true(event, &changed)),
        None => Ok(()),
    }
}

fn told(events: &[Event]) -> Touched {
    let mut told = Touched::default();
    for event in events {
        match &event.what {
            What::Task { task, job, change, .. } => {
                told.tasks.insert(*task);
                // Which run is due stands with what is kept on the machine.
                if let TaskChange::SaverFailed { machine } = change {
                    told.machines.insert(*machine);
                }
                told.jobs_through_tasks.insert(*job);
            }
            What::Job { job, .. } => {
                told.jobs.insert(*job);
            }
            What::JobRejected { .. } => {}
            What::Machine { machine, .. } => {
                told.machines.insert(*machine);
            }
            What::User { user, .. } => {
                told.users.insert(*user);
            }
            What::Resource { resource, machine, .. } => {
                told.resources.insert(*resource);
                told.machines_through_resources.extend(*machine);
            }
            What::LevelRaised { .. } => told.level = true,
            What::BoundsChanged => told.bounds = true,
            What::Cron { cron, .. } => {
                told.crons.insert(*cron);
            }
            What::Token { token, .. } => {
                told.tokens.insert(*token);
            }
            What::Blob { blob, .. } => {
                told.blobs.insert(*blob);
            }
        }
    }
    told
}

fn differing<K: Key + Ord, V: Clone + PartialEq>(
    before: &Table<K, V>,
    after: &Table<K, V>,
) -> BTreeSet<K> {
    let slots = before.slots().max(after.slots());
    (0..slots).map(K::from_slot).filter(|key| before.get(*key) != after.get(*key)).collect()
}

fn changed(step: &Step<'_>) -> Touched {
    let (before, after) = (step.before, step.after);
    let tasks = differing(&before.tasks, &after.tasks);
    let job_of = |task: &TaskId| {
        after.tasks.get(*task).or_else(|| before.tasks.get(*task)).map(|row| row.job)
    };
    Touched {
        jobs_through_tasks: tasks.iter().filter_map(job_of).collect(),
        tasks,
        jobs: differing(&before.jobs, &after.jobs),
        machines: differing(&before.machines, &after.machines),
        users: differing(&before.users, &after.users),
        resources: differing(&before.resources, &after.resources),
        crons: differing(&before.crons, &after.crons),
        tokens: differing(&before.tokens, &after.tokens),
        blobs: differing(&before.blobs, &after.blobs),
        machines_through_resources: BTreeSet::new(),
        level: before.level != after.level,
        bounds: before.bounds != after.bounds,
    }
}

fn every_change_is_told(step: &Step<'_>, changed: &Touched, told: &Touched) -> Check {
    let silent = |what: String, was: String, is: String| {
        Err(violation(NAME, what, format!("changed without an event: was {was}, is {is}")))
    };
    let (before, after) = (step.before, step.after);
    if let Some(id) = changed.tasks.difference(&told.tasks).next() {
        let row = |state: &crate::state::State| format!("{:?}", state.tasks.get(*id));
        return silent(after.task_name(*id), row(before), row(after));
    }
    for id in changed.jobs.difference(&told.jobs) {
        let (old, new) = (before.jobs.get(*id), after.jobs.get(*id));
        if !(told.jobs_through_tasks.contains(id) && only_the_books(old, new)) {
            return silent(format!("job row {}", id.0), format!("{old:?}"), format!("{new:?}"));
        }
    }
    for id in changed.machines.difference(&told.machines) {
        let (old, new) = (before.machines.get(*id), after.machines.get(*id));
        if !(told.machines_through_resources.contains(id) && only_ephemeral(old, new)) {
            return silent(format!("machine row {}", id.0), format!("{old:?}"), format!("{new:?}"));
        }
    }
    if let Some(id) = changed.users.difference(&told.users).next() {
        let row = |state: &crate::state::State| format!("{:?}", state.users.get(*id));
        return silent(format!("user row {}", id.0), row(before), row(after));
    }
    if let Some(id) = changed.resources.difference(&told.resources).next() {
        let row = |state: &crate::state::State| format!("{:?}", state.resources.get(*id));
        return silent(format!("resource row {}", id.0), row(before), row(after));
    }
    let names = |what: &str, id: Option<u32>| id.map(|id| format!("{what} row {id}"));
    let cron = changed.crons.difference(&told.crons).next().map(|id| id.0);
    let token = changed.tokens.difference(&told.tokens).next().map(|id| id.0);
    let blob = changed.blobs.difference(&told.blobs).next().map(|id| id.0);
    let row = names("periodic job", cron).or(names("token", token)).or(names("package", blob));
    if let Some(row) = row {
        return Err(violation(NAME, row, "changed without an event"));
    }
    if changed.bounds && !told.bounds {
        let (before, after) = (format!("{:?}", before.bounds), format!("{:?}", after.bounds));
        return silent("bounds".to_owned(), before, after);
    }
    match changed.level && !told.level {
        true => silent("level".to_owned(), before.level.to_string(), after.level.to_string()),
        false => Ok(()),
    }
}

/// Specs nobody runs any more, the counts of an update and the times of disruptions follow the
/// tasks they are about.
fn only_the_books(old: Option<&Job>, new: Option<&Job>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    let mut same = old.clone();
    same.specs = new.specs.clone();
    same.disrupted_at = new.disrupted_at.clone();
    if let (Some(books), Some(update)) = (&mut same.update, &new.update) {
        books.disruptions = update.disruptions;
        books.skipped = update.skipped.clone();
    }
    same == *new
}

fn only_ephemeral(old: Option<&Machine>, new: Option<&Machine>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    let mut same = old.clone();
    same.ephemeral = new.ephemeral.clone();
    same == *new
}

fn is_true(event: &Event, changed: &Touched) -> Check {
    let happened = match &event.what {
        // One batch may set a task's reservation twice, and back to what it was.
        What::Task { change: TaskChange::ReservationChanged, .. } => true,
        // About what it left on the machine, when it may be elsewhere, or dead.
        What::Task {
            change:
                TaskChange::SaverFailed { machine }
                | TaskChange::Saved { machine }
                | TaskChange::NotSaved { machine },
            ..
        } => changed.machines.contains(machine),
        // A change that was skipped is kept in the job's books.
        What::Task { task, job, .. } => changed.tasks.contains(task) || changed.jobs.contains(job),
        What::Job { job, .. } => {
            changed.jobs.contains(job) || changed.jobs_through_tasks.contains(job)
        }
        What::JobRejected { .. } => true,
        What::Machine { machine, .. } => changed.machines.contains(machine),
        What::User { user, .. } => changed.users.contains(user),
        What::Resource { resource, machine, .. } => {
            changed.resources.contains(resource)
                || machine.is_some_and(|machine| changed.machines.contains(&machine))
        }
        What::LevelRaised { .. } => changed.level,
        What::BoundsChanged => changed.bounds,
        What::Cron { cron, .. } => changed.crons.contains(cron),
        What::Token { token, .. } => changed.tokens.contains(token),
        What::Blob { blob, .. } => changed.blobs.contains(blob),
    };
    match happened {
        true => Ok(()),
        false => Err(violation(NAME, "event", format!("{event:?}, and nothing of it changed"))),
    }
}
