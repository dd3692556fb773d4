//! The OpenAPI 3.1 document, generated from the route table and the types. Nothing in it is written
//! by hand: a schema is what serde reads and writes, a parameter is what the server checks.

use crate::error::{ApiError, Code};
use crate::routes::{
    Access, CELL_INDEX, CELL_READ, Content, IDEMPOTENCY_KEY, LAST_EVENT_ID, MAX_IDEMPOTENCY_KEY,
    Parameter, ParameterType, Route, RouteKind, path_parameter, routes, schema,
};
use cellwright_cell::name::{MAX_NAME, MAX_TOKEN};
use cellwright_cell::schema_descriptions::simplify_descriptions;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The document.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let described = operation(route, &mut generator);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = described;
    }
    let schemas = generator.take_definitions(true);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cellwright",
            "summary": "The public API of a cell.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{ "url": "/" }],
        "tags": tags(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "certificate": { "type": "mutualTLS" },
            },
        },
    });
    simplify_descriptions(&mut document);
    document
}

fn tags() -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for route in routes() {
        if !names.contains(&route.tag) {
            names.push(route.tag);
        }
    }
    names.iter().map(|name| json!({ "name": name })).collect()
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut described = json!({
        "operationId": route.id(),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route, generator),
        "security": match route.access {
            Access::Open => json!([]),
            _ => json!([{ "token": [] }, { "certificate": [] }]),
        },
    });
    if let Some(text) = description(route) {
        described["description"] = json!(text);
    }
    if let Some(content) = request_body(route.request, generator) {
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    described
}

/// The description of an operation beyond its summary: who may call it, and who answers.
fn description(route: &Route) -> Option<String> {
    let capability = route.capability.or(match route.access {
        Access::HasCapability(capability) | Access::SelfOrHasCapability(capability) => {
            Some(capability)
        }
        Access::Open | Access::Authenticated => None,
    });
    let mut lines = Vec::new();
    if let Some(name) = capability.and_then(|c| serde_json::to_value(c).ok()) {
        let own = match route.access {
            Access::SelfOrHasCapability(_) => ", unless it is about the caller",
            _ => "",
        };
        lines.push(format!("Needs the capability {name}{own}."));
    }
    if matches!(route.kind, RouteKind::Change | RouteKind::Create) {
        lines.push("A replica that does not lead answers 307 with the leader's address.".into());
    }
    (!lines.is_empty()).then(|| lines.join(" "))
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path_parameters().filter_map(path_parameter);
    let mut list: Vec<Value> = in_path.map(|p| parameter(&p, "path", true)).collect();
    list.extend(route.parameters().map(|p| parameter(p, "query", false)));
    let mut header = |name: &str, about: &str, schema: Value| {
        list.push(json!({
            "name": name, "in": "header", "required": false, "description": about,
            "schema": schema,
        }));
    };
    if route.kind == RouteKind::Change {
        let about = "Sent twice with the same key, the change takes effect once.";
        let schema = json!({
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_IDEMPOTENCY_KEY,
            "pattern": "^[!-~]+$",
        });
        header(IDEMPOTENCY_KEY, about, schema);
    }
    if route.versioned {
        let about = "Version the object must be at, with or without quotes.";
        header(
            "if-match",
            about,
            json!({ "type": "string", "pattern": "^(\"\\d{1,9}\"|\\d{1,9})$" }),
        );
    }
    if matches!(route.response, Content::Events(_)) {
        header(
            LAST_EVENT_ID,
            "As `after`; browsers send it.",
            parameter_schema(ParameterType::Text(64)),
        );
    }
    list
}

fn parameter(parameter: &Parameter, location: &str, required: bool) -> Value {
    json!({
        "name": parameter.name,
        "in": location,
        "required": required,
        "description": parameter.about,
        "schema": parameter_schema(parameter.value_type),
    })
}

