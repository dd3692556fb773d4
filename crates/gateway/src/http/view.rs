//! Views of rows: names for numbers, and the sums that readers would otherwise compute.

use super::access::Viewer;
use super::blobs::BlobUsage;
use cellwright_api::types::{
    BlobView, CrashView, CronView, DrainLimit, DrainWaitView, EndView, JobRow, JobView,
    MachineView, NamedView, QuotaView, ResourceOnMachine, ResourcePressureView, ResourceView,
    RolledBackView, TaskCounts, TaskHealth, TaskView, TokenView, UserView,
};
use cellwright_cell::blob::Blob;
use cellwright_cell::credential::AccessToken;
use cellwright_cell::cron::Cron;
use cellwright_cell::daemon;
use cellwright_cell::disruption;
use cellwright_cell::ephemeral::ResourceRow;
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::job::Job;
use cellwright_cell::load::{JobLoad, MachineLoad};
use cellwright_cell::machine::{Machine, ResourcePressure};
use cellwright_cell::name::Name;
use cellwright_cell::named::{NamedAmount, UNBOUNDED};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::User;
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::state::State;
use cellwright_cell::task::{LastAttemptEnd, Task, TaskOutcome, TaskState};
use cellwright_cell::time::Time;
use cellwright_cell::words;
use cellwright_master::usage::UsageSnapshot;
use std::collections::BTreeMap;

pub(super) fn task_counts(load: &JobLoad) -> TaskCounts {
    TaskCounts {
        deferred: load.deferred,
        pending: load.pending,
        assigned: load.assigned,
        running: load.running,
        stopping: load.stopping,
        finished: load.finished,
        failed: load.failed,
        killed: load.killed,
    }
}

fn user_name(state: &State, user: UserId) -> Option<Name> {
    state.users().get(user).map(|row| row.name.clone())
}

fn machine_name(state: &State, machine: MachineId) -> Option<Name> {
    state.machines().get(machine).map(|row| row.spec.name.clone())
}

/// `None` for a row that contradicts the others, which does not occur in a checked state.
pub(super) fn job(state: &State, viewer: &Viewer, id: JobId) -> Option<JobView> {
    let row: &Job = state.jobs().get(id)?;
    let redacted = !viewer.sees_specs(state, row.user);
    Some(JobView {
        user: user_name(state, row.user)?,
        name: row.name.clone(),
        state: row.state,
        version: row.version,
        spec: if redacted { row.spec().public_view() } else { row.spec().redacted() },
        redacted,
        update: row.update.clone(),
        update_complete: state.job_load(id).is_some_and(|load| row.update_is_complete(load)),
        outdated: outdated(state, id, row),
        canaries_well_since: state.canaries_well_since(row),
        rolled_back: rolled_back(state, id, row),
        tasks: state.job_load(id).map(task_counts).unwrap_or_default(),
        restarting: state.job_load(id).map_or(0, |load| load.to_restart),
        daemon: daemon::machines_of(state, row),
        waits_for: row.waits_for.iter().filter_map(|other| state.job_key(*other)).collect(),
        submitted_at: row.submitted_at,
        ended_at: row.ended_at,
    })
}

/// Tasks that run another version than the job's.
pub(super) fn outdated(state: &State, id: JobId, row: &Job) -> u32 {
    let load = state.job_load(id).filter(|_| !row.is_dead());
    let behind = load.map(|load| load.at_version.iter().filter(|(at, _)| **at != row.version));
    behind.map_or(0, |behind| behind.map(|(_, tasks)| *tasks).sum())
}

fn rolled_back(state: &State, id: JobId, row: &Job) -> Option<RolledBackView> {
    let version = row.last_version;
    let mark = state.job_version(id, version)?.rolled_back.filter(|mark| !mark.retried)?;
    Some(RolledBackView { version, at: mark.at, failures: mark.failures })
}

