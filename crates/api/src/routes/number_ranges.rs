//! Finds the number in a request that is out of its field's range. The JSON deserializer says that
//! `-1` is not a `u32`, but neither of which field nor what range is allowed there; the schema
//! knows both.

use super::Content;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// A number outside the range of its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    pub field: String,
    pub value: String,
    pub allowed: String,
}

/// Minimum and maximum, where known.
type Bounds = (Option<i128>, Option<i128>);

impl Content {
    /// The first number of `body` that is out of range.
    #[must_use]
    pub fn out_of_range(self, body: &Value) -> Option<OutOfRange> {
        let Content::Json(make) = self else { return None };
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        let top = Value::from(make(&mut generator));
        let types = generator.take_definitions(false).into_iter().collect();
        SchemaWalk { types }.find(&top, body, "", (None, None))
    }
}

struct SchemaWalk {
    types: Map<String, Value>,
}

impl SchemaWalk {
    fn find(&self, shape: &Value, value: &Value, field: &str, outer: Bounds) -> Option<OutOfRange> {
        let bound = |name: &str| shape.get(name).and_then(Value::as_i64).map(i128::from);
        // The bound nearest to the field applies.
        let bounds = (outer.0.or(bound("minimum")), outer.1.or(bound("maximum")));
        let referred = shape["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        if let Some(inner) = referred.and_then(|name| self.types.get(name)) {
            return self.find(inner, value, field, bounds);
        }
        let here = match value {
            Value::Number(number) => {
                is_integer(shape).then(|| check_number(shape, number, field, bounds)).flatten()
            }
            Value::Array(items) => items.iter().enumerate().find_map(|(position, item)| {
                self.find(&shape["items"], item, &format!("{field}[{position}]"), (None, None))
            }),
            Value::Object(fields) => fields.iter().find_map(|(name, inner)| {
                let dot = if field.is_empty() { "" } else { "." };
                self.find(
                    property_schema(shape, name)?,
                    inner,
                    &format!("{field}{dot}{name}"),
                    (None, None),
                )
            }),
            _ => None,
        };
        let others = ["anyOf", "oneOf"].iter().filter_map(|word| shape[*word].as_array());
        here.or_else(|| others.flatten().find_map(|other| self.find(other, value, field, bounds)))
    }
}

/// The schema of one property of an object schema.
fn property_schema<'a>(shape: &'a Value, name: &str) -> Option<&'a Value> {
    let by_pattern = || shape["patternProperties"].as_object()?.values().next();
    let named = shape["properties"].get(name).or_else(by_pattern);
    named.or_else(|| shape.get("additionalProperties").filter(|other| other.is_object()))
}

fn is_integer(shape: &Value) -> bool {
    let kind = &shape["type"];
    let listed = kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "integer"));
    listed || kind == "integer"
}

fn check_number(
    shape: &Value,
    number: &serde_json::Number,
    field: &str,
    (least, most): Bounds,
) -> Option<OutOfRange> {
    let widest = match shape["format"].as_str().unwrap_or_default() {
        "uint8" => (0, i128::from(u8::MAX)),
        "uint16" => (0, i128::from(u16::MAX)),
        "uint32" => (0, i128::from(u32::MAX)),
        "uint64" | "uint" => (0, i128::from(u64::MAX)),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    let (least, most) = (least.unwrap_or(widest.0), most.unwrap_or(widest.1));
    let whole = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
    if whole.is_some_and(|number| (least..=most).contains(&number)) {
        return None;
    }
    let allowed = format!("a whole number from {least} to {most}");
    Some(OutOfRange { field: field.to_owned(), value: number.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::schema;
    use crate::types::{Batch, SubmitJob};
    use serde_json::json;

    #[test]
    fn a_number_is_told_with_its_field_and_its_range() {
        let check = |content: Content, body: Value, want: Option<(&str, &str, &str)>| {
            let found = content.out_of_range(&body);
            let found = found.as_ref().map(|one| (&*one.field, &*one.value, &*one.allowed));
            let wanted = want.map(|(field, value, range)| {
                (field, value, format!("a whole number from {range}"))
            });
            assert_eq!(found, wanted.as_ref().map(|(f, v, r)| (*f, *v, r.as_str())), "{body}");
        };
        let submit = Content::Json(schema::<SubmitJob>);
        let spec = |field: &str, value: Value| json!({ "spec": { field: value } });
        check(submit, spec("count", json!(3)), None);
        check(submit, spec("count", json!(-1)), Some(("spec.count", "-1", "1 to 200000")));
        check(submit, spec("count", json!(2.5)), Some(("spec.count", "2.5", "1 to 200000")));
        check(submit, spec("priority", json!(-1)), Some(("spec.priority", "-1", "0 to 399")));
        let limit = json!({ "most": -1, "within": 5 });
        let want = ("spec.disruptions.most", "-1", "1 to 1000");
        check(submit, spec("disruptions", limit), Some(want));
        let want = ("spec.at_most_one", "-5", "1 to 31622400000");
        check(submit, spec("at_most_one", json!(-5)), Some(want));
        let want = ("spec.task.static_ports[1]", "70000", "1 to 65535");
        check(submit, spec("task", json!({ "static_ports": [80, 70_000] })), Some(want));
        let batch = Content::Json(schema::<Batch>);
        let items = json!({ "items": [{ "submit_job": { "spec": { "count": -1 } } }] });
        let want = ("items[0].submit_job.spec.count", "-1", "1 to 200000");
        check(batch, items, Some(want));
        check(Content::Bytes, json!(-1), None);
    }
}
