//! Voluntary commands never put more tasks of a job into one failure domain than the job's spread
//! limits allow. Counted are holds, two for a task that holds room on the target of a move, of
//! versions that have such limits.
//!
//! More than allowed can be there all the same, through no choice of the system: an update tightens
//! the limits, or a machine moves to another rack. Tasks that are there stay, until something else
//! moves them; the count only falls.

use super::{Check, Step, violation};
use crate::id::JobId;
use crate::job::Job;
use crate::name::Token;
use crate::spec::Domain;
use crate::state::State;
use std::collections::BTreeMap;

const NAME: &str = "spread_kept";

/// Tasks of a job by domain: machine by name, rack or power domain by token, or the cell.
type Counts = BTreeMap<String, u32>;

pub(super) fn check(step: &Step<'_>) -> Check {
    if step.voluntary_command().is_none() {
        return Ok(());
    }
    for (id, job) in step.after.jobs.iter().filter(|(_, job)| !job.spec().spread.is_empty()) {
        for spread in &job.spec().spread {
            let then = counts(step.before, id, spread.domain);
            for (place, now) in counts(step.after, id, spread.domain) {
                let before = then.get(&place).copied().unwrap_or(0);
                if now > spread.limit && now > before {
                    return Err(exceeded(id, job, &place, now, before, spread.limit));
                }
            }
        }
    }
    Ok(())
}

fn exceeded(
    id: JobId,
    job: &Job,
    place: &str,
    now: u32,
    before: u32,
    most: u32,
) -> super::Violation {
    let row = format!("job row {} ({})", id.0, job.name);
    let detail = format!("{now} tasks in {place}, {before} before; at most {most} allowed");
    violation(NAME, row, detail)
}

fn counts(state: &State, job: JobId, domain: Domain) -> Counts {
    let mut counts = Counts::new();
    for task in state.jobs.get(job).map(|row| row.tasks.clone()).unwrap_or_default().iter() {
        let Some(task) = state.tasks.get(*task).filter(|t| t.state.holds_resources()) else {
            continue;
        };
        let limited = state.spec_of(task).is_some_and(|spec| !spec.spread.is_empty());
        for (_, hold) in task.holds.iter() {
            let Some(machine) = state.machines.get(hold.machine) else { continue };
            let named = |token: &Option<Token>| token.as_ref().map(ToString::to_string);
            let place = match domain {
                Domain::Machine => Some(machine.spec.name.to_string()),
                Domain::Rack => named(&machine.spec.rack),
                Domain::Power => named(&machine.spec.power),
                Domain::Cell => Some("the cell".to_owned()),
            };
            if let (true, Some(place)) = (limited, place) {
                *counts.entry(place).or_default() += 1;
            }
        }
    }
    counts
}
