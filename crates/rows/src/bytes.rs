//! Encoding of rows to bytes and decoding them. A table is encoded as its number of slots and then,
//! slot by slot, a row or its absence: ids are positions, so absences are part of the value.

use crate::LoadError;
use crate::table::{Key, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

/// Appends the encoding of one value to `out`.
///
/// # Panics
/// When the encoding does not support the type. That depends on the type alone, never on the value,
/// and the recorded samples contain every durable type.
#[must_use]
pub fn put<T: Serialize + ?Sized>(out: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, out).expect("every durable noun has a pinned encoding")
}

/// Length of the encoded value, in bytes.
///
/// # Panics
/// As [`put`] does.
#[must_use]
pub fn encoded_length<T: Serialize + ?Sized>(value: &T) -> u64 {
    let length = postcard::experimental::serialized_size(value);
    length.expect("every durable noun has a pinned encoding") as u64
}

/// Encodings up to this length are hashed without memory of their own: most are shorter, and each
/// request needs several.
const HASHED_ON_STACK: usize = 1024;

/// Hash of the encoded value.
#[must_use]
pub fn hash<T: Serialize + ?Sized>(value: &T) -> u64 {
    match postcard::to_slice(value, &mut [0; HASHED_ON_STACK]) {
        Ok(bytes) => xxh3_64(bytes),
        Err(_) => xxh3_64(&put(Vec::with_capacity(4 * HASHED_ON_STACK), value)),
    }
}

#[must_use]
pub fn write_table<K: Key, V: Clone + Serialize>(table: &Table<K, V>, out: Vec<u8>) -> Vec<u8> {
    let out = put(out, &(table.slots() as u64));
    (0..table.slots()).fold(out, |out, slot| put(out, &table.get(K::from_slot(slot))))
}

/// Decodes a table row by row: it is never larger than the bytes that describe it allow.
///
/// # Errors
/// The first row that does not decode; `row_kind` names the rows of this table in the error.
pub fn read_table<K: Key, V: Clone + DeserializeOwned>(
    reader: &mut Reader<'_>,
    row_kind: &str,
) -> Result<Table<K, V>, LoadError> {
    let slots: u64 = reader.take(|| format!("number of {row_kind} rows"))?;
    if slots > u64::from(u32::MAX) {
        let why = format!("{slots} rows; allowed: at most {}", u32::MAX);
        return Err(LoadError::BadRow { row: format!("table of {row_kind} rows"), why });
    }
    let mut table = Table::default();
    for slot in 0..slots {
        match reader.take(|| format!("{row_kind} row {slot}"))? {
            Some(row) => {
                table.push(row);
            }
            None => table.push_vacant(),
        }
    }
    Ok(table)
}

/// Decodes a payload that is exactly one value.
///
/// # Errors
/// When the value does not decode, or when bytes follow it.
pub fn read_whole<T: DeserializeOwned>(label: &str, payload: &[u8]) -> Result<T, LoadError> {
    let mut reader = Reader::new(payload);
    let value = reader.take(|| label.to_owned())?;
    reader.end()?;
    Ok(value)
}

/// The rest of a payload and the position reached in it.
pub struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload, length: payload.len() }
    }

    fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    /// Decodes the next value; `label` names it in an error.
    ///
    /// # Errors
    /// When the value does not decode, with the position of its first byte.
    pub fn take<T: DeserializeOwned>(
        &mut self,
        label: impl FnOnce() -> String,
    ) -> Result<T, LoadError> {
        match postcard::take_from_bytes(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(error) => Err(LoadError::Undecodable {
                what: label(),
                at: self.position(),
                why: error.to_string(),
            }),
        }
    }

    /// # Errors
    /// When bytes follow the last value.
    pub fn end(self) -> Result<(), LoadError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(LoadError::TrailingBytes { at: self.position(), extra }),
        }
    }
}
