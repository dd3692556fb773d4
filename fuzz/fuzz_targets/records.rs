//! What is tried is in `fuzz/targets/records.rs`.
#![no_main]

#[path = "../targets/records.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
