//! From the value of a file to what it asks for: jobs, alloc sets and periodic jobs. Short forms
//! are written out here, for all three languages alike: fields of the task in the job itself,
//! `user/job` as a text, the name from the object the job stands in.

use crate::path::{Path, Step};
use crate::schema::Schema;
use crate::shape::{Checker, guess};
use cellwright_cell::admit;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::name::{JobKey, MAX_NAME, Name};
use cellwright_cell::reason::Refusal;
use cellwright_cell::spec::{JobKind, JobSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Objects within objects of jobs.
const MOST_NESTING: usize = 8;
/// Thousandths of a core below which a bare number is most likely meant as cores.
const FEW_THOUSANDTHS: u64 = 64;

/// A job or an alloc set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobDocument {
    /// Absent: whoever runs the file.
    pub owner: Option<Name>,
    pub spec: JobSpec,
}

/// A periodic job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CronDocument {
    /// Absent: whoever runs the file.
    pub owner: Option<Name>,
    pub spec: CronSpec,
}

/// One thing that a file asks for, as the API takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Document {
    Job(JobDocument),
    Cron(CronDocument),
}

impl Document {
    #[must_use]
    pub fn owner(&self) -> Option<&Name> {
        match self {
            Document::Job(job) => job.owner.as_ref(),
            Document::Cron(cron) => cron.owner.as_ref(),
        }
    }

    #[must_use]
    pub fn name(&self) -> &Name {
        match self {
            Document::Job(job) => &job.spec.name,
            Document::Cron(cron) => &cron.spec.name,
        }
    }

    /// What a run of it is.
    #[must_use]
    pub fn job(&self) -> &JobSpec {
        match self {
            Document::Job(job) => &job.spec,
            Document::Cron(cron) => &cron.spec.job,
        }
    }
}

/// A document where it was found.
pub(crate) struct Placed {
    pub path: Path,
    pub document: Document,
    /// References by bare name, which are to be in the same file: field and name.
    pub short: Vec<(Path, String)>,
}

/// Reads documents out of a value.
#[derive(Default)]
pub(crate) struct Reader {
    pub checker: Checker,
    pub warnings: Vec<(Path, String, String)>,
    pub placed: Vec<Placed>,
    /// Where a field really stands that was written in short: full path to written path.
    pub written: BTreeMap<Path, Path>,
    default_owner: Option<Name>,
    short: Vec<(Path, String)>,
    /// References that no job could have as its name: field and text.
    nameless: Vec<(Path, String)>,
    /// Jobs of the file by name, with the kind that is written: whoever refers to one that has
    /// something wrong with it has not made a mistake.
    named: Vec<(String, Option<Value>)>,
}

impl Reader {
    pub(crate) fn new(default_owner: Option<Name>) -> Reader {
        Reader { default_owner, ..Reader::default() }
    }

    /// Documents in lists and objects, however nested.
    pub(crate) fn read(&mut self, value: Value, path: &Path, key: Option<&str>) {
        const WANTED: &str = "a job (an object with `name`, `priority` and `task`), a list of \
                              jobs, or an object of jobs by name";
        let too_deep = path.0.len() > MOST_NESTING;
        match value {
            Value::Array(items) if !too_deep => {
                for (position, item) in items.into_iter().enumerate() {
                    self.read(item, &path.index(position), None);
                }
            }
            Value::Object(map) if is_document(&map) => self.document(map, path, key),
            Value::Object(map) if !too_deep => {
                for (name, item) in map {
                    self.read(item, &path.field(&name), Some(&name));
                }
            }
            _ => {
                let what = path.0.last().map_or("this", |_| "this field");
                self.checker.add(path, format!("{what} is no job"), Some(WANTED.into()));
            }
        }
    }

