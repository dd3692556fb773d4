//! Records of durable files (events, audit, history's journal): in any bytes, wherever a reader
//! begins to look, what is found is whole, is where it says, and is written to the same bytes
//! again.

use cellwright_store::frame::{FilePosition, Frame, decode, find_next};

/// Any file, and not at its beginning.
pub const POSITION: FilePosition = FilePosition { file: 3, offset: 100 };

/// Whether a record is among them.
pub fn run(bytes: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = find_next(bytes, POSITION, from) {
        assert!(at >= from, "a record behind the reader");
        let position = FilePosition { offset: POSITION.offset + at as u64, ..POSITION };
        let frame = decode(&bytes[at..], position).expect("it was found sound");
        let written = frame.encode(position).expect("it is no longer than it was");
        assert_eq!(written, bytes[at..at + frame.size()], "not what was there");
        from = at + frame.size();
    }
    // Mutations seldom hit a checksum: the same bytes as what a record holds, and damaged behind
    // it.
    let frame = Frame {
        is_seal: bytes.len() % 2 == 1,
        number: bytes.len() as u64,
        time_millis: 9,
        payload: bytes,
    };
    let mut file = frame.encode(POSITION).expect("short enough");
    assert_eq!(decode(&file, POSITION), Some(frame));
    file.extend_from_slice(bytes);
    assert_eq!(find_next(&file, POSITION, 0), Some(0));
    from > 0
}
