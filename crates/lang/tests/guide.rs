//! The field tables in the guide match the schema: every field of every type, with what it takes
//! and what it means. `UPDATE_GUIDE=1` regenerates them.

use cellwright_cell::units::group_digits;
use cellwright_lang::units::Unit;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::path::Path;

const BEGIN: &str = "<!-- fields: made from the schema -->\n";
const END: &str = "<!-- end of fields -->\n";

/// Types in the order of the guide, with their titles.
const TYPES: [(&str, &str); 36] = [
    ("JobSpec", "Job"),
    ("TaskSpec", "Task"),
    ("Resources", "Limits"),
    ("HealthCheck", "Health check"),
    ("Probe", "Probe"),
    ("RestartPolicy", "Restart policy"),
    ("Retries", "Retries"),
    ("Constraint", "Constraint"),
    ("Operator", "Operator"),
    ("Strength", "Strength"),
    ("SpreadLimit", "Spread"),
    ("DisruptionLimit", "Disruptions"),
    ("UpdatePolicy", "Update"),
    ("RollbackLimit", "Rollback"),
    ("JobDependency", "After"),
    ("TaskOverride", "Override"),
    ("LimitsOverride", "Limits of one task"),
    ("Isolation", "Isolation"),
    ("Volume", "Volume"),
    ("LogLimits", "Log limits"),
    ("RetainDisk", "Retained disk"),
    ("ScalePolicy", "Scaling"),
    ("ScaleTarget", "Scaling target"),
    ("MetricTarget", "Number that tasks tell"),
    ("MetricSource", "Where tasks tell numbers"),
    ("ScheduledMinimum", "Scheduled size"),
    ("VerticalBounds", "Vertical bounds"),
    ("CpuRange", "Range of cores"),
    ("RamRange", "Range of memory"),
    ("ScalePace", "Pace of scaling"),
    ("DeviceRequest", "Device"),
    ("NamedAmount", "Named amount"),
    ("ResourceName", "Resource name"),
    ("PackageRef", "Package"),
    ("CronSpec", "Periodic job"),
    ("MissedRuns", "Missed runs"),
];

/// Types that are one word in a table and have no table of their own.
const WORDS: [(&str, &str); 14] = [
    ("Name", "name"),
    ("Token", "word"),
    ("Span", "time"),
    ("Priority", "priority"),
    ("JobKey", "`job` or `user/job`"),
    ("AttributeValue", "text or number"),
    ("Secret", "text"),
    ("Schedule", "schedule"),
    ("JobKind", "`tasks`, `alloc_set` or `daemon`"),
    ("AllocPairing", "`index` or `any`"),
    ("AppClass", "`latency_sensitive` or `batch`"),
    ("Network", "`host` or `own`"),
    ("MetricKind", "`value` or `rate`"),
    ("Domain", "`machine`, `rack`, `power` or `cell`"),
];

