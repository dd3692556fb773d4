//! What is tried is in `fuzz/targets/frame.rs`.
#![no_main]

#[path = "../targets/frame.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
