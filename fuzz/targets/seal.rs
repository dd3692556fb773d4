//! A valid envelope around a payload, written from its documented layout: magic, kind, format,
//! length, checksum. The kernel itself offers no way to seal bytes it did not encode.

use xxhash_rust::xxh3::xxh3_64;

pub fn sealed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(*b"CELL");
    bytes.push(kind);
    bytes.extend(cellwright_cell::encode::FORMAT.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    let sum = xxh3_64(payload) ^ xxh3_64(&bytes).rotate_left(1);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(payload);
    bytes
}
