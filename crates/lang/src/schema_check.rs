//! Validates a value against the schema of a type: amounts with units become whole numbers, and all
//! errors are reported at once with their paths. Invalid parts are removed, with everything that
//! depends on them, such as a list that would lose an item. The rest can be deserialized into the
//! type.
//!
//! Rejected: relying on deserialization. It stops at the first error, does not know the location in
//! the file, and cannot suggest what was most likely meant.

use crate::example;
use crate::locate::FieldPart;
use crate::number::{NumberRules, expected_number};
use crate::schema::{Schema, unit_of};
use cellwright_cell::cron::schedule::Schedule;
use cellwright_cell::field::FieldPath;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::MAX_PRIORITY;
use cellwright_cell::suggestions::nearest;
use serde_json::{Map, Value, json};

/// Field names of other systems, with the equivalent here.
const FOREIGN_NAMES: [(&str, &str); 13] = [
    ("replicas", "count"),
    ("instances", "count"),
    ("tasks", "count"),
    ("memory", "ram"),
    ("mem", "ram"),
    ("storage", "disk"),
    ("cores", "cpu"),
    ("cmd", "command"),
    ("args", "command"),
    ("environment", "env"),
    ("resources", "limits"),
    ("timeout", "max_run"),
    ("depends_on", "after"),
];

/// Names of bands, which may be written for their lowest priority.
const BANDS: [(&str, u64); 4] =
    [("best_effort", 0), ("batch", 100), ("production", 200), ("monitoring", 300)];

/// Fields that people know by their content, which they write in the job itself.
const COMPOSITE_FIELDS: [(&str, &str, &str); 2] = [
    ("task", "`command`, `cpu` and `ram`", "command: [\"date\"], cpu: \"500m\", ram: \"64MiB\""),
    ("limits", "`cpu` and `ram`", "cpu: \"500m\", ram: \"64MiB\""),
];

/// The kind of a schema error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The value has the wrong type or range.
    Mismatch,
    /// The value was read as a number because it has no quotes.
    Unquoted,
    /// The field of this name is missing.
    Missing(String),
    /// The field is unknown; with the name that was most likely meant.
    Unknown(Option<String>),
}

/// A validation error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaError {
    pub path: FieldPath,
    /// Which part of the field to point at.
    pub part: FieldPart,
    pub kind: FaultKind,
    pub message: String,
    pub help: Option<String>,
}

/// Walks a value and collects its errors.
#[derive(Default)]
pub(crate) struct SchemaChecker {
    pub errors: Vec<SchemaError>,
}

impl SchemaChecker {
    /// Records an error. Returns `false`, so that checks can return the result directly.
    pub(crate) fn add_error(
        &mut self,
        path: &FieldPath,
        message: impl Into<String>,
        help: Option<String>,
    ) -> bool {
        let (path, message) = (path.clone(), message.into());
        self.errors.push(SchemaError {
            path,
            part: FieldPart::Value,
            kind: FaultKind::Mismatch,
            message,
            help,
        });
        false
    }

    fn add_name_error(
        &mut self,
        path: &FieldPath,
        fault: FaultKind,
        message: String,
        help: Option<String>,
    ) -> bool {
        self.errors.push(SchemaError {
            path: path.clone(),
            part: FieldPart::Name,
            kind: fault,
            message,
            help,
        });
        false
    }

    /// Checks `value` against the type `name`; returns whether the rest of it can be deserialized.
    pub(crate) fn check(&mut self, value: &mut Value, name: &str, path: &FieldPath) -> bool {
        let definition = Schema::get().definition(name);
        definition
            .is_none_or(|schema| self.check_type(value, schema, name, NumberRules::default(), path))
    }

