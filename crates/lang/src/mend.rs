//! A document in which what is wrong has been replaced by something that fits, so that rules which
//! take a whole job can look at the rest of it. What was replaced is in doubt from then on, and
//! whatever a rule says about it, or says because of it, is no news.
//!
//! Rejected: rules that collect. The cell has no use for a second error of a job it refuses, and
//! would pay for the list with every job it admits.

use crate::path::{Path, Step};
use crate::schema::Schema;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::OnceLock;

/// Rules about two fields of a job: of the first nothing is known while the second is in doubt.
const LEANS_ON: [(&str, &[&str]); 13] = [
    ("job.name", &["name"]),
    ("overrides", &["count", "kind"]),
    ("preemption_notice_max", &["priority"]),
    ("restart.backoff", &["restart.backoff_max"]),
    ("restart.backoff_max", &["restart.backoff"]),
    ("retain_disk", &["alloc_set", "kind", "name", "overrides", "task.limits.disk"]),
    ("task.command", &["kind", "overrides"]),
    ("task.health.probe.http.port", &["task.ports", "task.static_ports"]),
    ("task.health.probe.tcp.port", &["task.ports", "task.static_ports"]),
    ("task.isolation.network", &["task.ports", "task.static_ports"]),
    ("task.isolation.root", &["task.packages"]),
    ("task.isolation.whole_cores", &["task.limits.cpu"]),
    ("task.limits.ram", &["kind", "task.isolation.slack_ram"]),
];
/// What stands in for a number, if it may: enough for memory, not too much for anything.
const SOME: i64 = 16 << 20;
/// Stand-ins that are tried for one field before what it is part of is replaced.
const TRIES: usize = 2;

/// Paths are from the document on.
pub(crate) struct Mended {
    value: Value,
    name: &'static str,
    /// By the names in a job, in the order of paths: what is related to one is found without a look
    /// at the others, of which there may be thousands.
    doubted: BTreeSet<Vec<Step>>,
    tried: BTreeMap<Path, usize>,
    /// Stand-ins so far: no two are the same, since some lists take nothing twice.
    made: usize,
}

impl Mended {
    /// `name`: that of the type.
    pub(crate) fn new(value: Value, name: &'static str) -> Mended {
        Mended { value, name, doubted: BTreeSet::new(), tried: BTreeMap::new(), made: 0 }
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.doubted.is_empty()
    }

    pub(crate) fn doubt(&mut self, path: Path) {
        let steps = self.in_job(&path.0).to_vec();
        self.doubted.insert(steps);
    }

    /// `field` of the object at `path` may be there under a name that nobody knows; fields of the
    /// task and its limits may stand in the job.
    pub(crate) fn doubt_misspelt(&mut self, path: &Path, field: &str) {
        let places = ["", "task", "task.limits"].map(|way| path.below(way).field(field));
        let absent = places.into_iter().filter(|path| !self.has(path));
        let absent: Vec<Path> = absent.collect();
        absent.into_iter().for_each(|path| self.doubt(path));
    }

    fn has(&self, path: &Path) -> bool {
        path.0.iter().try_fold(&self.value, inner).is_some()
    }

    /// Whether what a rule says about `path` may come of something in doubt.
    pub(crate) fn explains(&self, path: &Path) -> bool {
        let path = self.in_job(self.up_to_list(path));
        let leanings = leanings().iter().filter(|leaning| path.starts_with(&leaning.field));
        let mut others = leanings.flat_map(|leaning| &leaning.on);
        self.is_doubted(path) || others.any(|other| self.is_doubted(other))
    }

    /// Whether what is there, or what it is part of, or any part of it is in doubt.
    fn is_doubted(&self, steps: &[Step]) -> bool {
        let within = (0..=steps.len()).any(|length| self.doubted.contains(&steps[..length]));
        // What begins with the steps comes right after them.
        let from = (Bound::Included(steps), Bound::Unbounded);
        let next = || self.doubted.range::<[Step], _>(from).next();
        within || next().is_some_and(|doubted| doubted.starts_with(steps))
    }

