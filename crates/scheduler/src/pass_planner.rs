//! Decides what the scheduler does next, as a function of what it knows: no clock, no messages.
//!
//! It schedules while it holds the lease, one plan at a time, and only when something has changed
//! since the last pass or a wakeup is due. It reads its own writes: after a plan it waits until the
//! copy has reached the entry that decided about it. Rejected: a second plan in flight meanwhile.
//! It would be harmless, for `apply` rejects what no longer fits, but tasks of the first plan would
//! be planned again by the second unless the cluster snapshot kept guesses apart from facts.
//!
//! A new lease begins with an empty plan. Its entry shows how far the log had come, so that the
//! first pass works on a fresh copy, and stamps the log with the present time: in a quiet cell the
//! newest entry may be hours old.
//!
//! Two kinds of time: `at` is milliseconds on this process's own steady clock, [`Time`] is the
//! log's. The wall clock of this machine plays no part.

use crate::pass::Wakeups;
use cellwright_cell::time::{Span, Time};

/// Log time between entries: that of the newest, advanced by the steady clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogClock {
    log_time: Time,
    at: u64,
}

impl LogClock {
    /// The newest entry has log time `log`, observed at `at`.
    pub fn observe(&mut self, log: Time, at: u64) {
        *self = LogClock { log_time: log, at };
    }

    #[must_use]
    pub fn now(&self, at: u64) -> Time {
        self.log_time.plus(Span(at.saturating_sub(self.at)))
    }

    /// When log time will be `time`; `None` for the end of time.
    #[must_use]
    pub fn local_time_of(&self, time: Time) -> Option<u64> {
        let ahead = time.since(self.log_time);
        (time != Time::NEVER).then(|| self.at.saturating_add(ahead.0))
    }
}

/// Backoff that doubles with every failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Span,
    longest: Span,
    next: Span,
    until: Option<u64>,
}

impl Backoff {
    #[must_use]
    pub fn new(first: Span, longest: Span) -> Backoff {
        Backoff { first, longest, next: first, until: None }
    }

    pub fn record_failure(&mut self, at: u64) {
        self.until = Some(at.saturating_add(self.next.0));
        self.next = Span(self.next.0.saturating_mul(2).min(self.longest.0));
    }

    pub fn reset(&mut self) {
        *self = Backoff::new(self.first, self.longest);
    }

