//! Example values for errors: what was most likely meant by a value of the wrong type, written as
//! JSON, which is valid in all three languages. A file with the copied example is valid, or valid
//! except for one value: no suggestion is rejected by the next check.
//!
//! Rejected: examples generated from the schema. They are valid, but tell the reader nothing.

use crate::schema::Schema;
use cellwright_cell::name::Token;
use serde_json::{Value, json};

/// An example object of each type that has fields; a test compares them with the types.
const OBJECTS: [(&str, &str); 31] = [
    ("JobDependency", r#"{"job": {"user": "ann", "job": "db"}}"#),
    ("Constraint", r#"{"attribute": "arch", "operator": {"equal": "x86_64"}}"#),
    ("CpuRange", r#"{"min": "250m", "max": 2}"#),
    ("DeviceRequest", r#"{"kind": "gpu", "count": 1}"#),
    ("DisruptionLimit", r#"{"most": 1, "within": "1h"}"#),
    ("HealthCheck", r#"{"probe": {"http": {"port": 0, "path": "/"}}}"#),
    ("Isolation", r#"{"slack_cpu": true}"#),
    ("JobKey", r#"{"user": "ann", "job": "db"}"#),
    ("JobSpec", r#"{"priority": "batch", "command": ["date"], "cpu": "500m", "ram": "64MiB"}"#),
    ("LimitsOverride", r#"{"ram": "1GiB"}"#),
    ("LogLimits", r#"{"file_bytes": "1MiB", "files": 3, "rate": "1MiB/s"}"#),
    ("MetricTarget", r#"{"name": "requests_total", "per_task": 100, "kind": "rate"}"#),
    ("NamedAmount", r#"{"name": {"name": "licences"}, "amount": 1}"#),
    ("PackageRef", r#"{"name": "greeter", "digest": "DIGEST", "bytes": "10MiB"}"#),
    ("ResourceName", r#"{"name": "licences"}"#),
    ("RamRange", r#"{"min": "256MiB", "max": "2GiB"}"#),
    ("Resources", r#"{"cpu": "500m", "ram": "64MiB"}"#),
    ("RestartPolicy", r#"{"max_failures": 3}"#),
    ("RetainDisk", r#"{"bytes": "1GiB", "keep": "1h"}"#),
    ("Retries", r#"{"failed": 2}"#),
    ("RollbackLimit", r#"{"failures": 3, "within": "10m"}"#),
    ("ScalePace", r#"{"stabilise": "10m", "cool_down": "5m"}"#),
    ("ScalePolicy", r#"{"min": 2, "max": 10, "target": {"cpu": 60}}"#),
    ("ScaleTarget", r#"{"cpu": 60}"#),
    ("ScheduledMinimum", r#"{"from": "0 8 * * mon-fri", "lasts": "10h", "min": 5}"#),
    ("SpreadLimit", r#"{"domain": "rack", "limit": 1}"#),
    ("TaskOverride", r#"{"env": {"ROLE": "first"}}"#),
    ("TaskSpec", r#"{"command": ["date"], "limits": {"cpu": "500m", "ram": "64MiB"}}"#),
    ("UpdatePolicy", r#"{"canaries": 1, "promote_after": "5m"}"#),
    ("VerticalBounds", r#"{"ram": {"min": "256MiB", "max": "2GiB"}}"#),
    ("Volume", r#"{"source": "/srv/data", "target": "/data"}"#),
];

/// Characters with a meaning only in a shell.
const SHELL: &str = "\"'\\$`|&;<>()*?[]{}~#!\n";

/// An example object of the type, close to `value` where that can be guessed.
pub(crate) fn example_object(name: &str, value: &Value) -> Option<String> {
    let close = value.as_str().and_then(|text| match name {
        "Constraint" => example_constraint(text),
        "PackageRef" => example_package(text),
        _ => None,
    });
    let plain = || OBJECTS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let example = close.or_else(|| plain().map(str::to_owned))?;
    let from = match name {
        "PackageRef" => "; `cell package ls -o json` shows both",
        _ => "",
    };
    Some(format!("an object, such as {example}{from}"))
}

/// An example of a map with free names, such as variables; `schema` describes its values.
pub(crate) fn example_map(schema: &Value) -> String {
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let (pattern, inner) = match patterns.and_then(|patterns| patterns.iter().next()) {
        Some((pattern, inner)) => (pattern.as_str(), inner),
        None => ("", schema.get("additionalProperties").unwrap_or(&Value::Null)),
    };
    let (resolved, name) = Schema::get().resolve(inner);
    let known = OBJECTS.iter().find(|(known, _)| Some(*known) == name).map(|(_, text)| *text);
    let (key, value) = match resolved.get("type").and_then(Value::as_str) {
        Some("integer") => ("1", "2"),
        _ if pattern.contains("\\d") => ("0", known.unwrap_or("{}")),
        _ => ("name", known.unwrap_or("\"value\"")),
    };
    format!("an object, such as {{\"{key}\": {value}}}")
}

/// The list that was meant by a text; `items` is the schema of its items.
pub(crate) fn example_list(text: &str, items: &Value) -> String {
    let (items, name) = Schema::get().resolve(items);
    if let Some(example) = name.and_then(|name| example_object(name, &json!(text))) {
        return format!("a list with {example}");
    }
    let words = match items.get("type").and_then(Value::as_str) {
        Some("integer") => match text.trim().parse::<u64>() {
            Ok(number) => format!("[{number}]"),
            Err(_) => return "a list of numbers, such as [8080]".into(),
        },
        Some("string") if name.is_none() => example_command(text),
        _ => json!([text]).to_string(),
    };
    format!("write it in brackets: {words}")
}

/// The words of a command line, or `sh -c` with it if it needs a shell.
fn example_command(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_set = words.first().is_some_and(|word| word.contains('='));
    let words = if is_set || line.contains(|sign| SHELL.contains(sign)) {
        vec!["sh", "-c", line]
    } else {
        words
    };
    let quoted: Vec<String> = words.iter().map(|word| json!(word).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

/// A constraint from a text such as `arch=arm64`.
fn example_constraint(text: &str) -> Option<String> {
    let (attribute, value) = text.split_once('=')?;
    let (attribute, value) = (attribute.trim(), value.trim_start_matches('=').trim());
    let known = Token::new(attribute).is_ok() && !value.is_empty();
    known.then(|| {
        let (attribute, value) = (json!(attribute), json!(value));
        format!(r#"{{"attribute": {attribute}, "operator": {{"equal": {value}}}}}"#)
    })
}

/// A package reference from its name.
fn example_package(text: &str) -> Option<String> {
    let name = json!(Token::new(text).ok()?.as_str());
    Some(format!(r#"{{"name": {name}, "digest": "DIGEST", "bytes": "10MiB"}}"#))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::DocumentReader;
    use crate::schema::file_schema;
    use cellwright_cell::field::FieldPath;

    #[test]
    fn a_text_becomes_the_words_that_a_shell_would_find_or_a_shell() {
        let check = |text: &str, want: &str| assert_eq!(example_command(text), want, "{text}");
        check("sleep infinity", r#"["sleep", "infinity"]"#);
        check("  date ", r#"["date"]"#);
        check("/bin/app --port=80", r#"["/bin/app", "--port=80"]"#);
        check("echo 'a b'", r#"["sh", "-c", "echo 'a b'"]"#);
        check("echo $HOME | wc", r#"["sh", "-c", "echo $HOME | wc"]"#);
        check("A=1 env", r#"["sh", "-c", "A=1 env"]"#);
        check("date\nls\n", r#"["sh", "-c", "date\nls\n"]"#);
    }

    #[test]
    fn what_is_close_to_what_was_written_is_suggested() {
        let check = |name: &str, value: &str, want: &str| {
            let example = example_object(name, &json!(value)).unwrap();
            assert!(example.contains(want), "{example}");
        };
        check("Constraint", "os == debian", r#"{"attribute": "os", "operator": {"equal": "deb"#);
        check("Constraint", "fast", r#"{"attribute": "arch", "#);
        check("PackageRef", "tool", r#"{"name": "tool", "#);
    }

    #[test]
    fn every_type_with_fields_has_an_example_that_fits_it() {
        let all = file_schema();
        let names = all["$defs"].as_object().unwrap().keys().map(String::as_str);
        // A document that is not an object is reported differently.
        let inner = names.filter(|name| *name != "CronSpec");
        for name in inner.filter(|name| !Schema::get().fields(name).is_empty()) {
            let found = OBJECTS.iter().find(|(known, _)| *known == name);
            let (_, text) = found.unwrap_or_else(|| panic!("{name} has no example"));
            let mut value: Value = serde_json::from_str(text).unwrap();
            let mut reader = DocumentReader::default();
            match name {
                // In its short form, as people write it.
                "JobSpec" => reader.read(value, &FieldPath::default(), Some("a")),
                _ => {
                    reader.checker.check(&mut value, name, &FieldPath::default());
                }
            }
            assert_eq!(reader.checker.errors, [], "{name}");
        }
    }
}