    fn document(&mut self, mut map: Map<String, Value>, path: &Path, key: Option<&str>) {
        let (before, nameless) = (self.checker.wrong.len(), self.nameless.len());
        let owner = self.owner(&mut map, path);
        if let (false, Some(key)) = (map.contains_key("name"), key) {
            map.insert("name".into(), json!(key));
            self.written.insert(path.field("name"), path.clone());
        }
        let is_cron = map.contains_key("schedule");
        if let (false, Some(Value::String(name))) = (is_cron, map.get("name")) {
            self.named.push((name.clone(), map.get("kind").cloned()));
        }
        let inner = if is_cron { path.field("job") } else { path.clone() };
        match (is_cron, map.contains_key("job")) {
            (false, _) => self.lengthen(&mut map, &inner, owner.as_ref()),
            (true, true) => {
                let name = map.get("name").cloned();
                if let Some(Value::Object(job)) = map.get_mut("job") {
                    if let (false, Some(name)) = (job.contains_key("name"), name) {
                        job.insert("name".into(), name);
                    }
                    self.lengthen(job, &inner, owner.as_ref());
                }
            }
            (true, false) => {}
        }
        let mut value = Value::Object(map);
        self.checker.check(&mut value, if is_cron { "CronSpec" } else { "JobSpec" }, path);
        let short = std::mem::take(&mut self.short);
        if self.checker.wrong.len() > before {
            return;
        }
        // What stands in for a name is nothing that admission could judge.
        let is_written = self.nameless.len() == nameless;
        let document = match is_cron {
            true => self.cron(value, path, owner, is_written),
            false => self.job(value, path, owner, is_written),
        };
        self.placed.extend(document.map(|document| Placed { path: path.clone(), document, short }));
    }

    fn owner(&mut self, map: &mut Map<String, Value>, path: &Path) -> Option<Name> {
        let mut given = map.remove("owner")?;
        let before = self.checker.wrong.len();
        self.checker.check(&mut given, "Name", &path.field("owner"));
        if self.checker.wrong.len() > before {
            return None;
        }
        given.as_str().and_then(|name| Name::new(name).ok())
    }

    fn job(
        &mut self,
        value: Value,
        path: &Path,
        owner: Option<Name>,
        is_written: bool,
    ) -> Option<Document> {
        let spec: JobSpec = self.spec(value, path)?;
        if is_written {
            self.admitted(path, admit::check_job(&spec).and_then(|()| asked_anew(&spec)))?;
        }
        Some(Document::Job(JobDocument { owner, spec }))
    }

    fn cron(
        &mut self,
        value: Value,
        path: &Path,
        owner: Option<Name>,
        is_written: bool,
    ) -> Option<Document> {
        let spec: CronSpec = self.spec(value, path)?;
        if is_written {
            let job = admit::check_job(&spec.job).and_then(|()| asked_anew(&spec.job));
            self.admitted(&path.field("job"), job)?;
            self.admitted(path, spec.check())?;
        }
        Some(Document::Cron(CronDocument { owner, spec }))
    }

    fn spec<T: DeserializeOwned>(&mut self, value: Value, path: &Path) -> Option<T> {
        let read = serde_json::from_value(value);
        read.map_err(|error| {
            self.checker.add(path, format!("this is not understood: {error}"), None);
        })
        .ok()
    }

    /// Notes what the cell's own rules say of the spec at `path`.
    fn admitted(&mut self, path: &Path, verdict: Result<(), Refusal>) -> Option<()> {
        match verdict {
            Ok(()) => Some(()),
            Err(Refusal::BadField { field, value, allowed }) => {
                let path = below(path, &field);
                self.checker.add(&path, format!("{field}: {value} is not valid"), Some(allowed));
                None
            }
            Err(other) => {
                self.checker.add(path, other.to_string(), None);
                None
            }
        }
    }

    /// Writes out what may be written in short in a job.
    fn lengthen(&mut self, job: &mut Map<String, Value>, path: &Path, owner: Option<&Name>) {
        self.lift(job, path);
        if job.get("kind") == Some(&json!("alloc_set"))
            && let Some(Value::Object(task)) = job.get_mut("task")
        {
            task.entry("command").or_insert(json!([]));
        }
        let cpu = job.get("task").and_then(|task| task.get("limits")?.get("cpu"));
        if let Some(few) = cpu.and_then(Value::as_u64).filter(|n| (1..=FEW_THOUSANDTHS).contains(n))
        {
            let message = format!("{few} is {few} thousandths of a core, which is very little");
            let help = format!("for {few} cores write '{few}' in quotes");
            self.warnings.push((path.below("task.limits.cpu"), message, help));
        }
        if let Some(set) = job.get_mut("alloc_set") {
            self.reference(set, &path.field("alloc_set"), owner);
        }
        if let Some(after) = job.get_mut("after") {
            self.lengthen_after(after, &path.field("after"), owner);
        }
    }

