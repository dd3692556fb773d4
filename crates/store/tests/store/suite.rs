//! Openraft's own storage tests, on real files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cellwright_store::testing::{Applied, Log, open_storage};
use cellwright_store::{NodeId, RealDisk, Settings, TypeConfig};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

use crate::support::Adder;

/// A directory that goes away with the value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-store-{}-{nth}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _nothing_there = std::fs::remove_dir_all(&self.0);
    }
}

struct OnFiles {
    id: NodeId,
    /// Kept until the suite is through: the last test's writer may still be at work.
    folders: Mutex<Vec<Folder>>,
}

impl StoreBuilder<TypeConfig, Log, Applied> for OnFiles {
    async fn build(&self) -> Result<((), Log, Applied), StorageError<NodeId>> {
        let folder = Folder::new();
        let disk = Arc::new(RealDisk::open(&folder.0).unwrap());
        let machine = Box::new(Adder::default());
        let settings = Settings::default();
        let storage = open_storage(self.id, &settings, disk, machine).await.unwrap();
        storage.applied.assume_everything_covered();
        self.folders.lock().unwrap().push(folder);
        Ok(((), storage.log, storage.applied))
    }
}

fn run_as(id: NodeId) {
    Suite::test_all(OnFiles { id, folders: Mutex::default() }).unwrap();
}

#[test]
fn as_a_follower() {
    run_as(5);
}

/// The suite's entries are made by replica 0; for it they are a leader's own.
#[test]
fn as_the_leader() {
    run_as(0);
}
