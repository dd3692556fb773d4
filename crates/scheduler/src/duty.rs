//! What the scheduler should do next, as a function of what it knows: no clock, no messages.
//!
//! It schedules while it holds the lease, one plan at a time, and only when something has changed
//! since the last pass or a moment it waits for has come. It reads its own writes: after a plan it
//! waits until the copy has reached the entry that decided about it. Rejected: a second plan on its
//! way meanwhile. It would be harmless, for `apply` refuses what no longer fits, but tasks of the
//! first plan would be planned again by the second unless the board kept guesses apart from facts.
//!
//! Gaining the lease begins with an empty plan. Its entry shows how far the log had come, so that
//! the first pass works on a fresh copy, and stamps the log with the present time: in a quiet cell
//! the newest entry may be hours old.
//!
//! Two kinds of time: `at` is milliseconds on this process's own steady clock, [`Time`] is the
//! log's. The wall clock of this machine plays no part.

use crate::pass::Due;
use cellwright_cell::time::{Span, Time};

/// The log's time between entries: that of the newest, moved on by the steady clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogClock {
    log: Time,
    at: u64,
}

impl LogClock {
    /// The log says it is `log` now.
    pub fn heard(&mut self, log: Time, at: u64) {
        *self = LogClock { log, at };
    }

    #[must_use]
    pub fn now(&self, at: u64) -> Time {
        self.log.plus(Span(at.saturating_sub(self.at)))
    }

    /// When the log's time will be `time`; never for the end of time.
    #[must_use]
    pub fn when(&self, time: Time) -> Option<u64> {
        let ahead = time.since(self.log);
        (time != Time::NEVER).then(|| self.at.saturating_add(ahead.0))
    }
}

