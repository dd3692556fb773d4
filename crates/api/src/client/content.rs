//! Content: bodies that are no messages. Packages are larger than memory should be, so they are
//! read from and written to files a piece at a time, and nothing holds a thread while the other
//! side is slow.
//!
//! Rejected: the asynchronous files of the runtime. They hand every read to a blocking thread too,
//! in smaller pieces.

use super::{Call, Client, ClientError, Reply, connection, json_reply};
use crate::types::MasterStatus;
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Method;
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// What is read from a file at a time.
pub const CHUNK_BYTES: usize = 256 << 10;
/// The slowest transfer that is waited for, in bytes a second.
const MIN_TRANSFER_RATE: u64 = 1 << 20;
/// A download silent for longer has been given up by the other side.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// What is read of one replica's answer: a page of figures, a piece of a log.
const MAX_CONTENT_BYTES: usize = 64 << 20;

pub(super) type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

/// What a call carries. A file is opened anew for every attempt, and what was sent of it counted
/// from nought.
#[derive(Clone)]
pub(crate) enum Payload {
    Whole(Bytes),
    File { path: Arc<Path>, bytes: u64, sent: Arc<AtomicU64> },
}

impl Payload {
    pub(super) fn outgoing(&self) -> Outgoing {
        match self {
            Payload::Whole(bytes) => {
                Full::new(bytes.clone()).map_err(|never| match never {}).boxed_unsync()
            }
            Payload::File { path, sent, .. } => file_body(path.clone(), sent.clone()),
        }
    }
}