    fn check_schema(
        &mut self,
        value: &mut Value,
        schema: &Value,
        number: NumberRules,
        path: &FieldPath,
    ) -> bool {
        let number = number.with_bounds(schema);
        let (schema, name) = Schema::get().resolve(schema);
        if let Some(name) = name {
            return self.check_type(value, schema, name, number.inside_type(name), path);
        }
        if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
            let null = |schema: &&Value| schema.get("type") == Some(&json!("null"));
            let other = any.iter().find(|schema| !null(schema));
            let may_be_absent = value.is_null() && any.iter().any(|schema| null(&schema));
            let other = other.filter(|_| !may_be_absent);
            return other.is_none_or(|other| self.check_schema(value, other, number, path));
        }
        if schema.get("oneOf").is_some() {
            return self.check_variant(value, schema, path);
        }
        self.check_plain(value, schema, number, path)
    }

    /// Types with special rules come first.
    fn check_type(
        &mut self,
        value: &mut Value,
        schema: &Value,
        name: &str,
        number: NumberRules,
        path: &FieldPath,
    ) -> bool {
        match (name, &*value) {
            ("Priority", Value::String(word)) => {
                return self.check_band(&word.clone(), value, path);
            }
            ("Priority", _) => {
                let before = self.errors.len();
                let fits = self.check_plain(value, schema, number, path);
                self.errors[before..].iter_mut().for_each(|error| error.help = Some(band_names()));
                return fits;
            }
            ("AttributeValue", Value::String(text)) => *value = json!({ "text": text }),
            ("AttributeValue", Value::Number(number)) => *value = json!({ "integer": number }),
            ("Name" | "Token" | "Schedule", Value::String(text)) => {
                let error = text_error(name, text);
                return error
                    .is_none_or(|(message, allowed)| self.add_error(path, message, Some(allowed)));
            }
            _ => {}
        }
        if schema.get("oneOf").is_some() || schema.get("enum").is_some() {
            return self.check_variant(value, schema, path);
        }
        match (schema.get("properties").and_then(Value::as_object), value) {
            (Some(fields), Value::Object(map)) => {
                self.check_object(map, schema, fields, name, path)
            }
            (Some(_), value) => {
                let message = format!("an object is wanted here, not {}", value_text(value));
                self.add_error(path, message, example::example_object(name, value))
            }
            (None, value) if schema.get("$ref").is_some() || schema.get("anyOf").is_some() => {
                self.check_schema(value, schema, number, path)
            }
            (None, value) => self.check_plain(value, schema, number, path),
        }
    }

    fn check_band(&mut self, word: &str, value: &mut Value, path: &FieldPath) -> bool {
        let plain = word.replace('-', "_");
        if let Some((_, lowest)) = BANDS.iter().find(|(band, _)| *band == plain) {
            *value = json!(lowest);
            return true;
        }
        let words = BANDS.iter().map(|(band, _)| *band);
        let message = format!("{word:?} is not a priority");
        self.add_error(path, message + &suggestion_text(word, words), Some(band_names()))
    }

    fn check_object(
        &mut self,
        map: &mut Map<String, Value>,
        schema: &Value,
        fields: &Map<String, Value>,
        owner: &str,
        path: &FieldPath,
    ) -> bool {
        let required = schema.get("required").and_then(Value::as_array);
        let required = || required.into_iter().flatten().filter_map(Value::as_str);
        let missing: Vec<&str> = required().filter(|name| !map.contains_key(*name)).collect();
        map.retain(|name, value| {
            let path = path.field(name);
            match fields.get(name) {
                Some(schema) => {
                    self.check_schema(value, schema, NumberRules::of(unit_of(owner, name)), &path)
                }
                None => self.unknown_field(name, known_fields(owner, fields).into_iter(), &path),
            }
        });
        for name in missing {
            let (message, help) = match COMPOSITE_FIELDS.iter().find(|(whole, ..)| *whole == name) {
                Some((_, parts, example)) => {
                    (format!("{parts} are missing"), Some(format!("such as {example}")))
                }
                None => {
                    let help = fields.get(name).and_then(|schema| field_help(owner, name, schema));
                    (format!("`{name}` is missing"), help)
                }
            };
            self.add_name_error(path, FaultKind::Missing(name.to_owned()), message, help);
        }
        for name in required().filter(|name| !map.contains_key(*name)).collect::<Vec<_>>() {
            let Some(nothing) = placeholder(owner, name) else { return false };
            map.insert(name.to_owned(), nothing);
        }
        true
    }

    fn unknown_field<'a>(
        &mut self,
        name: &str,
        known: impl Iterator<Item = &'a str> + Clone,
        path: &FieldPath,
    ) -> bool {
        let message =
            format!("there is no field `{name}` here{}", suggestion_text(name, known.clone()));
        let suggested = suggestion(name, known.clone()).map(str::to_owned);
        let all: Vec<&str> = known.collect();
        self.add_name_error(path, FaultKind::Unknown(suggested), message, Some(all.join(", ")))
    }

    /// Checks an enumeration: one of several words, or an object with one of several fields.
    fn check_variant(&mut self, value: &mut Value, schema: &Value, path: &FieldPath) -> bool {
        let (words, fields) = schema_alternatives(schema);
        let allowed = list_alternatives(&words, &fields);
        match value {
            Value::String(word) if words.contains(&word.as_str()) => true,
            Value::String(word) => {
                let known = words.iter().copied().chain(fields.keys().map(String::as_str));
                let message = format!("{word:?} is not known here{}", suggestion_text(word, known));
                self.add_error(path, message, Some(allowed))
            }
            Value::Object(map) if map.len() == 1 => map.iter_mut().all(|(name, inner)| {
                let path = path.field(name);
                match fields.get(name) {
                    Some(schema) => self.check_variant_field(inner, schema, &path),
                    None => self.unknown_field(name, fields.keys().map(String::as_str), &path),
                }
            }),
            other => {
                let message = format!("{} cannot stand here", value_text(other));
                self.add_error(path, message, Some(format!("one of: {allowed}")))
            }
        }
    }

    /// Checks the content of a variant: a type, or inline fields.
    fn check_variant_field(&mut self, value: &mut Value, schema: &Value, path: &FieldPath) -> bool {
        let fields = schema.get("properties").and_then(Value::as_object);
        match (fields, value) {
            (Some(fields), Value::Object(map)) => self.check_object(map, schema, fields, "", path),
            (Some(_), value) => self.wrong_kind(value, "an object", path),
            (None, value) => self.check_schema(value, schema, NumberRules::default(), path),
        }
    }

    fn wrong_kind(&mut self, value: &Value, wanted: &str, path: &FieldPath) -> bool {
        self.add_error(path, format!("{wanted} is wanted here, not {}", value_text(value)), None)
    }

    fn check_plain(
        &mut self,
        value: &mut Value,
        schema: &Value,
        number: NumberRules,
        path: &FieldPath,
    ) -> bool {
        let kinds: Vec<&str> = match schema.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return true,
        };
        if value.is_null() && kinds.contains(&"null") {
            return true;
        }
        let kind = kinds.iter().find(|kind| **kind != "null").copied().unwrap_or_default();
        match (kind, &mut *value) {
            ("integer", _) => match number.read(value, schema) {
                Ok(read) => {
                    *value = read;
                    true
                }
                Err((message, allowed)) => self.add_error(path, message, Some(allowed)),
            },
            ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => true,
            ("array", Value::Array(items)) => {
                let inner = schema.get("items").unwrap_or(&Value::Null);
                let mut fits = true;
                for (position, item) in items.iter_mut().enumerate() {
                    fits &=
                        self.check_schema(item, inner, number.for_items(), &path.index(position));
                }
                fits
            }
            ("object", Value::Object(map)) => {
                self.check_map(map, schema, path);
                true
            }
            ("boolean", other) => self.wrong_kind(other, "true or false", path),
            ("string", Value::Number(number)) => {
                let (message, help) = unquoted_error(&number.to_string());
                self.add_error(path, message, Some(help));
                self.errors.iter_mut().last().iter_mut().for_each(|w| w.kind = FaultKind::Unquoted);
                false
            }
            ("string", other) => self.wrong_kind(other, "a text", path),
            ("array", Value::String(text)) => {
                let help = example::example_list(text, schema.get("items").unwrap_or(&Value::Null));
                self.add_error(
                    path,
                    format!("a list is wanted here, not {}", json!(text)),
                    Some(help),
                )
            }
            ("array", other) => self.wrong_kind(other, "a list", path),
            (_, other) => {
                let message = format!("an object is wanted here, not {}", value_text(other));
                self.add_error(path, message, Some(example::example_map(schema)))
            }
        }
    }

    /// Checks a map with free names: labels, variables, task indices.
    fn check_map(&mut self, map: &mut Map<String, Value>, schema: &Value, path: &FieldPath) {
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let pattern = patterns.and_then(|patterns| patterns.iter().next());
        let numbered = pattern.is_some_and(|(pattern, _)| pattern.contains("\\d"));
        let inner = match pattern {
            Some((_, inner)) => inner,
            None => schema.get("additionalProperties").unwrap_or(&Value::Null),
        };
        map.retain(|name, value| {
            let path = path.field(name);
            let rejection = match (pattern.is_some(), numbered) {
                (_, true) => name.parse::<u32>().is_err().then(|| "a whole number".to_owned()),
                (true, false) => Token::new(name).err().map(|error| error.allowed),
                _ => None,
            };
            match rejection {
                Some(allowed) => {
                    let message = format!("{name:?} is not valid here");
                    self.add_name_error(&path, FaultKind::Mismatch, message, Some(allowed))
                }
                None => self.check_schema(value, inner, NumberRules::default(), &path),
            }
        });
    }
}

