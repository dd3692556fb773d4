//! What a file is evaluated with apart from its own text: the folders of libraries that it may
//! import from, and the parameters of its top-level function. Both come as values from whoever
//! evaluates, so that the same file with the same inputs always means the same.
//!
//! Rejected: external variables (`std.extVar`). Any file can ask for any of them at any depth, so
//! nobody can say which ones a file needs, and a misspelt one is never noticed.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The parameter that is given to each file that has it: the name of the cell it is evaluated for.
pub const CELL_PARAMETER: &str = "cell";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// Folders to import from, searched in this order after the folder of the importing file.
    pub libraries: Vec<PathBuf>,
    /// Parameters that were asked for: the file must have each of them.
    pub parameters: BTreeMap<String, Value>,
    /// Parameters for files that have them; others do without.
    pub offered: BTreeMap<String, Value>,
}

/// Parses `NAME=VALUE`. The value is JSON if it can be read as such, else a text. A number is taken
/// only in the way JSON writes it, because `1.10` may as well be a version.
///
/// # Errors
/// What is allowed instead.
pub fn parse_parameter(text: &str) -> Result<(String, Value), String> {
    let form = "allowed: NAME=VALUE, as replicas=3 or image=web:2";
    let (name, written) = text.split_once('=').ok_or(form)?;
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!("{name:?} cannot be a parameter; {form}"));
    }
    let value = match serde_json::from_str::<Value>(written) {
        Ok(Value::Number(number)) if number.to_string() != written.trim() => {
            return Err(format!(
                "{written} is a number to some and a text to others; allowed: {name}={number} for \
                 the number, {name}='\"{written}\"' for the text"
            ));
        }
        Ok(value) => value,
        Err(_) => Value::String(written.to_owned()),
    };
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_parameter_is_json_or_a_text_and_never_a_guess() {
        let check = |text: &str, want: Value| {
            assert_eq!(parse_parameter(text), Ok(("a".into(), want)), "{text}");
        };
        check("a=3", json!(3));
        check("a=true", json!(true));
        check("a=[1, \"b\"]", json!([1, "b"]));
        check("a=\"3\"", json!("3"));
        check("a=web:2=3", json!("web:2=3"));
        check("a=", json!(""));
        check("a=007", json!("007"));
        for (wrong, part) in [
            ("a", "allowed: NAME=VALUE"),
            ("2a=1", "cannot be a parameter"),
            ("a-b=1", "cannot be a parameter"),
            ("=1", "cannot be a parameter"),
            ("a=1.10", "a='\"1.10\"' for the text"),
            ("a=1e3", "a number to some"),
        ] {
            let error = parse_parameter(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }
}
