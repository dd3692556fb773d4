//! Reads the value of a file into documents: jobs, alloc sets and periodic jobs. Short forms are
//! expanded here, for all three languages alike: task fields in the job itself, `user/job` as a
//! text, and the name from the key of the object that contains the job.

use crate::image::{self, ImageReference};
use crate::schema::Schema;
use crate::schema_check::{SchemaChecker, UNNAMED, value_text};
use crate::validate;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::field::{FieldPath, PathSegment};
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The maximum nesting of objects around jobs.
const MAX_NESTING: usize = 8;
/// A bare number of cores beyond this is most likely meant as thousandths of one.
const SUSPICIOUS_CORES: f64 = 64.0;

/// A job or an alloc set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobDocument {
    /// Absent: the user who runs the file.
    pub owner: Option<Name>,
    pub spec: JobSpec,
    /// The package of the cell that is to stand in the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageReference>,
}

/// A periodic job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CronDocument {
    /// Absent: the user who runs the file.
    pub owner: Option<Name>,
    pub spec: CronSpec,
    /// The package of the cell that is to stand in the spec of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageReference>,
}

/// One object that a file describes, as the API takes it.
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

    #[must_use]
    pub fn image(&self) -> Option<&ImageReference> {
        match self {
            Document::Job(job) => job.image.as_ref(),
            Document::Cron(cron) => cron.image.as_ref(),
        }
    }

    /// The spec to put the image into.
    pub fn job_mut(&mut self) -> &mut JobSpec {
        match self {
            Document::Job(job) => &mut job.spec,
            Document::Cron(cron) => &mut cron.spec.job,
        }
    }

    pub(crate) fn set_image(&mut self, image: Option<ImageReference>) {
        match self {
            Document::Job(job) => job.image = image,
            Document::Cron(cron) => cron.image = image,
        }
    }

    /// The spec of the job, or of a cron's runs.
    #[must_use]
    pub fn job(&self) -> &JobSpec {
        match self {
            Document::Job(job) => &job.spec,
            Document::Cron(cron) => &cron.spec.job,
        }
    }
}

/// A document with its position in the file.
pub(crate) struct LocatedDocument {
    pub path: FieldPath,
    /// The document without its invalid fields.
    pub document: Document,
    /// Whether its owner is valid.
    pub has_valid_owner: bool,
    /// Whether its name is the one in the file.
    pub has_valid_name: bool,
}

/// Reads documents from a value.
#[derive(Default)]
pub(crate) struct DocumentReader {
    pub checker: SchemaChecker,
    pub warnings: Vec<(FieldPath, String, String)>,
    pub documents: Vec<LocatedDocument>,
    /// The original path of each expanded short form: full path to written path.
    pub written_paths: BTreeMap<FieldPath, FieldPath>,
    pub default_owner: Option<Name>,
    /// References by bare name, which must be in the same file: field and name.
    pub bare_references: Vec<(FieldPath, String)>,
    /// References that are not a valid job name: field and text.
    pub invalid_references: Vec<(FieldPath, String)>,
    /// Jobs of the file by name, with the kind as written. Jobs with errors are included, because a
    /// reference to one of them is not an error.
    pub jobs_by_name: Vec<(String, Option<Value>)>,
    /// The image of the document that is being read.
    image: Option<ImageReference>,
}

impl DocumentReader {
    pub(crate) fn new(default_owner: Option<Name>) -> DocumentReader {
        DocumentReader { default_owner, ..DocumentReader::default() }
    }

