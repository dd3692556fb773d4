//! Planted panics of a simulated world: that each of them fails its run is what proves that none is
//! swallowed.

use std::time::Duration;
use tokio::time::Instant;

/// Whose code panics in a buggy run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicPoint {
    /// The core loop of a replica.
    Core,
    /// The machine that a replica applies its log to.
    Apply,
    Agent,
    Scheduler,
    Client,
    /// Whoever watches over all of them.
    Checker,
    /// Whoever changes the members.
    Members,
    /// A call between replicas, which is taken for lost by whoever made it.
    Call,
    /// What is left of a replica that was killed.
    Teardown,
}

/// Panics if this is whose code is to.
#[derive(Clone, Copy)]
pub struct Failpoint {
    point: Option<PanicPoint>,
    started: Instant,
}

impl Failpoint {
    #[must_use]
    pub fn new(point: Option<PanicPoint>, started: Instant) -> Failpoint {
        Failpoint { point, started }
    }

    /// Late enough for everything to be at work.
    const TRIGGER_AFTER: Duration = Duration::from_secs(3);

    pub fn reach(self, point: PanicPoint) {
        let is_due =
            self.point == Some(point) && self.started.elapsed() >= Failpoint::TRIGGER_AFTER;
        assert!(!is_due, "planted in {point:?}");
    }
}
