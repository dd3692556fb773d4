//! What is tried is in `fuzz/targets/package.rs`.
#![no_main]

#[path = "../targets/package.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
