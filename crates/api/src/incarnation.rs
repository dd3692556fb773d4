//! Which number a life of a machine has. Masters refuse what an earlier life says, so a number must
//! be above all before it, also of a machine that has lost its data and whatever its clock says.
//! Only the masters remember: they tell the newest number they know with every answer, and a life
//! that is new takes the next one. A life that was told its own number has it for good; should a
//! higher one appear then, somebody else speaks for the machine.
//!
//! Rejected: the time of day at the start of a life. A machine that came back without its data and
//! with a clock that was behind had a number below its last, and was never heard again.

use serde::{Deserialize, Serialize};

/// The number of a life, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncarnationNumber {
    pub incarnation: u64,
    /// The masters have taken this number for this life.
    pub is_granted: bool,
    /// The masters knew only lower ones: if they know this one now, it is this life's.
    was_above: bool,
}

/// What a word of the masters means to a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncarnationUpdate {
    /// Nothing new.
    Unchanged,
    /// The number is this life's from now on.
    Granted,
    /// Another life had the number: this one has taken the next, and the answer was not for it.
    Raised,
    /// Another life of the machine came later. This one is over.
    Superseded { newest: u64 },
}

impl IncarnationNumber {
    /// A life that begins; `before` is the last one that is known here.
    #[must_use]
    pub fn next_after(before: Option<IncarnationNumber>) -> IncarnationNumber {
        let was_above = before.is_some();
        let before = before.map_or(0, |life| life.incarnation);
        IncarnationNumber { incarnation: before.saturating_add(1), is_granted: false, was_above }
    }

    /// The masters know `newest`, or nothing of the machine when that is 0.
    pub fn observe(&mut self, newest: u64) -> IncarnationUpdate {
        if newest < self.incarnation {
            self.was_above = true;
            return IncarnationUpdate::Unchanged;
        }
        if self.is_granted {
            let is_superseded = newest > self.incarnation;
            return if is_superseded {
                IncarnationUpdate::Superseded { newest }
            } else {
                IncarnationUpdate::Unchanged
            };
        }
        if newest == self.incarnation && self.was_above {
            self.is_granted = true;
            return IncarnationUpdate::Granted;
        }
        self.incarnation = newest.saturating_add(1);
        self.was_above = true;
        IncarnationUpdate::Raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: Option<u64>, observations: &[(u64, IncarnationUpdate)], number: u64) {
        let before = before.map(|incarnation| IncarnationNumber {
            incarnation,
            is_granted: true,
            was_above: true,
        });
        let mut life = IncarnationNumber::next_after(before);
        for (newest, want) in observations {
            assert_eq!(life.observe(*newest), *want, "{life:?} hears {newest}");
        }
        assert_eq!(life.incarnation, number);
    }

    #[test]
    fn a_new_life_takes_the_number_after_the_newest() {
        use IncarnationUpdate::{Granted, Raised, Superseded, Unchanged};
        check(None, &[(0, Unchanged), (0, Unchanged), (1, Granted), (1, Unchanged)], 1);
        check(Some(4), &[(4, Unchanged), (5, Granted)], 5);
        check(Some(4), &[(5, Granted), (5, Unchanged)], 5);
        // What it reported is in the log before it hears anything else.
        check(None, &[(1, Raised), (2, Granted), (2, Unchanged)], 2);
        // Lost data: whatever number the last life had, by a clock perhaps.
        check(None, &[(1, Raised), (1, Unchanged), (2, Granted)], 2);
        check(
            None,
            &[(1_700_000, Raised), (1_700_000, Unchanged), (1_700_001, Granted)],
            1_700_001,
        );
        // A replica that lags behind knows an older one.
        check(
            None,
            &[(7, Raised), (6, Unchanged), (7, Unchanged), (8, Granted), (7, Unchanged)],
            8,
        );
        // Two at once: whoever is granted first loses to whoever comes later, once.
        check(None, &[(0, Unchanged), (3, Raised), (3, Unchanged), (4, Granted)], 4);
        check(None, &[(0, Unchanged), (1, Granted), (2, Superseded { newest: 2 })], 1);
    }
}
