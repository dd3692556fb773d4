//! What is tried is in `fuzz/targets/oci.rs`.
#![no_main]

#[path = "../targets/oci.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target::run(bytes);
});
