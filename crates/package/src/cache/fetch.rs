//! Fetches one package from many sources: scheduling of chunks to sources, and verification.
//!
//! With a head from a trusted source, every chunk is verified when it arrives, from any source; a
//! source that served a corrupt one is not asked again. Other machines are asked before masters, to
//! spare these: once a machine helps, a master is asked only for what none of them has. A machine
//! that lacks a chunk may be fetching the package too, and is asked again later. Near the end, idle
//! machines are asked for chunks that are late elsewhere, so that one slow machine does not delay
//! the rest.
//!
//! Without such a head (no master answers) one machine at a time is trusted for all of it, and the
//! digest of the whole decides.

use super::disk::PackagePaths;
use super::partial::{Partial, Round};
use super::source::{Source, SourceError};
use super::transfer_stats;
use super::{CacheConfig, PackageDigest};
use crate::error::{PackageError, at, at_errno};
use crate::head::{CHUNK_BYTES, Head, Parsed};
use crate::unpack::{Limits, unpack};
use bytes::Bytes;
use cellwright_api::types::PackageSource;
use cellwright_identity::secret::sha256;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Failures in a row after which a source is not asked any more.
const MAX_FAILURES: u32 = 3;
/// A machine that lacked a chunk is asked for it again when this many others, or this part of all,
/// have arrived meanwhile.
const MIN_NEW_CHUNKS: usize = 4;
const MIN_NEW_CHUNKS_DIVISOR: usize = 8;
/// Bytes of the first request: the head of a package of half a gigabyte.
const FIRST_REQUEST_BYTES: u32 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no source is known")]
    NoSource,
    #[error("no source gave it: {0}")]
    AllFailed(String),
    /// A trusted source served it, and it is no package or another one.
    #[error("what the masters have of it is of no use: {0}")]
    Unusable(String),
    #[error("{0}")]
    Package(#[from] PackageError),
    #[error("the fetch was cut short")]
    CutShort,
}

impl FetchError {
    /// Whether a retry may succeed: nothing is known to be wrong with the package, but no source
    /// served it. One machine that served corrupt bytes says nothing about what the masters have.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, FetchError::NoSource | FetchError::AllFailed(_))
    }
}

struct SourceState {
    source: Arc<dyn Source>,
    /// Requests in flight.
    in_flight: usize,
    failures: u32,
    /// Correct bytes that it served.
    bytes: u64,
    /// Chunks it did not have, and how many were missing here then.
    missing_chunks: BTreeMap<u32, usize>,
    /// Why it is not asked any more.
    failure: Option<SourceError>,
}

impl SourceState {
    fn is_usable(&self) -> bool {
        self.failure.is_none()
    }

    /// Whether it is taken not to have the chunk, when `missing` of `all` are missing here.
    fn is_missing(&self, chunk: u32, missing: usize, all: usize) -> bool {
        let meanwhile = MIN_NEW_CHUNKS.max(all / MIN_NEW_CHUNKS_DIVISOR);
        self.missing_chunks.get(&chunk).is_some_and(|then| missing + meanwhile > *then)
    }

    fn reset(&mut self, failure: Option<SourceError>) {
        self.failure = failure;
        self.missing_chunks.clear();
        (self.in_flight, self.failures) = (0, 0);
    }
}

pub(super) struct Fetch {
    digest: PackageDigest,
    bytes: u64,
    config: CacheConfig,
    sources: Vec<SourceState>,
    partial: Arc<Partial>,
    /// What is wrong with the package, as the first trusted source has it.
    unusable: Option<String>,
}

type Answer = (usize, u32, Result<Bytes, SourceError>);

impl Fetch {
    pub(super) fn new(
        digest: PackageDigest,
        bytes: u64,
        config: CacheConfig,
        sources: Vec<Arc<dyn Source>>,
        partial: Arc<Partial>,
    ) -> Fetch {
        let states = sources.into_iter().map(|source| SourceState {
            source,
            in_flight: 0,
            failures: 0,
            bytes: 0,
            missing_chunks: BTreeMap::new(),
            failure: None,
        });
        Fetch { digest, bytes, config, sources: states.collect(), partial, unusable: None }
    }

    /// Machines that served bytes that were not the package's. A master is none: it serves what an
    /// owner uploaded, and one broken package must not keep a machine from all others.
    pub(super) fn corrupt_sources(&self) -> Vec<String> {
        let wrong =
            |a: &&SourceState| a.failure == Some(SourceError::Wrong) && !a.source.is_trusted();
        let corrupt = self.sources.iter().filter(wrong);
        corrupt.map(|state| state.source.name().to_owned()).collect()
    }

