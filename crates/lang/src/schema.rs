//! The JSON Schema of jobs, generated from the cell's types, so that the language and the cell
//! always have the same fields. The checker walks it ([`crate::schema_check`]), editors get it from
//! `cell schema`, and the guide's tables are generated from it.

use crate::units::Unit;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::resource::MAX_QUANTITY;
use cellwright_cell::schema_descriptions::simplify_descriptions;
use cellwright_cell::spec::JobSpec;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// Bounds for a single task's amounts, whose types count whole cells elsewhere.
const TASK_LIMITS: [(&str, &str); 9] = [
    ("Resources", "cpu"),
    ("Resources", "ram"),
    ("Resources", "disk"),
    ("Resources", "disk_rate"),
    ("LimitsOverride", "cpu"),
    ("LimitsOverride", "ram"),
    ("LimitsOverride", "disk"),
    ("LimitsOverride", "disk_rate"),
    ("NamedAmount", "amount"),
];

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
            let mut definitions: Map<String, Value> =
                generator.take_definitions(false).into_iter().collect();
            definitions.values_mut().for_each(simplify_descriptions);
            for (owner, field) in TASK_LIMITS {
                let fields = definitions.get_mut(owner).and_then(|d| d.get_mut("properties"));
                if let Some(schema) = fields.and_then(|fields| fields.get_mut(field)) {
                    schema["maximum"] = json!(MAX_QUANTITY);
                }
            }
            Schema { definitions }
        })
    }

    pub(crate) fn definition(&self, name: &str) -> Option<&Value> {
        self.definitions.get(name)
    }

    /// Resolves a reference, and returns the name of the type too.
    pub(crate) fn resolve<'a>(&'a self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next());
        match name.and_then(|name| Some((self.definition(name)?, name))) {
            Some((found, name)) => (found, Some(name)),
            None => (schema, None),
        }
    }

    /// The fields of the type, in the order of their definition.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        let properties = self.definition(name).and_then(|d| d.get("properties")?.as_object());
        properties.map_or(Vec::new(), |fields| fields.keys().map(String::as_str).collect())
    }
}

/// The unit of a numeric field, if it may be written with one.
pub(crate) fn unit_of(owner: &str, field: &str) -> Option<Unit> {
    match (owner, field) {
        ("Resources" | "LimitsOverride", "cpu") | ("CpuRange", "min" | "max") => Some(Unit::Cpu),
        ("Resources" | "LimitsOverride", "disk_rate") | ("LogLimits", "rate") => {
            Some(Unit::BytesPerSecond)
        }
        ("Resources" | "LimitsOverride", "ram" | "disk")
        | ("LogLimits", "file_bytes")
        | ("RetainDisk" | "PackageRef", "bytes")
        | ("RamRange", "min" | "max") => Some(Unit::Bytes),
        ("MetricTarget", "per_task") => Some(Unit::Count),
        _ => None,
    }
}

/// The schema of a whole file, for editors, including all short forms of the language.
#[must_use]
pub fn file_schema() -> Value {
    let schema = Schema::get();
    let mut definitions = schema.definitions.clone();
    for (owner, definition) in &mut definitions {
        let Some(fields) = definition.get_mut("properties").and_then(Value::as_object_mut) else {
            continue;
        };
        for (field, shape) in fields.iter_mut() {
            match unit_of(owner, field) {
                Some(Unit::Cpu) => *shape = cores(),
                Some(Unit::Count) => *shape = count(),
                Some(_) => *shape = allow_text(shape.take()),
                None => {}
            }
        }
    }
    for name in ["Span", "Priority", "JobKey", "JobDependency", "AttributeValue"] {
        if let Some(definition) = definitions.get_mut(name) {
            let shorthand = if name == "AttributeValue" {
                json!(["string", "integer"])
            } else {
                json!("string")
            };
            *definition = json!({ "anyOf": [definition.take(), { "type": shorthand }] });
        }
    }
    if let Some(spec) = definitions.get_mut("JobSpec") {
        flatten_task_fields(spec, schema);
    }
    if let Some(cron) = definitions.get_mut("CronSpec") {
        add_owner(cron);
    }
    // Lists and objects of jobs may be nested.
    let whole = json!({ "$ref": "#" });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Jobs of a cell",
        "description": "One job or periodic job, a list of them, or an object of them by name.",
        "anyOf": [
            { "$ref": "#/$defs/JobSpec" },
            { "$ref": "#/$defs/CronSpec" },
            { "type": "array", "items": whole },
            { "type": "object", "additionalProperties": whole },
        ],
        "$defs": definitions,
    })
}