    /// Reads documents in lists and objects, at any nesting.
    pub(crate) fn read(&mut self, value: Value, path: &FieldPath, key: Option<&str>) {
        const WANTED: &str = "a job (an object with `name`, `priority` and `task`), a list of \
                              jobs, or an object of jobs by name";
        let too_deep = path.0.len() > MAX_NESTING;
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
                let field_name = path.0.last().map_or("this", |_| "this field");
                self.checker.add_error(
                    path,
                    format!("{field_name} is no job"),
                    Some(WANTED.into()),
                );
            }
        }
    }

    fn document(&mut self, mut map: Map<String, Value>, path: &FieldPath, key: Option<&str>) {
        self.image = None;
        let (before, nameless) = (self.checker.errors.len(), self.invalid_references.len());
        let owner = self.owner(&mut map, path);
        let is_owned = self.checker.errors.len() == before;
        if let (false, Some(key)) = (map.contains_key("name"), key) {
            map.insert("name".into(), json!(key));
            self.written_paths.insert(path.field("name"), path.clone());
        }
        let is_cron = map.contains_key("schedule");
        if is_cron {
            self.expand_cron(&mut map, path, owner.as_ref())
        } else {
            if let Some(Value::String(name)) = map.get("name") {
                self.jobs_by_name.push((name.clone(), map.get("kind").cloned()));
            }
            self.expand_job(&mut map, path, owner.as_ref());
        }
        let called = map.get("name").and_then(Value::as_str).map(str::to_owned);
        let name = if is_cron { "CronSpec" } else { "JobSpec" };
        let mut value = Value::Object(map);
        self.checker.check(&mut value, name, path);
        let found = self.checker.errors.split_off(before);
        let (found, mut unknown) = validate::split_unknown(found, path);
        self.checker.errors.extend(found);
        for (nameless, _) in &self.invalid_references[nameless..] {
            unknown.insert(validate::relative_path(path, nameless));
        }
        let document = validate::validate(value, unknown, path, owner, &mut self.checker);
        let (path, image) = (path.clone(), self.image.take());
        self.documents.extend(document.map(|mut document| {
            document.set_image(image);
            let is_named = called.is_some_and(|name| name == document.name().as_str());
            LocatedDocument { path, document, has_valid_owner: is_owned, has_valid_name: is_named }
        }));
    }

    fn owner(&mut self, map: &mut Map<String, Value>, path: &FieldPath) -> Option<Name> {
        let mut owner_value = map.remove("owner")?;
        self.checker.check(&mut owner_value, "Name", &path.field("owner"));
        owner_value.as_str().and_then(|name| Name::new(name).ok())
    }

    /// Expands a cron; its job has the cron's name by default.
    fn expand_cron(
        &mut self,
        map: &mut Map<String, Value>,
        path: &FieldPath,
        owner: Option<&Name>,
    ) {
        let name = map.get("name").cloned();
        let name = name.filter(|name| name.as_str().is_some_and(|name| Name::new(name).is_ok()));
        let Some(Value::Object(job)) = map.get_mut("job") else { return };
        // An invalid name is reported only for the cron.
        job.entry("name").or_insert(name.unwrap_or(json!(UNNAMED)));
        self.expand_job(job, &path.field("job"), owner);
    }

    /// Expands the short forms in a job.
    fn expand_job(&mut self, job: &mut Map<String, Value>, path: &FieldPath, owner: Option<&Name>) {
        self.lift_task_fields(job, path);
        self.expand_image(job, path);
        // An invalid kind may be meant as an alloc set too.
        if job.get("kind").is_some_and(|kind| !kind.is_null() && *kind != json!("tasks"))
            && let Some(Value::Object(task)) = job.get_mut("task")
        {
            task.entry("command").or_insert(json!([]));
        }
        let cpu = job.get("task").and_then(|task| task.get("limits")?.get("cpu"));
        let number = cpu.and_then(Value::as_number);
        if let Some(many) =
            number.filter(|many| many.as_f64().is_some_and(|cores| cores > SUSPICIOUS_CORES))
        {
            let message = format!("{many} is {many} cores, which is very much");
            let help = format!("for {many} thousandths of a core write '{many}m'");
            self.warnings.push((path.join(&"task.limits.cpu".into()), message, help));
        }
        if let Some(set) = job.get_mut("alloc_set") {
            self.expand_reference(set, &path.field("alloc_set"), owner);
        }
        if let Some(after) = job.get_mut("after") {
            self.expand_after(after, &path.field("after"), owner);
        }
    }

    /// Expands an image to a package that is the root.
    fn expand_image(&mut self, job: &mut Map<String, Value>, path: &FieldPath) {
        let in_job = job.remove(image::FIELD).map(|value| (value, path.field(image::FIELD)));
        let task = job.get_mut("task").and_then(Value::as_object_mut);
        let inner = path.field("task").field(image::FIELD);
        let in_task = task.and_then(|task| task.remove(image::FIELD)).map(|value| (value, inner));
        let Some((value, at)) = in_job.or(in_task) else { return };
        let Some(task) = nested_object(job, &["task"]) else { return };
        let Value::String(text) = &value else {
            let message = format!("a text is wanted here, not {}", value_text(&value));
            self.checker.add_error(&at, message, None);
            return;
        };
        match ImageReference::parse(text) {
            Ok(found) if image::expand(task, &found) => self.image = Some(found),
            Ok(_) => {
                let message = "`image` is the root of the task, which `isolation.root` is as well";
                self.checker.add_error(&at, message, Some("one of the two".into()));
            }
            Err((message, allowed)) => {
                self.checker.add_error(&at, message, Some(allowed));
            }
        }
    }

    /// Expands a single dependency to a list, and the name of a job to a dependency.
    fn expand_after(&mut self, after: &mut Value, path: &FieldPath, owner: Option<&Name>) {
        let alone = matches!(after, Value::String(_) | Value::Object(_));
        if alone {
            *after = json!([after.take()]);
        } else if after.is_null() {
            *after = json!([]);
        }
        let Value::Array(list) = after else { return };
        for (position, entry) in list.iter_mut().enumerate() {
            let full = path.index(position);
            let written_path = if alone { path.clone() } else { full.clone() };
            self.written_paths.insert(full.clone(), written_path.clone());
            match entry {
                Value::Object(fields) => {
                    if let Some(job) = fields.get_mut("job") {
                        self.expand_reference(job, &full.field("job"), owner);
                    }
                }
                reference @ Value::String(_) => {
                    self.written_paths.insert(full.field("job"), written_path);
                    self.expand_reference(reference, &full.field("job"), owner);
                    *reference = json!({ "job": reference.take() });
                }
                _ => {}
            }
        }
    }

    /// Moves fields of the task and of its limits from the job into the task.
    fn lift_task_fields(&mut self, job: &mut Map<String, Value>, path: &FieldPath) {
        let schema = Schema::get();
        for (owner, steps) in [("TaskSpec", &["task"][..]), ("Resources", &["task", "limits"][..])]
        {
            for field in schema.fields(owner) {
                let Some(value) = job.remove(field) else { continue };
                let full = steps.iter().fold(path.clone(), |path, step| path.field(step));
                match nested_object(job, steps) {
                    Some(target) if !target.contains_key(field) => {
                        target.insert(field.to_owned(), value);
                        self.written_paths.insert(full.field(field), path.field(field));
                    }
                    Some(_) => {
                        let message =
                            format!("`{field}` is written here and in {}", steps.join("."));
                        self.checker.add_error(&path.field(field), message, None);
                    }
                    // A conflicting field is reported by the schema check.
                    None => {}
                }
            }
        }
    }

    /// Expands `user/job`, or a bare name of this file.
    fn expand_reference(&mut self, value: &mut Value, path: &FieldPath, owner: Option<&Name>) {
        let Value::String(text) = value else { return };
        let (user, job) = match text.split_once('/') {
            Some((user, job)) => (Some(user), job),
            None => (None, text.as_str()),
        };
        if user.into_iter().chain([job]).any(|name| Name::new(name).is_err()) {
            self.invalid_references.push((path.clone(), text.clone()));
            *value = json!({ "user": "somebody", "job": "something" });
            return;
        }
        if let Some(user) = user {
            *value = json!({ "user": user, "job": job });
            return;
        }
        let Some(owner) = owner.or(self.default_owner.as_ref()) else {
            let help = format!("USER/{text}, an `owner` in the file, or --owner USER");
            self.checker.add_error(path, format!("whose is {text:?}?"), Some(help));
            *value = json!({ "user": "somebody", "job": text });
            return;
        };
        self.bare_references.push((path.clone(), text.clone()));
        *value = json!({ "user": owner.as_str(), "job": text });
    }

    /// The path in the file of a field whose full form is at `path`.
    pub(crate) fn written_path(&self, path: &FieldPath) -> FieldPath {
        let steps: &[PathSegment] = &path.0;
        let found = (0..=steps.len()).rev().find_map(|length| {
            let written_path = self.written_paths.get(&FieldPath(steps[..length].to_vec()))?;
            Some(FieldPath([&written_path.0[..], &steps[length..]].concat()))
        });
        found.unwrap_or_else(|| path.clone())
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

/// The object at `steps`, created if it does not exist.
fn nested_object<'a>(
    map: &'a mut Map<String, Value>,
    steps: &[&str],
) -> Option<&'a mut Map<String, Value>> {
    steps
        .iter()
        .try_fold(map, |map, step| map.entry(*step).or_insert_with(|| json!({})).as_object_mut())
}
