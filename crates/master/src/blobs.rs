//! The blob store for packages: content addressed by its SHA-256 digest.
//!
//! A name that is the content's own digest needs no version, no lock and no trust: every reader can
//! check that the content is what it requested, and every copy is as good as any other. Content is
//! written to a temporary file, checked and synced before it is moved into place, so that a file
//! under a digest is whole or absent. It is checked again at every read, because disks lose data:
//! the last chunk is only returned once the digest of the whole is right, so a reader gets all of
//! the content or an end that comes too early.
//!
//! Content is read and written in chunks: packages are larger than a master's memory should be.
//!
//! A package counts as stored once a majority of the voting replicas has it; only then is it
//! written to the log. A replica that wins an election can then find it on some replica. Replicas
//! without it fetch it on request. Rejected: packages inside the log. They are a thousand times its
//! size.

use bytes::Bytes;
use cellwright_api::client::content::{CHUNK_BYTES, read_chunk};
use cellwright_identity::secret::{hex, unhex32};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use ring::digest::{Context, SHA256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

const DIR: &str = "blobs";
const INCOMING: &str = "incoming";
const DAMAGED: &str = "damaged";

/// SHA-256 of some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// From 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Digest> {
        unhex32(text).map(Digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("there is no package {0} here")]
    NotFound(Digest),
    #[error("the content's digest is {found}, not {expected}")]
    DigestMismatch { expected: Digest, found: Digest },
    #[error("package {digest} has {bytes} bytes")]
    OutOfRange { digest: Digest, bytes: u64 },
    #[error("package {0} is damaged on this replica's disk")]
    Damaged(Digest),
    #[error("the content is longer than {limit} bytes")]
    TooLong { limit: u64 },
    #[error("only {have} of {needed} replicas could store the package: {why}")]
    TooFewCopies { have: usize, needed: usize, why: String },
    #[error("no replica could give package {digest}: {why}")]
    NoCopy { digest: Digest, why: String },
    #[error(
        "the disk has {free} bytes free and keeps {reserve} in reserve; packages are refused until \
         space is freed"
    )]
    DiskFull { free: u64, reserve: u64 },
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

/// The blobs on this replica's disk.
pub struct BlobStore {
    dir: PathBuf,
    limit: u64,
    reserve: u64,
    uploads: AtomicU64,
    recently_stored: RecentlyStored,
}

/// Blobs stored since the last [`BlobSweep::remove_unknown`], which the log may name soon.
type RecentlyStored = Arc<Mutex<BTreeMap<Digest, Instant>>>;

