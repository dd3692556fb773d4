//! One API request, checked against its row in the route table before a handler sees it.

use super::access::unauthenticated;
use super::{Api, bodies};
use crate::access::listener::CallerProof;
use crate::access::request_origin;
use axum::body::Body;
use axum::extract::RawPathParams;
use axum::extract::rejection::RawPathParamsRejection;
use axum::http::{HeaderMap, Request, Uri, header};
use bytes::Bytes;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::{
    CONSISTENT, EXPECT, IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY, Parameter, ParameterType, Route,
    RouteKind, path_parameter,
};
use cellwright_cell::admit::MAX_SPAN;
use cellwright_cell::command::RequestId;
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::time::Span;
use cellwright_master::flow_control::Permit;
use cellwright_master::handle::Caller;
use cellwright_master::replicated_state::View;
use hyper::upgrade::OnUpgrade;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

pub(super) struct Call {
    pub route: &'static Route,
    pub caller: Option<Caller>,
    path: BTreeMap<String, String>,
    uri: Uri,
    query: BTreeMap<&'static str, String>,
    pub headers: HeaderMap,
    /// The caller's proof of authentication, to be checked again.
    pub proof: Option<CallerProof>,
    /// The upgraded connection, if the request asks for it.
    pub upgrade: Option<OnUpgrade>,
    /// In a mutex because a body is not `Sync`, and calls are.
    body: Mutex<Option<Body>>,
    /// The body's reservation in the caller's memory share.
    body_permit: Option<Permit>,
}

impl Call {
    pub fn new(
        route: &'static Route,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: Request<Body>,
    ) -> Result<Call, ApiError> {
        let params = params
            .map_err(|e| ApiError::parameter("path", &e.to_string(), "UTF-8, percent-encoded"))?;
        let path = params.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>();
        let proof = parts.extensions.remove::<CallerProof>();
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let (uri, headers) = (parts.uri, parts.headers);
        let query = BTreeMap::new();
        let body = Mutex::new(Some(body));
        let held = None;
        Ok(Call {
            route,
            caller,
            path,
            uri,
            query,
            headers,
            proof,
            upgrade,
            body,
            body_permit: held,
        })
    }

