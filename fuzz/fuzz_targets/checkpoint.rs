//! What is tried is in `fuzz/targets/checkpoint.rs`.
#![no_main]

#[path = "../targets/checkpoint.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
