//! The binary form of a state: its head, its tables, its replay windows.

use super::LoadError;
use crate::command::Actor;
use crate::replay_windows::{ReplayWindow, ReplayWindows};
use crate::state::State;
use crate::tables::{TableRow, each_table};
use cellwright_rows::bytes::{Reader, put, read_table, write_table};

pub(super) fn write_state(state: &State, out: Vec<u8>) -> Vec<u8> {
    let head = (state.level, state.now, state.applied, state.attempt_floor, state.bounds);
    let mut out = put(out, &head);
    macro_rules! write {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(out = write_table(&state.$($place).+, out);)*
        };
    }
    each_table!(write);
    write_windows(&state.windows, out)
}

/// In order of actor and client, so that the same rows give the same bytes.
fn write_windows(windows: &ReplayWindows, out: Vec<u8>) -> Vec<u8> {
    let mut all: Vec<(&(Actor, u64), &ReplayWindow)> = windows.iter().collect();
    all.sort_unstable_by_key(|(key, _)| *key);
    all.into_iter().fold(put(out, &(windows.len() as u64)), |out, window| put(out, &window))
}

/// Decodes the rows alone; nothing about them is checked yet except that they decode.
pub(super) fn read_state(payload: &[u8]) -> Result<State, LoadError> {
    let mut reader = Reader::new(payload);
    let (level, now, applied, attempt_floor, bounds) =
        reader.take(|| "head of the state".to_owned())?;
    let mut state = State { level, now, applied, attempt_floor, bounds, ..State::default() };
    macro_rules! read {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(state.$($place).+ = read_table(&mut reader, <$row as TableRow>::NOUN)?;)*
        };
    }
    each_table!(read);
    state.windows = read_windows(&mut reader)?;
    reader.end()?;
    Ok(state)
}

fn read_windows(reader: &mut Reader<'_>) -> Result<ReplayWindows, LoadError> {
    let count: u64 = reader.take(|| "number of replay windows".to_owned())?;
    let mut windows = ReplayWindows::default();
    let mut last = None;
    for position in 0..count {
        let (key, window): ((Actor, u64), ReplayWindow) =
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
