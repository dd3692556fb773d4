//! An entry of the log: any payload in a valid envelope is refused, or is one that an empty cell
//! applies without breaking.

use super::seal::sealed;
use cellwright_cell::State;
use cellwright_cell::encode::{load_entry, save_entry};
use cellwright_cell::invariant::check_state;

/// Whether it is an entry.
pub fn run(payload: &[u8]) -> bool {
    let Ok(entry) = load_entry(&sealed(b'E', payload)) else { return false };
    assert_eq!(load_entry(&save_entry(&entry)).as_ref(), Ok(&entry));
    let mut state = State::default();
    state.apply(&entry, &mut Vec::new());
    assert_eq!(check_state(&state), Ok(()));
    true
}
