//! Watches a stream of server-sent events over any number of connections: after a disconnect the
//! next master continues after the last event received, so nothing is missed and nothing comes
//! twice.

use super::connection::TransportError;
use super::outcome::{NextStep, classify};
use super::refused_connections::RefusedConnections;
use super::{Client, ClientError, Received, header};
use crate::routes::LAST_EVENT_ID;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::Method;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A connection without data for longer is dead: the server sends something at least every 15
/// seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Longest line of a stream, in bytes.
const MAX_LINE: usize = 64 << 20;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent<T> {
    /// Resume after this one.
    pub id: Option<String>,
    /// `job`, `event`, `gone`, `synced`, `reset` …
    pub kind: String,
    /// Absent when `data` is not of the watch's type, as in `synced`.
    pub data: Option<T>,
    /// `data` as it came.
    pub text: String,
}

pub struct Watch<T> {
    client: Client,
    path: String,
    after: Option<String>,
    body: Option<Incoming>,
    parser: SseParser,
    address: String,
    /// Number of attempts to connect, and of consecutive refusals.
    attempts: u32,
    refused: RefusedConnections,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Watch<T> {
    pub(super) fn new(client: Client, path: String, after: Option<String>) -> Watch<T> {
        let address = client.preferred();
        let (parser, refused) = (SseParser::default(), RefusedConnections::default());
        let (body, attempts) = (None, 0);
        Watch { client, path, after, body, parser, address, attempts, refused, marker: PhantomData }
    }

    /// The id of the last event that had one.
    #[must_use]
    pub fn position(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// The next event, however long it takes. Cancelling loses nothing.
    ///
    /// # Errors
    /// When the cell rejects the watch, or no master was ever reached; losing a connection is not
    /// an error.
    pub async fn next(&mut self) -> Result<WatchEvent<T>, ClientError> {
        let mut wait = self.client.shared.config.backoff;
        loop {
            if let Some(raw) = self.parser.ready.pop_front() {
                if raw.id.is_some() {
                    self.after.clone_from(&raw.id);
                }
                let data = serde_json::from_str(&raw.data).ok();
                return Ok(WatchEvent { id: raw.id, kind: raw.kind, data, text: raw.data });
            }
            if let Some(body) = &mut self.body {
                if let Ok(Some(Ok(frame))) = timeout(IDLE_TIMEOUT, body.frame()).await {
                    let data = frame.into_data().unwrap_or_default();
                    if self.parser.feed(&data).is_ok() {
                        continue;
                    }
                }
                self.body = None;
                self.parser = SseParser::default();
                self.address = self.client.next_master(&self.address);
            }
            if let Some(pause) = self.connect(wait).await? {
                sleep(pause).await;
                wait = (wait * 2).min(self.client.shared.config.backoff_max);
            }
        }
    }

    /// Opens the stream; returns how long to wait before the next attempt if that failed.
    async fn connect(&mut self, wait: Duration) -> Result<Option<Duration>, ClientError> {
        let mut call = self.client.call(Method::GET, &self.path, Bytes::new(), true);
        if let Some(after) = &self.after {
            call.headers.insert(LAST_EVENT_ID, header(after)?);
        }
        let pool = &self.client.shared.pool;
        let result = timeout(call.attempt_timeout, pool.open_stream(&self.address, &call)).await;
        let late = |_| TransportError::after_sending(&self.address, "no answer in time");
        let response = match result.map_err(late).and_then(|result| result) {
            Ok(response) => response,
            Err(fault) => {
                self.attempts += 1;
                self.refused.record(fault.refused, Instant::now());
                if self.client.are_masters_down(&self.refused, Instant::now() + wait) {
                    return Err(fault.into_unreachable(self.attempts));
                }
                self.address = self.client.next_master(&self.address);
                return Ok(Some(wait));
            }
        };
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            self.client.learn(parts.status, &parts.headers);
            self.body = Some(body);
            return Ok(None);
        }
        let body = Limited::new(body, 1 << 20).collect().await;
        let body = body.map(|whole| whole.to_bytes()).unwrap_or_default();
        let (status, headers) = (parts.status, parts.headers);
        match classify(&Received { status, headers, body, open: None }, true) {
            NextStep::Redirect(leader, _) => {
                let leader = self.client.checked_address(&leader);
                self.address = leader.unwrap_or_else(|| self.client.next_master(&self.address));
                Ok(Some(wait))
            }
            NextStep::Later(after, _) => {
                self.address = self.client.next_master(&self.address);
                Ok(Some(after.unwrap_or(wait)))
            }
            NextStep::Fail(error) => Err(error),
            NextStep::Done => Ok(Some(wait)),
        }
    }
}

/// An event before its data is read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RawEvent {
    id: Option<String>,
    kind: String,
    data: String,
}

/// Lines in, events out.
#[derive(Default)]
struct SseParser {
    line: Vec<u8>,
    id: Option<String>,
    kind: Option<String>,
    data: Vec<String>,
    ready: VecDeque<RawEvent>,
}

impl SseParser {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), ()> {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.end_line(String::from_utf8_lossy(&line).trim_end_matches('\r'));
                }
                _ if self.line.len() >= MAX_LINE => return Err(()),
                byte => self.line.push(*byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &str) {
        if line.is_empty() {
            return self.end_event();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match field {
            "id" => self.id = Some(value),
            "event" => self.kind = Some(value),
            "data" => self.data.push(value),
            // Comments keep the connection alive; other fields are not used here.
            _ => {}
        }
    }

    fn end_event(&mut self) {
        let (id, kind) = (self.id.take(), self.kind.take());
        let data = std::mem::take(&mut self.data);
        if kind.is_some() || !data.is_empty() {
            let kind = kind.unwrap_or_else(|| "message".into());
            self.ready.push_back(RawEvent { id, kind, data: data.join("\n") });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_however_the_bytes_are_cut() {
        let text = ": hello\n\nid: 5\nevent: job\ndata: {\"a\":1}\n\ndata: x\r\ndata: y\r\n\r\n";
        let expected = [
            RawEvent { id: Some("5".into()), kind: "job".into(), data: "{\"a\":1}".into() },
            RawEvent { id: None, kind: "message".into(), data: "x\ny".into() },
        ];
        for cut in 0..text.len() {
            let mut parser = SseParser::default();
            parser.feed(&text.as_bytes()[..cut]).unwrap();
            parser.feed(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(parser.ready, expected, "cut at {cut}");
        }
    }
}
