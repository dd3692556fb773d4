//! Unpacks a package to a folder, all of it or nothing.
//!
//! Whatever the archive contains, nothing outside that folder is touched: paths cannot lead out
//! ([`crate::path`]), the kernel confines our writes ([`crate::unpack_dir`]), and what is neither
//! file, folder nor link is rejected. Chunks are verified before a byte of them is used, and the
//! whole before the folder gets its name.

use crate::digest::{Hasher, PackageDigest};
use crate::error::{Limit, PackageError, at, at_errno};
use crate::head::{BLOCK, Head, Parsed};
use crate::kind::{self, FOLDER_MODE, Kind};
use crate::path::EntryPath;
use crate::tar_stream::{Member, kind_in_words, members, unreadable};
use crate::unpack_dir::UnpackDir;
use rustix::fs::CWD;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tar::EntryType;

/// The unpacked package is shared by every task that uses it: images have world-writable files, and
/// here the world is every other account of the machine.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The limits of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// The size on disk, with a block for every entry: half a million empty folders are a small
    /// archive and a full disk.
    pub disk: u64,
}

/// The minimum size of an entry, and the unit to which files are rounded up.
const BLOCK_ON_DISK: u64 = 4096;

impl Default for Limits {
    /// A large image has a hundred thousand entries and a few gigabytes.
    fn default() -> Limits {
        Limits { entries: 500_000, bytes: 32 << 30, disk: 40 << 30 }
    }
}

/// The result of unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    pub digest: PackageDigest,
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
}

/// Unpacks the file of `total` bytes from `reader` into the new folder `into`. With `expected` it
/// must have that digest.
///
/// # Errors
/// When the package is damaged, another one, hostile or too large; `into` does not exist then.
pub fn unpack(
    reader: impl Read,
    total: u64,
    into: &Path,
    limits: Limits,
    expected: Option<PackageDigest>,
) -> Result<Unpacked, PackageError> {
    if into.symlink_metadata().is_ok() {
        return Err(PackageError::Exists { path: into.to_owned() });
    }
    let scratch = ScratchFolder::beside(into);
    let dir = UnpackDir::create(&scratch.path)?;
    let mut verified_reader = VerifiedReader::open(reader, total)?;
    let mut unpacker = Unpacker::new(dir, limits);
    members(&mut verified_reader, limits.entries, |member, content| {
        unpacker.member(&member, content)
    })?;
    let digest = verified_reader.finish()?;
    if let Some(expected) = expected.filter(|expected| *expected != digest) {
        return Err(PackageError::OtherContent { expected, found: digest });
    }
    for (path, mode) in unpacker.modes.iter().rev() {
        unpacker.dir.set_mode(path, mode & !WRITABLE_BY_OTHERS)?;
    }
    // The package's own root: tasks of other users read it too.
    let open = fs::Permissions::from_mode(FOLDER_MODE);
    fs::set_permissions(&scratch.path, open).map_err(at(&scratch.path))?;
    unpacker.dir.sync()?;
    let MemberCheck { entries, bytes, .. } = unpacker.checked;
    scratch.keep_as(into)?;
    Ok(Unpacked { digest, entries, bytes })
}

/// One line of a package's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub path: EntryPath,
    /// `folder`, `file`, `link` or `hard link`.
    pub kind: &'static str,
    pub mode: Option<u32>,
    pub bytes: u64,
    pub target: Option<String>,
}

/// Reads a package to its end under the same rules as [`unpack`], and writes nothing.
///
/// # Errors
/// As [`unpack`].
pub fn list(
    reader: impl Read,
    total: u64,
    limits: Limits,
) -> Result<(PackageDigest, Vec<Listed>), PackageError> {
    let mut verified_reader = VerifiedReader::open(reader, total)?;
    let mut checked = MemberCheck::new(limits);
    let mut found = Vec::new();
    members(&mut verified_reader, limits.entries, |member, content| {
        let (path, kind) = checked.accept(&member)?;
        copy(content, &mut io::sink(), &member)?;
        found.push(listed(path, kind));
        Ok(())
    })?;
    Ok((verified_reader.finish()?, found))
}

