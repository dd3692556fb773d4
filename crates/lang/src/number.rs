//! Whole numbers in a job: which unit they may have, and their minimum and maximum.
//!
//! The bounds are those of the schema, at the field or else at its type, so that the checker, an
//! editor and error messages all use the same ones. `tests/numbers.rs` compares them with the
//! cell's admission, field by field.

use crate::schema::{Schema, unit_of};
use crate::schema_check::value_text;
use crate::units::Unit;
use serde_json::{Value, json};

/// Up to this value, a float represents every whole number exactly.
const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;
/// From this value on, a float exceeds every bound.
const FLOAT_OVERFLOW: f64 = 18_446_744_073_709_551_616.0;

/// The unit and bounds of a number, collected from its field down to its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberRules {
    unit: Option<Unit>,
    min: Option<i128>,
    max: Option<i128>,
}

/// The error, and what is allowed instead.
type NumberRejection = (String, String);

impl NumberRules {
    pub(crate) fn of(unit: Option<Unit>) -> NumberRules {
        NumberRules { unit, ..NumberRules::default() }
    }

    /// Adds the bounds in `schema`, unless there are bounds closer to the field.
    pub(crate) fn with_bounds(self, schema: &Value) -> NumberRules {
        let bound = |name: &str| schema.get(name).and_then(Value::as_i64).map(i128::from);
        let min = self.min.or(bound("minimum"));
        NumberRules { min, max: self.max.or(bound("maximum")), ..self }
    }

    /// The rules inside the type of this name.
    pub(crate) fn inside_type(self, name: &str) -> NumberRules {
        match name {
            "Span" => NumberRules { unit: Some(Unit::Milliseconds), ..self },
            _ => self,
        }
    }

    /// The rules for each item of a list.
    pub(crate) fn for_items(self) -> NumberRules {
        NumberRules::of(self.unit)
    }

    /// Parses `value` as a number of the type that `schema` describes.
    pub(crate) fn read(self, value: &Value, schema: &Value) -> Result<Value, NumberRejection> {
        let number = self.with_bounds(schema);
        let (min, max) = number.bounds(schema);
        let rejection = |message: String| (message, number.allowed_text(schema));
        let read = match (value, self.unit) {
            (Value::String(text), Some(unit)) => {
                let read = unit.parse(text).map(i128::from);
                read.ok_or_else(|| rejection(format!("{text:?} is no amount here")))?
            }
            (Value::String(text), None) if text.parse::<u64>().is_ok() => {
                let help = format!("write it without quotes: {text}");
                return Err((format!("a number is wanted here, not {text:?}"), help));
            }
            (Value::Number(cores), Some(unit @ (Unit::Cpu | Unit::Count))) => {
                let read = unit.of_number(cores).map(i128::from);
                read.ok_or_else(|| rejection(format!("{cores} is no amount here")))?
            }
            (Value::Number(as_is), _) => exact_integer(as_is)
                .ok_or_else(|| rejection(format!("{as_is} is no whole number")))?,
            (other, _) => {
                return Err(rejection(format!(
                    "a number is wanted here, not {}",
                    value_text(other)
                )));
            }
        };
        if !(min..=max).contains(&read) {
            return Err(rejection(format!("{} is out of range", value_text(value))));
        }
        Ok(match u64::try_from(read) {
            Ok(read) => json!(read),
            Err(_) => json!(i64::try_from(read).unwrap_or(i64::MIN)),
        })
    }

    /// The allowed range, for people.
    fn allowed_text(self, schema: &Value) -> String {
        let (min, max) = self.bounds(schema);
        match self.unit {
            None => format!("a whole number from {min} to {max}"),
            Some(unit) => {
                let format_number = |number: i128| unit.format(u64::try_from(number).unwrap_or(0));
                format!("{} to {}, as {}", format_number(min), format_number(max), unit.allowed())
            }
        }
    }

    fn bounds(self, schema: &Value) -> (i128, i128) {
        let (min, max) = match schema.get("format").and_then(Value::as_str).unwrap_or_default() {
            "uint8" => (0, i128::from(u8::MAX)),
            "uint16" => (0, i128::from(u16::MAX)),
            "uint32" => (0, i128::from(u32::MAX)),
            "uint64" | "uint" => (0, i128::from(u64::MAX)),
            _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
        };
        (self.min.unwrap_or(min), self.max.unwrap_or(max))
    }
}

/// What the field of a type accepts, if that is a number.
pub(crate) fn expected_number(owner: &str, field: &str, schema: &Value) -> Option<String> {
    let number = NumberRules::of(unit_of(owner, field)).with_bounds(schema);
    let (inner, name) = Schema::get().resolve(schema);
    let number = number.inside_type(name.unwrap_or_default()).with_bounds(inner);
    (inner.get("type") == Some(&json!("integer"))).then(|| number.allowed_text(inner))
}

fn exact_integer(number: &serde_json::Number) -> Option<i128> {
    let exact = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
    exact.or_else(|| {
        let float = number.as_f64()?;
        // Between the two, a float may have been rounded from another number.
        let is_known = float.abs() <= MAX_EXACT_FLOAT || float.abs() >= FLOAT_OVERFLOW;
        (float.fract() == 0.0 && is_known).then_some(float as i128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_has_the_first_say_and_the_type_the_last() {
        let check = |number: NumberRules, schema: Value, want: &str| {
            assert_eq!(number.with_bounds(&schema).allowed_text(&schema), want);
        };
        let plain = NumberRules::default();
        check(plain, json!({ "format": "uint16" }), "a whole number from 0 to 65535");
        let schema = json!({ "format": "uint32", "minimum": 1, "maximum": 9 });
        check(plain, schema.clone(), "a whole number from 1 to 9");
        check(plain.with_bounds(&json!({ "maximum": 5 })), schema, "a whole number from 1 to 5");
        let time = NumberRules::of(Some(Unit::Milliseconds))
            .with_bounds(&json!({ "maximum": 86_400_000 }));
        let allowed_text = time.allowed_text(&json!({ "format": "uint64" }));
        assert!(
            allowed_text.starts_with("0ms to 1d, as a text such as \"500ms\""),
            "{allowed_text}"
        );
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let schema = json!({ "format": "int64" });
        let check = |text: &str, want: Result<i64, &str>| {
            let value: Value = serde_json::from_str(text).unwrap();
            let got = NumberRules::default().read(&value, &schema).map_err(|(message, _)| message);
            assert_eq!(got, want.map(|number| json!(number)).map_err(str::to_owned), "{text}");
        };
        check("-7", Ok(-7));
        check("2e3", Ok(2000));
        check("1e15", Ok(1_000_000_000_000_000));
        check("2.5", Err("2.5 is no whole number"));
        check("1e17", Err("1e+17 is no whole number"));
        check("1e30", Err("1e+30 is out of range"));
        check("9223372036854775808", Err("9223372036854775808 is out of range"));
        check("true", Err("a number is wanted here, not true"));
    }
}
