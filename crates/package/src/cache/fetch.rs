//! Fetching one package from many: who is asked for which chunk, and what becomes of the answers.
//!
//! With a head that somebody vouches for, every chunk is checked when it arrives, from whomever; a
//! source that gave a wrong one is not asked again. Other machines are asked before masters, who
//! have better things to do: once a machine helps, a master is asked only for what none of them
//! has. A machine that lacks a chunk may be fetching the package too, and is asked again later.
//! Near the end, idle machines are asked for chunks that are late elsewhere, so that one slow
//! machine does not hold up the rest.
//!
//! Without such a head (no master answers) one machine at a time is taken at its word for all of
//! it, and the digest of the whole decides.

use super::disk::Place;
use super::partial::{Partial, Round};
use super::source::{Source, SourceError};
use super::tally;
use super::{PackageDigest, Settings};
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

/// Failures in a row after which a source is left alone.
const PATIENCE: u32 = 3;
/// A machine that lacked a chunk is asked for it again when so many others, or this part of all,
/// have arrived meanwhile.
const MEANWHILE: usize = 4;
const MEANWHILE_PART: usize = 8;
/// First bytes asked for: the head of a package of half a gigabyte.
const FIRST_BYTES: u32 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no source is known")]
    NoSource,
    #[error("no source gave it: {0}")]
    AllFailed(String),
    /// Somebody whose word counts gave it, and it is no package or another one.
    #[error("what the masters have of it is of no use: {0}")]
    Unusable(String),
    #[error("{0}")]
    Package(#[from] PackageError),
    #[error("the fetch was cut short")]
    CutShort,
}

impl FetchError {
    /// Whether the same may be had later: nothing is known to be wrong with the package, but nobody
    /// gave it. A machine alone that gave wrong bytes says nothing of what the masters have.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, FetchError::NoSource | FetchError::AllFailed(_))
    }
}

struct Asked {
    source: Arc<dyn Source>,
    /// Requests on their way.
    busy: usize,
    failures: u32,
    /// What it gave that was right.
    bytes: u64,
    /// Chunks it did not have, and how many were missing here then.
    lacks: BTreeMap<u32, usize>,
    /// Why it is not asked any more.
    gone: Option<SourceError>,
}

impl Asked {
    fn alive(&self) -> bool {
        self.gone.is_none()
    }

    /// Whether it is taken not to have the chunk, with so many missing here of so many.
    fn lacks(&self, chunk: u32, missing: usize, all: usize) -> bool {
        let meanwhile = MEANWHILE.max(all / MEANWHILE_PART);
        self.lacks.get(&chunk).is_some_and(|then| missing + meanwhile > *then)
    }

    fn start_over(&mut self, gone: Option<SourceError>) {
        self.gone = gone;
        self.lacks.clear();
        (self.busy, self.failures) = (0, 0);
    }
}

pub(super) struct Fetch {
    digest: PackageDigest,
    bytes: u64,
    settings: Settings,
    asked: Vec<Asked>,
    partial: Arc<Partial>,
    /// What is wrong with it, as the first of those who vouch for it has it.
    unusable: Option<String>,
}

type Answer = (usize, u32, Result<Bytes, SourceError>);

impl Fetch {
    pub(super) fn new(
        digest: PackageDigest,
        bytes: u64,
        settings: Settings,
        sources: Vec<Arc<dyn Source>>,
        partial: Arc<Partial>,
    ) -> Fetch {
        let asked = sources.into_iter().map(|source| Asked {
            source,
            busy: 0,
            failures: 0,
            bytes: 0,
            lacks: BTreeMap::new(),
            gone: None,
        });
        Fetch { digest, bytes, settings, asked: asked.collect(), partial, unusable: None }
    }

    /// Which machines gave bytes that were not the package's. A master is none: it gives what an
    /// owner brought, and one broken package must not keep a machine from all others.
    pub(super) fn liars(&self) -> Vec<String> {
        let wrong = |a: &&Asked| a.gone == Some(SourceError::Wrong) && !a.source.vouches();
        let liars = self.asked.iter().filter(wrong);
        liars.map(|asked| asked.source.name().to_owned()).collect()
    }

