//! Downloads one blob from the registry into a file, verified while it arrives.
//!
//! A broken connection is opened again, and the missing range requested: the hash continues where
//! it stopped. More than the announced length is not written, and less is an error.
//!
//! Files are written on the thread that reads the network: the program waits for nothing else.

use super::error::{RegistryError, RegistryFailure, printable};
use super::http_client::{Answer, RequestFault};
use super::session::Session;
use crate::digest::{Hasher, PackageDigest};
use crate::error::{PackageError, at};
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Attempts in a row that made little progress.
const MAX_BARREN_ATTEMPTS: u32 = 5;
/// How many bytes of an attempt count as progress.
const MIN_PROGRESS_BYTES: u64 = 1 << 20;

/// Receives the progress of a download.
pub trait Progress: Send + Sync {
    /// The number of layers and bytes to be fetched.
    fn started(&self, layers: usize, bytes: u64);
    fn received(&self, bytes: u64);
    /// Received bytes that have to be fetched once more.
    fn discarded(&self, bytes: u64);
}

/// No progress is reported.
impl Progress for () {
    fn started(&self, _: usize, _: u64) {}
    fn received(&self, _: u64) {}
    fn discarded(&self, _: u64) {}
}

/// The blob to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlobRef {
    pub(super) digest: PackageDigest,
    pub(super) bytes: u64,
}

struct Download<'a> {
    session: &'a Session,
    blob: BlobRef,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    have: u64,
    /// Whether the content so far arrived in more than one piece.
    was_resumed: bool,
    progress: &'a dyn Progress,
}

/// Fetches the blob to `into/DIGEST`.
pub(super) async fn fetch(
    session: &Session,
    blob: BlobRef,
    into: &Path,
    progress: &dyn Progress,
) -> Result<(), RegistryError> {
    let label = format!("layer sha256:{}", blob.digest);
    let path = into.join(blob.digest.to_string());
    let file = File::create_new(&path).map_err(at(&path));
    let file = file.map_err(|why| session.error_for(&label, RegistryFailure::Package(why)))?;
    let hasher = Hasher::new();
    let (have, was_resumed) = (0, false);
    let mut download = Download { session, blob, path, file, hasher, have, was_resumed, progress };
    let (mut barren, mut attempts) = (0, 0);
    loop {
        let before = download.have;
        let why = match download.attempt().await {
            Ok(()) => return Ok(()),
            // It was there a moment ago: the manifest came from it.
            Err(
                RequestFault::ConnectionLost(last)
                | RequestFault::Final(RegistryFailure::Unreachable(last)),
            ) => {
                attempts += 1;
                RegistryFailure::BrokeOff { attempts, last }
            }
            Err(RequestFault::Retryable(detail)) => RegistryFailure::Busy(detail),
            Err(RequestFault::Final(why)) => return Err(session.error_for(&label, why)),
        };
        barren = if download.have >= before + MIN_PROGRESS_BYTES { 0 } else { barren + 1 };
        if barren >= MAX_BARREN_ATTEMPTS {
            return Err(session.error_for(&label, why));
        }
        tokio::time::sleep(session.backoff(barren)).await;
    }
}

impl Download<'_> {
    async fn attempt(&mut self) -> Result<(), RequestFault> {
        let name = self.session.reference.name();
        let path = format!("/v2/{name}/blobs/sha256:{}", self.blob.digest);
        let mut headers = HeaderMap::new();
        if self.have > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.have));
            headers.extend(range.ok().map(|range| (RANGE, range)));
        }
        let mut answer = self.session.get(&path, &headers).await?;
        match answer.status {
            StatusCode::OK => self.restart().map_err(RequestFault::Final)?,
            StatusCode::PARTIAL_CONTENT if self.have > 0 => self.was_resumed = true,
            StatusCode::RANGE_NOT_SATISFIABLE if self.have > 0 => {
                self.restart().map_err(RequestFault::Final)?;
                return Err(RequestFault::ConnectionLost("it cannot go on in the middle".into()));
            }
            _ => return Err(self.session.fault_from(answer).await),
        }
        self.check_headers(&answer)?;
        while let Some(piece) = answer.piece().await? {
            if self.have + piece.len() as u64 > self.blob.bytes {
                let bytes = self.blob.bytes;
                let why = format!("more comes than the {bytes} bytes that the manifest announces");
                return Err(RequestFault::Final(RegistryFailure::Untrue(why)));
            }
            self.file.write_all(&piece).map_err(at(&self.path)).map_err(package_fault)?;
            self.hasher.update(&piece);
            self.have += piece.len() as u64;
            self.progress.received(piece.len() as u64);
        }
        self.finish()
    }

    /// Checks the headers for length and range.
    fn check_headers(&self, answer: &Answer) -> Result<(), RequestFault> {
        let text =
            |name| answer.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let invalid = |why: String| Err(RequestFault::Final(RegistryFailure::Untrue(why)));
        let (have, bytes) = (self.have, self.blob.bytes);
        if have > 0 {
            let range = text(CONTENT_RANGE).unwrap_or_default();
            if !range.starts_with(&format!("bytes {have}-")) {
                let range = printable(range);
                return invalid(format!("asked to go on at byte {have}, it answers {range:?}"));
            }
        }
        let announced = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        match announced {
            Some(length) if length != bytes - have => invalid(format!(
                "it announces {length} bytes where the manifest leaves {} to come",
                bytes - have
            )),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), RequestFault> {
        let (have, bytes) = (self.have, self.blob.bytes);
        if have < bytes {
            return Err(RequestFault::ConnectionLost(format!(
                "it ended after {have} of {bytes} bytes"
            )));
        }
        let (expected, found) = (self.blob.digest, PackageDigest(self.hasher.clone().finish()));
        if found == expected {
            return Ok(());
        }
        let error = PackageError::OtherContent { expected, found };
        if self.was_resumed {
            // Pieces of two different answers; one whole one may be good.
            self.restart().map_err(RequestFault::Final)?;
            return Err(RequestFault::ConnectionLost(error.to_string()));
        }
        Err(package_fault(error))
    }

    fn restart(&mut self) -> Result<(), RegistryFailure> {
        self.file.set_len(0).map_err(at(&self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(at(&self.path))?;
        self.progress.discarded(self.have);
        (self.have, self.was_resumed) = (0, false);
        self.hasher = Hasher::new();
        Ok(())
    }
}

fn package_fault(error: PackageError) -> RequestFault {
    RequestFault::Final(RegistryFailure::Package(error))
}
