//! The OpenAPI document against the server: every route in it answers, and the server's answers
//! match its schemas.

use crate::every_route::put_into_archive;
use crate::support::{Cell, job, within};
use cellwright_api::routes::{Content, routes};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The part of JSON Schema that our types use, checked by hand: types, required, properties, items,
/// enums, references and alternatives.
fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(to) = schema["$ref"].as_str() {
        let target = document.pointer(to.strip_prefix('#').unwrap()).unwrap();
        return fits(document, target, value);
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(list) = schema[word].as_array() {
            let found = list.iter().any(|one| fits(document, one, value).is_ok());
            found.then_some(()).ok_or_else(|| format!("{value} is none of {schema}"))?;
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        words.contains(value).then_some(()).ok_or_else(|| format!("{value} not in {schema}"))?;
    }
    if let Some(only) = schema.get("const") {
        (only == value).then_some(()).ok_or_else(|| format!("{value} is not {only}"))?;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = &schema["type"];
    let named =
        allowed == kind || allowed.as_array().is_some_and(|list| list.contains(&json!(kind)));
    (allowed.is_null() || named).then_some(()).ok_or_else(|| format!("{value}: {schema}"))?;
    for name in schema["required"].as_array().into_iter().flatten() {
        let has = value.get(name.as_str().unwrap()).is_some() || !value.is_object();
        has.then_some(()).ok_or_else(|| format!("{value} lacks {name}"))?;
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(known) => fits(document, known, inner).map_err(|e| format!("{name}: {e}"))?,
            None if schema["patternProperties"].is_object() => {
                let mut known = schema["patternProperties"].as_object().into_iter().flatten();
                let found = known.any(|(_, known)| fits(document, known, inner).is_ok());
                found.then_some(()).ok_or_else(|| format!("{name}: {inner} in {schema}"))?;
            }
            None if schema["additionalProperties"] == false => {
                return Err(format!("{name} is not known to {schema}"));
            }
            None => {}
        }
    }
    if !schema["items"].is_null() {
        for item in value.as_array().into_iter().flatten() {
            fits(document, &schema["items"], item)?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_is_what_the_document_says() {
    let cell = Cell::start().await;
    cell.furnish(2).await;
    let set = json!({ "capacity": "unbounded", "nodes": { "node": "m1" } });
    cell.must("PUT /v1/resources/app/x", set).await;
    let mut run = job("tick", 1);
    run["task"]["secrets"] = json!({ "key": "rosebud" });
    let cron = json!({ "name": "tick", "schedule": "*/5 * * * *", "job": run });
    cell.must("PUT /v1/crons/ubar/tick", cron).await;
    let mut scaled = job("jscaled", 1);
    scaled["scale"] = json!({ "min": 1, "max": 2 });
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": scaled })).await;
    put_into_archive(&cell, "ubar", "jfoo").await;
    let document = cell.must("GET /v1/openapi.json", Value::Null).await.body;
    let values = [
        ("{user}", "ubar"),
        ("{job}", "jfoo"),
        ("{index}", "0"),
        ("{machine}", "m1"),
        ("{cron}", "tick"),
        ("{namespace}", "app"),
        ("{name}", "x"),
        ("{replica}", "1"),
    ];
    let mut checked = 0;
    for route in routes().filter(|r| r.method.as_str() == "GET") {
        let Content::Json(_) = route.response else { continue };
        // Output and packages come from a machine's agent, and there is none here; `agent.rs` has
        // one.
        if route.path.ends_with("/output") || route.path.ends_with("/{machine}/packages") {
            continue;
        }
        let path = values.iter().fold(route.path.to_owned(), |p, (k, v)| p.replace(k, v));
        let path = path.replace("/jfoo/scale", "/jscaled/scale");
        let got = cell.must(&format!("GET {path}"), Value::Null).await;
        let pointer = route.path.replace('/', "~1");
        let schema = document
            .pointer(&format!(
                "/paths/{pointer}/get/responses/200/content/application~1json/schema"
            ))
            .unwrap();
        fits(&document, schema, &got.body).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(!got.text.contains("rosebud"), "{path} shows a secret: {}", got.text);
        checked += 1;
    }
    assert!(checked > 15, "{checked}");
    let error = cell.ask("GET /v1/jobs/ubar/nope", Value::Null).await;
    let schema = &document["components"]["schemas"]["ApiError"];
    fits(&document, schema, &error.body).unwrap();
    // The check itself can fail.
    assert!(fits(&document, schema, &json!({ "code": "no-such-thing" })).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_too_long_is_refused_as_the_document_says() {
    let cell = Cell::start().await;
    let mut stream = TcpStream::connect(&cell.address).await.unwrap();
    let long = "a".repeat(65_535);
    let head = format!("GET /v1/jobs?label={long} HTTP/1.1\r\nhost: {}\r\n\r\n", cell.address);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = String::new();
    within(stream.read_to_string(&mut heard)).await.unwrap();
    assert!(heard.starts_with("HTTP/1.1 414 ") && heard.ends_with("\r\n\r\n"), "{heard}");
    let document = cell.must("GET /v1/openapi.json", json!(null)).await.body;
    let too_long_response = &document["paths"]["/v1/jobs"]["get"]["responses"]["414"];
    assert!(
        too_long_response["description"].as_str().is_some_and(|text| text.contains("65,534")),
        "{too_long_response}"
    );
    assert!(too_long_response["content"].is_null(), "{too_long_response}");
    let plain = &document["paths"]["/v1/openapi.json"]["get"]["responses"];
    assert!(plain["414"].is_null() && plain["200"].is_object(), "{plain}");
}