    /// One job to wait for stands for a list of one, and its name for itself.
    fn lengthen_after(&mut self, after: &mut Value, path: &Path, owner: Option<&Name>) {
        let alone = matches!(after, Value::String(_) | Value::Object(_));
        match alone {
            true => *after = json!([after.take()]),
            false if after.is_null() => *after = json!([]),
            false => {}
        }
        let Value::Array(list) = after else { return };
        for (position, one) in list.iter_mut().enumerate() {
            let full = path.index(position);
            let written = if alone { path.clone() } else { full.clone() };
            self.written.insert(full.clone(), written.clone());
            match one {
                Value::Object(fields) => {
                    if let Some(job) = fields.get_mut("job") {
                        self.reference(job, &full.field("job"), owner);
                    }
                }
                short @ Value::String(_) => {
                    self.written.insert(full.field("job"), written);
                    self.reference(short, &full.field("job"), owner);
                    *short = json!({ "job": short.take() });
                }
                _ => {}
            }
        }
    }

    /// Fields of the task and of its limits that stand in the job itself.
    fn lift(&mut self, job: &mut Map<String, Value>, path: &Path) {
        let schema = Schema::get();
        for (owner, way) in [("TaskSpec", &["task"][..]), ("Resources", &["task", "limits"][..])] {
            for field in schema.fields(owner) {
                let Some(value) = job.remove(field) else { continue };
                let full = way.iter().fold(path.clone(), |path, step| path.field(step));
                match inner(job, way) {
                    Some(target) if !target.contains_key(field) => {
                        target.insert(field.to_owned(), value);
                        self.written.insert(full.field(field), path.field(field));
                    }
                    Some(_) => {
                        let message = format!("`{field}` is written here and in {}", way.join("."));
                        self.checker.add(&path.field(field), message, None);
                    }
                    // What stands in the way is reported when the whole is checked.
                    None => {}
                }
            }
        }
    }

    /// `user/job`, or a bare name of this file.
    fn reference(&mut self, value: &mut Value, path: &Path, owner: Option<&Name>) {
        let Value::String(text) = value else { return };
        let (user, job) = match text.split_once('/') {
            Some((user, job)) => (Some(user), job),
            None => (None, text.as_str()),
        };
        if user.into_iter().chain([job]).any(|name| Name::new(name).is_err()) {
            self.nameless.push((path.clone(), text.clone()));
            *value = json!({ "user": "somebody", "job": "something" });
            return;
        }
        if let Some(user) = user {
            *value = json!({ "user": user, "job": job });
            return;
        }
        let Some(owner) = owner.or(self.default_owner.as_ref()) else {
            let help = format!("USER/{text}, an `owner` in the file, or --owner USER");
            self.checker.add(path, format!("whose is {text:?}?"), Some(help));
            *value = json!({ "user": "somebody", "job": text });
            return;
        };
        self.short.push((path.clone(), text.clone()));
        *value = json!({ "user": owner.as_str(), "job": text });
    }

    /// What stands in the file where the full form has `path`.
    pub(crate) fn as_written(&self, path: &Path) -> Path {
        let steps: &[Step] = &path.0;
        let found = (0..=steps.len()).rev().find_map(|length| {
            let written = self.written.get(&Path(steps[..length].to_vec()))?;
            Some(Path([&written.0[..], &steps[length..]].concat()))
        });
        found.unwrap_or_else(|| path.clone())
    }

