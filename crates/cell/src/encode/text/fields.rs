//! Strict parsing of one JSON line into a type; an error names the wrong field.
//!
//! Row types have optional fields, for people who write job files. In a repaired row every field
//! that is there counts: one with a misspelt name must not be taken for one that was left out. So
//! the parsed value is written again, and both must have the same fields.

use super::read::TextError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parses the value of this line, as far as its type can check it.
pub(super) fn parse<T: DeserializeOwned>(line: usize, text: &str) -> Result<T, TextError> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        let why = message.rsplit_once(" at line ").map_or(message.as_str(), |(why, _)| why);
        TextError::Line { line, field: path_at(text, error.column(), why), why: why.to_owned() }
    })
}

/// Checks that everything in this line, or in one field of it, was parsed.
pub(super) fn check_round_trip<T: Serialize>(
    line: usize,
    text: &str,
    within: Option<&str>,
    value: &T,
) -> Result<(), TextError> {
    let given: Value = parse(line, text)?;
    let (given, path) = within.map_or((&given, ""), |field| (&given[field], field));
    let wrong = |field: String, why: String| TextError::Line { line, field, why };
    let read =
        serde_json::to_value(value).map_err(|error| wrong(path.to_owned(), error.to_string()))?;
    match first_difference(given, &read, path.to_owned()) {
        None => Ok(()),
        Some((field, why)) => Err(wrong(field, why)),
    }
}

/// The first field that is in one value and not in the other.
fn first_difference(given: &Value, read: &Value, path: String) -> Option<(String, String)> {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => {
            if let Some(key) = given.keys().find(|key| !read.contains_key(*key)) {
                let mut known: Vec<&str> = read.keys().map(String::as_str).collect();
                known.sort_unstable();
                let why = format!("is not known here; allowed: {}", known.join(", "));
                return Some((child_path(&path, key), why));
            }
            if let Some(key) = read.keys().find(|key| !given.contains_key(*key)) {
                return Some((child_path(&path, key), "is missing; allowed: null for none".into()));
            }
            given.iter().find_map(|(key, value)| {
                first_difference(value, &read[key], child_path(&path, key))
            })
        }
        (Value::Array(given), Value::Array(read)) => {
            let mut pairs = given.iter().zip(read).enumerate();
            pairs.find_map(|(at, (given, read))| {
                first_difference(given, read, format!("{path}[{at}]"))
            })
        }
        _ => None,
    }
}

fn child_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// An enclosing value on the way to a position in the text.
enum Nesting {
    Object { key: Option<String>, is_key: bool },
    Array(usize),
}

/// The path of the field at this column, counted from 1.
fn path_at(text: &str, column: usize, why: &str) -> String {
    let bytes = text.as_bytes();
    let mut nesting: Vec<Nesting> = Vec::new();
    let mut at = 0;
    // The last byte that was read may be the end of the enclosing value.
    while at + 1 < column.min(bytes.len()) {
        match bytes[at] {
            b'{' => nesting.push(Nesting::Object { key: None, is_key: true }),
            b'[' => nesting.push(Nesting::Array(0)),
            b'}' | b']' => drop(nesting.pop()),
            b':' => {
                if let Some(Nesting::Object { is_key, .. }) = nesting.last_mut() {
                    *is_key = false;
                }
            }
            b',' => match nesting.last_mut() {
                Some(Nesting::Object { is_key, .. }) => *is_key = true,
                Some(Nesting::Array(index)) => *index += 1,
                None => {}
            },
            b'"' => {
                let end = closing_quote(bytes, at + 1);
                if let Some(Nesting::Object { key, is_key: true }) = nesting.last_mut() {
                    *key = text.get(at + 1..end).map(str::to_owned);
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    // A list of the wrong length is wrong as a whole.
    if why.starts_with("invalid length") {
        nesting.pop();
    }
    // A missing field is missing from the object, not from the last of its fields.
    if why.starts_with("missing field")
        && let Some(Nesting::Object { key, .. }) = nesting.last_mut()
    {
        *key = None;
    }
    path_text(&nesting)
}

/// Position of the closing quote of the string whose first byte is at `from`.
fn closing_quote(bytes: &[u8], from: usize) -> usize {
    let mut is_escaped = false;
    let rest = bytes.iter().enumerate().skip(from);
    let mut quotes = rest.filter(|(_, byte)| {
        let is_end = **byte == b'"' && !is_escaped;
        is_escaped = **byte == b'\\' && !is_escaped;
        is_end
    });
    quotes.next().map_or(bytes.len(), |(at, _)| at)
}

fn path_text(nesting: &[Nesting]) -> String {
    let path = nesting.iter().fold(String::new(), |path, step| match step {
        Nesting::Object { key: Some(key), .. } => child_path(&path, key),
        Nesting::Object { key: None, .. } => path,
        Nesting::Array(index) => format!("{path}[{index}]"),
    });
    if path.is_empty() { "the line".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Serialize, Deserialize)]
    struct Sample {
        size: Size,
        #[serde(default)]
        note: Option<String>,
        list: Vec<Size>,
        map: BTreeMap<u32, u8>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Size {
        cpu: u64,
    }

    fn whole(text: &str) -> Result<Sample, TextError> {
        let sample = parse(7, text)?;
        check_round_trip(7, text, None, &sample).map(|()| sample)
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let error = whole(text).map(drop).unwrap_err();
        assert_eq!(error.to_string(), want, "{text}");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        let good = r#"{"size":{"cpu":1},"note":null,"list":[{"cpu":2},{"cpu":3}],"map":{"4":5}}"#;
        assert_eq!(whole(good).unwrap().list[1].cpu, 3);
        let with = |from: &str, to: &str| good.replacen(from, to, 1);
        let expected = "expected u64";
        check(
            &with("1}", "\"a,b\"}"),
            &format!("line 7: size.cpu: invalid type: string \"a,b\", {expected}"),
        );
        check(
            &with("3}", "-3}"),
            &format!("line 7: list[1].cpu: invalid value: integer `-3`, {expected}"),
        );
        check(
            &with("\"4\":5", "\"4\":300"),
            "line 7: map.4: invalid value: integer `300`, expected u8",
        );
        check(&with("\"cpu\":1", ""), "line 7: size: missing field `cpu`");
        check(
            &with("\"note\"", "\"noet\""),
            "line 7: noet: is not known here; allowed: \
                                              list, map, note, size",
        );
        check(&with("\"note\":null,", ""), "line 7: note: is missing; allowed: null for none");
        check(
            &with("{\"cpu\":2}", "{\"cpu\":2,\"ram\":1}"),
            "line 7: list[0].ram: is not known \
                                                            here; allowed: cpu",
        );
        check("[]", "line 7: the line: invalid length 0, expected struct Sample with 4 elements");
    }
}
