//! Limits that change while a task runs: which are in force next. A pure step, taken every second
//! until what is in force is what the orders say.
//!
//! The rules:
//! * a limit is raised at once, unless the task takes over the room of others that still live here;
//! * CPU and disk rate are cut at once: less of them slows a task down;
//! * memory and disk are never cut below what is used, or the kernel, and this agent, would kill
//!   for it: the limit is held a margin above the use, and follows it down;
//! * steps that are too small are left out, so that the masters are not told of each page.
//!
//! What is in force is reported with the number of the change, and only that frees the rest of what
//! the task has counted for. Rejected: cutting memory at once where page cache fills it. The kernel
//! drops clean pages of a file when the limit falls, so the use that counts here is without those
//! that are not in use.

use cellwright_cell::id::Attempt;
use cellwright_cell::observed::LimitsInForce;
use cellwright_cell::resource::{Dimension, Resources};

/// What a limit keeps above the use while it is being cut: a part of the use, and no less than this
/// many bytes.
const MARGIN_DIVISOR: u64 = 16;
const MIN_MARGIN: u64 = 1 << 20;
/// Limits that follow the use are whole numbers of this many bytes: kernels round them to pages.
const GRAIN: u64 = 64 << 10;
/// The least step, as a part of what is left to cut.
const STEP_DIVISOR: u64 = 4;

/// An attempt whose limits in force are not, or not known to be, those of its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingResize {
    pub attempt: Attempt,
    pub is_alloc: bool,
    /// Number of the change, and the limits that it is to have.
    pub wanted: LimitsInForce,
    pub known: LimitsInForce,
    /// Nobody whose room it takes over lives here any more.
    pub may_grow: bool,
    /// Its memory is not limited by its own limit, so there is nothing to be careful about.
    pub slack_ram: bool,
}

impl PendingResize {
    /// The limits to put in force where `in_force` are, for a task that uses `used` of memory and
    /// disk.
    #[must_use]
    pub fn next_limits(&self, in_force: Resources, used: Resources) -> Resources {
        let mut next = in_force;
        for dimension in Dimension::ALL {
            let (now, wanted) = (in_force.get(dimension), self.wanted.limits.get(dimension));
            let is_free = dimension == Dimension::Ram && self.slack_ram;
            let to = if is_free || dimension.is_compressible() {
                if wanted > now && !self.may_grow { now } else { wanted }
            } else {
                self.next_space(dimension, (now, wanted), used.get(dimension))
            };
            next.set(dimension, to);
        }
        next
    }

    fn next_space(&self, dimension: Dimension, (now, wanted): (u64, u64), used: u64) -> u64 {
        // A disk limit of 0 is none.
        let none = |limit: u64| dimension == Dimension::Disk && limit == 0;
        let grows = none(wanted) || (wanted >= now && !none(now));
        if grows {
            return if self.may_grow || wanted == now { wanted } else { now };
        }
        let margin = (used / MARGIN_DIVISOR).max(MIN_MARGIN);
        let above_use = used.saturating_add(margin);
        let held = wanted.max(above_use.checked_next_multiple_of(GRAIN).unwrap_or(above_use));
        if none(now) {
            return held;
        }
        let step = now.saturating_sub(held);
        let is_worth_it = held == wanted || step > now.saturating_sub(wanted) / STEP_DIVISOR;
        if is_worth_it { held.min(now) } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::TaskId;

    const MIB: u64 = 1 << 20;

    fn resize(wanted: Resources) -> PendingResize {
        let status = |limits| LimitsInForce { resizes: 1, limits };
        PendingResize {
            attempt: Attempt::new(TaskId(1), 1),
            is_alloc: false,
            wanted: status(wanted),
            known: status(Resources::ZERO),
            may_grow: true,
            slack_ram: false,
        }
    }

    fn of(cpu: u64, ram: u64, disk: u64) -> Resources {
        Resources::new(cpu, ram * MIB, disk * MIB, 0)
    }

    /// What is in force next, of CPU, memory and disk in MiB, after `now`.
    fn check(pending: PendingResize, now: Resources, used: Resources, want: Resources) {
        assert_eq!(pending.next_limits(now, used), want, "{pending:?}");
        // Repeated, it is no news.
        assert_eq!(pending.next_limits(want, used), want, "{pending:?}");
    }

    #[test]
    fn growth_is_at_once_or_when_those_are_gone_whose_room_it_is() {
        let (now, more) = (of(1000, 100, 100), of(2000, 200, 300));
        check(resize(more), now, of(0, 90, 90), more);
        let waits = PendingResize { may_grow: false, ..resize(more) };
        check(waits, now, of(0, 90, 90), now);
        let mixed = PendingResize { may_grow: false, ..resize(of(500, 200, 300)) };
        check(mixed, now, of(0, 90, 90), of(500, 100, 100));
    }

    #[test]
    fn space_is_cut_as_use_falls_and_never_below_it() {
        let less = resize(of(500, 40, 0));
        let now = of(1000, 1000, 0);
        check(less, now, of(900, 10, 0), of(500, 40, 0));
        check(less, now, of(900, 160, 0), of(500, 170, 0));
        check(less, of(500, 170, 0), of(0, 155, 0), of(500, 170, 0));
        check(less, of(500, 170, 0), of(0, 80, 0), of(500, 85, 0));
        check(less, of(500, 85, 0), of(0, 30, 0), of(500, 40, 0));
        // It uses more than it has: that is no reason to give it more.
        check(less, of(500, 100, 0), of(0, 400, 0), of(500, 100, 0));
        let slack = PendingResize { slack_ram: true, ..less };
        check(slack, now, of(0, 900, 0), of(500, 40, 0));
    }

    #[test]
    fn a_first_limit_of_disk_is_a_cut_and_its_end_is_none() {
        let limited = resize(of(0, 10, 50));
        check(limited, of(0, 10, 0), of(0, 0, 160), of(0, 10, 170));
        check(limited, of(0, 10, 0), of(0, 0, 10), of(0, 10, 50));
        check(resize(of(0, 10, 0)), of(0, 10, 50), of(0, 0, 40), of(0, 10, 0));
    }
}
