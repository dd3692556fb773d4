//! Response bodies. Until it is sent completely an answer counts as a request in flight, and a
//! large one as memory of its caller: a caller that requests much and reads nothing of it runs into
//! its own limits and nobody else's. A large answer that is not read for too long is cut off, as
//! streams are.

use super::flow_control::forward_chunks;
use super::{Api, ApiResult};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_master::flow_control::Permit;
use cellwright_supervise::spawn_request;
use futures::{StreamExt, stream};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Larger bodies are sent in chunks of this size. Smaller ones fit into a connection's buffer
/// anyway.
const CHUNK_BYTES: usize = 64 << 10;

impl Api {
    /// The same response; it counts as `actor`'s until it is sent.
    pub(super) fn hold_until_sent(
        &self,
        actor: &str,
        request_permit: Option<Permit>,
        response: Response<Body>,
    ) -> ApiResult {
        // A stream of events has a permit of its own.
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind == "text/event-stream");
        if is_stream || response.body().is_end_stream() {
            return Ok(response);
        }
        let length = response.body().size_hint().exact();
        let bytes = length.and_then(|length| usize::try_from(length).ok());
        if bytes.is_some_and(|bytes| bytes <= CHUNK_BYTES) {
            return Ok(response
                .map(|body| Body::new(BodyWithPermits { body, _shares: [request_permit, None] })));
        }
        let mut share = self.flow.bodies.empty(actor);
        share.acquire_any_if_empty(bytes.unwrap_or(CHUNK_BYTES))?;
        let shares = [request_permit, Some(share)];
        let mut response = response.map(|body| self.in_chunks(body, shares));
        if let Some(length) = length {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(response)
    }

    fn in_chunks(&self, body: Body, shares: [Option<Permit>; 2]) -> Body {
        let pieces = body.into_data_stream().flat_map(|data| stream::iter(split_chunks(data)));
        // The last item marks the end: an answer that was cut off must be recognisable as such.
        let pieces = pieces.map(Some).chain(stream::iter([None]));
        let (to, from) = mpsc::channel(1);
        spawn_request("an answer", forward_chunks(pieces, to, self.flow.stream_timeout));
        let body = stream::unfold(Some(from), |from| async move {
            let mut from = from?;
            match from.recv().await {
                Some(Some(piece)) => Some((piece, Some(from))),
                Some(None) => None,
                None => Some((Err(axum::Error::new("nobody read the answer")), None)),
            }
        });
        Body::new(BodyWithPermits { body: Body::from_stream(body), _shares: shares })
    }
}

fn split_chunks(data: Result<Bytes, axum::Error>) -> Vec<Result<Bytes, axum::Error>> {
    let mut data = match data {
        Ok(data) => data,
        Err(error) => return vec![Err(error)],
    };
    let mut pieces = Vec::with_capacity(data.len().div_ceil(CHUNK_BYTES));
    while !data.is_empty() {
        pieces.push(Ok(data.split_to(data.len().min(CHUNK_BYTES))));
    }
    pieces
}

/// A body with the permits that its caller holds for it.
struct BodyWithPermits {
    body: Body,
    _shares: [Option<Permit>; 2],
}

impl HttpBody for BodyWithPermits {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