    /// When to retry, if that lies ahead.
    #[must_use]
    pub fn paused_until(&self, at: u64) -> Option<u64> {
        self.until.filter(|until| *until > at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    Pass,
    /// Propose an empty plan.
    Stamp,
    /// Nothing before this moment, unless an event arrives.
    Wait(Option<u64>),
}

#[derive(Clone, Debug)]
pub struct PassPlanner {
    /// The end of this scheduler's lease.
    lease_until: Option<u64>,
    /// Since the lease was granted, an entry of this scheduler has come back.
    stamped: bool,
    /// A plan is in flight.
    is_proposing: bool,
    /// The copy must have reached this index before the next pass.
    awaited_index: u64,
    /// Something changed since the last pass.
    has_changes: bool,
    /// Groups were rejected: they are worth another pass, without changes.
    retry: bool,
    wakeups: Wakeups,
    backoff: Backoff,
}

impl PassPlanner {
    #[must_use]
    pub fn new(backoff: Backoff) -> PassPlanner {
        PassPlanner {
            lease_until: None,
            stamped: false,
            is_proposing: false,
            awaited_index: 0,
            has_changes: true,
            retry: false,
            wakeups: Wakeups::default(),
            backoff,
        }
    }

    #[must_use]
    pub fn is_active(&self, at: u64) -> bool {
        self.lease_until.is_some_and(|until| at < until)
    }

    /// The lease is granted for `length`, counted from the time of the request: the master began to
    /// count later, so this scheduler never believes in it longer than the master does.
    pub fn on_lease_granted(&mut self, requested_at: u64, length: Span, at: u64) {
        if !self.is_active(at) {
            self.stamped = false;
            self.has_changes = true;
        }
        self.lease_until = Some(requested_at.saturating_add(length.0));
    }

    pub fn on_lease_denied(&mut self) {
        self.lease_until = None;
    }

    pub fn has_changes(&mut self) {
        self.has_changes = true;
    }

    /// Whether the cluster snapshot may be synced: no plan is open whose result it holds.
    #[must_use]
    pub fn can_sync(&self, index: u64) -> bool {
        !self.is_proposing && index >= self.awaited_index
    }

    /// The copy was replaced: what it held of this scheduler's plans went with it.
    pub fn on_copy_replaced(&mut self) {
        self.awaited_index = 0;
        self.has_changes = true;
    }

    /// A pass was made; the clock alone may make a task placeable at the times in `due`.
    pub fn on_pass_done(&mut self, due: Wakeups) {
        self.has_changes = false;
        self.retry = false;
        self.wakeups = due;
    }

    pub fn is_proposing(&mut self) {
        self.is_proposing = true;
    }

    /// The master decided about all proposals, the last one at `index`.
    pub fn on_proposal_decided(&mut self, index: u64) {
        self.is_proposing = false;
        self.stamped = true;
        self.awaited_index = self.awaited_index.max(index);
    }

    /// The result of a plan. Rejected groups are tried again, at once if some of the plan was
    /// accepted, else after a backoff: a rejection for a reason that this copy does not see must
    /// not become a hot loop.
    pub fn on_plan_result(&mut self, placed: u64, rejected: u64, at: u64) {
        self.retry |= rejected > 0;
        match (placed, rejected) {
            (0, 1..) => self.backoff.record_failure(at),
            _ => self.backoff.reset(),
        }
    }

    /// The outcome of the plan is unknown.
    pub fn on_proposal_failed(&mut self, at: u64) {
        self.is_proposing = false;
        self.retry = true;
        self.backoff.record_failure(at);
    }

    /// The next action, given the index of the copy.
    #[must_use]
    pub fn next_action(&self, index: u64, clock: &LogClock, log: Time, at: u64) -> NextAction {
        if !self.is_active(at) || !self.can_sync(index) {
            return NextAction::Wait(None);
        }
        if let Some(until) = self.backoff.paused_until(at) {
            return NextAction::Wait(Some(until));
        }
        if !self.stamped {
            return NextAction::Stamp;
        }
        if self.has_changes || self.retry {
            return NextAction::Pass;
        }
        let now = clock.now(at);
        match (self.wakeups.next_start, self.wakeups.crash_avoidance_ends) {
            (Some(start), _) if start <= now => NextAction::Pass,
            (_, Some(until)) if until <= log => NextAction::Pass,
            (_, Some(until)) if until <= now => NextAction::Stamp,
            (start, crash_avoidance_ends) => {
                let moments = [start, crash_avoidance_ends].into_iter().flatten();
                NextAction::Wait(moments.filter_map(|time| clock.local_time_of(time)).min())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> (PassPlanner, LogClock) {
        let mut planner = PassPlanner::new(Backoff::new(Span(100), Span(400)));
        planner.on_lease_granted(0, Span(10_000), 0);
        planner.is_proposing();
        planner.on_proposal_decided(5);
        let mut clock = LogClock::default();
        clock.observe(Time(1000), 0);
        (planner, clock)
    }

    fn check(planner: &PassPlanner, clock: &LogClock, at: u64, want: NextAction) {
        assert_eq!(planner.next_action(5, clock, Time(1000), at), want, "at {at}: {planner:?}");
    }

    #[test]
    fn without_a_lease_nothing_is_done_and_a_new_one_begins_with_a_stamp() {
        let (mut planner, clock) = ready();
        check(&planner, &clock, 0, NextAction::Pass);
        check(&planner, &clock, 9_999, NextAction::Pass);
        check(&planner, &clock, 10_000, NextAction::Wait(None));
        planner.on_lease_granted(9_000, Span(10_000), 10_000);
        check(&planner, &clock, 10_001, NextAction::Stamp);
        planner.on_lease_denied();
        check(&planner, &clock, 10_001, NextAction::Wait(None));
        let (mut planner, clock) = ready();
        planner.on_lease_granted(5_000, Span(10_000), 5_100);
        check(&planner, &clock, 14_999, NextAction::Pass);
        check(&planner, &clock, 15_000, NextAction::Wait(None));
    }

    #[test]
    fn one_plan_at_a_time_and_own_writes_are_read() {
        let (mut planner, clock) = ready();
        planner.is_proposing();
        check(&planner, &clock, 1, NextAction::Wait(None));
        planner.on_proposal_decided(6);
        check(&planner, &clock, 1, NextAction::Wait(None));
        assert_eq!(planner.next_action(6, &clock, Time(1000), 1), NextAction::Pass);
        planner.on_copy_replaced();
        check(&planner, &clock, 1, NextAction::Pass);
    }

    #[test]
    fn a_fruitless_pass_is_repeated_only_for_a_reason() {
        let (mut planner, clock) = ready();
        planner.on_pass_done(Wakeups::default());
        check(&planner, &clock, 1, NextAction::Wait(None));
        planner.on_pass_done(Wakeups {
            next_start: Some(Time(1500)),
            crash_avoidance_ends: Some(Time(1700)),
        });
        check(&planner, &clock, 499, NextAction::Wait(Some(500)));
        check(&planner, &clock, 500, NextAction::Pass);
        planner.on_pass_done(Wakeups { next_start: None, crash_avoidance_ends: Some(Time(1700)) });
        check(&planner, &clock, 699, NextAction::Wait(Some(700)));
        check(&planner, &clock, 700, NextAction::Stamp);
        assert_eq!(planner.next_action(5, &clock, Time(1700), 700), NextAction::Pass);
        planner.on_pass_done(Wakeups { next_start: Some(Time::NEVER), crash_avoidance_ends: None });
        check(&planner, &clock, 900, NextAction::Wait(None));
        planner.has_changes();
        check(&planner, &clock, 900, NextAction::Pass);
    }

    #[test]
    fn refusals_come_back_at_once_or_after_growing_pauses() {
        let (mut planner, clock) = ready();
        planner.on_pass_done(Wakeups::default());
        planner.on_plan_result(3, 1, 10);
        check(&planner, &clock, 10, NextAction::Pass);
        for (at, until) in [(10, 110), (110, 310), (310, 710), (710, 1110)] {
            planner.on_pass_done(Wakeups::default());
            planner.on_plan_result(0, 2, at);
            check(&planner, &clock, at, NextAction::Wait(Some(until)));
            check(&planner, &clock, until, NextAction::Pass);
        }
        planner.on_plan_result(1, 0, 2000);
        planner.on_pass_done(Wakeups::default());
        planner.on_proposal_failed(2000);
        check(&planner, &clock, 2000, NextAction::Wait(Some(2100)));
        check(&planner, &clock, 2100, NextAction::Pass);
    }
}
