//! Checksummed frames in append-only files: their bytes, and how to find the next sound one.
//!
//! A frame has a header with a checksum of its own and a body with another, both salted with the
//! position it was written to. A reader that met bad bytes finds the next sound frame without
//! trusting any length, and a frame that turns up at another position is not accepted.
//!
//! One rule for damage, here and in the replicated log: bytes that do not read are the tail of a
//! torn write only where nothing sound follows them and none of them had been synced. Everything
//! else is damage, and is distinguished from "there was nothing".

use std::io;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Magic 4, length 4, number 8, time 8, checksum 4.
pub const HEADER_LEN: usize = 28;
/// The checksum of the payload.
pub const TRAILER_LEN: usize = 8;

const RECORD_MAGIC: [u8; 4] = *b"cREC";
const SEAL_MAGIC: [u8; 4] = *b"cSEA";

/// The position of a frame; also the salt of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// Which file, by the number in its name.
    pub file: u64,
    pub offset: u64,
}

impl FilePosition {
    fn salt(self) -> u64 {
        self.file.rotate_left(32) ^ self.offset
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The end of a file that is complete; its payload is empty.
    pub is_seal: bool,
    pub number: u64,
    pub time_millis: u64,
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// How many bytes it takes up.
    #[must_use]
    pub fn size(&self) -> usize {
        HEADER_LEN + self.payload.len() + TRAILER_LEN
    }

    /// # Errors
    /// When the payload is too long for a frame.
    pub fn encode(&self, position: FilePosition) -> io::Result<Vec<u8>> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "record of 4 GiB or more");
        let length = u32::try_from(self.payload.len()).map_err(too_long)?;
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend_from_slice(if self.is_seal { &SEAL_MAGIC } else { &RECORD_MAGIC });
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.time_millis.to_le_bytes());
        let check = xxh3_64_with_seed(&bytes, position.salt());
        bytes.extend_from_slice(&(check as u32).to_le_bytes());
        bytes.extend_from_slice(self.payload);
        bytes.extend_from_slice(&xxh3_64_with_seed(self.payload, check).to_le_bytes());
        Ok(bytes)
    }
}

/// The frame at the start of `bytes`, which were found at `position`, if it is whole and sound.
#[must_use]
pub fn decode(bytes: &[u8], position: FilePosition) -> Option<Frame<'_>> {
    let head = bytes.first_chunk::<HEADER_LEN>()?;
    let is_seal = head[..4] == SEAL_MAGIC;
    if !is_seal && head[..4] != RECORD_MAGIC {
        return None;
    }
    let check = xxh3_64_with_seed(&head[..HEADER_LEN - 4], position.salt());
    if check as u32 != read_le(&head[HEADER_LEN - 4..])? as u32 {
        return None;
    }
    let length = read_le(&head[4..8])? as usize;
    let payload = bytes.get(HEADER_LEN..HEADER_LEN.checked_add(length)?)?;
    let tail = bytes.get(HEADER_LEN + length..HEADER_LEN + length + TRAILER_LEN)?;
    (xxh3_64_with_seed(payload, check) == read_le(tail)?).then_some(Frame {
        is_seal,
        number: read_le(&head[8..16])?,
        time_millis: read_le(&head[16..24])?,
        payload,
    })
}

/// Where the next sound frame begins, at `from` or later. `bytes` begin at `position`.
#[must_use]
pub fn find_next(bytes: &[u8], position: FilePosition, from: usize) -> Option<usize> {
    let last = bytes.len().checked_sub(HEADER_LEN + TRAILER_LEN)?;
    (from..=last).find(|at| {
        let magic = &bytes[*at..*at + 4];
        (magic == RECORD_MAGIC || magic == SEAL_MAGIC)
            && decode(
                &bytes[*at..],
                FilePosition { offset: position.offset + *at as u64, ..position },
            )
            .is_some()
    })
}

/// Up to eight bytes as a number, the lowest first.
fn read_le(bytes: &[u8]) -> Option<u64> {
    let mut eight = [0; 8];
    eight.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITION: FilePosition = FilePosition { file: 3, offset: 100 };

    fn frame() -> Frame<'static> {
        Frame { is_seal: false, number: 7, time_millis: 9, payload: b"what happened" }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let bytes = frame().encode(POSITION).unwrap();
        assert_eq!(decode(&bytes, POSITION), Some(frame()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad, POSITION), None, "bit {bit}");
        }
        for left in 0..bytes.len() {
            assert_eq!(decode(&bytes[..left], POSITION), None, "cut at {left}");
        }
    }

    #[test]
    fn a_frame_is_sound_only_where_it_was_written() {
        let bytes = frame().encode(POSITION).unwrap();
        assert_eq!(decode(&bytes, FilePosition { offset: 101, ..POSITION }), None);
        assert_eq!(decode(&bytes, FilePosition { file: 4, ..POSITION }), None);
    }

    #[test]
    fn the_next_sound_frame_is_found_whatever_a_length_says() {
        let first = frame().encode(POSITION).unwrap();
        let then = FilePosition { offset: POSITION.offset + first.len() as u64, ..POSITION };
        let second = Frame { number: 8, ..frame() }.encode(then).unwrap();
        let whole = [first.clone(), second].concat();
        for bit in 0..first.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(find_next(&bad, POSITION, 0), Some(first.len()), "bit {bit}");
        }
        assert_eq!(find_next(&whole, POSITION, 1), Some(first.len()));
        assert_eq!(find_next(&whole, POSITION, first.len() + 1), None);
        assert_eq!(find_next(&whole[..5], POSITION, 0), None);
    }
}
