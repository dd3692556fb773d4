//! Decisions, one situation each, and what holds of all of them.

use super::*;
use cellwright_cell::cron::schedule::Schedule;
use cellwright_cell::scale::{CpuRange, RamRange, ScheduledMinimum};
use proptest::prelude::*;

const NOW: Time = Time(100 * 24 * 60 * MINUTE);

/// A job of `count` tasks of a core each, measured by its use of it.
struct Case {
    policy: ScalePolicy,
    memory: ScaleMemory,
    situation: Situation<'static>,
}

fn case(count: u32, need: u32) -> Case {
    let mut policy = ScalePolicy::between(2, 20);
    policy.target.cpu = Some(60);
    let mut memory = ScaleMemory::default();
    memory.remember_need(NOW, need);
    let size = ScaleSize { count, cpu: 1000, ram: 1 << 30 };
    let measured = Measured { at: NOW, by: SignalName::Cpu, need, missing: 0 };
    // The references are set when it is decided.
    let situation = Situation {
        now: NOW,
        policy: Box::leak(Box::new(policy.clone())),
        mode: ScaleMode::Auto,
        size,
        fewest: 1,
        failing: 0,
        update_open: false,
        memory: Box::leak(Box::<ScaleMemory>::default()),
        measured: Some(measured),
        untold: None,
        room: None,
    };
    Case { policy, memory, situation }
}

impl Case {
    fn decide(&self) -> Decision {
        let situation =
            Situation { policy: &self.policy, memory: &self.memory, ..self.situation.clone() };
        decide(&situation)
    }

    /// Checks the number of tasks wanted and taken, the rule and the vetoes.
    #[track_caller]
    fn check(&self, want: u32, to: u32, rule: ScaleRule, vetoes: &[ScaleVeto]) {
        let found = self.decide();
        let counts = (found.want.count, found.to.count, found.rule.clone(), &found.vetoes[..]);
        assert_eq!(counts, (want, to, rule, vetoes), "{found:?}");
    }
}

const BY_CPU: ScaleRule = ScaleRule::Target(SignalName::Cpu);

#[test]
fn a_job_grows_at_once_and_not_for_a_little() {
    case(5, 5000).check(5, 5, ScaleRule::Steady, &[]);
    case(5, 5500).check(5, 5, ScaleRule::Steady, &[]);
    case(5, 5501).check(6, 6, BY_CPU, &[]);
    case(5, 9_999).check(10, 10, BY_CPU, &[]);
}

#[test]
fn one_step_is_bounded_and_so_is_the_whole() {
    case(5, 19_000).check(19, 10, BY_CPU, &[ScaleVeto::Step]);
    case(2, 19_000).check(19, 6, BY_CPU, &[ScaleVeto::Step]);
    case(12, 90_000).check(20, 20, BY_CPU, &[ScaleVeto::Max]);
    case(20, 90_000).check(20, 20, BY_CPU, &[ScaleVeto::Max]);
    case(20, 2000).check(2, 10, BY_CPU, &[ScaleVeto::Step]);
    let mut slow = case(4, 100);
    slow.policy.pace.down_percent = 1;
    slow.check(2, 3, BY_CPU, &[ScaleVeto::Step]);
}

#[test]
fn a_job_shrinks_to_the_most_of_the_last_minutes() {
    let mut case = case(8, 3000);
    let earlier = |case: &mut Case, minutes: u64, need| {
        let mut memory = ScaleMemory::default();
        memory.remember_need(Time(NOW.0 - minutes * MINUTE), need);
        memory.remember_need(NOW, 3000);
        case.memory = memory;
    };
    earlier(&mut case, 5, 6000);
    case.check(3, 6, BY_CPU, &[ScaleVeto::Stabilise]);
    earlier(&mut case, 5, 9000);
    case.check(3, 8, BY_CPU, &[ScaleVeto::Stabilise]);
    earlier(&mut case, 21, 9000);
    case.check(3, 4, BY_CPU, &[ScaleVeto::Step]);
    case.memory.grown_at = Time(NOW.0 - 1);
    case.check(3, 8, BY_CPU, &[ScaleVeto::CoolDown]);
    case.policy.pace.cool_down = Span::ZERO;
    case.check(3, 4, BY_CPU, &[ScaleVeto::Step]);
}

#[test]
fn what_is_not_measured_does_not_shrink() {
    let mut case = case(6, 2000);
    case.situation.measured = case.situation.measured.take().map(|m| Measured { missing: 2, ..m });
    case.check(4, 4, BY_CPU, &[]);
    case.situation.measured = case.situation.measured.take().map(|m| Measured { missing: 9, ..m });
    case.check(6, 6, ScaleRule::Steady, &[]);
    let old = Time(NOW.0 - STALE.0 - 1);
    case.situation.measured = case.situation.measured.take().map(|m| Measured { at: old, ..m });
    case.check(6, 6, ScaleRule::Steady, &[ScaleVeto::NotMeasured]);
    case.situation.measured = None;
    case.check(6, 6, ScaleRule::Steady, &[ScaleVeto::NotMeasured]);
}