/// The name given to jobs without a valid name.
pub(crate) const UNNAMED: &str = "unnamed";

/// A placeholder for a required field that is invalid or missing. The field is marked as unknown,
/// and admission rules never look at it.
fn placeholder(owner: &str, field: &str) -> Option<Value> {
    match (owner, field) {
        ("JobSpec" | "CronSpec", "name") => Some(json!(UNNAMED)),
        ("JobSpec", "priority") | ("Resources", "cpu" | "ram") => Some(json!(0)),
        ("JobSpec", "task") => {
            Some(json!({ "command": [], "limits": placeholder("TaskSpec", "limits") }))
        }
        ("TaskSpec", "command") => Some(json!([])),
        ("TaskSpec", "limits") => Some(json!({ "cpu": 0, "ram": 0 })),
        ("CronSpec", "schedule") => Some(json!("0 0 * * *")),
        ("CronSpec", "job") => {
            let task = placeholder("JobSpec", "task");
            Some(json!({ "name": UNNAMED, "priority": 0, "task": task }))
        }
        _ => None,
    }
}

/// The error for a text that the type does not allow, and what is allowed.
fn text_error(name: &str, text: &str) -> Option<(String, String)> {
    let plain = |value: String, allowed: String| (format!("{value:?} is not valid here"), allowed);
    match name {
        "Name" => Name::new(text).err().map(|bad| plain(bad.value, bad.allowed)),
        "Token" => Token::new(text).err().map(|bad| plain(bad.value, bad.allowed)),
        _ => Schedule::new(text).err().map(|bad| {
            let message = format!("{:?}: {} {:?} is not valid", bad.text, bad.field, bad.value);
            (message, bad.allowed)
        }),
    }
}