/// CPU as files have it; the API counts in thousandths.
fn cores() -> Value {
    json!({
        "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
        "description": "Cores, as 2 or 0.5; as a text with m thousandths of one, as '500m'.",
    })
}

/// A number as files have it; the API counts in thousandths.
fn count() -> Value {
    json!({
        "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
        "description": "What one task is meant for, as 100 or 0.5; of a rate, in a second.",
    })
}

fn allow_text(schema: Value) -> Value {
    let about = schema.get("description").cloned();
    let mut either = json!({ "anyOf": [schema, { "type": "string" }] });
    if let Some(about) = about {
        either["description"] = about;
    }
    either
}

fn add_owner(definition: &mut Value) {
    definition["properties"]["owner"] =
        json!({ "$ref": "#/$defs/Name", "description": "Whose it is. Left out: whoever runs it." });
}

/// Adds the fields of the task and of its limits to the job itself.
fn flatten_task_fields(spec: &mut Value, schema: &Schema) {
    add_owner(spec);
    for (owner, inner) in [("TaskSpec", "task"), ("Resources", "task.limits")] {
        for field in schema.fields(owner) {
            let reference = format!("#/$defs/{owner}/properties/{field}");
            let about = format!("Short for {inner}.{field}.");
            spec["properties"][field] = json!({ "$ref": reference, "description": about });
        }
    }
    spec["properties"]["image"] = json!({
        "type": "string",
        "description": "The package that is the task's file system: NAME, NAME:TAG or NAME@DIGEST.",
    });
    // A single dependency may replace a list of one.
    let after = &mut spec["properties"]["after"];
    let (about, default) = (after["description"].clone(), after["default"].clone());
    let either = [after.take(), json!({ "$ref": "#/$defs/After" })];
    *after = json!({ "anyOf": either, "description": about, "default": default });
    // A job in an object gets its name from the key; a task may be written in short form.
    spec["required"] = json!(["priority"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editors_know_every_short_form() {
        let schema = file_schema();
        let fields = &schema["$defs"]["JobSpec"]["properties"];
        assert_eq!(fields["after"]["anyOf"][0]["type"], "array");
        assert_eq!(fields["after"]["anyOf"][1]["$ref"], "#/$defs/After");
        assert_eq!(schema["$defs"]["JobDependency"]["anyOf"][1]["type"], "string");
        assert_eq!(fields["ram"]["$ref"], "#/$defs/Resources/properties/ram");
        assert_eq!(schema["$defs"]["Resources"]["properties"]["ram"]["anyOf"][1]["type"], "string");
        let cpu = &schema["$defs"]["Resources"]["properties"]["cpu"];
        assert_eq!(
            (&cpu["anyOf"][0]["type"], &cpu["anyOf"][1]["type"]),
            (&json!("number"), &json!("string"))
        );
        assert_eq!(schema["$defs"]["Span"]["anyOf"][1]["type"], "string");
        // In lists and objects, and in nested ones.
        assert_eq!(schema["anyOf"][2]["items"]["$ref"], "#");
        assert_eq!(schema["anyOf"][3]["additionalProperties"]["$ref"], "#");
    }
}
