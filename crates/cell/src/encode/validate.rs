//! Checks rows that decode and refer to each other for values that admission would have rejected.
//! Everything `apply` relies on being bounded is checked again here, by admission's own rules.

use super::{LoadError, Rows};
use crate::admit;
use crate::blob::{self, Blob};
use crate::credential::AccessToken;
use crate::disruption::MAX_DISRUPTIONS;
use crate::job::Job;
use crate::machine::{MAX_CELL_CAPACITY, Machine};
use crate::name::Name;
use crate::quota::User;
use crate::reason::Rejection;
use crate::replay_windows::{MAX_WINDOWS, WINDOW_SIZE};
use crate::resource::MAX_QUANTITY;
use crate::spec::{MAX_LIST, MAX_TASKS};
use crate::state::{HIGHEST_LEVEL, State};
use crate::tables::{TableRow, each_table, row_title};
use crate::task::{MAX_CRASH_PAIRS, Task};
use crate::update_policy::MAX_ROLLBACK_FAILURES;

/// Counters that grow by one stay far below this; one beyond it was not reached by counting.
pub(crate) const MAX_COUNTER: u64 = 1 << 31;

pub(crate) type Checked = Result<(), LoadError>;

pub(crate) fn bad_row(row: &str, why: impl ToString) -> LoadError {
    LoadError::BadRow { row: row.to_owned(), why: why.to_string() }
}

pub(crate) fn at_most(row: &str, field: &str, value: u64, most: u64) -> Checked {
    if value <= most {
        Ok(())
    } else {
        Err(bad_row(row, format!("{field} is {value}; allowed: at most {most}")))
    }
}

pub(crate) fn check_admitted(row: &str, checked: Result<(), Rejection>) -> Checked {
    checked.map_err(|rejection| bad_row(row, rejection))
}

pub(super) fn rows(state: &State) -> Checked {
    head(state)?;
    macro_rules! check {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(
                for (id, row) in state.$($place).+.iter() {
                    row.check(&row_title(id.slot(), row))?;
                }
            )*
        };
    }
    each_table!(check);
    windows(state)
}

impl TableRow for User {
    const NOUN: &'static str = "user";

    fn label(&self, _: &Rows) -> String {
        self.name.to_string()
    }

    fn title(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn name(&self, _: &State) -> Option<String> {
        Some(self.name.to_string())
    }

    fn check(&self, row: &str) -> Checked {
        at_most(row, "version", u64::from(self.version), MAX_COUNTER)?;
        self.quota.values().try_for_each(|quota| {
            check_admitted(row, admit::check_bounded("quota", quota.amount, admit::MAX_TOTAL))
        })
    }
}

impl TableRow for Machine {
    const NOUN: &'static str = "machine";

    fn label(&self, _: &Rows) -> String {
        self.spec.name.to_string()
    }

    fn title(&self) -> Option<String> {
        Some(self.spec.name.to_string())
    }

    fn name(&self, _: &State) -> Option<String> {
        Some(self.spec.name.to_string())
    }

    fn is_of_machine(&self, _: &Rows, machine: &Name) -> bool {
        self.spec.name == *machine
    }

    fn check(&self, row: &str) -> Checked {
        check_machine(row, self)
    }
}

impl TableRow for Job {
    const NOUN: &'static str = "job";
    const OWNED: bool = true;

    fn label(&self, rows: &Rows) -> String {
        format!("{}/{}", rows.user_name(self.user.slot()), self.name)
    }

    fn title(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn name(&self, state: &State) -> Option<String> {
        Some(format!("{}/{}", state.users.get(self.user)?.name, self.name))
    }

    fn check(&self, row: &str) -> Checked {
        check_job(row, self)
    }
}

impl TableRow for Task {
    const NOUN: &'static str = "task";
    const OWNED: bool = true;

    fn label(&self, rows: &Rows) -> String {
        let job = rows.jobs.get(self.job.slot()).and_then(Option::as_ref);
        let job = job.map_or_else(|| format!("job#{}", self.job.0), |job| job.label(rows));
        format!("{job}/{}", self.index)
    }

