//! A strict JSON parser: it rejects duplicate fields, which common parsers accept.

use crate::diagnostic::{Diagnostic, Source};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Unique, E> {
        Ok(Unique(Value::Bool(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Unique, E> {
        Ok(Unique(Value::from(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Unique, E> {
        Ok(Unique(Value::from(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Unique, E> {
        Number::from_f64(value).map(|n| Unique(Value::Number(n))).ok_or(E::custom("no number"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Unique, E> {
        Ok(Unique(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Unique(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if map.contains_key(&name) {
                return Err(A::Error::custom(format!("the field `{name}` is there twice")));
            }
            let Unique(value) = entries.next_value()?;
            map.insert(name, value);
        }
        Ok(Unique(Value::Object(map)))
    }
}

pub(crate) fn parse(source: &Source) -> Result<Value, Box<Diagnostic>> {
    serde_json::from_str(&source.text).map(|Unique(value)| value).map_err(|error| {
        let location = source.location_at(error.line(), error.column(), 1);
        let whole = error.to_string();
        let message = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(text, _)| text);
        Box::new(Diagnostic::error(&source.name, message).with_location(Some(location)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_and_what_is_there_twice_is_refused_with_its_line() {
        let check = |text: &str, line: u32, expected: &str| {
            let source = Source { name: "f.json".into(), text: text.into() };
            let diagnostic = parse(&source).unwrap_err();
            assert!(diagnostic.message.contains(expected), "{}", diagnostic.message);
            assert!(!diagnostic.message.contains("at line"), "{}", diagnostic.message);
            assert_eq!(diagnostic.place.unwrap().line, line);
        };
        check("{\"a\": 1,\n \"a\": 2}", 2, "`a` is there twice");
        check("{\"a\": 1,\n}", 2, "trailing comma");
        check("[1,\n2", 2, "EOF");
        check("{\n// no\n}", 2, "key must be a string");
        let fine = Source { name: "f".into(), text: "[18446744073709551615, 1.5]".into() };
        assert_eq!(parse(&fine).unwrap(), serde_json::json!([u64::MAX, 1.5]));
    }
}
