//! One decision: the size that the rules want, and what keeps it from being taken.
//!
//! In this order: bounds and schedule; what was measured and what is expected; growth at once and
//! shrinking late; limits by peaks; then what bounds any change: the length of a step, the quota,
//! tasks that fail, an open update, and a mode in which the cell only says what it would do. The
//! later one has the last word, and every one that changed the size is in the decision.

use crate::forecast::{self, AHEAD, LOOK_AHEAD};
use crate::ladder::Ladder;
use crate::{MINUTE, peaks};
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::{
    Decision, MAX_NEED, ScaleMemory, ScaleMode, ScalePolicy, ScaleRule, ScaleSize, ScaleVeto,
    SignalName, Untold,
};
use cellwright_cell::time::{Span, Time};

/// A job grows when its need is above what it is made for by so much, in thousandths.
const TOLERANCE: u64 = 100;
/// What was measured so long ago says nothing of the present.
const STALE: Span = Span(3 * MINUTE);

/// What was measured last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    pub at: Time,
    /// The measure that asked for the most.
    pub by: SignalName,
    /// Thousandths of tasks, for what the measured tasks did.
    pub need: u32,
    /// Tasks that should run and were not measured.
    pub missing: u32,
}

/// Everything that a decision is made from.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    pub now: Time,
    pub policy: &'a ScalePolicy,
    pub mode: ScaleMode,
    pub size: ScaleSize,
    /// Fewest tasks for reasons of the job itself.
    pub fewest: u32,
    /// Tasks that fail one time after another.
    pub failing: u32,
    pub update_open: bool,
    /// What was measured now is in it already.
    pub memory: &'a ScaleMemory,
    pub measured: Option<Measured>,
    /// A number that not all running tasks told when it was measured last.
    pub untold: Option<&'a Untold>,
    /// What the quota has left beyond the present size. `None`: nothing bounds it.
    pub room: Option<Resources>,
}

/// A decision in the making.
struct Draft<'a> {
    situation: &'a Situation<'a>,
    ladder: Ladder,
    least: u32,
    to: ScaleSize,
    want: ScaleSize,
    rule: ScaleRule,
    expected: u32,
    vetoes: Vec<ScaleVeto>,
}

/// What to do now. A function of its argument.
#[must_use]
pub fn decide(situation: &Situation<'_>) -> Decision {
    let Situation { now, policy, size, .. } = *situation;
    let measured = situation.measured.as_ref().filter(|measured| measured.at.plus(STALE) >= now);
    let mut draft = Draft {
        situation,
        ladder: Ladder::of(policy, size),
        least: policy.least_at(now).max(situation.fewest),
        to: size,
        want: size,
        rule: ScaleRule::Steady,
        expected: measured.map_or(0, |measured| measured.need),
        vetoes: Vec::new(),
    };
    if !draft.keep_bounds() {
        match measured {
            Some(measured) => draft.follow_load(measured),
            None => draft.without_load(),
        }
    }
    draft.limits_by_peaks();
    draft.bound_step();
    draft.keep_quota();
    draft.unless_blocked();
    Decision {
        at: now,
        from: size,
        want: draft.want,
        to: draft.to,
        rule: draft.rule,
        vetoes: draft.vetoes,
        measured: measured.map(|measured| measured.need),
        expected: draft.expected,
    }
}