    /// The bytes from each source.
    pub(super) fn contributions(&self) -> Vec<PackageSource> {
        let contribution = |state: &SourceState| {
            transfer_stats::contribution(state.source.as_ref(), state.bytes, state.failure.as_ref())
        };
        self.sources.iter().filter_map(contribution).collect()
    }

    /// Fetches, verifies, unpacks, and moves file and folder to their paths.
    pub(super) async fn run(&mut self, paths: PackagePaths) -> Result<(), FetchError> {
        if self.sources.is_empty() {
            return Err(FetchError::NoSource);
        }
        let all_sources: Vec<usize> = (0..self.sources.len()).collect();
        for at in [self.sources_where(true), self.sources_where(false)].concat() {
            let is_trusted = self.sources[at].source.is_trusted();
            let from = if is_trusted { all_sources.clone() } else { vec![at] };
            let Some((head, start)) = self.head_from(at).await else { continue };
            let round = self.partial.start_round(&head, &start)?;
            let before: Vec<_> = self.sources.iter().map(|state| state.failure.clone()).collect();
            let done = match self.chunks(&head, round, &from).await {
                Ok(()) => self.install(paths.clone()).await,
                failed => failed,
            };
            let (own, why) = match &done {
                // Every chunk matched this head, so the head is wrong, and its source corrupt.
                Err(FetchError::Package(why @ PackageError::OtherContent { .. })) => {
                    (SourceError::Wrong, why.to_string())
                }
                Err(FetchError::AllFailed(_)) => {
                    let own = self.sources[at].failure.clone().unwrap_or(SourceError::Lacks);
                    (own, "its chunks are not those that its head names".to_owned())
                }
                _ => return done,
            };
            if own == SourceError::Wrong {
                self.mark_unusable(at, why);
            }
            // A source that only seemed corrupt because of a wrong head is not.
            for (state, before) in self.sources.iter_mut().zip(before) {
                state.reset(before);
            }
            self.sources[at].failure = Some(own);
        }
        Err(match self.unusable.take() {
            Some(why) => FetchError::Unusable(why),
            None => self.all_failed(),
        })
    }

    /// Records what is wrong with the package as this source has it, if the source is trusted.
    fn mark_unusable(&mut self, at: usize, why: String) {
        let source = &self.sources[at].source;
        if source.is_trusted() {
            tracing::warn!(source = source.name(), package = %self.digest, %why, "of no use");
            self.unusable.get_or_insert(why);
        }
    }

    fn sources_where(&self, vouching: bool) -> Vec<usize> {
        let states = self.sources.iter().enumerate();
        states.filter(|(_, a)| a.source.is_trusted() == vouching).map(|(at, _)| at).collect()
    }

    async fn head_from(&mut self, at: usize) -> Option<(Head, Vec<u8>)> {
        let mut needed = u64::from(FIRST_REQUEST_BYTES).min(self.bytes);
        loop {
            let length = u32::try_from(needed).ok()?;
            let start = match self.request(at, 0, length).await {
                Ok(start) => start,
                Err(why) => {
                    self.sources[at].failure = Some(why);
                    return None;
                }
            };
            match Head::parse(&start, self.bytes) {
                Ok(Parsed::Head(head)) => {
                    self.sources[at].bytes += start.len() as u64;
                    return Some((head, start.into()));
                }
                Ok(Parsed::Needs(more)) => needed = more,
                Err(why) => {
                    self.sources[at].failure = Some(SourceError::Failed(why.to_string()));
                    self.mark_unusable(at, why.to_string());
                    return None;
                }
            }
        }
    }

