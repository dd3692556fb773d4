//! Compares every number of a job and a cron with its range: the schema, the file checker and the
//! cell's admission have the same range, and a number outside it is rejected with the field, the
//! value and the range. A number of the schema that is missing in this table fails the test.

use cellwright_cell::admit::check_job;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{Diagnostics, Evaluator, Format, Inputs, Limits, LoadOptions, to_source};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const MOST: u64 = 1 << 50;
const U32: u64 = u32::MAX as u64;
const YEAR: u64 = 366 * 86_400_000;

const CORES: &str = "0 to 1125899906842.624, as cores such as 2";
const BYTES: &str = "0B to 1PiB, as a text such as \"512MiB\"";
const TIME: &str = "0ms to 366d, as a text such as \"500ms\"";
const SOME_TIME: &str = "1ms to 366d, as a text such as \"500ms\"";

/// Field of [`job`], minimum, maximum, and the allowed range as text; empty: the two with a "to".
const JOB: [(&str, u64, u64, &str); 74] = [
    ("count", 1, 200_000, ""),
    ("priority", 0, 399, "best_effort, batch, production, monitoring, or a number from 0 to 399"),
    ("task.limits.cpu", 0, MOST, CORES),
    ("task.limits.ram", 0, MOST, BYTES),
    ("task.limits.disk", 0, MOST, BYTES),
    ("task.limits.disk_rate", 0, MOST, "0B/s to 1PiB/s, as a text such as \"10MiB/s\""),
    ("task.ports", 0, 255, ""),
    ("task.static_ports[0]", 1, 65535, ""),
    ("task.named[0].amount", 0, MOST, ""),
    ("task.devices[0].count", 1, 64, ""),
    ("task.devices[0].milli", 1, 1000, ""),
    ("task.packages[0].bytes", 0, MOST, BYTES),
    ("task.notice", 0, YEAR, TIME),
    ("task.health.probe.http.port", 0, 255, ""),
    ("task.health.interval", 100, YEAR, "100ms to 366d, as a text such as"),
    ("task.health.timeout", 1, YEAR, SOME_TIME),
    ("task.health.start_period", 0, YEAR, TIME),
    ("task.health.failures", 1, U32, ""),
    ("task.max_run", 1, YEAR, SOME_TIME),
    ("task.logs.file_bytes", 4096, MOST, "4KiB to 1PiB, as a text such as \"512MiB\""),
    ("task.logs.files", 1, 100, ""),
    ("task.logs.rate", 1, MOST, "1B/s to 1PiB/s, as a text such as \"10MiB/s\""),
    ("task.isolation.whole_cores", 0, U32, ""),
    ("task.isolation.processes", 1, 1 << 22, ""),
    ("overrides.0.limits.cpu", 0, MOST, CORES),
    ("overrides.0.limits.ram", 0, MOST, BYTES),
    ("overrides.0.limits.disk", 0, MOST, BYTES),
    ("overrides.0.limits.disk_rate", 0, MOST, "0B/s to 1PiB/s, as a text such as \"10MiB/s\""),
    ("constraints[0].strength.soft", 1, 100, ""),
    ("spread[0].limit", 1, U32, ""),
    ("max_down", 0, U32, ""),
    ("max_update_disruptions", 0, U32, ""),
    ("preemption_notice_max", 0, YEAR, TIME),
    ("restart.max_failures", 0, U32, ""),
    ("restart.retry.exit.1", 0, U32, ""),
    ("restart.retry.failed", 0, U32, ""),
    ("restart.retry.out_of_memory", 0, U32, ""),
    ("restart.retry.over_disk_limit", 0, U32, ""),
    ("restart.retry.timed_out", 0, U32, ""),
    ("restart.retry.could_not_start", 0, U32, ""),
    ("restart.retry.unhealthy", 0, U32, ""),
    ("restart.retry.out_of_memory_bystander", 0, U32, ""),
    ("restart.retry.lost", 0, U32, ""),
    ("restart.retry.evicted", 0, U32, ""),
    ("restart.backoff", 0, YEAR, TIME),
    ("restart.backoff_max", 0, YEAR, TIME),
    ("at_most_one", 1, YEAR, SOME_TIME),
    ("retain_disk.bytes", 0, MOST, BYTES),
    ("retain_disk.keep", 0, YEAR, TIME),
    ("disruptions.most", 1, 1000, ""),
    ("disruptions.within", 1, YEAR, SOME_TIME),
    ("update.canaries", 0, 200_000, ""),
    ("update.promote_after", 1, YEAR, SOME_TIME),
    ("update.rollback.failures", 1, 1000, ""),
    ("update.rollback.within", 1, YEAR, SOME_TIME),
    ("scale.min", 1, 200_000, ""),
    ("scale.max", 1, 200_000, ""),
    ("scale.target.cpu", 1, 100, ""),
    ("scale.target.ram", 1, 100, ""),
    ("scale.target.metrics[0].per_task", 1, MOST, "0.001 to 1125899906842.624, as a number such"),
    ("scale.metrics.http.port", 0, 255, ""),
    ("scale.schedule[0].lasts", 1, YEAR, SOME_TIME),
    ("scale.schedule[0].min", 1, 200_000, ""),
    ("scale.vertical.cpu.min", 1, MOST, "0.001 to 1125899906842.624, as cores such as 2"),
    ("scale.vertical.cpu.max", 1, MOST, "0.001 to 1125899906842.624, as cores such as 2"),
    ("scale.vertical.ram.min", 2 << 20, MOST, "2MiB to 1PiB, as a text such as \"512MiB\""),
    ("scale.vertical.ram.max", 2 << 20, MOST, "2MiB to 1PiB, as a text such as \"512MiB\""),
    ("scale.pace.up_percent", 0, 10_000, ""),
    ("scale.pace.up_tasks", 1, 200_000, ""),
    ("scale.pace.down_percent", 1, 100, ""),
    ("scale.pace.stabilise", 0, 3_600_000, "0ms to 1h, as a text such as \"500ms\""),
    ("scale.pace.cool_down", 0, YEAR, TIME),
    ("constraints[1].operator.less", 0, 0, "signed"),
    ("constraints[2].operator.equal.integer", 0, 0, "signed"),
];

