//! The durable forms: a checkpoint of the whole state, and one entry of the log.
//!
//! Only rows are written; every sum is rebuilt on loading, so a damaged or forged checkpoint cannot
//! contain sums that disagree with their parts. Loading trusts nothing: the envelope is checked
//! first, then each row decodes on its own (an error names the row), then references, quantities
//! and specs, and at last every invariant of [`crate::invariant`]. No length in the input sizes an
//! allocation.
//!
//! Rejected: one `derive`d struct of everything. It is shorter, but its errors say only "somewhere
//! in these two gigabytes", and manual repair in an emergency needs to know which row. For that
//! repair the same rows can be written and read as [`text`].

mod binary;
mod raw_rows;
mod rebuild_sums;
pub mod text;
pub(crate) mod validate;

pub use cellwright_rows::LoadError;
pub use cellwright_rows::envelope::HEADER;
pub use raw_rows::Rows;

use crate::command::Entry;
use crate::invariant;
use crate::state::State;
use cellwright_rows::bytes;
use cellwright_rows::envelope::{self, Kind};

/// Version of the durable forms. From the first release on, any change of encoded bytes raises it
/// and adds an upgrade. Until then format 1 is what this build writes, and a log or checkpoint of
/// another build before the release is refused (it does not decode), never skipped.
pub const FORMAT: u16 = UPGRADES.len() as u16 + 1;

/// Converts payloads of one format into the next.
struct Upgrade {
    state: fn(Vec<u8>) -> Result<Vec<u8>, LoadError>,
    entry: fn(Vec<u8>) -> Result<Vec<u8>, LoadError>,
}

/// The upgrade at position `i` converts format `i + 1` into `i + 2`.
const UPGRADES: &[Upgrade] = &[];

/// Encodes the whole state. The same rows give the same bytes, whatever led to them.
#[must_use]
pub fn save(state: &State) -> Vec<u8> {
    envelope::seal(Kind::State, FORMAT, |out| binary::write_state(state, out))
}

/// Decodes the state that [`save`] wrote.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where. Nothing is repaired silently.
pub fn load(bytes: &[u8]) -> Result<State, LoadError> {
    checked(read(bytes)?)
}

/// Decodes the rows that [`save`] wrote, even if they are no valid state: for manual repair.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where.
pub fn load_rows(bytes: &[u8]) -> Result<Rows, LoadError> {
    read(bytes).map(|unchecked| Rows::of(&unchecked))
}

/// Decodes rows without checking them; [`checked`] makes a state of them.
fn read(bytes: &[u8]) -> Result<State, LoadError> {
    let (format, payload) = envelope::open(Kind::State, bytes)?;
    match upgraded(UPGRADES, format, payload, |step| step.state)? {
        None => binary::read_state(payload),
        Some(payload) => binary::read_state(&payload),
    }
}

/// Trusts no row: checks references, then each row by itself, then rebuilds sums and checks every
/// invariant.
fn checked(mut state: State) -> Result<State, LoadError> {
    invariant::references(&state).map_err(LoadError::InvariantViolated)?;
    validate::rows(&state)?;
    rebuild_sums::rebuild_sums(&mut state);
    invariant::check_state(&state).map_err(LoadError::InvariantViolated)?;
    Ok(state)
}

/// Encodes one log entry.
#[must_use]
pub fn save_entry(entry: &Entry) -> Vec<u8> {
    envelope::seal(Kind::Entry, FORMAT, |out| bytes::put(out, entry))
}

/// Decodes the entry that [`save_entry`] wrote. Its commands are checked when they are applied.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where.
pub fn load_entry(bytes: &[u8]) -> Result<Entry, LoadError> {
    let (format, payload) = envelope::open(Kind::Entry, bytes)?;
    match upgraded(UPGRADES, format, payload, |step| step.entry)? {
        None => bytes::read_whole("entry", payload),
        Some(payload) => bytes::read_whole("entry", &payload),
    }
}

/// Runs the payload through every upgrade after `format`; `None` when it is current already.
fn upgraded(
    chain: &[Upgrade],
    format: u16,
    payload: &[u8],
    pick: impl Fn(&Upgrade) -> fn(Vec<u8>) -> Result<Vec<u8>, LoadError>,
) -> Result<Option<Vec<u8>>, LoadError> {
    let newest = chain.len() as u16 + 1;
    if format == 0 || format > newest {
        return Err(LoadError::UnknownFormat { found: format, newest });
    }
    let steps = &chain[usize::from(format) - 1..];
    if steps.is_empty() {
        return Ok(None);
    }
    steps.iter().try_fold(payload.to_vec(), |payload, step| pick(step)(payload)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(mut payload: Vec<u8>) -> Result<Vec<u8>, LoadError> {
        payload.push(payload.len() as u8);
        Ok(payload)
    }

    #[test]
    fn old_payloads_pass_through_every_later_upgrade_in_order() {
        let chain = [Upgrade { state: grow, entry: grow }, Upgrade { state: grow, entry: grow }];
        let check = |format, want: Option<Vec<u8>>| {
            assert_eq!(upgraded(&chain, format, &[9], |step| step.state), Ok(want));
        };
        check(1, Some(vec![9, 1, 2]));
        check(2, Some(vec![9, 1]));
        check(3, None);
        for found in [0, 4, u16::MAX] {
            let refused = upgraded(&chain, found, &[9], |step| step.entry);
            assert_eq!(refused, Err(LoadError::UnknownFormat { found, newest: 3 }));
        }
    }
}
