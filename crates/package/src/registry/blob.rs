//! One blob from the registry into a file, checked while it comes.
//!
//! A connection that breaks is made again, and asked for what is missing: the hash goes on where it
//! stopped. More than the announced length is not written, and less is not taken for all.
//!
//! Files are written on the thread that reads the network: the program waits for nothing else.

use super::error::{RegistryError, Why, shown};
use super::line::{Answer, Fault};
use super::session::Session;
use crate::digest::{Hasher, PackageDigest};
use crate::error::{PackageError, at};
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Attempts in a row that brought little.
const MOST_BARREN: u32 = 5;
/// What an attempt has to bring to count as progress.
const PROGRESS: u64 = 1 << 20;

/// Told how a download goes.
pub trait Progress: Send + Sync {
    /// So many layers with so many bytes are to come.
    fn begins(&self, layers: usize, bytes: u64);
    fn came(&self, bytes: u64);
    /// Bytes that came have to come once more.
    fn lost(&self, bytes: u64);
}

/// Nobody looks.
impl Progress for () {
    fn begins(&self, _: usize, _: u64) {}
    fn came(&self, _: u64) {}
    fn lost(&self, _: u64) {}
}

/// What is to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub(super) digest: PackageDigest,
    pub(super) bytes: u64,
}

struct Download<'a> {
    session: &'a Session,
    wanted: Wanted,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    have: u64,
    /// Whether what is there came in more than one piece.
    is_mended: bool,
    progress: &'a dyn Progress,
}

/// Fetches the blob to `into/DIGEST`.
pub(super) async fn fetch(
    session: &Session,
    wanted: Wanted,
    into: &Path,
    progress: &dyn Progress,
) -> Result<(), RegistryError> {
    let asked = format!("layer sha256:{}", wanted.digest);
    let path = into.join(wanted.digest.to_string());
    let file = File::create_new(&path).map_err(at(&path));
    let file = file.map_err(|why| session.failed(&asked, Why::Package(why)))?;
    let hasher = Hasher::new();
    let (have, is_mended) = (0, false);
    let mut download = Download { session, wanted, path, file, hasher, have, is_mended, progress };
    let (mut barren, mut attempts) = (0, 0);
    loop {
        let before = download.have;
        let why = match download.attempt().await {
            Ok(()) => return Ok(()),
            // It was there a moment ago: the manifest came from it.
            Err(Fault::Broke(last) | Fault::Final(Why::Unreachable(last))) => {
                attempts += 1;
                Why::BrokeOff { attempts, last }
            }
            Err(Fault::Later(detail)) => Why::Busy(detail),
            Err(Fault::Final(why)) => return Err(session.failed(&asked, why)),
        };
        barren = if download.have >= before + PROGRESS { 0 } else { barren + 1 };
        if barren >= MOST_BARREN {
            return Err(session.failed(&asked, why));
        }
        tokio::time::sleep(session.backoff(barren)).await;
    }
}

impl Download<'_> {
    async fn attempt(&mut self) -> Result<(), Fault> {
        let name = self.session.reference.name();
        let path = format!("/v2/{name}/blobs/sha256:{}", self.wanted.digest);
        let mut headers = HeaderMap::new();
        if self.have > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.have));
            headers.extend(range.ok().map(|range| (RANGE, range)));
        }
        let mut answer = self.session.get(&path, &headers).await?;
        match answer.status {
            StatusCode::OK => self.restart().map_err(Fault::Final)?,
            StatusCode::PARTIAL_CONTENT if self.have > 0 => self.is_mended = true,
            StatusCode::RANGE_NOT_SATISFIABLE if self.have > 0 => {
                self.restart().map_err(Fault::Final)?;
                return Err(Fault::Broke("it cannot go on in the middle".into()));
            }
            _ => return Err(self.session.refused(answer).await),
        }
        self.check_announced(&answer)?;
        while let Some(piece) = answer.piece().await? {
            if self.have + piece.len() as u64 > self.wanted.bytes {
                let bytes = self.wanted.bytes;
                let why = format!("more comes than the {bytes} bytes that the manifest announces");
                return Err(Fault::Final(Why::Untrue(why)));
            }
            self.file.write_all(&piece).map_err(at(&self.path)).map_err(package)?;
            self.hasher.update(&piece);
            self.have += piece.len() as u64;
            self.progress.came(piece.len() as u64);
        }
        self.finish()
    }

    /// What the answer says of its own length and place.
    fn check_announced(&self, answer: &Answer) -> Result<(), Fault> {
        let text =
            |name| answer.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let untrue = |why: String| Err(Fault::Final(Why::Untrue(why)));
        let (have, bytes) = (self.have, self.wanted.bytes);
        if have > 0 {
            let range = text(CONTENT_RANGE).unwrap_or_default();
            if !range.starts_with(&format!("bytes {have}-")) {
                let range = shown(range);
                return untrue(format!("asked to go on at byte {have}, it answers {range:?}"));
            }
        }
        let announced = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        match announced {
            Some(length) if length != bytes - have => untrue(format!(
                "it announces {length} bytes where the manifest leaves {} to come",
                bytes - have
            )),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Fault> {
        let (have, bytes) = (self.have, self.wanted.bytes);
        if have < bytes {
            return Err(Fault::Broke(format!("it ended after {have} of {bytes} bytes")));
        }
        let (expected, found) = (self.wanted.digest, PackageDigest(self.hasher.clone().finish()));
        if found == expected {
            return Ok(());
        }
        let error = PackageError::OtherContent { expected, found };
        if self.is_mended {
            // Pieces of two different answers; one whole one may be good.
            self.restart().map_err(Fault::Final)?;
            return Err(Fault::Broke(error.to_string()));
        }
        Err(package(error))
    }

    fn restart(&mut self) -> Result<(), Why> {
        self.file.set_len(0).map_err(at(&self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(at(&self.path))?;
        self.progress.lost(self.have);
        (self.have, self.is_mended) = (0, false);
        self.hasher = Hasher::new();
        Ok(())
    }
}

fn package(error: PackageError) -> Fault {
    Fault::Final(Why::Package(error))
}
