//! Any payload is refused or is a sound state that survives being saved.
#![no_main]

mod seal;

use cellwright_cell::encode::{load, save};
use cellwright_cell::invariant::check_state;

libfuzzer_sys::fuzz_target!(|payload: &[u8]| {
    let Ok(mut state) = load(&seal::sealed(b'S', payload)) else { return };
    assert_eq!(check_state(&state), Ok(()));
    let again = load(&save(&state)).map(|mut again| again.hash());
    assert_eq!(again, Ok(state.hash()));
});
