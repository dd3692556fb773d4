//! What is in the way of a command, and who may send it.

use crate::bounds::BoundKind;
use crate::ephemeral::SYSTEM_NAMESPACE;
use crate::job::JobState;
use crate::reason::{Conflict, Object, Sender, Storage, TaskAction};
use crate::units::pluralize;
use std::fmt;

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Job(key) => write!(f, "job {key}"),
            Object::Cron(key) => write!(f, "periodic job {key}"),
            Object::User(name) => write!(f, "user {name}"),
            Object::Machine(name) => write!(f, "machine {name}"),
            Object::Token(name) => write!(f, "token {name}"),
            Object::Package { digest, bytes } => write!(f, "package {digest} of {bytes} bytes"),
        }
    }
}

/// What is there already and is another one.
pub(super) fn existing(object: &Object) -> String {
    match object {
        Object::Job(key) => format!("job {key} with another spec"),
        Object::Token(name) => format!("another token {name}"),
        other => other.to_string(),
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Storage::Jobs => "jobs",
            Storage::Tasks => "tasks",
            Storage::Users => "users",
            Storage::Machines => "machines",
            Storage::Tokens => "tokens",
            Storage::Packages => "packages",
            Storage::Crons => "periodic jobs",
            Storage::Resources => "resources",
            Storage::Capacities => "capacities of resources",
            Storage::Scalings => "scaled jobs",
            Storage::Capacity => "capacity: at most 2^62 of each resource",
            Storage::TokensAlike { most } => {
                return write!(f, "tokens of this kind and name; at most {most} allowed");
            }
            Storage::ResourcesOn(machine) => return write!(f, "resources on machine {machine}"),
            Storage::VersionsOf(job) => return write!(f, "versions of job {job}"),
        })
    }
}

/// As in `not possible while …`.
impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::JobDead(job) => write!(f, "job {job} is dead"),
            Conflict::JobNotActive(None) => f.write_str("its job is gone"),
            Conflict::JobNotActive(Some(state)) => write!(f, "its job is {}", job_state(*state)),
            Conflict::AllocSetStopped(set) => write!(f, "alloc set {set} has been stopped"),
            Conflict::UpdateOpen(job) => {
                write!(f, "an update of job {job} is open; close it or undo it first")
            }
            Conflict::NoUpdate(job) => write!(f, "no update of job {job} is open"),
            Conflict::UpdateGoesOn { job, left } => {
                let have = if *left == 1 { "has" } else { "have" };
                let left = pluralize(u64::from(*left), "task");
                write!(f, "{left} of job {job} still {have} to be updated")
            }
            Conflict::UserHas { user, what, held } => {
                write!(f, "user {user} {}", held_by_user(*what, *held))
            }
            Conflict::UserLeft { user, dead } => {
                write!(f, "leases or retained disk of {dead} dead jobs of user {user} last")
            }
            Conflict::CronPaused(cron) => write!(f, "periodic job {cron} is paused"),
            Conflict::PackageNeeded { digest, by, is_cron } => {
                let kind = if *is_cron { "periodic job" } else { "job" };
                write!(f, "{kind} {by} needs package {digest}")
            }
            Conflict::NoReplicaWaits(name) => write!(f, "no replica {name} waits to be confirmed"),
            Conflict::AllocAtLimits => f.write_str(
                "an alloc is charged at its limits: what runs inside is counted against them",
            ),
            Conflict::NotScaled(key) => {
                write!(f, "job {key} has no policy of scaling (field scale of its file)")
            }
            Conflict::NotReclaimable => f.write_str("the job's resources are not reclaimable"),
            Conflict::MachineInCell(name) => {
                write!(f, "machine {name} is part of the cell: remove it instead")
            }
            Conflict::MachineRevoked(name) => {
                write!(f, "machine {name} was removed and has not joined again")
            }
            Conflict::MachineDown(name) => write!(f, "machine {name} is down"),
            Conflict::NotDraining(name) => write!(f, "machine {name} is not draining"),
            Conflict::NotOverCommitted(name) => {
                write!(f, "machine {name} holds no more than it has")
            }
            Conflict::HoldsTooMuch(name) => write!(f, "machine {name} holds too much"),
            Conflict::OthersFirst { machine, task } => {
                write!(f, "others must leave machine {machine} before task row {}", task.0)
            }
            Conflict::PressureEvictionFirst { machine, task, dimension: short } => {
                write!(f, "task row {} must leave machine {machine} first, for {short}", task.0)
            }
            Conflict::CanariesTry(job) => {
                write!(f, "canaries of job {job} try the new version; it waits to be promoted")
            }
            Conflict::RolledBack { job, version } => {
                write!(
                    f,
                    "version {version} of job {job}, which has this spec, counts as failed: "
                )?;
                f.write_str("it was rolled back")
            }
            Conflict::RunsNothing(set) => {
                write!(f, "{set} is an alloc set, which runs no program")
            }
            Conflict::LastRunGoesOn(job) => write!(f, "{job}, its last run, goes on"),
            Conflict::NoResourcePressure(name) => write!(f, "machine {name} asks for no eviction"),
        }
    }
}