fn listed(path: EntryPath, kind: Kind) -> Listed {
    let (kind_name, mode, bytes, target) = match kind {
        Kind::Folder { mode } => ("folder", Some(mode), 0, None),
        Kind::File { mode, bytes } => ("file", Some(mode), bytes, None),
        Kind::HardLink { target } => ("hard link", None, 0, Some(target.to_string())),
        Kind::SymbolicLink { target } => ("link", None, 0, Some(target)),
    };
    Listed { path, kind: kind_name, mode, bytes, target }
}

/// The rules for members, one after the other.
struct MemberCheck {
    limits: Limits,
    /// What a hard link may name.
    files: BTreeSet<EntryPath>,
    entries: u64,
    bytes: u64,
    disk: u64,
}

impl MemberCheck {
    fn new(limits: Limits) -> MemberCheck {
        MemberCheck { limits, files: BTreeSet::new(), entries: 0, bytes: 0, disk: 0 }
    }

    fn accept(&mut self, member: &Member) -> Result<(EntryPath, Kind), PackageError> {
        let folder = member.kind == EntryType::Directory;
        let text = if folder { member.path.trim_end_matches('/') } else { &member.path };
        let path = EntryPath::new(text)?;
        let kind = self.kind(&path, member)?;
        kind::check(&path, &kind)?;
        self.entries += 1;
        let taken = member.bytes.div_ceil(BLOCK_ON_DISK).saturating_mul(BLOCK_ON_DISK);
        self.disk = self.disk.saturating_add(taken.max(BLOCK_ON_DISK));
        if let Kind::File { bytes, .. } = kind {
            self.bytes = self.bytes.saturating_add(bytes);
            self.files.insert(path.clone());
        } else if member.bytes != 0 {
            let why = io::Error::other(format!("{path:?} is no file and has {}", member.bytes));
            return Err(unreadable(member.starts, why));
        }
        for (limit, found, most) in [
            (Limit::Bytes, self.bytes, self.limits.bytes),
            (Limit::Disk, self.disk, self.limits.disk),
        ] {
            if found > most {
                return Err(PackageError::Beyond { limit, found, most });
            }
        }
        Ok((path, kind))
    }

    fn kind(&self, path: &EntryPath, member: &Member) -> Result<Kind, PackageError> {
        Ok(match member.kind {
            EntryType::Directory => Kind::Folder { mode: member.mode },
            EntryType::Regular => Kind::File { mode: member.mode, bytes: member.bytes },
            EntryType::Symlink => Kind::SymbolicLink { target: member.link.clone() },
            EntryType::Link => {
                let target = EntryPath::new(&member.link)?;
                if !self.files.contains(&target) {
                    return Err(PackageError::BadLink {
                        path: path.to_string(),
                        target: target.to_string(),
                        rule: "a hard link names an earlier file of the package",
                    });
                }
                Kind::HardLink { target }
            }
            other => {
                let kind = kind_in_words(other);
                return Err(PackageError::BadKind { path: path.to_string(), kind });
            }
        })
    }
}

struct Unpacker {
    dir: UnpackDir,
    checked: MemberCheck,
    /// Modes of folders, set when nothing is created in them any more.
    modes: Vec<(EntryPath, u32)>,
}

impl Unpacker {
    fn new(dir: UnpackDir, limits: Limits) -> Unpacker {
        Unpacker { dir, checked: MemberCheck::new(limits), modes: Vec::new() }
    }

    fn member(&mut self, member: &Member, content: &mut dyn Read) -> Result<(), PackageError> {
        let (path, kind) = self.checked.accept(member)?;
        match kind {
            Kind::Folder { mode } => {
                self.dir.folder(&path)?;
                self.modes.push((path, mode));
                Ok(())
            }
            Kind::File { mode, .. } => {
                let mut file = self.dir.file(&path)?;
                copy(content, &mut file, member)?;
                let mode = fs::Permissions::from_mode(mode & !WRITABLE_BY_OTHERS);
                file.set_permissions(mode).map_err(at(Path::new(path.as_str())))
            }
            Kind::HardLink { target } => self.dir.hard_link(&path, &target),
            Kind::SymbolicLink { target } => self.dir.symbolic_link(&path, &target),
        }
    }
}