/// One row of a list.
pub(super) fn job_row(state: &State, id: JobId) -> Option<JobRow> {
    let row: &Job = state.jobs().get(id)?;
    let spec = row.spec();
    Some(JobRow {
        user: user_name(state, row.user)?,
        name: row.name.clone(),
        state: row.state,
        updating: row.update.is_some(),
        update_complete: state.job_load(id).is_some_and(|load| row.update_is_complete(load)),
        priority: spec.priority,
        labels: spec.labels.clone(),
        limits: spec.task.limits,
        tasks: state.job_load(id).map(task_counts).unwrap_or_default(),
        submitted_at: row.submitted_at,
    })
}

pub(super) fn task(state: &State, usage: &UsageSnapshot, id: TaskId) -> Option<TaskView> {
    let row: &Task = state.tasks().get(id)?;
    let spec = state.spec_of(row)?;
    let waits = row.grant().map_or(&[][..], |grant| &grant.waits_for);
    // A machine that has left the cell need not be avoided; numbers of machines are not reused.
    let crash = |pair: &cellwright_cell::task::CrashPair| {
        let machine = machine_name(state, pair.machine)?.to_string();
        Some(CrashView { machine, crashes: pair.crashes, until: pair.until })
    };
    Some(TaskView {
        name: state.task_name(id),
        index: row.index,
        state: row.state,
        healthy: row.state == TaskState::Running && row.healthy,
        health: spec.task.health.is_some().then(|| health(row)).flatten(),
        attempt: row.attempt,
        version: row.version,
        machine: row.machine().and_then(|machine| machine_name(state, machine)),
        machine_for: machine_for(state, row),
        reserved_on: reserved_on(state, row),
        alloc: row.alloc().map(|alloc| state.task_name(alloc)),
        limits: spec.limits_of(row.index),
        limits_in_force: row.limits_in_force.as_deref().copied(),
        reservation: row.reservation,
        used: row.machine().and_then(|machine| usage.of_task(machine, id, row.attempt)),
        ports: row.ports().to_vec(),
        devices: row.devices().to_vec(),
        waits_for: waits.iter().map(|victim| state.task_name(victim.task)).collect(),
        failures_in_row: row.failures_in_row,
        not_before: row.not_before,
        changed_at: row.changed_at,
        crashed_on: row.crashed_on.iter().filter_map(crash).collect(),
        last_end: row.last_end.as_ref().map(|end| last_end(state, end)),
        needed: failed_dependency(state, row),
    })
}

/// The machine that a daemon has the task for.
fn machine_for(state: &State, row: &Task) -> Option<Name> {
    machine_name(state, state.jobs().get(row.job)?.machine_for(row.index)?)
}

/// Machines that hold a reservation for a task that runs elsewhere.
fn reserved_on(state: &State, row: &Task) -> Vec<Name> {
    let reserved_machine = row.holds.reserved().and_then(|hold| machine_name(state, hold.machine));
    reserved_machine.into_iter().collect()
}

/// The health of a task that has a check.
pub(super) fn health(row: &Task) -> Option<TaskHealth> {
    match row.state {
        TaskState::Assigned => Some(TaskHealth::NotYetHealthy),
        TaskState::Running if row.healthy => Some(TaskHealth::Healthy),
        TaskState::Running | TaskState::Stopping(_) if !row.healthy => Some(TaskHealth::Unhealthy),
        _ => None,
    }
}

/// The job that a task depended on and because of which it never ran.
pub(super) fn failed_dependency(state: &State, row: &Task) -> Option<String> {
    if row.state != TaskState::Dead(TaskOutcome::DependencyFailed) {
        return None;
    }
    let failed = state.failed_dependency(state.jobs().get(row.job)?)?;
    Some(state.job_key(failed)?.to_string())
}

fn last_end(state: &State, end: &LastAttemptEnd) -> EndView {
    EndView {
        attempt: end.attempt,
        at: end.at,
        machine: end.machine.to_string(),
        code: end.why.code().into(),
        text: match &end.why {
            Reason::Requested => "stopped by request".into(),
            // Its machine is up, and yet the task is gone.
            Reason::AgentReport => "lost by the machine's agent".into(),
            why => words::reason(state, why),
        },
        why: end.why.clone(),
        notice: end.notice,
    }
}

