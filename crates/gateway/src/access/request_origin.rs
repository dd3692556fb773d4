//! Origin checks: a request must not come from a foreign web page (CSRF, DNS rebinding).
//!
//! A browser sends requests in the name of its user: to a `--dev` master, which treats every
//! program of its machine as an administrator, and with a certificate that was installed in the
//! browser. Pages are stopped by headers that the browser sets and the page cannot change:
//!
//! * `Host` is the name the browser thinks it talks to. A page whose name was made to lead to this
//!   machine (DNS rebinding) sends that name, so a dev master answers to loopback names alone.
//! * `Origin` is the page's own address, on everything that could change something. Only the
//!   address the request itself goes to is accepted. `Sec-Fetch-Site` says the same of plain reads.
//! * `Content-Type`: the types that pages may send without a CORS preflight are never ours.
//!
//! Programs can forge all three; they need not, because they could send requests as themselves.
//! Rejected: a secret in a file for `--dev`. It would have to be handed to every script and agent
//! of a cell whose point is that nothing has to be set up.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use cellwright_api::error::{ApiError, Code};
use hyper::body::Body;
use std::net::IpAddr;

const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";
const POSTCARD: &str = "application/postcard";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Accepts a request whose origin is allowed. `open`: the listener is that of a dev master, on
/// loopback.
///
/// # Errors
/// Which header is the reason for the rejection.
pub fn check<B: Body>(request: &Request<B>, open: bool) -> Result<(), ApiError> {
    let headers = request.headers();
    let addressed = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let stated = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let hosts: Vec<&[u8]> = stated.chain(addressed).collect();
    if open {
        check_host(&hosts)?;
    }
    check_origin(headers, &hosts)?;
    // The route decides which of them it accepts.
    if request.body().is_end_stream() {
        Ok(())
    } else {
        check_media(headers, &[JSON, BINARY, POSTCARD])
    }
}

fn check_host(hosts: &[&[u8]]) -> Result<(), ApiError> {
    let allowed = "localhost, 127.0.0.0/8 and [::1], as a --dev master is for this machine alone";
    match hosts.iter().find(|host| !is_loopback(host)) {
        Some(other) => Err(origin_error("host", other, allowed)),
        None if hosts.is_empty() => Err(origin_error("host", b"", allowed)),
        None => Ok(()),
    }
}

/// `host` or `host:port`, of this machine.
fn is_loopback(host: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(host) else { return false };
    let bare = match text.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|b| b.is_ascii_digit()) => bare,
        _ => text,
    };
    let address = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare);
    let numeric = address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    numeric || bare.eq_ignore_ascii_case("localhost")
}

fn check_origin(headers: &HeaderMap, hosts: &[&[u8]]) -> Result<(), ApiError> {
    let own = |origin: &HeaderValue| {
        let text = origin.as_bytes();
        let origin_host = text.strip_prefix(b"http://").or_else(|| text.strip_prefix(b"https://"));
        origin_host.is_some_and(|place| hosts.iter().any(|host| host.eq_ignore_ascii_case(place)))
    };
    if let Some(other) = headers.get_all(header::ORIGIN).iter().find(|origin| !own(origin)) {
        let allowed = "none, or the address the request goes to";
        return Err(origin_error("origin", other.as_bytes(), allowed));
    }
    let known = |site: &&HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    match headers.get_all(FETCH_SITE).iter().find(|site| !known(site)) {
        Some(other) => Err(origin_error("sec-fetch-site", other.as_bytes(), "same-origin or none")),
        None => Ok(()),
    }
}

fn origin_error(header: &str, value: &[u8], allowed: &str) -> ApiError {
    let text: String = String::from_utf8_lossy(value).chars().take(200).collect();
    let message = format!("header {header}: {text:?} is not let in; allowed: {allowed}");
    ApiError::new(Code::NotAllowed, message)
        .hint("ask from a program, not from a web page, at the master's own address")
        .with("header", header)
        .with("value", text)
        .with("allowed", allowed)
}