fn parameter_schema(shape: ParameterType) -> Value {
    match shape {
        ParameterType::Name => json!({
            "type": "string", "minLength": 1, "maxLength": MAX_NAME,
            "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        }),
        // A slash would make another path.
        ParameterType::Token => json!({
            "type": "string", "minLength": 1, "maxLength": MAX_TOKEN, "pattern": "^[!-.0-~]+$",
        }),
        ParameterType::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ParameterType::Boolean => json!({ "type": "boolean" }),
        ParameterType::OneOf(words) => json!({ "type": "string", "enum": words }),
        ParameterType::Text(most) => json!({ "type": "string", "minLength": 1, "maxLength": most }),
        ParameterType::Digest => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
    }
}

fn request_body(content: Content, generator: &mut SchemaGenerator) -> Option<Value> {
    let of = |media: &str, schema: Schema| Some(json!({ media: { "schema": schema } }));
    match content {
        Content::Nothing => None,
        Content::Json(make) => of("application/json", make(generator)),
        // The item's schema is put among the components; the stream itself is text.
        Content::Events(make) => {
            let item = make(generator);
            Some(json!({ "text/event-stream": {
                "schema": { "type": "string" },
                "x-event-data": item,
            } }))
        }
        Content::Bytes => Some(json!({ "application/octet-stream": {} })),
        Content::Text => Some(json!({ "text/plain": { "schema": { "type": "string" } } })),
        Content::AnyJson => {
            let any = json!({ "type": ["object", "array"] });
            Some(json!({ "application/json": { "schema": any } }))
        }
    }
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut all: Map<String, Value> = Map::new();
    let mut good = json!({ "description": "Done.", "headers": reply_headers(route) });
    if let Some(content) = request_body(route.response, generator) {
        good["content"] = content;
    }
    all.insert(route.status.to_string(), good);
    let error = schema::<ApiError>(generator);
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in route.codes() {
        by_status.entry(code.status()).or_default().push(code);
    }
    for (status, codes) in by_status {
        let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
        all.insert(
            status.to_string(),
            json!({
                "description": format!("Codes: {}.", names.join(", ")),
                "content": { "application/json": { "schema": error } },
            }),
        );
    }
    if let Some(too_long) = address_too_long(route) {
        all.insert("414".into(), too_long);
    }
    Value::Object(all)
}

/// The HTTP library rejects a longer address itself, before any route.
fn address_too_long(route: &Route) -> Option<Value> {
    let grows = route.path_parameters().next().is_some() || route.parameters().next().is_some();
    grows.then(|| json!({ "description": "The address has more than 65,534 bytes. No body." }))
}

fn reply_headers(route: &Route) -> Value {
    let index = json!({
        "description": "Log index of the answer.",
        "schema": { "type": "integer", "minimum": 0 },
    });
    match route.kind {
        RouteKind::Read => json!({
            CELL_INDEX: index,
            CELL_READ: {
                "description": "Whether everything acknowledged before is in it.",
                "schema": { "type": "string", "enum": ["stale", "consistent"] },
            },
        }),
        _ => json!({ CELL_INDEX: index }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(to)) = map.get("$ref") {
                    found.insert(to);
                }
                map.values().for_each(|v| references(v, found));
            }
            Value::Array(list) => list.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_holds_every_route_and_every_reference_resolves() {
        let document = document();
        let mut operations = BTreeSet::new();
        for route in routes() {
            let pointer = route.path.replace('/', "~1");
            let method = route.method.as_str().to_lowercase();
            let described = document.pointer(&format!("/paths/{pointer}/{method}"));
            let described = described.unwrap_or_else(|| panic!("{} is missing", route.path));
            assert!(operations.insert(described["operationId"].to_string()), "{described}");
            assert!(!described["responses"].as_object().unwrap().is_empty());
            let named: BTreeSet<&str> = described["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| p["in"] == "path")
                .filter_map(|p| p["name"].as_str())
                .collect();
            assert_eq!(named, route.path_parameters().collect(), "{}", route.path);
        }
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }

    fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                for name in ["description", "summary"] {
                    found.extend(map.get(name).and_then(Value::as_str));
                }
                map.values().for_each(|v| texts(v, found));
            }
            Value::Array(list) => list.iter().for_each(|v| texts(v, found)),
            _ => {}
        }
    }

    #[test]
    fn descriptions_are_for_those_who_do_not_read_the_code() {
        let document = document();
        let mut found = Vec::new();
        texts(&document, &mut found);
        assert!(found.len() > 100, "{found:?}");
        let marked = |text: &&&str| {
            let number = |mark: &str| {
                let mut after = text.split(mark).skip(1);
                after.any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
            };
            let of_code = ["[`", "::", "`None`", "Some("].iter().any(|mark| text.contains(mark));
            of_code || number("(B") || number("(X")
        };
        let marked: Vec<&&str> = found.iter().filter(marked).collect();
        assert!(marked.is_empty(), "{marked:#?}");
    }

    #[test]
    fn schemas_come_from_the_types() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for name in ["JobSpec", "JobView", "JobViewPage", "ApiError", "MachineSpec", "Changed"] {
            assert!(schemas.contains_key(name), "{name} is not among {:?}", schemas.keys());
        }
        assert_eq!(schemas["JobSpec"]["additionalProperties"], false);
        assert_eq!(schemas["SubmitJob"]["additionalProperties"], false);
        let codes: Vec<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        let text = schemas["Code"].to_string();
        assert!(codes.iter().all(|code| text.contains(&format!("\"{code}\""))), "{text}");
    }
}