    /// Rules about any item of a list say which field but not of which item.
    fn up_to_list<'a>(&self, path: &'a Path) -> &'a [Step] {
        let mut value = Some(&self.value);
        let goes_on = |step: &&Step| {
            let is_of_any = matches!((step, value), (Step::Field(_), Some(Value::Array(_))));
            value = value.and_then(|value| inner(value, step));
            !is_of_any
        };
        &path.0[..path.0.iter().take_while(goes_on).count()]
    }

    /// Fields of a periodic job's job go by the names they have in a job.
    fn in_job<'a>(&self, steps: &'a [Step]) -> &'a [Step] {
        match steps.split_first() {
            Some((Step::Field(first), rest)) if self.name == "CronSpec" && first == "job" => {
                let is_name = matches!(rest, [Step::Field(field)] if field == "name");
                if is_name { steps } else { rest }
            }
            _ => steps,
        }
    }

    /// Puts something that fits where `path` leads, or where it would; what that was part of when
    /// nothing there helps. Whether anything was left to replace.
    pub(crate) fn replace(&mut self, path: &Path) -> bool {
        let mut path = path.clone();
        while self.tried.get(&path).is_some_and(|tried| *tried >= TRIES) {
            path.0.pop();
        }
        if path.0.is_empty() {
            return false;
        }
        let tried = self.tried.entry(path.clone()).or_default();
        let first = *tried == 0;
        *tried += 1;
        let schema = Schema::get();
        let Some(definition) = schema.definition(self.name) else { return false };
        let mut value = self.value.take();
        self.within(&mut value, definition, &path.0, first);
        self.value = value;
        self.doubt(path);
        true
    }

    fn within(&mut self, value: &mut Value, shape: &Value, steps: &[Step], first: bool) {
        let shape = plain(shape);
        match (steps, &mut *value) {
            ([Step::Field(name), rest @ ..], Value::Object(map)) => {
                match field_of(shape, name) {
                    Some((inner, required)) => match (rest, map.get_mut(name)) {
                        ([], _) if required => {
                            drop(map.insert(name.clone(), self.made(inner, first)))
                        }
                        ([_, ..], Some(value)) => self.within(value, inner, rest, first),
                        _ => drop(map.remove(name)),
                    },
                    None if shape.get("oneOf").is_some() => {
                        *value = self.made(shape, first);
                        return;
                    }
                    None => drop(map.remove(name)),
                }
                self.complete(map, shape, first);
            }
            ([Step::Index(position), rest @ ..], Value::Array(items)) => {
                let inner = shape.get("items").unwrap_or(&Value::Null);
                match (rest, items.get_mut(*position)) {
                    ([], Some(item)) => *item = self.made(inner, first),
                    (_, Some(item)) => self.within(item, inner, rest, first),
                    (_, None) => {}
                }
            }
            _ => *value = self.made(shape, first),
        }
    }

    /// Fields that must be there and are not.
    fn complete(&mut self, map: &mut Map<String, Value>, shape: &Value, first: bool) {
        for name in required(shape) {
            if !map.contains_key(name)
                && let Some((inner, _)) = field_of(shape, name)
            {
                map.insert(name.to_owned(), self.made(inner, first));
            }
        }
    }

    /// Something that fits; of lists one with an item first, and an empty one when that was wrong.
    fn made(&mut self, shape: &Value, first: bool) -> Value {
        if let Some(default) = shape.get("default") {
            return default.clone();
        }
        let name = Schema::get().resolve(shape).1.unwrap_or_default();
        let shape = plain(shape);
        self.made += 1;
        let one_of = shape.get("oneOf").and_then(|all| all.get(0));
        let word = shape.get("const").or_else(|| shape.get("enum")?.get(0));
        match (name, word, one_of) {
            ("Name" | "Token", ..) => json!(format!("stand-in-{}", self.made)),
            ("Schedule", ..) => json!("0 0 * * *"),
            (_, Some(word), _) => word.clone(),
            (_, _, Some(one)) => self.made(one, first),
            _ => self.made_plain(shape, first),
        }
    }

    fn made_plain(&mut self, shape: &Value, first: bool) -> Value {
        let bound = |name: &str| shape.get(name).and_then(Value::as_i64);
        match shape.get("type").and_then(Value::as_str) {
            Some("integer") => {
                let most = match shape.get("format").and_then(Value::as_str) {
                    Some("uint8") => i64::from(u8::MAX),
                    Some("uint16") => i64::from(u16::MAX),
                    _ => i64::MAX,
                };
                let number = SOME.min(bound("maximum").unwrap_or(most));
                json!(number.max(bound("minimum").unwrap_or(0)))
            }
            // Where a text has a rule it is most likely a path.
            Some("string") => json!(format!("/stand-in-{}", self.made)),
            Some("boolean") => json!(false),
            Some("array") if first => {
                json!([self.made(shape.get("items").unwrap_or(&Value::Null), first)])
            }
            Some("array") => json!([]),
            Some("object") => {
                let mut map = Map::new();
                self.complete(&mut map, shape, first);
                Value::Object(map)
            }
            _ => Value::Null,
        }
    }
}

fn inner<'a>(value: &'a Value, step: &Step) -> Option<&'a Value> {
    match step {
        Step::Field(name) => value.get(name),
        Step::Index(position) => value.get(position),
    }
}

/// Without references, and of what may be absent what it is when it is there.
fn plain(shape: &Value) -> &Value {
    let shape = Schema::get().resolve(shape).0;
    let any = shape.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    let mut there = any.filter(|shape| shape.get("type") != Some(&json!("null")));
    there.next().map_or(shape, plain)
}

/// The shape of a field, and whether it must be there; free names need not be.
fn field_of<'a>(shape: &'a Value, name: &str) -> Option<(&'a Value, bool)> {
    let own = |shape: &'a Value| {
        let found = shape.get("properties")?.get(name)?;
        Some((found, required(shape).any(|field| field == name)))
    };
    let one_of = shape.get("oneOf").and_then(Value::as_array);
    let alternative = || one_of.into_iter().flatten().find_map(own);
    let pattern = || shape.get("patternProperties")?.as_object()?.values().next();
    let free = || pattern().or_else(|| shape.get("additionalProperties")).filter(|v| v.is_object());
    own(shape).or_else(alternative).or_else(|| free().map(|found| (found, false)))
}

fn required(shape: &Value) -> impl Iterator<Item = &str> {
    let list = shape.get("required").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// A rule of [`LEANS_ON`], in steps.
struct Leaning {
    field: Vec<Step>,
    on: Vec<Vec<Step>>,
}

fn leanings() -> &'static [Leaning] {
    static MADE: OnceLock<Vec<Leaning>> = OnceLock::new();
    let steps = |text: &str| Path::default().below(text).0;
    let made = |(field, on): &(&str, &[&str])| Leaning {
        field: steps(field),
        on: on.iter().map(|other| steps(other)).collect(),
    };
    MADE.get_or_init(|| LEANS_ON.iter().map(made).collect())
}
