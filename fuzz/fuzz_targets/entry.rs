//! Any payload is refused or is an entry that an empty cell applies without breaking.
#![no_main]

mod seal;

use cellwright_cell::State;
use cellwright_cell::encode::{load_entry, save_entry};
use cellwright_cell::invariant::check_state;

libfuzzer_sys::fuzz_target!(|payload: &[u8]| {
    let Ok(entry) = load_entry(&seal::sealed(b'E', payload)) else { return };
    assert_eq!(load_entry(&save_entry(&entry)).as_ref(), Ok(&entry));
    let mut state = State::default();
    state.apply(&entry, &mut Vec::new());
    assert_eq!(check_state(&state), Ok(()));
});
