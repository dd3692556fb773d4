//! The members of an untrusted tar archive, one after the other.
//!
//! The archive is read in its raw form and long names are assembled here, because every length in
//! it is a claim: an extended header of a gigabyte would otherwise be read into memory before
//! anything checked whether a name may be that long.

use crate::error::{Limit, PackageError};
use crate::path::truncate;
use std::io::{self, Read};
use tar::{Archive, EntryType, PaxExtensions};

/// Longest extended header. Paths have at most a few thousand bytes.
const MAX_EXTENSION: u64 = 1 << 20;
/// Longest path and link, as on Linux. A visitor may keep all members, and lengths in a header
/// compress a thousandfold.
const MAX_NAME: usize = 4096;

/// One member as in its header.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) link: String,
    pub(crate) kind: EntryType,
    pub(crate) mode: u32,
    pub(crate) bytes: u64,
    /// Where its bytes are in the archive.
    pub(crate) starts: u64,
}

#[derive(Default)]
struct PaxFields {
    path: Option<String>,
    link: Option<String>,
    size: Option<u64>,
}

/// Visits every member up to the end of the archive, with a reader of its bytes.
///
/// # Errors
/// Those of the visitor, or when the archive cannot be read.
pub(crate) fn members<R: Read>(
    reader: R,
    most: u64,
    mut visit: impl FnMut(Member, &mut dyn Read) -> Result<(), PackageError>,
) -> Result<(), PackageError> {
    let mut archive = Archive::new(reader);
    let entries = archive.entries().map_err(|why| unreadable(0, why))?;
    let mut pax_fields = PaxFields::default();
    let (mut count, mut at) = (0, 0);
    for entry in entries.raw(true) {
        count += 1;
        if count > most {
            return Err(PackageError::Beyond { limit: Limit::Entries, found: count, most });
        }
        let mut entry = entry.map_err(|why| unreadable(at, why))?;
        at = entry.raw_header_position();
        let kind = entry.header().entry_type();
        let bytes = entry.header().entry_size().map_err(|why| unreadable(at, why))?;
        if is_extension(kind) {
            let content = extension(&mut entry, bytes).map_err(|why| unreadable(at, why))?;
            pax_fields.take(kind, &content)?;
            continue;
        }
        let fields = std::mem::take(&mut pax_fields);
        let header_path = entry.path_bytes().into_owned();
        let header_link = entry.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default();
        let member = Member {
            path: fields.path.map_or_else(|| text(&header_path), Ok)?,
            link: fields.link.map_or_else(|| text(&header_link), Ok)?,
            kind,
            mode: entry.header().mode().map_err(|why| unreadable(at, why))?,
            bytes,
            starts: entry.raw_file_position(),
        };
        if fields.size.is_some_and(|size| size != bytes) {
            let why = io::Error::other("two headers of one member name different lengths");
            return Err(unreadable(at, why));
        }
        visit(member, &mut entry)?;
    }
    Ok(())
}

fn is_extension(kind: EntryType) -> bool {
    kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
        || kind.is_gnu_longname()
        || kind.is_gnu_longlink()
}

fn extension(entry: &mut dyn Read, bytes: u64) -> io::Result<Vec<u8>> {
    if bytes > MAX_EXTENSION {
        let (limit, found, most) = (Limit::Extension, bytes, MAX_EXTENSION);
        return Err(io::Error::other(PackageError::Beyond { limit, found, most }));
    }
    let mut content = Vec::new();
    entry.take(MAX_EXTENSION).read_to_end(&mut content)?;
    if content.len() as u64 != bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(content)
}

impl PaxFields {
    fn take(&mut self, kind: EntryType, content: &[u8]) -> Result<(), PackageError> {
        let ended = || content.strip_suffix(b"\0").unwrap_or(content);
        if kind.is_gnu_longname() {
            self.path = Some(text(ended())?);
        } else if kind.is_gnu_longlink() {
            self.link = Some(text(ended())?);
        } else if kind.is_pax_local_extensions() {
            for record in PaxExtensions::new(content) {
                let record = record.map_err(|why| unreadable(0, why))?;
                match record.key_bytes() {
                    b"path" => self.path = Some(text(record.value_bytes())?),
                    b"linkpath" => self.link = Some(text(record.value_bytes())?),
                    b"size" => {
                        let size = text(record.value_bytes())?;
                        let parsed = size.parse().map_err(|_| {
                            unreadable(0, io::Error::other(format!("size {size:?} is no number")))
                        })?;
                        self.size = Some(parsed);
                    }
                    // Times, owners and attributes are not part of a package.
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<String, PackageError> {
    if bytes.len() > MAX_NAME {
        let path = truncate(&String::from_utf8_lossy(&bytes[..MAX_NAME]));
        return Err(PackageError::BadPath { path, rule: "it has more than 4096 bytes" });
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| PackageError::BadPath {
        path: truncate(&String::from_utf8_lossy(bytes)),
        rule: "it is not UTF-8",
    })
}

/// A failed read, which may be an error of ours that was passed through as an I/O error.
pub(crate) fn unreadable(at: u64, why: io::Error) -> PackageError {
    if !why.get_ref().is_some_and(|inner| inner.is::<PackageError>()) {
        return PackageError::Unreadable { at, why };
    }
    match why.into_inner().map(|inner| inner.downcast::<PackageError>()) {
        Some(Ok(error)) => *error,
        _ => PackageError::Unreadable { at, why: io::ErrorKind::InvalidData.into() },
    }
}

/// The names of kinds of members that are not allowed in a package.
pub(crate) fn kind_in_words(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Fifo => "a FIFO",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::GNUSparse => "a sparse file",
        EntryType::Continuous => "a contiguous file",
        _ => "of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_longer_than_any_path_is_refused_before_it_is_kept() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        // The library writes the extended header that a long name needs.
        archive.append_data(&mut header, "d/".repeat(MAX_NAME), io::empty()).unwrap();
        let bytes = archive.into_inner().unwrap();
        let error = members(bytes.as_slice(), 10, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("more than 4096 bytes"), "{error}");
    }
}
