//! Rows that decode and refer to each other may still hold what admission would never have let in.
//! Everything `apply` relies on being bounded is bounded here again, by admission's own rules.

use super::LoadError;
use crate::admit;
use crate::blob;
use crate::cron::Cron;
use crate::disruption::MAX_DISRUPTIONS;
use crate::job::Job;
use crate::machine::{MAX_CELL_CAPACITY, Machine};
use crate::named::UNBOUNDED;
use crate::reason::Refusal;
use crate::replay::{MAX_WINDOWS, WINDOW};
use crate::resource::MAX_QUANTITY;
use crate::spec::{MAX_LIST, MAX_TASKS};
use crate::state::{LEVEL, State};
use crate::task::{MAX_CRASH_PAIRS, Task};

/// Counters that grow by one stay far from their end; one beyond this was never counted up to.
const MAX_COUNTER: u64 = 1 << 31;

type Checked = Result<(), LoadError>;

fn bad(row: &str, why: impl ToString) -> LoadError {
    LoadError::BadRow { row: row.to_owned(), why: why.to_string() }
}

fn at_most(row: &str, field: &str, value: u64, most: u64) -> Checked {
    match value <= most {
        true => Ok(()),
        false => Err(bad(row, format!("{field} is {value}; allowed: at most {most}"))),
    }
}

fn admitted(row: &str, checked: Result<(), Refusal>) -> Checked {
    checked.map_err(|refusal| bad(row, refusal))
}

pub(super) fn rows(state: &State) -> Checked {
    head(state)?;
    for (id, user) in state.users.iter() {
        let row = format!("user row {} ({})", id.0, user.name);
        at_most(&row, "version", u64::from(user.version), MAX_COUNTER)?;
        user.quota.values().try_for_each(|quota| {
            admitted(&row, admit::bounded("quota", quota.amount, admit::MAX_TOTAL))
        })?;
    }
    for (id, machine) in state.machines.iter() {
        check_machine(&format!("machine row {} ({})", id.0, machine.spec.name), machine)?;
    }
    for (id, job) in state.jobs.iter() {
        check_job(&format!("job row {} ({})", id.0, job.name), job)?;
    }
    for (id, task) in state.tasks.iter() {
        check_task(&format!("task row {}", id.0), task)?;
    }
    for (id, cron) in state.crons.iter() {
        check_cron(&format!("periodic job row {} ({})", id.0, cron.spec.name), cron)?;
    }
    for (id, row) in state.blobs.iter() {
        admitted(&format!("package row {}", id.0), blob::check(&row.digest, row.bytes))?;
    }
    windows(state)
}

fn head(state: &State) -> Checked {
    let row = "head of the state";
    if state.level == 0 || state.level > LEVEL {
        return Err(bad(row, format!("level is {}; allowed: 1 to {LEVEL}", state.level)));
    }
    at_most(row, "attempt floor", u64::from(state.attempt_floor), MAX_COUNTER)?;
    at_most(row, "number of entries applied", state.applied, u64::MAX >> 1)
}

fn check_machine(row: &str, machine: &Machine) -> Checked {
    admitted(row, admit::check_machine(&machine.spec))?;
    at_most(row, "generation", u64::from(machine.generation), MAX_COUNTER)?;
    let list = &machine.ephemeral;
    let in_order = list.windows(2).all(|pair| pair[0].name < pair[1].name);
    if !in_order || list.iter().any(|entry| entry.name.namespace.is_none()) {
        return Err(bad(row, "ephemeral: allowed: names with a namespace, in order, each once"));
    }
    if !machine.shortages.windows(2).all(|pair| pair[0].dimension < pair[1].dimension) {
        return Err(bad(row, "shortages: allowed: resources in order, each once"));
    }
    let amounts = list.iter().map(|entry| entry.amount).filter(|amount| *amount != UNBOUNDED);
    let disks = machine.retained.iter().map(|entry| entry.bytes);
    let kept = disks.clone().fold(0u64, u64::saturating_add);
    at_most(row, "disk retained in all", kept, MAX_CELL_CAPACITY)?;
    amounts.chain(disks).try_for_each(|amount| at_most(row, "amount", amount, MAX_QUANTITY))
}

fn check_job(row: &str, job: &Job) -> Checked {
    at_most(row, "version", u64::from(job.version), MAX_COUNTER)?;
    at_most(row, "number of tasks", job.tasks.len() as u64, u64::from(MAX_TASKS))?;
    let disrupted = job.disrupted_at.len() as u64;
    at_most(row, "times of disruptions", disrupted, u64::from(MAX_DISRUPTIONS))?;
    job.specs.values().try_for_each(|spec| admitted(row, admit::check_job(spec)))
}

fn check_cron(row: &str, cron: &Cron) -> Checked {
    admitted(row, cron.spec.check())?;
    at_most(row, "version", u64::from(cron.version), MAX_COUNTER)?;
    at_most(row, "number of runs", cron.runs.len() as u64, u64::from(cron.spec.keep_runs))
}

fn check_task(row: &str, task: &Task) -> Checked {
    admitted(row, admit::quantities("reservation", task.reservation))?;
    at_most(row, "attempt", u64::from(task.attempt), MAX_COUNTER)?;
    if let Some(end) = &task.last_end {
        at_most(row, "attempt that ended last", u64::from(end.attempt), MAX_COUNTER)?;
    }
    if let Some(most) = task.notice_max {
        at_most(row, "bound of its notice", most.0, admit::MAX_SPAN.0)?;
    }
    at_most(row, "failures in a row", u64::from(task.failures_in_row), MAX_COUNTER)?;
    at_most(row, "kinds counted apart", task.apart.len() as u64, (MAX_LIST + 10) as u64)?;
    for entry in &task.apart {
        at_most(row, "ends counted apart", u64::from(entry.count), MAX_COUNTER)?;
    }
    at_most(row, "number of crash pairings", task.crashed_on.len() as u64, MAX_CRASH_PAIRS as u64)
}

fn windows(state: &State) -> Checked {
    for (actor, count) in state.windows.per_actor() {
        let row = format!("replay windows of {actor:?}");
        at_most(&row, "number", count as u64, MAX_WINDOWS as u64)?;
    }
    for ((_, client), window) in state.windows.iter() {
        let row = format!("replay window of client {client}");
        at_most(&row, "number of requests", window.entries.len() as u64, WINDOW as u64)?;
        let first = window.entries.first_key_value().map(|(sequence, _)| *sequence);
        if first.is_some() && first <= window.forgotten {
            let forgotten = window.forgotten;
            return Err(bad(&row, format!("knows request {first:?}, forgot up to {forgotten:?}")));
        }
    }
    Ok(())
}