#[test]
fn a_number_that_is_not_told_is_not_zero() {
    let queue = cellwright_cell::name::Token::new("queue").unwrap();
    let untold: &'static Untold =
        Box::leak(Box::new(Untold { metric: queue.clone(), tasks: 1, of: 6 }));
    let rule = ScaleRule::Target(SignalName::Metric(queue));
    let veto = [ScaleVeto::NotTold { tasks: 1, of: 6 }];
    let mut few = case(6, 2000);
    few.situation.untold = Some(untold);
    few.check(6, 6, rule.clone(), &veto);
    // What is known already asks for more.
    let mut more = case(6, 9000);
    more.situation.untold = Some(untold);
    more.check(9, 9, BY_CPU, &[]);
    few.situation.measured = None;
    few.check(6, 6, rule, &veto);
    let mut too_few = case(1, 100);
    too_few.situation.untold = Some(untold);
    too_few.check(2, 2, ScaleRule::Bounds, &[]);
}

#[test]
fn bounds_are_kept_at_once_whatever_is_measured() {
    case(1, 100).check(2, 2, ScaleRule::Bounds, &[]);
    case(90, 90_000).check(20, 20, ScaleRule::Bounds, &[]);
    let mut none = case(90, 0);
    none.situation.measured = None;
    none.check(20, 20, ScaleRule::Bounds, &[]);
    let mut overrides = case(9, 100);
    overrides.situation.fewest = 7;
    overrides.check(7, 7, BY_CPU, &[]);
}

#[test]
fn a_schedule_bounds_from_below_and_alone_it_decides() {
    let hour = |at: &str, min| ScheduledMinimum {
        from: Schedule::new(at).unwrap(),
        lasts: Span::seconds(3600),
        min,
    };
    let mut case = case(3, 3000);
    // It is midnight.
    case.policy.schedule = vec![hour("0 0 * * *", 12)];
    case.check(12, 12, ScaleRule::Schedule, &[]);
    case.policy.schedule = vec![hour("0 1 * * *", 12)];
    case.check(3, 3, ScaleRule::Steady, &[]);
    case.policy.target.cpu = None;
    case.situation.measured = None;
    case.check(2, 2, ScaleRule::Schedule, &[]);
}

#[test]
fn a_quota_gives_as_much_as_it_has() {
    let gib = 1u64 << 30;
    let mut case = case(5, 9_500);
    case.situation.room = Some(Resources::new(2_500, 100 * gib, 0, 0));
    case.check(10, 7, BY_CPU, &[ScaleVeto::Quota]);
    case.situation.room = Some(Resources::new(900, 100 * gib, 0, 0));
    case.check(10, 5, BY_CPU, &[ScaleVeto::Quota]);
    case.situation.room = Some(Resources::new(100_000, 100 * gib, 0, 0));
    case.check(10, 10, BY_CPU, &[]);
    // Limits that grow need room for all tasks.
    case.policy.vertical.cpu = Some(CpuRange { min: 500, max: 2000 });
    case.situation.room = Some(Resources::new(5_000, 100 * gib, 0, 0));
    let found = case.decide();
    assert_eq!((found.to.count, found.to.cpu), (5, 2000), "{found:?}");
    // A job beyond its quota may shrink.
    let mut small = super::tests::case(9, 3000);
    small.situation.room = Some(Resources::ZERO);
    small.policy.pace.stabilise = Span::ZERO;
    small.check(3, 5, BY_CPU, &[ScaleVeto::Step]);
}

#[test]
fn more_of_what_fails_is_not_started() {
    let mut case = case(4, 8000);
    case.situation.failing = 1;
    case.check(8, 8, BY_CPU, &[]);
    case.situation.failing = 2;
    case.check(8, 4, BY_CPU, &[ScaleVeto::TasksFail]);
}

#[test]
fn advice_and_hands_and_updates_leave_the_size() {
    let mut case = case(4, 8000);
    case.situation.mode = ScaleMode::Advise;
    case.check(8, 4, BY_CPU, &[ScaleVeto::Advise]);
    case.situation.mode = ScaleMode::Manual;
    case.check(8, 4, BY_CPU, &[ScaleVeto::Manual]);
    (case.situation.mode, case.situation.update_open) = (ScaleMode::Auto, true);
    case.check(8, 4, BY_CPU, &[ScaleVeto::UpdateOpen]);
}

