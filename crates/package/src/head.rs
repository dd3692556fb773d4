//! The head of a package: the digests of its chunks.
//!
//! A package is a tar archive, so that every tool can list it. Its first member is the head; the
//! rest of the file, the *body*, is cut into chunks of equal length whose digests the head lists. A
//! chunk from any source can then be verified when it arrives and not when all is there.
//!
//! The head itself is covered only by the digest of the whole file, so it is requested from a
//! trusted source: a master, which names the package to be run in the first place. Rejected: the
//! digest of the head as the package's name. It would free the head from that trust, but a package
//! would be two blobs, one of which no job names, and `sha256sum` would not print its name.

use crate::error::{Limit, PackageError};
use cellwright_identity::secret::{hex, unhex32};
use serde::{Deserialize, Serialize};
use tar::{EntryType, Header};

/// Name of the first member.
pub const HEAD_NAME: &str = ".cellwright-package";
/// Bytes of a tar block.
pub(crate) const BLOCK: u64 = 512;
/// Small enough to be fetched from a dozen machines at once, large enough that a request costs
/// little.
pub const CHUNK_BYTES: u32 = 1 << 20;
/// Head of a package of 64 GiB and some.
const MAX_HEAD_BYTES: u64 = 8 << 20;
/// Longest body.
pub const MAX_BODY_BYTES: u64 = 64 << 30;
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadJson {
    format: u32,
    chunk_bytes: u32,
    body_bytes: u64,
    /// In hexadecimal digits.
    chunks: Vec<String>,
}

/// What a package states about its own bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub chunk_bytes: u32,
    pub body_bytes: u64,
    /// SHA-256 of each chunk of the body; the last may be shorter.
    pub chunks: Vec<[u8; 32]>,
    /// Where in the file the body starts.
    pub body_start: u64,
}

/// The result of parsing the beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    Head(Head),
    /// The head is longer; this many bytes are needed.
    Needs(u64),
}

impl Head {
    /// Reads the head from the first bytes of a file of `total` bytes.
    ///
    /// # Errors
    /// When this is no package, or its head contradicts itself.
    pub fn parse(start: &[u8], total: u64) -> Result<Parsed, PackageError> {
        let block = usize::try_from(BLOCK).unwrap_or(usize::MAX);
        if total < BLOCK {
            return Err(PackageError::not_a_package(format!("it has {total} bytes")));
        }
        let Some(first) = start.get(..block) else { return Ok(Parsed::Needs(BLOCK)) };
        let length = head_length(first)?;
        let body_start = BLOCK + length.next_multiple_of(BLOCK);
        if body_start > total {
            return Err(PackageError::not_a_package("it ends within its head"));
        }
        if (start.len() as u64) < body_start {
            return Ok(Parsed::Needs(body_start));
        }
        let end = usize::try_from(BLOCK + length).unwrap_or(usize::MAX);
        let text: HeadJson = serde_json::from_slice(&start[block..end])
            .map_err(|e| PackageError::not_a_package(format!("its head is no JSON: {e}")))?;
        text.check(total - body_start)?;
        let chunks = text.chunks.iter().map(|digits| {
            unhex32(digits)
                .ok_or_else(|| invalid_head("chunks", digits, "64 digits 0-9 and a-f each"))
        });
        Ok(Parsed::Head(Head {
            chunk_bytes: text.chunk_bytes,
            body_bytes: text.body_bytes,
            chunks: chunks.collect::<Result<_, _>>()?,
            body_start,
        }))
    }

    /// The first member of the archive, to its last padding byte.
    ///
    /// # Errors
    /// When there are more chunks than a head can name.
    pub(crate) fn render(chunks: &[[u8; 32]], body_bytes: u64) -> Result<Vec<u8>, PackageError> {
        let chunks = chunks.iter().map(|digest| hex(digest)).collect();
        let text = HeadJson { format: FORMAT, chunk_bytes: CHUNK_BYTES, body_bytes, chunks };
        let json = serde_json::to_vec(&text)
            .map_err(|e| PackageError::not_a_package(format!("its head has no JSON: {e}")))?;
        let length = json.len() as u64;
        if length > MAX_HEAD_BYTES {
            return Err(PackageError::Beyond {
                limit: Limit::Head,
                found: length,
                most: MAX_HEAD_BYTES,
            });
        }
        let mut header = plain_header(EntryType::Regular, 0o444, length);
        let named = header.set_path(HEAD_NAME);
        named.map_err(|e| PackageError::not_a_package(e.to_string()))?;
        header.set_cksum();
        let mut out = header.as_bytes().to_vec();
        out.extend_from_slice(&json);
        let padded = out.len().next_multiple_of(header.as_bytes().len());
        out.resize(padded, 0);
        Ok(out)
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.body_start + self.body_bytes
    }

