//! Every file operation of the store, behind one trait.
//!
//! The simulator supplies a disk that loses what was not synced, stalls and fills up; the product
//! uses [`RealDisk`](crate::RealDisk). Calls block, because that is what files do;
//! [`Disk::run_blocking`] says where the blocking happens. The alternative, an asynchronous file
//! interface, would hide which operations may be reordered against each other, and that is all this
//! crate is about.
//!
//! Paths are flat names inside the replica's directory, with one level of folders: `log/…`,
//! `snap/…`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

pub type DiskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

pub trait Disk: Send + Sync + 'static {
    /// Names of the files in a folder, without the folder; empty when there is no such folder.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// Exactly `len` bytes, or an error of kind `UnexpectedEof`.
    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// The length of a file.
    fn size(&self, path: &str) -> io::Result<u64>;
    /// Writes at the end, creating the file; may be lost until [`Disk::sync`] returned.
    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, path: &str) -> io::Result<()>;
    fn truncate(&self, path: &str, len: u64) -> io::Result<()>;
    /// Creates or replaces a file in one step that is durable when the call returns: after a crash
    /// there is the old file or the new one, whole.
    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    fn free_bytes(&self) -> io::Result<u64>;
    /// Runs blocking work: on a blocking thread, or inline after a virtual delay.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture;
}

/// Removes everything a replica had on this disk.
///
/// This is the way back after [`OpenError::Damaged`](crate::OpenError::Damaged): remove
/// the old replica from the members, wipe, join again as a learner **under a new id**. Under its
/// old id a replica without its votes could vote twice in one term.
pub fn wipe(disk: &dyn Disk) -> io::Result<()> {
    for dir in [crate::snapshot::DIR, crate::record::DIR] {
        let mut names = disk.list(dir)?;
        names.sort();
        // The newest are removed first: what remains of an interrupted wipe reads as damaged, never
        // as a shorter but valid history.
        for name in names.iter().rev() {
            disk.remove(&format!("{dir}/{name}"))?;
        }
        disk.sync_dir(dir)?;
    }
    Ok(())
}

/// A disk that can be taken away. Openraft's tasks outlive a shutdown by a moment and hold on to
/// the log. Taking the disk away from them releases its lock at a known point, and is also how a
/// test cuts the power.
#[derive(Clone)]
pub(crate) struct DiskHandle(Arc<watch::Sender<Option<Arc<dyn Disk>>>>);

impl DiskHandle {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> DiskHandle {
        DiskHandle(Arc::new(watch::Sender::new(Some(disk))))
    }

    pub(crate) fn get(&self) -> io::Result<Arc<dyn Disk>> {
        self.0.borrow().clone().ok_or_else(closed_error)
    }

    pub(crate) fn close(&self) {
        self.0.send_replace(None);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.borrow().is_none()
    }

    /// Ends when the disk is taken away.
    pub(crate) async fn wait_closed(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let mut disk = self.0.subscribe();
        let _never = disk.wait_for(Option::is_none).await;
    }

    /// Runs `work` where the disk wants blocking work to run.
    pub(crate) async fn run<T, F>(&self, work: F) -> io::Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Disk) -> T + Send + 'static,
    {
        let disk = self.get()?;
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        let worker = Arc::clone(&disk);
        let job = disk.run_blocking(Box::new(move || {
            let value = work(worker.as_ref());
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }));
        drop(disk);
        job.await;
        let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| io::Error::other("the disk dropped or failed the work it was given"))
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the replica was shut down and let go of its disk")
}
