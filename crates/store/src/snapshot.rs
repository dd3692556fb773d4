//! Snapshot files: the state machine's bytes with the raft metadata that goes with them.
//!
//! The file is also what is sent to a follower, checksums included, so that what is installed there
//! is checked against what was written here and not merely against what arrived. Two are kept: when
//! the newer one turns out damaged, the older one and the log behind it replace it.

use std::io;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::disk::Disk;
use crate::error::OpenError;
use crate::offline::OfflineSnapshot;
use crate::raft::{SnapshotMeta, next_index};

pub(crate) const DIR: &str = "snap";
const MAGIC: &[u8; 8] = b"CELLWSNP";
const VERSION: u32 = 1;
const FIXED_HEADER_LEN: usize = 40;
const CHECKSUM_LEN: usize = 8;
const MAX_SNAPSHOTS: usize = 2;

/// Names sort by index, then term.
pub(crate) fn file_name(meta: &SnapshotMeta) -> String {
    let (index, term) = meta.last_log_id.map_or((0, 0), |id| (id.index, id.leader_id.term));
    file_name_at(index, term)
}

pub(crate) fn file_name_at(index: u64, term: u64) -> String {
    format!("{index:020}-{term:020}")
}

pub(crate) fn encode(
    cell: [u8; 16],
    meta: &SnapshotMeta,
    body: &[u8],
) -> Result<Vec<u8>, postcard::Error> {
    let meta = postcard::to_stdvec(meta)?;
    let mut out = Vec::with_capacity(FIXED_HEADER_LEN + meta.len() + body.len() + 2 * CHECKSUM_LEN);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(meta.len() as u32).to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(&cell);
    out.extend_from_slice(&meta);
    let check = xxh3_64_with_seed(&out, 0);
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&xxh3_64_with_seed(body, check).to_le_bytes());
    Ok(out)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFlaw {
    pub(crate) offset: u64,
    pub(crate) reason: &'static str,
    /// The version of a whole snapshot that this build cannot read. It is not damaged, so it must
    /// be neither skipped nor removed.
    pub(crate) newer: Option<u32>,
}

impl SnapshotFlaw {
    fn into_open_error(self, path: &str) -> OpenError {
        let file = path.to_owned();
        match self.newer {
            Some(found) => OpenError::TooNew { file, found, known: VERSION },
            None => OpenError::Damaged { file, offset: self.offset, what: self.reason.to_owned() },
        }
    }
}

/// Checks every byte; returns the metadata and the state machine's part.
pub(crate) fn decode(cell: [u8; 16], bytes: &[u8]) -> Result<(SnapshotMeta, &[u8]), SnapshotFlaw> {
    let damage =
        |offset: usize, reason| SnapshotFlaw { offset: offset as u64, reason, newer: None };
    let short = "the snapshot is cut short";
    let fixed = bytes.get(..FIXED_HEADER_LEN).ok_or(damage(bytes.len(), short))?;
    if &fixed[..8] != MAGIC {
        return Err(damage(0, "this is not a snapshot"));
    }
    let mut half = [0; 4];
    half.copy_from_slice(&fixed[12..16]);
    let meta_end = FIXED_HEADER_LEN + u32::from_le_bytes(half) as usize;
    let body_at = meta_end + CHECKSUM_LEN;
    let check = u64_at(bytes, meta_end).ok_or(damage(bytes.len(), short))?;
    if xxh3_64_with_seed(&bytes[..meta_end], 0) != check {
        return Err(damage(0, "the checksum of the snapshot's header does not match"));
    }
    half.copy_from_slice(&fixed[8..12]);
    let version = u32::from_le_bytes(half);
    if version > VERSION {
        let reason = "the snapshot was written by a newer version";
        return Err(SnapshotFlaw { newer: Some(version), ..damage(8, reason) });
    }
    if fixed[24..40] != cell {
        return Err(damage(24, "the snapshot belongs to another cell"));
    }
    let body_len = u64_at(fixed, 16).unwrap_or(u64::MAX);
    let body_end = usize::try_from(body_len).ok().and_then(|len| body_at.checked_add(len));
    let body_end = body_end.ok_or(damage(16, "the snapshot's length is impossible"))?;
    let body = bytes.get(body_at..body_end).ok_or(damage(bytes.len(), short))?;
    let body_check = u64_at(bytes, body_end).ok_or(damage(bytes.len(), short))?;
    if xxh3_64_with_seed(body, check) != body_check {
        return Err(damage(body_at, "the checksum of the snapshot's body does not match"));
    }
    if bytes.len() != body_end + CHECKSUM_LEN {
        return Err(damage(body_end + CHECKSUM_LEN, "there is something after the snapshot's end"));
    }
    let meta = postcard::from_bytes(&bytes[FIXED_HEADER_LEN..meta_end])
        .map_err(|_| damage(FIXED_HEADER_LEN, "the snapshot's facts cannot be decoded"))?;
    Ok((meta, body))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.copy_from_slice(bytes.get(at..at.checked_add(8)?)?);
    Some(u64::from_le_bytes(word))
}

/// Saves a snapshot and drops all but the newest ones.
pub(crate) fn save(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    disk.write_atomic(&format!("{DIR}/{name}"), bytes)?;
    let mut names = disk.list(DIR)?;
    names.sort();
    let surplus = names.len().saturating_sub(MAX_SNAPSHOTS);
    for old in names.iter().take(surplus).filter(|old| *old != name) {
        disk.remove(&format!("{DIR}/{old}"))?;
    }
    disk.sync_dir(DIR)
}

