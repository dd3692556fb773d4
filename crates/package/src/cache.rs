//! The packages on a machine: bounded, shared, and as good after a crash as before.
//!
//! A package is here twice, as its file for other machines to fetch from and as a folder for tasks
//! to run from. Both come into being under other names and are moved to their own when they are
//! whole and synced, the file last; so the disk itself says what is here, and there is no index
//! that could disagree with it. What a crash cut short is removed at the next start.
//!
//! Who needs a package holds a [`Pinned`]; what nobody holds goes when room is needed, longest
//! unused first. Any number of tasks that want one package wait for one fetch.

mod disk;
mod fetch;
mod partial;
mod source;
mod tally;

pub use fetch::FetchError;
pub use source::{Source, SourceError};

use crate::digest::PackageDigest;
use crate::error::PackageError;
use crate::unpack::Limits;
use bytes::Bytes;
use cellwright_api::types::{MachinePackages, PackageOnMachine};
use cellwright_cell::spec::PackageRef;
use cellwright_supervise::{guarded, of_request};
use disk::Disk;
use fetch::Fetch;
use partial::Partial;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally::{Arrival, Totals};
use tokio::sync::watch;

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of files and folders together.
    pub most_bytes: u64,
    pub limits: Limits,
    /// Requests that one source is asked at a time.
    pub per_source: usize,
    /// What one request may take.
    pub request_timeout: Duration,
    /// How long a source that gave wrong bytes is not asked again.
    pub shun: Duration,
    /// Different on every machine, so that machines that fetch the same package at the same time
    /// begin at different chunks and have something to give each other.
    pub salt: u64,
}

impl Settings {
    #[must_use]
    pub fn new(most_bytes: u64) -> Settings {
        Settings {
            most_bytes,
            limits: Limits::default(),
            per_source: 2,
            request_timeout: Duration::from_secs(20),
            shun: Duration::from_secs(600),
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
    /// Whether asking again later may help: nobody gave it, which says nothing of the package.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, ObtainError::Fetch { why, .. } if why.may_pass())
    }

    /// Whether there was nobody to ask, which says less than any other error.
    #[must_use]
    pub fn is_no_source(&self) -> bool {
        let ObtainError::Fetch { why, .. } = self else { return false };
        matches!(**why, FetchError::NoSource)
    }
}

/// One package that is here.
struct Held {
    /// What it takes on disk.
    bytes: u64,
    pins: usize,
    used: u64,
    /// Its file is not what it should be; it runs what runs and is given to nobody.
    damaged: bool,
    /// How it came; unknown of what was here at the start.
    arrival: Option<Arrival>,
}

type Outcome = Option<Result<Pinned, ObtainError>>;

/// A package on its way here.
struct Flight {
    done: watch::Receiver<Outcome>,
    partial: Arc<Partial>,
    reserved: u64,
}

#[derive(Default)]
struct Inner {
    held: BTreeMap<PackageDigest, Held>,
    flights: BTreeMap<PackageDigest, Flight>,
    /// Counts uses, for the order of the longest unused.
    uses: u64,
    shunned: BTreeMap<String, Instant>,
    fetched: Totals,
}

impl Inner {
    fn taken(&self) -> u64 {
        let held: u64 = self.held.values().map(|held| held.bytes).sum();
        held + self.flights.values().map(|flight| flight.reserved).sum::<u64>()
    }

    fn pinned_bytes(&self) -> u64 {
        let pinned = self.held.values().filter(|held| held.pins > 0);
        let flying = self.flights.values().map(|flight| flight.reserved);
        pinned.map(|held| held.bytes).chain(flying).sum()
    }

    fn touch(&mut self, digest: PackageDigest) {
        self.uses += 1;
        if let Some(held) = self.held.get_mut(&digest) {
            held.used = self.uses;
        }
    }