impl BlobStore {
    /// Opens the store, and removes leftovers of uploads that a crash interrupted.
    ///
    /// # Errors
    /// When the folder cannot be created or cleaned.
    pub fn open(data: &Path, limit: u64) -> Result<BlobStore, BlobError> {
        let dir = data.join(DIR);
        let incoming = dir.join(INCOMING);
        if incoming.exists() {
            fs::remove_dir_all(&incoming).map_err(io_error(&incoming))?;
        }
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&incoming);
        made.map_err(io_error(&incoming))?;
        let (uploads, recently_stored) = (AtomicU64::new(0), RecentlyStored::default());
        Ok(BlobStore { dir, limit, reserve: 0, uploads, recently_stored })
    }

    /// Leaves this many bytes of the disk to the log, which is on the same disk.
    #[must_use]
    pub fn with_reserve(self, reserve: u64) -> BlobStore {
        BlobStore { reserve, ..self }
    }

    /// Most bytes of one blob.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    #[must_use]
    pub fn has(&self, digest: Digest) -> bool {
        self.path(digest).exists()
    }

    /// Starts an upload of content with a known digest and at most this many bytes.
    ///
    /// # Errors
    /// When no file can be created.
    pub fn begin(&self, expected: Digest, most: u64) -> Result<Upload, BlobError> {
        let number = self.uploads.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(INCOMING).join(format!("{expected}.{number}"));
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(io_error(&path))?;
        Ok(Upload {
            file,
            path,
            target: self.path(expected),
            expected,
            hash: Context::new(&SHA256),
            bytes: 0,
            limit: self.limit.min(most),
            reserve: self.reserve,
            recently_stored: self.recently_stored.clone(),
            is_stored: false,
        })
    }

    /// Stores content that is already in memory.
    ///
    /// # Errors
    /// As [`Upload::write`] and [`Upload::finish`].
    pub fn put(&self, expected: Digest, content: &[u8]) -> Result<u64, BlobError> {
        let mut upload = self.begin(expected, self.limit)?;
        upload.write(content)?;
        upload.finish()
    }

    /// Starts to read the content.
    ///
    /// # Errors
    /// When it is not here.
    pub fn read(&self, digest: Digest) -> Result<BlobReader, BlobError> {
        let path = self.path(digest);
        let file = match File::open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::NotFound(digest));
            }
            opened => opened.map_err(io_error(&path))?,
        };
        let bytes = file.metadata().map_err(io_error(&path))?.len();
        let hash = Context::new(&SHA256);
        let mut reading = BlobReader { file, path, digest, hash, bytes, remaining: bytes };
        // Empty content has no last chunk to hold back.
        if bytes == 0 {
            reading.check()?;
        }
        Ok(reading)
    }

    /// All blobs here with their lengths, ordered by digest.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<(Digest, u64)>, BlobError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error(&self.dir))? {
            let entry = entry.map_err(io_error(&self.dir))?;
            let name = entry.file_name();
            let Some(digest) = name.to_str().and_then(Digest::parse) else { continue };
            let length = entry.metadata().map_err(io_error(&entry.path()))?.len();
            found.push((digest, length));
        }
        found.sort();
        Ok(found)
    }

    /// Removes a blob; it is no error if it is not here.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(&self, digest: Digest) -> Result<(), BlobError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(io_error(&path)),
        }
    }

    /// Some bytes of the content, unchecked: a caller that requests a range checks it.
    ///
    /// # Errors
    /// When it is not here, or ends before the range does.
    pub fn range(&self, digest: Digest, from: u64, length: u32) -> Result<Vec<u8>, BlobError> {
        let path = self.path(digest);
        let file = match File::open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::NotFound(digest));
            }
            opened => opened.map_err(io_error(&path))?,
        };
        let bytes = file.metadata().map_err(io_error(&path))?.len();
        if from.saturating_add(u64::from(length)) > bytes {
            return Err(BlobError::OutOfRange { digest, bytes });
        }
        let mut content = vec![0; length as usize];
        file.read_exact_at(&mut content, from).map_err(io_error(&path))?;
        Ok(content)
    }

    /// The path of the content, if it is here.
    #[must_use]
    pub fn path(&self, digest: Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> BlobError {
    let path = path.to_owned();
    move |why| BlobError::Io { path: path.clone(), why }
}

fn finish_digest(hash: &Context) -> Digest {
    let mut found = Digest([0; 32]);
    found.0.copy_from_slice(hash.clone().finish().as_ref());
    found
}

/// Content that is being read.
pub struct BlobReader {
    file: File,
    path: PathBuf,
    digest: Digest,
    hash: Context,
    bytes: u64,
    remaining: u64,
}

impl BlobReader {
    /// Bytes in all.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// The next chunk; none at the end. A damaged file is moved aside, so that a good copy can take
    /// its place, and its last chunk is not returned.
    ///
    /// # Errors
    /// When the disk fails, or the content turns out to be damaged.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, BlobError> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let most = usize::try_from(self.remaining).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let chunk = read_chunk(&mut self.file, most).map_err(io_error(&self.path))?;
        self.hash.update(&chunk);
        self.remaining -= chunk.len() as u64;
        if self.remaining == 0 || chunk.len() < most {
            self.check()?;
        }
        Ok(Some(Bytes::from(chunk)))
    }

    fn check(&mut self) -> Result<(), BlobError> {
        if self.remaining == 0 && finish_digest(&self.hash) == self.digest {
            return Ok(());
        }
        let aside = self.path.with_extension(DAMAGED);
        fs::rename(&self.path, &aside).map_err(io_error(&self.path))?;
        tracing::error!(path = %aside.display(), "package damaged on disk; moved aside");
        Err(BlobError::Damaged(self.digest))
    }
}

/// Content that is being written. Dropped before its end it leaves nothing behind.
pub struct Upload {
    file: File,
    path: PathBuf,
    target: PathBuf,
    expected: Digest,
    hash: Context,
    bytes: u64,
    limit: u64,
    reserve: u64,
    recently_stored: RecentlyStored,
    is_stored: bool,
}

