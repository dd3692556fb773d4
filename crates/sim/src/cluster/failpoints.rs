//! Injected panics of a simulated world. Each of them must fail its run, which proves that no panic
//! is swallowed.

use std::time::Duration;
use tokio::time::Instant;

/// The code that panics in a buggy run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicPoint {
    /// The core loop of a replica.
    Core,
    /// The state machine that a replica applies its log to.
    Apply,
    Agent,
    Scheduler,
    Client,
    /// The checker.
    Checker,
    /// The task that changes the membership.
    Members,
    /// A call between replicas, which its caller takes for lost.
    Call,
    /// The teardown of a replica that was killed.
    Teardown,
}

/// Panics if this is the chosen point.
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

    /// Late enough for every part to be running.
    const TRIGGER_AFTER: Duration = Duration::from_secs(3);

    pub fn reach(self, point: PanicPoint) {
        let is_due =
            self.point == Some(point) && self.started.elapsed() >= Failpoint::TRIGGER_AFTER;
        assert!(!is_due, "planted in {point:?}");
    }
}