#[test]
fn every_field_is_in_the_guide() {
    let schema = cellwright_lang::schema::file_schema();
    let definitions = schema["$defs"].as_object().unwrap();
    for name in definitions.keys() {
        let known = TYPES.iter().chain(&WORDS).any(|(known, _)| known == name) || name == "Overlap";
        assert!(known, "give the type {name} a title or a word in this test");
    }
    let made: String =
        TYPES.iter().map(|(name, title)| section(definitions, name, title)).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/job-language.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the tables");
    let (table, after) = rest.split_once(END).expect("the tables end");
    if std::env::var_os("UPDATE_GUIDE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(table, made, "the guide is behind; UPDATE_GUIDE=1 writes the tables anew");
}

fn section(definitions: &Map<String, Value>, name: &str, title: &str) -> String {
    let definition = &definitions[name];
    // A short form is listed next to the full one.
    let definition = definition["anyOf"].get(0).unwrap_or(definition);
    let mut out = format!("\n### {title}\n\n");
    let about = meaning(definition);
    if !about.is_empty() {
        let _ = writeln!(out, "{about}\n");
    }
    if let Some(variants) = definition["oneOf"].as_array() {
        let _ = writeln!(out, "One of:\n\n| written | takes | meaning |\n|---|---|---|");
        variants.iter().for_each(|variant| written_variant(&mut out, variant));
        return out;
    }
    let _ = writeln!(out, "| field | takes | left out | meaning |\n|---|---|---|---|");
    let required = definition["required"].as_array().cloned().unwrap_or_default();
    for (field, schema) in definition["properties"].as_object().unwrap() {
        if schema["description"].as_str().is_some_and(|text| text.starts_with("Short for")) {
            continue;
        }
        let must = required.iter().any(|name| name == field);
        let default = match (&schema["default"], must) {
            (_, true) => "must be there".to_owned(),
            (Value::Null, _) => "none".to_owned(),
            (Value::Object(_) | Value::Array(_), _) => "as stated there".to_owned(),
            (value, _) => format!("`{}`", value.to_string().trim_matches('"')),
        };
        let (takes, about) = (takes(schema), meaning(schema));
        let _ = writeln!(out, "| `{field}` | {takes} | {default} | {about} |");
    }
    out
}

fn written_variant(out: &mut String, variant: &Value) {
    let about = meaning(variant);
    let names = variant["enum"].as_array().cloned().unwrap_or_default();
    for variant_name in names.iter().chain(variant.get("const")).filter_map(Value::as_str) {
        let _ = writeln!(out, "| `{variant_name}` | | {about} |");
    }
    for (field, schema) in variant["properties"].as_object().into_iter().flatten() {
        let inner = schema["properties"].as_object().map(|fields| {
            let parts = fields.iter().map(|(name, schema)| format!("`{name}`: {}", takes(schema)));
            parts.collect::<Vec<_>>().join(", ")
        });
        let takes = inner.unwrap_or_else(|| takes(schema));
        let _ = writeln!(out, "| `{{{field}: …}}` | {takes} | {about} |");
    }
}

/// What a field accepts, as a word or a link.
fn takes(schema: &Value) -> String {
    let (min, max) = (schema["minimum"].as_u64(), schema["maximum"].as_u64());
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        if let Some((_, word)) = WORDS.iter().find(|(known, _)| *known == name) {
            // The guide says once that no duration exceeds a year.
            let from = min.map(|least| Unit::Milliseconds.format(least));
            return from.map_or((*word).to_owned(), |from| format!("{word} from {from} on"));
        }
        let title = TYPES.iter().find(|(known, _)| *known == name).map(|(_, title)| *title);
        return match title {
            Some(title) => {
                let anchor = title.to_lowercase().replace(' ', "-");
                format!("[{}](#{anchor})", title.to_lowercase())
            }
            None => "`allow`, `skip` or `replace`".to_owned(),
        };
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let full = any.iter().find(|schema| schema["type"] != "null").unwrap();
        let is_number = match &full["type"] {
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "integer"),
            kind => kind == "integer" || kind == "number",
        };
        let amount = any.iter().any(|schema| schema["type"] == "string") && is_number;
        let mut full = full.clone();
        if let Some(min) = min {
            full["minimum"] = min.into();
        }
        return if amount { "amount".to_owned() } else { takes(&full) };
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").unwrap(),
        kind => kind,
    };
    match kind.as_str().unwrap_or_default() {
        "integer" => match (min, max) {
            (Some(min), Some(max)) => {
                format!("number from {} to {}", group_digits(min), group_digits(max))
            }
            (Some(min @ 1..), None) => format!("number from {min} on"),
            _ => "number".to_owned(),
        },
        "boolean" => "true or false".to_owned(),
        "string" => "text".to_owned(),
        "array" => format!("list of {}", takes(&schema["items"])),
        _ => {
            let patterns = schema["patternProperties"].as_object();
            let inner = patterns.and_then(|patterns| patterns.values().next());
            format!("object of {}", takes(inner.unwrap_or(&schema["additionalProperties"])))
        }
    }
}

/// The first sentence of a type's description on one line, without code markup.
fn meaning(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    let marked = ["`None`", "[`", " (B"].iter().any(|mark| text.contains(mark));
    assert!(!marked, "{text}");
    text
}
