//! Admission of a scaling policy.

use super::review::{bad, wrong};
use super::{MIN_RAM, Review};
use crate::field::FieldPath;
use crate::reason::{Allowed, Given};
use crate::resource::MAX_QUANTITY;
use crate::scale::{
    LimitRange, MAX_SCHEDULED, MAX_STABILISE, MAX_UP_PERCENT, ScalePace, ScalePolicy,
};
use crate::spec::{JobKind, JobSpec, MAX_TASKS};
use crate::time::Span;

pub(super) fn policy(spec: &JobSpec, policy: &ScalePolicy, review: &mut Review) {
    let keeps_size = spec.gang || spec.kind != JobKind::Tasks;
    if keeps_size && review.are_known(["gang", "kind"]) {
        let error = wrong("scale", Given::Something, Allowed::NotScaled);
        return review.reject(error);
    }
    count("scale.min", policy.min, review);
    count("scale.max", policy.max, review);
    if review.are_known(["scale.min", "scale.max"]) {
        review.ensure(policy.min <= policy.max, || {
            bad("scale.max", policy.max, Allowed::range(policy.min, MAX_TASKS))
        });
    }
    // A job never has fewer tasks than those with overrides of their own.
    let least = spec.overrides.last_key_value().map_or(0, |(index, _)| index.saturating_add(1));
    if review.are_known(["scale.min", "overrides"]) {
        review.ensure(policy.min >= least, || {
            bad("scale.min", policy.min, Allowed::CountWithOverrides { least })
        });
    }
    target("scale.target.cpu", policy.target.cpu, spec.task.limits.cpu, review);
    target("scale.target.ram", policy.target.ram, spec.task.limits.ram, review);
    review.ensure(policy.schedule.len() <= MAX_SCHEDULED, || {
        let entries = Given::entries(policy.schedule.len());
        wrong("scale.schedule", entries, Allowed::AtMost(MAX_SCHEDULED as u64))
    });
    for (position, rule) in policy.schedule.iter().enumerate() {
        let path = FieldPath::from("scale.schedule").index(position);
        count(path.field("min"), rule.min, review);
        review.ensure(rule.lasts.0 > 0, || {
            bad(path.field("lasts"), 0, Allowed::LengthAtLeast(Span(1)))
        });
        review.allowed_span(path.field("lasts"), rule.lasts);
    }
    range("scale.vertical.cpu", policy.vertical.cpu.map(LimitRange::from), 1, review);
    range("scale.vertical.ram", policy.vertical.ram.map(LimitRange::from), MIN_RAM, review);
    pace(&policy.pace, review);
}

fn count(field: impl Into<FieldPath>, value: u32, review: &mut Review) {
    review.ensure((1..=MAX_TASKS).contains(&value), || {
        bad(field, value, Allowed::range(1u64, MAX_TASKS))
    });
}

/// A share of a limit takes a limit.
fn target(field: &str, percent: Option<u32>, limit: u64, review: &mut Review) {
    let Some(percent) = percent else { return };
    review
        .ensure((1..=100).contains(&percent), || bad(field, percent, Allowed::range(1u64, 100u64)));
    if review.are_known(["task.limits"]) {
        review.ensure(limit > 0, || bad(field, percent, Allowed::NoneWithoutLimit));
    }
}

fn range(field: &str, range: Option<LimitRange>, least: u64, review: &mut Review) {
    let Some(LimitRange { min, max }) = range else { return };
    for (end, value) in [("min", min), ("max", max)] {
        review.ensure((least..=MAX_QUANTITY).contains(&value), || {
            bad(format!("{field}.{end}").as_str(), value, Allowed::range(least, MAX_QUANTITY))
        });
    }
    let (low, high) = (format!("{field}.min"), format!("{field}.max"));
    if review.are_known([low.as_str(), high.as_str()]) {
        review.ensure(min <= max, || bad(high.as_str(), max, Allowed::range(min, MAX_QUANTITY)));
    }
}