    /// The caller, as the audit log names it.
    pub fn actor_text(&self) -> String {
        self.caller.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string)
    }

    /// Checks parameters and headers against the table.
    pub fn check(&mut self) -> Result<(), ApiError> {
        for (name, value) in &self.path {
            if let Some(parameter) = path_parameter(name) {
                check_parameter(&parameter, value)?;
            }
        }
        self.query = parse_query(self.route, self.uri.query().unwrap_or(""))?;
        if self.route.kind == RouteKind::Change {
            self.request_id()?;
        }
        self.expect().map(drop)
    }

    /// The authenticated caller. The table lets no unauthenticated request reach a handler that
    /// needs it.
    pub fn caller(&self) -> Result<&Caller, ApiError> {
        self.caller.as_ref().ok_or_else(unauthenticated)
    }

    /// Whether the credentials that admitted the caller are still valid.
    pub fn is_proof_valid(&self) -> bool {
        self.proof.as_ref().is_none_or(CallerProof::is_valid)
    }

    /// The requested path.
    pub fn path(&self) -> &str {
        self.uri.path()
    }

    pub fn text(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    pub fn name(&self, name: &str) -> Result<Name, ApiError> {
        let text = self.text(name);
        Name::new(text).map_err(|bad| ApiError::parameter(name, text, &bad.allowed))
    }

    pub fn token(&self, name: &str) -> Result<Token, ApiError> {
        let text = self.text(name);
        Token::new(text).map_err(|bad| ApiError::parameter(name, text, &bad.allowed))
    }

    pub fn number(&self, name: &str) -> Result<u64, ApiError> {
        let text = self.text(name);
        text.parse().map_err(|_| ApiError::parameter(name, text, "a number"))
    }

    pub fn job(&self) -> Result<JobKey, ApiError> {
        Ok(JobKey { user: self.name("user")?, job: self.name("job")? })
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// A length of time in milliseconds, if the query has one.
    pub fn span(&self, name: &str) -> Result<Option<Span>, ApiError> {
        let Some(text) = self.query(name) else { return Ok(None) };
        let span = text.parse().ok().map(Span).filter(|span| *span <= MAX_SPAN);
        let allowed = || format!("0 to {}", MAX_SPAN.0);
        span.map(Some).ok_or_else(|| ApiError::parameter(name, text, &allowed()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn flag(&self, name: &str) -> bool {
        self.query(name) == Some("true")
    }

    /// The state to answer from, and whether it includes everything acknowledged before.
    pub async fn view(&self, api: &Api) -> Result<(View, bool), ApiError> {
        if self.flag(CONSISTENT.name) {
            Ok((api.handle.read_linearizable().await?, true))
        } else {
            Ok((api.handle.read(), false))
        }
    }

    /// The version the client expects, by header or by query.
    pub fn expect(&self) -> Result<Option<u32>, ApiError> {
        let query = self.query(EXPECT.name).map(|text| version(EXPECT.name, text)).transpose()?;
        let Some(value) = self.headers.get(header::IF_MATCH).filter(|_| self.route.versioned)
        else {
            return Ok(query);
        };
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let bare = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(&text);
        let found = version("if-match", bare)?;
        match query {
            Some(other) if other != found => {
                Err(ApiError::parameter(EXPECT.name, &other.to_string(), "the same as If-Match"))
            }
            _ => Ok(Some(found)),
        }
    }

    /// The idempotency key as the log knows it: a client and a sequence number.
    pub fn request_id(&self) -> Result<Option<RequestId>, ApiError> {
        Ok(self.idempotency_key()?.map(|key| {
            parse_client_key(key)
                .unwrap_or(RequestId { client: xxh3_64(key.as_bytes()), sequence: 0 })
        }))
    }

    pub fn idempotency_key(&self) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
        let graphic = value.as_bytes().iter().all(u8::is_ascii_graphic);
        match value.to_str() {
            Ok(key) if graphic && (1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()) => Ok(Some(key)),
            _ => {
                let text = String::from_utf8_lossy(value.as_bytes());
                let allowed = "1 to 128 printable ASCII characters without spaces";
                Err(ApiError::parameter(IDEMPOTENCY_KEY, &text, allowed))
            }
        }
    }

    /// The whole body. Its memory counts against the caller's share for as long as the call runs.
    async fn body(&mut self, api: &Api) -> Result<Bytes, ApiError> {
        let (body, stated) = (self.take_body(), self.content_length());
        let mut share = api.flow.bodies.empty(&self.actor_text());
        let limit = api.config.body_limit;
        let read = bodies::read_whole(body, stated, limit, &mut share, api.flow.pace).await;
        self.body_permit = Some(share);
        read
    }

    /// The body's length, as announced by its sender.
    pub fn content_length(&self) -> Option<u64> {
        self.header("content-length").and_then(|text| text.parse().ok())
    }

    /// The body as a stream, for content that does not fit in memory.
    pub fn take_body(&mut self) -> Body {
        let body = self.body.get_mut().unwrap_or_else(PoisonError::into_inner);
        body.take().unwrap_or_default()
    }

    /// The body as JSON.
    pub async fn json<T: DeserializeOwned>(&mut self, api: &Api) -> Result<T, ApiError> {
        request_origin::require_json(&self.headers)?;
        let bytes = self.body(api).await?;
        // serde would also accept a list for an object, field by field; the API's schema does not.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(ApiError::field("body", "a list", "an object"));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            bad_number_error(self.route, &bytes, &error).unwrap_or_else(|| bad_json_error(&error))
        })
    }
}

fn version(name: &str, text: &str) -> Result<u32, ApiError> {
    text.parse().map_err(|_| ApiError::parameter(name, text, "a version: 0 to 4294967295"))
}

/// `<client, hexadecimal>-<sequence, decimal>`.
fn parse_client_key(key: &str) -> Option<RequestId> {
    let (client, sequence) = key.split_once('-')?;
    let hex = (1..=16).contains(&client.len()) && client.bytes().all(|b| b.is_ascii_hexdigit());
    let decimal = !sequence.is_empty() && sequence.bytes().all(|b| b.is_ascii_digit());
    if !hex || !decimal {
        return None;
    }
    Some(RequestId {
        client: u64::from_str_radix(client, 16).ok()?,
        sequence: sequence.parse().ok()?,
    })
}

/// The field error, where a number is out of its type's range: serde names only the type.
fn bad_number_error(route: &Route, bytes: &[u8], error: &serde_json::Error) -> Option<ApiError> {
    let text = error.to_string();
    let is_number = ["invalid value: integer", "invalid type: floating point"];
    if !is_number.iter().any(|start| text.starts_with(start)) {
        return None;
    }
    let found = route.request.out_of_range(&serde_json::from_slice(bytes).ok()?)?;
    let error = ApiError::field(&found.field, &found.value, &found.allowed)
        .with("line", error.line())
        .with("column", error.column());
    Some(error)
}

/// The serde error, with the field's name where it has one.
fn bad_json_error(error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    let mut api = ApiError::new(Code::BadBody, format!("the body is not as it must be: {text}"))
        .with("line", error.line())
        .with("column", error.column());
    for start in ["unknown field `", "missing field `", "unknown variant `"] {
        if let Some(rest) = text.split_once(start).map(|(_, rest)| rest)
            && let Some((field, rest)) = rest.split_once('`')
        {
            api = api.with("field", field);
            if let Some((_, allowed)) = rest.split_once("expected ") {
                let allowed = allowed.split(" at line").next().unwrap_or(allowed);
                api = api.with("allowed", allowed);
            }
        }
    }
    api
}

fn parse_query(
    route: &'static Route,
    text: &str,
) -> Result<BTreeMap<&'static str, String>, ApiError> {
    let mut found = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = percent_decode("query", name)?;
        let Some(parameter) = route.parameters().find(|p| p.name == name) else {
            return Err(unknown_parameter_error(route, &name));
        };
        let value = percent_decode(parameter.name, value)?;
        check_parameter(parameter, &value)?;
        if found.insert(parameter.name, value).is_some() {
            return Err(ApiError::parameter(parameter.name, "given twice", "once"));
        }
    }
    Ok(found)
}

