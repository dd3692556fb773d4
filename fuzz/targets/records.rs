//! Records of durable files (events, audit, history's journal): in any bytes, wherever a reader
//! begins to look, what is found is whole, is where it says, and is written to the same bytes
//! again.

use cellwright_store::frame::{Frame, Place, decode, find};

/// Any file, and not at its beginning.
pub const PLACE: Place = Place { file: 3, offset: 100 };

/// Whether a record is among them.
pub fn run(bytes: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = find(bytes, PLACE, from) {
        assert!(at >= from, "a record behind the reader");
        let place = Place { offset: PLACE.offset + at as u64, ..PLACE };
        let frame = decode(&bytes[at..], place).expect("it was found sound");
        let written = frame.encode(place).expect("it is no longer than it was");
        assert_eq!(written, bytes[at..at + frame.size()], "not what was there");
        from = at + frame.size();
    }
    // Mutations seldom hit a checksum: the same bytes as what a record holds, and damaged behind
    // it.
    let frame =
        Frame { is_seal: bytes.len() % 2 == 1, number: bytes.len() as u64, at: 9, payload: bytes };
    let mut file = frame.encode(PLACE).expect("short enough");
    assert_eq!(decode(&file, PLACE), Some(frame));
    file.extend_from_slice(bytes);
    assert_eq!(find(&file, PLACE, 0), Some(0));
    from > 0
}
