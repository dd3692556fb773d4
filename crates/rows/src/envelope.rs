//! The envelope around every durable value: magic, kind, format, length and a checksum over all of
//! that. It is checked before a single byte of the payload is decoded, so that a torn write or a
//! flipped bit is distinguished from a value this build does not understand.

use crate::LoadError;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"CELL";
/// Magic 4, kind 1, format 2, payload length 8, checksum 8.
pub const HEADER: usize = 23;
/// The checksum covers the header up to itself, and the payload.
const CHECKSUM_OFFSET: usize = 15;

/// What the envelope contains. A log entry must never be taken for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    State = b'S' as isize,
    Entry = b'E' as isize,
}

/// Puts the payload that `write` appends into an envelope.
#[must_use]
pub fn seal(kind: Kind, format: u16, write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = write(vec![0; HEADER]);
    let length = (bytes.len() - HEADER) as u64;
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = kind as u8;
    bytes[5..7].copy_from_slice(&format.to_le_bytes());
    bytes[7..CHECKSUM_OFFSET].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&bytes[..CHECKSUM_OFFSET], &bytes[HEADER..]);
    bytes[CHECKSUM_OFFSET..HEADER].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks the envelope and returns the format and the payload.
///
/// # Errors
/// The first thing that is wrong with the envelope.
pub fn open(kind: Kind, bytes: &[u8]) -> Result<(u16, &[u8]), LoadError> {
    let too_short = LoadError::TooShort { found: bytes.len() };
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(too_short);
    };
    let number = |from: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&header[from..from + 8]);
        u64::from_le_bytes(eight)
    };
    let found = [header[0], header[1], header[2], header[3]];
    if found != MAGIC {
        return Err(LoadError::BadMagic { found });
    }
    if header[4] != kind as u8 {
        return Err(LoadError::WrongKind { expected: kind as u8, found: header[4] });
    }
    let (stated, found) = (number(7), payload.len() as u64);
    if stated != found {
        return Err(LoadError::WrongLength { stated, found });
    }
    let (stated, computed) =
        (number(CHECKSUM_OFFSET), checksum(&header[..CHECKSUM_OFFSET], payload));
    if stated != computed {
        return Err(LoadError::ChecksumMismatch { stated, computed });
    }
    Ok((u16::from_le_bytes([header[5], header[6]]), payload))
}

fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    xxh3_64(payload) ^ xxh3_64(header).rotate_left(1)
}
