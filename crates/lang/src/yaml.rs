//! Parses YAML into a value with the location of each field. Several documents in one file (`---`)
//! become a list of their values.
//!
//! The events come from the parser that is a dependency of the Jsonnet evaluator anyway. The value
//! is built here, so that duplicate keys are rejected, `no` stays a text (YAML 1.2), and the
//! expansion of aliases is limited.

use crate::diagnostic::{Diagnostic, Source, SourceLocation};
use cellwright_cell::field::{FieldPath, PathSegment};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// The maximum nesting of values.
const MAX_DEPTH: usize = 100;
/// The maximum number of values; those of aliases are counted each time.
const MAX_VALUES: usize = 1_000_000;

/// The locations of field names and values, by the path of the field.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocationMap(BTreeMap<FieldPath, (Option<SourceLocation>, SourceLocation)>);

impl LocationMap {
    pub(crate) fn name(&self, path: &FieldPath) -> Option<&SourceLocation> {
        let (name, value) = self.0.get(path)?;
        Some(name.as_ref().unwrap_or(value))
    }

    pub(crate) fn value(&self, path: &FieldPath) -> Option<&SourceLocation> {
        self.0.get(path).map(|(_, value)| value)
    }
}

struct YamlReader<'a> {
    source: &'a Source,
    events: std::vec::IntoIter<(Event<'a>, Span)>,
    locations: LocationMap,
    anchors: BTreeMap<usize, Value>,
    values: usize,
}

pub(crate) fn parse(source: &Source) -> Result<(Value, LocationMap), Box<Diagnostic>> {
    let mut events = Vec::new();
    for event in Parser::new_from_str(&source.text) {
        events.push(event.map_err(|error| Box::new(scan_error(source, &error)))?);
    }
    let mut reader = YamlReader {
        source,
        events: events.into_iter(),
        locations: LocationMap::default(),
        anchors: BTreeMap::new(),
        values: 0,
    };
    let documents = reader.documents()?;
    Ok((documents, reader.locations))
}

/// Before a tab, the parser reports the end of the previous token, which is a line too early.
fn scan_error(source: &Source, error: &ScanError) -> Diagnostic {
    let (line, column) = (error.marker().line(), error.marker().col() + 1);
    let diagnostic = Diagnostic::error(&source.name, error.info());
    let indented = |(at, text): (usize, &str)| {
        let blanks = text.chars().take_while(|c| c.is_whitespace());
        let before = blanks.clone().position(|c| c == '\t')?;
        (blanks.count() < text.chars().count()).then_some((at + 1, before + 1))
    };
    let lines = source.text.lines().enumerate().skip(line.saturating_sub(1));
    match lines.filter(|_| error.info().contains("tab")).find_map(indented) {
        Some((line, column)) => diagnostic
            .with_location(Some(source.location_at(line, column, 1)))
            .with_help("spaces: YAML takes no tabs before what stands in a line"),
        None => diagnostic.with_location(Some(source.location_at(line, column, 1))),
    }
}

/// Whether a text with this first line, apart from comments, can only be YAML.
pub(crate) fn looks_like_yaml(line: &str) -> bool {
    let is_mark = line == "---" || line.starts_with("--- ") || line.starts_with("%YAML");
    let is_item = line == "-" || line.starts_with("- ");
    let is_word = |c: char| c.is_alphanumeric() || "_-./ \"'".contains(c);
    let name = line.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    // An assertion in Jsonnet may have its message after a colon.
    let is_name = |name: &str| !name.starts_with("assert ") && name.chars().all(is_word);
    is_mark || is_item || name.is_some_and(|(name, _)| !name.is_empty() && is_name(name))
}

