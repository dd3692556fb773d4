//! URL encoding of paths and queries: every character that is not plainly safe is percent-encoded.

use std::fmt::Write;

fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
}

/// One segment of a path.
#[must_use]
pub fn encode_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, &mut out);
    out
}

/// `?a=b&c=d` of the values that are present; empty when none is.
#[must_use]
pub fn encode_query(pairs: &[(&str, Option<String>)]) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        let Some(value) = value else { continue };
        out.push(if out.is_empty() { '?' } else { '&' });
        encode(name, &mut out);
        out.push('=');
        encode(value, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_safe_is_encoded() {
        assert_eq!(encode_segment("a/b c"), "a%2Fb%20c");
        let pairs =
            [("selector", Some("a=b,c!=d".to_owned())), ("user", None), ("x", Some("1".into()))];
        assert_eq!(encode_query(&pairs), "?selector=a%3Db%2Cc%21%3Dd&x=1");
        assert_eq!(encode_query(&[("user", None)]), "");
    }
}