pub(crate) struct LoadedSnapshot {
    pub(crate) name: String,
    pub(crate) meta: SnapshotMeta,
    pub(crate) body: Vec<u8>,
}

/// Lists the snapshots by their file names, oldest first.
pub(crate) fn list(disk: &dyn Disk) -> Result<Vec<OfflineSnapshot>, OpenError> {
    let names = disk.list(DIR).map_err(|e| OpenError::Disk { path: DIR.to_owned(), source: e })?;
    let parts = names.iter().filter_map(|name| name.split_once('-'));
    let read = |(index, term): (&str, &str)| {
        Some(OfflineSnapshot { index: index.parse().ok()?, term: term.parse().ok()? })
    };
    let mut found: Vec<OfflineSnapshot> = parts.filter_map(read).collect();
    found.sort_unstable();
    Ok(found)
}

/// One snapshot by name.
pub(crate) fn load_one(
    disk: &dyn Disk,
    cell: [u8; 16],
    name: &str,
) -> Result<LoadedSnapshot, OpenError> {
    let path = format!("{DIR}/{name}");
    let bytes = disk.read(&path);
    let bytes = bytes.map_err(|source| OpenError::Disk { path: path.clone(), source })?;
    let (meta, body) = decode(cell, &bytes).map_err(|damage| damage.into_open_error(&path))?;
    Ok(LoadedSnapshot { name: name.to_owned(), body: body.to_vec(), meta })
}

/// The newest good snapshot, and what was wrong with the newer ones that are skipped.
///
/// `log_from` is the first index the log still has: a snapshot that ends before it cannot be
/// continued.
pub(crate) fn load(
    disk: &dyn Disk,
    cell: [u8; 16],
    log_from: u64,
) -> Result<(Option<LoadedSnapshot>, Vec<String>), OpenError> {
    let at = |path: &str, source| OpenError::Disk { path: path.to_owned(), source };
    let mut names = disk.list(DIR).map_err(|e| at(DIR, e))?;
    names.sort();
    let mut skipped = Vec::new();
    let mut first_flaw = None;
    for name in names.iter().rev() {
        let path = format!("{DIR}/{name}");
        let bytes = disk.read(&path).map_err(|e| at(&path, e))?;
        match decode(cell, &bytes) {
            Ok((meta, body)) if next_index(meta.last_log_id.as_ref()) >= log_from => {
                let loaded = LoadedSnapshot { name: name.clone(), body: body.to_vec(), meta };
                return Ok((Some(loaded), skipped));
            }
            Ok(_) => break,
            Err(damage) if damage.newer.is_some() => return Err(damage.into_open_error(&path)),
            Err(damage) => {
                skipped.push(format!(
                    "{path} is damaged at byte {}: {}",
                    damage.offset, damage.reason
                ));
                first_flaw.get_or_insert((path, damage));
            }
        }
    }
    if let Some((file, damage)) = first_flaw {
        let reason = format!("{}, and no older snapshot reaches the log", damage.reason);
        return Err(OpenError::Damaged { file, offset: damage.offset, what: reason });
    }
    if log_from > 0 {
        let reason = format!("the log starts at {log_from} and no snapshot reaches it");
        return Err(OpenError::Damaged { file: DIR.to_owned(), offset: 0, what: reason });
    }
    Ok((None, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let cell = [3; 16];
        let meta = SnapshotMeta { snapshot_id: "7-9-1".to_owned(), ..Default::default() };
        let good = encode(cell, &meta, b"the whole machine").unwrap();
        assert_eq!(decode(cell, &good), Ok((meta, &b"the whole machine"[..])));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(cell, &bad).is_err(), "bit {bit} went unnoticed");
        }
        for len in 0..good.len() {
            assert!(decode(cell, &good[..len]).is_err(), "cut at {len} went unnoticed");
        }
        assert_eq!(decode([4; 16], &good).unwrap_err().offset, 24);
    }

    #[test]
    fn a_snapshot_of_a_newer_version_is_refused_and_not_passed_over() {
        let cell = [3; 16];
        let older = encode(cell, &SnapshotMeta::default(), b"older").unwrap();
        let mut newer = encode(cell, &SnapshotMeta::default(), b"newer").unwrap();
        newer[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let meta_end = newer.len() - b"newer".len() - 2 * CHECKSUM_LEN;
        let check = xxh3_64_with_seed(&newer[..meta_end], 0);
        newer[meta_end..meta_end + CHECKSUM_LEN].copy_from_slice(&check.to_le_bytes());
        let dir = std::env::temp_dir().join(format!("cell-snapshot-{}", std::process::id()));
        let disk = crate::RealDisk::open(&dir).unwrap();
        let names = [file_name_at(1, 1), file_name_at(2, 1)];
        disk.write_atomic(&format!("{DIR}/{}", names[0]), &older).unwrap();
        disk.write_atomic(&format!("{DIR}/{}", names[1]), &newer).unwrap();
        let error = load(&disk, cell, 0).map(drop).unwrap_err().to_string();
        let file = format!("{DIR}/{}", names[1]);
        let expected =
            format!("{file} has format version 2, this build reads up to 1; run a newer one");
        assert_eq!(error, expected);
        // What is left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&dir);
    }
}
