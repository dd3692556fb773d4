//! Errors about bytes or rows, found while they are decoded or by an invariant over them.

use crate::envelope::HEADER;

/// Why bytes are not a state or a log entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("{found} bytes are too few; the header alone takes {HEADER}")]
    TooShort { found: usize },
    #[error("the first bytes are {found:02x?}, not \"CELL\": this is something else")]
    BadMagic { found: [u8; 4] },
    #[error("the bytes are of kind {found:#04x}, not {expected:#04x}")]
    WrongKind { expected: u8, found: u8 },
    #[error("format {found} is not known here; allowed: 1 to {newest}; run the newer build")]
    UnknownFormat { found: u16, newest: u16 },
    #[error("the header announces {stated} bytes, {found} follow it")]
    WrongLength { stated: u64, found: u64 },
    #[error("checksum is {computed:016x}, the header says {stated:016x}: damaged")]
    ChecksumMismatch { stated: u64, computed: u64 },
    #[error("{what} does not decode at byte {at} of the payload: {why}")]
    Undecodable { what: String, at: usize, why: String },
    #[error("{extra} bytes follow the end at byte {at} of the payload")]
    TrailingBytes { at: usize, extra: usize },
    #[error("{row}: {why}")]
    BadRow { row: String, why: String },
    #[error("the rows contradict each other: {0}")]
    InvariantViolated(Violation),
}

/// A broken invariant: which one, of which row, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {row}: {detail}")]
pub struct Violation {
    pub invariant: &'static str,
    pub row: String,
    pub detail: String,
}
