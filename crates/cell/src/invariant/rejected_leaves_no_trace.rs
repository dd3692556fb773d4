//! A rejected command, one with every item rejected, and one that found everything done already,
//! change no row; the only event is the rejection of a submission or update. A request repeated by
//! id is answered, not applied again.

use super::{Check, Step, violation};
use crate::command::{ApplyOutcome, Command, Done, Verdict};
use crate::event::EventKind;
use crate::state::State;
use crate::table::{Key, Table};
use crate::tables::{TableRow, each_table};
use std::fmt::Debug;

const NAME: &str = "refused_leaves_no_trace";

pub(super) fn check(step: &Step<'_>) -> Check {
    let Some((command, verdict)) = step.only_command() else { return Ok(()) };
    if step.is_repeated() {
        if let Some(event) = step.events.first() {
            return Err(violation(NAME, "event", format!("{event:?} of a repeated request")));
        }
        return same_rows(step.before, step.after);
    }
    let may_reject = match verdict {
        Err(_) => matches!(
            command,
            Command::SubmitJob { .. } | Command::UpdateJob { .. } | Command::ApplyJob { .. }
        ),
        Ok(
            Done::Unchanged
            | Done::Job { became: ApplyOutcome::Unchanged | ApplyOutcome::Ended, .. },
        ) => false,
        Ok(Done::Partly(_)) if all_rejected(command, verdict) => false,
        Ok(_) => return Ok(()),
    };
    let stray = step
        .events
        .iter()
        .find(|event| !(may_reject && matches!(event.kind, EventKind::JobRejected { .. })));
    if let Some(event) = stray {
        return Err(violation(NAME, "event", format!("{event:?} after {verdict:?}")));
    }
    same_rows(step.before, step.after)
}

/// Whether nothing took effect of a command made of items: a plan, a batch.
fn all_rejected(command: &Command, verdict: &Verdict) -> bool {
    let items = match command {
        Command::CommitPlan(plan) => plan.groups.len(),
        Command::TaskReports { reports, .. } => reports.len(),
        Command::SetReservations(changes) => changes.len(),
        _ => return false,
    };
    matches!(verdict, Ok(Done::Partly(refused)) if refused.len() == items)
}

fn same_rows(before: &State, after: &State) -> Check {
    if before.level != after.level {
        return Err(violation(NAME, "level", format!("{} -> {}", before.level, after.level)));
    }
    macro_rules! same_tables {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(same(<$row as TableRow>::NOUN, &before.$($place).+, &after.$($place).+)?;)*
        };
    }
    each_table!(same_tables);
    Ok(())
}

fn same<K: Key, V: Clone + PartialEq + Debug>(
    what: &str,
    before: &Table<K, V>,
    after: &Table<K, V>,
) -> Check {
    if before.slots() != after.slots() {
        let detail = format!("{} slots before, {} after", before.slots(), after.slots());
        return Err(violation(NAME, format!("table of {what} rows"), detail));
    }
    for slot in 0..before.slots() {
        let (old, new) = (before.get(K::from_slot(slot)), after.get(K::from_slot(slot)));
        if old != new {
            let detail = format!("was {old:?}, is {new:?}");
            return Err(violation(NAME, format!("{what} row {slot}"), detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job};
    use crate::command::{Command, Entry, Request};
    use crate::id::{MachineId, TaskId};
    use crate::invariant::check_step;
    use crate::plan::{Assignment, Group, Plan};
    use crate::time::Time;

    /// A plan with groups that put `jfoo/0` on these machines, and a row that changed meanwhile.
    fn check(machines: &[u32], corrupt: bool, want: bool) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let task = cell.task_id("jfoo", 0);
        let group = |machine: &u32| {
            let (machine, alloc) = (MachineId(*machine), None);
            let (ports, devices) = (Vec::new(), Vec::new());
            let assignment = Assignment { task, attempt: 0, machine, alloc, ports, devices };
            Group { victims: Vec::new(), assignments: vec![assignment] }
        };
        let plan = Plan { made_at: 0, groups: machines.iter().map(group).collect() };
        let before = cell.state.clone();
        let requests = vec![Request::from_default_sender(Command::CommitPlan(plan), &before)];
        let entry = Entry { now: Time(cell.now), requests };
        let mut events = Vec::new();
        let verdicts = cell.state.apply(&entry, &mut events);
        if corrupt {
            cell.state.edit_task(TaskId(task.0), |t| t.failures_in_row += 1);
        }
        let found = check_step(&before, &entry, &verdicts, &cell.state, &events);
        let found = found.map_err(|violation| violation.invariant);
        let expected = if want { Ok(()) } else { Err(super::NAME) };
        assert_eq!(found, expected, "{machines:?}");
    }

    #[test]
    fn a_trace_of_a_plan_of_which_nothing_was_taken_is_found() {
        check(&[7, 8], false, true);
        check(&[7, 8], true, false);
        check(&[7, 0], true, true);
    }
}
