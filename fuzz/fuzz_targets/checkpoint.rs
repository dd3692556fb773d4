//! Any text is refused or is a sound state that survives being written.
#![no_main]

use cellwright_cell::encode::text;
use cellwright_cell::invariant::check_state;

libfuzzer_sys::fuzz_target!(|written: &str| {
    let Ok(read) = text::read(written) else { return };
    assert_eq!(check_state(&read.state), Ok(()));
});
