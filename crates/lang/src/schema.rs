//! The JSON Schema of jobs, made from the types of the cell, so that the language cannot know a
//! field that the cell does not, nor the other way round. The checker walks it
//! ([`crate::shape`]), editors get it from `cell schema`, and the guide's tables are made from it.

use crate::units::Unit;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::spec::JobSpec;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// Types by their name, with references between them.
pub(crate) struct Schema {
    definitions: Map<String, Value>,
}

impl Schema {
    pub(crate) fn get() -> &'static Schema {
        static MADE: OnceLock<Schema> = OnceLock::new();
        MADE.get_or_init(|| {
            let mut generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
            generator.subschema_for::<JobSpec>();
            generator.subschema_for::<CronSpec>();
            Schema { definitions: generator.take_definitions(false).into_iter().collect() }
        })
    }

    pub(crate) fn definition(&self, name: &str) -> Option<&Value> {
        self.definitions.get(name)
    }

    /// What a reference leads to, with the name of the type.
    pub(crate) fn resolve<'a>(&'a self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next());
        match name.and_then(|name| Some((self.definition(name)?, name))) {
            Some((found, name)) => (found, Some(name)),
            None => (schema, None),
        }
    }

    /// Fields of the type, in the order of the type.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        let properties = self.definition(name).and_then(|d| d.get("properties")?.as_object());
        properties.map_or(Vec::new(), |fields| fields.keys().map(String::as_str).collect())
    }
}

/// What the numbers of a field count, if they may be written with a unit.
pub(crate) fn unit_of(owner: &str, field: &str) -> Option<Unit> {
    match (owner, field) {
        ("Resources", "cpu") => Some(Unit::Cpu),
        ("Resources", "disk_rate") | ("LogLimits", "rate") => Some(Unit::BytesPerSecond),
        ("Resources", "ram" | "disk")
        | ("LogLimits", "file_bytes")
        | ("RetainDisk" | "PackageRef", "bytes") => Some(Unit::Bytes),
        _ => None,
    }
}

/// The schema of a whole file, for editors: every short form that the language takes is in it.
#[must_use]
pub fn file_schema() -> Value {
    let schema = Schema::get();
    let mut definitions = schema.definitions.clone();
    for (owner, definition) in &mut definitions {
        let Some(fields) = definition.get_mut("properties").and_then(Value::as_object_mut) else {
            continue;
        };
        for (field, shape) in fields.iter_mut() {
            if unit_of(owner, field).is_some() {
                *shape = or_text(shape.take());
            }
        }
    }
    for name in ["Span", "Priority", "JobKey", "After", "AttributeValue"] {
        if let Some(definition) = definitions.get_mut(name) {
            let short = if name == "AttributeValue" {
                json!(["string", "integer"])
            } else {
                json!("string")
            };
            *definition = json!({ "anyOf": [definition.take(), { "type": short }] });
        }
    }
    if let Some(spec) = definitions.get_mut("JobSpec") {
        flatten(spec, schema);
    }
    if let Some(cron) = definitions.get_mut("CronSpec") {
        add_owner(cron);
    }
    let document = json!({ "anyOf": [
        { "$ref": "#/$defs/JobSpec" },
        { "$ref": "#/$defs/CronSpec" },
    ] });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Jobs of a cell",
        "description": "One job or periodic job, a list of them, or an object of them by name.",
        "anyOf": [
            document,
            { "type": "array", "items": document },
            { "type": "object", "additionalProperties": document },
        ],
        "$defs": definitions,
    })
}

fn or_text(shape: Value) -> Value {
    let about = shape.get("description").cloned();
    let mut either = json!({ "anyOf": [shape, { "type": "string" }] });
    if let Some(about) = about {
        either["description"] = about;
    }
    either
}

fn add_owner(definition: &mut Value) {
    definition["properties"]["owner"] =
        json!({ "$ref": "#/$defs/Name", "description": "Whose it is. Left out: whoever runs it." });
}

/// Fields of the task and of its limits may stand in the job itself.
fn flatten(spec: &mut Value, schema: &Schema) {
    add_owner(spec);
    for (owner, inner) in [("TaskSpec", "task"), ("Resources", "task.limits")] {
        for field in schema.fields(owner) {
            let reference = format!("#/$defs/{owner}/properties/{field}");
            let about = format!("Short for {inner}.{field}.");
            spec["properties"][field] = json!({ "$ref": reference, "description": about });
        }
    }
    // A job in an object has its name from there; a task may be written in short.
    spec["required"] = json!(["priority"]);
}
