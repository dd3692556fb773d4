//! The answering side of messages between parts: which version a request is in, and the answer in
//! the same one. Every answer, refusals included, says what this master speaks.

use crate::http::error_response;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::wire::{Spoken, WireMessage, WireRange, WireVersion, pack, unpack};

/// The version of a request's message.
///
/// # Errors
/// When it is not spoken here; the error names both sides and says what to do.
pub(crate) fn spoken(headers: &HeaderMap, caller: &str) -> Result<WireVersion, ApiError> {
    let (own, said) = (WireRange::own(), Spoken::of(headers));
    match said {
        Some(spoken) if own.speaks(spoken.version) => Ok(spoken.version),
        _ => Err(own.rejection(caller, said, "this master")),
    }
}

pub(crate) fn decode<M: WireMessage>(version: WireVersion, bytes: &[u8]) -> Result<M, ApiError> {
    let bad =
        |error| ApiError::new(Code::BadBody, format!("not the message that belongs here: {error}"));
    unpack(WireRange::own(), version, bytes).map_err(bad)
}

/// The answer in the version it was asked for in.
pub(crate) fn finish<M: WireMessage>(
    answered: Result<(WireVersion, M), ApiError>,
) -> Response<Body> {
    let packed = answered.and_then(|(version, message)| {
        let broken = |error| ApiError::new(Code::Internal, format!("the answer: {error}"));
        Ok((version, pack(version, &message).map_err(broken)?))
    });
    let range = WireRange::own();
    match packed {
        Ok((version, bytes)) => {
            let mut response = finish_bytes(Ok(Bytes::from(bytes)));
            Spoken { version, range }.write(response.headers_mut());
            response
        }
        Err(error) => {
            let mut response = error_response(&error);
            range.write(response.headers_mut());
            response
        }
    }
}

/// Bytes that are no message.
pub(crate) fn finish_bytes(answered: Result<Bytes, ApiError>) -> Response<Body> {
    match answered {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            let kind = HeaderValue::from_static("application/postcard");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => error_response(&error),
    }
}
