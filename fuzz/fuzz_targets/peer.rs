//! Any bytes are refused or are a message between replicas that reads the same again.
#![no_main]

use cellwright_master::peers::PeerCall;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(call) = postcard::from_bytes::<PeerCall>(bytes) else { return };
    let written = postcard::to_stdvec(&call).expect("what was read can be written");
    assert!(postcard::from_bytes::<PeerCall>(&written).is_ok());
});
