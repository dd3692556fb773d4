//! Test helpers of this crate and of those that depend on it.

use cellwright_store::{Disk, RealDisk};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A temporary folder that is removed with the test.
pub struct TempFolder(pub PathBuf);

impl Default for TempFolder {
    fn default() -> TempFolder {
        TempFolder::new()
    }
}

impl TempFolder {
    #[must_use]
    pub fn new() -> TempFolder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-records-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    #[must_use]
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(&self.0).unwrap())
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
