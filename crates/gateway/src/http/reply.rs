//! Replies: JSON with the log index, and errors with the HTTP status of their code.

use super::call::Call;
use super::{Api, ApiResult};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::{CELL_INDEX, CELL_READ};
use cellwright_api::types::{One, Page};
use serde::Serialize;

/// The reply for an error.
#[must_use]
pub fn error_response(error: &ApiError) -> Response<Body> {
    let mut response = Response::new(Body::from(json_bytes(error)));
    *response.status_mut() =
        StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(after) = error.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(after.0.div_ceil(1000).max(1)));
    }
    if error.code.status() == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn json_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // Our own types have string keys and no failing serializers.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn json<T: Serialize>(call: &Call, index: u64, value: &T) -> Response<Body> {
    let mut response = Response::new(Body::from(json_bytes(value)));
    *response.status_mut() = StatusCode::from_u16(call.route.status).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CELL_INDEX, HeaderValue::from(index));
    response
}

/// As [`json`], for a state that may be behind.
pub(super) fn read<T: Serialize>(
    call: &Call,
    index: u64,
    consistent: bool,
    value: &T,
) -> Response<Body> {
    let mut response = json(call, index, value);
    let kind = if consistent { "consistent" } else { "stale" };
    response.headers_mut().insert(CELL_READ, HeaderValue::from_static(kind));
    response
}

pub(super) fn one<T: Serialize>(call: &Call, index: u64, consistent: bool, item: T) -> ApiResult {
    Ok(read(call, index, consistent, &One { item, index, consistent }))
}

pub(super) fn page<T: Serialize>(call: &Call, page: &Page<T>) -> ApiResult {
    Ok(read(call, page.index, page.consistent, page))
}

pub(super) fn text(content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The API's OpenAPI document.
pub(super) fn document(call: &Call) -> Response<Body> {
    let mut response = json(call, 0, &cellwright_api::openapi::document());
    response.headers_mut().remove(CELL_INDEX);
    response
}

impl Api {
    /// The error that there is no such object.
    pub(super) fn not_found(code: Code, what: impl std::fmt::Display) -> ApiError {
        ApiError::new(code, format!("there is no {what}"))
    }
}
