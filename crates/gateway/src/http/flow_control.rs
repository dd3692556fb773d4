//! Flow control: what one caller may use of this API at once (`cellwright_master::flow_control`),
//! as the operator configured it, and streams whose readers have to keep up.

use super::bodies::MinBodyRate;
use super::call::Call;
use super::{Api, ApiResult};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::routes::Access;
use cellwright_master::flow_control::{CallerLimit, FairQueue, Permit, PermitPool};
use cellwright_supervise::spawn_request;
use futures::{Stream, StreamExt, stream};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// So many callers may have their full number of queries waiting.
const MAX_WAITING_CALLERS: usize = 16;
/// Bytes of messages in memory of one scheduler or replica: a few of the largest.
const MAX_MESSAGE_BYTES: usize = 512 << 20;

/// The operator's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    pub streams: usize,
    pub streams_per_user: usize,
    /// Write timeout of a stream.
    pub stream_timeout: Duration,
    pub requests: usize,
    pub requests_per_user: usize,
    pub body_bytes: usize,
    pub body_bytes_per_user: usize,
    pub pace: MinBodyRate,
    /// Largest report of an agent.
    pub report_limit: usize,
    /// Readers of output and exec sessions: each is a connection to a machine.
    pub output_readers: usize,
    pub output_readers_per_user: usize,
    pub sessions: usize,
    pub sessions_per_user: usize,
    /// Queries about the whole cell, such as plans, that one caller may have waiting.
    pub questions_per_user: usize,
}

impl Default for FlowConfig {
    fn default() -> FlowConfig {
        FlowConfig {
            streams: 4096,
            streams_per_user: 64,
            stream_timeout: Duration::from_secs(60),
            requests: 8192,
            requests_per_user: 256,
            body_bytes: 512 << 20,
            body_bytes_per_user: 64 << 20,
            pace: MinBodyRate { patience: Duration::from_secs(10), rate: 16 << 10 },
            report_limit: 4 << 20,
            output_readers: 1024,
            output_readers_per_user: 128,
            sessions: 256,
            sessions_per_user: 32,
            questions_per_user: 16,
        }
    }
}

impl FlowConfig {
    pub(super) fn explanation_queue(&self) -> FairQueue {
        let (setting, own) = ("questions_per_user", self.questions_per_user);
        FairQueue::new(
            1,
            1,
            CallerLimit {
                counted: "questions waiting",
                per_caller_setting: (setting, own),
                total_setting: (setting, own.saturating_mul(MAX_WAITING_CALLERS)),
            },
        )
    }

    pub(super) fn output_reader_permits(&self) -> PermitPool {
        PermitPool::new(CallerLimit {
            counted: "readers of output",
            per_caller_setting: ("output_readers_per_user", self.output_readers_per_user),
            total_setting: ("output_readers", self.output_readers),
        })
    }

    pub(super) fn session_permits(&self) -> PermitPool {
        PermitPool::new(CallerLimit {
            counted: "sessions in tasks",
            per_caller_setting: ("sessions_per_user", self.sessions_per_user),
            total_setting: ("sessions", self.sessions),
        })
    }
}

/// The permits in use.
#[derive(Clone)]
pub(super) struct FlowControl {
    pub streams: PermitPool,
    pub stream_timeout: Duration,
    pub requests: PermitPool,
    pub bodies: PermitPool,
    /// For messages of schedulers and replicas.
    pub messages: PermitPool,
    pub pace: MinBodyRate,
    pub report_limit: usize,
}

impl FlowControl {
    pub fn new(settings: &FlowConfig) -> FlowControl {
        FlowControl {
            streams: PermitPool::new(CallerLimit {
                counted: "streams",
                per_caller_setting: ("streams_per_user", settings.streams_per_user),
                total_setting: ("streams", settings.streams),
            }),
            stream_timeout: settings.stream_timeout,
            requests: PermitPool::new(CallerLimit {
                counted: "requests under way",
                per_caller_setting: ("requests_per_user", settings.requests_per_user),
                total_setting: ("requests", settings.requests),
            }),
            bodies: PermitPool::new(CallerLimit {
                counted: "bytes of bodies",
                per_caller_setting: ("body_bytes_per_user", settings.body_bytes_per_user),
                total_setting: ("body_bytes", settings.body_bytes),
            }),
            messages: PermitPool::new(CallerLimit {
                counted: "bytes of messages",
                per_caller_setting: ("fixed", MAX_MESSAGE_BYTES),
                total_setting: ("fixed", usize::MAX),
            }),
            pace: settings.pace,
            report_limit: settings.report_limit,
        }
    }
}

impl Api {
    /// Held while a request is handled. Liveness requests need no permit.
    pub(super) fn request_permit(&self, call: &Call) -> Result<Option<Permit>, ApiError> {
        if call.route.access == Access::Open {
            return Ok(None);
        }
        self.flow.requests.acquire_one(&call.actor_text()).map(Some)
    }

    /// A stream of server-sent events, if the caller may have another one. Its items are produced
    /// in a task apart from the connection: a reader that stalls for too long is disconnected, and
    /// with it everything that the stream holds of the state.
    pub(super) fn stream_response(
        &self,
        call: &Call,
        chunks: impl Stream<Item = Bytes> + Send + 'static,
    ) -> ApiResult {
        let permit = self.flow.streams.acquire_one(&call.actor_text())?;
        let (to, from) = mpsc::channel(1);
        spawn_request("a stream", forward_chunks(chunks, to, self.flow.stream_timeout));
        // The permit is held by the connection's end of the stream, which a slow reader holds on
        // to.
        let body = stream::unfold((from, permit), |(mut from, permit)| async move {
            let chunk = from.recv().await?;
            Some((Ok::<_, Infallible>(chunk), (from, permit)))
        });
        Ok(event_stream_response(Body::from_stream(body)))
    }
}

/// Forwards chunks until the source ends, the reader disconnects, or it does not keep up.
pub(super) async fn forward_chunks<T>(
    chunks: impl Stream<Item = T>,
    to: mpsc::Sender<T>,
    write_timeout: Duration,
) {
    let mut chunks = pin!(chunks);
    loop {
        let next = tokio::select! {
            biased;
            () = to.closed() => return,
            next = chunks.next() => next,
        };
        let Some(chunk) = next else { return };
        match timeout(write_timeout, to.send(chunk)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::info!("a stream was ended: nobody read it for {write_timeout:?}");
                return;
            }
        }
    }
}

pub(super) fn event_stream_response(body: Body) -> Response<Body> {
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
        let carrying = tokio::spawn(forward_chunks(chunks, to, Duration::from_secs(60)));
        assert!(from.recv().await.is_some());
        // Two more are produced, one waits, and then it is cut off: the test's clock is paused.
        assert!(carrying.await.is_ok());
        assert!(from.recv().await.is_some());
        assert!(from.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_that_nobody_listens_to_ends_though_nothing_happens() {
        let (to, from) = mpsc::channel(1);
        let carrying =
            tokio::spawn(forward_chunks::<Bytes>(stream::pending(), to, Duration::from_secs(60)));
        drop(from);
        assert!(carrying.await.is_ok());
    }
}