    fn request(
        &self,
        at: usize,
        from: u64,
        length: u32,
    ) -> BoxFuture<'static, Result<Bytes, SourceError>> {
        let source = Arc::clone(&self.sources[at].source);
        let (digest, limit) = (self.digest, self.config.request_timeout);
        Box::pin(async move {
            match tokio::time::timeout(limit, source.read(digest, from, length)).await {
                Ok(Ok(bytes)) if bytes.len() as u64 == u64::from(length) => Ok(bytes),
                Ok(Ok(_)) => Err(SourceError::Wrong),
                Ok(Err(why)) => Err(why),
                Err(_) => Err(SourceError::Failed("did not answer in time".into())),
            }
        })
    }

    /// Fetches all chunks from the sources `from`.
    async fn chunks(
        &mut self,
        head: &Head,
        round: Round,
        from: &[usize],
    ) -> Result<(), FetchError> {
        let head = Arc::new(head.clone());
        let mut queue = ChunkQueue::new(head.count(), self.config.salt);
        let mut answers: FuturesUnordered<BoxFuture<'static, Result<Answer, PackageError>>> =
            FuturesUnordered::new();
        while !queue.missing.is_empty() {
            while let Some((at, chunk)) = self.next_request(&mut queue, from) {
                answers.push(self.fetch_chunk(&head, round, at, chunk));
            }
            let Some(answer) = answers.next().await else { return Err(self.all_failed()) };
            let (at, chunk, outcome) = answer?;
            queue.finish(at, chunk, outcome.is_ok());
            let state = &mut self.sources[at];
            state.in_flight -= 1;
            match outcome {
                Ok(bytes) => {
                    state.failures = 0;
                    state.bytes += bytes.len() as u64;
                }
                Err(SourceError::Lacks) => {
                    let _before = state.missing_chunks.insert(chunk, queue.missing.len());
                }
                Err(SourceError::Wrong) => state.failure = Some(SourceError::Wrong),
                Err(why) => {
                    state.failures += 1;
                    if state.failures >= MAX_FAILURES {
                        state.failure = Some(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// One chunk from one source, verified and written.
    fn fetch_chunk(
        &mut self,
        head: &Arc<Head>,
        round: Round,
        at: usize,
        chunk: u32,
    ) -> BoxFuture<'static, Result<Answer, PackageError>> {
        self.sources[at].in_flight += 1;
        let (start, length) = head.range_of(chunk);
        let request = self.request(at, start, length);
        let (head, partial) = (Arc::clone(head), Arc::clone(&self.partial));
        Box::pin(async move {
            let bytes = match request.await {
                Ok(bytes) => bytes,
                Err(why) => return Ok((at, chunk, Err(why))),
            };
            let work = move || {
                if head.chunks.get(chunk as usize) != Some(&sha256(&bytes)) {
                    return Ok((at, chunk, Err(SourceError::Wrong)));
                }
                partial.write_chunk(&head, round, chunk, &bytes)?;
                Ok((at, chunk, Ok(bytes)))
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(answer) => answer,
                Err(why) => Ok((at, chunk, Err(SourceError::Failed(why.to_string())))),
            }
        })
    }

    /// The next source and chunk to request. Machines come before masters, the less busy before the
    /// busier.
    fn next_request(&self, queue: &mut ChunkQueue, from: &[usize]) -> Option<(usize, u32)> {
        let usable = |at: &&usize| {
            let state = &self.sources[**at];
            state.is_usable() && state.in_flight < self.config.max_requests_per_source
        };
        let mut free: Vec<usize> = from.iter().filter(usable).copied().collect();
        free.sort_by_key(|at| {
            (self.sources[*at].source.is_trusted(), self.sources[*at].in_flight, *at)
        });
        let machine = |at: &&usize| {
            let state = &self.sources[**at];
            // One that does not answer helps nobody.
            state.is_usable() && state.failures == 0 && !state.source.is_trusted()
        };
        let machines: Vec<usize> = from.iter().filter(machine).copied().collect();
        let (missing, all) = (queue.missing.len(), queue.all);
        free.into_iter().find_map(|at| {
            let is_last_resort = self.sources[at].source.is_trusted();
            let lacks = |at: usize, chunk: u32| self.sources[at].is_missing(chunk, missing, all);
            let no_machine_has = |chunk: u32| machines.iter().all(|machine| lacks(*machine, chunk));
            let may = |chunk: u32| !lacks(at, chunk) && (!is_last_resort || no_machine_has(chunk));
            queue.take(at, may).map(|chunk| (at, chunk))
        })
    }

    /// Verifies the whole, unpacks it, and moves folder and file to their paths, in that order.
    async fn install(&self, paths: PackagePaths) -> Result<(), FetchError> {
        let (partial, settings) = (Arc::clone(&self.partial), self.config);
        let (digest, bytes) = (self.digest, self.bytes);
        let work = move || -> Result<(), PackageError> {
            let mut folder = partial.path.clone().into_os_string();
            folder.push(".folder");
            let folder = std::path::PathBuf::from(folder);
            let limits = limits_for_disk(settings, &partial.path)?;
            unpack(partial.reader()?, bytes, &folder, limits, Some(digest))?;
            partial.sync()?;
            clear(&paths)?;
            fs::rename(&folder, &paths.folder).map_err(at(&paths.folder))?;
            fs::rename(&partial.path, &paths.file).map_err(at(&paths.file))?;
            for path in [&paths.folder, &paths.file] {
                if let Some(above) = path.parent() {
                    fs::File::open(above).and_then(|dir| dir.sync_all()).map_err(at(above))?;
                }
            }
            Ok(())
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(FetchError::CutShort),
        }
    }

    fn all_failed(&self) -> FetchError {
        let reasons = self.sources.iter().map(|state| {
            let why = state.failure.clone().unwrap_or(SourceError::Lacks);
            format!("{}: {why}", state.source.name())
        });
        FetchError::AllFailed(reasons.collect::<Vec<_>>().join("; "))
    }
}

/// The most that is left free on a disk, in bytes and in inodes. A twentieth of a large disk would
/// reject packages while there is space for thousands of them.
const RESERVED_BYTES: u64 = 2 << 30;
const RESERVED_FILES: u64 = 200_000;

/// What may be used of `free`: all but a twentieth of `all`, or but `most` where that is less.
fn available_beyond_reserve(free: u64, all: u64, most: u64) -> u64 {
    free.saturating_sub(most.min(all / 20))
}

/// The limits for unpacking beside `path`: no more than the cache may hold, and of the disk's free
/// space all but a reserve. Others write there too, and must not fail because of a package.
fn limits_for_disk(config: CacheConfig, path: &Path) -> Result<Limits, PackageError> {
    let space = rustix::fs::statvfs(path).map_err(at_errno(path))?;
    let bytes_of = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    let disk = available_beyond_reserve(
        bytes_of(space.f_bavail),
        bytes_of(space.f_blocks),
        RESERVED_BYTES,
    );
    // Some file systems have no inode table that could run full, and say 0 of 0.
    let counted = space.f_files > 0;
    let entries = if counted {
        available_beyond_reserve(space.f_favail, space.f_files, RESERVED_FILES)
    } else {
        u64::MAX
    };
    let Limits { entries: most_entries, bytes, disk: most_disk } = config.limits;
    let most_disk = most_disk.min(config.most_bytes);
    Ok(Limits { entries: most_entries.min(entries), bytes, disk: most_disk.min(disk) })
}

/// Removes what an earlier try left at the paths of a package that is not cached: a folder that is
/// not empty could not be replaced.
fn clear(paths: &PackagePaths) -> Result<(), PackageError> {
    let missing = |why: &io::Error| why.kind() == io::ErrorKind::NotFound;
    match fs::remove_file(&paths.file) {
        Err(why) if !missing(&why) => return Err(at(&paths.file)(why)),
        _ => {}
    }
    match fs::remove_dir_all(&paths.folder) {
        Err(why) if !missing(&why) => Err(at(&paths.folder)(why)),
        _ => Ok(()),
    }
}

/// Which chunks are missing and which sources were asked for them.
struct ChunkQueue {
    all: usize,
    missing: BTreeSet<u32>,
    queue: VecDeque<u32>,
    /// Sources that were asked and have not answered, by chunk.
    in_flight: BTreeMap<u32, Vec<usize>>,
}

impl ChunkQueue {
    fn new(count: u32, salt: u64) -> ChunkQueue {
        let start = u32::try_from(salt % u64::from(count.max(1))).unwrap_or(0);
        let queue = (start..count).chain(0..start).collect();
        let missing: BTreeSet<u32> = (0..count).collect();
        ChunkQueue { all: missing.len(), missing, queue, in_flight: BTreeMap::new() }
    }

    /// The next chunk that `source` may be asked for; when all are in flight, the first that only
    /// one other was asked for.
    fn take(&mut self, source: usize, may: impl Fn(u32) -> bool) -> Option<u32> {
        let found = match self.queue.iter().position(|chunk| may(*chunk)) {
            Some(at) => self.queue.remove(at),
            None if self.queue.is_empty() => {
                let slow_requests = self.in_flight.iter();
                let slow_requests = slow_requests.filter(|(_, source_ids)| {
                    source_ids.len() == 1 && !source_ids.contains(&source)
                });
                slow_requests.map(|(chunk, _)| *chunk).find(|chunk| may(*chunk))
            }
            None => None,
        }?;
        self.in_flight.entry(found).or_default().push(source);
        Some(found)
    }

    fn finish(&mut self, source: usize, chunk: u32, arrived: bool) {
        let mut waiting = self.in_flight.remove(&chunk).unwrap_or_default();
        waiting.retain(|id| *id != source);
        if arrived {
            self.missing.remove(&chunk);
        } else if self.missing.contains(&chunk) {
            if waiting.is_empty() {
                self.queue.push_back(chunk);
            } else {
                self.in_flight.insert(chunk, waiting);
            }
        }
    }
}

const _: () = assert!(FIRST_REQUEST_BYTES <= CHUNK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_disk_has_room_for_packages_until_little_is_free() {
        const GIB: u64 = 1 << 30;
        let room = |free, all| available_beyond_reserve(free, all, RESERVED_BYTES);
        assert_eq!(room(12 * GIB, 250 * GIB), 10 * GIB);
        assert_eq!(room(2 * GIB, 250 * GIB), 0);
        assert_eq!(room(3 * GIB, 20 * GIB), 2 * GIB);
        assert_eq!(room(0, 20 * GIB), 0);
    }
}
