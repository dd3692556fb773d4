//! A checkpoint in binary form: any payload in a valid envelope is refused, or is a sound state
//! that survives being saved.

use super::seal::sealed;
use cellwright_cell::encode::{load, save};
use cellwright_cell::invariant::check_state;

/// Whether it is a state.
pub fn run(payload: &[u8]) -> bool {
    let Ok(mut state) = load(&sealed(b'S', payload)) else { return false };
    assert_eq!(check_state(&state), Ok(()));
    let again = load(&save(&state)).map(|mut again| again.hash());
    assert_eq!(again, Ok(state.hash()));
    true
}
