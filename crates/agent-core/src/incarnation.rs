//! Incarnation numbers of a machine (one for each boot). Masters reject what an earlier incarnation
//! says, so a number must be above all before it, also for a machine that has lost its data and
//! whatever its clock says. Only the masters remember: every answer carries the newest number they
//! know, and a new incarnation takes the next one. An incarnation whose number was granted keeps
//! it; should a higher one appear then, another process speaks for the machine.
//!
//! Rejected: the time of day at boot. A machine that came back without its data and with a clock
//! that was behind had a number below its last, and was rejected for ever.

use serde::{Deserialize, Serialize};

/// The number of an incarnation, and how certain it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncarnationNumber {
    pub incarnation: u64,
    /// The masters have accepted this number for this incarnation.
    pub is_granted: bool,
    /// The masters knew only lower ones: if they know this number now, it belongs to this
    /// incarnation.
    was_above: bool,
}

/// The meaning of a master's answer for an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncarnationUpdate {
    /// Nothing new.
    Unchanged,
    /// The number belongs to this incarnation from now on.
    Granted,
    /// Another incarnation had the number: this one has taken the next, and the answer was not for
    /// it.
    Raised,
    /// The machine has a later incarnation. This one is superseded.
    Superseded { newest: u64 },
}

impl IncarnationNumber {
    /// The number of a new incarnation; `before` is the last one that is known here.
    #[must_use]
    pub fn next_after(before: Option<IncarnationNumber>) -> IncarnationNumber {
        let was_above = before.is_some();
        let before = before.map_or(0, |known| known.incarnation);
        IncarnationNumber { incarnation: before.saturating_add(1), is_granted: false, was_above }
    }

    /// The masters know `newest`; 0 if they do not know the machine.
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
        let mut incarnation = IncarnationNumber::next_after(before);
        for (newest, want) in observations {
            assert_eq!(incarnation.observe(*newest), *want, "{incarnation:?} hears {newest}");
        }
        assert_eq!(incarnation.incarnation, number);
    }

    #[test]
    fn a_new_life_takes_the_number_after_the_newest() {
        use IncarnationUpdate::{Granted, Raised, Superseded, Unchanged};
        check(None, &[(0, Unchanged), (0, Unchanged), (1, Granted), (1, Unchanged)], 1);
        check(Some(4), &[(4, Unchanged), (5, Granted)], 5);
        check(Some(4), &[(5, Granted), (5, Unchanged)], 5);
        // Its report is in the log before it receives any other answer.
        check(None, &[(1, Raised), (2, Granted), (2, Unchanged)], 2);
        // Lost data: the last incarnation may have had any number, by a clock perhaps.
        check(None, &[(1, Raised), (1, Unchanged), (2, Granted)], 2);
        check(
            None,
            &[(1_700_000, Raised), (1_700_000, Unchanged), (1_700_001, Granted)],
            1_700_001,
        );
        // A replica that lags behind knows an older number.
        check(
            None,
            &[(7, Raised), (6, Unchanged), (7, Unchanged), (8, Granted), (7, Unchanged)],
            8,
        );
        // Two at once: the one that is granted first loses to the one that comes later, once.
        check(None, &[(0, Unchanged), (3, Raised), (3, Unchanged), (4, Granted)], 4);
        check(None, &[(0, Unchanged), (1, Granted), (2, Superseded { newest: 2 })], 1);
    }
}
