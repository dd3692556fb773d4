//! Any bytes are frames of a session, the end of them, or refused; reading them ends.
#![no_main]

use cellwright_api::exec::Frame;
use futures::executor::block_on;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut from = bytes;
    // Every frame has at least its head, so there are fewer than bytes.
    for _ in 0..=bytes.len() {
        match block_on(Frame::read(&mut from)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
    panic!("more frames than bytes");
});