impl<'a> YamlReader<'a> {
    fn documents(&mut self) -> Result<Value, Box<Diagnostic>> {
        let starts = |(event, _): &&(Event<'_>, Span)| matches!(event, Event::DocumentStart(_));
        let count = self.events.as_slice().iter().filter(starts).count();
        let mut documents = Vec::new();
        while let Some((event, span)) = self.events.next() {
            match event {
                Event::DocumentStart(_)
                | Event::DocumentEnd
                | Event::StreamStart
                | Event::StreamEnd
                | Event::Nothing => {}
                event => {
                    let path = match count {
                        0 | 1 => FieldPath::default(),
                        _ => FieldPath::default().index(documents.len()),
                    };
                    let value = self.value(event, span, &path, None)?;
                    documents.push(value);
                }
            }
        }
        Ok(match <[Value; 1]>::try_from(documents) {
            Ok([only]) => only,
            Err(documents) => Value::Array(documents),
        })
    }

    fn error(&self, span: Span, message: impl Into<String>) -> Box<Diagnostic> {
        Box::new(
            Diagnostic::error(&self.source.name, message).with_location(Some(self.location(span))),
        )
    }

    fn location(&self, span: Span) -> SourceLocation {
        let width = if span.start.line() == span.end.line() { span.len() } else { 1 };
        self.source.location_at(span.start.line(), span.start.col() + 1, width)
    }

    fn value(
        &mut self,
        event: Event<'a>,
        span: Span,
        path: &FieldPath,
        name: Option<SourceLocation>,
    ) -> Result<Value, Box<Diagnostic>> {
        self.values += 1;
        if self.values > MAX_VALUES || path.0.len() > MAX_DEPTH {
            let help = format!("limits: {MAX_VALUES} values, {MAX_DEPTH} within each other");
            return Err(Box::new(self.error(span, "the file says too much").with_help(help)));
        }
        self.locations.0.insert(path.clone(), (name, self.location(span)));
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (if plain { scalar(&text) } else { Value::String(text.into_owned()) }, anchor)
            }
            Event::SequenceStart(anchor, _) => (self.list(path)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(path)?, anchor),
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or_else(|| {
                    self.error(span, "an alias cannot stand inside what it stands for")
                })?;
                self.values += value_count(&value);
                (value, 0)
            }
            _ => return Err(self.error(span, "a value is missing")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, path: &FieldPath) -> Result<Value, Box<Diagnostic>> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.events.next() {
            if event == Event::SequenceEnd {
                break;
            }
            let path = path.index(items.len());
            items.push(self.value(event, span, &path, None)?);
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, path: &FieldPath) -> Result<Value, Box<Diagnostic>> {
        let mut fields = Map::new();
        while let Some((event, span)) = self.events.next() {
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(self.error(span, "the name of a field is a text")),
            };
            let Some((event, at)) = self.events.next() else { break };
            let name = self.location(span);
            if key == "<<" {
                let help =
                    "merge keys are no part of YAML 1.2; write the fields out, or use Jsonnet";
                return Err(Box::new(self.error(span, "`<<` is not a field").with_help(help)));
            }
            if fields.contains_key(&key) {
                return Err(self.error(span, format!("the field `{key}` is there twice")));
            }
            let value = self.value(event, at, &path.field(&key), Some(name))?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

fn value_count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(value_count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(value_count).sum::<usize>(),
        _ => 1,
    }
}

/// Parses a plain scalar by the core schema of YAML 1.2.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let radix = |prefix: &str, radix: u32| {
        text.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, radix).ok())
    };
    if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)) {
        return Value::from(number);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let numeric = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(|c: char| c.is_ascii_digit());
    let whole = text.strip_prefix('+').unwrap_or(text);
    if let Ok(number) = whole.parse::<u64>() {
        return Value::from(number);
    }
    if let Ok(number) = whole.parse::<i64>() {
        return Value::from(number);
    }
    let fraction = numeric.then(|| text.parse::<f64>().ok()).flatten();
    match fraction.and_then(Number::from_f64) {
        Some(number) => Value::Number(number),
        None => Value::String(text.to_owned()),
    }
}

/// The path segments below the value at `path` that lead to a known field, longest first.
pub(crate) fn ancestors(path: &FieldPath) -> impl Iterator<Item = FieldPath> + '_ {
    let steps: &[PathSegment] = &path.0;
    (0..=steps.len()).rev().map(move |length| FieldPath(steps[..length].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source(text: &str) -> Source {
        Source { name: "f.yaml".into(), text: text.into() }
    }

    #[test]
    fn values_are_those_of_yaml_1_2() {
        let check = |text: &str, want: Value| {
            assert_eq!(parse(&source(text)).unwrap().0, want, "{text}");
        };
        check("a: 1\nb: no\nc: 0x10\nd: 1.5\n", json!({"a": 1, "b": "no", "c": 16, "d": 1.5}));
        check("[1, '2', ~, true, -3, e3, .5]", json!([1, "2", null, true, -3, "e3", 0.5]));
        check("a: &x {b: 1}\nc: *x\n", json!({"a": {"b": 1}, "c": {"b": 1}}));
        check("--- {a: 1}\n--- {b: 2}\n", json!([{"a": 1}, {"b": 2}]));
        check("a: |\n  two\n  lines\n", json!({"a": "two\nlines\n"}));
        check("v: 500m\nw: 2GiB\nx: 1:2\n", json!({"v": "500m", "w": "2GiB", "x": "1:2"}));
    }

    #[test]
    fn places_are_those_of_the_file() {
        let (_, locations) = parse(&source("a:\n  - b: 5\n    c: 'x y'\n")).unwrap();
        let path = FieldPath::default().field("a").index(0).field("c");
        let (name, value) = (locations.name(&path).unwrap(), locations.value(&path).unwrap());
        assert_eq!((name.line, name.column, name.width), (3, 5, 1));
        assert_eq!((value.line, value.column, value.width), (3, 8, 5));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_line() {
        let check = |text: &str, line: u32, expected: &str| {
            let diagnostic = parse(&source(text)).unwrap_err();
            assert!(diagnostic.message.contains(expected), "{}", diagnostic.message);
            assert_eq!(diagnostic.place.unwrap().line, line, "{text}");
        };
        check("a: 1\nb: 2\na: 3\n", 3, "`a` is there twice");
        check("a: 1\n<<: {b: 1}\n", 2, "not a field");
        check("a: [1\nb: 2\n", 2, "");
        let bomb: String = (1..40).fold("a0: &a0 [x,x]\n".into(), |text, n| {
            let m = n - 1;
            format!("{text}a{n}: &a{n} [*a{m},*a{m},*a{m}]\n")
        });
        let diagnostic = parse(&source(&bomb)).unwrap_err();
        assert!(diagnostic.help.unwrap().contains("1000000 values"));
    }
}
