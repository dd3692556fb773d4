//! Answers on their way out. Until the last of it is sent an answer counts as a request under way,
//! and a large one as bytes that its caller holds: whoever asks for much and reads nothing of it
//! runs into its own limits and nobody else's. A large answer that nobody reads for too long is cut
//! off, as streams are.

use super::flow::carry;
use super::{Answered, Api};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_master::flow::Share;
use cellwright_supervise::of_request;
use futures::{StreamExt, stream};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// What is larger goes out in pieces of this size. Less fits into what a connection buffers anyway.
const PIECE: usize = 64 << 10;

impl Api {
    /// The same answer; it counts as `who`'s until it is sent.
    pub(super) fn sending(
        &self,
        who: &str,
        under_way: Option<Share>,
        response: Response<Body>,
    ) -> Answered {
        // A stream of events has a place of its own.
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind == "text/event-stream");
        if is_stream || response.body().is_end_stream() {
            return Ok(response);
        }
        let length = response.body().size_hint().exact();
        let bytes = length.and_then(|length| usize::try_from(length).ok());
        if bytes.is_some_and(|bytes| bytes <= PIECE) {
            return Ok(response.map(|body| Body::new(Held { body, _shares: [under_way, None] })));
        }
        let mut share = self.flow.bodies.none(who);
        share.grow_from_nothing(bytes.unwrap_or(PIECE))?;
        let shares = [under_way, Some(share)];
        let mut response = response.map(|body| self.in_pieces(body, shares));
        if let Some(length) = length {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(response)
    }

    fn in_pieces(&self, body: Body, shares: [Option<Share>; 2]) -> Body {
        let pieces = body.into_data_stream().flat_map(|data| stream::iter(split(data)));
        // The last one says that it is: an answer that was cut off is no answer.
        let pieces = pieces.map(Some).chain(stream::iter([None]));
        let (to, from) = mpsc::channel(1);
        of_request("an answer", carry(pieces, to, self.flow.stream_patience));
        let body = stream::unfold(Some(from), |from| async move {
            let mut from = from?;
            match from.recv().await {
                Some(Some(piece)) => Some((piece, Some(from))),
                Some(None) => None,
                None => Some((Err(axum::Error::new("nobody read the answer")), None)),
            }
        });
        Body::new(Held { body: Body::from_stream(body), _shares: shares })
    }
}

fn split(data: Result<Bytes, axum::Error>) -> Vec<Result<Bytes, axum::Error>> {
    let mut data = match data {
        Ok(data) => data,
        Err(error) => return vec![Err(error)],
    };
    let mut pieces = Vec::with_capacity(data.len().div_ceil(PIECE));
    while !data.is_empty() {
        pieces.push(Ok(data.split_to(data.len().min(PIECE))));
    }
    pieces
}

/// A body with what its caller has taken for it.
struct Held {
    body: Body,
    _shares: [Option<Share>; 2],
}

impl HttpBody for Held {
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
