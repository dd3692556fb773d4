//! What is tried is in `fuzz/targets/entry.rs`.
#![no_main]

#[path = "../targets/seal.rs"]
mod seal;
#[path = "../targets/entry.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