fn unknown_parameter_error(route: &'static Route, name: &str) -> ApiError {
    let known: Vec<&str> = route.parameters().map(|p| p.name).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let short_name: String = name.chars().take(100).collect();
    let message = format!("there is no query parameter {short_name:?}; known: {known}");
    ApiError::new(Code::BadParameter, message).with("parameter", short_name).with("allowed", known)
}

/// Percent-decoded; a plus is a space.
fn percent_decode(name: &str, text: &str) -> Result<String, ApiError> {
    let bad = || ApiError::parameter(name, text, "UTF-8, percent-encoded");
    let digit =
        |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = digit(bytes.next()).ok_or_else(bad)?;
                high * 16 + digit(bytes.next()).ok_or_else(bad)?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).map_err(|_| bad())
}

fn check_parameter(parameter: &Parameter, value: &str) -> Result<(), ApiError> {
    let refuse = |allowed: &str| Err(ApiError::parameter(parameter.name, value, allowed));
    match parameter.value_type {
        ParameterType::Name => match Name::new(value) {
            Ok(_) => Ok(()),
            Err(bad) => refuse(&bad.allowed),
        },
        ParameterType::Token => match Token::new(value) {
            Ok(_) if !value.contains('/') => Ok(()),
            Ok(_) => refuse("a token without /"),
            Err(bad) => refuse(&bad.allowed),
        },
        ParameterType::Integer { min, max } => match value.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => refuse(&format!("{min} to {max}")),
        },
        ParameterType::Boolean if matches!(value, "true" | "false") => Ok(()),
        ParameterType::Boolean => refuse("true or false"),
        ParameterType::OneOf(words) if words.contains(&value) => Ok(()),
        ParameterType::OneOf(words) => refuse(&words.join(", ")),
        ParameterType::Text(most) if (1..=most).contains(&value.chars().count()) => Ok(()),
        ParameterType::Text(most) => refuse(&format!("1 to {most} characters")),
        ParameterType::Digest => {
            let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            if value.len() == 64 && value.bytes().all(hex) {
                Ok(())
            } else {
                refuse("64 digits 0-9 and a-f: the content's SHA-256")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_api::routes::{Operation, routes};

    fn route(operation: Operation) -> &'static Route {
        routes().find(|route| route.operation == operation).unwrap()
    }

    #[test]
    fn queries_are_read_and_refused_by_name() {
        let jobs = route(Operation::ListJobs);
        let good = parse_query(jobs, "selector=a%3Db%2Cc!=d&limit=5&consistent=true").unwrap();
        assert_eq!(good["selector"], "a=b,c!=d");
        assert_eq!(good["limit"], "5");
        for (query, want) in [
            ("colour=red", "\"colour\"; known: selector, user, state, limit, after, consistent"),
            ("limit=0", "parameter limit: value \"0\" is not valid; allowed: 1 to 1000"),
            ("limit=5&limit=6", "given twice"),
            ("consistent=yes", "true or false"),
            ("state=lost", "deferred, active, stopping, dead, live"),
            ("user=UPPER", "a-z, 0-9"),
            ("selector=%zz", "percent-encoded"),
            ("selector=%ff", "UTF-8"),
        ] {
            let error = parse_query(jobs, query).unwrap_err();
            assert_eq!(error.code, Code::BadParameter, "{query}");
            assert!(error.message.contains(want), "{query}: {}", error.message);
        }
    }

    #[test]
    fn keys_of_our_own_clients_keep_their_numbers() {
        let id = |client, sequence| Some(RequestId { client, sequence });
        assert_eq!(parse_client_key("00000000000000ff-7"), id(255, 7));
        assert_eq!(parse_client_key("ff-18446744073709551615"), id(255, u64::MAX));
        for other in ["ff", "ff-", "-7", "xyz-7", "00000000000000000ff-7", "ff-7-8", "ff-+7"] {
            assert_eq!(parse_client_key(other), None, "{other}");
        }
    }
}
