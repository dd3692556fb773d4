//! Openraft's own storage tests, on real files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cellwright_store::testing::{Log, StateMachineAdapter, open_storage};
use cellwright_store::{NodeId, RealDisk, StoreConfig, TypeConfig};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

use crate::support::Adder;

/// A directory that is removed with the value.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    pub fn new() -> TempFolder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-store-{}-{nth}", std::process::id());
        TempFolder(std::env::temp_dir().join(name))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _nothing_there = std::fs::remove_dir_all(&self.0);
    }
}

struct FileStoreBuilder {
    id: NodeId,
    /// Kept until the suite has finished: the last test's writer may still be at work.
    folders: Mutex<Vec<TempFolder>>,
}

impl StoreBuilder<TypeConfig, Log, StateMachineAdapter> for FileStoreBuilder {
    async fn build(&self) -> Result<((), Log, StateMachineAdapter), StorageError<NodeId>> {
        let folder = TempFolder::new();
        let disk = Arc::new(RealDisk::open(&folder.0).unwrap());
        let machine = Box::new(Adder::default());
        let settings = StoreConfig::default();
        let storage = open_storage(self.id, &settings, disk, machine).await.unwrap();
        storage.applied.allow_any_purge();
        self.folders.lock().unwrap().push(folder);
        Ok(((), storage.log, storage.applied))
    }
}

fn run_as(id: NodeId) {
    Suite::test_all(FileStoreBuilder { id, folders: Mutex::default() }).unwrap();
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
