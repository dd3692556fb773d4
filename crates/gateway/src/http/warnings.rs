//! Warnings: what an accepted job asks for and does not get. A rejection would make a file invalid
//! because an operator lowered a setting, and silence would let its owner rely on it.

use cellwright_cell::command::Command;
use cellwright_cell::notice;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::words::quantity::span;

/// The warnings about the job that the command brings, if it does.
pub(super) fn of(state: &State, command: &Command) -> Vec<String> {
    match command {
        Command::SubmitJob { spec, .. }
        | Command::UpdateJob { spec, .. }
        | Command::ApplyJob { spec, .. } => of_job(state, spec),
        _ => Vec::new(),
    }
}

fn of_job(state: &State, spec: &JobSpec) -> Vec<String> {
    let cut = notice::cut_notice(state, spec).map(|(asked, given)| {
        format!(
            "task.notice is {}, and {} tasks get at most {} in this cell",
            span(asked),
            spec.priority.band(),
            span(given)
        )
    });
    cut.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::bounds::Bounds;
    use cellwright_cell::notice::LongestNotice;
    use cellwright_cell::time::Span;
    use cellwright_control::controller::testing::{Cell, job};

    #[test]
    fn a_notice_that_the_cell_cuts_is_told() {
        let mut cell = Cell::with_machines(1);
        let longest_notice = LongestNotice { batch: Span::seconds(120), ..Default::default() };
        cell.ok(Command::SetBounds(Bounds { longest_notice, ..Bounds::default() }));
        let check = |notice: Span, priority: u16, want: &[&str]| {
            let mut spec = job("jfoo", 1);
            spec.task.notice = notice;
            spec.priority = cellwright_cell::priority::Priority(priority);
            assert_eq!(of_job(&cell.state, &spec), want, "{notice:?} at {priority}");
        };
        check(Span::seconds(120), 100, &[]);
        check(Span::seconds(86_400), 200, &[]);
        let cut = "task.notice is 2 h, and batch tasks get at most 2 min in this cell";
        check(Span::seconds(7200), 100, &[cut]);
    }
}
