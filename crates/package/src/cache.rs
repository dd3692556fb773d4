//! The package cache of a machine: bounded, shared, and consistent after a crash.
//!
//! A package is stored twice, as its file for other machines to fetch and as a folder for tasks to
//! run from. Both are created under temporary names and moved to their own when they are complete
//! and synced, the file last; so the disk itself tells what is cached, and there is no index that
//! could disagree with it. What a crash cut short is removed at the next start.
//!
//! A task that needs a package holds a [`Pinned`]; packages that are not pinned are evicted when
//! space is needed, least recently used first. Any number of tasks that want one package wait for
//! one fetch.

mod disk;
mod fetch;
mod partial;
mod source;
mod transfer_stats;

pub use fetch::FetchError;
pub use source::{Source, SourceError};

use crate::digest::PackageDigest;
use crate::error::PackageError;
use crate::unpack::Limits;
use bytes::Bytes;
use cellwright_api::types::{MachinePackages, PackageOnMachine};
use cellwright_cell::spec::PackageRef;
use cellwright_supervise::{catch_panic_async, spawn_request};
use disk::Disk;
use fetch::Fetch;
use partial::Partial;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use transfer_stats::{Arrival, Totals};

/// The configuration of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Bytes of files and folders together.
    pub most_bytes: u64,
    pub limits: Limits,
    /// Most concurrent requests to one source.
    pub max_requests_per_source: usize,
    /// Timeout of one request.
    pub request_timeout: Duration,
    /// How long a source that served corrupt bytes is not asked again.
    pub shun_duration: Duration,
    /// Different on every machine, so that machines that fetch the same package at the same time
    /// begin at different chunks and have something to serve each other.
    pub salt: u64,
}

impl CacheConfig {
    #[must_use]
    pub fn new(most_bytes: u64) -> CacheConfig {
        CacheConfig {
            most_bytes,
            limits: Limits::default(),
            max_requests_per_source: 2,
            request_timeout: Duration::from_secs(20),
            shun_duration: Duration::from_secs(600),
            salt: 0,
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ObtainError {
    #[error("package {name}: digest {digest:?} is not valid: 64 digits 0-9 and a-f are allowed")]
    BadDigest { name: String, digest: String },
    #[error(
        "package {name} needs {needed} bytes; the cache has {most} and {pinned} of them are in use"
    )]
    NoRoom { name: String, needed: u64, most: u64, pinned: u64 },
    #[error("package {name}: {why}")]
    Fetch { name: String, why: Arc<FetchError> },
}

impl ObtainError {
    /// Whether a retry later may help: no source served it, which says nothing about the package.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, ObtainError::Fetch { why, .. } if why.is_retryable())
    }

    /// Whether there was no source at all, which says less than any other error.
    #[must_use]
    pub fn is_no_source(&self) -> bool {
        let ObtainError::Fetch { why, .. } = self else { return false };
        matches!(**why, FetchError::NoSource)
    }
}

/// One cached package.
struct CachedPackage {
    /// Its size on disk.
    bytes: u64,
    pins: usize,
    last_use: u64,
    /// Its file is corrupt; tasks that run from it go on, and it is not served to others.
    damaged: bool,
    /// How it was fetched; unknown for packages that were cached at the start.
    arrival: Option<Arrival>,
}

type FetchOutcome = Option<Result<Pinned, ObtainError>>;

/// A package that is being fetched.
struct InFlightFetch {
    outcome_rx: watch::Receiver<FetchOutcome>,
    partial: Arc<Partial>,
    reserved: u64,
}

#[derive(Default)]
struct CacheState {
    packages: BTreeMap<PackageDigest, CachedPackage>,
    in_flight: BTreeMap<PackageDigest, InFlightFetch>,
    /// Counts uses, for the order of the least recently used.
    use_counter: u64,
    avoided: BTreeMap<String, Instant>,
    fetched: Totals,
}

impl CacheState {
    fn used_bytes(&self) -> u64 {
        let cached: u64 = self.packages.values().map(|cached| cached.bytes).sum();
        cached + self.in_flight.values().map(|flight| flight.reserved).sum::<u64>()
    }

    fn pinned_bytes(&self) -> u64 {
        let pinned = self.packages.values().filter(|cached| cached.pins > 0);
        let in_flight_bytes = self.in_flight.values().map(|flight| flight.reserved);
        pinned.map(|cached| cached.bytes).chain(in_flight_bytes).sum()
    }

    fn touch(&mut self, digest: PackageDigest) {
        self.use_counter += 1;
        if let Some(cached) = self.packages.get_mut(&digest) {
            cached.last_use = self.use_counter;
        }
    }

