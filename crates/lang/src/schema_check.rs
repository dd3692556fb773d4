//! A value against the schema of a type: units become whole numbers, and what does not fit is
//! reported with its path, all of it in one go, and taken out, with all that cannot be there
//! without it, such as a list that would have one item less. What is left is what the type reads.
//!
//! Rejected: leaving it to the type's own reader. It stops at the first error, does not know where
//! in the file it is, and cannot say what was most likely meant.

use crate::example;
use crate::locate::Part;
use crate::number::{Number, wanted};
use crate::schema::{Schema, unit_of};
use cellwright_cell::cron::schedule::Schedule;
use cellwright_cell::field::FieldPath;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::near::nearest;
use cellwright_cell::priority::MAX_PRIORITY;
use serde_json::{Map, Value, json};

/// What other systems call it.
const OTHER_WORDS: [(&str, &str); 14] = [
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
    ("image", "packages"),
];

/// Bands as they may be written for their lowest priority.
const BANDS: [(&str, u64); 4] =
    [("best_effort", 0), ("batch", 100), ("production", 200), ("monitoring", 300)];

/// Fields that people know by what is in them, which they write in the job itself.
const MADE_OF: [(&str, &str, &str); 2] = [
    ("task", "`command`, `cpu` and `ram`", "command: [\"date\"], cpu: \"500m\", ram: \"64MiB\""),
    ("limits", "`cpu` and `ram`", "cpu: \"500m\", ram: \"64MiB\""),
];

/// How something does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// By what it is.
    Misfit,
    /// By being read as a number, since it stands without quotes.
    Unquoted,
    /// A field of this name has to be there.
    Missing(String),
    /// A field that nobody knows, and which one is most likely meant.
    Unknown(Option<String>),
}

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub path: FieldPath,
    /// What of the field to point at.
    pub part: Part,
    pub fault: Fault,
    pub message: String,
    pub help: Option<String>,
}

/// Walks a value and collects what is wrong with it.
#[derive(Default)]
pub(crate) struct Checker {
    pub wrong: Vec<Wrong>,
}

impl Checker {
    /// Never `true`, which is what those return who find that a value fits.
    pub(crate) fn add(
        &mut self,
        path: &FieldPath,
        message: impl Into<String>,
        help: Option<String>,
    ) -> bool {
        let (path, message) = (path.clone(), message.into());
        self.wrong.push(Wrong { path, part: Part::Value, fault: Fault::Misfit, message, help });
        false
    }

    fn named(
        &mut self,
        path: &FieldPath,
        fault: Fault,
        message: String,
        help: Option<String>,
    ) -> bool {
        self.wrong.push(Wrong { path: path.clone(), part: Part::Name, fault, message, help });
        false
    }

    /// `value` as the type `name` wants it; whether what is left of it can be read.
    pub(crate) fn check(&mut self, value: &mut Value, name: &str, path: &FieldPath) -> bool {
        let definition = Schema::get().definition(name);
        definition.is_none_or(|shape| self.typed(value, shape, name, Number::default(), path))
    }

    fn shaped(
        &mut self,
        value: &mut Value,
        shape: &Value,
        number: Number,
        path: &FieldPath,
    ) -> bool {
        let number = number.at(shape);
        let (shape, name) = Schema::get().resolve(shape);
        if let Some(name) = name {
            return self.typed(value, shape, name, number.of_type(name), path);
        }
        if let Some(any) = shape.get("anyOf").and_then(Value::as_array) {
            let null = |shape: &&Value| shape.get("type") == Some(&json!("null"));
            let other = any.iter().find(|shape| !null(shape));
            let may_be_absent = value.is_null() && any.iter().any(|shape| null(&shape));
            let other = other.filter(|_| !may_be_absent);
            return other.is_none_or(|other| self.shaped(value, other, number, path));
        }
        if shape.get("oneOf").is_some() {
            return self.variant(value, shape, path);
        }
        self.plain(value, shape, number, path)
    }

