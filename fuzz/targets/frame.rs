//! Frames of a session in a task: any bytes are frames, the end of them, or refused; reading ends.

use cellwright_api::exec::Frame;
use futures::executor::block_on;

/// Whether a frame is among them.
pub fn run(bytes: &[u8]) -> bool {
    let mut from = bytes;
    // Every frame has at least its head, so there are fewer than bytes.
    for count in 0..=bytes.len() {
        match block_on(Frame::read(&mut from)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return count > 0,
        }
    }
    panic!("more frames than bytes");
}