    /// The packages to evict for `needed` more bytes, least recently used first.
    fn choose_evictions(&self, needed: u64, most: u64) -> Option<Vec<PackageDigest>> {
        let mut over = (self.used_bytes() + needed).saturating_sub(most);
        let mut idle: Vec<_> =
            self.packages.iter().filter(|(_, cached)| cached.pins == 0).collect();
        idle.sort_by_key(|(_, cached)| cached.last_use);
        let mut out = Vec::new();
        for (digest, cached) in idle {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(cached.bytes);
            out.push(*digest);
        }
        (over == 0).then_some(out)
    }
}

struct Shared {
    disk: Disk,
    config: CacheConfig,
    state: Mutex<CacheState>,
    /// Bytes served to others.
    bytes_served: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cheap to clone; clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

/// A package in use. It stays cached as long as one of these lives.
#[derive(Clone)]
pub struct Pinned {
    guard: Arc<PinGuard>,
}

struct PinGuard {
    digest: PackageDigest,
    folder: PathBuf,
    shared: Arc<Shared>,
}

impl Pinned {
    #[must_use]
    pub fn digest(&self) -> PackageDigest {
        self.guard.digest
    }

    /// The unpacked package. Tasks must not be able to write here.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.guard.folder
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({})", self.guard.digest)
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.touch(self.digest);
        if let Some(cached) = inner.packages.get_mut(&self.digest) {
            cached.pins = cached.pins.saturating_sub(1);
        }
        drop(inner);
        self.shared.disk.touch_mtime(self.digest);
    }
}