fn held_by_user(what: BoundKind, held: u64) -> String {
    match what {
        BoundKind::Jobs => format!("has {}", pluralize(held, "live job")),
        BoundKind::Crons => format!("has {}", pluralize(held, "periodic job")),
        BoundKind::Resources => format!("owns {}", pluralize(held, "ephemeral resource")),
        other => format!("has {held} {other}"),
    }
}

fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Deferred => "deferred",
        JobState::Active => "active",
        JobState::Stopping => "stopping",
        JobState::Dead(_) => "dead",
    }
}

/// As in `which does not allow …`.
impl fmt::Display for TaskAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TaskAction::Placement => "placement: only pending tasks are placed",
            TaskAction::Preemption => "preemption: only assigned and running tasks give way",
            TaskAction::Eviction => "eviction: it is on no machine",
            TaskAction::Rebalancing => "rebalancing: only running tasks are moved",
            TaskAction::Reservation => "a reservation: it neither holds nor waits for a place",
            TaskAction::Hold => "a reservation elsewhere: only running tasks move",
            TaskAction::HoldWhereItRuns => {
                "a reservation where it runs: it holds that room already"
            }
            TaskAction::SecondHold => {
                "another reservation: it has one, which is to be released first"
            }
            TaskAction::HoldOfAlloc => {
                "a reservation elsewhere: an alloc does not move with what is inside it"
            }
            TaskAction::Release => "release of this hold: it is the one in which the task is",
            TaskAction::ForeignReport => "a report from another machine",
            TaskAction::LateReport => "a report from a machine it is not on",
            TaskAction::ReportOfProgram => "a report on a program: an alloc runs none",
            TaskAction::ReportOfStop => "the end of a stop that nobody asked for",
            TaskAction::ReportOfHealth => "a report on health before the start",
            TaskAction::Restart => "a restart: it is over",
            TaskAction::Start => "a start: a job that it needed did not succeed",
        })
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sender::Users => "users",
            Sender::JobOwner => "the owner, users with administrate_jobs",
            Sender::NamespaceOwner => "the user whose namespace it is",
            Sender::PackageOwner => "the user who brought it, users with administrate_jobs",
            Sender::TokenOwner => {
                "the user it is for, users with manage_users (of machines: manage_machines)"
            }
            Sender::Schedulers => "schedulers of the cell",
            Sender::Masters => "masters of the cell",
            Sender::Tasks => "running tasks",
            Sender::UsersWith(capability) => return write!(f, "users with {capability}"),
            Sender::Agent(machine) => return write!(f, "the agent of machine {machine}"),
            Sender::AgentOfRow(row) => return write!(f, "the agent of machine #{}", row.0),
            Sender::AgentsOfTheirOwn => {
                let namespace = SYSTEM_NAMESPACE;
                return write!(f, "agents for their own machine, in namespace {namespace}");
            }
            Sender::Controller(name) => return write!(f, "controller:{name}"),
        })
    }
}