    /// Types with a rule of their own come first.
    fn typed(
        &mut self,
        value: &mut Value,
        shape: &Value,
        name: &str,
        number: Number,
        path: &FieldPath,
    ) -> bool {
        match (name, &*value) {
            ("Priority", Value::String(word)) => return self.band(&word.clone(), value, path),
            ("Priority", _) => {
                let before = self.wrong.len();
                let fits = self.plain(value, shape, number, path);
                self.wrong[before..].iter_mut().for_each(|wrong| wrong.help = Some(bands()));
                return fits;
            }
            ("AttributeValue", Value::String(text)) => *value = json!({ "text": text }),
            ("AttributeValue", Value::Number(number)) => *value = json!({ "integer": number }),
            ("Name" | "Token" | "Schedule", Value::String(text)) => {
                let refused = refused(name, text);
                return refused
                    .is_none_or(|(message, allowed)| self.add(path, message, Some(allowed)));
            }
            _ => {}
        }
        if shape.get("oneOf").is_some() || shape.get("enum").is_some() {
            return self.variant(value, shape, path);
        }
        match (shape.get("properties").and_then(Value::as_object), value) {
            (Some(fields), Value::Object(map)) => self.object(map, shape, fields, name, path),
            (Some(_), value) => {
                let message = format!("an object is wanted here, not {}", shown(value));
                self.add(path, message, example::object(name, value))
            }
            (None, value) if shape.get("$ref").is_some() || shape.get("anyOf").is_some() => {
                self.shaped(value, shape, number, path)
            }
            (None, value) => self.plain(value, shape, number, path),
        }
    }

    fn band(&mut self, word: &str, value: &mut Value, path: &FieldPath) -> bool {
        let plain = word.replace('-', "_");
        if let Some((_, lowest)) = BANDS.iter().find(|(band, _)| *band == plain) {
            *value = json!(lowest);
            return true;
        }
        let words = BANDS.iter().map(|(band, _)| *band);
        let message = format!("{word:?} is not a priority");
        self.add(path, message + &guess(word, words), Some(bands()))
    }

    fn object(
        &mut self,
        map: &mut Map<String, Value>,
        shape: &Value,
        fields: &Map<String, Value>,
        owner: &str,
        path: &FieldPath,
    ) -> bool {
        let required = shape.get("required").and_then(Value::as_array);
        let required = || required.into_iter().flatten().filter_map(Value::as_str);
        let missing: Vec<&str> = required().filter(|name| !map.contains_key(*name)).collect();
        map.retain(|name, value| {
            let path = path.field(name);
            match fields.get(name) {
                Some(shape) => self.shaped(value, shape, Number::of(unit_of(owner, name)), &path),
                None => self.unknown(name, known(owner, fields).into_iter(), &path),
            }
        });
        for name in missing {
            let (message, help) = match MADE_OF.iter().find(|(whole, ..)| *whole == name) {
                Some((_, parts, example)) => {
                    (format!("{parts} are missing"), Some(format!("such as {example}")))
                }
                None => {
                    let help = fields.get(name).and_then(|shape| takes(owner, name, shape));
                    (format!("`{name}` is missing"), help)
                }
            };
            self.named(path, Fault::Missing(name.to_owned()), message, help);
        }
        for name in required().filter(|name| !map.contains_key(*name)).collect::<Vec<_>>() {
            let Some(nothing) = blank(owner, name) else { return false };
            map.insert(name.to_owned(), nothing);
        }
        true
    }

