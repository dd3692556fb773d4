//! Messages between replicas, questions and answers: any bytes are refused, or are a message that
//! reads the same again.

use cellwright_api::wire::{NEWEST, WireMessage};
use cellwright_master::peers::{PeerAnswer, PeerCall};

/// Whether they are one.
pub fn run(bytes: &[u8]) -> bool {
    reads_again::<PeerCall>(bytes) | reads_again::<PeerAnswer>(bytes)
}

fn reads_again<M: WireMessage>(bytes: &[u8]) -> bool {
    let Ok(message) = M::decode(NEWEST, bytes) else { return false };
    let written = message.encode(NEWEST).expect("what was read can be written");
    let again = M::decode(NEWEST, &written).expect("what was written can be read");
    assert_eq!(again.encode(NEWEST).as_ref(), Ok(&written));
    true
}