impl Draft<'_> {
    fn policy(&self) -> &ScalePolicy {
        self.situation.policy
    }

    fn from(&self) -> ScaleSize {
        self.situation.size
    }

    fn veto(&mut self, veto: ScaleVeto) {
        if !self.vetoes.contains(&veto) {
            self.vetoes.push(veto);
        }
    }

    fn size_for(&self, need: u32) -> ScaleSize {
        self.ladder.size_for(need, self.least, self.policy().max)
    }

    /// Grows at once for what is measured or expected, and shrinks late.
    fn follow_load(&mut self, measured: &Measured) {
        let (rule, expected) = self.expectation(measured);
        self.expected = expected;
        let capacity = self.ladder.capacity(self.from());
        let wanted = self.size_for(expected);
        if u64::from(expected) * 1000 > capacity * (1000 + TOLERANCE) {
            (self.rule, self.want, self.to) = (rule, wanted, wanted);
            if expected.div_ceil(1000) > self.policy().max {
                self.veto(ScaleVeto::Max);
            }
            // At its largest, or no smaller rung: nothing to do.
            if self.ladder.capacity(wanted) <= capacity {
                self.to = self.from();
            }
            return;
        }
        self.shrink(measured, expected);
    }

    /// The larger of what is measured and what is expected, and the rule that says so.
    fn expectation(&self, measured: &Measured) -> (ScaleRule, u32) {
        let now = (ScaleRule::Target(measured.by.clone()), measured.need);
        if !self.policy().pace.forecast {
            return now;
        }
        let (memory, at) = (self.situation.memory, self.situation.now);
        let trend = forecast::trend(memory, at).map(|need| (ScaleRule::Trend, need));
        let swing = forecast::swing(memory).map(|need| (ScaleRule::Swing, need));
        let earlier = forecast::same_time_earlier(memory, at, AHEAD);
        let earlier = earlier.map(|need| (ScaleRule::SameTimeEarlier, need));
        let all = [trend, swing, earlier].into_iter().flatten();
        // Of equal ones the measured.
        let larger = |most: (ScaleRule, u32), one: (ScaleRule, u32)| {
            if one.1 > most.1 { one } else { most }
        };
        let (rule, need) = all.fold(now, larger);
        (rule, need.min(MAX_NEED))
    }

    /// What was told by a part of the tasks may ask for more, and never for less: the rest is not
    /// known, and not nothing.
    fn freeze(&mut self) -> bool {
        let Some(untold) = self.situation.untold else { return false };
        self.rule = ScaleRule::Target(SignalName::Metric(untold.metric.clone()));
        self.veto(ScaleVeto::NotTold { tasks: untold.tasks, of: untold.of });
        true
    }

    /// A smaller size, as far as neither the last minutes nor the next hour speak against it.
    fn shrink(&mut self, measured: &Measured, expected: u32) {
        if self.freeze() {
            return;
        }
        let present = self.ladder.capacity(self.from());
        // A task that was not measured counts as fully used.
        let need = expected.saturating_add(measured.missing.saturating_mul(1000)).min(MAX_NEED);
        let wanted = self.size_for(need);
        if self.ladder.capacity(wanted) >= present {
            return;
        }
        (self.rule, self.want) = (ScaleRule::Target(measured.by.clone()), wanted);
        let memory = self.situation.memory;
        let now = self.situation.now;
        let pace = self.policy().pace;
        if memory.grown_at > Time::ZERO && now < memory.grown_at.plus(pace.cool_down) {
            return self.veto(ScaleVeto::CoolDown);
        }
        let recent =
            memory.most_within(now, pace.stabilise).filter(|_| pace.stabilise > Span::ZERO);
        let stable = self.size_for(need.max(recent.unwrap_or(0)));
        if self.ladder.capacity(stable) > self.ladder.capacity(wanted) {
            self.veto(ScaleVeto::Stabilise);
        }
        let soon = pace
            .forecast
            .then(|| forecast::same_time_earlier(memory, now, LOOK_AHEAD))
            .flatten()
            .map_or(stable, |need| self.size_for(need));
        let mut to = stable;
        if self.ladder.capacity(soon) > self.ladder.capacity(stable) {
            self.veto(ScaleVeto::GrowsSoon);
            to = soon;
        }
        self.to = if self.ladder.capacity(to) < present { to } else { self.from() };
    }

    /// Nothing was measured. Where nothing is to be, the size is the least; otherwise it stays.
    fn without_load(&mut self) {
        if !self.policy().target.is_empty() {
            if !self.freeze() {
                self.veto(ScaleVeto::NotMeasured);
            }
            return;
        }
        if self.from().count > self.least {
            self.rule = ScaleRule::Schedule;
            self.want.count = self.least;
            self.to = self.want;
        }
    }

    /// Whether the number of tasks was out of the owner's bounds, which are kept before anything
    /// else is looked at.
    fn keep_bounds(&mut self) -> bool {
        let most = self.policy().max.max(self.situation.fewest);
        let (from, least) = (self.from().count, self.least.min(most));
        let count = from.clamp(least, most);
        let scheduled = count > self.policy().min.max(self.situation.fewest) && count > from;
        if count != from {
            self.rule = if scheduled { ScaleRule::Schedule } else { ScaleRule::Bounds };
            self.to.count = count;
            self.want = self.to;
        }
        count != from
    }

    /// Limits that no measure is held to.
    fn limits_by_peaks(&mut self) {
        let Situation { now, memory, .. } = *self.situation;
        let found = peaks::limits(self.policy(), memory, self.to, now);
        let Some((size, rule)) = found else { return };
        let shrinks = size.cpu < self.to.cpu || size.ram < self.to.ram;
        if shrinks && self.to.count != self.from().count {
            return;
        }
        if self.to == self.from() && self.want == self.from() {
            self.rule = rule;
        }
        (self.want.cpu, self.want.ram) = (size.cpu, size.ram);
        (self.to.cpu, self.to.ram) = (size.cpu, size.ram);
    }

    /// At most so many tasks more or less at once. Bounds of the owner are kept at once.
    fn bound_step(&mut self) {
        let (from, pace) = (self.from().count, self.policy().pace);
        if matches!(self.rule, ScaleRule::Bounds | ScaleRule::Schedule) {
            return;
        }
        let share = |percent: u32| {
            u32::try_from(u64::from(from) * u64::from(percent) / 100).unwrap_or(u32::MAX)
        };
        let most = from.saturating_add(share(pace.up_percent).max(pace.up_tasks));
        let least = from.saturating_sub(share(pace.down_percent).max(1));
        let count = self.to.count.clamp(least, most.max(least));
        if count != self.to.count {
            self.to.count = count;
            // Between the fewest and the most, tasks have their largest limits.
            self.veto(ScaleVeto::Step);
            let full = self.ladder.full();
            if count > self.least && count != from {
                (self.to.cpu, self.to.ram) = (full.cpu.max(self.to.cpu), full.ram.max(self.to.ram));
            }
        }
    }

    /// As much of the growth as the quota has room for: limits first, as on the ladder.
    fn keep_quota(&mut self) {
        let Some(room) = self.situation.room else { return };
        let (from, to) = (self.from(), self.to);
        if fits(from, to, room) {
            return;
        }
        let same_limits = ScaleSize { count: to.count, ..from };
        let candidates = [to, same_limits];
        let mut found = candidates.into_iter().filter_map(|size| most_tasks(from, size, room));
        self.to = found.find(|size| size.count >= from.count).unwrap_or(from);
        self.veto(ScaleVeto::Quota);
    }

    fn unless_blocked(&mut self) {
        let (from, to) = (self.from(), self.to);
        let situation = self.situation;
        let grows = to.count > from.count;
        let fails = u64::from(situation.failing) * 2 >= u64::from(from.count.max(1));
        let by_load = !matches!(self.rule, ScaleRule::Bounds | ScaleRule::Schedule);
        if grows && fails && by_load && situation.failing > 0 {
            self.to = from;
            self.veto(ScaleVeto::TasksFail);
        }
        if self.to == from {
            return;
        }
        let blocked = [
            (situation.update_open, ScaleVeto::UpdateOpen),
            (situation.mode == ScaleMode::Advise, ScaleVeto::Advise),
            (situation.mode == ScaleMode::Manual, ScaleVeto::Manual),
        ];
        for (_, veto) in blocked.into_iter().filter(|(holds, _)| *holds) {
            self.veto(veto);
            self.to = from;
        }
    }
}

