//! Places for what lasts: sessions in tasks, readers that follow output. Each costs a connection to
//! a machine, so there is a bound on all of them, and one on each caller's: whoever opens a
//! thousand keeps others out of none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many callers it takes to fill all places.
const CALLERS: usize = 8;

/// Who has how many. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Shares {
    most: usize,
    taken: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// One place; given back when dropped.
pub struct Seat {
    shares: Shares,
    who: String,
}

impl Shares {
    #[must_use]
    pub fn of(most: usize) -> Shares {
        Shares { most, taken: Arc::default() }
    }

    /// A place for `who`, unless it or everybody together has too many.
    #[must_use]
    pub fn take(&self, who: &str) -> Option<Seat> {
        let mut taken = self.lock();
        let own = taken.get(who).copied().unwrap_or(0);
        if own >= (self.most / CALLERS).max(1) || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(who.to_owned(), own + 1);
        Some(Seat { shares: self.clone(), who: who.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        if let Some(count) = taken.get_mut(&self.who) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_has_a_share_and_all_together_have_a_bound() {
        let shares = Shares::of(16);
        let many: Vec<Option<Seat>> = (0..5).map(|_| shares.take("ann")).collect();
        assert_eq!(many.iter().flatten().count(), 2);
        let others: Vec<Option<Seat>> = (0..20).map(|n| shares.take(&format!("u{n}"))).collect();
        assert_eq!(others.iter().flatten().count(), 14);
        drop(many);
        assert!(shares.take("late").is_some());
        drop(others);
        assert!(shares.lock().is_empty());
    }
}
