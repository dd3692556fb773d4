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
mod formats;
mod raw_rows;
mod rebuild_sums;
pub mod text;
pub(crate) mod validate;

pub use cellwright_rows::LoadError;
pub use cellwright_rows::envelope::HEADER;
pub use formats::{FORMAT, format_at};
pub use raw_rows::Rows;

use crate::command::{Entry, Request};
use crate::invariant;
use crate::state::{LEVEL, State};
use crate::time::Time;
use cellwright_rows::bytes;
use cellwright_rows::envelope::{self, Kind};
use formats::{Conversion, Step, check_known, convert};

/// An entry holds what the format of its cell has no words for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cell is at level {level}, whose log has no words for it: {why}")]
pub struct NotYetWritable {
    pub level: u32,
    pub why: String,
}

/// Encodes the whole state, in the format of its own level. The same rows give the same bytes,
/// whatever led to them.
#[must_use]
pub fn save(state: &State) -> Vec<u8> {
    let format = format_at(state.level);
    if format != FORMAT {
        let payload = binary::write_state(state, Vec::new());
        // Below its level nothing that needs a format was accepted. If something was, the newest is
        // written: whoever does not know it says so, and nothing is lost.
        if let Ok(Some(converted)) = convert(|step| &step.state, &payload, FORMAT, format) {
            return envelope::seal(Kind::State, format, |out| [out, converted].concat());
        }
    }
    envelope::seal(Kind::State, FORMAT, |out| binary::write_state(state, out))
}

/// Decodes the state that [`save`] wrote.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where. Nothing is repaired silently.
pub fn load(bytes: &[u8]) -> Result<State, LoadError> {
    load_known(bytes, LEVEL)
}

/// Decodes a state as a build does that knows levels up to `known`.
///
/// # Errors
/// As [`load`].
pub fn load_known(bytes: &[u8], known: u32) -> Result<State, LoadError> {
    let state = read(bytes, known)?;
    if state.level > known {
        let why = format!("level is {}; allowed: 1 to {known}", state.level);
        return Err(LoadError::BadRow { row: "head of the state".into(), why });
    }
    checked(state)
}

/// Decodes the rows that [`save`] wrote, even if they are no valid state: for manual repair.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where.
pub fn load_rows(bytes: &[u8]) -> Result<Rows, LoadError> {
    read(bytes, LEVEL).map(|unchecked| Rows::of(&unchecked))
}

/// Decodes rows without checking them; [`checked`] makes a state of them.
fn read(bytes: &[u8], known: u32) -> Result<State, LoadError> {
    match opened(Kind::State, bytes, known, |step| &step.state)? {
        (payload, None) => binary::read_state(payload),
        (_, Some(payload)) => binary::read_state(&payload),
    }
}

/// The payload of an envelope, and where it is of another format, what it is in the newest.
fn opened(
    kind: Kind,
    bytes: &[u8],
    known: u32,
    pick: impl Fn(&Step) -> &Conversion,
) -> Result<(&[u8], Option<Vec<u8>>), LoadError> {
    let (format, payload) = envelope::open(kind, bytes)?;
    check_known(format, known)?;
    let undecodable = |why| LoadError::Undecodable { what: format!("format {format}"), at: 0, why };
    let converted = convert(pick, payload, format, FORMAT).map_err(undecodable)?;
    Ok((payload, converted))
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

/// Encodes one log entry in the newest format.
#[must_use]
pub fn save_entry(entry: &Entry) -> Vec<u8> {
    envelope::seal(Kind::Entry, FORMAT, |out| bytes::put(out, entry))
}

/// Encodes one log entry for a cell of this level: every replica of it can read the format.
///
/// # Errors
/// When that format has no words for a command.
pub fn save_entry_at(entry: &Entry, level: u32) -> Result<Vec<u8>, NotYetWritable> {
    let format = format_at(level);
    if format == FORMAT {
        return Ok(save_entry(entry));
    }
    let payload = bytes::put(Vec::new(), entry);
    let converted = convert(|step| &step.entry, &payload, FORMAT, format)
        .map_err(|why| NotYetWritable { level, why })?;
    let payload = converted.unwrap_or_default();
    Ok(envelope::seal(Kind::Entry, format, |out| [out, payload].concat()))
}

/// Whether a cell of this level can write the requests down; asked before they wait for the log,
/// so that one of them does not keep back those beside it.
///
/// # Errors
/// What stands in the way.
pub fn check_writable(requests: &[Request], level: u32) -> Result<(), NotYetWritable> {
    if format_at(level) >= FORMAT {
        return Ok(());
    }
    save_entry_at(&Entry { now: Time::ZERO, requests: requests.to_vec() }, level).map(drop)
}

/// Decodes the entry that [`save_entry`] wrote. Its commands are checked when they are applied.
///
/// # Errors
/// The first thing that is wrong with the bytes, and where.
pub fn load_entry(bytes: &[u8]) -> Result<Entry, LoadError> {
    load_entry_known(bytes, LEVEL)
}

/// Decodes an entry as a build does that knows levels up to `known`.
///
/// # Errors
/// As [`load_entry`].
pub fn load_entry_known(bytes: &[u8], known: u32) -> Result<Entry, LoadError> {
    match opened(Kind::Entry, bytes, known, |step| &step.entry)? {
        (payload, None) => bytes::read_whole("entry", payload),
        (_, Some(payload)) => bytes::read_whole("entry", &payload),
    }
}