    /// What only all documents together show: names, references, and the order to submit in.
    pub(crate) fn finish(mut self) -> (Reader, Vec<Document>) {
        self.distinct();
        self.resolved();
        let order = self.order();
        let documents = order.into_iter().map(|at| self.placed[at].document.clone()).collect();
        (self, documents)
    }

    fn key(&self, document: &Document) -> (Option<Name>, Name) {
        let owner = document.owner().or(self.default_owner.as_ref()).cloned();
        (owner, document.name().clone())
    }

    fn distinct(&mut self) {
        let mut seen: BTreeMap<(Option<Name>, Name), Path> = BTreeMap::new();
        for placed in &self.placed {
            let key = self.key(&placed.document);
            if let Some(first) = seen.get(&key) {
                let message = format!("the name {} is taken by {first}", key.1);
                self.checker.add(
                    &placed.path.field("name"),
                    message,
                    Some("each name once".into()),
                );
            } else {
                seen.insert(key, placed.path.clone());
            }
        }
    }

    /// Bare names are jobs of this file.
    fn resolved(&mut self) {
        // A kind that is neither may be meant as either.
        let names = |other: &str, unless_said: bool| -> Vec<String> {
            let is_one = |kind: &Option<Value>| match kind {
                None | Some(Value::Null) => unless_said,
                Some(kind) => kind != other,
            };
            let wanted =
                self.named.iter().filter(|(name, kind)| is_one(kind) && Name::new(name).is_ok());
            wanted.map(|(name, _)| name.clone()).collect()
        };
        let (jobs, sets) = (names("alloc_set", true), names("tasks", false));
        let short: Vec<(Path, String)> =
            self.placed.iter().flat_map(|placed| placed.short.clone()).collect();
        for (path, name) in short {
            let (known, what) = referred(&path, &jobs, &sets);
            if known.contains(&name) {
                continue;
            }
            let message = format!("there is no {what} {name:?} in this file");
            let message = message + &guess(&name, known.iter().map(String::as_str));
            let help = match known.is_empty() {
                true => format!("USER/{name} for one that is in the cell already"),
                false => format!("{}; USER/{name} for one in the cell already", known.join(", ")),
            };
            self.checker.add(&path, message, Some(help));
        }
        for (path, text) in std::mem::take(&mut self.nameless) {
            let (known, what) = referred(&path, &jobs, &sets);
            let last = text.rsplit('/').next().unwrap_or_default();
            let message = format!("no {what} can be called {text:?}");
            let message = message + &guess(last, known.iter().map(String::as_str));
            let here = known.iter().map(|name| format!("{name}, ")).collect::<String>();
            let help = format!(
                "{here}or USER/NAME for one that is in the cell already, each of 1 to {MAX_NAME} \
                 characters a-z, 0-9 and -, not starting or ending with -"
            );
            let help = help.trim_start_matches("or ").to_owned();
            self.checker.add(&path, message, Some(help));
        }
        self.users_that_are_jobs(&jobs);
    }

    /// `web/0` is the job `0` of a user `web`; hardly anybody means that who has a job `web`.
    fn users_that_are_jobs(&mut self, jobs: &[String]) {
        let owners: Vec<Option<Name>> =
            self.placed.iter().map(|placed| self.key(&placed.document).0).collect();
        for placed in &self.placed {
            let at = match placed.document {
                Document::Job(_) => placed.path.clone(),
                Document::Cron(_) => placed.path.field("job"),
            };
            for (position, after) in placed.document.job().after.iter().enumerate() {
                let user = &after.job.user;
                if !jobs.iter().any(|job| job == user.as_str())
                    || owners.contains(&Some(user.clone()))
                {
                    continue;
                }
                let path = at.field("after").index(position).field("job");
                let message = format!("{user} is a job of this file, and here the name of a user");
                let help =
                    format!("for that job write '{user}'; one can wait for whole jobs alone");
                self.warnings.push((path, message, help));
            }
        }
    }

