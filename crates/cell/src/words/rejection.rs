//! Why a command did not take effect, and what became of one that did.

use super::conflict::existing;
use super::infeasible;
use super::names::{job_name, machine_name, task_state};
use crate::command::{ApplyOutcome, Done, Verdict};
use crate::id::{JobId, MachineId, TaskId};
use crate::name::Name;
use crate::reason::Rejection;
use crate::state::State;
use crate::time::Time;
use crate::units::pluralize;
use std::fmt;

/// What became of a command.
#[must_use]
pub fn verdict(state: &State, verdict: &Verdict) -> String {
    match verdict {
        Ok(Done::Applied) => "done".into(),
        Ok(Done::Unchanged) => "nothing to do".into(),
        Ok(Done::Version(version)) => format!("done, now at version {version}"),
        Ok(Done::Revoked(tokens)) => {
            format!("done, {} revoked", pluralize(u64::from(*tokens), "token"))
        }
        Ok(Done::Job { became, version, closed }) => job_applied(*became, *version, *closed),
        Ok(Done::Partly(refused)) => {
            let item =
                |(at, why): &(u32, Rejection)| format!("item {at}: {}", rejection(state, why));
            let list: Vec<String> = refused.iter().map(item).collect();
            format!("done in part; refused: {}", list.join("; "))
        }
        Err(why) => format!("refused: {}", rejection(state, why)),
    }
}

fn job_applied(became: ApplyOutcome, version: u32, closed: Option<u32>) -> String {
    let first = closed.map(|closed| format!("update closed at version {closed}, then "));
    let first = first.unwrap_or_default();
    match became {
        ApplyOutcome::Created => format!("created at version {version}"),
        ApplyOutcome::Updated => format!("{first}being updated to version {version}"),
        ApplyOutcome::Unchanged => format!("nothing to do, it is at version {version}"),
        ApplyOutcome::Ended => format!("{first}unchanged and over, at version {version}"),
        ApplyOutcome::Resized => format!("{first}resized, now at version {version}"),
    }
}

/// Why a command did not take effect, with names for rows.
#[must_use]
pub fn rejection(state: &State, rejection: &Rejection) -> String {
    Sentence { rejection, names: Some(state) }.to_string()
}

/// With numbers for rows: who shows it has no state.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Sentence { rejection: self, names: None }.fmt(f)
    }
}

impl std::error::Error for Rejection {}

/// That a field is not as it must be, also where no rule of the cell says so.
#[must_use]
pub fn bad_field(field: &str, value: &str, allowed: &str) -> String {
    format!("field {field}: value {value} is not valid; allowed: {allowed}")
}

struct Sentence<'a> {
    rejection: &'a Rejection,
    names: Option<&'a State>,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Rejection as R;
        match self.rejection {
            R::NotAllowed { user, capability } => {
                write!(f, "user {user} lacks the capability {capability}")
            }
            R::NotOwner { user, job } => write!(
                f,
                "user {user} does not own {job} and lacks the capability administrate_jobs"
            ),
            R::WrongActor { actor, command, allowed } => {
                let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
                write!(f, "{command} is not for {actor}; allowed: {}", allowed.join(", "))
            }
            R::ForeignNamespace { user, namespace } => {
                write!(f, "user {user} does not own the resource namespace {namespace}")
            }
            R::BadField { field, value, allowed } => f.write_str(&bad_field(
                &field.to_string(),
                &value.to_string(),
                &allowed.to_string(),
            )),
            R::BadToken { id, flaw } => write!(f, "token {id} lets nobody in: {flaw}"),
            R::BadLevel { requested, found, is_last } => {
                write!(f, "level {requested} cannot follow level {found}; allowed: ")?;
                if *is_last {
                    write!(f, "{found}, the highest this build knows")
                } else {
                    write!(f, "{found} or {}", found.saturating_add(1))
                }
            }
            R::RequestIdReused => f.write_str("request id was used before for a different request"),
            R::RequestTooOld => f.write_str(
                "request id is older than the window kept for this client; use the object's \
                 version",
            ),
            R::Exists(object) => write!(f, "{} exists already", existing(object)),
            R::StaleVersion { object, expected, found } => {
                write!(f, "{object} is at version {found}, not {expected}; read it again and retry")
            }
            R::StaleIncarnation { machine, reported, found } => write!(
                f,
                "machine {machine} is at incarnation {found}, the report is of {reported}"
            ),
            R::WrongState(conflict) => write!(f, "not possible while {conflict}"),
            R::JobStopping(job) => write!(f, "not possible while job {job} is stopping"),
            R::HoldsTasks { machine, tasks } => {
                let tasks = pluralize(u64::from(*tasks), "task");
                write!(f, "machine {machine} is up with {tasks} on it, which would end at once")
            }
            other => match missing(other).or_else(|| too_much(other)) {
                Some(text) => f.write_str(&text),
                None => f.write_str(&self.of_rows()),
            },
        }
    }
}

