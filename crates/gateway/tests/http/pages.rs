//! Web pages: whatever a browser can be made to send to a dev master is rejected, on every route.

use crate::support::{Cell, TestResponse, digest_of, within};
use axum::body::Body;
use cellwright_api::routes::{Route, routes};
use cellwright_master::handle::Caller;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::Value;

const ANYONE: Caller = Caller::Operator;

/// The path of each route with its parameters filled in, and the paths beside the table.
fn targets() -> Vec<String> {
    let filled = |route: &Route| {
        let parts = route.path.split('/').map(|part| match part {
            "{digest}" => digest_of(b"x"),
            hole if hole.starts_with('{') => "1".to_owned(),
            part => part.to_owned(),
        });
        format!("{} {}", route.method.as_str(), parts.collect::<Vec<_>>().join("/"))
    };
    let beside = ["peer", "poll", "log", "propose", "lease"].map(|p| format!("POST /internal/{p}"));
    let rest = ["GET /nowhere".to_owned(), format!("PUT /internal/blobs/{}", digest_of(b"x"))];
    routes().map(filled).chain(beside).chain(rest).collect()
}

/// One request as a browser sends it: the page chooses the host.
async fn send_as_browser(
    cell: &Cell,
    target: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> TestResponse {
    let (method, path) = target.split_once(' ').unwrap();
    let mut request = hyper::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let stream = tokio::net::TcpStream::connect(&cell.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let pending_response = sender.send_request(request.body(Body::from(body)).unwrap());
    let response = within(pending_response).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = within(response.into_body().collect()).await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    TestResponse { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::Null), text }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_names_and_origins_are_refused_on_every_route() {
    let cell = Cell::start().await;
    let own = cell.address.as_str();
    let rebound = format!("evil.example:{}", own.rsplit_once(':').unwrap().1);
    let elsewhere = "http://evil.example";
    let same = format!("http://{rebound}");
    for target in targets() {
        for (headers, named) in [
            (vec![("host", rebound.as_str())], "host"),
            (vec![("host", rebound.as_str()), ("origin", &same)], "host"),
            (vec![("host", own), ("origin", elsewhere)], "origin"),
            (vec![("host", own), ("origin", "null")], "origin"),
            (vec![("host", own), ("sec-fetch-site", "cross-site")], "sec-fetch-site"),
        ] {
            let got = send_as_browser(&cell, &target, &headers, "").await;
            assert_eq!((got.status, got.code()), (403, "not-allowed"), "{target} {headers:?}");
            assert_eq!(got.body["details"]["header"], named, "{target} {headers:?}");
        }
    }
    let itself = format!("http://{own}");
    let got =
        send_as_browser(&cell, "GET /v1/jobs", &[("host", own), ("origin", &itself)], "").await;
    assert_eq!(got.status, 200, "{}", got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_a_form_can_send_are_refused_on_every_route() {
    let cell = Cell::start().await;
    let host = ("host", cell.address.as_str());
    for target in targets() {
        for media in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
            let mut headers = vec![host];
            headers.extend(media.map(|media| ("content-type", media)));
            let got = send_as_browser(&cell, &target, &headers, "{}").await;
            let found = (got.status, got.code());
            assert_eq!(found, (415, "unsupported-media-type"), "{target} {media:?}: {}", got.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_route_takes_its_own_kind_of_body() {
    let cell = Cell::start().await;
    let blob = format!("/v1/blobs/{}", digest_of(b"{}"));
    let (json, binary) = ("application/json", "application/octet-stream");
    for (target, media, allowed) in [
        ("POST /v1/users".to_owned(), binary, json),
        (format!("PUT {blob}"), json, binary),
        (format!("PUT {}", blob.replace("v1", "internal")), json, binary),
        ("POST /internal/lease".to_owned(), json, "application/postcard"),
    ] {
        let host = ("host", cell.address.as_str());
        let got = send_as_browser(&cell, &target, &[host, ("content-type", media)], "{}").await;
        assert_eq!((got.status, got.code()), (415, "unsupported-media-type"), "{target}");
        assert_eq!(got.body["details"]["allowed"], allowed, "{target}: {}", got.text);
    }
    let put = format!("PUT {blob}");
    let got = cell.send(Some(&ANYONE), &put, &[], Body::from("{}")).await;
    assert_eq!(got.status, 200, "{}", got.text);
}