    /// What has to go for `needed` more bytes, longest unused first.
    fn to_evict(&self, needed: u64, most: u64) -> Option<Vec<PackageDigest>> {
        let mut over = (self.taken() + needed).saturating_sub(most);
        let mut idle: Vec<_> = self.held.iter().filter(|(_, held)| held.pins == 0).collect();
        idle.sort_by_key(|(_, held)| held.used);
        let mut out = Vec::new();
        for (digest, held) in idle {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(held.bytes);
            out.push(*digest);
        }
        (over == 0).then_some(out)
    }
}

struct Shared {
    disk: Disk,
    settings: Settings,
    inner: Mutex<Inner>,
    /// Bytes given to others.
    given: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cheap to clone; clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

/// A package in use. It stays here as long as one of these does.
#[derive(Clone)]
pub struct Pinned {
    hold: Arc<Hold>,
}

struct Hold {
    digest: PackageDigest,
    folder: PathBuf,
    shared: Arc<Shared>,
}

impl Pinned {
    #[must_use]
    pub fn digest(&self) -> PackageDigest {
        self.hold.digest
    }

    /// The unpacked package. Tasks must not be able to write here.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.hold.folder
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({})", self.hold.digest)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.touch(self.digest);
        if let Some(held) = inner.held.get_mut(&self.digest) {
            held.pins = held.pins.saturating_sub(1);
        }
        drop(inner);
        self.shared.disk.touch(self.digest);
    }
}

impl Cache {
    /// Finds what is on disk and removes what a crash left behind. What is beyond the bound stays
    /// until room is needed or [`Cache::trim`] is called: tasks that outlived the agent run from
    /// packages here, and only their adopters know which.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn open(folder: &Path, settings: Settings) -> Result<Cache, PackageError> {
        let disk = Disk::open(folder)?;
        let mut inner = Inner::default();
        for (digest, bytes) in disk.scan()? {
            inner.uses += 1;
            let used = inner.uses;
            let held = Held { bytes, pins: 0, used, damaged: false, arrival: None };
            inner.held.insert(digest, held);
        }
        let (inner, given) = (Mutex::new(inner), AtomicU64::new(0));
        Ok(Cache { shared: Arc::new(Shared { disk, settings, inner, given }) })
    }

    /// Removes what nobody holds down to the bound. For when those who hold something from before
    /// a restart have said so.
    ///
    /// # Errors
    /// When a package cannot be removed.
    pub fn trim(&self) -> Result<(), PackageError> {
        let mut inner = self.shared.lock();
        let most = self.shared.settings.most_bytes;
        // More may be held than the bound allows; then what is not held goes, and no more.
        let spare = most.max(inner.pinned_bytes());
        for digest in inner.to_evict(0, spare).unwrap_or_default() {
            self.shared.disk.remove(digest)?;
            inner.held.remove(&digest);
        }
        Ok(())
    }

    /// What is here, for the machine's report.
    #[must_use]
    pub fn held(&self) -> Vec<PackageDigest> {
        self.shared.lock().held.keys().copied().collect()
    }

