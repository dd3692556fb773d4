//! What is tried is in `fuzz/targets/dns.rs`.
#![no_main]

#[path = "../targets/dns.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