    /// The range of `chunk` in the file: first byte and length.
    #[must_use]
    pub fn range_of(&self, chunk: u32) -> (u64, u32) {
        let offset = u64::from(chunk) * u64::from(self.chunk_bytes);
        let length = self.body_bytes.saturating_sub(offset).min(u64::from(self.chunk_bytes));
        (self.body_start + offset, u32::try_from(length).unwrap_or(self.chunk_bytes))
    }

    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.chunks.len()).unwrap_or(u32::MAX)
    }
}

impl HeadJson {
    fn check(&self, after_head: u64) -> Result<(), PackageError> {
        if self.format != FORMAT {
            return Err(invalid_head("format", &self.format.to_string(), "1"));
        }
        if self.chunk_bytes != CHUNK_BYTES {
            return Err(invalid_head(
                "chunk_bytes",
                &self.chunk_bytes.to_string(),
                &CHUNK_BYTES.to_string(),
            ));
        }
        if self.body_bytes != after_head || self.body_bytes > MAX_BODY_BYTES {
            let allowed =
                format!("{after_head}, what follows the head, and at most {MAX_BODY_BYTES}");
            return Err(invalid_head("body_bytes", &self.body_bytes.to_string(), &allowed));
        }
        let count = self.body_bytes.div_ceil(u64::from(CHUNK_BYTES));
        if self.chunks.len() as u64 != count {
            let value = format!("a list of {}", self.chunks.len());
            return Err(invalid_head("chunks", &value, &format!("a list of {count}")));
        }
        Ok(())
    }
}

fn invalid_head(field: &'static str, value: &str, allowed: &str) -> PackageError {
    let value = crate::path::truncate(value);
    PackageError::BadHead { field, value, allowed: allowed.to_owned() }
}

fn head_length(block: &[u8]) -> Result<u64, PackageError> {
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    let mut unsummed = header.clone();
    unsummed.set_cksum();
    let is_tar = header.cksum().ok() == unsummed.cksum().ok();
    if !is_tar || header.path_bytes().as_ref() != HEAD_NAME.as_bytes() {
        return Err(PackageError::not_a_package("its first member is no package head"));
    }
    let length = header.entry_size().map_err(|e| PackageError::not_a_package(e.to_string()))?;
    if length > MAX_HEAD_BYTES {
        return Err(PackageError::Beyond {
            limit: Limit::Head,
            found: length,
            most: MAX_HEAD_BYTES,
        });
    }
    Ok(length)
}

/// A header without time, place and owner.
pub(crate) fn plain_header(kind: EntryType, mode: u32, bytes: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_back_and_asks_for_what_it_lacks() {
        let chunks = [[7; 32], [9; 32]];
        let body = u64::from(CHUNK_BYTES) + 512;
        let bytes = Head::render(&chunks, body).unwrap();
        let total = bytes.len() as u64 + body;
        assert_eq!(Head::parse(&[], total).unwrap(), Parsed::Needs(BLOCK));
        assert_eq!(Head::parse(&bytes[..600], total).unwrap(), Parsed::Needs(bytes.len() as u64));
        let Parsed::Head(head) = Head::parse(&bytes, total).unwrap() else { panic!("whole") };
        assert_eq!((head.chunks.as_slice(), head.total()), (chunks.as_slice(), total));
        assert_eq!(head.range_of(0), (head.body_start, CHUNK_BYTES));
        assert_eq!(head.range_of(1), (head.body_start + u64::from(CHUNK_BYTES), 512));
    }

    #[test]
    fn contradictions_are_named() {
        let bytes = Head::render(&[[7; 32]], 512).unwrap();
        let total = bytes.len() as u64 + 512;
        let check = |from: &str, to: &str, field: &str| {
            assert_eq!(from.len(), to.len());
            let text = String::from_utf8(bytes.clone()).unwrap().replace(from, to);
            let error = Head::parse(text.as_bytes(), total).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        };
        check("\"format\":1", "\"format\":2", "field format");
        check("\"chunk_bytes\":1048576", "\"chunk_bytes\":1048577", "field chunk_bytes");
        check("\"body_bytes\":512", "\"body_bytes\":513", "field body_bytes");
        check("\"chunks\":[\"0707", "\"chunks\":[\"07x7", "field chunks");
        check("\"chunks\":", "\"chumks\":", "chumks");
        check(".cellwright-package", ".cellwright-packagf", "no package head");
        let short = Head::parse(&bytes, total - 600).unwrap_err();
        assert!(matches!(short, PackageError::NotAPackage { .. }), "{short}");
    }
}
