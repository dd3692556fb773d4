//! Messages between replicas, questions and answers: any bytes are refused, or are a message that
//! reads the same again.

use cellwright_master::peers::{PeerAnswer, PeerCall};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Whether they are one.
pub fn run(bytes: &[u8]) -> bool {
    reads_again::<PeerCall>(bytes) | reads_again::<PeerAnswer>(bytes)
}

fn reads_again<M: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let Ok(message) = postcard::from_bytes::<M>(bytes) else { return false };
    let written = postcard::to_stdvec(&message).expect("what was read can be written");
    let again = postcard::from_bytes::<M>(&written).expect("what was written can be read");
    assert_eq!(postcard::to_stdvec(&again).as_ref(), Ok(&written));
    true
}