    fn name(&self, state: &State) -> Option<String> {
        Some(format!("{}/{}", state.job_key(self.job)?, self.index))
    }

    fn is_of_machine(&self, rows: &Rows, machine: &Name) -> bool {
        self.holds.iter().any(|(_, hold)| {
            let row = rows.machines.get(hold.machine.slot()).and_then(Option::as_ref);
            row.is_some_and(|row| row.spec.name == *machine)
        })
    }

    fn check(&self, row: &str) -> Checked {
        check_task(row, self)
    }
}

impl TableRow for AccessToken {
    const NOUN: &'static str = "token";

    fn label(&self, _: &Rows) -> String {
        self.id.to_string()
    }

    fn name(&self, _: &State) -> Option<String> {
        Some(self.id.to_string())
    }
}

impl TableRow for Blob {
    const NOUN: &'static str = "package";

    fn label(&self, _: &Rows) -> String {
        self.digest.to_string()
    }

    fn name(&self, _: &State) -> Option<String> {
        Some(self.short_digest().to_owned())
    }

    fn check(&self, row: &str) -> Checked {
        check_admitted(row, blob::check_digest_and_size(&self.digest, self.bytes))
    }
}

fn head(state: &State) -> Checked {
    let row = "head of the state";
    let (level, highest) = (state.level, HIGHEST_LEVEL);
    if level == 0 || level > highest {
        return Err(bad_row(row, format!("level is {level}; allowed: 1 to {highest}")));
    }
    at_most(row, "attempt floor", u64::from(state.attempt_floor), MAX_COUNTER)?;
    at_most(row, "number of entries applied", state.applied, u64::MAX >> 1)
}

fn check_machine(row: &str, machine: &Machine) -> Checked {
    check_admitted(row, admit::check_machine(&machine.spec))?;
    at_most(row, "generation", u64::from(machine.generation), MAX_COUNTER)?;
    if !machine.resource_pressure.windows(2).all(|pair| pair[0].dimension < pair[1].dimension) {
        return Err(bad_row(row, "resource_pressure: allowed: resources in order, each once"));
    }
    let mut disks = machine.retained.iter().map(|entry| entry.bytes);
    let kept = disks.clone().fold(0u64, u64::saturating_add);
    at_most(row, "disk retained in all", kept, MAX_CELL_CAPACITY)?;
    disks.try_for_each(|amount| at_most(row, "amount", amount, MAX_QUANTITY))
}

fn check_job(row: &str, job: &Job) -> Checked {
    at_most(row, "version", u64::from(job.version), MAX_COUNTER)?;
    at_most(row, "number of tasks", job.tasks.len() as u64, u64::from(MAX_TASKS))?;
    let disrupted = job.disrupted_at.len() as u64;
    at_most(row, "times of disruptions", disrupted, u64::from(MAX_DISRUPTIONS))?;
    if let Some(update) = &job.update {
        let failures = update.failed_at.len() as u64;
        at_most(row, "failures of its update", failures, u64::from(MAX_ROLLBACK_FAILURES))?;
        at_most(row, "canaries", u64::from(update.canaries), u64::from(MAX_TASKS))?;
    }
    job.specs.values().try_for_each(|spec| check_admitted(row, admit::check_job(spec)))
}

fn check_task(row: &str, task: &Task) -> Checked {
    check_admitted(row, admit::check_quantities("reservation", task.reservation))?;
    if let Some(limits) = &task.limits_in_force {
        check_admitted(row, admit::check_quantities("limits_in_force", **limits))?;
    }
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
        at_most(&row, "number of requests", window.entries.len() as u64, WINDOW_SIZE as u64)?;
        let first = window.entries.first_key_value().map(|(sequence, _)| *sequence);
        if first.is_some() && first <= window.forgotten {
            let forgotten = window.forgotten;
            return Err(bad_row(
                &row,
                format!("knows request {first:?}, forgot up to {forgotten:?}"),
            ));
        }
    }
    Ok(())
}
