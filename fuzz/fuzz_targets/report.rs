//! What is tried is in `fuzz/targets/report.rs`.
#![no_main]

#[path = "../targets/report.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
