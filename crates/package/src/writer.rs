//! Writes a package file, entry by entry.
//!
//! The same entries give the same bytes, on every machine and at any time: they come sorted, have
//! no owner and no time, and nothing is compressed, because compressors change from version to
//! version and with them the digest. Uncompressed chunks also stay equal between versions of a
//! package, and an archive that is not compressed cannot grow beyond its length when unpacked.
//!
//! The body is written to a file beside the target first, since the head in front of it lists
//! digests that are known only at its end.

use crate::build::Built;
use crate::digest::{Hasher, PackageDigest};
use crate::error::{Limit, PackageError, at};
use crate::head::{BLOCK, CHUNK_BYTES, Head, MAX_BODY_BYTES, plain_header};
use crate::kind::{self, Kind};
use crate::path::EntryPath;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tar::{EntryType, Header};

const BUFFER: usize = 1 << 18;

pub(crate) struct Writer {
    target: PathBuf,
    body: Scratch,
    out: BufWriter<File>,
    chunk: Hasher,
    in_chunk: u32,
    chunks: Vec<[u8; 32]>,
    bytes: u64,
    content: u64,
    entries: u64,
    last: Option<EntryPath>,
}

/// A file that is removed unless it was kept.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    kept: bool,
}

impl Scratch {
    /// A new file beside `target`, open for reading and writing.
    pub(crate) fn beside(target: &Path) -> Result<(Scratch, File), PackageError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or(target.as_os_str()));
        name.push(format!(".{}.{number}.part", std::process::id()));
        let path = target.with_file_name(name);
        let opened = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = opened.map_err(at(&path))?;
        Ok((Scratch { path, kept: false }, file))
    }

    pub(crate) fn keep_as(mut self, target: &Path) -> Result<(), PackageError> {
        fs::rename(&self.path, target).map_err(at(target))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            // It may be gone already; the error has no reader.
            let _left_behind = fs::remove_file(&self.path);
        }
    }
}

impl Writer {
    pub(crate) fn new(target: &Path) -> Result<Writer, PackageError> {
        let (body, file) = Scratch::beside(target)?;
        Ok(Writer {
            target: target.to_owned(),
            body,
            out: BufWriter::with_capacity(BUFFER, file),
            chunk: Hasher::new(),
            in_chunk: 0,
            chunks: Vec::new(),
            bytes: 0,
            content: 0,
            entries: 0,
            last: None,
        })
    }

    /// The next entry; the bytes of a file come from `content`.
    ///
    /// # Errors
    /// When it is out of order or not allowed, or `content` has another length than announced.
    pub(crate) fn add(
        &mut self,
        path: &EntryPath,
        kind: &Kind,
        content: &mut dyn Read,
    ) -> Result<(), PackageError> {
        kind::check(path, kind)?;
        if let Some(last) = self.last.as_ref().filter(|last| *last >= path) {
            let (path, previous) = (path.to_string(), last.to_string());
            return Err(PackageError::Unsorted { path, previous });
        }
        self.last = Some(path.clone());
        self.entries += 1;
        match kind {
            Kind::Folder { mode } => self.header(EntryType::Directory, path, "", *mode, 0),
            Kind::SymbolicLink { target } => {
                self.header(EntryType::Symlink, path, target, 0o777, 0)
            }
            Kind::HardLink { target } => {
                self.header(EntryType::Link, path, target.as_str(), 0o644, 0)
            }
            Kind::File { mode, bytes } => {
                self.header(EntryType::Regular, path, "", *mode, *bytes)?;
                self.content(path, *bytes, content)
            }
        }
    }

