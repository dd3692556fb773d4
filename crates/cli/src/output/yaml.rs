//! Writes a JSON value as YAML: block style, with quotes around every string that could be read as
//! another type. There is no parser, and only values that JSON can hold, so it is this small.

use crate::sanitize::escape_in_json;
use serde_json::Value;

/// Spaces per level of indentation.
const INDENT: usize = 2;

pub fn render(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(_) | Value::Array(_) if !is_empty(value) => push_block(value, 0, &mut out),
        _ => {
            out.push_str(&scalar(value));
            out.push('\n');
        }
    }
    out
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

/// Writes a non-empty object or list; the caller has written the indentation.
fn push_block(value: &Value, depth: usize, out: &mut String) {
    let indent = " ".repeat(depth * INDENT);
    match value {
        Value::Object(fields) => {
            for (at, (name, inner)) in fields.iter().enumerate() {
                if at > 0 {
                    out.push_str(&indent);
                }
                out.push_str(&text(name));
                out.push(':');
                push_field_value(inner, depth, out);
            }
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(&indent);
                }
                out.push_str("- ");
                if is_empty(inner) {
                    out.push_str(&scalar(inner));
                    out.push('\n');
                } else {
                    push_block(inner, depth + 1, out)
                }
            }
        }
        other => {
            out.push_str(&scalar(other));
            out.push('\n');
        }
    }
}

fn push_field_value(value: &Value, depth: usize, out: &mut String) {
    if is_empty(value) {
        out.push(' ');
        out.push_str(&scalar(value));
        out.push('\n');
        return;
    }
    // Lists stay at the level of their key, objects are indented one level further.
    let deeper = if value.is_array() { depth } else { depth + 1 };
    out.push('\n');
    out.push_str(&" ".repeat(deeper * INDENT));
    push_block(value, deeper, out);
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Object(_) => "{}".into(),
        Value::Array(_) => "[]".into(),
        other => other.to_string(),
    }
}

/// Unquoted where no parser can take it for anything else; JSON's quotes are valid in YAML.
fn text(string: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '-' | ' ');
    let first = string.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.iter().any(|word| string.eq_ignore_ascii_case(word));
    if first && string.chars().all(plain) && !is_word && !string.ends_with(' ') {
        string.to_owned()
    } else {
        escape_in_json(Value::String(string.to_owned()).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_could_be_misread_is_quoted_and_nesting_is_indented() {
        let value = json!({
            "command": ["sh", "-c", "echo a: b"],
            "empty": {},
            "no": "yes",
            "none": null,
            "number": "7",
            "task": { "limits": { "cpu": 100 } },
            "tasks": [{ "name": "a/b/0", "ports": [80, 81] }],
        });
        let want = "command:\n- sh\n- \"-c\"\n- \"echo a: b\"\nempty: {}\n\"no\": \"yes\"\n\
                    none: null\nnumber: \"7\"\ntask:\n  limits:\n    cpu: 100\n\
                    tasks:\n- name: a/b/0\n  ports:\n  - 80\n  - 81\n";
        assert_eq!(render(&value), want);
        assert_eq!(render(&json!([])), "[]\n");
        assert_eq!(render(&json!("x")), "x\n");
    }
}
