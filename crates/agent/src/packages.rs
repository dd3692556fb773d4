//! The packages of this machine's tasks: fetched before a task starts, pinned while it runs, and
//! reported to the masters, which place tasks where their packages are.

use cellwright_api::client::Client;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::types::MachinePackages;
use cellwright_cell::id::TaskId;
use cellwright_cell::machine::MAX_PACKAGES;
use cellwright_cell::name::Name;
use cellwright_cell::spec::PackageRef;
use cellwright_messages::{HoldersRequest, PackageHolder};
use cellwright_package::cache::{CacheConfig, ObtainError, Source};
use cellwright_package::http::{AgentSource, HttpSource};
use cellwright_package::{Cache, PackageDigest, PackageError, Pinned};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use xxhash_rust::xxh3::xxh3_64;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a package that no source has is requested again and again before the start has failed:
/// it may be on its way to the masters, or they may be away. A failed start counts against both the
/// task and the machine, and neither is at fault.
const OBTAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Backoff before the second request, and the longest before a later one.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(4);

/// A task's packages, unpacked. They stay on the machine as long as this value lives.
#[derive(Clone, Debug, Default)]
pub struct PinnedPackages(Vec<(String, Pinned)>);

impl PinnedPackages {
    /// Names and folders.
    #[must_use]
    pub fn folders(&self) -> Vec<(String, PathBuf)> {
        self.0.iter().map(|(name, pin)| (name.clone(), pin.folder().to_owned())).collect()
    }
}

/// Where packages come from.
struct Origin {
    client: Client,
    dialler: AgentDialler,
    /// This machine.
    own: Name,
}

impl Origin {
    /// Other machines that have the package or fetch it too, and the masters for the missing
    /// chunks.
    async fn sources(&self, package: &PackageRef, task: TaskId) -> Vec<Arc<dyn Source>> {
        let request = HoldersRequest {
            machine: self.own.clone(),
            digest: package.digest.clone(),
            task: Some(task),
        };
        // Without an answer there are the masters' own copies, if one of them can be reached.
        let holders = self.client.holders(&request).await.unwrap_or_default();
        let source = |holder: PackageHolder| -> Arc<dyn Source> {
            let PackageHolder { machine, address } = holder;
            Arc::new(AgentSource::new(self.dialler.clone(), machine, address, REQUEST_TIMEOUT))
        };
        let master = |address: String| -> Arc<dyn Source> {
            Arc::new(HttpSource::master(self.client.clone(), address, REQUEST_TIMEOUT))
        };
        let masters = self.client.masters().into_iter().map(master);
        holders.into_iter().map(source).chain(masters).collect()
    }
}

pub struct Packages {
    cache: Cache,
    /// Set once the agent is connected to its masters.
    origin: OnceLock<Origin>,
    /// The names that jobs gave to the digests here.
    names: Mutex<BTreeMap<PackageDigest, PackageRef>>,
}

impl Packages {
    /// # Errors
    /// When the folder cannot be used.
    pub fn open(folder: &Path, most_bytes: u64, machine: &str) -> Result<Packages, PackageError> {
        let salt = xxh3_64(machine.as_bytes());
        let cache = Cache::open(folder, CacheConfig { salt, ..CacheConfig::new(most_bytes) })?;
        Ok(Packages { cache, origin: OnceLock::new(), names: Mutex::default() })
    }

    /// The packages themselves, for serving them to other machines.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Sets where packages come from.
    pub fn connect(&self, client: &Client, dialler: AgentDialler, own: Name) {
        // Only the first call in the life of an agent counts.
        let _ = self.origin.set(Origin { client: client.clone(), dialler, own });
    }

    /// All of them, fetched where they are not cached.
    ///
    /// # Errors
    /// When one cannot be fetched, or no source has it within a minute.
    pub async fn obtain(
        &self,
        packages: &[PackageRef],
        task: TaskId,
    ) -> Result<PinnedPackages, ObtainError> {
        let mut unpacked = Vec::new();
        for package in packages {
            let pinned = self.obtain_with_retry(package, task).await?;
            self.note_name(package, pinned.digest());
            unpacked.push((package.name.to_string(), pinned));
        }
        Ok(PinnedPackages(unpacked))
    }

