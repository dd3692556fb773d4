//! A daemon has one task for each of its machines: no two of its indices are for one machine, each
//! of these machines is in the cell, and a task that holds room holds it on its own machine. Other
//! jobs, and jobs that have ended, have no machines. What stops may still be on a machine that is
//! no longer the job's.
//!
//! Whether the machines are the right ones is no invariant: they change, and a controller follows.

use super::{Check, violation};
use crate::job::Job;
use crate::spec::JobKind;
use crate::state::State;
use std::collections::BTreeSet;

const NAME: &str = "one_per_machine";

pub(super) fn check(state: &State) -> Check {
    state.jobs.iter().try_for_each(|(id, job)| {
        check_job(state, job)
            .map_err(|what| violation(NAME, format!("job row {} ({})", id.0, job.name), what))
    })
}

fn check_job(state: &State, job: &Job) -> Result<(), String> {
    let daemons = job.specs.values().filter(|spec| spec.kind == JobKind::Daemon).count();
    if daemons > 0 && daemons < job.specs.len() {
        return Err("is a daemon in some of its versions".to_owned());
    }
    if (daemons == 0 || job.is_dead()) && (!job.machines.is_empty() || job.machines_left_out > 0) {
        return Err(format!("has machines: {:?}", job.machines));
    }
    let mut seen = BTreeSet::new();
    for (index, machine) in job.machines.iter() {
        if state.machines.get(*machine).is_none() {
            return Err(format!("task {index} is for machine row {}, which is gone", machine.0));
        }
        if !seen.insert(*machine) {
            return Err(format!("has two tasks for machine row {}", machine.0));
        }
        let Some(task) = job.tasks.get(*index as usize).and_then(|id| state.tasks.get(*id)) else {
            return Err(format!("has no row for task {index}"));
        };
        let place = task.machine().filter(|_| task.state.holds_resources());
        if place.is_some_and(|place| place != *machine) {
            return Err(format!("task {index} is on {place:?}, and for machine row {}", machine.0));
        }
    }
    Ok(())
}
