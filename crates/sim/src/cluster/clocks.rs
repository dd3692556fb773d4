//! The clocks of a simulated world: one time for all, and those who have it wrong.

use super::net::Place;
use super::planted::{Panics, Planted};
use super::world::AGENTS;
use cellwright_cell::time::Time;
use cellwright_master::clock::Clock;
use cellwright_supervise::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The wall clocks of the simulation: virtual time since a fixed date, each with what it is ahead.
#[derive(Clone)]
pub struct Clocks {
    started: Instant,
    /// By place, those that are wrong, and whether they stay so when all else is healed.
    wrong: Arc<Mutex<BTreeMap<Place, (i64, bool)>>>,
    /// The replica whose clock was wrong last, and when it was.
    last: Arc<Mutex<Option<(Place, Instant)>>>,
}

/// For so long what a replica told of its clock may count with the others: until then its clock
/// and another's would be two wrong ones that agree.
const COUNTS: Duration = Duration::from_secs(10);

impl Clocks {
    pub(super) fn new(started: Instant) -> Clocks {
        Clocks { started, wrong: Arc::default(), last: Arc::default() }
    }

    /// What time it really is.
    #[must_use]
    pub fn right(&self) -> Time {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Time(1_700_000_000_000 + passed)
    }

    /// What the clock of a process says.
    #[must_use]
    pub fn at(&self, place: Place) -> Time {
        let ahead = lock(&self.wrong).get(&place).map_or(0, |(ahead, _)| *ahead);
        Time(self.right().0.saturating_add_signed(ahead))
    }

    /// The clock of a process jumps. Only one replica's is wrong at a time, as the cell can bear:
    /// where another's is, that one is set right instead.
    pub fn jump(&self, place: Place, ahead: i64, for_good: bool) {
        let mut wrong = lock(&self.wrong);
        if place < AGENTS {
            let mut last = lock(&self.last);
            if let Some((other, at)) = last.as_mut().filter(|(other, _)| *other != place) {
                if wrong.remove(other).is_some() {
                    *at = Instant::now();
                }
                if at.elapsed() < COUNTS {
                    return;
                }
            }
            *last = Some((place, Instant::now()));
        }
        wrong.insert(place, (ahead, for_good));
    }

    /// All are right again that did not jump for good.
    pub fn heal(&self) {
        let mut wrong = lock(&self.wrong);
        let mut last = lock(&self.last);
        if let Some((_, at)) = last.as_mut().filter(|(place, _)| wrong.contains_key(place)) {
            *at = Instant::now();
        }
        wrong.retain(|_, (_, for_good)| *for_good);
    }
}

/// The clock of one process.
pub(super) struct ClockAt(pub(super) Clocks, pub(super) Place, pub(super) Planted);

impl Clock for ClockAt {
    fn wall(&self) -> Time {
        // The core asks for the time at every step.
        self.2.reach(Panics::Core);
        self.0.at(self.1)
    }
}
