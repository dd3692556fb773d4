//! Tasks that were condemned already. A task takes a moment to die, and passes go on meanwhile: a
//! kill is issued once, and repeated after a while should the task still be there, as resource
//! control does with those that it has killed.

use cellwright_cell::id::Attempt;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds after which a kill is repeated.
const REPEAT_AFTER_MILLIS: u64 = 10_000;

/// When each was last killed, in milliseconds on the boot clock.
#[derive(Debug, Default)]
pub struct RecentKills(BTreeMap<Attempt, u64>);

impl RecentKills {
    /// Whether the kill is due now; if so, it is recorded.
    pub fn is_due(&mut self, attempt: Attempt, now: u64) -> bool {
        let last = self.0.get(&attempt);
        let is_due =
            last.is_none_or(|last_kill| now.saturating_sub(*last_kill) >= REPEAT_AFTER_MILLIS);
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