/// What is left for new non-production work; nothing where none is accepted.
pub(super) fn available(row: &Machine, load: &MachineLoad) -> Resources {
    if row.is_schedulable() && !row.accepts_only_prod() {
        row.spec.capacity.minus(load.reserved)
    } else {
        Resources::ZERO
    }
}

pub(super) fn named_resources(
    state: &State,
    id: MachineId,
    row: &Machine,
    load: &MachineLoad,
) -> Vec<NamedView> {
    let view = |amount: &NamedAmount| {
        let bounded = (amount.amount != UNBOUNDED).then_some(amount.amount);
        NamedView {
            name: amount.name.clone(),
            capacity: bounded,
            available: bounded.map(|all| all.saturating_sub(load.named_used(&amount.name))),
        }
    };
    // Whole cores are worth a line where the machine says how many it has, or some are reserved.
    let is_shown =
        |held: &&NamedAmount| row.spec.named.contains(held) || load.named_used(&held.name) > 0;
    let capacities = row.spec.named_capacities();
    let configured = capacities.iter().filter(is_shown);
    configured.chain(&state.ephemeral_on(id)).map(view).collect()
}

pub(super) fn machine(state: &State, usage: &UsageSnapshot, id: MachineId) -> Option<MachineView> {
    let row = state.machines().get(id)?;
    let none = MachineLoad::default();
    let load = state.machine_load(id).unwrap_or(&none);
    let prod = if row.is_schedulable() {
        row.spec.capacity.minus(load.prod_limits)
    } else {
        Resources::ZERO
    };
    Some(MachineView {
        name: row.spec.name.clone(),
        status: row.status,
        draining: row.draining,
        drain_by: row.drain_by,
        over_committed: row.over_committed,
        generation: row.generation,
        incarnation: row.incarnation,
        spec: row.spec.clone(),
        reserved: load.reserved,
        prod_limits: load.prod_limits,
        limits: load.limits,
        used: usage.of_machine(id),
        available: available(row, load),
        available_prod: prod,
        tasks: load.tasks.len() as u32,
        stopping: load.stopping,
        named: named_resources(state, id, row, load),
        devices_used: load.devices.clone(),
        packages: row.packages.len() as u32,
        retained_bytes: row.retained.iter().map(|retained| retained.bytes).sum(),
        drain_waits: if row.draining { drain_waits(state, load) } else { Vec::new() },
        resource_pressure: row.resource_pressure.iter().map(shortage).collect(),
        clock_ahead_ms: None,
        since: row.since,
        trouble: None,
    })
}

/// By log time: the next eviction advances it.
fn drain_waits(state: &State, load: &MachineLoad) -> Vec<DrainWaitView> {
    let mut waits: BTreeMap<(JobId, DrainLimit), (u32, Time)> = BTreeMap::new();
    for task in &load.tasks {
        // Tasks inside an alloc go with it, and daemons go last, whatever their limits.
        let is_daemon = |row: &Task| state.jobs().get(row.job).is_some_and(Job::is_daemon);
        let row = state.tasks().get(*task);
        if row.is_none_or(|row| row.alloc().is_some() || is_daemon(row)) {
            continue;
        }
        let (of, turn) = match disruption::blocking_job(state, *task, state.now()) {
            Some((job, turn)) => ((job, DrainLimit::Disruptions), turn),
            None => match at_max_down(state, *task) {
                Some(job) => ((job, DrainLimit::MaxDown), Time::NEVER),
                None => continue,
            },
        };
        let (tasks, next) = waits.entry(of).or_insert((0, Time::NEVER));
        (*tasks, *next) = (*tasks + 1, turn.min(*next));
    }
    let view = |((job, limit), (tasks, next)): ((JobId, DrainLimit), (u32, Time))| {
        let next = (next != Time::NEVER).then_some(next);
        let down = match limit {
            DrainLimit::Disruptions => 0,
            DrainLimit::MaxDown => state.job_load(job).map_or(0, JobLoad::down),
        };
        Some(DrainWaitView { job: state.job_key(job)?, tasks, next, limit, down })
    };
    waits.into_iter().filter_map(view).collect()
}