    fn unknown<'a>(
        &mut self,
        name: &str,
        known: impl Iterator<Item = &'a str> + Clone,
        path: &FieldPath,
    ) -> bool {
        let message = format!("there is no field `{name}` here{}", guess(name, known.clone()));
        let meant = guessed(name, known.clone()).map(str::to_owned);
        let all: Vec<&str> = known.collect();
        self.named(path, Fault::Unknown(meant), message, Some(all.join(", ")))
    }

    /// One of several words, or an object with one of several fields.
    fn variant(&mut self, value: &mut Value, shape: &Value, path: &FieldPath) -> bool {
        let (words, fields) = alternatives(shape);
        let allowed = listed(&words, &fields);
        match value {
            Value::String(word) if words.contains(&word.as_str()) => true,
            Value::String(word) => {
                let known = words.iter().copied().chain(fields.keys().map(String::as_str));
                let message = format!("{word:?} is not known here{}", guess(word, known));
                self.add(path, message, Some(allowed))
            }
            Value::Object(map) if map.len() == 1 => map.iter_mut().all(|(name, inner)| {
                let path = path.field(name);
                match fields.get(name) {
                    Some(shape) => self.shaped_field(inner, shape, &path),
                    None => self.unknown(name, fields.keys().map(String::as_str), &path),
                }
            }),
            other => {
                let message = format!("{} cannot stand here", shown(other));
                self.add(path, message, Some(format!("one of: {allowed}")))
            }
        }
    }

    /// The inside of a variant is a type, or fields of its own.
    fn shaped_field(&mut self, value: &mut Value, shape: &Value, path: &FieldPath) -> bool {
        let fields = shape.get("properties").and_then(Value::as_object);
        match (fields, value) {
            (Some(fields), Value::Object(map)) => self.object(map, shape, fields, "", path),
            (Some(_), value) => self.kind(value, "an object", path),
            (None, value) => self.shaped(value, shape, Number::default(), path),
        }
    }

    fn kind(&mut self, value: &Value, wanted: &str, path: &FieldPath) -> bool {
        self.add(path, format!("{wanted} is wanted here, not {}", shown(value)), None)
    }

    fn plain(
        &mut self,
        value: &mut Value,
        shape: &Value,
        number: Number,
        path: &FieldPath,
    ) -> bool {
        let kinds: Vec<&str> = match shape.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return true,
        };
        if value.is_null() && kinds.contains(&"null") {
            return true;
        }
        let kind = kinds.iter().find(|kind| **kind != "null").copied().unwrap_or_default();
        match (kind, &mut *value) {
            ("integer", _) => match number.read(value, shape) {
                Ok(read) => {
                    *value = read;
                    true
                }
                Err((message, allowed)) => self.add(path, message, Some(allowed)),
            },
            ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => true,
            ("array", Value::Array(items)) => {
                let inner = shape.get("items").unwrap_or(&Value::Null);
                let mut fits = true;
                for (position, item) in items.iter_mut().enumerate() {
                    fits &= self.shaped(item, inner, number.of_items(), &path.index(position));
                }
                fits
            }
            ("object", Value::Object(map)) => {
                self.map(map, shape, path);
                true
            }
            ("boolean", other) => self.kind(other, "true or false", path),
            ("string", Value::Number(number)) => {
                let (message, help) = unquoted(&number.to_string());
                self.add(path, message, Some(help));
                self.wrong.iter_mut().last().iter_mut().for_each(|w| w.fault = Fault::Unquoted);
                false
            }
            ("string", other) => self.kind(other, "a text", path),
            ("array", Value::String(text)) => {
                let help = example::list(text, shape.get("items").unwrap_or(&Value::Null));
                self.add(path, format!("a list is wanted here, not {}", json!(text)), Some(help))
            }
            ("array", other) => self.kind(other, "a list", path),
            (_, other) => {
                let message = format!("an object is wanted here, not {}", shown(other));
                self.add(path, message, Some(example::map(shape)))
            }
        }
    }

    /// Free names: labels, variables, task indices.
    fn map(&mut self, map: &mut Map<String, Value>, shape: &Value, path: &FieldPath) {
        let patterns = shape.get("patternProperties").and_then(Value::as_object);
        let pattern = patterns.and_then(|patterns| patterns.iter().next());
        let numbered = pattern.is_some_and(|(pattern, _)| pattern.contains("\\d"));
        let inner = match pattern {
            Some((_, inner)) => inner,
            None => shape.get("additionalProperties").unwrap_or(&Value::Null),
        };
        map.retain(|name, value| {
            let path = path.field(name);
            let refused = match (pattern.is_some(), numbered) {
                (_, true) => name.parse::<u32>().is_err().then(|| "a whole number".to_owned()),
                (true, false) => Token::new(name).err().map(|error| error.allowed),
                _ => None,
            };
            match refused {
                Some(allowed) => {
                    let message = format!("{name:?} is not valid here");
                    self.named(&path, Fault::Misfit, message, Some(allowed))
                }
                None => self.shaped(value, inner, Number::default(), &path),
            }
        });
    }
}