fn copy(
    content: &mut dyn Read,
    out: &mut dyn io::Write,
    member: &Member,
) -> Result<(), PackageError> {
    let copied = io::copy(content, out).map_err(|why| unreadable(member.starts, why))?;
    if copied != member.bytes {
        return Err(unreadable(member.starts, io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}

/// The body of a package, chunk by chunk, each verified before it is returned.
pub struct VerifiedReader<R> {
    inner: R,
    head: Head,
    whole: Hasher,
    chunk: Vec<u8>,
    /// How much of `chunk` was returned.
    consumed: usize,
    next: u32,
}

impl<R: Read> VerifiedReader<R> {
    /// Reads the head; what follows is the body.
    ///
    /// # Errors
    /// When this is no package.
    pub fn open(mut inner: R, total: u64) -> Result<VerifiedReader<R>, PackageError> {
        let mut start = Vec::new();
        let mut needed = BLOCK;
        let head = loop {
            let missing = needed - start.len() as u64;
            let got = (&mut inner).take(missing).read_to_end(&mut start);
            if got.map_err(|why| unreadable(0, why))? as u64 != missing {
                return Err(PackageError::not_a_package("it ends within its head"));
            }
            match Head::parse(&start, total)? {
                Parsed::Head(head) => break head,
                Parsed::Needs(bytes) => needed = bytes,
            }
        };
        let mut whole = Hasher::new();
        whole.update(&start);
        Ok(VerifiedReader { inner, head, whole, chunk: Vec::new(), consumed: 0, next: 0 })
    }

    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Reads the rest and returns the digest of the package.
    ///
    /// # Errors
    /// When a chunk is damaged or there is more than the head states.
    pub fn finish(mut self) -> Result<PackageDigest, PackageError> {
        io::copy(&mut self, &mut io::sink()).map_err(|why| unreadable(0, why))?;
        let more = self.inner.read(&mut [0]).map_err(|why| unreadable(self.head.total(), why))?;
        if more != 0 {
            return Err(PackageError::not_a_package("it goes on after its body"));
        }
        Ok(PackageDigest(self.whole.finish()))
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some(expected) = self.head.chunks.get(self.next as usize) else { return Ok(false) };
        let (_, length) = self.head.range_of(self.next);
        self.chunk.clear();
        self.consumed = 0;
        (&mut self.inner).take(u64::from(length)).read_to_end(&mut self.chunk)?;
        if self.chunk.len() as u64 != u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if cellwright_identity::secret::sha256(&self.chunk) != *expected {
            let damaged = PackageError::DamagedChunk { chunk: self.next };
            return Err(io::Error::other(damaged));
        }
        self.whole.update(&self.chunk);
        self.next += 1;
        Ok(true)
    }
}

impl<R: Read> Read for VerifiedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.consumed == self.chunk.len() && !self.fill()? {
            return Ok(0);
        }
        let ready = &self.chunk[self.consumed..];
        let most = ready.len().min(buffer.len());
        buffer[..most].copy_from_slice(&ready[..most]);
        self.consumed += most;
        Ok(most)
    }
}

/// A folder that is removed unless it was kept.
struct ScratchFolder {
    path: PathBuf,
    kept: bool,
}

impl ScratchFolder {
    fn beside(target: &Path) -> ScratchFolder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or(target.as_os_str()));
        name.push(format!(".{}.{number}.unpacking", std::process::id()));
        ScratchFolder { path: target.with_file_name(name), kept: false }
    }

    fn keep_as(mut self, target: &Path) -> Result<(), PackageError> {
        let no_replace = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(CWD, &self.path, CWD, target, no_replace)
            .map_err(at_errno(target))?;
        self.kept = true;
        let folder = target.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."));
        File::open(folder).and_then(|dir| dir.sync_all()).map_err(at(folder))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if !self.kept {
            // It may never have been created; the error has no reader.
            let _left_behind = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