    /// Bytes on disk, those on their way included.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.shared.lock().taken()
    }

    /// What is here and who gave it. What jobs call it is not known here.
    #[must_use]
    pub fn told(&self) -> MachinePackages {
        let inner = self.shared.lock();
        let now = Instant::now();
        let shunned = inner.shunned.iter().filter(|(_, until)| **until > now);
        let told = |(digest, held): (&PackageDigest, &Held)| {
            Some(PackageOnMachine {
                digest: digest.token().ok()?,
                name: None,
                disk_bytes: held.bytes,
                in_use: held.pins > 0,
                is_damaged: held.damaged,
                from: held.arrival.as_ref().map(|how| how.from.clone()).unwrap_or_default(),
                fetched_in: held.arrival.as_ref().map(|how| millis(how.took)),
            })
        };
        MachinePackages {
            packages: inner.held.iter().filter_map(told).collect(),
            taken_bytes: inner.taken(),
            most_bytes: self.shared.settings.most_bytes,
            from_masters: inner.fetched.masters,
            from_machines: inner.fetched.machines,
            given: self.shared.given.load(Ordering::Relaxed),
            shunned: shunned.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The package, from here if it is here, else from whoever of `sources` has it.
    ///
    /// # Errors
    /// When there is no room, or no source gives the whole of it.
    pub async fn obtain(
        &self,
        package: &PackageRef,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Pinned, ObtainError> {
        let Some(digest) = PackageDigest::parse(package.digest.as_str()) else {
            let (name, digest) = (package.name.to_string(), package.digest.to_string());
            return Err(ObtainError::BadDigest { name, digest });
        };
        let mut done = match self.begin(package, digest, sources)? {
            Begun::Here(pinned) => return Ok(pinned),
            Begun::Coming(done) => done,
        };
        match done.wait_for(Option::is_some).await {
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

    /// Bytes of a package that is here, or of as much of one as has arrived.
    ///
    /// # Errors
    /// When they are not here.
    pub async fn read(
        &self,
        digest: PackageDigest,
        from: u64,
        length: u32,
    ) -> Result<Bytes, SourceError> {
        let flying = {
            let mut inner = self.shared.lock();
            match inner.held.get(&digest) {
                Some(held) if !held.damaged => {
                    inner.touch(digest);
                    None
                }
                Some(_) => return Err(SourceError::Lacks),
                None => match inner.flights.get(&digest) {
                    Some(flight) => Some(Arc::clone(&flight.partial)),
                    None => return Err(SourceError::Lacks),
                },
            }
        };
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || match flying {
            Some(partial) => partial.read(from, length),
            None => match shared.disk.read(digest, from, length) {
                Err(SourceError::Wrong) => {
                    tracing::error!(package = %digest, "package damaged on disk; no longer given");
                    if let Some(held) = shared.lock().held.get_mut(&digest) {
                        held.damaged = true;
                    }
                    Err(SourceError::Lacks)
                }
                read => read,
            },
        });
        let read = read.await.unwrap_or(Err(SourceError::Lacks));
        if let Ok(bytes) = &read {
            self.shared.given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        read
    }

    /// The package, if it is here.
    #[must_use]
    pub fn held_pin(&self, digest: PackageDigest) -> Option<Pinned> {
        self.pin(&mut self.shared.lock(), digest)
    }

    fn pin(&self, inner: &mut Inner, digest: PackageDigest) -> Option<Pinned> {
        let held = inner.held.get_mut(&digest)?;
        held.pins += 1;
        inner.touch(digest);
        let folder = self.shared.disk.folder(digest);
        let shared = Arc::clone(&self.shared);
        Some(Pinned { hold: Arc::new(Hold { digest, folder, shared }) })
    }

    fn begin(
        &self,
        package: &PackageRef,
        digest: PackageDigest,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Begun, ObtainError> {
        let mut inner = self.shared.lock();
        if let Some(pinned) = self.pin(&mut inner, digest) {
            return Ok(Begun::Here(pinned));
        }
        if let Some(flight) = inner.flights.get(&digest) {
            return Ok(Begun::Coming(flight.done.clone()));
        }
        // File and folder; nothing is compressed, so the folder is no larger than the file, blocks
        // of small files apart.
        let reserved = package.bytes.saturating_mul(2);
        self.make_room(&mut inner, reserved).map_err(|(pinned, why)| match why {
            None => ObtainError::NoRoom {
                name: package.name.to_string(),
                needed: reserved,
                most: self.shared.settings.most_bytes,
                pinned,
            },
            Some(why) => failed(package, FetchError::Package(why)),
        })?;
        let partial = Partial::create(self.shared.disk.incoming(digest), package.bytes);
        let partial = Arc::new(partial.map_err(|why| failed(package, FetchError::Package(why)))?);
        let (tell, done) = watch::channel(None);
        let sources = self.not_shunned(&mut inner, sources);
        let flight = Flight { done: done.clone(), partial: Arc::clone(&partial), reserved };
        inner.flights.insert(digest, flight);
        drop(inner);
        let (cache, package) = (self.clone(), package.clone());
        // A task of its own: whoever asked first may give up while others still wait.
        of_request("the fetch of a package", async move {
            let bringing = guarded(cache.bring(&package, digest, &partial, sources)).await;
            let outcome = bringing.unwrap_or_else(|panicked| {
                tracing::error!(package = %digest, "a package was not fetched: {panicked}");
                // Whoever asks next begins anew.
                cache.shared.lock().flights.remove(&digest);
                partial.discard();
                Err(failed(&package, FetchError::CutShort))
            });
            tell.send_replace(Some(outcome));
        });
        Ok(Begun::Coming(done))
    }

    /// # Errors
    /// With what is in use when nothing more can go.
    fn make_room(&self, inner: &mut Inner, needed: u64) -> Result<(), (u64, Option<PackageError>)> {
        let Some(going) = inner.to_evict(needed, self.shared.settings.most_bytes) else {
            return Err((inner.pinned_bytes(), None));
        };
        for digest in going {
            let trash = self.shared.disk.hide(digest).map_err(|why| (0, Some(why)))?;
            // Now and not before: what could not be hidden is still there and counts.
            inner.held.remove(&digest);
            tokio::task::spawn_blocking(move || {
                if let Err(why) = std::fs::remove_dir_all(&trash) {
                    tracing::warn!(path = %trash.display(), %why, "old package not removed");
                }
            });
        }
        Ok(())
    }

    fn not_shunned(
        &self,
        inner: &mut Inner,
        sources: Vec<Arc<dyn Source>>,
    ) -> Vec<Arc<dyn Source>> {
        let now = Instant::now();
        inner.shunned.retain(|_, until| *until > now);
        sources.into_iter().filter(|s| !inner.shunned.contains_key(s.name())).collect()
    }

    async fn bring(
        &self,
        package: &PackageRef,
        digest: PackageDigest,
        partial: &Arc<Partial>,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Pinned, ObtainError> {
        let settings = self.shared.settings;
        let mut fetch = Fetch::new(digest, package.bytes, settings, sources, Arc::clone(partial));
        let place = self.shared.disk.place(digest);
        let begun = Instant::now();
        let fetched = fetch.run(place).await;
        let arrival = Arrival { from: fetch.shares(), took: begun.elapsed() };
        let liars = fetch.liars();
        let shared = Arc::clone(&self.shared);
        let measured = tokio::task::spawn_blocking(move || shared.disk.bytes_of(digest)).await;
        let mut inner = self.shared.lock();
        let until = Instant::now() + settings.shun;
        for name in liars {
            tracing::warn!(source = %name, package = %digest, "source gave wrong bytes; shunned");
            inner.shunned.insert(name, until);
        }
        inner.flights.remove(&digest);
        inner.fetched.add(Totals::of(&arrival.from));
        partial.discard();
        fetched.map_err(|why| failed(package, why))?;
        let measured = measured.map_err(|_| failed(package, FetchError::CutShort))?;
        let bytes = measured.map_err(|why| failed(package, FetchError::Package(why)))?;
        // Small files take more than their bytes.
        if let Err((pinned, _)) = self.make_room(&mut inner, bytes) {
            let removed = self.shared.disk.remove(digest);
            removed.map_err(|why| failed(package, FetchError::Package(why)))?;
            let (name, most) = (package.name.to_string(), settings.most_bytes);
            return Err(ObtainError::NoRoom { name, needed: bytes, most, pinned });
        }
        log_arrival(package, &arrival);
        let arrival = Some(arrival);
        inner.held.insert(digest, Held { bytes, pins: 0, used: 0, damaged: false, arrival });
        let pinned = self.pin(&mut inner, digest);
        pinned.ok_or_else(|| failed(package, FetchError::CutShort))
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

enum Begun {
    Here(Pinned),
    Coming(watch::Receiver<Outcome>),
}

fn failed(package: &PackageRef, why: FetchError) -> ObtainError {
    ObtainError::Fetch { name: package.name.to_string(), why: Arc::new(why) }
}

#[cfg(test)]
mod tests;