fn file_body(path: Arc<Path>, sent: Arc<AtomicU64>) -> Outgoing {
    sent.store(0, Ordering::Relaxed);
    let pieces = stream::try_unfold(None, move |file: Option<File>| {
        let (path, sent) = (path.clone(), sent.clone());
        async move {
            let reading = tokio::task::spawn_blocking(move || {
                let mut file = file.map_or_else(|| File::open(&path), Ok)?;
                let piece = read_chunk(&mut file, CHUNK_BYTES)?;
                Ok::<_, io::Error>((file, piece))
            });
            let (file, piece) = reading.await.map_err(io::Error::other)??;
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Ok((!piece.is_empty()).then(|| (Frame::data(Bytes::from(piece)), Some(file))))
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Up to `most` bytes; fewer only at the end of the file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_chunk(file: &mut File, limit: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(limit);
    file.take(limit as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// What a transfer of this size may take beyond the time a message may take.
#[must_use]
pub fn transfer_timeout(bytes: u64) -> Duration {
    Duration::from_secs(bytes / MIN_TRANSFER_RATE)
}

/// An answer whose content is still coming.
pub struct Download {
    address: String,
    /// As announced.
    length: Option<u64>,
    body: Incoming,
}

impl Download {
    /// Bytes in all, if the other side said.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// When the content breaks off. What came before is then worth nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let broke = |why: &dyn std::fmt::Display| {
            ClientError::BadReply(format!("{}: the content broke off: {why}", self.address))
        };
        loop {
            let frame = match timeout(IDLE_TIMEOUT, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => frame.map_err(|error| broke(&error))?,
                Err(_) => return Err(broke(&"nothing came for too long")),
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

impl Client {
    /// Content, whole.
    ///
    /// # Errors
    /// What the cell refused, or that it could not be reached.
    pub async fn bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        Ok(self.exchange(self.call(Method::GET, path, Bytes::new(), true)).await?.body)
    }

    /// Content from one replica and nobody else, whole, within `limit`.
    ///
    /// # Errors
    /// What the other side refused, or that it could not be reached.
    pub async fn bytes_at(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
    ) -> Result<Bytes, ClientError> {
        self.bytes_at_most(address, path, limit, MAX_CONTENT_BYTES).await
    }

    /// As [`Client::bytes_at`], from somebody who is not trusted with our memory: of a longer
    /// answer than `most` bytes no more is read.
    ///
    /// # Errors
    /// What the other side refused, that it said too much, or that it could not be reached.
    pub async fn bytes_at_most(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.max_bytes = Some(max_bytes);
        Ok(self.exchange_at(address, &call, limit).await?.body)
    }

    /// Content, piece by piece, from whichever master gives it.
    ///
    /// # Errors
    /// What the cell refused, or that it could not be reached.
    pub async fn download(&self, path: &str) -> Result<Download, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.streamed = true;
        into_download(self.preferred(), self.exchange(call).await?)
    }

    /// Content from one replica and nobody else, piece by piece; it begins within `limit`.
    ///
    /// # Errors
    /// What the other side refused, or that it could not be reached.
    pub async fn download_at(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
    ) -> Result<Download, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.streamed = true;
        into_download(address.to_owned(), self.exchange_at(address, &call, limit).await?)
    }

    /// Sends a file that is named by its digest, so that sending it twice does no harm. `sent` is
    /// how many bytes of it are on their way, for whoever watches.
    ///
    /// # Errors
    /// When the file cannot be read, what the cell refused, or that it could not be reached.
    pub async fn put_file<T: DeserializeOwned>(
        &self,
        path: &str,
        file: &Path,
        sent: &Arc<AtomicU64>,
    ) -> Result<Reply<T>, ClientError> {
        // A refusal that meets a body on its way may be lost with the connection, so the leader is
        // asked for before the body is sent and not by it.
        self.find_leader().await?;
        json_reply(self.exchange(self.file_call(path, file, sent.clone()).await?).await?)
    }

    /// Sends a file to one replica and nobody else, within `limit` and the time it takes to send.
    ///
    /// # Errors
    /// When the file cannot be read, what the other side refused, that it could not be reached, or
    /// that the outcome is unknown.
    pub async fn put_file_at(
        &self,
        address: &str,
        path: &str,
        file: &Path,
        limit: Duration,
    ) -> Result<(), ClientError> {
        let call = self.file_call(path, file, Arc::default()).await?;
        let Payload::File { bytes, .. } = call.body else { return Ok(()) };
        self.exchange_at(address, &call, limit + transfer_timeout(bytes)).await.map(drop)
    }

    async fn file_call(
        &self,
        path: &str,
        file: &Path,
        sent: Arc<AtomicU64>,
    ) -> Result<Call, ClientError> {
        let file: Arc<Path> = file.into();
        let path_shown = file.clone();
        let sized = file.clone();
        let length = tokio::task::spawn_blocking(move || std::fs::metadata(sized));
        let bytes = match length.await.map_err(io::Error::other).and_then(|found| found) {
            Ok(found) => found.len(),
            Err(why) => {
                return Err(ClientError::InvalidConfig(format!("{}: {why}", path_shown.display())));
            }
        };
        let mut call = self.call(Method::PUT, path, Bytes::new(), true);
        call.body = Payload::File { path: file, bytes, sent };
        call.deadline += transfer_timeout(bytes);
        call.attempt_timeout = call.deadline;
        let binary = HeaderValue::from_static("application/octet-stream");
        call.headers.insert(CONTENT_TYPE, binary);
        Ok(call)
    }

    /// Makes the leader the master that is asked first, as far as somebody knows it.
    async fn find_leader(&self) -> Result<(), ClientError> {
        let status: MasterStatus = self.get("/v1/masters").await?.value;
        let leader = status.members.iter().find(|member| member.leader);
        if let Some(address) = leader.and_then(|member| self.checked_address(&member.address)) {
            self.prefer(address);
        }
        Ok(())
    }
}

fn into_download(address: String, answer: super::Answer) -> Result<Download, ClientError> {
    let stated = answer.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = stated.and_then(|text| text.parse().ok());
    let address = connection::bare_address(&address).to_owned();
    let missing = || ClientError::BadReply(format!("{address}: the answer has no content"));
    let body = answer.open.ok_or_else(missing)?;
    Ok(Download { address, length, body })
}
