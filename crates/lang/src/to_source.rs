//! The reverse direction: converts a spec of the cell to a job file as its owner would write it.
//! Numbers are written with their units, and loading the result gives the same spec.

use crate::schema::{Schema, unit_of};
use crate::units::Unit;
use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::update_policy::UpdatePolicy;
use serde_json::{Map, Value, json};

/// The job as it would be written in a file, without its secrets.
#[must_use]
pub fn job(spec: &JobSpec) -> Value {
    let mut value = serde_json::to_value(spec.redacted()).unwrap_or_default();
    // Only a job inside an alloc set has allocs to be paired with.
    let pairs = spec.alloc_set.is_some() || spec.alloc_pairing != AllocPairing::default();
    let says_how_updates_go = spec.update != UpdatePolicy::default();
    if let Value::Object(fields) = &mut value {
        let is_said = |name: &str| match name {
            "alloc_pairing" => pairs,
            "update" => says_how_updates_go,
            _ => true,
        };
        fields.retain(|name, _| is_said(name));
    }
    to_source(SchemaPosition { schema: &json!({ "$ref": "#/$defs/JobSpec" }), unit: None }, value)
}

/// The value of one field of a job, such as `task.limits.ram`; unchanged if there is no such field.
#[must_use]
pub fn field(path: &str, value: &Value) -> Value {
    let root = json!({ "$ref": "#/$defs/JobSpec" });
    let mut position = SchemaPosition { schema: &root, unit: None };
    for name in path.split('.') {
        match position.field(name) {
            Some(inner) => position = inner,
            None => return value.clone(),
        }
    }
    to_source(position, value.clone())
}

/// Writes CPU limits, and targets of numbers that tasks tell, in specs with their unit, so that
/// files take what programs print: a bare number is thousandths in the API, and whole cores in a
/// file. Specs are what stands below a field `spec`; everything else stays as the API has it.
pub fn mark_milli_cores(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                if name == "spec" { mark_limits(inner) } else { mark_milli_cores(inner) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mark_milli_cores),
        _ => {}
    }
}

/// The limits of the job, of single tasks, and of the job of a periodic one.
fn mark_limits(spec: &mut Value) {
    let Value::Object(map) = spec else { return };
    for (name, inner) in map {
        match (name.as_str(), &mut *inner) {
            ("task" | "job", _) => mark_limits(inner),
            ("overrides", Value::Object(tasks)) => tasks.values_mut().for_each(mark_limits),
            ("limits", limits) => mark(limits.get_mut("cpu")),
            ("scale", scale) => {
                let range = scale.get_mut("vertical").and_then(|vertical| vertical.get_mut("cpu"));
                let ends = range.and_then(Value::as_object_mut).into_iter().flatten();
                ends.for_each(|(_, end)| mark(Some(end)));
                let target = scale.get_mut("target").and_then(|target| target.get_mut("metrics"));
                let metrics = target.and_then(Value::as_array_mut).into_iter().flatten();
                metrics.for_each(|metric| mark(metric.get_mut("per_task")));
            }
            _ => {}
        }
    }
}

fn mark(milli: Option<&mut Value>) {
    if let Some(milli) = milli
        && let Some(number) = milli.as_u64()
    {
        *milli = Value::String(format!("{number}m"));
    }
}

/// A position in the schema, and the unit of a number there according to its field.
#[derive(Clone, Copy)]
struct SchemaPosition<'a> {
    schema: &'a Value,
    unit: Option<Unit>,
}

impl<'a> SchemaPosition<'a> {
    /// Resolves references and optional types; also returns the name of the last type.
    fn resolved(self) -> (SchemaPosition<'a>, &'a str) {
        let (mut position, mut owner) = (self, "");
        loop {
            let (schema, name) = Schema::get().resolve(position.schema);
            if let Some(name) = name {
                owner = name;
                let unit = (name == "Span").then_some(Unit::Milliseconds);
                position = SchemaPosition { schema, unit: unit.or(position.unit) };
                continue;
            }
            let any = position.schema.get("anyOf").and_then(Value::as_array);
            let null = json!("null");
            let other = any
                .into_iter()
                .flatten()
                .find(|alternative| alternative.get("type") != Some(&null));
            match other {
                Some(schema) => position.schema = schema,
                None => return (position, owner),
            }
        }
    }