    /// Alloc sets before what is inside them, jobs before those that start after them.
    fn order(&mut self) -> Vec<usize> {
        let at: BTreeMap<(Option<Name>, Name), usize> =
            self.placed.iter().enumerate().map(|(i, p)| (self.key(&p.document), i)).collect();
        let needs = |placed: &Placed| -> Vec<usize> {
            let job = placed.document.job();
            let after = job.after.iter().map(|after| &after.job);
            let keys = after.chain(&job.alloc_set);
            keys.filter_map(|key: &JobKey| {
                at.get(&(Some(key.user.clone()), key.job.clone())).copied()
            })
            .collect()
        };
        let mut waiting: Vec<(usize, Vec<usize>)> =
            self.placed.iter().enumerate().map(|(i, placed)| (i, needs(placed))).collect();
        let mut order: Vec<usize> = Vec::new();
        while !waiting.is_empty() {
            let (ready, rest): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|(_, needs)| needs.iter().all(|need| order.contains(need)));
            if ready.is_empty() {
                for (at, _) in &rest {
                    let path = self.placed[*at].path.field("after");
                    let help = "jobs that wait for each other would never start";
                    self.checker.add(&path, "this job waits for itself", Some(help.into()));
                }
                break;
            }
            order.extend(ready.into_iter().map(|(at, _)| at));
            waiting = rest;
        }
        order
    }
}

/// Among which names a reference is looked up, and what they are names of.
fn referred<'a>(
    path: &Path,
    jobs: &'a [String],
    sets: &'a [String],
) -> (&'a [String], &'static str) {
    match path.0.last() {
        Some(Step::Field(field)) if field == "alloc_set" => (sets, "alloc set"),
        _ => (jobs, "job"),
    }
}

/// Rules for what is written now, which jobs from before need not keep.
fn asked_anew(spec: &JobSpec) -> Result<(), Refusal> {
    admit::may_bound_notice(spec)?;
    admit::asks_for_no_gaps(spec)?;
    admit::volumes_can_be_seen(spec)?;
    admit::can_begin(spec)?;
    runs_a_program(spec)
}

/// No package brings a command with it, so a task without one fails wherever it is started. As with
/// what cannot begin, that is a rule for those who write jobs, not for the log.
fn runs_a_program(spec: &JobSpec) -> Result<(), Refusal> {
    let names_one = |field: String, command: &[String]| match command.first() {
        Some(program) if !program.is_empty() => Ok(()),
        _ => Err(Refusal::BadField {
            field,
            value: format!("{command:?}"),
            allowed: "a program and its arguments, such as [\"sleep\", \"60\"]".into(),
        }),
    };
    if spec.kind == JobKind::AllocSet {
        return Ok(());
    }
    let own = || spec.overrides.iter().filter_map(|(at, own)| Some((at, own.command.as_ref()?)));
    for (at, command) in own() {
        names_one(format!("overrides.{at}.command"), command)?;
    }
    match own().count() < spec.count as usize {
        true => names_one("task.command".to_owned(), &spec.task.command),
        false => Ok(()),
    }
}

/// Whether an object is a job rather than an object of jobs.
fn is_document(map: &Map<String, Value>) -> bool {
    const FIELDS: [&str; 8] =
        ["name", "priority", "count", "schedule", "kind", "command", "cpu", "ram"];
    let plain = |field: &str| map.get(field).is_some_and(|value| !value.is_object());
    let task = map.get("task").and_then(Value::as_object);
    let program =
        |task: &Map<String, Value>| task.contains_key("command") || task.contains_key("limits");
    FIELDS.iter().any(|field| plain(field)) || task.is_some_and(program)
}

/// The object that `way` leads to, made on the way.
fn inner<'a>(map: &'a mut Map<String, Value>, way: &[&str]) -> Option<&'a mut Map<String, Value>> {
    way.iter()
        .try_fold(map, |map, step| map.entry(*step).or_insert_with(|| json!({})).as_object_mut())
}

/// The path of a field as admission names it.
fn below(path: &Path, field: &str) -> Path {
    let field = field
        .strip_prefix("total of all tasks' ")
        .map_or(field.to_owned(), |rest| format!("task.{rest}"));
    let field = field.split(' ').next().unwrap_or_default();
    path.below(&field.replace("disk-rate", "disk_rate"))
}
