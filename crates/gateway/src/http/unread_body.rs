//! Discards the unread rest of a rejected request's body. A connection that is closed with unread
//! bytes loses the answer: the client sees a broken pipe and never learns why. So the rest of a
//! rejected body is read and discarded while the answer is sent, up to a limit.
//!
//! Rejected: to read on before the answer is sent. A client that waits for the answer before it
//! sends the rest would wait for nothing.

use axum::body::Body;
use axum::http::{Request, header};
use bytes::Bytes;
use cellwright_supervise::spawn_request;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// A client that has more to send than this, or takes longer, is cut off.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request that a handler reads through a shared handle.
pub(super) struct UnreadBody(Option<SharedBody>);

impl UnreadBody {
    /// The same request, with access to what its handler leaves of the body.
    pub fn split_off(request: Request<Body>) -> (Request<Body>, UnreadBody) {
        // A client that sent `Expect: 100-continue` sends no body after a rejection.
        if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
            return (request, UnreadBody(None));
        }
        let (parts, body) = request.into_parts();
        let shared = SharedBody(Arc::new(Mutex::new(body)));
        (Request::from_parts(parts, Body::new(shared.clone())), UnreadBody(Some(shared)))
    }

    /// Reads and discards the rest while the answer is sent.
    pub fn discard(self) {
        if let Some(body) = self.0.filter(|body| !body.is_end_stream()) {
            let discarding = timeout(DISCARD_TIMEOUT, discard(body));
            spawn_request("the rest of a refused body", async { drop(discarding.await) });
        }
    }
}

async fn discard(mut body: SharedBody) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}

#[derive(Clone)]
struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}