const CRON: [(&str, u64, u64, &str); 2] =
    [("keep_runs", 1, 100, ""), ("missed.run_all.max", 1, 100, "")];

/// Ends of ranges that other fields of [`job`] do not permit: the total of all tasks would be too
/// large, only production work limits the notice of others, and a share of a limit takes one.
const ELSEWHERE: [(&str, u64); 4] =
    [("count", 200_000), ("priority", 0), ("task.limits.cpu", 0), ("task.limits.ram", 0)];

/// Numbers without a field in [`job`], because a similar one is tested: the other comparisons, the
/// other probe that has a port, the short form of a numeric attribute, and a length of time for
/// gangs, which are not scaled.
const KIN: [&str; 6] = [
    "JobSpec.repair",
    "AttributeValue",
    "Operator.less_or_equal",
    "Operator.greater",
    "Operator.greater_or_equal",
    "Probe.tcp.port",
];

/// A job with every number, each so that its neighbours can take any value.
fn job() -> Value {
    let limits = json!({ "cpu": MOST, "ram": MOST, "disk": MOST, "disk_rate": 5 });
    json!({
        "name": "all", "count": 3, "priority": 200, "max_down": 1, "max_update_disruptions": 5,
        "preemption_notice_max": 5, "at_most_one": 5000, "overrides": { "0": { "limits": limits } },
        "task": {
            "limits": limits, "ports": 255, "static_ports": [80], "command": ["serve"],
            "named": [{ "name": { "name": "licence" }, "amount": 1 }],
            "devices": [{ "kind": "gpu", "count": 1, "milli": 1000 }],
            "packages": [{ "name": "p", "digest": "d".repeat(64), "bytes": 5 }],
            "notice": 5, "max_run": 5,
            "health": { "probe": { "http": { "port": 0, "path": "/" } }, "interval": 500,
                        "timeout": 5, "start_period": 5, "failures": 3 },
            "logs": { "file_bytes": 5000, "files": 5, "rate": 5 },
            "isolation": { "slack_ram": true, "whole_cores": 0, "processes": 5 },
        },
        "constraints": [
            { "attribute": "a", "operator": "exists", "strength": { "soft": 5 } },
            { "attribute": "a", "operator": { "less": 5 } },
            { "attribute": "a", "operator": { "equal": { "integer": 5 } } },
        ],
        "spread": [{ "domain": "machine", "limit": 5 }],
        "restart": {
            "max_failures": 5, "backoff": 0, "backoff_max": YEAR,
            "retry": { "exit": { "1": 5 }, "failed": 5, "out_of_memory": 5, "over_disk_limit": 5,
                       "timed_out": 5, "could_not_start": 5, "unhealthy": 5, "out_of_memory_bystander": 5,
                       "lost": 5, "evicted": 5 },
        },
        "retain_disk": { "bytes": 0, "keep": 5 }, "disruptions": { "most": 5, "within": 5 },
        "update": { "canaries": 1, "promote_after": 5,
                    "rollback": { "failures": 5, "within": 5 } },
        "scale": {
            "min": 1, "max": 200_000, "metrics": { "http": { "port": 0, "path": "/metrics" } },
            "target": { "cpu": 5, "ram": 5, "metrics": [{ "name": "a", "per_task": 5 }] },
            "schedule": [{ "from": "0 8 * * *", "lasts": 5, "min": 5 }],
            "vertical": { "cpu": { "min": 1, "max": MOST }, "ram": { "min": 2 << 20, "max": MOST } },
            "pace": { "up_percent": 5, "up_tasks": 5, "down_percent": 5, "stabilise": 5,
                      "cool_down": 5 },
        },
    })
}