/// The job whose `max_down` would be exceeded without `task`.
pub(super) fn at_max_down(state: &State, task: TaskId) -> Option<JobId> {
    let is_over = |(job, tasks): &(JobId, u32)| {
        let down = state.job_load(*job).map_or(0, JobLoad::down);
        let row = state.jobs().get(*job);
        row.is_some_and(|row| !disruption::within_max_down(row.spec(), down, *tasks))
    };
    disruption::disrupted_tasks(state, task).into_iter().find(is_over).map(|(job, _)| job)
}

fn shortage(row: &ResourcePressure) -> ResourcePressureView {
    ResourcePressureView { dimension: row.dimension, since: row.since, over: row.requested == 0 }
}

pub(super) fn user(state: &State, id: UserId) -> Option<UserView> {
    let row: &User = state.users().get(id)?;
    let load = state.user_load(id);
    let charged = |band: Band| load.and_then(|l| l.charged.get(&band)).copied();
    let quota = Band::ALL.into_iter().filter_map(|band| {
        let (quota, charged) = (row.quota.get(&band).copied(), charged(band));
        (quota.is_some() || charged.is_some()).then(|| QuotaView {
            band,
            quota,
            charged: charged.unwrap_or_default(),
            exceeded: row.exceeded.contains(&band),
        })
    });
    Some(UserView {
        name: row.name.clone(),
        version: row.version,
        capabilities: row.capabilities.clone(),
        quota: quota.collect(),
        live_jobs: load.map_or(0, |l| l.live_jobs),
    })
}

pub(super) fn token(row: &AccessToken) -> TokenView {
    TokenView {
        id: row.id.clone(),
        kind: row.kind.clone(),
        created: row.created,
        expires: row.expires,
        used: row.used,
        parent: row.parent.clone(),
    }
}

pub(super) fn cron(state: &State, viewer: &Viewer, row: &Cron) -> Option<CronView> {
    let redacted = !viewer.sees_specs(state, row.user);
    let next = row.spec.schedule.next_after(row.last_slot.max(state.now()));
    Some(CronView {
        user: user_name(state, row.user)?,
        name: row.spec.name.clone(),
        version: row.version,
        spec: if redacted { row.spec.public_view() } else { row.spec.redacted() },
        redacted,
        last_slot: row.last_slot,
        last_job: row.last_job().and_then(|job| state.job_key(job)),
        next_slot: (!row.spec.paused && next != Time::NEVER).then_some(next),
    })
}

/// `None` for the operator's resources, which come with machines.
pub(super) fn resource(state: &State, row: &ResourceRow) -> Option<ResourceView> {
    let node_view = |(id, capacity): (MachineId, u64)| {
        Some(ResourceOnMachine {
            machine: state.machines().get(id)?.spec.name.clone(),
            capacity: (capacity != UNBOUNDED).then_some(capacity),
            used: state.machine_load(id).map_or(0, |load| load.named_used(&row.name)),
        })
    };
    Some(ResourceView {
        namespace: row.name.namespace.clone()?,
        name: row.name.name.clone(),
        owner: row.owner.and_then(|user| user_name(state, user)),
        lease_until: row.lease_until,
        machines: state.capacities_of(row.id).filter_map(node_view).collect(),
    })
}

