//! What one caller may have of this API at once (`crate::flow`), as the operator set it, and
//! streams whose readers have to keep up.

use super::bodies::Pace;
use super::call::Call;
use super::{Answered, Api};
use crate::flow::{Bound, Share, Shares, Turns};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::routes::Access;
use cellwright_supervise::of_request;
use futures::{Stream, StreamExt, stream};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Readers of output that one replica serves at once, and sessions in tasks: each is a connection
/// to a machine. Of one caller an eighth.
const FOLLOWERS: usize = 1024;
const SESSIONS: usize = 256;
/// Questions about the whole cell that one caller may have waiting, and all together.
const QUESTIONS: (usize, usize) = (16, 256);

/// The operator's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSettings {
    pub streams: usize,
    pub streams_per_user: usize,
    /// How long a stream waits for its reader.
    pub stream_patience: Duration,
    pub requests: usize,
    pub requests_per_user: usize,
    pub body_bytes: usize,
    pub body_bytes_per_user: usize,
    pub pace: Pace,
    /// Largest report of an agent.
    pub report_limit: usize,
}

impl Default for FlowSettings {
    fn default() -> FlowSettings {
        FlowSettings {
            streams: 4096,
            streams_per_user: 64,
            stream_patience: Duration::from_secs(60),
            requests: 8192,
            requests_per_user: 256,
            body_bytes: 512 << 20,
            body_bytes_per_user: 64 << 20,
            pace: Pace { patience: Duration::from_secs(10), rate: 16 << 10 },
            report_limit: 4 << 20,
        }
    }
}

impl FlowSettings {
    pub(super) fn explaining(&self) -> Turns {
        let what = "questions waiting";
        let (own, all) = QUESTIONS;
        let waiting = Bound { what, of_caller: ("fixed", own), of_all: ("fixed", all) };
        Turns::new(1, 1, waiting)
    }

    pub(super) fn following(&self) -> Shares {
        fixed("readers of output", FOLLOWERS)
    }

    pub(super) fn sessions(&self) -> Shares {
        fixed("sessions in tasks", SESSIONS)
    }
}

fn fixed(what: &'static str, most: usize) -> Shares {
    Shares::new(Bound { what, of_caller: ("fixed", most / 8), of_all: ("fixed", most) })
}

/// Who has how much at present.
#[derive(Clone)]
pub(super) struct Flow {
    pub streams: Shares,
    pub stream_patience: Duration,
    pub requests: Shares,
    pub bodies: Shares,
    /// What the cell's own parts send each other: whatever that is.
    pub messages: Shares,
    pub pace: Pace,
    pub report_limit: usize,
}

impl Flow {
    pub fn new(settings: &FlowSettings) -> Flow {
        Flow {
            streams: Shares::new(Bound {
                what: "streams",
                of_caller: ("streams_per_user", settings.streams_per_user),
                of_all: ("streams", settings.streams),
            }),
            stream_patience: settings.stream_patience,
            requests: Shares::new(Bound {
                what: "requests under way",
                of_caller: ("requests_per_user", settings.requests_per_user),
                of_all: ("requests", settings.requests),
            }),
            bodies: Shares::new(Bound {
                what: "bytes of bodies",
                of_caller: ("body_bytes_per_user", settings.body_bytes_per_user),
                of_all: ("body_bytes", settings.body_bytes),
            }),
            messages: fixed("bytes of messages", usize::MAX),
            pace: settings.pace,
            report_limit: settings.report_limit,
        }
    }
}

impl Api {
    /// Held while a request is worked on. Whether the replica lives is told to anybody.
    pub(super) fn under_way(&self, call: &Call) -> Result<Option<Share>, ApiError> {
        if call.route.access == Access::Open {
            return Ok(None);
        }
        self.flow.requests.one(&call.who()).map(Some)
    }

    /// A stream of server-sent events, if the caller may have another one. What is made for it is
    /// made apart from the connection: a reader that does not read for too long loses it, and with
    /// it whatever the stream holds of the state.
    pub(super) fn streaming(
        &self,
        call: &Call,
        chunks: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Answered {
        let seat = self.flow.streams.one(&call.who())?;
        let (to, from) = mpsc::channel(1);
        of_request("a stream", carry(chunks, to, self.flow.stream_patience));
        // The seat goes with the connection's end of it, which is what a slow reader holds on to.
        let body = stream::unfold((from, seat), |(mut from, seat)| async move {
            let chunk = from.recv().await?;
            Some((Ok::<_, Infallible>(chunk), (from, seat)))
        });
        Ok(event_stream(Body::from_stream(body)))
    }
}

/// Until there is no more, nobody listens, or the reader does not keep up.
async fn carry(chunks: impl Stream<Item = Bytes>, to: mpsc::Sender<Bytes>, patience: Duration) {
    let mut chunks = pin!(chunks);
    loop {
        let next = tokio::select! {
            biased;
            () = to.closed() => return,
            next = chunks.next() => next,
        };
        let Some(chunk) = next else { return };
        match timeout(patience, to.send(chunk)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::info!("a stream was ended: nobody read it for {patience:?}");
                return;
            }
        }
    }
}

pub(super) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_loses_its_stream() {
        let (to, mut from) = mpsc::channel(1);
        let chunks = stream::repeat(Bytes::from_static(b"x"));
        let carrying = tokio::spawn(carry(chunks, to, Duration::from_secs(60)));
        assert!(from.recv().await.is_some());
        // Two more are made, one waits, and then it is over: on a clock that nobody waits for.
        assert!(carrying.await.is_ok());
        assert!(from.recv().await.is_some());
        assert!(from.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_that_nobody_listens_to_ends_though_nothing_happens() {
        let (to, from) = mpsc::channel(1);
        let carrying = tokio::spawn(carry(stream::pending(), to, Duration::from_secs(60)));
        drop(from);
        assert!(carrying.await.is_ok());
    }
}