fn cron() -> Value {
    let limits = json!({ "cpu": 1000, "ram": 1 << 30 });
    json!({
        "name": "tick", "schedule": "* * * * *", "keep_runs": 5,
        "missed": { "run_all": { "max": 5 } },
        "job": { "name": "tick", "priority": 0, "task": { "limits": limits, "command": ["run"] } },
    })
}

/// The diagnostics of `cell validate` for the document.
fn validation_errors(document: &Value) -> Vec<Diagnostic> {
    // A file counts in cores: what the API has is written with its unit.
    let mut printed = json!({ "spec": document });
    to_source::mark_milli_cores(&mut printed);
    let source = Source { name: "job.json".into(), text: printed["spec"].to_string() };
    let owner = Some(Name::new("dev").unwrap());
    let options = LoadOptions {
        evaluator: Evaluator::InProcess,
        limits: Limits::default(),
        owner,
        inputs: Inputs::default(),
    };
    match cellwright_lang::load_text(&source, Path::new("."), Format::Json, &options) {
        Ok(_) => Vec::new(),
        Err(Diagnostics(errors)) => errors,
    }
}

/// `task.static_ports[0]` as a JSON pointer.
fn pointer(field: &str) -> String {
    format!("/{}", field.replace('[', ".").replace(']', "").replace('.', "/"))
}

fn with(document: &Value, field: &str, number: Value) -> Value {
    let mut document = document.clone();
    *document.pointer_mut(&pointer(field)).unwrap_or_else(|| panic!("{field}")) = number;
    document
}

/// Whether the cell itself would admit it, whoever sends it.
fn is_admitted(document: &Value) -> bool {
    match document.get("schedule") {
        Some(_) => serde_json::from_value::<CronSpec>(document.clone())
            .is_ok_and(|spec| spec.check().is_ok()),
        None => serde_json::from_value::<JobSpec>(document.clone())
            .is_ok_and(|spec| check_job(&spec).is_ok()),
    }
}

fn is_refused(document: &Value, field: &str, number: Value, allowed: &str) {
    let number_text = number.to_string();
    let document = with(document, field, number);
    assert!(!is_admitted(&document), "the cell takes {field}: {number_text}");
    let [diagnostic] = &validation_errors(&document)[..] else {
        panic!("{field}: {number_text} is not refused alone")
    };
    assert_eq!(diagnostic.field.as_deref(), Some(field), "{number_text}");
    assert!(diagnostic.message.contains(&number_text), "{field}: {}", diagnostic.message);
    assert!(
        diagnostic.help.as_ref().is_some_and(|help| help.contains(allowed)),
        "{field}: {diagnostic:?}"
    );
    assert!(diagnostic.place.is_some(), "{field}: {number_text}");
}