/// What a size costs more than another, where it does.
fn fits(from: ScaleSize, to: ScaleSize, room: Resources) -> bool {
    let more = |of: fn(ScaleSize) -> u64| {
        let total = |size: ScaleSize| u128::from(size.count) * u128::from(of(size));
        total(to).saturating_sub(total(from))
    };
    let (cpu, ram) = (more(|size: ScaleSize| size.cpu), more(|size: ScaleSize| size.ram));
    cpu <= u128::from(room.cpu) && ram <= u128::from(room.ram)
}

/// As many tasks of the limits of `to` as there is room for, `to` has tasks at most.
fn most_tasks(from: ScaleSize, to: ScaleSize, room: Resources) -> Option<ScaleSize> {
    let of = |has: u64, more: u64, each: u64| {
        let total = u128::from(from.count) * u128::from(has) + u128::from(more);
        total.checked_div(u128::from(each)).unwrap_or(u128::MAX)
    };
    let count = of(from.cpu, room.cpu, to.cpu).min(of(from.ram, room.ram, to.ram));
    let count = u32::try_from(count).unwrap_or(u32::MAX).min(to.count);
    let size = ScaleSize { count, ..to };
    (count > 0 && fits(from, size, room)).then_some(size)
}

#[cfg(test)]
mod tests;