/// The name of jobs that have none which is right.
pub(crate) const UNNAMED: &str = "unnamed";

/// What a type cannot be read without, for a field that is wrong or missing. Rules are told that it
/// is not known, and never look at it.
fn blank(owner: &str, field: &str) -> Option<Value> {
    match (owner, field) {
        ("JobSpec" | "CronSpec", "name") => Some(json!(UNNAMED)),
        ("JobSpec", "priority") | ("Resources", "cpu" | "ram") => Some(json!(0)),
        ("JobSpec", "task") => {
            Some(json!({ "command": [], "limits": blank("TaskSpec", "limits") }))
        }
        ("TaskSpec", "command") => Some(json!([])),
        ("TaskSpec", "limits") => Some(json!({ "cpu": 0, "ram": 0 })),
        ("CronSpec", "schedule") => Some(json!("0 0 * * *")),
        ("CronSpec", "job") => {
            let task = blank("JobSpec", "task");
            Some(json!({ "name": UNNAMED, "priority": 0, "task": task }))
        }
        _ => None,
    }
}

/// What is wrong with a text of a type that not every text is one of, and what is allowed.
fn refused(name: &str, text: &str) -> Option<(String, String)> {
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

/// Of a text that is read as a number: what is wrong, and what to write.
pub(crate) fn unquoted(number: &str) -> (String, String) {
    (format!("a text is wanted here, not {number}"), format!("write it in quotes: '{number}'"))
}

/// What a priority can be.
fn bands() -> String {
    let words: Vec<&str> = BANDS.iter().map(|(band, _)| *band).collect();
    format!("{}, or a number from 0 to {MAX_PRIORITY}", words.join(", "))
}

/// What a value that is one of several can be: words, and objects of one field.
fn alternatives(shape: &Value) -> (Vec<&str>, Map<String, Value>) {
    let all = shape.get("oneOf").and_then(Value::as_array);
    let alternatives: Vec<&Value> = all.map_or(vec![shape], |all| all.iter().collect());
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

fn listed(words: &[&str], fields: &Map<String, Value>) -> String {
    let named = fields.keys().map(|field| format!("{{{field}: …}}"));
    words.iter().map(ToString::to_string).chain(named).collect::<Vec<_>>().join(", ")
}

/// What a field that is not there takes, or else what it is for.
fn takes(owner: &str, field: &str, shape: &Value) -> Option<String> {
    if Schema::get().resolve(shape).1 == Some("Priority") {
        return Some(bands());
    }
    let about = || shape.get("description")?.as_str().map(str::to_owned);
    let choices = || {
        let (inner, _) = Schema::get().resolve(shape);
        let is_choice = inner.get("oneOf").is_some() || inner.get("enum").is_some();
        let (words, fields) = alternatives(inner);
        is_choice.then(|| format!("one of: {}", listed(&words, &fields)))
    };
    wanted(owner, field, shape).or_else(choices).or_else(about)
}

/// Fields that may stand in an object of the type; in a job also those that are short for others.
fn known<'a>(owner: &str, fields: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut known: Vec<&str> = fields.keys().map(String::as_str).collect();
    if owner == "JobSpec" {
        known.push("owner");
        known.extend(Schema::get().fields("TaskSpec"));
        known.extend(Schema::get().fields("Resources"));
    }
    known
}

/// `; did you mean ...?`, or nothing.
pub(crate) fn guess<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match guessed(wrong, known) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    }
}

fn guessed<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let other = OTHER_WORDS.iter().find(|(word, _)| *word == wrong).map(|(_, ours)| *ours);
    let other = other.filter(|ours| known.contains(ours));
    other.or_else(|| nearest(wrong, known))
}

/// A value in an error: short.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => json!(text.chars().take(60).collect::<String>()).to_string(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