impl Upload {
    /// # Errors
    /// When the content gets too long or the disk fails.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), BlobError> {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        if self.bytes > self.limit {
            return Err(BlobError::TooLong { limit: self.limit });
        }
        self.check_reserve(chunk.len() as u64)?;
        self.hash.update(chunk);
        self.file.write_all(chunk).map_err(io_error(&self.path))
    }

    fn check_reserve(&self, more: u64) -> Result<(), BlobError> {
        if self.reserve == 0 {
            return Ok(());
        }
        let fs_stats =
            rustix::fs::statvfs(&self.path).map_err(|why| io_error(&self.path)(why.into()))?;
        let free = fs_stats.f_bavail.saturating_mul(fs_stats.f_frsize);
        if free.saturating_sub(more) < self.reserve {
            Err(BlobError::DiskFull { free, reserve: self.reserve })
        } else {
            Ok(())
        }
    }

    /// Moves the content into place; returns its length. It is durable then.
    ///
    /// # Errors
    /// When it is other content than announced, or the disk fails.
    pub fn finish(mut self) -> Result<u64, BlobError> {
        let found = finish_digest(&self.hash);
        if found != self.expected {
            return Err(BlobError::DigestMismatch { expected: self.expected, found });
        }
        self.file.sync_all().map_err(io_error(&self.path))?;
        let mut recently_stored =
            self.recently_stored.lock().unwrap_or_else(PoisonError::into_inner);
        fs::rename(&self.path, &self.target).map_err(io_error(&self.target))?;
        recently_stored.insert(self.expected, Instant::now());
        drop(recently_stored);
        self.is_stored = true;
        if let Some(folder) = self.target.parent() {
            File::open(folder).and_then(|dir| dir.sync_all()).map_err(io_error(folder))?;
        }
        Ok(self.bytes)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_stored {
            // If it stays, the next start removes it.
            let _left_behind = fs::remove_file(&self.path);
        }
    }
}

/// Removes the blobs that the log no longer names. Content is here before the log names it, so
/// content that the log has not named yet is removed only when two sweeps in a row found it so and
/// it was not stored again in between. Content that the log did name and no longer names is removed
/// at once: its space is needed.
#[derive(Default)]
pub struct BlobSweep {
    unknown_before: BTreeSet<Digest>,
    /// The blobs that the log named at the last check, and the time of that check.
    named_before: BTreeSet<Digest>,
    listed_at: Option<Instant>,
}

