//! States and other enumerations as one word each, as the API spells them.

use serde::Serialize;
use serde_json::Value;

/// `running`, or `dead (finished)` for a state with details.
pub fn enum_text(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(value) => value_text(&value),
        Err(error) => error.to_string(),
    }
}

/// Parses a value of an enumeration: `best effort` and `best-effort` as well as `best_effort`.
pub fn parse_enum<T: Copy + Serialize>(text: &str, all: &[T]) -> Result<T, String> {
    let normalized = |name: &str| name.replace(['-', '_'], " ");
    let normalized_text = normalized(text);
    let found = all.iter().find(|known| enum_text(*known) == normalized_text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> =
            all.iter().map(|known| enum_text(known).replace(' ', "_")).collect();
        format!("allowed: {}", names.join(", "))
    })
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.replace('_', " "),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, Value::Null)) => name.replace('_', " "),
            Some((name, inner)) => format!("{} ({})", name.replace('_', " "), value_text(inner)),
            None => String::new(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_taken_as_they_are_printed() {
        use cellwright_cell::priority::Band;
        for text in ["best effort", "best-effort", "best_effort"] {
            assert_eq!(parse_enum(text, &Band::ALL), Ok(Band::BestEffort));
        }
        let wrong = parse_enum("bach", &Band::ALL).unwrap_err();
        assert_eq!(wrong, "allowed: best_effort, batch, production, monitoring");
    }

    #[test]
    fn enumerations_read_as_words() {
        assert_eq!(value_text(&json!("best_effort")), "best effort");
        assert_eq!(value_text(&json!({"dead": "finished"})), "dead (finished)");
        assert_eq!(
            value_text(&json!({"dead": {"failed": {"code": 1}}})),
            "dead (failed (code (1)))"
        );
    }
}
