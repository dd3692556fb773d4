//! Every row that changed has an event that reports it, and every event is about a row that changed
//! (except a rejection, which changes nothing). So a reader of events misses nothing: history,
//! names and the scheduler's snapshot are folds over them.

use super::{Check, Step, violation};
use crate::event::{Event, EventKind, TaskChange};
use crate::id::{JobId, TaskId};
use crate::job::Job;
use crate::state::State;
use crate::table::{Key, Table};
use crate::tables::{RowRef, TableName, TableRow, each_table};
use std::collections::BTreeSet;

const NAME: &str = "events_cover_changes";

/// Rows that differ between two states, or that events are about.
#[derive(Default)]
struct Touched {
    rows: BTreeSet<RowRef>,
    /// Jobs of touched tasks: the job's row counts changes of its tasks.
    jobs_through_tasks: BTreeSet<JobId>,
    level: bool,
    bounds: bool,
}

impl Touched {
    fn has(&self, row: impl Into<RowRef>) -> bool {
        self.rows.contains(&row.into())
    }
}

pub(super) fn check(step: &Step<'_>) -> Check {
    let reported = reported_rows(step);
    let changed = changed(step);
    every_change_has_event(step, &changed, &reported)?;
    // Two commands can undo each other; one cannot.
    match step.only_command() {
        Some(_) => {
            step.events.iter().try_for_each(|event| event_matches_change(step, event, &changed))
        }
        None => Ok(()),
    }
}

fn reported_rows(step: &Step<'_>) -> Touched {
    let mut reported = Touched::default();
    for event in step.events {
        match &event.kind {
            EventKind::Component(event) => {
                reported.rows.extend(event.as_component().changed_rows(step.before, step.after));
            }
            EventKind::Task { task, job, change, .. } => {
                reported.rows.insert((*task).into());
                // The run that is due is stored with the retained disk on the machine.
                if let TaskChange::LogSaverFailed { machine } = change {
                    reported.rows.insert((*machine).into());
                }
                reported.jobs_through_tasks.insert(*job);
            }
            EventKind::Job { job, .. } => drop(reported.rows.insert((*job).into())),
            EventKind::JobRejected { .. } => {}
            EventKind::Machine { machine, .. } => drop(reported.rows.insert((*machine).into())),
            EventKind::User { user, .. } => drop(reported.rows.insert((*user).into())),
            EventKind::LevelRaised { .. } => reported.level = true,
            EventKind::BoundsChanged => reported.bounds = true,
            EventKind::Token { token, .. } => drop(reported.rows.insert((*token).into())),
            EventKind::Blob { blob, .. } => drop(reported.rows.insert((*blob).into())),
        }
    }
    reported
}

fn changed_rows<K: Key + Into<RowRef>, V: Clone + PartialEq>(
    before: &Table<K, V>,
    after: &Table<K, V>,
) -> Vec<RowRef> {
    let keys = (0..before.slots().max(after.slots())).map(K::from_slot);
    keys.filter(|key| before.get(*key) != after.get(*key)).map(Into::into).collect()
}

fn changed(step: &Step<'_>) -> Touched {
    let (before, after) = (step.before, step.after);
    let mut rows = BTreeSet::new();
    macro_rules! compare {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(rows.extend(changed_rows(&before.$($place).+, &after.$($place).+));)*
        };
    }
    each_table!(compare);
    let job_of = |row: &RowRef| {
        let task = (row.table == TableName::Tasks).then_some(TaskId(row.slot))?;
        after.tasks.get(task).or_else(|| before.tasks.get(task)).map(|row| row.job)
    };
    Touched {
        jobs_through_tasks: rows.iter().filter_map(job_of).collect(),
        rows,
        level: before.level != after.level,
        bounds: before.bounds != after.bounds,
    }
}

fn every_change_has_event(step: &Step<'_>, changed: &Touched, reported: &Touched) -> Check {
    let unreported = |what: String, was: String, is: String| {
        Err(violation(NAME, what, format!("changed without an event: was {was}, is {is}")))
    };
    let (before, after) = (step.before, step.after);
    for row in changed.rows.difference(&reported.rows) {
        let ends = removed_with_row(step, *row).is_some_and(|of| reported.has(of));
        if !ends
            && !is_reported_with_row(step, *row, reported)
            && !is_bookkeeping_of_tasks(step, *row, reported)
        {
            let ((what, was), (_, is)) = (describe_row(before, *row), describe_row(after, *row));
            return unreported(what, was, is);
        }
    }
    if changed.bounds && !reported.bounds {
        let (before, after) = (format!("{:?}", before.bounds), format!("{:?}", after.bounds));
        return unreported("bounds".to_owned(), before, after);
    }
    if changed.level && !reported.level {
        unreported("level".to_owned(), before.level.to_string(), after.level.to_string())
    } else {
        Ok(())
    }
}