/// Pauses that double with every failure in a row.
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

    pub fn failed(&mut self, at: u64) {
        self.until = Some(at.saturating_add(self.next.0));
        self.next = Span(self.next.0.saturating_mul(2).min(self.longest.0));
    }

    pub fn worked(&mut self) {
        *self = Backoff::new(self.first, self.longest);
    }

    /// When to try again, if that lies ahead.
    #[must_use]
    pub fn pausing(&self, at: u64) -> Option<u64> {
        self.until.filter(|until| *until > at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Pass,
    /// Propose an empty plan.
    Stamp,
    /// Nothing before this moment, unless something is heard.
    Wait(Option<u64>),
}

#[derive(Clone, Debug)]
pub struct Duty {
    /// The lease is ours until then.
    lease: Option<u64>,
    /// Since the lease is ours: an entry of ours came back.
    stamped: bool,
    /// A plan is on its way.
    proposing: bool,
    /// The copy must have come so far before the next pass.
    awaited: u64,
    /// Something changed since the last pass.
    news: bool,
    /// Groups were refused: they are worth another pass, without news.
    again: bool,
    due: Due,
    pause: Backoff,
}

impl Duty {
    #[must_use]
    pub fn new(pause: Backoff) -> Duty {
        Duty {
            lease: None,
            stamped: false,
            proposing: false,
            awaited: 0,
            news: true,
            again: false,
            due: Due::default(),
            pause,
        }
    }

    #[must_use]
    pub fn active(&self, at: u64) -> bool {
        self.lease.is_some_and(|until| at < until)
    }

    /// The lease is ours for `length`, counted from when it was asked for: the master began to
    /// count later, so we never believe in it longer than the master does.
    pub fn granted(&mut self, asked: u64, length: Span, at: u64) {
        if !self.active(at) {
            self.stamped = false;
            self.news = true;
        }
        self.lease = Some(asked.saturating_add(length.0));
    }

    pub fn denied(&mut self) {
        self.lease = None;
    }

    pub fn news(&mut self) {
        self.news = true;
    }

    /// Whether the board may be brought up to date: no plan is open that it holds the result of.
    #[must_use]
    pub fn settled(&self, index: u64) -> bool {
        !self.proposing && index >= self.awaited
    }

    /// The copy was replaced: what it held of our plans went with it.
    pub fn reloaded(&mut self) {
        self.awaited = 0;
        self.news = true;
    }

    /// A pass was made; time alone gives somebody a chance at `due`.
    pub fn passed(&mut self, due: Due) {
        self.news = false;
        self.again = false;
        self.due = due;
    }

    pub fn proposing(&mut self) {
        self.proposing = true;
    }

    /// The master decided about all that was proposed, last at `index`.
    pub fn answered(&mut self, index: u64) {
        self.proposing = false;
        self.stamped = true;
        self.awaited = self.awaited.max(index);
    }

    /// How a plan fared. Refused groups are tried again, at once if the plan got anywhere, else
    /// after a pause: what the master refuses for a reason this copy does not see must not become
    /// a hot loop.
    pub fn fared(&mut self, placed: u64, refused: u64, at: u64) {
        self.again |= refused > 0;
        match (placed, refused) {
            (0, 1..) => self.pause.failed(at),
            _ => self.pause.worked(),
        }
    }

    /// Nobody knows what became of the plan.
    pub fn failed(&mut self, at: u64) {
        self.proposing = false;
        self.again = true;
        self.pause.failed(at);
    }

    /// What to do, given how far the copy is.
    #[must_use]
    pub fn next(&self, index: u64, clock: &LogClock, log: Time, at: u64) -> Next {
        if !self.active(at) || !self.settled(index) {
            return Next::Wait(None);
        }
        if let Some(until) = self.pause.pausing(at) {
            return Next::Wait(Some(until));
        }
        if !self.stamped {
            return Next::Stamp;
        }
        if self.news || self.again {
            return Next::Pass;
        }
        let now = clock.now(at);
        match (self.due.start, self.due.forgiven) {
            (Some(start), _) if start <= now => Next::Pass,
            (_, Some(until)) if until <= log => Next::Pass,
            (_, Some(until)) if until <= now => Next::Stamp,
            (start, forgiven) => {
                let moments = [start, forgiven].into_iter().flatten();
                Next::Wait(moments.filter_map(|time| clock.when(time)).min())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> (Duty, LogClock) {
        let mut duty = Duty::new(Backoff::new(Span(100), Span(400)));
        duty.granted(0, Span(10_000), 0);
        duty.proposing();
        duty.answered(5);
        let mut clock = LogClock::default();
        clock.heard(Time(1000), 0);
        (duty, clock)
    }

    fn check(duty: &Duty, clock: &LogClock, at: u64, want: Next) {
        assert_eq!(duty.next(5, clock, Time(1000), at), want, "at {at}: {duty:?}");
    }

    #[test]
    fn without_a_lease_nothing_is_done_and_a_new_one_begins_with_a_stamp() {
        let (mut duty, clock) = ready();
        check(&duty, &clock, 0, Next::Pass);
        check(&duty, &clock, 9_999, Next::Pass);
        check(&duty, &clock, 10_000, Next::Wait(None));
        duty.granted(9_000, Span(10_000), 10_000);
        check(&duty, &clock, 10_001, Next::Stamp);
        duty.denied();
        check(&duty, &clock, 10_001, Next::Wait(None));
        let (mut duty, clock) = ready();
        duty.granted(5_000, Span(10_000), 5_100);
        check(&duty, &clock, 14_999, Next::Pass);
        check(&duty, &clock, 15_000, Next::Wait(None));
    }

    #[test]
    fn one_plan_at_a_time_and_own_writes_are_read() {
        let (mut duty, clock) = ready();
        duty.proposing();
        check(&duty, &clock, 1, Next::Wait(None));
        duty.answered(6);
        check(&duty, &clock, 1, Next::Wait(None));
        assert_eq!(duty.next(6, &clock, Time(1000), 1), Next::Pass);
        duty.reloaded();
        check(&duty, &clock, 1, Next::Pass);
    }

    #[test]
    fn a_fruitless_pass_is_repeated_only_for_a_reason() {
        let (mut duty, clock) = ready();
        duty.passed(Due::default());
        check(&duty, &clock, 1, Next::Wait(None));
        duty.passed(Due { start: Some(Time(1500)), forgiven: Some(Time(1700)) });
        check(&duty, &clock, 499, Next::Wait(Some(500)));
        check(&duty, &clock, 500, Next::Pass);
        duty.passed(Due { start: None, forgiven: Some(Time(1700)) });
        check(&duty, &clock, 699, Next::Wait(Some(700)));
        check(&duty, &clock, 700, Next::Stamp);
        assert_eq!(duty.next(5, &clock, Time(1700), 700), Next::Pass);
        duty.passed(Due { start: Some(Time::NEVER), forgiven: None });
        check(&duty, &clock, 900, Next::Wait(None));
        duty.news();
        check(&duty, &clock, 900, Next::Pass);
    }

    #[test]
    fn refusals_come_back_at_once_or_after_growing_pauses() {
        let (mut duty, clock) = ready();
        duty.passed(Due::default());
        duty.fared(3, 1, 10);
        check(&duty, &clock, 10, Next::Pass);
        for (at, until) in [(10, 110), (110, 310), (310, 710), (710, 1110)] {
            duty.passed(Due::default());
            duty.fared(0, 2, at);
            check(&duty, &clock, at, Next::Wait(Some(until)));
            check(&duty, &clock, until, Next::Pass);
        }
        duty.fared(1, 0, 2000);
        duty.passed(Due::default());
        duty.failed(2000);
        check(&duty, &clock, 2000, Next::Wait(Some(2100)));
        check(&duty, &clock, 2100, Next::Pass);
    }
}