impl Cache {
    /// Scans the disk and removes what a crash left behind. Packages beyond the bound stay until
    /// space is needed or [`Cache::trim`] is called: tasks that outlived the agent run from
    /// packages here, and only their adopters know which.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn open(folder: &Path, config: CacheConfig) -> Result<Cache, PackageError> {
        let disk = Disk::open(folder)?;
        let mut inner = CacheState::default();
        for (digest, bytes) in disk.scan()? {
            inner.use_counter += 1;
            let used = inner.use_counter;
            let cached =
                CachedPackage { bytes, pins: 0, last_use: used, damaged: false, arrival: None };
            inner.packages.insert(digest, cached);
        }
        let (inner, bytes_served) = (Mutex::new(inner), AtomicU64::new(0));
        Ok(Cache { shared: Arc::new(Shared { disk, config, state: inner, bytes_served }) })
    }

    /// Evicts packages that are not pinned, down to the bound. To be called once all packages in
    /// use from before a restart are pinned again.
    ///
    /// # Errors
    /// When a package cannot be removed.
    pub fn trim(&self) -> Result<(), PackageError> {
        let mut inner = self.shared.lock();
        let most = self.shared.config.most_bytes;
        // More may be pinned than the bound allows; then all others are evicted, and no more.
        let spare = most.max(inner.pinned_bytes());
        for digest in inner.choose_evictions(0, spare).unwrap_or_default() {
            self.shared.disk.remove(digest)?;
            inner.packages.remove(&digest);
        }
        Ok(())
    }

    /// The cached packages, for the machine's report.
    #[must_use]
    pub fn cached_digests(&self) -> Vec<PackageDigest> {
        self.shared.lock().packages.keys().copied().collect()
    }

    /// Bytes on disk, those being fetched included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().used_bytes()
    }

    /// The cached packages and their sources. Their names in jobs are not known here.
    #[must_use]
    pub fn status(&self) -> MachinePackages {
        let inner = self.shared.lock();
        let now = Instant::now();
        let avoided = inner.avoided.iter().filter(|(_, until)| **until > now);
        let package_status = |(digest, cached): (&PackageDigest, &CachedPackage)| {
            Some(PackageOnMachine {
                digest: digest.token().ok()?,
                name: None,
                disk_bytes: cached.bytes,
                in_use: cached.pins > 0,
                is_damaged: cached.damaged,
                from: cached.arrival.as_ref().map(|how| how.from.clone()).unwrap_or_default(),
                fetched_in: cached.arrival.as_ref().map(|how| millis(how.took)),
            })
        };
        MachinePackages {
            packages: inner.packages.iter().filter_map(package_status).collect(),
            taken_bytes: inner.used_bytes(),
            most_bytes: self.shared.config.most_bytes,
            from_masters: inner.fetched.masters,
            from_machines: inner.fetched.machines,
            to_machines: self.shared.bytes_served.load(Ordering::Relaxed),
            avoided: avoided.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The package, from the cache if it is there, else from one of `sources`.
    ///
    /// # Errors
    /// When there is no space, or no source serves all of it.
    pub async fn obtain(
        &self,
        package: &PackageRef,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Pinned, ObtainError> {
        let Some(digest) = PackageDigest::parse(package.digest.as_str()) else {
            let (name, digest) = (package.name.to_string(), package.digest.to_string());
            return Err(ObtainError::BadDigest { name, digest });
        };
        let mut outcome_rx = match self.start_or_join(package, digest, sources)? {
            Acquired::Cached(pinned) => return Ok(pinned),
            Acquired::InFlight(done) => done,
        };
        match outcome_rx.wait_for(Option::is_some).await {
            Ok(outcome) => match &*outcome {
                Some(result) => result.clone(),
                None => Err(self.cut_short(package)),
            },
            Err(_) => Err(self.cut_short(package)),
        }
    }

    fn cut_short(&self, package: &PackageRef) -> ObtainError {
        let why = Arc::new(FetchError::CutShort);
        ObtainError::Fetch { name: package.name.to_string(), why }
    }

    /// Bytes of a cached package, or of a partial one as far as it has arrived.
    ///
    /// # Errors
    /// When the bytes are not here.
    pub async fn read(
        &self,
        digest: PackageDigest,
        from: u64,
        length: u32,
    ) -> Result<Bytes, SourceError> {
        let in_flight = {
            let mut inner = self.shared.lock();
            match inner.packages.get(&digest) {
                Some(cached) if !cached.damaged => {
                    inner.touch(digest);
                    None
                }
                Some(_) => return Err(SourceError::Lacks),
                None => match inner.in_flight.get(&digest) {
                    Some(flight) => Some(Arc::clone(&flight.partial)),
                    None => return Err(SourceError::Lacks),
                },
            }
        };
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || match in_flight {
            Some(partial) => partial.read(from, length),
            None => match shared.disk.read(digest, from, length) {
                Err(SourceError::Wrong) => {
                    tracing::error!(package = %digest, "package damaged on disk; no longer given");
                    if let Some(cached) = shared.lock().packages.get_mut(&digest) {
                        cached.damaged = true;
                    }
                    Err(SourceError::Lacks)
                }
                read => read,
            },
        });
        let read = read.await.unwrap_or(Err(SourceError::Lacks));
        if let Ok(bytes) = &read {
            self.shared.bytes_served.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        read
    }

    /// The package, if it is cached.
    #[must_use]
    pub fn pin_if_cached(&self, digest: PackageDigest) -> Option<Pinned> {
        self.pin(&mut self.shared.lock(), digest)
    }

    fn pin(&self, inner: &mut CacheState, digest: PackageDigest) -> Option<Pinned> {
        let cached = inner.packages.get_mut(&digest)?;
        cached.pins += 1;
        inner.touch(digest);
        let folder = self.shared.disk.folder(digest);
        let shared = Arc::clone(&self.shared);
        Some(Pinned { guard: Arc::new(PinGuard { digest, folder, shared }) })
    }

    fn start_or_join(
        &self,
        package: &PackageRef,
        digest: PackageDigest,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Acquired, ObtainError> {
        let mut inner = self.shared.lock();
        if let Some(pinned) = self.pin(&mut inner, digest) {
            return Ok(Acquired::Cached(pinned));
        }
        if let Some(flight) = inner.in_flight.get(&digest) {
            return Ok(Acquired::InFlight(flight.outcome_rx.clone()));
        }
        // File and folder; nothing is compressed, so the folder is no larger than the file, apart
        // from blocks of small files.
        let reserved = package.bytes.saturating_mul(2);
        self.make_room(&mut inner, reserved).map_err(|(pinned, why)| match why {
            None => ObtainError::NoRoom {
                name: package.name.to_string(),
                needed: reserved,
                most: self.shared.config.most_bytes,
                pinned,
            },
            Some(why) => fetch_error(package, FetchError::Package(why)),
        })?;
        let partial = Partial::create(self.shared.disk.incoming(digest), package.bytes);
        let partial =
            Arc::new(partial.map_err(|why| fetch_error(package, FetchError::Package(why)))?);
        let (outcome_tx, outcome_rx) = watch::channel(None);
        let sources = self.without_shunned(&mut inner, sources);
        let flight = InFlightFetch {
            outcome_rx: outcome_rx.clone(),
            partial: Arc::clone(&partial),
            reserved,
        };
        inner.in_flight.insert(digest, flight);
        drop(inner);
        let (cache, package) = (self.clone(), package.clone());
        // In a task of its own: the first caller may be cancelled while others still wait.
        spawn_request("the fetch of a package", async move {
            let fetched_package =
                catch_panic_async(cache.fetch_and_install(&package, digest, &partial, sources))
                    .await;
            let outcome = fetched_package.unwrap_or_else(|panicked| {
                tracing::error!(package = %digest, "a package was not fetched: {panicked}");
                // The next caller starts over.
                cache.shared.lock().in_flight.remove(&digest);
                partial.discard();
                Err(fetch_error(&package, FetchError::CutShort))
            });
            outcome_tx.send_replace(Some(outcome));
        });
        Ok(Acquired::InFlight(outcome_rx))
    }

    /// # Errors
    /// With the bytes in use when nothing more can be evicted.
    fn make_room(
        &self,
        inner: &mut CacheState,
        needed: u64,
    ) -> Result<(), (u64, Option<PackageError>)> {
        let Some(evicted) = inner.choose_evictions(needed, self.shared.config.most_bytes) else {
            return Err((inner.pinned_bytes(), None));
        };
        for digest in evicted {
            let trash = self.shared.disk.move_to_trash(digest).map_err(|why| (0, Some(why)))?;
            // Now and not before: a package that could not be moved to the trash is still there and
            // counts.
            inner.packages.remove(&digest);
            tokio::task::spawn_blocking(move || {
                if let Err(why) = std::fs::remove_dir_all(&trash) {
                    tracing::warn!(path = %trash.display(), %why, "old package not removed");
                }
            });
        }
        Ok(())
    }

    fn without_shunned(
        &self,
        inner: &mut CacheState,
        sources: Vec<Arc<dyn Source>>,
    ) -> Vec<Arc<dyn Source>> {
        let now = Instant::now();
        inner.avoided.retain(|_, until| *until > now);
        sources.into_iter().filter(|s| !inner.avoided.contains_key(s.name())).collect()
    }

    async fn fetch_and_install(
        &self,
        package: &PackageRef,
        digest: PackageDigest,
        partial: &Arc<Partial>,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Pinned, ObtainError> {
        let config = self.shared.config;
        let mut fetch = Fetch::new(digest, package.bytes, config, sources, Arc::clone(partial));
        let paths = self.shared.disk.paths(digest);
        let started = Instant::now();
        let fetch_result = fetch.run(paths).await;
        let arrival = Arrival { from: fetch.contributions(), took: started.elapsed() };
        let corrupt = fetch.corrupt_sources();
        let shared = Arc::clone(&self.shared);
        let measured = tokio::task::spawn_blocking(move || shared.disk.disk_usage(digest)).await;
        let mut inner = self.shared.lock();
        let until = Instant::now() + config.shun_duration;
        for name in corrupt {
            tracing::warn!(source = %name, package = %digest, "source gave wrong bytes; shunned");
            inner.avoided.insert(name, until);
        }
        inner.in_flight.remove(&digest);
        inner.fetched.add(Totals::of(&arrival.from));
        partial.discard();
        fetch_result.map_err(|why| fetch_error(package, why))?;
        let measured = measured.map_err(|_| fetch_error(package, FetchError::CutShort))?;
        let bytes = measured.map_err(|why| fetch_error(package, FetchError::Package(why)))?;
        // Small files take more than their bytes.
        if let Err((pinned, _)) = self.make_room(&mut inner, bytes) {
            let removed = self.shared.disk.remove(digest);
            removed.map_err(|why| fetch_error(package, FetchError::Package(why)))?;
            let (name, most) = (package.name.to_string(), config.most_bytes);
            return Err(ObtainError::NoRoom { name, needed: bytes, most, pinned });
        }
        log_arrival(package, &arrival);
        let arrival = Some(arrival);
        inner
            .packages
            .insert(digest, CachedPackage { bytes, pins: 0, last_use: 0, damaged: false, arrival });
        let pinned = self.pin(&mut inner, digest);
        pinned.ok_or_else(|| fetch_error(package, FetchError::CutShort))
    }
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

fn log_arrival(package: &PackageRef, arrival: &Arrival) {
    let Totals { masters, machines } = Totals::of(&arrival.from);
    tracing::info!(
        package = %package.name,
        digest = %package.digest,
        from_masters = masters,
        from_machines = machines,
        millis = millis(arrival.took),
        "package arrived"
    );
}

enum Acquired {
    Cached(Pinned),
    InFlight(watch::Receiver<FetchOutcome>),
}

fn fetch_error(package: &PackageRef, why: FetchError) -> ObtainError {
    ObtainError::Fetch { name: package.name.to_string(), why: Arc::new(why) }
}

#[cfg(test)]
mod tests;