    /// The position of the field of this name: of an object, a variant, or a map.
    fn field(self, name: &str) -> Option<SchemaPosition<'a>> {
        let (position, owner) = self.resolved();
        let of = |schema: &'a Value| schema.get("properties").and_then(|all| all.get(name));
        if let Some(schema) = of(position.schema) {
            return Some(SchemaPosition { schema, unit: unit_of(owner, name) });
        }
        let variants = position.schema.get("oneOf").and_then(Value::as_array);
        if let Some(schema) = variants.into_iter().flatten().find_map(of) {
            return Some(SchemaPosition { schema, unit: None });
        }
        let patterns = position.schema.get("patternProperties").and_then(Value::as_object);
        let free = patterns.and_then(|patterns| patterns.values().next());
        let free = free.or_else(|| position.schema.get("additionalProperties"));
        free.filter(|schema| schema.is_object())
            .map(|shape| SchemaPosition { schema: shape, unit: None })
    }
}

fn to_source(position: SchemaPosition<'_>, value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let inner = |(name, value): (String, Value)| {
                let converted = match position.field(&name) {
                    Some(inner) => to_source(inner, value),
                    None => value,
                };
                (name, converted)
            };
            Value::Object(map.into_iter().map(inner).collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            let (list, _) = position.resolved();
            let schema = list.schema.get("items").unwrap_or(&Value::Null);
            let inner = SchemaPosition { schema, unit: list.unit };
            items.into_iter().map(|item| to_source(inner, item)).collect()
        }
        Value::Number(number) => match (position.resolved().0.unit, number.as_u64()) {
            (Some(unit), Some(count)) => Value::String(unit.format(count)),
            _ => Value::Number(number),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_in_specs_are_printed_with_their_unit_and_nowhere_else() {
        let mut value = json!([{
            "limits": { "cpu": 7 },
            "spec": {
                "task": { "limits": { "cpu": 500, "ram": 1 } },
                "overrides": { "3": { "limits": { "cpu": 2000 } }, "4": { "limits": null } },
                "job": { "task": { "limits": { "cpu": 1 } } },
                "labels": { "limits": "cpu" },
            },
        }]);
        mark_milli_cores(&mut value);
        let want = json!([{
            "limits": { "cpu": 7 },
            "spec": {
                "task": { "limits": { "cpu": "500m", "ram": 1 } },
                "overrides": { "3": { "limits": { "cpu": "2000m" } }, "4": { "limits": null } },
                "job": { "task": { "limits": { "cpu": "1m" } } },
                "labels": { "limits": "cpu" },
            },
        }]);
        assert_eq!(value, want);
    }

    #[test]
    fn fields_are_written_with_their_units() {
        for (path, number, want) in [
            ("task.limits.cpu", 1500, json!("1.5")),
            ("task.limits.ram", 128 << 20, json!("128MiB")),
            ("task.limits.disk_rate", 10 << 20, json!("10MiB/s")),
            ("task.max_run", 600_000, json!("10m")),
            ("task.health.interval", 5000, json!("5s")),
            ("overrides.3.limits.ram", 1 << 30, json!("1GiB")),
            ("disruptions.within", 3_600_000, json!("1h")),
            ("count", 3, json!(3)),
            ("priority", 200, json!(200)),
            ("no.such.field", 7, json!(7)),
        ] {
            assert_eq!(field(path, &json!(number)), want, "{path}");
        }
        assert_eq!(
            field("disruptions", &json!({ "most": 1, "within": 60_000 })),
            json!({ "most": 1, "within": "1m" })
        );
    }
}
