//! Admission of a scaling policy.

use super::review::{bad, wrong};
use super::task::{files_path, probe_path, probe_port};
use super::{MIN_RAM, Review};
use crate::field::FieldPath;
use crate::reason::{Allowed, Given, Listed, Quality};
use crate::resource::MAX_QUANTITY;
use crate::scale::metric::{
    MAX_METRIC_LABEL, MAX_METRIC_LABELS, MAX_METRICS, is_label_name, is_metric_name,
};
use crate::scale::{
    LimitRange, MAX_SCHEDULED, MAX_STABILISE, MAX_UP_PERCENT, MetricSource, MetricTarget,
    ScalePace, ScalePolicy,
};
use crate::spec::{JobKind, JobSpec, MAX_TASKS};
use crate::time::Span;
use std::collections::BTreeSet;

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
    metrics(spec, policy, review);
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

/// The numbers that tasks tell, and where they do.
fn metrics(spec: &JobSpec, policy: &ScalePolicy, review: &mut Review) {
    let targets = &policy.target.metrics;
    review.ensure(targets.len() <= MAX_METRICS, || {
        let entries = Given::entries(targets.len());
        wrong("scale.target.metrics", entries, Allowed::AtMost(MAX_METRICS as u64))
    });
    let mut seen = BTreeSet::new();
    for (position, target) in targets.iter().enumerate() {
        let path = FieldPath::from("scale.target.metrics").index(position);
        metric(&path, target, review);
        review.ensure(seen.insert(target.series()), || {
            bad(path.field("name"), &target.name, Allowed::EachOnce(Listed::Metric))
        });
    }
    if !targets.is_empty() && review.are_known(["scale.metrics"]) {
        review.ensure(policy.metrics.is_some(), || {
            wrong("scale.metrics", Given::Nothing, Allowed::MetricSource)
        });
    }
    match &policy.metrics {
        None => {}
        Some(MetricSource::File(path)) => files_path("scale.metrics.file", path, review),
        Some(MetricSource::Http { port, path }) => {
            probe_path("scale.metrics.http.path", path, review);
            probe_port("scale.metrics.http.port", *port, &spec.task, review);
        }
    }
}

fn metric(path: &FieldPath, target: &MetricTarget, review: &mut Review) {
    review.ensure(is_metric_name(target.name.as_str()), || {
        bad(path.field("name"), &target.name, Allowed::MetricName)
    });
    review.ensure((1..=MAX_QUANTITY).contains(&target.per_task), || {
        bad(path.field("per_task"), target.per_task, Allowed::range(1u64, MAX_QUANTITY))
    });
    let labels = &target.labels;
    review.ensure(labels.len() <= MAX_METRIC_LABELS, || {
        let entries = Given::entries(labels.len());
        wrong(path.field("labels"), entries, Allowed::AtMost(MAX_METRIC_LABELS as u64))
    });
    for (name, value) in labels {
        let at = path.field("labels").field(name.as_str());
        review.ensure(is_label_name(name.as_str()), || {
            bad(at.clone(), name, Allowed::MetricName).with_quality(Quality::Name)
        });
        review.ensure(value.len() <= MAX_METRIC_LABEL, || {
            bad(at, value.len(), Allowed::AtMost(MAX_METRIC_LABEL as u64))
                .with_quality(Quality::Bytes)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::check_job;
    use crate::apply::fixture::{all, job};
    use crate::cron::schedule::Schedule;
    use crate::name::Token;
    use crate::scale::{CpuRange, MetricKind, RamRange, ScheduledMinimum};
    use crate::spec::TaskOverride;
    use std::collections::BTreeMap;

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

    fn queue() -> MetricTarget {
        MetricTarget {
            name: Token::new("queue").unwrap(),
            per_task: 5000,
            kind: MetricKind::Value,
            labels: BTreeMap::new(),
        }
    }

    fn with(change: impl FnOnce(&mut MetricTarget)) -> impl FnOnce(&mut JobSpec, &mut ScalePolicy) {
        |_, p| {
            p.metrics = Some(MetricSource::File("metrics.prom".into()));
            p.target.metrics = vec![queue()];
            change(&mut p.target.metrics[0]);
        }
    }

    #[test]
    fn numbers_of_tasks_have_names_amounts_and_a_place() {
        let file = |path: &str| Some(MetricSource::File(path.into()));
        check(with(|_| ()), "", "");
        let of = "scale.target.metrics[0]";
        check(with(|t| t.name = Token::new("a-b").unwrap()), &format!("{of}.name"), "letters");
        check(with(|t| t.per_task = 0), &format!("{of}.per_task"), "1 to");
        let label = |name: &str, bytes| (Token::new(name).unwrap(), "x".repeat(bytes));
        check(with(|t| t.labels = [label("a", 128)].into()), "", "");
        let labels = format!("{of}.labels");
        let found = |label: &str, quality: &str| format!("{labels}.{label} ({quality})");
        check(with(|t| t.labels = [label("a", 129)].into()), &found("a", "bytes"), "at most 128");
        check(with(|t| t.labels = [label("a:b", 1)].into()), &found("a:b", "name"), "letters");
        let nine = (0..9).map(|n| label(&format!("l{n}"), 1)).collect();
        check(with(|t| t.labels = nine), &labels, "at most 8");
        check(
            |_, p| (p.metrics, p.target.metrics) = (file("m"), vec![queue(); 9]),
            "scale.target.metrics",
            "at most 8",
        );
        check(
            |_, p| (p.metrics, p.target.metrics) = (file("m"), vec![queue(); 2]),
            "scale.target.metrics[1].name",
            "each series once",
        );
        check(|_, p| p.target.metrics = vec![queue()], "scale.metrics", "where tasks tell");
        check(|_, p| p.metrics = file("../m"), "scale.metrics.file", "relative");
        let http = |port, path: &str| Some(MetricSource::Http { port, path: path.into() });
        check(|_, p| p.metrics = http(0, "/metrics"), "scale.metrics.http.port", "no port");
        check(|_, p| p.metrics = http(0, "metrics"), "scale.metrics.http.path", "from / on");
        check(
            |s, p| {
                s.task.ports = 1;
                (p.metrics, p.target.metrics) = (http(0, "/metrics"), vec![queue()]);
            },
            "",
            "",
        );
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
