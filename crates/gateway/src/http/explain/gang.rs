//! Gangs that are not whole: what each of their tasks, in its place or waiting for one, has to know
//! of the others.

use cellwright_cell::gang;
use cellwright_cell::state::State;
use cellwright_cell::task::Task;
use cellwright_cell::time::{Span, Time};
use cellwright_cell::units::pluralize;
use cellwright_cell::words::quantity::span;

/// The sentence that the task's gang gives back its places unless it is made whole, and when.
pub(super) fn gives_back_text(state: &State, row: &Task, now: Time) -> Option<String> {
    let at = gang::gives_back_at(state, row.job)?;
    let (held, waiting) = gang::held_and_waiting(state, state.jobs().get(row.job)?);
    let places = pluralize(u64::from(held), "place");
    let lacks = pluralize(u64::from(waiting), "task");
    let when = match at.since(now) {
        Span::ZERO => "now".to_owned(),
        left => format!("in {}, unless it is whole by then", span(left)),
    };
    Some(format!(
        "Its gang holds {places} and lacks {lacks}: it gives back what it holds {when}, and waits \
         as a whole."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::Command;
    use cellwright_cell::id::MachineId;
    use cellwright_control::controller::testing::{Cell, job};

    #[test]
    fn a_gang_that_lost_a_task_says_until_when_it_waits() {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("train", 2);
        spec.gang = true;
        cell.submit(&spec);
        cell.place_gang("train", &[0, 1]);
        let text =
            |cell: &Cell| gives_back_text(&cell.state, cell.task("train", 0), cell.state.now());
        assert_eq!(text(&cell), None, "it is whole");
        cell.ok(Command::MachineDown { machine: MachineId(1) });
        let want = "Its gang holds 1 place and lacks 1 task: it gives back what it holds in 1 \
                    min, unless it is whole by then, and waits as a whole.";
        assert_eq!(text(&cell).as_deref(), Some(want));
    }
}