/// Ten days on which the load doubles at noon.
fn noons(case: &mut Case, until: u64) {
    case.memory = ScaleMemory::default();
    for minute in 0..=until {
        let noon = (720..780).contains(&(minute % 1440));
        case.memory.remember_need(Time(minute * MINUTE), if noon { 8000 } else { 4000 });
    }
    let now = Time(until * MINUTE);
    case.situation.now = now;
    case.situation.measured = case.situation.measured.take().map(|m| Measured { at: now, ..m });
}

#[test]
fn earlier_days_start_tasks_early_and_keep_those_that_would_soon_be_needed() {
    let mut case = case(4, 4000);
    noons(&mut case, 10 * 1440 + 714);
    case.check(8, 8, ScaleRule::SameTimeEarlier, &[]);
    case.policy.pace.forecast = false;
    case.check(4, 4, ScaleRule::Steady, &[]);
    // Three quarters of an hour earlier a larger job would stop tasks, and start them again.
    let mut case = super::tests::case(8, 4000);
    noons(&mut case, 10 * 1440 + 675);
    case.check(4, 8, BY_CPU, &[ScaleVeto::GrowsSoon]);
    case.policy.pace.forecast = false;
    case.check(4, 4, BY_CPU, &[]);
}

#[test]
fn limits_of_memory_follow_peaks_beside_the_number_of_tasks() {
    let gib = 1u64 << 30;
    let mut case = case(4, 4000);
    case.policy.vertical.ram = Some(RamRange { min: gib / 2, max: 4 * gib });
    case.memory.remember_peak(NOW, 100, gib / 2, gib);
    let found = case.decide();
    assert_eq!((found.to.count, found.to.ram), (4, gib * 5 / 4));
    assert_eq!(found.rule, ScaleRule::OutOfMemory);
    // Both at once: each has its own measure.
    case.situation.measured = case.situation.measured.take().map(|m| Measured { need: 8000, ..m });
    let found = case.decide();
    assert_eq!((found.to.count, found.to.ram, found.rule), (8, gib * 5 / 4, BY_CPU));
}

proptest! {
    /// However odd the situation: bounds, steps, the quota and modes hold, and it is decided again
    /// in the same way.
    #[test]
    fn no_decision_goes_beyond_what_bounds_it(
        count in 1..30u32, need in 0..60_000u32, missing in 0..5u32, failing in 0..30u32,
        room in proptest::option::of(0..20_000u64), vertical: bool, mode in 0..3u8,
        recent in proptest::collection::vec(0..40_000u32, 0..60), grown in 0..20u64,
        update_open: bool, low in 1..1000u64,
    ) {
        let mut case = case(count, need);
        let first = NOW.0 - recent.len() as u64 * MINUTE;
        case.memory = ScaleMemory::default();
        for (minute, need) in recent.iter().enumerate() {
            case.memory.remember_need(Time(first + minute as u64 * MINUTE), *need);
        }
        case.memory.remember_need(NOW, need);
        case.memory.grown_at = Time(NOW.0 - grown * MINUTE);
        case.policy.vertical.cpu =
            vertical.then_some(CpuRange { min: low, max: 2000 });
        case.situation.failing = failing;
        case.situation.update_open = update_open;
        case.situation.mode =
            [ScaleMode::Auto, ScaleMode::Advise, ScaleMode::Manual][usize::from(mode)];
        case.situation.measured = case.situation.measured.take().map(|m| Measured { missing, ..m });
        case.situation.room = room.map(|cpu| Resources::new(cpu, 1 << 40, 0, 0));
        let found = case.decide();
        prop_assert_eq!(&found, &case.decide());
        let Decision { from, to, want, .. } = &found;
        prop_assert!(to.count >= 1 && (want.count <= 20 || want.count == from.count));
        if to != from {
            prop_assert_eq!(case.situation.mode, ScaleMode::Auto);
            prop_assert!(!update_open);
            prop_assert!(to.count <= from.count.max(20));
        }
        if (2..=20).contains(&count) {
            prop_assert!((2..=20).contains(&to.count));
            prop_assert!(to.count <= count + count.max(4));
            prop_assert!(to.count >= count - (count / 2).max(1));
        }
        if let Some(room) = room {
            let total = |size: &ScaleSize| u64::from(size.count) * size.cpu;
            prop_assert!(total(to) <= total(from) + room, "{:?}", found);
        }
        if vertical {
            prop_assert!(to.cpu == from.cpu || (low..=2000).contains(&to.cpu));
            // The two never go against each other, but where a limit out of bounds is mended.
            let opposed = to.count > from.count && to.cpu < from.cpu;
            prop_assert!(!opposed, "{:?}", found);
        }
        let nothing_stands = found.vetoes.is_empty();
        prop_assert!(!nothing_stands || to == want, "{:?}", found);
    }
}