impl BlobSweep {
    /// Removes the blobs that the log no longer names; returns how many.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn remove_deleted(
        &mut self,
        store: &BlobStore,
        named: BTreeSet<Digest>,
    ) -> Result<usize, BlobError> {
        // Held throughout, so that nothing is stored again between the check and the removal.
        let recently_stored = store.recently_stored.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut self.named_before, named);
        let listed_at = self.listed_at.replace(Instant::now());
        let is_stored_again = |digest: &&Digest| recently_stored.get(digest).copied() >= listed_at;
        let mut removed = 0;
        for digest in
            before.difference(&self.named_before).filter(|digest| !is_stored_again(digest))
        {
            removed += usize::from(store.has(*digest));
            store.remove(*digest)?;
        }
        Ok(removed)
    }

    /// Returns how many were removed.
    ///
    /// When the folder cannot be read or a file cannot be removed.
    /// When the folder cannot be read or a file not be removed.
    pub fn remove_unknown(
        &mut self,
        store: &BlobStore,
        is_known: impl Fn(Digest) -> bool,
    ) -> Result<usize, BlobError> {
        // Held throughout, so that nothing is stored between the check and the removal.
        let mut recently_stored =
            store.recently_stored.lock().unwrap_or_else(PoisonError::into_inner);
        let here = store.list()?.into_iter().map(|(digest, _)| digest);
        let unknown = here
            .filter(|digest| !is_known(*digest) && !recently_stored.contains_key(digest))
            .collect();
        let before = std::mem::replace(&mut self.unknown_before, unknown);
        recently_stored.clear();
        let mut removed = 0;
        for digest in before.intersection(&self.unknown_before) {
            store.remove(*digest)?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// An upload fed from a connection: chunks are buffered until they are worth a write, and writes
/// run where blocking on a disk does no harm. No thread waits for the other side.
pub struct UploadBuffer {
    upload: Upload,
    buffered: Vec<u8>,
}

impl UploadBuffer {
    #[must_use]
    pub fn new(upload: Upload) -> UploadBuffer {
        UploadBuffer { upload, buffered: Vec::with_capacity(CHUNK_BYTES) }
    }

    /// # Errors
    /// When the content gets too long or the disk fails.
    pub async fn write(mut self, chunk: &[u8]) -> Result<UploadBuffer, BlobError> {
        self.buffered.extend_from_slice(chunk);
        if self.buffered.len() >= CHUNK_BYTES {
            run_blocking(move || {
                self.flush()?;
                Ok(self)
            })
            .await
        } else {
            Ok(self)
        }
    }

    /// Moves the content into place; returns its length. It is durable then.
    ///
    /// # Errors
    /// When it is other content than announced, or the disk fails.
    pub async fn finish(mut self) -> Result<u64, BlobError> {
        run_blocking(move || {
            self.flush()?;
            self.upload.finish()
        })
        .await
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        self.upload.write(&self.buffered)?;
        self.buffered.clear();
        Ok(())
    }
}

/// Runs work that blocks on a disk.
///
/// # Errors
/// The error of the work.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    let lost = |why| BlobError::Io { path: PathBuf::from(DIR), why: io::Error::other(why) };
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

/// The other replicas, as far as the blob store needs them.
pub trait BlobPeers: Send + Sync + 'static {
    /// Names of the voting replicas other than this one.
    fn voters(&self) -> Vec<String>;
    /// Sends the content to a replica; done when it is durable there.
    fn push(&self, peer: String, digest: Digest) -> BoxFuture<'_, Result<(), String>>;
    /// Fetches the content from a replica into `intake`; done when it is durable here.
    fn fetch(
        &self,
        peer: String,
        digest: Digest,
        intake: UploadBuffer,
    ) -> BoxFuture<'_, Result<(), String>>;
}

/// Makes sure that a majority of the voters has a blob that is stored here; returns how many have
/// it. The rest fetch it when they need it.
///
/// # Errors
/// When no majority can be reached.
pub async fn replicate(peers: &dyn BlobPeers, digest: Digest) -> Result<usize, BlobError> {
    let others = peers.voters();
    let needed = others.len().div_ceil(2) + 1;
    let (mut have, mut failures) = (1, Vec::new());
    let mut pushes: FuturesUnordered<_> = others
        .into_iter()
        .map(|peer| async move { (peer.clone(), peers.push(peer, digest).await) })
        .collect();
    while have < needed {
        match pushes.next().await {
            Some((_, Ok(()))) => have += 1,
            Some((peer, Err(why))) => failures.push(format!("{peer}: {why}")),
            None => {
                let why = failures.join("; ");
                return Err(BlobError::TooFewCopies { have, needed, why });
            }
        }
    }
    Ok(have)
}

/// The content from this disk, or from another replica when it is missing or damaged here.
///
/// # Errors
/// When no replica has it.
pub async fn read_or_fetch(
    store: &BlobStore,
    peers: &dyn BlobPeers,
    digest: Digest,
) -> Result<BlobReader, BlobError> {
    match store.read(digest) {
        Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => {}
        read => return read,
    }
    let mut failures = Vec::new();
    for peer in peers.voters() {
        let intake = UploadBuffer::new(store.begin(digest, store.limit)?);
        match peers.fetch(peer.clone(), digest, intake).await {
            Ok(()) => return store.read(digest),
            Err(why) => failures.push(format!("{peer}: {why}")),
        }
    }
    Err(BlobError::NoCopy { digest, why: failures.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use cellwright_identity::secret::sha256;
    use std::collections::BTreeMap;

    fn digest(content: &[u8]) -> Digest {
        Digest(sha256(content))
    }

    /// The content, if all of it can be read.
    fn content(blobs: &BlobStore, digest: Digest) -> Result<Vec<u8>, BlobError> {
        read_all(blobs.read(digest)?)
    }

    fn read_all(mut reading: BlobReader) -> Result<Vec<u8>, BlobError> {
        let mut content = Vec::new();
        while let Some(chunk) = reading.next_chunk()? {
            content.extend_from_slice(&chunk);
        }
        Ok(content)
    }

    fn store(folder: &TempFolder) -> BlobStore {
        BlobStore::open(&folder.0, 1000).unwrap()
    }

    fn leftovers(folder: &TempFolder) -> usize {
        fs::read_dir(folder.0.join("blobs/incoming")).unwrap().count()
    }

    #[test]
    fn content_comes_back_under_its_digest() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        let mut upload = blobs.begin(digest(b"hello"), 1 << 20).unwrap();
        upload.write(b"hel").unwrap();
        assert!(!blobs.has(digest(b"hello")), "not there before it is whole");
        upload.write(b"lo").unwrap();
        assert_eq!(upload.finish().unwrap(), 5);
        assert_eq!(blobs.put(digest(b"hello"), b"hello").unwrap(), 5, "again is no error");
        assert_eq!(content(&blobs, digest(b"hello")).unwrap(), b"hello");
        assert_eq!(blobs.list().unwrap(), [(digest(b"hello"), 5)]);
        blobs.remove(digest(b"hello")).unwrap();
        blobs.remove(digest(b"hello")).unwrap();
        assert!(matches!(blobs.read(digest(b"hello")), Err(BlobError::NotFound(_))));
        assert_eq!(Digest::parse(&digest(b"x").to_string()), Some(digest(b"x")));
        assert_eq!(leftovers(&folder), 0);
    }

    #[test]
    fn other_content_and_too_much_of_it_are_refused_without_a_trace() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        let other = blobs.put(digest(b"hello"), b"hullo");
        assert!(matches!(other, Err(BlobError::DigestMismatch { .. })));
        let long = blobs.put(digest(&[0; 1001]), &[0; 1001]);
        assert!(matches!(long, Err(BlobError::TooLong { limit: 1000 })));
        drop(blobs.begin(digest(b"hello"), 1 << 20).unwrap());
        assert_eq!(leftovers(&folder), 0);
        let cut_short = folder.0.join("blobs/incoming/left");
        fs::write(&cut_short, b"half").unwrap();
        assert!(store(&folder).list().unwrap().is_empty());
        assert!(!cut_short.exists());
    }

    #[test]
    fn damage_is_found_when_read_and_a_good_copy_can_take_its_place() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        let name = digest(b"hello");
        blobs.put(name, b"hello").unwrap();
        fs::write(folder.0.join("blobs").join(name.to_string()), b"hellO").unwrap();
        assert!(matches!(content(&blobs, name), Err(BlobError::Damaged(_))));
        assert!(matches!(blobs.read(name), Err(BlobError::NotFound(_))));
        blobs.put(name, b"hello").unwrap();
        assert_eq!(content(&blobs, name).unwrap(), b"hello");
        fs::write(blobs.path(name), b"").unwrap();
        assert!(matches!(blobs.read(name), Err(BlobError::Damaged(_))), "nothing is damage too");
    }

    #[test]
    fn content_of_many_pieces_comes_in_order_and_damage_keeps_its_end_back() {
        let folder = TempFolder::new();
        let long: Vec<u8> = (0..CHUNK_BYTES * 2 + 77).map(|n| (n % 251) as u8).collect();
        let blobs = BlobStore::open(&folder.0, long.len() as u64).unwrap();
        let name = digest(&long);
        blobs.put(name, &long).unwrap();
        let mut reading = blobs.read(name).unwrap();
        assert_eq!(reading.length(), long.len() as u64);
        assert_eq!(
            reading.next_chunk().unwrap().unwrap(),
            long[..CHUNK_BYTES],
            "a piece at a time"
        );
        assert_eq!(content(&blobs, name).unwrap(), long);
        let mut other = long.clone();
        other[5] ^= 1;
        fs::write(blobs.path(name), other).unwrap();
        let mut reading = blobs.read(name).unwrap();
        let given = (0..2).map(|_| reading.next_chunk().unwrap().unwrap().len()).sum::<usize>();
        assert_eq!(given, CHUNK_BYTES * 2);
        assert!(matches!(reading.next_chunk(), Err(BlobError::Damaged(_))), "not the end of it");
        assert!(!blobs.has(name));
        assert!(matches!(blobs.read(digest(b"")), Err(BlobError::NotFound(_))));
        blobs.put(digest(b""), b"").unwrap();
        assert_eq!(content(&blobs, digest(b"")).unwrap(), b"");
    }

    #[test]
    fn what_the_log_forgot_goes_at_the_second_look_and_what_is_new_stays() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        for content in [&b"known"[..], b"forgotten", b"again"] {
            blobs.put(digest(content), content).unwrap();
        }
        let is_known = |wanted: Digest| wanted == digest(b"known");
        let mut sweep = BlobSweep::default();
        assert_eq!(
            sweep.remove_unknown(&blobs, is_known).unwrap(),
            0,
            "the log may be about to hear of it"
        );
        assert_eq!(sweep.remove_unknown(&blobs, is_known).unwrap(), 0, "unknown once");
        blobs.put(digest(b"again"), b"again").unwrap();
        assert_eq!(sweep.remove_unknown(&blobs, is_known).unwrap(), 1);
        assert!(blobs.has(digest(b"known")) && blobs.has(digest(b"again")));
        assert!(!blobs.has(digest(b"forgotten")));
    }

    #[test]
    fn what_was_removed_goes_at_once_unless_it_was_brought_again() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        let all = [&b"kept"[..], b"removed", b"again", b"never named"];
        for content in all {
            blobs.put(digest(content), content).unwrap();
        }
        let named = |contents: &[&[u8]]| contents.iter().map(|content| digest(content)).collect();
        let mut sweep = BlobSweep::default();
        assert_eq!(sweep.remove_deleted(&blobs, named(&all[..3])).unwrap(), 0);
        blobs.put(digest(b"again"), b"again").unwrap();
        assert_eq!(sweep.remove_deleted(&blobs, named(&all[..1])).unwrap(), 1);
        assert!(!blobs.has(digest(b"removed")));
        assert!([&b"kept"[..], b"again", b"never named"].iter().all(|c| blobs.has(digest(c))));
    }

    #[test]
    fn the_reserve_of_the_disk_is_left_to_the_log() {
        let folder = TempFolder::new();
        let blobs = store(&folder).with_reserve(u64::MAX);
        let full = blobs.put(digest(b"hello"), b"hello");
        assert!(matches!(full, Err(BlobError::DiskFull { reserve: u64::MAX, .. })), "{full:?}");
        assert_eq!(leftovers(&folder), 0);
        store(&folder).with_reserve(1).put(digest(b"hello"), b"hello").unwrap();
    }

    /// The blobs of the other replicas; a peer that is not listed does not answer.
    struct FakePeers {
        names: Vec<&'static str>,
        contents: BTreeMap<&'static str, Vec<u8>>,
    }

    impl BlobPeers for FakePeers {
        fn voters(&self) -> Vec<String> {
            self.names.iter().map(|name| (*name).to_owned()).collect()
        }
        fn push(&self, peer: String, _: Digest) -> BoxFuture<'_, Result<(), String>> {
            let alive = self.contents.contains_key(peer.as_str());
            Box::pin(async move { if alive { Ok(()) } else { Err("away".into()) } })
        }
        fn fetch(
            &self,
            peer: String,
            _: Digest,
            mut intake: UploadBuffer,
        ) -> BoxFuture<'_, Result<(), String>> {
            let content = self.contents.get(peer.as_str()).cloned();
            Box::pin(async move {
                for byte in content.ok_or("away")? {
                    intake = intake.write(&[byte]).await.map_err(|e| e.to_string())?;
                }
                intake.finish().await.map(drop).map_err(|e| e.to_string())
            })
        }
    }

    #[tokio::test]
    async fn a_majority_is_needed_and_enough() {
        let check =
            async |names: &[&'static str], alive: &[&'static str], expected: Option<usize>| {
                let have = alive.iter().map(|name| (*name, Vec::new())).collect();
                let others = FakePeers { names: names.to_vec(), contents: have };
                let got = replicate(&others, digest(b"x")).await;
                assert_eq!(got.as_ref().ok().copied(), expected, "{names:?} {alive:?} {got:?}");
            };
        check(&[], &[], Some(1)).await;
        check(&["b"], &["b"], Some(2)).await;
        check(&["b"], &[], None).await;
        check(&["b", "c"], &["c"], Some(2)).await;
        check(&["b", "c"], &[], None).await;
        check(&["b", "c", "d", "e"], &["c"], None).await;
        check(&["b", "c", "d", "e"], &["c", "e"], Some(3)).await;
    }

    #[tokio::test]
    async fn what_is_missing_or_damaged_here_comes_from_another_replica() {
        let folder = TempFolder::new();
        let blobs = store(&folder);
        let name = digest(b"hello");
        let have = BTreeMap::from([("c", b"wrong".to_vec()), ("d", b"hello".to_vec())]);
        let others = FakePeers { names: vec!["b", "c", "d"], contents: have };
        let obtained = || async { read_all(read_or_fetch(&blobs, &others, name).await.unwrap()) };
        assert_eq!(obtained().await.unwrap(), b"hello");
        assert_eq!(content(&blobs, name).unwrap(), b"hello", "kept for the next time");
        fs::write(blobs.path(name), b"hellO").unwrap();
        assert!(obtained().await.is_err(), "the end of damaged content is not given out");
        assert_eq!(obtained().await.unwrap(), b"hello", "and the next reader gets a good copy");
        assert_eq!(leftovers(&folder), 0, "nothing stays of the wrong one");
        let nobody = read_or_fetch(&blobs, &others, digest(b"other")).await;
        let nobody = nobody.err().unwrap().to_string();
        assert!(nobody.contains("b: away") && nobody.contains("c: the content"), "{nobody}");
    }
}
