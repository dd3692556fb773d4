//! The packages of this machine's tasks: fetched before a task starts, kept while it runs, and told
//! to the masters, who place tasks where their packages are.

use cellwright_api::client::Client;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::client::parts::{HoldersRequest, PackageHolder};
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::spec::PackageRef;
use cellwright_package::cache::{ObtainError, Settings, Source};
use cellwright_package::http::{AgentSource, HttpSource};
use cellwright_package::{Cache, PackageDigest, PackageError, Pinned};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What one request may take.
const REQUEST: Duration = Duration::from_secs(20);

/// A task's packages, unpacked. They stay on the machine as long as this does.
#[derive(Clone, Debug, Default)]
pub struct Unpacked(Vec<(String, Pinned)>);

impl Unpacked {
    /// Names and folders.
    #[must_use]
    pub fn folders(&self) -> Vec<(String, PathBuf)> {
        self.0.iter().map(|(name, pin)| (name.clone(), pin.folder().to_owned())).collect()
    }
}

/// Where packages come from.
struct Origin {
    client: Client,
    masters: Vec<Arc<dyn Source>>,
    dialler: AgentDialler,
    /// This machine.
    own: Name,
}

impl Origin {
    /// Other machines that have it or fetch it too, and the masters for what they lack.
    async fn sources(&self, package: &PackageRef, task: TaskId) -> Vec<Arc<dyn Source>> {
        let request = HoldersRequest {
            machine: self.own.clone(),
            digest: package.digest.clone(),
            task: Some(task),
        };
        // Without an answer there are the masters' own copies, if one of them answers that.
        let holders = self.client.holders(&request).await.unwrap_or_default();
        let source = |holder: PackageHolder| -> Arc<dyn Source> {
            let PackageHolder { machine, address } = holder;
            Arc::new(AgentSource::new(self.dialler.clone(), machine, address, REQUEST))
        };
        holders.into_iter().map(source).chain(self.masters.iter().cloned()).collect()
    }
}

pub struct Packages {
    cache: Cache,
    /// Known once the agent has a line to its masters.
    origin: OnceLock<Origin>,
    /// What the digests here are called in the jobs that asked for them.
    called: Mutex<BTreeMap<PackageDigest, PackageRef>>,
}

impl Packages {
    /// # Errors
    /// When the folder cannot be used.
    pub fn open(folder: &Path, most_bytes: u64, machine: &str) -> Result<Packages, PackageError> {
        let salt = xxh3_64(machine.as_bytes());
        let cache = Cache::open(folder, Settings { salt, ..Settings::new(most_bytes) })?;
        Ok(Packages { cache, origin: OnceLock::new(), called: Mutex::default() })
    }

    /// The packages themselves, for whoever gives them to other machines.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Where packages come from.
    pub fn reach(&self, client: &Client, masters: &[String], dialler: AgentDialler, own: Name) {
        let source = |address: &String| -> Arc<dyn Source> {
            Arc::new(HttpSource::master(client.clone(), address.clone(), REQUEST))
        };
        let (client, masters) = (client.clone(), masters.iter().map(source).collect());
        // Once for every agent: the first call is the one that counts.
        let _ = self.origin.set(Origin { client, masters, dialler, own });
    }

    /// All of them, fetched where they are not here yet.
    ///
    /// # Errors
    /// When one cannot be had.
    pub async fn obtain(
        &self,
        wanted: &[PackageRef],
        task: TaskId,
    ) -> Result<Unpacked, ObtainError> {
        let mut unpacked = Vec::new();
        for package in wanted {
            let digest = PackageDigest::parse(package.digest.as_str());
            let here = digest.and_then(|digest| self.cache.held_pin(digest));
            let sources = match self.origin.get().filter(|_| here.is_none()) {
                Some(origin) => origin.sources(package, task).await,
                None => Vec::new(),
            };
            let pinned = self.cache.obtain(package, sources).await?;
            self.call(package, pinned.digest());
            unpacked.push((package.name.to_string(), pinned));
        }
        Ok(Unpacked(unpacked))
    }

    /// Those of a task that an earlier agent started: they are here, or the task is none the wiser.
    #[must_use]
    pub fn keep(&self, wanted: &[PackageRef]) -> Unpacked {
        let pin = |package: &PackageRef| {
            let digest = PackageDigest::parse(package.digest.as_str())?;
            self.call(package, digest);
            Some((package.name.to_string(), self.cache.held_pin(digest)?))
        };
        Unpacked(wanted.iter().filter_map(pin).collect())
    }

    /// Brings the cache down to its bound, once all who outlived an earlier agent have said what
    /// they run from.
    pub fn trim(&self) {
        if let Err(error) = self.cache.trim() {
            tracing::warn!(%error, "packages that nobody uses stay");
        }
    }

    fn call(&self, package: &PackageRef, digest: PackageDigest) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        called.insert(digest, package.clone());
    }

    /// What is here, as jobs call it. What no job has asked this agent for is not told.
    #[must_use]
    pub fn report(&self) -> BTreeSet<PackageRef> {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        self.cache.held().iter().filter_map(|digest| called.get(digest).cloned()).collect()
    }
}
