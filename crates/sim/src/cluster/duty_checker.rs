//! Checks that the cell does by itself what it has to, in time: what its controllers owe is read
//! from the state, without their code. And that they ask for nothing before it is due: `apply`
//! would refuse it, and the log would fill with it.
//!
//! | duty | what is owed |
//! |---|---|
//! | gangs | one whose time to be made whole is over gives back what it holds |
//! | daemons | each has a task on every machine that is its own, and on no other |
//! | restarts | a task that is to be restarted is, as far as its job is not down already |
//! | updates | tasks that may get the job's version do, and one that was undone is closed |
//! | canaries | they are promoted when they are due |
//!
//! Lateness counts only while nothing is wrong with the cell.

use super::ledger::CheckFailure;
use super::world::Cluster;
use cellwright_cell::command::{Actor, Command, ControllerName, Entry};
use cellwright_cell::id::JobId;
use cellwright_cell::job::{Job, JobState, Update};
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobKind;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::{components, daemon, gang, rollout};
use std::collections::BTreeMap;

/// Milliseconds for which something may be owed. A controller that was refused tries again later
/// and later.
const MAX_OWED_MILLIS: u64 = 20_000;
/// What a controller asks for may have changed since it looked.
const GRACE: Span = Span(500);

#[derive(Debug, Default)]
pub struct DutyChecker {
    /// Since when each duty is owed.
    owed_since: BTreeMap<String, u64>,
}

impl DutyChecker {
    /// # Errors
    /// What has been owed for too long.
    pub fn check(&mut self, cluster: &Cluster, state: &State) -> Result<(), CheckFailure> {
        let Some((_, leader)) = cluster.leader().filter(|_| can_work(cluster)) else {
            self.owed_since.clear();
            return Ok(());
        };
        let duties = duties(state, leader.log_time().max(state.now()));
        let now = cluster.now();
        self.owed_since.retain(|duty, _| duties.contains(duty));
        for duty in duties {
            let since = *self.owed_since.entry(duty.clone()).or_insert(now);
            if now - since > MAX_OWED_MILLIS {
                return Err(CheckFailure(format!("owed for {} ms: {duty}", now - since)));
            }
        }
        Ok(())
    }
}

/// Without room on its disk, a leader does nothing but what frees some.
fn can_work(cluster: &Cluster) -> bool {
    let is_short = |(_, handle): &(_, cellwright_master::handle::MasterHandle)| {
        handle.replica().disk_space().is_below_reserve()
    };
    cluster.is_healthy_except_disk() && !cluster.running_replicas().iter().any(is_short)
}

/// What is owed now, in words that stay the same until something of it is done.
#[must_use]
pub fn duties(state: &State, now: Time) -> Vec<String> {
    let mut duties = Vec::new();
    let all = state.jobs().iter().map(|(id, _)| id);
    for broken in gang::broken_gangs(state, all).iter().filter(|gang| gang.gives_back_at <= now) {
        if let Some(key) = state.job_key(broken.job) {
            duties.push(format!("the gang {key} is broken, and gives nothing back"));
        }
    }
    for (id, job) in state.jobs().iter().filter(|(_, job)| job.state == JobState::Active) {
        let Some(key) = state.job_key(id) else { continue };
        daemon_duties(state, job, &key, &mut duties);
        restart_duties(state, id, job, &key, &mut duties);
        if let Some(update) = &job.update {
            update_duties(state, (id, job, update), &key, now, &mut duties);
        }
    }
    duties
}

fn daemon_duties(state: &State, job: &Job, key: &JobKey, duties: &mut Vec<String>) {
    let changes = daemon::machine_changes(state, job);
    let without_quota = job.machines_left_out as usize;
    if changes.join.len() > without_quota {
        let machines: Vec<&str> = changes
            .join
            .iter()
            .filter_map(|id| Some(state.machines().get(*id)?.spec.name.as_str()))
            .collect();
        duties.push(format!("the daemon {key} lacks a task on {}", machines.join(", ")));
    }
    for (index, why) in &changes.leave {
        duties.push(format!(
            "the daemon {key} keeps task {index}, and has lost its machine: {why:?}"
        ));
    }
}