    fn header(
        &mut self,
        kind: EntryType,
        path: &EntryPath,
        link: &str,
        mode: u32,
        bytes: u64,
    ) -> Result<(), PackageError> {
        let mut header = plain_header(kind, mode, bytes);
        // A longer name is in an extended header in front; these are names for old tools.
        if header.set_path(path.as_str()).is_err() {
            self.extended("path", path.as_str())?;
            set(&mut header, |h| h.set_path("long-name"))?;
        }
        if !link.is_empty() && header.as_ustar_mut().is_some_and(|h| h.linkname.len() < link.len())
        {
            self.extended("linkpath", link)?;
        } else if !link.is_empty() {
            set(&mut header, |h| h.set_link_name_literal(link))?;
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    fn extended(&mut self, key: &str, value: &str) -> Result<(), PackageError> {
        let record = pax_record(key, value);
        let mut header = plain_header(EntryType::XHeader, 0o644, record.len() as u64);
        set(&mut header, |h| h.set_path("extended"))?;
        header.set_cksum();
        self.write(header.as_bytes())?;
        self.write(record.as_bytes())?;
        self.pad()
    }

    fn content(
        &mut self,
        path: &EntryPath,
        bytes: u64,
        content: &mut dyn Read,
    ) -> Result<(), PackageError> {
        let mut buffer = vec![0; BUFFER];
        let mut left = bytes;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = content.read(&mut buffer[..most]).map_err(at(Path::new(path.as_str())))?;
            if got == 0 {
                return Err(changed(path));
            }
            self.write(&buffer[..got])?;
            left -= got as u64;
        }
        if content.read(&mut buffer[..1]).map_err(at(Path::new(path.as_str())))? != 0 {
            return Err(changed(path));
        }
        self.content += bytes;
        self.pad()
    }

    fn pad(&mut self) -> Result<(), PackageError> {
        let missing = self.bytes.next_multiple_of(BLOCK) - self.bytes;
        let zeros = [0; BLOCK as usize];
        self.write(&zeros[..usize::try_from(missing).unwrap_or(0)])
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), PackageError> {
        self.out.write_all(bytes).map_err(at(&self.body.path))?;
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_BODY_BYTES {
            let found = self.bytes;
            return Err(PackageError::Beyond { limit: Limit::Bytes, found, most: MAX_BODY_BYTES });
        }
        while !bytes.is_empty() {
            let room = (CHUNK_BYTES - self.in_chunk) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.update(now);
            self.in_chunk += u32::try_from(now.len()).unwrap_or(CHUNK_BYTES);
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk();
            }
            bytes = later;
        }
        Ok(())
    }

    fn end_chunk(&mut self) {
        let full = std::mem::replace(&mut self.chunk, Hasher::new());
        self.chunks.push(full.finish());
        self.in_chunk = 0;
    }

    /// Moves the package to its path, durably.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(crate) fn finish(mut self) -> Result<Built, PackageError> {
        self.write(&[0; 2 * BLOCK as usize])?;
        if self.in_chunk > 0 {
            self.end_chunk();
        }
        let head = Head::render(&self.chunks, self.bytes)?;
        let body = self.out.into_inner().map_err(|e| at(&self.body.path)(e.into_error()))?;
        let (scratch, out) = Scratch::beside(&self.target)?;
        let digest = write_package(&head, body, &out).map_err(at(&scratch.path))?;
        scratch.keep_as(&self.target)?;
        sync_folder(&self.target)?;
        Ok(Built {
            digest,
            bytes: head.len() as u64 + self.bytes,
            entries: self.entries,
            content: self.content,
        })
    }
}

fn write_package(head: &[u8], mut body: File, mut out: &File) -> io::Result<PackageDigest> {
    let mut hasher = Hasher::new();
    hasher.update(head);
    out.write_all(head)?;
    body.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let got = body.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        hasher.update(&buffer[..got]);
        out.write_all(&buffer[..got])?;
    }
    out.sync_all()?;
    Ok(PackageDigest(hasher.finish()))
}

fn sync_folder(path: &Path) -> Result<(), PackageError> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|dir| dir.sync_all()).map_err(at(folder))
}

fn set(
    header: &mut Header,
    change: impl FnOnce(&mut Header) -> io::Result<()>,
) -> Result<(), PackageError> {
    change(header).map_err(|e| PackageError::not_a_package(e.to_string()))
}

fn changed(path: &EntryPath) -> PackageError {
    let why = io::Error::other("its length changed while it was read");
    at(Path::new(path.as_str()))(why)
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn pax_record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while format!("{length}{rest}").len() != length {
        length = format!("{length}{rest}").len();
    }
    format!("{length}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_record_counts_its_own_length() {
        assert_eq!(pax_record("path", "ab"), "11 path=ab\n");
        for length in [1, 85, 86, 87, 988, 989, 990, 2999] {
            let record = pax_record("path", &"x".repeat(length));
            let (count, _) = record.split_once(' ').unwrap();
            assert_eq!(count.parse::<usize>().unwrap(), record.len());
        }
    }

    #[test]
    fn what_is_out_of_order_or_of_another_length_is_refused_and_leaves_nothing() {
        let folder = Folder::new();
        let target = folder.path("p");
        let path = |text| EntryPath::new(text).unwrap();
        let file = |bytes| Kind::File { mode: 0o644, bytes };
        let mut writer = Writer::new(&target).unwrap();
        writer.add(&path("b"), &file(1), &mut &b"x"[..]).unwrap();
        let twice = writer.add(&path("b"), &file(1), &mut &b"x"[..]);
        assert!(matches!(twice, Err(PackageError::Unsorted { .. })));
        for content in [&b"x"[..], b"xyz"] {
            let other = writer.add(&path("c"), &file(2), &mut &*content);
            assert!(matches!(other, Err(PackageError::Io { .. })), "{content:?}");
            writer.last = None;
        }
        drop(writer);
        assert_eq!(folder.list(), Vec::<String>::new());
    }
}