fn check(document: &Value, (field, min, max, allowed_text): (&str, u64, u64, &str)) {
    if allowed_text == "signed" {
        let allowed = format!("{} to {}", i64::MIN, i64::MAX);
        is_refused(document, field, json!(-2e19), &allowed);
        return is_refused(document, field, json!(1_u64 << 63), &allowed);
    }
    let allowed = match allowed_text {
        "" => format!("a whole number from {min} to {max}"),
        allowed_text => allowed_text.to_owned(),
    };
    let below = i64::try_from(min).unwrap() - 1;
    is_refused(document, field, json!(below), &allowed);
    is_refused(document, field, json!(max + 1), &allowed);
    for end in [min, max] {
        if !ELSEWHERE.contains(&(field, end)) {
            let messages: Vec<String> = validation_errors(&with(document, field, json!(end)))
                .iter()
                .map(|diagnostic| diagnostic.render(false))
                .collect();
            assert!(messages.is_empty(), "{field}: {end} is refused:\n{}", messages.join("\n"));
        }
    }
}

#[test]
fn every_number_has_one_range_and_is_refused_beyond_it() {
    let (job, cron) = (job(), cron());
    assert_eq!((validation_errors(&job), validation_errors(&cron)), (Vec::new(), Vec::new()));
    JOB.iter().for_each(|row| check(&job, *row));
    CRON.iter().for_each(|row| check(&cron, *row));
}

/// Numbers of the schema, as type and field.
#[derive(Default)]
struct Numbers(BTreeSet<String>);

impl Numbers {
    /// Adds the numbers below one schema; referenced types are added under their own name.
    fn add(&mut self, schema: &Value, name: &str) {
        if let Some(to) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            if ["Span", "Priority"].contains(&to) {
                self.0.insert(name.to_owned());
            }
            return;
        }
        let kinds = schema["type"].as_array().cloned().unwrap_or(vec![schema["type"].clone()]);
        if kinds.iter().any(|kind| kind == "integer" || kind == "number") {
            self.0.insert(name.to_owned());
        }
        for inner in ["items", "additionalProperties"] {
            self.add_if(&schema[inner], name);
        }
        for inner in ["anyOf", "oneOf"] {
            let list = schema[inner].as_array();
            list.into_iter().flatten().for_each(|inner| self.add(inner, name));
        }
        for (_, inner) in schema["patternProperties"].as_object().into_iter().flatten() {
            self.add(inner, name);
        }
        for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
            self.add(inner, &format!("{name}.{field}"));
        }
    }

    fn add_if(&mut self, schema: &Value, name: &str) {
        if schema.is_object() {
            self.add(schema, name);
        }
    }
}

/// The type and field of a document's field, by the schema.
fn name_of(definitions: &Value, top: &str, field: &str) -> String {
    let pointer = pointer(field);
    let (mut owner, mut name) = (top.to_owned(), String::new());
    let mut schema = definitions[top].clone();
    for step in pointer.split('/').skip(1) {
        let mut open = vec![schema.clone()];
        let mut next = None;
        while let (None, Some(schema)) = (&next, open.pop()) {
            if let Some(to) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
                (owner, name) = (to.to_owned(), String::new());
                open.push(definitions[to].clone());
                continue;
            }
            open.extend(["anyOf", "oneOf"].iter().rev().flat_map(|word| {
                schema[*word].as_array().cloned().unwrap_or_default().into_iter().rev()
            }));
            if let Some(inner) = schema["properties"].get(step) {
                name = format!("{name}.{step}");
                next = Some(inner.clone());
            } else if schema["items"].is_object() {
                next = Some(schema["items"].clone());
            } else if let Some(patterns) = schema["patternProperties"].as_object() {
                next = patterns.values().next().cloned();
            }
        }
        schema = next.unwrap_or_else(|| panic!("{field}: no {step} in {owner}"));
    }
    format!("{owner}{name}")
}

#[test]
fn no_number_of_the_schema_is_left_out() {
    let schema = cellwright_lang::schema::file_schema();
    let definitions = &schema["$defs"];
    let mut known = Numbers::default();
    for (name, definition) in definitions.as_object().unwrap() {
        if !["Span", "Priority"].contains(&name.as_str()) {
            known.add(definition, name);
        }
    }
    let rows = JOB.iter().map(|row| name_of(definitions, "JobSpec", row.0));
    let rows = rows.chain(CRON.iter().map(|row| name_of(definitions, "CronSpec", row.0)));
    let mut tried: BTreeSet<String> = rows.collect();
    tried.extend(KIN.map(str::to_owned));
    assert_eq!(known.0, tried);
}