/// Whether none of the job's tasks is down: then a task of it may be stopped by its owner's wish.
fn is_all_up(state: &State, id: JobId, job: &Job) -> bool {
    let down = state.job_load(id).map_or(0, |load| load.down());
    down == 0 && job.spec().max_down != Some(0)
}

fn rows<'a>(state: &'a State, job: &'a Job) -> impl Iterator<Item = &'a Task> {
    job.tasks.iter().filter_map(|task| state.tasks().get(*task))
}

fn restart_duties(state: &State, id: JobId, job: &Job, key: &JobKey, duties: &mut Vec<String>) {
    // An alloc restarts with the tasks inside it, whose jobs have budgets of their own.
    if job.spec().kind == JobKind::AllocSet || !is_all_up(state, id, job) {
        return;
    }
    let left = rows(state, job).filter(|row| row.restart_due).count();
    if left > 0 {
        duties.push(format!("{left} tasks of {key} are to be restarted, and are not"));
    }
}

fn update_duties(
    state: &State,
    (id, job, update): (JobId, &Job, &Update),
    key: &JobKey,
    now: Time,
    duties: &mut Vec<String>,
) {
    if state.promotion_due(job).is_some_and(|due| due <= now) {
        let version = job.version;
        duties.push(format!("version {version} of {key} is to be promoted, and is not"));
    }
    if job.spec().kind == JobKind::AllocSet {
        return;
    }
    let is_behind = |row: &&Task| {
        row.version != job.version
            && row.state == TaskState::Running
            && !update.skipped.contains(&row.index)
            && !update.waits_for_promotion(row.index)
    };
    let behind = rows(state, job).filter(is_behind).count();
    if behind > 0 && is_all_up(state, id, job) {
        let back = if update.undoing { "goes back to" } else { "rolls to" };
        let version = job.version;
        duties.push(format!("{key} {back} version {version}, and {behind} tasks do not"));
    }
    let is_over = state
        .job_load(id)
        .is_some_and(|load| load.at_version.keys().all(|version| *version == job.version));
    if is_over && update.skipped.is_empty() && (update.undoing || update.limits_only) {
        duties.push(format!("the update of {key} is over, and is not closed"));
    }
}

/// No controller asks for something before it is due.
///
/// # Errors
/// The first request that came too early.
pub fn check_requests(before: &State, entry: &Entry) -> Result<(), CheckFailure> {
    for request in &entry.requests {
        let early = match (&request.by, &request.command) {
            (Actor::Controller(ControllerName::Gang), Command::GiveBack { job }) => {
                early_give_back(before, job, entry.now).map(|by| (job, "give back", by))
            }
            (
                Actor::Controller(ControllerName::Update),
                Command::Component(components::Command::Rollout(rollout::Command::Promote {
                    job,
                    ..
                })),
            ) => early_promotion(before, job, entry.now).map(|by| (job, "be promoted", by)),
            _ => None,
        };
        if let Some((job, what, by)) = early {
            return Err(CheckFailure(format!("{job} is asked to {what} {} ms too early", by.0)));
        }
    }
    Ok(())
}

/// How much too early it is for the gang to give back, whatever other gangs do.
fn early_give_back(state: &State, key: &JobKey, now: Time) -> Option<Span> {
    let id = state.job_named(key)?;
    // A new leader may know only some of the gangs, so each is looked at alone.
    let alone = |id| gang::broken_gangs(state, [id]).first().map(|gang| gang.gives_back_at);
    let own = alone(id)?;
    let repair = state.jobs().get(id)?.spec().repair.unwrap_or(gang::REPAIR);
    if own.plus(GRACE) > now.plus(repair) {
        return None;
    }
    let first = state.jobs().iter().filter_map(|(id, _)| alone(id)).min()?;
    (first > now).then(|| first.since(now))
}

fn early_promotion(state: &State, key: &JobKey, now: Time) -> Option<Span> {
    let job = state.jobs().get(state.job_named(key)?)?;
    let due = state.promotion_due(job)?;
    let span = job.spec().update.promote_after?;
    let is_early = due > now && due.plus(GRACE) <= now.plus(span);
    is_early.then(|| due.since(now))
}
