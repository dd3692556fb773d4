//! A directory of the machine's file system as a [`Disk`].
//!
//! The directory is locked for as long as the disk is open: two processes on one log would each cut
//! the other's records as a torn tail. Handles for appending stay open, because opening a file for
//! every flush costs more than writing to it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock, statvfs};

use crate::disk::{Disk, DiskFuture};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const TEMP_SUFFIX: &str = ".unfinished";
/// The log appends to one file at a time, event segments to another; a few more do no harm.
const MAX_OPEN_HANDLES: usize = 8;

pub struct RealDisk {
    root: PathBuf,
    append_handles: Mutex<BTreeMap<String, Arc<File>>>,
    /// Held for its lock, which the kernel releases with the last handle, also after kill -9.
    _lock: File,
}

impl RealDisk {
    /// The file in the directory that carries the lock.
    pub const LOCK: &'static str = "LOCK";

    /// Creates the directory if need be and takes its lock.
    pub fn open(dir: &Path) -> io::Result<RealDisk> {
        let with_context = |context: &str, e: io::Error| {
            io::Error::new(e.kind(), format!("{context} {}: {e}", dir.display()))
        };
        make_folder(dir).map_err(|e| with_context("cannot create the data directory", e))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(dir.join(RealDisk::LOCK))
            .map_err(|e| with_context("cannot open the lock file in", e))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| {
            if e == rustix::io::Errno::WOULDBLOCK {
                let text = format!(
                    "the data directory {} is in use by another process; stop it or choose \
                     another directory",
                    dir.display()
                );
                return io::Error::new(io::ErrorKind::WouldBlock, text);
            }
            with_context("cannot lock", e.into())
        })?;
        sync_folder(dir)?;
        Ok(RealDisk { root: dir.to_path_buf(), append_handles: Mutex::default(), _lock: lock })
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if name.split('/').count() > 2 || !name.split('/').all(is_plain) {
            let text = format!("path {name:?}: must be `name` or `folder/name`");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(self.root.join(name))
    }

    fn append_handle(&self, name: &str) -> io::Result<Arc<File>> {
        let mut open = self.append_handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = self.path(name)?;
        let existed = path.exists();
        if let Some(parent) = path.parent() {
            make_folder(parent)?;
        }
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(FILE_MODE).open(&path)?;
        let file = Arc::new(file);
        if let Some(parent) = path.parent().filter(|_| !existed) {
            sync_folder(parent)?;
        }
        // Names increase with time, so the first is the one least likely to be written again.
        if open.len() >= MAX_OPEN_HANDLES {
            open.pop_first();
        }
        open.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn drop_handle(&self, name: &str) {
        self.append_handles.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// What the cell knows is in these files, so only their owner may read them, whatever the umask.
fn make_folder(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir)
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

impl Disk for RealDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(dir)?) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(TEMP_SUFFIX) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(path)?)
    }

    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        File::open(self.path(path)?)?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(path)?)?.len())
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.append_handle(path)?.as_ref().write_all(bytes)
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        self.append_handle(path)?.sync_data()
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(path)?)?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let target = self.path(path)?;
        let parent = target.parent().unwrap_or(&self.root).to_path_buf();
        if !parent.exists() {
            make_folder(&parent)?;
            sync_folder(&self.root)?;
        }
        let temp_path = self.path(&format!("{path}{TEMP_SUFFIX}"))?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let written = options.open(&temp_path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        if let Err(e) = written {
            // On a full disk the half-written file is what keeps it full. Should it stay, it is
            // ignored and overwritten; the first error is the one to report.
            let _left_behind = fs::remove_file(&temp_path);
            return Err(e);
        }
        fs::rename(&temp_path, &target)?;
        self.drop_handle(path);
        sync_folder(&parent)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.drop_handle(path);
        fs::remove_file(self.path(path)?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        match sync_folder(&self.path(dir)?) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stats = statvfs(&self.root)?;
        Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        let job = tokio::task::spawn_blocking(work);
        Box::pin(async move {
            // A panic in the work shows as a missing result at the caller. Cancelled means that the
            // runtime is shutting down together with the caller; that is no disk error.
            if job.await.is_err_and(|e| e.is_cancelled()) {
                std::future::pending::<()>().await;
            }
        })
    }
}
