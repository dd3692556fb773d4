//! Who was condemned already. A task takes a moment to die, and looks go on meanwhile: it is said
//! once, and again after a while should it still be there, as the policy of the isolation library
//! does with those that it has killed.

use cellwright_cell::id::Attempt;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds after which it is said again.
const REPEAT_AFTER_MILLIS: u64 = 10_000;

/// When each was told last, in milliseconds on the boot clock.
#[derive(Debug, Default)]
pub struct RecentKills(BTreeMap<Attempt, u64>);

impl RecentKills {
    /// Whether it is to be said now; from then on it was.
    pub fn is_due(&mut self, attempt: Attempt, now: u64) -> bool {
        let last = self.0.get(&attempt);
        let is_due = last.is_none_or(|said| now.saturating_sub(*said) >= REPEAT_AFTER_MILLIS);
        if is_due {
            self.0.insert(attempt, now);
        }
        is_due
    }

    /// Forgets those that are gone.
    pub fn retain(&mut self, present: &BTreeSet<Attempt>) {
        self.0.retain(|attempt, _| present.contains(attempt));
    }
}
