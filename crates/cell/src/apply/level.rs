//! Raising the level (feature level): the behaviour of `apply` changes for all replicas at one log
//! index, after every one of them has a build that supports it. One level at a time, never back: a
//! replica that replays the log meets the same levels in the same order.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::EventKind;
use crate::reason::{Reason, Rejection};
use crate::state::HIGHEST_LEVEL;

impl Context<'_> {
    pub(super) fn raise_level(&mut self, level: u32) -> Verdict {
        let found = self.state.level;
        if level == found {
            return Ok(Done::Unchanged);
        }
        if level > HIGHEST_LEVEL || Some(level) != found.checked_add(1) {
            // Not the level itself, which is another one in another build: answers are hashed.
            let is_last = found >= HIGHEST_LEVEL;
            return Err(Rejection::BadLevel { requested: level, found, is_last });
        }
        self.state.level = level;
        self.emit(EventKind::LevelRaised { level }, Reason::Requested);
        Ok(Done::Applied)
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::Cell;
    use crate::command::{Command, Done};
    use crate::state::HIGHEST_LEVEL;

    fn check(from: u32, requested: u32, want: Result<Done, &str>) {
        let mut cell = Cell::default();
        cell.state.level = from;
        let got = cell.send(Command::RaiseLevel { level: requested });
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(rejection), Err(want)) => {
                let said = rejection.to_string();
                assert_eq!(said.split_once("allowed: ").unwrap().1, want);
            }
            (got, want) => panic!("{from} to {requested}: {got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn one_level_at_a_time_up_to_what_the_build_knows() {
        let highest = format!("{HIGHEST_LEVEL}, the highest this build knows");
        check(HIGHEST_LEVEL, HIGHEST_LEVEL, Ok(Done::Unchanged));
        check(HIGHEST_LEVEL - 1, HIGHEST_LEVEL, Ok(Done::Applied));
        check(HIGHEST_LEVEL, HIGHEST_LEVEL + 1, Err(&highest));
        check(HIGHEST_LEVEL, HIGHEST_LEVEL - 1, Err(&highest));
        check(
            HIGHEST_LEVEL - 1,
            HIGHEST_LEVEL + 1,
            Err(&format!("{} or {HIGHEST_LEVEL}", HIGHEST_LEVEL - 1)),
        );
        check(u32::MAX, 0, Err(&format!("{}, the highest this build knows", u32::MAX)));
    }
}