fn missing(rejection: &Rejection) -> Option<String> {
    Some(match rejection {
        Rejection::NoSuchUser(name) => format!("there is no user {name}"),
        Rejection::NoSuchJob(key) => format!("there is no job {key}"),
        Rejection::NoSuchMachine(name) => format!("there is no machine {name}"),
        Rejection::NoSuchResource(name) => format!("there is no resource {name}"),
        Rejection::NoSuchCron(key) => format!("there is no periodic job {key}"),
        Rejection::NoSuchToken(id) => format!("there is no token {id}"),
        Rejection::NoSuchBlob(digest) => format!("there is no package {digest}"),
        Rejection::NoSuchTask { job, index } => {
            format!("there is no such row: task {job}/{index}")
        }
        Rejection::NoSuchRow(row) => {
            let noun = row.table.noun().unwrap_or("window");
            format!("there is no such row: {noun} {}", row.slot)
        }
        _ => return None,
    })
}

/// More than a quota, a bound or the state has room for.
fn too_much(rejection: &Rejection) -> Option<String> {
    Some(match rejection {
        Rejection::QuotaExceeded { user, band, shortfall } => {
            format!("quota of {user} in band {band} does not suffice: {shortfall}")
        }
        Rejection::QuotaOversold(shortfall) => {
            format!("prod quota sold would exceed the cell's capacity: {shortfall}")
        }
        Rejection::PackageQuota { user, used, more, limit } => {
            let whose = user.as_ref().map_or("the cell", Name::as_str);
            format!(
                "packages of {whose} take {used} bytes; {more} more would exceed the quota of \
                 {limit}"
            )
        }
        Rejection::OverBound { user, what, held, requested, most } => {
            format!(
                "user {user} has {held} {what} and asks for {requested} more; at most {most} for \
                 each user"
            )
        }
        Rejection::TooFewNodes { matching, requested } => {
            format!("{matching} nodes have that much available, {requested} are asked")
        }
        Rejection::Full(storage) => format!("the state cannot hold more {storage}"),
        _ => return None,
    })
}

impl Sentence<'_> {
    /// Those that are about rows, which have names in a state.
    fn of_rows(&self) -> String {
        use Rejection as R;
        match self.rejection {
            R::StaleAttempt { task, expected, found } => {
                format!("{} is at attempt {found}, not {expected}", self.task(*task))
            }
            R::WrongTaskState { task, state, action } => {
                let (task, state) = (self.task(*task), task_state(*state));
                format!("{task} is {state}, which does not allow {action}")
            }
            R::DoesNotFit { task, machine, infeasible: why } => {
                let (task, machine) = (self.task(*task), self.machine(*machine));
                let why = match self.names {
                    Some(state) => infeasible(state, why),
                    None => why.code().to_owned(),
                };
                format!("{task} does not fit on {machine}: {why}")
            }
            R::TooEarly { task, not_before } => {
                let task = self.task(*task);
                format!("{task} may not start before {not_before} ms (back-off or lease)")
            }
            R::NeedlessVictim(task) => {
                format!("{} need not give way: the group fits without that", self.task(*task))
            }
            R::MayNotPreempt { by, victim } => {
                format!("priority {} may not preempt priority {}", by.0, victim.0)
            }
            R::PartialGang { placed, needed } => {
                format!("a gang is placed whole: {placed} of {needed} tasks in the group")
            }
            R::BudgetExhausted { job, down, max } => {
                let (job, down) = (self.job(*job), pluralize(u64::from(*down), "task"));
                format!("{job} has {down} down already, at most {max} allowed")
            }
            R::DisruptedTooOften { job, most, within, next } => {
                let (job, within) = (self.job(*job), within.0);
                let next = match *next {
                    Time::NEVER => "never so many at once".to_owned(),
                    next => format!("the next at {} ms", next.0),
                };
                let most = pluralize(u64::from(*most), "task");
                format!("{job} has at most {most} disrupted within {within} ms, {next}")
            }
            // They have words above.
            R::NotAllowed { .. } | R::NotOwner { .. } | R::WrongActor { .. } => String::new(),
            R::ForeignNamespace { .. } | R::BadField { .. } | R::BadToken { .. } => String::new(),
            R::BadLevel { .. } | R::RequestIdReused | R::RequestTooOld => String::new(),
            R::Exists(_) | R::StaleVersion { .. } | R::StaleIncarnation { .. } => String::new(),
            R::WrongState(_) | R::JobStopping(_) | R::HoldsTasks { .. } => String::new(),
            R::NoSuchUser(_) | R::NoSuchJob(_) | R::NoSuchMachine(_) => String::new(),
            R::NoSuchResource(_) | R::NoSuchCron(_) | R::NoSuchToken(_) => String::new(),
            R::NoSuchBlob(_) | R::NoSuchTask { .. } | R::NoSuchRow(_) => String::new(),
            R::QuotaExceeded { .. } | R::QuotaOversold(_) | R::PackageQuota { .. } => String::new(),
            R::OverBound { .. } | R::TooFewNodes { .. } | R::Full(_) => String::new(),
        }
    }

    fn task(&self, task: TaskId) -> String {
        self.names.map_or_else(|| format!("task#{}", task.0), |state| state.task_name(task))
    }

    fn job(&self, job: JobId) -> String {
        self.names.map_or_else(|| format!("job#{}", job.0), |state| job_name(state, job))
    }

    fn machine(&self, id: MachineId) -> String {
        self.names.map_or_else(|| format!("machine#{}", id.0), |state| machine_name(state, id))
    }
}
