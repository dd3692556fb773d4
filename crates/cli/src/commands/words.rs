//! States and other enumerations as one word each, the word they have in the API.

use serde::Serialize;
use serde_json::Value;

/// `running`, or `dead (finished)` where a state says more.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(value) => said(&value),
        Err(error) => error.to_string(),
    }
}

/// One of an enumeration as it was typed, `best effort` and `best-effort` as well as `best_effort`.
pub fn one_of<T: Copy + Serialize>(text: &str, all: &[T]) -> Result<T, String> {
    let same = |name: &str| name.replace(['-', '_'], " ");
    let typed = same(text);
    let found = all.iter().find(|known| word(*known) == typed);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|known| word(known).replace(' ', "_")).collect();
        format!("allowed: {}", names.join(", "))
    })
}

fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.replace('_', " "),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, Value::Null)) => name.replace('_', " "),
            Some((name, inner)) => format!("{} ({})", name.replace('_', " "), said(inner)),
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
            assert_eq!(one_of(text, &Band::ALL), Ok(Band::BestEffort));
        }
        let wrong = one_of("bach", &Band::ALL).unwrap_err();
        assert_eq!(wrong, "allowed: best_effort, batch, production, monitoring");
    }

    #[test]
    fn enumerations_read_as_words() {
        assert_eq!(said(&json!("best_effort")), "best effort");
        assert_eq!(said(&json!({"dead": "finished"})), "dead (finished)");
        assert_eq!(said(&json!({"dead": {"failed": {"code": 1}}})), "dead (failed (code (1)))");
    }
}
