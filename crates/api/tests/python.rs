//! The Python client's operations are generated from the OpenAPI document, and so from the same
//! table as the server's router: the committed file must match the table. `UPDATE_PYTHON=1`
//! regenerates it.

use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Operations that upgrade their connection: for the command line, and the console.
const EXCLUDED_OPERATIONS: [&str; 4] = ["execTask", "execTaskInPage", "copyFiles", "forwardPort"];

const MODULE_HEADER: &str = "\
\"\"\"What a cell can be asked, one method each. Made from the OpenAPI document: do not edit.\"\"\"

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._path import at

if TYPE_CHECKING:
    from .client import Event


class Operations:
    def _call(self, method: str, path: str, query: dict[str, Any], body: Any = None, **how: Any) -> Any:
        raise NotImplementedError

    def _watch(self, path: str, query: dict[str, Any], last: str | None) -> Iterator[Event]:
        raise NotImplementedError
";

#[test]
fn the_python_client_asks_what_the_server_answers() {
    let mut module = MODULE_HEADER.to_owned();
    let document = cellwright_api::openapi::document();
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            if !EXCLUDED_OPERATIONS.contains(&text(&operation["operationId"])) {
                module.push_str(
                    &ClientMethod::read(operation).function(path, &method.to_uppercase()),
                );
            }
        }
    }
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/cellwright/operations.py");
    if std::env::var_os("UPDATE_PYTHON").is_some() {
        fs::write(&file, &module).expect("the file can be written");
    }
    let committed = fs::read_to_string(&file).expect("the operations are committed");
    assert!(
        committed == module,
        "clients/python/cellwright/operations.py is not of today's table: run this test with \
         UPDATE_PYTHON=1"
    );
}

/// One operation as the client calls it.
struct ClientMethod<'a> {
    name: &'a str,
    summary: &'a str,
    names: Vec<&'a str>,
    queries: Vec<&'a str>,
    /// The Python type of the body.
    body: Option<&'static str>,
    keyed: bool,
    expects: bool,
    watches: bool,
    raw: bool,
}

impl ClientMethod<'_> {
    fn read(operation: &Value) -> ClientMethod<'_> {
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of = |place: &str| -> Vec<&str> {
            let here = parameters.iter().filter(|parameter| text(&parameter["in"]) == place);
            here.map(|parameter| text(&parameter["name"])).collect()
        };
        let (mut queries, headers) = (of("query"), of("header"));
        // `?expect=` and `If-Match` have the same meaning.
        queries.retain(|name| *name != "expect");
        let answer = &operation["responses"]["200"]["content"];
        let body = operation["requestBody"]["content"].as_object().map(|content| {
            let bytes = content.contains_key("application/octet-stream");
            if bytes { "bytes" } else { "dict[str, Any]" }
        });
        ClientMethod {
            name: text(&operation["operationId"]),
            summary: text(&operation["summary"]),
            names: of("path"),
            queries,
            body,
            keyed: headers.contains(&"idempotency-key"),
            expects: headers.contains(&"if-match"),
            watches: answer["text/event-stream"].is_object(),
            raw: answer["application/octet-stream"].is_object(),
        }
    }

    fn function(&self, path: &str, method: &str) -> String {
        let gives = match (self.watches, self.raw) {
            (true, _) => "Iterator[Event]",
            (_, true) => "bytes",
            _ => "Any",
        };
        let (name, taken) = (snake_case(self.name), self.parameters());
        let (summary, call) = (self.summary, self.call(path, method));
        let mut text = String::new();
        write!(
            text,
            "\n    def {name}({taken}) -> {gives}:\n        \"\"\"{summary}\"\"\"\n        \
             return {call}\n"
        )
        .expect("a string takes text");
        text
    }

    /// The method's parameters.
    fn parameters(&self) -> String {
        let mut parameters: Vec<String> = vec!["self".into()];
        parameters.extend(self.names.iter().map(|name| format!("{name}: str | int")));
        parameters.extend(self.body.map(|kind| format!("body: {kind}")));
        let query = self.queries.iter().map(|name| format!("{}: Any = None", identifier(name)));
        let mut keywords: Vec<String> = query.collect();
        keywords.extend(self.expects.then(|| "expect: int | None = None".to_owned()));
        keywords.extend(self.keyed.then(|| "key: str | None = None".to_owned()));
        keywords.extend(self.watches.then(|| "last_event_id: str | None = None".to_owned()));
        if !keywords.is_empty() {
            parameters.push("*".into());
            parameters.append(&mut keywords);
        }
        parameters.join(", ")
    }

    fn call(&self, path: &str, method: &str) -> String {
        let query = self.queries.iter().map(|name| format!("\"{name}\": {}", identifier(name)));
        let query = format!("{{{}}}", query.collect::<Vec<_>>().join(", "));
        let place = self.names.iter().fold(format!("\"{path}\""), |place, name| {
            place.replace(&format!("{{{name}}}"), &format!("{{at({name})}}"))
        });
        let place = if self.names.is_empty() { place } else { format!("f{place}") };
        if self.watches {
            return format!("self._watch({place}, {query}, last_event_id)");
        }
        let mut with = vec![format!("\"{method}\""), place, query];
        with.extend(self.body.map(|_| "body".to_owned()));
        with.extend(self.expects.then(|| "expect=expect".to_owned()));
        with.extend(self.keyed.then(|| "keyed=True, key=key".to_owned()));
        with.extend(self.raw.then(|| "raw=True".to_owned()));
        format!("self._call({})", with.join(", "))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// `listJobs` as `list_jobs`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// A parameter's name as a Python identifier.
fn identifier(name: &str) -> String {
    match name {
        "from" => "from_".to_owned(),
        _ => name.replace('-', "_"),
    }
}