/// The error for an unquoted text that was read as a number, and the correction.
pub(crate) fn unquoted_error(number: &str) -> (String, String) {
    (format!("a text is wanted here, not {number}"), format!("write it in quotes: '{number}'"))
}

/// The allowed values of a priority.
fn band_names() -> String {
    let words: Vec<&str> = BANDS.iter().map(|(band, _)| *band).collect();
    format!("{}, or a number from 0 to {MAX_PRIORITY}", words.join(", "))
}

/// The alternatives of an enumeration: words, and objects of one field.
fn schema_alternatives(schema: &Value) -> (Vec<&str>, Map<String, Value>) {
    let all = schema.get("oneOf").and_then(Value::as_array);
    let alternatives: Vec<&Value> = all.map_or(vec![schema], |all| all.iter().collect());
    let mut words: Vec<&str> = Vec::new();
    let mut fields: Map<String, Value> = Map::new();
    for alternative in alternatives {
        words.extend(alternative.get("const").and_then(Value::as_str));
        let list = alternative.get("enum").and_then(Value::as_array);
        words.extend(list.into_iter().flatten().filter_map(Value::as_str));
        let inner = alternative.get("properties").and_then(Value::as_object);
        fields.extend(inner.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    }
    (words, fields)
}

fn list_alternatives(words: &[&str], fields: &Map<String, Value>) -> String {
    let named = fields.keys().map(|field| format!("{{{field}: …}}"));
    words.iter().map(ToString::to_string).chain(named).collect::<Vec<_>>().join(", ")
}

/// What a missing field accepts, or else its description.
fn field_help(owner: &str, field: &str, schema: &Value) -> Option<String> {
    if Schema::get().resolve(schema).1 == Some("Priority") {
        return Some(band_names());
    }
    let about = || schema.get("description")?.as_str().map(str::to_owned);
    let choices = || {
        let (inner, _) = Schema::get().resolve(schema);
        let is_choice = inner.get("oneOf").is_some() || inner.get("enum").is_some();
        let (words, fields) = schema_alternatives(inner);
        is_choice.then(|| format!("one of: {}", list_alternatives(&words, &fields)))
    };
    expected_number(owner, field, schema).or_else(choices).or_else(about)
}

/// The fields that an object of the type may have; for a job also short forms.
fn known_fields<'a>(owner: &str, fields: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut known: Vec<&str> = fields.keys().map(String::as_str).collect();
    if owner == "JobSpec" {
        known.extend(["owner", "image"]);
        known.extend(Schema::get().fields("TaskSpec"));
        known.extend(Schema::get().fields("Resources"));
    }
    known
}

/// `; did you mean ...?`, or an empty string.
pub(crate) fn suggestion_text<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match suggestion(name, known) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    }
}

fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let other = FOREIGN_NAMES.iter().find(|(word, _)| *word == name).map(|(_, our_name)| *our_name);
    let other = other.filter(|our_name| known.contains(our_name));
    other.or_else(|| nearest(name, known))
}

/// A value for an error message, shortened.
pub(crate) fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => json!(text.chars().take(60).collect::<String>()).to_string(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
