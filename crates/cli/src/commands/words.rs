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
    fn enumerations_read_as_words() {
        assert_eq!(said(&json!("best_effort")), "best effort");
        assert_eq!(said(&json!({"dead": "finished"})), "dead (finished)");
        assert_eq!(said(&json!({"dead": {"failed": {"code": 1}}})), "dead (failed (code (1)))");
    }
}