/// Whether the row of a component belongs to one that is reported, itself or through its tasks.
fn is_reported_with_row(step: &Step<'_>, row: RowRef, reported: &Touched) -> bool {
    let of = |state: &State| state.components.reported_with(row);
    let is_reported = |of: RowRef| {
        let is_job = of.table == TableName::Jobs;
        reported.has(of) || (is_job && reported.jobs_through_tasks.contains(&JobId(of.slot)))
    };
    // The row may be another one's by now.
    [of(step.before), of(step.after)].into_iter().flatten().any(is_reported)
}

/// The removed row of a component with which this one was removed, if any.
fn removed_with_row(step: &Step<'_>, row: RowRef) -> Option<RowRef> {
    let of = step.before.components.removed_with(row)?;
    let is_gone = |row: RowRef| describe_row(step.after, row).1 == "None";
    (is_gone(of) && is_gone(row)).then_some(of)
}

/// The word for a row in errors, and the row.
fn describe_row(state: &State, row: RowRef) -> (String, String) {
    macro_rules! write {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            match row.table {
                $(TableName::$variant => (
                    format!("{} row {}", <$row as TableRow>::NOUN, row.slot),
                    format!("{:?}", state.$($place).+.get(<$id>::from_slot(row.slot as usize))),
                ),)*
                TableName::Windows => (row.to_string(), String::new()),
            }
        };
    }
    each_table!(write)
}

/// Unused specs, the counts of an update and the times of disruptions follow the tasks they are
/// about.
fn is_bookkeeping_of_tasks(step: &Step<'_>, row: RowRef, reported: &Touched) -> bool {
    let id = JobId(row.slot);
    let is_bookkeeping =
        || only_bookkeeping_differs(step.before.jobs.get(id), step.after.jobs.get(id));
    row.table == TableName::Jobs && reported.jobs_through_tasks.contains(&id) && is_bookkeeping()
}

fn only_bookkeeping_differs(old: Option<&Job>, new: Option<&Job>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    let mut same = old.clone();
    same.specs = new.specs.clone();
    same.disrupted_at = new.disrupted_at.clone();
    if let (Some(books), Some(update)) = (&mut same.update, &new.update) {
        books.disruptions = update.disruptions;
        books.skipped = update.skipped.clone();
        books.failed_at = update.failed_at.clone();
        books.completed_at = update.completed_at;
    }
    same == *new
}

fn event_matches_change(step: &Step<'_>, event: &Event, changed: &Touched) -> Check {
    let happened = match &event.kind {
        EventKind::Component(event) => {
            let rows = event.as_component().changed_rows(step.before, step.after);
            rows.into_iter().any(|row| changed.has(row))
        }
        // One batch may set a task's reservation twice, and back to what it was.
        EventKind::Task { change: TaskChange::ReservationChanged, .. } => true,
        // About disk it left on a machine, when the task may be elsewhere, or dead.
        EventKind::Task {
            change:
                TaskChange::LogSaverFailed { machine }
                | TaskChange::Saved { machine }
                | TaskChange::NotSaved { machine },
            ..
        } => changed.has(*machine),
        // A skipped change is recorded in the job's row.
        EventKind::Task { task, job, .. } => changed.has(*task) || changed.has(*job),
        EventKind::Job { job, .. } => changed.has(*job) || changed.jobs_through_tasks.contains(job),
        EventKind::JobRejected { .. } => true,
        EventKind::Machine { machine, .. } => changed.has(*machine),
        EventKind::User { user, .. } => changed.has(*user),
        EventKind::LevelRaised { .. } => changed.level,
        EventKind::BoundsChanged => changed.bounds,
        EventKind::Token { token, .. } => changed.has(*token),
        EventKind::Blob { blob, .. } => changed.has(*blob),
    };
    if happened {
        Ok(())
    } else {
        Err(violation(NAME, "event", format!("{event:?}, and nothing of it changed")))
    }
}
