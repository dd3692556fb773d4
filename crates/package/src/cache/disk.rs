//! The cache's folder: `files/DIGEST`, `folders/DIGEST`, and `incoming` for incomplete packages.
//!
//! Only the agent writes here, and no other account can list it. A process that knows the digest of
//! a package can read its folder, as tasks do that run from it.
//!
//! A file under `files` marks its package as complete: it is added last and removed first. A file
//! that is used is touched, so that the order of use outlives a restart.

use super::source::SourceError;
use crate::digest::PackageDigest;
use crate::error::{PackageError, at};
use crate::head::{Head, Parsed};
use bytes::Bytes;
use cellwright_identity::secret::sha256;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Heads kept in memory for checking what is served. One has 66 bytes for each megabyte.
const MAX_CACHED_HEADS: usize = 64;

pub(super) struct Disk {
    root: PathBuf,
    next_number: AtomicU64,
    heads: Mutex<BTreeMap<PackageDigest, Arc<Head>>>,
}

/// The paths of a package that is being fetched.
#[derive(Clone, Debug)]
pub(super) struct PackagePaths {
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
}

impl Disk {
    pub(super) fn open(root: &Path) -> Result<Disk, PackageError> {
        let incoming = root.join("incoming");
        if incoming.exists() {
            fs::remove_dir_all(&incoming).map_err(at(&incoming))?;
        }
        for (folder, mode) in
            [("", 0o711), ("incoming", 0o700), ("files", 0o700), ("folders", 0o711)]
        {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(at(&folder))?;
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&folder, mode).map_err(at(&folder))?;
        }
        Ok(Disk { root: root.to_owned(), next_number: AtomicU64::new(0), heads: Mutex::default() })
    }

    /// The complete packages, least recently used first, with their size. Incomplete ones are
    /// removed.
    pub(super) fn scan(&self) -> Result<Vec<(PackageDigest, u64)>, PackageError> {
        let mut found = Vec::new();
        for (name, path) in entries(&self.root.join("folders"))? {
            let parsed = PackageDigest::parse(&name);
            if parsed.is_none_or(|digest| !self.paths(digest).file.exists()) {
                fs::remove_dir_all(&path).map_err(at(&path))?;
            }
        }
        for (name, path) in entries(&self.root.join("files"))? {
            let parsed = PackageDigest::parse(&name).filter(|d| self.paths(*d).folder.is_dir());
            match parsed {
                Some(digest) => {
                    let metadata = fs::metadata(&path).map_err(at(&path))?;
                    found.push(((metadata.mtime(), metadata.mtime_nsec()), digest));
                }
                None => fs::remove_file(&path).map_err(at(&path))?,
            }
        }
        found.sort();
        found.into_iter().map(|(_, digest)| Ok((digest, self.disk_usage(digest)?))).collect()
    }

    pub(super) fn paths(&self, digest: PackageDigest) -> PackagePaths {
        let name = digest.to_string();
        PackagePaths { file: self.root.join("files").join(&name), folder: self.folder(digest) }
    }

    pub(super) fn folder(&self, digest: PackageDigest) -> PathBuf {
        self.root.join("folders").join(digest.to_string())
    }

    /// An unused name.
    pub(super) fn incoming(&self, digest: PackageDigest) -> PathBuf {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.root.join("incoming").join(format!("{digest}.{number}"))
    }

    /// The size of the package on disk, file and folder.
    pub(super) fn disk_usage(&self, digest: PackageDigest) -> Result<u64, PackageError> {
        let PackagePaths { file, folder } = self.paths(digest);
        let mut bytes = allocated_bytes(&file)?;
        let mut open = vec![folder];
        while let Some(here) = open.pop() {
            bytes += allocated_bytes(&here)?;
            for (_, path) in entries(&here)? {
                if fs::symlink_metadata(&path).map_err(at(&path))?.is_dir() {
                    open.push(path)
                } else {
                    bytes += allocated_bytes(&path)?
                }
            }
        }
        Ok(bytes)
    }

    /// Hides the package. Returns the path that is left to be removed; a crash leaves it among the
    /// incoming, which are ignored.
    pub(super) fn move_to_trash(&self, digest: PackageDigest) -> Result<PathBuf, PackageError> {
        let PackagePaths { file, folder } = self.paths(digest);
        self.lock_heads().remove(&digest);
        ignore_missing(fs::remove_file(&file)).map_err(at(&file))?;
        let trash = self.incoming(digest);
        ignore_missing(fs::rename(&folder, &trash)).map_err(at(&folder))?;
        Ok(trash)
    }

    pub(super) fn remove(&self, digest: PackageDigest) -> Result<(), PackageError> {
        let trash = self.move_to_trash(digest)?;
        ignore_missing(fs::remove_dir_all(&trash)).map_err(at(&trash))
    }

    /// Records the use. A failure does no harm: the order after a restart is a little worse.
    pub(super) fn touch_mtime(&self, digest: PackageDigest) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let file = self.paths(digest).file;
        let _touched = utimensat(CWD, &file, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// Bytes of the file; a whole chunk is checked before it is served.
    pub(super) fn read(
        &self,
        digest: PackageDigest,
        from: u64,
        length: u32,
    ) -> Result<Bytes, SourceError> {
        let failed = |why: io::Error| SourceError::Failed(why.to_string());
        let file = File::open(self.paths(digest).file).map_err(|_| SourceError::Lacks)?;
        let total = file.metadata().map_err(failed)?.len();
        if from.saturating_add(u64::from(length)) > total {
            return Err(SourceError::Lacks);
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, from).map_err(failed)?;
        let head = self.head(digest, &file, total)?;
        if let Some(offset) = from.checked_sub(head.body_start) {
            let chunk = u32::try_from(offset / u64::from(head.chunk_bytes)).unwrap_or(u32::MAX);
            let expected = head.chunks.get(chunk as usize);
            let whole = chunk < head.count() && head.range_of(chunk) == (from, length);
            if whole && expected.is_some_and(|expected| sha256(&bytes) != *expected) {
                return Err(SourceError::Wrong);
            }
        }
        Ok(bytes.into())
    }

    fn head(
        &self,
        digest: PackageDigest,
        file: &File,
        total: u64,
    ) -> Result<Arc<Head>, SourceError> {
        if let Some(head) = self.lock_heads().get(&digest) {
            return Ok(Arc::clone(head));
        }
        let mut start = Vec::new();
        let head = loop {
            match Head::parse(&start, total).map_err(|_| SourceError::Wrong)? {
                Parsed::Head(head) => break Arc::new(head),
                Parsed::Needs(bytes) => {
                    start.resize(usize::try_from(bytes).unwrap_or(0), 0);
                    let read = file.read_exact_at(&mut start, 0);
                    read.map_err(|why| SourceError::Failed(why.to_string()))?;
                }
            }
        };
        let mut heads = self.lock_heads();
        if heads.len() >= MAX_CACHED_HEADS {
            heads.pop_first();
        }
        heads.insert(digest, Arc::clone(&head));
        Ok(head)
    }

    fn lock_heads(&self) -> std::sync::MutexGuard<'_, BTreeMap<PackageDigest, Arc<Head>>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks, not length: that is what fills a disk.
fn allocated_bytes(path: &Path) -> Result<u64, PackageError> {
    let metadata = fs::symlink_metadata(path).map_err(at(path))?;
    Ok(metadata.blocks() * 512)
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, PackageError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(found)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
