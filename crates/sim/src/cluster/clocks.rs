//! The clocks of a simulated world: one true time, and clocks that are wrong.

use super::failpoints::{Failpoint, PanicPoint};
use super::net::NodeAddress;
use super::world::FIRST_AGENT_ADDRESS;
use cellwright_cell::time::Time;
use cellwright_master::clock::Clock;
use cellwright_supervise::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The wall clocks of the simulation: virtual time since a fixed date, each with its own skew.
#[derive(Clone)]
pub struct Clocks {
    started: Instant,
    /// By address, the clocks that are wrong, and whether they stay so when all else is healed.
    skews: Arc<Mutex<BTreeMap<NodeAddress, (i64, bool)>>>,
    /// The replica whose clock was wrong last, and the time of that.
    last_skewed: Arc<Mutex<Option<(NodeAddress, Instant)>>>,
}

/// For how long a replica's reported clock may still count with the others: until then its clock
/// and another's would be two wrong ones that agree.
const SKEW_COUNTS_FOR: Duration = Duration::from_secs(10);

impl Clocks {
    pub(super) fn new(started: Instant) -> Clocks {
        Clocks { started, skews: Arc::default(), last_skewed: Arc::default() }
    }

    /// The true time.
    #[must_use]
    pub fn true_time(&self) -> Time {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Time(1_700_000_000_000 + passed)
    }

    /// The time on the clock of a process.
    #[must_use]
    pub fn clock_time(&self, node_address: NodeAddress) -> Time {
        let ahead = lock(&self.skews).get(&node_address).map_or(0, |(ahead, _)| *ahead);
        Time(self.true_time().0.saturating_add_signed(ahead))
    }

    /// The clock of a process jumps. Only one replica's clock is wrong at a time, as the cell
    /// tolerates: where another's is wrong, that one is corrected instead.
    pub fn jump(&self, node_address: NodeAddress, ahead: i64, for_good: bool) {
        let mut wrong = lock(&self.skews);
        if node_address < FIRST_AGENT_ADDRESS {
            let mut last = lock(&self.last_skewed);
            if let Some((other, at)) = last.as_mut().filter(|(other, _)| *other != node_address) {
                if wrong.remove(other).is_some() {
                    *at = Instant::now();
                }
                if at.elapsed() < SKEW_COUNTS_FOR {
                    return;
                }
            }
            *last = Some((node_address, Instant::now()));
        }
        wrong.insert(node_address, (ahead, for_good));
    }

    /// Corrects all clocks that did not jump for good.
    pub fn heal(&self) {
        let mut wrong = lock(&self.skews);
        let mut last = lock(&self.last_skewed);
        if let Some((_, at)) =
            last.as_mut().filter(|(node_address, _)| wrong.contains_key(node_address))
        {
            *at = Instant::now();
        }
        wrong.retain(|_, (_, for_good)| *for_good);
    }
}

/// The clock of one process.
pub(super) struct NodeClock(pub(super) Clocks, pub(super) NodeAddress, pub(super) Failpoint);

impl Clock for NodeClock {
    fn wall_time(&self) -> Time {
        // The core reads the time at every step.
        self.2.reach(PanicPoint::Core);
        self.0.clock_time(self.1)
    }
}
