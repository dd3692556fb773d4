//! Whole numbers of a job: in which unit they may be written, and how small and large they may be.
//!
//! The bounds are those of the schema, at the field or else at its type, so that the checker, an
//! editor and whoever reads an error all know the same ones. `tests/numbers.rs` holds them against
//! the cell's admission, field by field.

use crate::schema::{Schema, unit_of};
use crate::schema_check::shown;
use crate::units::Unit;
use serde_json::{Value, json};

/// Up to here every whole number is a float of its own.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// From here on a float is beyond every bound.
const BEYOND: f64 = 18_446_744_073_709_551_616.0;

/// What is known of a number on the way from its field to its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number {
    unit: Option<Unit>,
    least: Option<i128>,
    most: Option<i128>,
}

/// What is wrong, and what is allowed instead.
type Refused = (String, String);

impl Number {
    pub(crate) fn of(unit: Option<Unit>) -> Number {
        Number { unit, ..Number::default() }
    }

    /// With the bounds that stand here; those that stood nearer to the field hold.
    pub(crate) fn at(self, shape: &Value) -> Number {
        let bound = |name: &str| shape.get(name).and_then(Value::as_i64).map(i128::from);
        let least = self.least.or(bound("minimum"));
        Number { least, most: self.most.or(bound("maximum")), ..self }
    }

    /// Inside the type of this name.
    pub(crate) fn of_type(self, name: &str) -> Number {
        match name {
            "Span" => Number { unit: Some(Unit::Milliseconds), ..self },
            _ => self,
        }
    }

    /// For each item of a list.
    pub(crate) fn of_items(self) -> Number {
        Number::of(self.unit)
    }

    /// The number that `value` means for the type that `shape` describes.
    pub(crate) fn read(self, value: &Value, shape: &Value) -> Result<Value, Refused> {
        let number = self.at(shape);
        let (least, most) = number.bounds(shape);
        let wrong = |message: String| (message, number.allowed(shape));
        let read = match (value, self.unit) {
            (Value::String(text), Some(unit)) => {
                let read = unit.parse(text).map(i128::from);
                read.ok_or_else(|| wrong(format!("{text:?} is no amount here")))?
            }
            (Value::String(text), None) if text.parse::<u64>().is_ok() => {
                let help = format!("write it without quotes: {text}");
                return Err((format!("a number is wanted here, not {text:?}"), help));
            }
            (Value::Number(written), _) => {
                whole(written).ok_or_else(|| wrong(format!("{written} is no whole number")))?
            }
            (other, _) => {
                return Err(wrong(format!("a number is wanted here, not {}", shown(other))));
            }
        };
        if !(least..=most).contains(&read) {
            return Err(wrong(format!("{} is out of range", shown(value))));
        }
        Ok(match u64::try_from(read) {
            Ok(read) => json!(read),
            Err(_) => json!(i64::try_from(read).unwrap_or(i64::MIN)),
        })
    }

    /// What may stand there, as people write it.
    fn allowed(self, shape: &Value) -> String {
        let (least, most) = self.bounds(shape);
        match self.unit {
            None => format!("a whole number from {least} to {most}"),
            Some(unit) => {
                let written = |number: i128| unit.written(u64::try_from(number).unwrap_or(0));
                format!("{} to {}, as {}", written(least), written(most), unit.allowed())
            }
        }
    }

    fn bounds(self, shape: &Value) -> (i128, i128) {
        let (least, most) = match shape.get("format").and_then(Value::as_str).unwrap_or_default() {
            "uint8" => (0, i128::from(u8::MAX)),
            "uint16" => (0, i128::from(u16::MAX)),
            "uint32" => (0, i128::from(u32::MAX)),
            "uint64" | "uint" => (0, i128::from(u64::MAX)),
            _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
        };
        (self.least.unwrap_or(least), self.most.unwrap_or(most))
    }
}

/// What the field of a type takes, if that is a number.
pub(crate) fn wanted(owner: &str, field: &str, shape: &Value) -> Option<String> {
    let number = Number::of(unit_of(owner, field)).at(shape);
    let (inner, name) = Schema::get().resolve(shape);
    let number = number.of_type(name.unwrap_or_default()).at(inner);
    (inner.get("type") == Some(&json!("integer"))).then(|| number.allowed(inner))
}

fn whole(number: &serde_json::Number) -> Option<i128> {
    let exact = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
    exact.or_else(|| {
        let float = number.as_f64()?;
        // Between the two a float may stand for a number that nobody wrote.
        let is_known = float.abs() <= EXACT || float.abs() >= BEYOND;
        (float.fract() == 0.0 && is_known).then_some(float as i128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_has_the_first_say_and_the_type_the_last() {
        let check = |number: Number, shape: Value, want: &str| {
            assert_eq!(number.at(&shape).allowed(&shape), want);
        };
        let plain = Number::default();
        check(plain, json!({ "format": "uint16" }), "a whole number from 0 to 65535");
        let shape = json!({ "format": "uint32", "minimum": 1, "maximum": 9 });
        check(plain, shape.clone(), "a whole number from 1 to 9");
        check(plain.at(&json!({ "maximum": 5 })), shape, "a whole number from 1 to 5");
        let time = Number::of(Some(Unit::Milliseconds)).at(&json!({ "maximum": 86_400_000 }));
        let said = time.allowed(&json!({ "format": "uint64" }));
        assert!(said.starts_with("0ms to 1d, as a text such as \"500ms\""), "{said}");
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let shape = json!({ "format": "int64" });
        let check = |text: &str, want: Result<i64, &str>| {
            let value: Value = serde_json::from_str(text).unwrap();
            let got = Number::default().read(&value, &shape).map_err(|(message, _)| message);
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