    /// One of them, if a source has it soon.
    async fn obtain_with_retry(
        &self,
        package: &PackageRef,
        task: TaskId,
    ) -> Result<Pinned, ObtainError> {
        let until = Instant::now() + OBTAIN_TIMEOUT;
        let mut pause = BACKOFF_MIN;
        let mut before = None;
        loop {
            let error = match self.obtain_once(package, task).await {
                Ok(pinned) => return Ok(pinned),
                Err(error) => more_informative(before, error),
            };
            if !error.is_retryable() || Instant::now() + pause > until {
                return Err(error);
            }
            if pause == BACKOFF_MIN {
                tracing::warn!(%error, "asked for again for a minute");
            }
            before = Some(error);
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    async fn obtain_once(&self, package: &PackageRef, task: TaskId) -> Result<Pinned, ObtainError> {
        let digest = PackageDigest::parse(package.digest.as_str());
        let here = digest.and_then(|digest| self.cache.pin_if_cached(digest));
        let sources = match self.origin.get().filter(|_| here.is_none()) {
            Some(origin) => origin.sources(package, task).await,
            None => Vec::new(),
        };
        self.cache.obtain(package, sources).await
    }

    /// Pins those of a task that an earlier agent started: they are cached, or the task did not
    /// need them.
    #[must_use]
    pub fn pin_cached(&self, packages: &[PackageRef]) -> PinnedPackages {
        let pin = |package: &PackageRef| {
            let digest = PackageDigest::parse(package.digest.as_str())?;
            self.note_name(package, digest);
            Some((package.name.to_string(), self.cache.pin_if_cached(digest)?))
        };
        PinnedPackages(packages.iter().filter_map(pin).collect())
    }

    /// Evicts packages down to the size limit, once all attempts that outlived an earlier agent
    /// have pinned theirs.
    pub fn trim(&self) {
        if let Err(error) = self.cache.trim() {
            tracing::warn!(%error, "packages that nobody uses stay");
        }
    }

    fn note_name(&self, package: &PackageRef, digest: PackageDigest) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(digest, package.clone());
    }

    /// The cached packages, their sources, and their names in jobs.
    #[must_use]
    pub fn status(&self) -> MachinePackages {
        let mut status = self.cache.status();
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for package in &mut status.packages {
            let digest = PackageDigest::parse(package.digest.as_str());
            let by_jobs = digest.and_then(|digest| names.get(&digest));
            package.name = by_jobs.map(|by_jobs| by_jobs.name.clone());
        }
        status
    }

    /// The cached packages, by their names in jobs. A package that no job has asked this agent for
    /// is not reported.
    #[must_use]
    pub fn report(&self) -> BTreeSet<PackageRef> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = self.cache.cached_digests();
        let refs = cached.iter().filter_map(|digest| names.get(digest).cloned());
        // The masters take no more; a package that is not reported is only not preferred.
        refs.take(MAX_PACKAGES).collect()
    }
}

/// A machine that served corrupt bytes is shunned for a while: that no source is left is not the
/// reason why there is no package.
fn more_informative(before: Option<ObtainError>, now: ObtainError) -> ObtainError {
    before.filter(|_| now.is_no_source()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::name::Token;
    use cellwright_package::cache::FetchError;

    #[test]
    fn that_nobody_is_left_to_ask_does_not_hide_what_those_asked_said() {
        let error = |why| ObtainError::Fetch { name: "server".into(), why: Arc::new(why) };
        let failed = |why: &str| error(FetchError::AllFailed(why.into()));
        let check = |before, now, expected: &str| {
            let message = more_informative(before, now).to_string();
            assert!(message.contains(expected), "{message}");
        };
        check(None, error(FetchError::NoSource), "no source is known");
        check(Some(failed("n1: away")), error(FetchError::NoSource), "n1: away");
        check(Some(failed("n1: away")), failed("n2: away"), "n2: away");
        check(Some(failed("n1: away")), error(FetchError::Unusable("broken".into())), "broken");
    }

    /// Whether a task waits for such a package before its start has failed.
    async fn waits_for_package(digest: &str, bytes: u64) -> bool {
        let scratch = Scratch::new();
        let packages = Packages::open(&scratch.path("packages"), 1 << 20, "m").unwrap();
        let (name, digest) = (Token::new("server").unwrap(), Token::new(digest).unwrap());
        let started = Instant::now();
        let wanted = [PackageRef { name, digest, bytes }];
        packages.obtain(&wanted, TaskId(0)).await.unwrap_err();
        started.elapsed() + BACKOFF_MAX >= OBTAIN_TIMEOUT
    }

    #[tokio::test(start_paused = true)]
    async fn a_package_that_nobody_gives_is_waited_for_and_one_that_cannot_be_is_not() {
        assert!(waits_for_package(&"ab".repeat(32), 1000).await);
        assert!(!waits_for_package("ab", 1000).await, "no digest");
        assert!(!waits_for_package(&"ab".repeat(32), 1 << 30).await, "more than there is room for");
    }
}
