//! Request bodies, read with limits: no larger than allowed, no more memory of one caller at once
//! than its share, and no slower than a well-behaved sender. A body that stalls is cut off, and its
//! memory is freed.
//!
//! Rejected: one deadline for every body. What is right for a kilobyte cuts a package's last
//! megabyte off on a slow line, and what is right for the package lets sixty callers hold theirs
//! for an hour.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use cellwright_api::error::{ApiError, Code};
use cellwright_master::flow_control::Permit;
use futures::stream;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The slowest rate at which a body may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinBodyRate {
    /// Longest pause, and how long the rate is not checked at first.
    pub patience: Duration,
    /// Bytes a second, on average since the body began.
    pub rate: u64,
}

impl MinBodyRate {
    /// The time by which `read` bytes must have arrived, counted from the first.
    fn deadline(&self, read: usize) -> Duration {
        let earned = (read as u64).saturating_mul(1000) / self.rate.max(1);
        self.patience + Duration::from_millis(earned)
    }
}

/// The next chunk, if it arrives in time.
pub(super) async fn next_chunk(
    body: &mut Body,
    pace: MinBodyRate,
    (begun, read): (Instant, usize),
) -> Result<Option<Bytes>, ApiError> {
    let until = (begun + pace.deadline(read)).min(Instant::now() + pace.patience);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match timeout(left, body.frame()).await {
            Err(_) => return Err(slow_body_error(pace, read)),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => {
                return Err(ApiError::new(Code::BadBody, format!("the body broke off: {error}")));
            }
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads a whole body of at most `limit` bytes; its memory is reserved from `share`, and the caller
/// holds the reservation for as long as it holds the bytes.
pub(super) async fn read_whole(
    mut body: Body,
    content_length: Option<u64>,
    limit: usize,
    share: &mut Permit,
    pace: MinBodyRate,
) -> Result<Bytes, ApiError> {
    if content_length.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large_error(limit).with("bytes", content_length));
    }
    // The announced length is reserved at once: of many concurrent bodies some are read to their
    // end, and not all of them to the middle.
    let mut reserved_bytes =
        content_length.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    share.acquire_more(reserved_bytes)?;
    let begun = Instant::now();
    let mut read = BytesMut::new();
    while let Some(data) = next_chunk(&mut body, pace, (begun, read.len())).await? {
        let bytes = read.len().saturating_add(data.len());
        if bytes > limit {
            return Err(too_large_error(limit));
        }
        share.acquire_more(bytes.saturating_sub(reserved_bytes))?;
        reserved_bytes = reserved_bytes.max(bytes);
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// The same content, cut off when it stalls: for content that is not held in memory.
pub(super) fn with_min_rate(body: Body, pace: MinBodyRate) -> Body {
    let begun = Instant::now();
    Body::from_stream(stream::try_unfold((body, 0), move |(mut body, read)| async move {
        let data = next_chunk(&mut body, pace, (begun, read)).await?;
        Ok::<_, ApiError>(data.map(|data| {
            let read = read.saturating_add(data.len());
            (data, (body, read))
        }))
    }))
}

fn slow_body_error(pace: MinBodyRate, read: usize) -> ApiError {
    let MinBodyRate { patience, rate } = pace;
    let message = format!(
        "the body stood still or came too slowly: {read} bytes so far, at least {rate} a second \
         and no pause of {} s are asked",
        patience.as_secs()
    );
    ApiError::new(Code::SlowBody, message).with("bytes", read).with("limit", rate)
}

pub(super) fn too_large_error(limit: usize) -> ApiError {
    let message = format!("the body is larger than {limit} bytes");
    ApiError::new(Code::TooLarge, message).with("limit", limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_master::flow_control::{CallerLimit, PermitPool};
    use futures::StreamExt;
    use std::convert::Infallible;

    const PACE: MinBodyRate = MinBodyRate { patience: Duration::from_secs(10), rate: 1000 };

    fn shares(own: usize) -> PermitPool {
        PermitPool::new(CallerLimit {
            counted: "bytes",
            per_caller_setting: ("own", own),
            total_setting: ("all", 1 << 30),
        })
    }

    /// Chunks of so many bytes, each after so many seconds; then a pause without end, unless it
    /// `ends`.
    fn body(pieces: Vec<(u64, usize)>, ends: bool) -> Body {
        let pieces = stream::iter(pieces).then(|(after, bytes)| async move {
            tokio::time::sleep(Duration::from_secs(after)).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes]))
        });
        if ends {
            Body::from_stream(pieces)
        } else {
            Body::from_stream(pieces.chain(stream::pending()))
        }
    }

    async fn read(body: Body, own: usize) -> Result<usize, Code> {
        let shares = shares(own);
        let mut share = shares.empty("ann");
        let read = read_whole(body, None, 50_000, &mut share, PACE).await;
        read.map(|bytes| bytes.len()).map_err(|error| error.code)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_is_read_and_one_that_does_not_is_cut() {
        assert_eq!(read(body(vec![(0, 5), (9, 5), (0, 0)], true), 100).await, Ok(10));
        assert_eq!(read(body(vec![(0, 5)], false), 100).await, Err(Code::SlowBody));
        assert_eq!(read(body(vec![], false), 100).await, Err(Code::SlowBody));
        // A byte now and then is not a pause and yet too slow.
        let drip = vec![(5, 1); 1000];
        assert_eq!(read(body(drip, true), 5000).await, Err(Code::SlowBody));
        let steady = vec![(5, 5000); 10];
        assert_eq!(read(body(steady, true), 50_000).await, Ok(50_000));
        let large = vec![(0, 30_000); 2];
        assert_eq!(read(body(large, true), 90_000).await, Err(Code::TooLarge));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_one_caller_share_what_it_may_hold() {
        let shares = shares(100);
        let mut first = shares.empty("ann");
        let held = read_whole(body(vec![(0, 80)], true), None, 1000, &mut first, PACE).await;
        assert_eq!(held.map(|bytes| bytes.len()).ok(), Some(80));
        let mut second = shares.empty("ann");
        let more = read_whole(body(vec![(0, 30)], true), None, 1000, &mut second, PACE).await;
        assert_eq!(more.err().map(|error| error.code), Some(Code::Overloaded));
        let mut other = shares.empty("ben");
        assert!(read_whole(body(vec![(0, 30)], true), None, 1000, &mut other, PACE).await.is_ok());
        let mut announced = shares.empty("ann");
        let early = read_whole(body(vec![], false), Some(30), 1000, &mut announced, PACE).await;
        assert_eq!(early.err().map(|error| error.code), Some(Code::Overloaded), "before a byte");
        drop(first);
        assert!(
            read_whole(body(vec![(0, 30)], true), Some(30), 1000, &mut second, PACE).await.is_ok()
        );
        assert!(announced.acquire_more(70).is_ok(), "what was announced is not counted twice");
    }
}