pub(super) fn blob(row: &Blob, held: bool, usage: &BlobUsage) -> BlobView {
    BlobView {
        digest: row.digest.to_string(),
        bytes: row.bytes,
        created: row.created,
        by: row.by.user().cloned(),
        held,
        names: usage.names.iter().map(ToString::to_string).collect(),
        used_by: usage.used_by.clone(),
        uses: usage.uses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::Command;
    use cellwright_cell::disruption::DisruptionLimit;
    use cellwright_cell::plan::Assignment;
    use cellwright_cell::spec::JobSpec;
    use cellwright_cell::time::Span;
    use cellwright_control::controller::testing::{Cell, job, key, name};

    #[test]
    fn a_machine_says_whose_limit_its_drain_waits_for() {
        let mut cell = Cell::with_machines(2);
        let disruptions = Some(DisruptionLimit { most: 1, within: Span::seconds(600) });
        cell.submit(&JobSpec { disruptions, ..job("jfoo", 3) });
        cell.submit(&job("jbar", 2));
        cell.place_and_start();
        let waits = |cell: &Cell| {
            machine(&cell.state, &UsageSnapshot::default(), MachineId(0)).unwrap().drain_waits
        };
        cell.ok(Command::StartDrain { name: name("m0"), expect: None });
        assert_eq!(waits(&cell), [], "all of them may go");
        cell.control();
        let next = Some(Time(cell.now).plus(Span::seconds(600)));
        cell.place_and_start();
        let limit = DrainLimit::Disruptions;
        let held = DrainWaitView { job: key("jfoo"), tasks: 2, next, limit, down: 0 };
        assert_eq!(waits(&cell), [held]);
        cell.ok(Command::StopDrain { name: name("m0"), expect: None });
        assert_eq!(waits(&cell), [], "nobody has to go");
    }

    #[test]
    fn a_task_is_healthy_once_it_runs_and_a_check_says_how_it_stands() {
        let mut cell = Cell::with_machines(1);
        let mut checked = job("jfoo", 1);
        let check = serde_json::json!({ "probe": { "command": ["true"] } });
        checked.task.health = serde_json::from_value(check).unwrap();
        cell.submit(&checked);
        cell.submit(&job("jbar", 1));
        let stands = |cell: &Cell, job: &str| {
            let view = task(&cell.state, &UsageSnapshot::default(), cell.task_id(job, 0)).unwrap();
            (view.healthy, view.health)
        };
        assert_eq!(stands(&cell, "jfoo"), (false, None), "it waits");
        cell.place_pending();
        assert_eq!(stands(&cell, "jfoo"), (false, Some(TaskHealth::NotYetHealthy)));
        assert_eq!(stands(&cell, "jbar"), (false, None));
        cell.run_agents();
        assert_eq!(stands(&cell, "jfoo"), (true, Some(TaskHealth::Healthy)));
        assert_eq!(stands(&cell, "jbar"), (true, None));
    }

    #[test]
    fn a_task_says_where_room_is_kept_for_it_beside_its_machine() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&job("jfoo", 1));
        cell.place_and_start();
        let view = |cell: &Cell| {
            task(&cell.state, &UsageSnapshot::default(), cell.task_id("jfoo", 0)).unwrap()
        };
        let before = view(&cell);
        let written = serde_json::to_value(&before).unwrap();
        assert!(before.reserved_on.is_empty() && written.get("reserved_on").is_none());
        let (id, row) = (cell.task_id("jfoo", 0), cell.task("jfoo", 0));
        let other = MachineId(1 - row.machine().unwrap().0);
        let (task, attempt, machine) = (id, row.attempt, other);
        let (alloc, ports, devices) = (None, vec![], vec![]);
        let target = Assignment { task, attempt, machine, alloc, ports, devices };
        cell.ok(Command::ReserveHold(target));
        let after = view(&cell);
        assert_eq!(after.reserved_on, [name(&format!("m{}", other.0))]);
        assert_eq!(TaskView { reserved_on: vec![], ..after }, before);
    }

    #[test]
    fn a_machine_says_which_jobs_may_not_have_more_down() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&JobSpec { max_down: Some(1), ..job("jfoo", 3) });
        cell.submit(&JobSpec { max_down: Some(0), ..job("jbar", 1) });
        cell.place_and_start();
        let waits = |cell: &Cell| {
            machine(&cell.state, &UsageSnapshot::default(), MachineId(0)).unwrap().drain_waits
        };
        cell.ok(Command::StartDrain { name: name("m0"), expect: None });
        let held = |job: &str, tasks, down| {
            let limit = DrainLimit::MaxDown;
            DrainWaitView { job: key(job), tasks, next: None, limit, down }
        };
        assert_eq!(waits(&cell), [held("jbar", 1, 0)], "one of the others may go");
        cell.control();
        assert_eq!(waits(&cell), [held("jfoo", 2, 1), held("jbar", 1, 0)]);
    }
}
