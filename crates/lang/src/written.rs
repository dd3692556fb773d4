//! The way back: what a cell has, as its owner would write it. Whole numbers that count something
//! get the unit they may be written with, and a file with the result means the same again.

use crate::schema::{Schema, unit_of};
use crate::units::Unit;
use cellwright_cell::spec::JobSpec;
use serde_json::{Map, Value, json};

/// The job as a file would have it. Secrets are not in it.
#[must_use]
pub fn job(spec: &JobSpec) -> Value {
    let value = serde_json::to_value(spec.shown()).unwrap_or_default();
    at(Here { shape: &json!({ "$ref": "#/$defs/JobSpec" }), unit: None }, value)
}

/// The value of one field of a job, such as `task.limits.ram`; unchanged where there is no such
/// field.
#[must_use]
pub fn field(path: &str, value: &Value) -> Value {
    let root = json!({ "$ref": "#/$defs/JobSpec" });
    let mut here = Here { shape: &root, unit: None };
    for name in path.split('.') {
        match here.field(name) {
            Some(inner) => here = inner,
            None => return value.clone(),
        }
    }
    at(here, value.clone())
}

/// A place in the schema, and what a number there counts as far as its field says.
#[derive(Clone, Copy)]
struct Here<'a> {
    shape: &'a Value,
    unit: Option<Unit>,
}

impl<'a> Here<'a> {
    /// Behind references and past "or nothing", with the name of the last type on the way.
    fn settled(self) -> (Here<'a>, &'a str) {
        let (mut here, mut owner) = (self, "");
        loop {
            let (shape, name) = Schema::get().resolve(here.shape);
            if let Some(name) = name {
                owner = name;
                let unit = (name == "Span").then_some(Unit::Milliseconds);
                here = Here { shape, unit: unit.or(here.unit) };
                continue;
            }
            let any = here.shape.get("anyOf").and_then(Value::as_array);
            let null = json!("null");
            let other = any.into_iter().flatten().find(|one| one.get("type") != Some(&null));
            match other {
                Some(shape) => here.shape = shape,
                None => return (here, owner),
            }
        }
    }

    /// Inside the field of this name: of an object, of a variant, or of free names.
    fn field(self, name: &str) -> Option<Here<'a>> {
        let (here, owner) = self.settled();
        let of = |shape: &'a Value| shape.get("properties").and_then(|all| all.get(name));
        if let Some(shape) = of(here.shape) {
            return Some(Here { shape, unit: unit_of(owner, name) });
        }
        let variants = here.shape.get("oneOf").and_then(Value::as_array);
        if let Some(shape) = variants.into_iter().flatten().find_map(of) {
            return Some(Here { shape, unit: None });
        }
        let patterns = here.shape.get("patternProperties").and_then(Value::as_object);
        let free = patterns.and_then(|patterns| patterns.values().next());
        let free = free.or_else(|| here.shape.get("additionalProperties"));
        free.filter(|shape| shape.is_object()).map(|shape| Here { shape, unit: None })
    }
}

fn at(here: Here<'_>, value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let inner = |(name, value): (String, Value)| {
                let written = match here.field(&name) {
                    Some(inner) => at(inner, value),
                    None => value,
                };
                (name, written)
            };
            Value::Object(map.into_iter().map(inner).collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            let (list, _) = here.settled();
            let shape = list.shape.get("items").unwrap_or(&Value::Null);
            let inner = Here { shape, unit: list.unit };
            items.into_iter().map(|item| at(inner, item)).collect()
        }
        Value::Number(number) => match (here.settled().0.unit, number.as_u64()) {
            (Some(unit), Some(count)) => Value::String(unit.written(count)),
            _ => Value::Number(number),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
