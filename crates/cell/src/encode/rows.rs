//! Rows to bytes and back. A table is its number of slots and then, slot by slot, a row or its
//! absence: ids are positions, so absences are part of the value.

use super::LoadError;
use crate::command::Actor;
use crate::replay::{Window, Windows};
use crate::state::State;
use crate::table::{Key, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Appends one value. The encoding carries every type of this crate, so it cannot fail; the wire
/// tests hold that for each of them.
pub(super) fn put<T: Serialize + ?Sized>(out: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, out).expect("every durable noun has a pinned encoding")
}

pub(super) fn write_state(state: &State, out: Vec<u8>) -> Vec<u8> {
    let head = (state.level, state.now, state.applied, state.attempt_floor, state.bounds);
    let out = put(out, &head);
    let out = write_table(&state.users, out);
    let out = write_table(&state.machines, out);
    let out = write_table(&state.resources, out);
    let out = write_table(&state.jobs, out);
    let out = write_table(&state.tasks, out);
    let out = write_table(&state.crons, out);
    let out = write_table(&state.tokens, out);
    let out = write_table(&state.blobs, out);
    write_windows(&state.windows, out)
}

fn write_table<K: Key, V: Clone + Serialize>(table: &Table<K, V>, out: Vec<u8>) -> Vec<u8> {
    let out = put(out, &(table.slots() as u64));
    (0..table.slots()).fold(out, |out, slot| put(out, &table.get(K::from_slot(slot))))
}

/// In order of actor and client, so that the same rows give the same bytes.
fn write_windows(windows: &Windows, out: Vec<u8>) -> Vec<u8> {
    let mut all: Vec<(&(Actor, u64), &Window)> = windows.iter().collect();
    all.sort_unstable_by_key(|(key, _)| *key);
    all.into_iter().fold(put(out, &(windows.len() as u64)), |out, window| put(out, &window))
}

/// The rest of a payload and how far into it we are.
struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload, length: payload.len() }
    }

    fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    fn take<T: DeserializeOwned>(&mut self, what: impl FnOnce() -> String) -> Result<T, LoadError> {
        match postcard::take_from_bytes(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(error) => {
                Err(LoadError::Undecodable { what: what(), at: self.at(), why: error.to_string() })
            }
        }
    }

    fn end(self) -> Result<(), LoadError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(LoadError::Trailing { at: self.at(), extra }),
        }
    }
}

/// A payload that is one value and nothing else.
pub(super) fn read_whole<T: DeserializeOwned>(what: &str, payload: &[u8]) -> Result<T, LoadError> {
    let mut reader = Reader::new(payload);
    let value = reader.take(|| what.to_owned())?;
    reader.end()?;
    Ok(value)
}

/// The rows alone; nothing about them is known yet except that they decode.
pub(super) fn read_state(payload: &[u8]) -> Result<State, LoadError> {
    let mut reader = Reader::new(payload);
    let (level, now, applied, attempt_floor, bounds) =
        reader.take(|| "head of the state".to_owned())?;
    let state = State {
        level,
        now,
        applied,
        attempt_floor,
        bounds,
        users: read_table(&mut reader, "user")?,
        machines: read_table(&mut reader, "machine")?,
        resources: read_table(&mut reader, "resource")?,
        jobs: read_table(&mut reader, "job")?,
        tasks: read_table(&mut reader, "task")?,
        crons: read_table(&mut reader, "periodic job")?,
        tokens: read_table(&mut reader, "token")?,
        blobs: read_table(&mut reader, "package")?,
        windows: read_windows(&mut reader)?,
        ..State::default()
    };
    reader.end()?;
    Ok(state)
}

/// Grows row by row: a table is never larger than the bytes that describe it allow.
fn read_table<K: Key, V: Clone + DeserializeOwned>(
    reader: &mut Reader<'_>,
    what: &str,
) -> Result<Table<K, V>, LoadError> {
    let slots: u64 = reader.take(|| format!("number of {what} rows"))?;
    if slots > u64::from(u32::MAX) {
        let why = format!("{slots} rows; allowed: at most {}", u32::MAX);
        return Err(LoadError::BadRow { row: format!("table of {what} rows"), why });
    }
    let mut table = Table::default();
    for slot in 0..slots {
        match reader.take(|| format!("{what} row {slot}"))? {
            Some(row) => {
                table.push(row);
            }
            None => table.push_vacant(),
        }
    }
    Ok(table)
}

fn read_windows(reader: &mut Reader<'_>) -> Result<Windows, LoadError> {
    let count: u64 = reader.take(|| "number of replay windows".to_owned())?;
    let mut windows = Windows::default();
    let mut last = None;
    for position in 0..count {
        let (key, window): ((Actor, u64), Window) =
            reader.take(|| format!("replay window {position}"))?;
        if last.as_ref() >= Some(&key) {
            let row = format!("replay window {position}");
            let why = format!("client {} is out of order or there twice", key.1);
            return Err(LoadError::BadRow { row, why });
        }
        last = Some(key.clone());
        windows.insert(key, window);
    }
    Ok(windows)
}