/// Whether the body's declared type is one of these.
///
/// # Errors
/// The declared type, and the accepted ones.
pub fn check_media(headers: &HeaderMap, allowed: &[&str]) -> Result<(), ApiError> {
    let stated = headers.get(header::CONTENT_TYPE);
    let text = stated.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let media = text.as_deref().unwrap_or("").split(';').next().unwrap_or("").trim();
    if allowed.iter().any(|allowed_type| media.eq_ignore_ascii_case(allowed_type)) {
        return Ok(());
    }
    let allowed = allowed.join(", ");
    let message = match &text {
        Some(text) => format!("content-type {text:?} is not taken here; allowed: {allowed}"),
        None => format!("a body must say its content-type; allowed: {allowed}"),
    };
    Err(ApiError::new(Code::UnsupportedMediaType, message)
        .hint(format!("send content-type: {allowed}"))
        .with("allowed", allowed))
}

/// Requires a JSON body.
///
/// # Errors
/// When the declared type is another, or missing.
pub fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    check_media(headers, &[JSON])
}

/// Requires the bytes of a package.
///
/// # Errors
/// When the declared type is another, or missing.
pub fn require_binary(headers: &HeaderMap) -> Result<(), ApiError> {
    check_media(headers, &[BINARY])
}

/// Requires an internal message in postcard.
///
/// # Errors
/// When the declared type is another, or missing.
pub fn require_postcard(headers: &HeaderMap) -> Result<(), ApiError> {
    check_media(headers, &[POSTCARD])
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    fn request(
        uri: &str,
        headers: &[(&str, &str)],
        body: &'static str,
    ) -> Request<Full<&'static [u8]>> {
        let builder = headers.iter().fold(Request::post(uri), |b, (k, v)| b.header(*k, *v));
        builder.body(Full::new(body.as_bytes())).unwrap()
    }

    #[test]
    fn an_open_master_answers_to_names_of_this_machine() {
        let ok = |uri: &str, host: &[(&str, &str)]| check(&request(uri, host, ""), true).is_ok();
        for good in ["localhost", "LocalHost:7070", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070"] {
            assert!(ok("/v1/jobs", &[("host", good)]), "{good}");
            assert!(ok(&format!("http://{good}/v1/jobs"), &[]), "{good}");
        }
        for bad in ["evil.example:7070", "localhost.evil.example", "10.0.0.1", "127.0.0.1.x", ""] {
            assert!(!ok("/v1/jobs", &[("host", bad)]), "{bad}");
        }
        assert!(!ok("/v1/jobs", &[]), "no host at all");
        assert!(!ok("http://evil.example/v1/jobs", &[("host", "localhost")]));
        assert!(!ok("/v1/jobs", &[("host", "localhost"), ("host", "evil.example")]));
        let elsewhere = request("/v1/jobs", &[("host", "m1.example:7070")], "");
        assert!(check(&elsewhere, false).is_ok(), "where names are certified, any will do");
    }

    #[test]
    fn no_page_but_ones_own_gets_in() {
        let host = ("host", "127.0.0.1:7070");
        for open in [true, false] {
            let check_rejected = |name: &'static str, value: &str| {
                check(&request("/v1/jobs", &[host, (name, value)], ""), open).err()
            };
            assert!(check_rejected("origin", "http://127.0.0.1:7070").is_none());
            assert!(check_rejected("sec-fetch-site", "none").is_none());
            for bad in ["null", "http://evil.example", "http://127.0.0.1:8080", "127.0.0.1:7070"] {
                let error = check_rejected("origin", bad).unwrap();
                assert_eq!(error.code, Code::NotAllowed);
                assert!(error.message.contains(bad), "{}", error.message);
            }
            assert!(check_rejected("sec-fetch-site", "cross-site").is_some());
            assert!(check_rejected("sec-fetch-site", "same-site").is_some());
        }
    }

    #[test]
    fn bodies_say_that_they_are_none_a_form_could_send() {
        let host = ("host", "localhost");
        let code = |media: &[(&str, &str)], body| {
            let headers = [&[host], media].concat();
            check(&request("/v1/jobs", &headers, body), true).map_err(|error| error.code)
        };
        assert_eq!(code(&[], ""), Ok(()), "nothing to say anything about");
        assert_eq!(code(&[("content-type", "application/json; charset=utf-8")], "{}"), Ok(()));
        for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
        {
            let found = code(&[("content-type", media)], "{}");
            assert_eq!(found, Err(Code::UnsupportedMediaType), "{media}");
        }
        assert_eq!(code(&[], "{}"), Err(Code::UnsupportedMediaType));
    }
}