fn pace(pace: &ScalePace, review: &mut Review) {
    review.at_most("scale.pace.up_percent", pace.up_percent.into(), MAX_UP_PERCENT.into());
    count("scale.pace.up_tasks", pace.up_tasks, review);
    review.ensure((1..=100).contains(&pace.down_percent), || {
        bad("scale.pace.down_percent", pace.down_percent, Allowed::range(1u64, 100u64))
    });
    review.ensure(pace.stabilise <= MAX_STABILISE, || {
        let allowed = Allowed::LengthAtMost(MAX_STABILISE);
        wrong("scale.pace.stabilise", Given::Length(pace.stabilise), allowed)
    });
    review.allowed_span("scale.pace.cool_down", pace.cool_down);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::check_job;
    use crate::apply::fixture::{all, job};
    use crate::cron::schedule::Schedule;
    use crate::scale::{CpuRange, RamRange, ScheduledMinimum};
    use crate::spec::TaskOverride;

    fn check(change: impl FnOnce(&mut JobSpec, &mut ScalePolicy), field: &str, allowed: &str) {
        let mut spec = job("jfoo", 2, 100);
        let mut policy = ScalePolicy::between(2, 5);
        policy.target.cpu = Some(60);
        change(&mut spec, &mut policy);
        spec.scale = Some(policy);
        let found = check_job(&spec).map_err(|rejection| rejection.to_string());
        match (found, field) {
            (found, "") => assert_eq!(found, Ok(())),
            (Ok(()), field) => panic!("{field} is admitted"),
            (Err(text), field) => {
                assert!(text.starts_with(&format!("field {field}: value ")), "{text}: {field}");
                assert!(text.contains(allowed), "{text}: {allowed}");
            }
        }
    }

    #[test]
    fn every_field_of_a_policy_has_a_range() {
        check(|_, _| (), "", "");
        check(|_, p| p.min = 0, "scale.min", "1 to 200000");
        check(|_, p| p.max = 1, "scale.max", "2 to 200000");
        check(|_, p| p.target.cpu = Some(101), "scale.target.cpu", "1 to 100");
        check(|s, _| s.task.limits.cpu = 0, "scale.target.cpu", "no limit of it");
        check(|_, p| p.pace.up_tasks = 0, "scale.pace.up_tasks", "1 to");
        check(|_, p| p.pace.down_percent = 0, "scale.pace.down_percent", "1 to 100");
        check(|_, p| p.pace.stabilise = Span(u64::MAX), "scale.pace.stabilise", "at most");
        check(|_, p| p.pace.cool_down = Span(u64::MAX), "scale.pace.cool_down", "at most");
        let cpu = |min, max| Some(CpuRange { min, max });
        check(|_, p| p.vertical.cpu = cpu(1, 9), "", "");
        check(|_, p| p.vertical.cpu = cpu(0, 9), "scale.vertical.cpu.min", "1 to");
        check(|_, p| p.vertical.cpu = cpu(5, 4), "scale.vertical.cpu.max", "5 to");
        let ram = Some(RamRange { min: 1, max: MIN_RAM });
        check(|_, p| p.vertical.ram = ram, "scale.vertical.ram.min", "2097152 to");
        let rule = |lasts, min| {
            let from = Schedule::new("0 8 * * *").unwrap();
            vec![ScheduledMinimum { from, lasts, min }]
        };
        check(|_, p| p.schedule = rule(Span(1), 3), "", "");
        check(|_, p| p.schedule = rule(Span(0), 3), "scale.schedule[0].lasts", "1 ms or more");
        check(|_, p| p.schedule = rule(Span(1), 0), "scale.schedule[0].min", "1 to");
    }

    #[test]
    fn what_keeps_its_size_has_no_policy() {
        check(|s, _| s.gang = true, "scale", "gangs, alloc sets and daemons");
        let own = || TaskOverride { limits: Some(all(5).into()), ..TaskOverride::default() };
        check(|s, _| drop(s.overrides.insert(1, own())), "", "");
        check(
            |s, p| {
                (s.count, p.min) = (3, 2);
                s.overrides.insert(2, own());
            },
            "scale.min",
            "task 2 has overrides of its own",
        );
    }
}
