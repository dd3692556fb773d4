//! What is tried is in `fuzz/targets/peer.rs`.
#![no_main]

#[path = "../targets/peer.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