    /// Who gave how much.
    pub(super) fn shares(&self) -> Vec<PackageSource> {
        let share =
            |asked: &Asked| tally::share(asked.source.as_ref(), asked.bytes, asked.gone.as_ref());
        self.asked.iter().filter_map(share).collect()
    }

    /// Fetches, checks, unpacks, and puts file and folder in their place.
    pub(super) async fn run(&mut self, place: Place) -> Result<(), FetchError> {
        if self.asked.is_empty() {
            return Err(FetchError::NoSource);
        }
        let everybody: Vec<usize> = (0..self.asked.len()).collect();
        for at in [self.those(true), self.those(false)].concat() {
            let vouches = self.asked[at].source.vouches();
            let from = if vouches { everybody.clone() } else { vec![at] };
            let Some((head, start)) = self.head_from(at).await else { continue };
            let round = self.partial.begin(&head, &start)?;
            let before: Vec<_> = self.asked.iter().map(|asked| asked.gone.clone()).collect();
            let done = match self.chunks(&head, round, &from).await {
                Ok(()) => self.settle(place.clone()).await,
                failed => failed,
            };
            let (own, why) = match &done {
                // Every chunk was as this head says, so the head is wrong, and who gave it.
                Err(FetchError::Package(why @ PackageError::OtherContent { .. })) => {
                    (SourceError::Wrong, why.to_string())
                }
                Err(FetchError::AllFailed(_)) => {
                    let own = self.asked[at].gone.clone().unwrap_or(SourceError::Lacks);
                    (own, "its chunks are not those that its head names".to_owned())
                }
                _ => return done,
            };
            if own == SourceError::Wrong {
                self.of_no_use(at, why);
            }
            // Whom a wrong head made a liar is none.
            for (asked, before) in self.asked.iter_mut().zip(before) {
                asked.start_over(before);
            }
            self.asked[at].gone = Some(own);
        }
        Err(match self.unusable.take() {
            Some(why) => FetchError::Unusable(why),
            None => self.all_failed(),
        })
    }

    /// Notes what is wrong with the package as this source has it, if its word counts.
    fn of_no_use(&mut self, at: usize, why: String) {
        let source = &self.asked[at].source;
        if source.vouches() {
            tracing::warn!(source = source.name(), package = %self.digest, %why, "of no use");
            self.unusable.get_or_insert(why);
        }
    }

    fn those(&self, vouching: bool) -> Vec<usize> {
        let asked = self.asked.iter().enumerate();
        asked.filter(|(_, a)| a.source.vouches() == vouching).map(|(at, _)| at).collect()
    }

