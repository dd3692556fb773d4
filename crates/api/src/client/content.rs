//! Content: bodies that are files, not messages. Packages are larger than memory should be, so they
//! are read from and written to files in chunks, and nothing blocks a thread while the other side
//! is slow.
//!
//! Rejected: the asynchronous files of the runtime. They hand every read to a blocking thread too,
//! in smaller chunks.

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

/// Bytes read from a file at a time.
pub const CHUNK_BYTES: usize = 256 << 10;
/// The slowest transfer that is tolerated, in bytes a second.
const MIN_TRANSFER_RATE: u64 = 1 << 20;
/// A download without data for longer has been abandoned by the other side.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest content of one replica that is read into memory: a metrics page, a chunk of a log.
const MAX_CONTENT_BYTES: usize = 64 << 20;

pub(super) type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

/// The body of a call. A file is opened anew for every attempt, and its bytes sent are counted from
/// zero.
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

/// Reads up to `limit` bytes; fewer only at the end of the file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_chunk(file: &mut File, limit: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(limit);
    file.take(limit as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// The extra time allowed for a transfer of this size, beyond that for a message.
#[must_use]
pub fn transfer_timeout(bytes: u64) -> Duration {
    Duration::from_secs(bytes / MIN_TRANSFER_RATE)
}

/// An answer whose body is still arriving.
pub struct Download {
    address: String,
    /// From `Content-Length`.
    length: Option<u64>,
    body: Incoming,
}

impl Download {
    /// Total bytes, if the other side announced them.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// When the content breaks off. The chunks before are then useless.
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
    /// The cell's error, or that it could not be reached.
    pub async fn bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        Ok(self.exchange(self.call(Method::GET, path, Bytes::new(), true)).await?.body)
    }

    /// Content from one replica only, whole, within `limit`.
    ///
    /// # Errors
    /// The other side's error, or that it could not be reached.
    pub async fn bytes_at(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
    ) -> Result<Bytes, ClientError> {
        self.bytes_at_most(address, path, limit, MAX_CONTENT_BYTES).await
    }

    /// As [`Client::bytes_at`], from a server that is not trusted with our memory: no more than
    /// `max_bytes` bytes are read.
    ///
    /// # Errors
    /// The other side's error, that its answer was too long, or that it could not be reached.
    pub async fn bytes_at_most(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.max_bytes = Some(max_bytes);
        Ok(self.exchange_at(address, call, limit).await?.body)
    }

    /// Content, chunk by chunk, from whichever master has it.
    ///
    /// # Errors
    /// The cell's error, or that it could not be reached.
    pub async fn download(&self, path: &str) -> Result<Download, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.streamed = true;
        into_download(self.preferred(), self.exchange(call).await?)
    }

    /// Content from one replica only, chunk by chunk; it begins within `limit`.
    ///
    /// # Errors
    /// The other side's error, or that it could not be reached.
    pub async fn download_at(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
    ) -> Result<Download, ClientError> {
        let mut call = self.call(Method::GET, path, Bytes::new(), true);
        call.streamed = true;
        into_download(address.to_owned(), self.exchange_at(address, call, limit).await?)
    }

    /// Uploads a file that is named by its digest, so that sending it twice does no harm. `sent`
    /// counts the bytes already sent, for a progress display.
    ///
    /// # Errors
    /// When the file cannot be read, the cell's error, or that it could not be reached.
    pub async fn put_file<T: DeserializeOwned>(
        &self,
        path: &str,
        file: &Path,
        sent: &Arc<AtomicU64>,
    ) -> Result<Reply<T>, ClientError> {
        // An error that is returned while the body is being sent may be lost with the connection,
        // so the leader is looked up before the upload and not by a redirect of it.
        self.find_leader().await?;
        json_reply(self.exchange(self.file_call(path, file, sent.clone()).await?).await?)
    }

    /// Sends a file to one replica only, within `limit` and the time that the transfer takes.
    ///
    /// # Errors
    /// When the file cannot be read, the other side's error, that it could not be reached, or that
    /// the outcome is unknown.
    pub async fn put_file_at(
        &self,
        address: &str,
        path: &str,
        file: &Path,
        limit: Duration,
    ) -> Result<(), ClientError> {
        let call = self.file_call(path, file, Arc::default()).await?;
        let Payload::File { bytes, .. } = call.body else { return Ok(()) };
        self.exchange_at(address, call, limit + transfer_timeout(bytes)).await.map(drop)
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

    /// Makes the leader the preferred master, if some master knows it.
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
