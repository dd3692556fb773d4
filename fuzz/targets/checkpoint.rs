//! A checkpoint as text, as people mend it: any bytes are refused, or are a sound state that
//! survives being written.

use cellwright_cell::encode::text;
use cellwright_cell::invariant::check_state;

/// Whether they are a state.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(written) = str::from_utf8(bytes) else { return false };
    let Ok(read) = text::read(written) else { return false };
    assert_eq!(check_state(&read.state), Ok(()));
    true
}