    async fn head_from(&mut self, at: usize) -> Option<(Head, Vec<u8>)> {
        let mut wanted = u64::from(FIRST_BYTES).min(self.bytes);
        loop {
            let length = u32::try_from(wanted).ok()?;
            let start = match self.request(at, 0, length).await {
                Ok(start) => start,
                Err(why) => {
                    self.asked[at].gone = Some(why);
                    return None;
                }
            };
            match Head::parse(&start, self.bytes) {
                Ok(Parsed::Head(head)) => {
                    self.asked[at].bytes += start.len() as u64;
                    return Some((head, start.into()));
                }
                Ok(Parsed::Needs(more)) => wanted = more,
                Err(why) => {
                    self.asked[at].gone = Some(SourceError::Failed(why.to_string()));
                    self.of_no_use(at, why.to_string());
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
        let source = Arc::clone(&self.asked[at].source);
        let (digest, limit) = (self.digest, self.settings.request_timeout);
        Box::pin(async move {
            match tokio::time::timeout(limit, source.read(digest, from, length)).await {
                Ok(Ok(bytes)) if bytes.len() as u64 == u64::from(length) => Ok(bytes),
                Ok(Ok(_)) => Err(SourceError::Wrong),
                Ok(Err(why)) => Err(why),
                Err(_) => Err(SourceError::Failed("did not answer in time".into())),
            }
        })
    }

    /// Brings all chunks in from those of `from`.
    async fn chunks(
        &mut self,
        head: &Head,
        round: Round,
        from: &[usize],
    ) -> Result<(), FetchError> {
        let head = Arc::new(head.clone());
        let mut board = Board::new(head.count(), self.settings.salt);
        let mut answers: FuturesUnordered<BoxFuture<'static, Result<Answer, PackageError>>> =
            FuturesUnordered::new();
        while !board.missing.is_empty() {
            while let Some((at, chunk)) = self.next(&mut board, from) {
                answers.push(self.one(&head, round, at, chunk));
            }
            let Some(answer) = answers.next().await else { return Err(self.all_failed()) };
            let (at, chunk, outcome) = answer?;
            board.back(at, chunk, outcome.is_ok());
            let asked = &mut self.asked[at];
            asked.busy -= 1;
            match outcome {
                Ok(bytes) => {
                    asked.failures = 0;
                    asked.bytes += bytes.len() as u64;
                }
                Err(SourceError::Lacks) => drop(asked.lacks.insert(chunk, board.missing.len())),
                Err(SourceError::Wrong) => asked.gone = Some(SourceError::Wrong),
                Err(why) => {
                    asked.failures += 1;
                    if asked.failures >= PATIENCE {
                        asked.gone = Some(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// One chunk from one source, checked and written.
    fn one(
        &mut self,
        head: &Arc<Head>,
        round: Round,
        at: usize,
        chunk: u32,
    ) -> BoxFuture<'static, Result<Answer, PackageError>> {
        self.asked[at].busy += 1;
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
                partial.put(&head, round, chunk, &bytes)?;
                Ok((at, chunk, Ok(bytes)))
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(answer) => answer,
                Err(why) => Ok((at, chunk, Err(SourceError::Failed(why.to_string())))),
            }
        })
    }

    /// Who is asked for what next. Machines come before masters, the less busy before the busier.
    fn next(&self, board: &mut Board, from: &[usize]) -> Option<(usize, u32)> {
        let usable = |at: &&usize| {
            let asked = &self.asked[**at];
            asked.alive() && asked.busy < self.settings.per_source
        };
        let mut free: Vec<usize> = from.iter().filter(usable).copied().collect();
        free.sort_by_key(|at| (self.asked[*at].source.vouches(), self.asked[*at].busy, *at));
        let machine = |at: &&usize| {
            let asked = &self.asked[**at];
            // One that does not answer helps nobody.
            asked.alive() && asked.failures == 0 && !asked.source.vouches()
        };
        let machines: Vec<usize> = from.iter().filter(machine).copied().collect();
        let (missing, all) = (board.missing.len(), board.all);
        free.into_iter().find_map(|at| {
            let spare = self.asked[at].source.vouches();
            let lacks = |at: usize, chunk: u32| self.asked[at].lacks(chunk, missing, all);
            let none_has = |chunk: u32| machines.iter().all(|machine| lacks(*machine, chunk));
            let may = |chunk: u32| !lacks(at, chunk) && (!spare || none_has(chunk));
            board.take(at, may).map(|chunk| (at, chunk))
        })
    }

    /// Checks the whole, unpacks it, and moves folder and file to their places, in that order.
    async fn settle(&self, place: Place) -> Result<(), FetchError> {
        let (partial, settings) = (Arc::clone(&self.partial), self.settings);
        let (digest, bytes) = (self.digest, self.bytes);
        let work = move || -> Result<(), PackageError> {
            let mut folder = partial.path.clone().into_os_string();
            folder.push(".folder");
            let folder = std::path::PathBuf::from(folder);
            let limits = within_room(settings, &partial.path)?;
            unpack(partial.reader()?, bytes, &folder, limits, Some(digest))?;
            partial.sync()?;
            clear(&place)?;
            fs::rename(&folder, &place.folder).map_err(at(&place.folder))?;
            fs::rename(&partial.path, &place.file).map_err(at(&place.file))?;
            for path in [&place.folder, &place.file] {
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
        let reasons = self.asked.iter().map(|asked| {
            let why = asked.gone.clone().unwrap_or(SourceError::Lacks);
            format!("{}: {why}", asked.source.name())
        });
        FetchError::AllFailed(reasons.collect::<Vec<_>>().join("; "))
    }
}

/// What is left free of a disk, and of its table of files, at most. A twentieth of a large disk
/// would turn packages away while there is room for thousands of them.
const BYTES_LEFT_FREE: u64 = 2 << 30;
const FILES_LEFT_FREE: u64 = 200_000;

/// What may be taken of `free`: all but a twentieth of `all`, or but `most` where that is less.
fn beyond_reserve(free: u64, all: u64, most: u64) -> u64 {
    free.saturating_sub(most.min(all / 20))
}

/// What may be unpacked beside `path`: no more than the cache holds, and of what the disk has free
/// all but a reserve. Others write there too, who must not fail for a package.
fn within_room(settings: Settings, path: &Path) -> Result<Limits, PackageError> {
    let space = rustix::fs::statvfs(path).map_err(at_errno(path))?;
    let bytes_of = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    let disk = beyond_reserve(bytes_of(space.f_bavail), bytes_of(space.f_blocks), BYTES_LEFT_FREE);
    // Some file systems have no table of files that could run full, and say 0 of 0.
    let counted = space.f_files > 0;
    let entries = if counted {
        beyond_reserve(space.f_favail, space.f_files, FILES_LEFT_FREE)
    } else {
        u64::MAX
    };
    let Limits { entries: most_entries, bytes, disk: most_disk } = settings.limits;
    let most_disk = most_disk.min(settings.most_bytes);
    Ok(Limits { entries: most_entries.min(entries), bytes, disk: most_disk.min(disk) })
}

/// Removes what an earlier try left at the places of a package that is not here: a folder that is
/// not empty could not be replaced.
fn clear(place: &Place) -> Result<(), PackageError> {
    let missing = |why: &io::Error| why.kind() == io::ErrorKind::NotFound;
    match fs::remove_file(&place.file) {
        Err(why) if !missing(&why) => return Err(at(&place.file)(why)),
        _ => {}
    }
    match fs::remove_dir_all(&place.folder) {
        Err(why) if !missing(&why) => Err(at(&place.folder)(why)),
        _ => Ok(()),
    }
}

/// Which chunks are missing and who is on them.
struct Board {
    all: usize,
    missing: BTreeSet<u32>,
    queue: VecDeque<u32>,
    /// Who was asked and has not answered, by chunk.
    flying: BTreeMap<u32, Vec<usize>>,
}

impl Board {
    fn new(count: u32, salt: u64) -> Board {
        let start = u32::try_from(salt % u64::from(count.max(1))).unwrap_or(0);
        let queue = (start..count).chain(0..start).collect();
        let missing: BTreeSet<u32> = (0..count).collect();
        Board { all: missing.len(), missing, queue, flying: BTreeMap::new() }
    }

    /// The next chunk that `source` may be asked for; when all are on their way, the first that
    /// only one other was asked for.
    fn take(&mut self, source: usize, may: impl Fn(u32) -> bool) -> Option<u32> {
        let found = match self.queue.iter().position(|chunk| may(*chunk)) {
            Some(at) => self.queue.remove(at),
            None if self.queue.is_empty() => {
                let late = self.flying.iter();
                let late = late.filter(|(_, asked)| asked.len() == 1 && !asked.contains(&source));
                late.map(|(chunk, _)| *chunk).find(|chunk| may(*chunk))
            }
            None => None,
        }?;
        self.flying.entry(found).or_default().push(source);
        Some(found)
    }

    fn back(&mut self, source: usize, chunk: u32, arrived: bool) {
        let mut waiting = self.flying.remove(&chunk).unwrap_or_default();
        waiting.retain(|asked| *asked != source);
        if arrived {
            self.missing.remove(&chunk);
        } else if self.missing.contains(&chunk) {
            if waiting.is_empty() {
                self.queue.push_back(chunk);
            } else {
                self.flying.insert(chunk, waiting);
            }
        }
    }
}

const _: () = assert!(FIRST_BYTES <= CHUNK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_disk_has_room_for_packages_until_little_is_free() {
        const GIB: u64 = 1 << 30;
        let room = |free, all| beyond_reserve(free, all, BYTES_LEFT_FREE);
        assert_eq!(room(12 * GIB, 250 * GIB), 10 * GIB);
        assert_eq!(room(2 * GIB, 250 * GIB), 0);
        assert_eq!(room(3 * GIB, 20 * GIB), 2 * GIB);
        assert_eq!(room(0, 20 * GIB), 0);
    }
}
