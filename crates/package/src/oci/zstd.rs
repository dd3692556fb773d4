//! A layer in zstd: frames one after the other, of which those without data are skipped.
//!
//! A frame states how much of it has to be kept in memory to unpack it; more than [`MAX_WINDOW`] is
//! rejected. The length of the output is bounded by the reader, as for gzip. Checksums in frames
//! are ignored: the digest of the whole layer is verified.
//!
//! Rejected: the bindings to the library in C. It is the faster one, and the only C code that would
//! process untrusted images.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// What `zstd` itself accepts without an option, and the most that its levels ask for.
const MAX_WINDOW: u64 = 128 << 20;

pub(super) struct Frames<R> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(source: R) -> Frames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Frames { source: BufReader::new(source), decoder, is_in_frame: false }
    }

    /// Begins the next frame with data; false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => self.skip(length.into())?,
                Err(why) => return Err(io::Error::new(ErrorKind::InvalidData, why.to_string())),
            }
        }
    }

    fn skip(&mut self, length: u64) -> io::Result<()> {
        let passed = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        if passed < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.is_in_frame {
                match self.decoder.read(buffer)? {
                    0 => {}
                    got => return Ok(got),
                }
                if !self.decoder.is_finished() {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    let decoded = self.decoder.decode_blocks(&mut self.source, one);
                    decoded
                        .map_err(|why| io::Error::new(ErrorKind::InvalidData, why.to_string()))?;
                    continue;
                }
                // The last block may have left something.
                if self.decoder.can_collect() > 0 {
                    continue;
                }
                self.is_in_frame = false;
            }
            if !self.next_frame()? {
                return Ok(0);
            }
            self.is_in_frame = true;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    pub(crate) fn packed(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    /// A frame with a window of `8 << exponent` KiB and this many blocks of 128 KiB of one byte
    /// each.
    pub(crate) fn bomb(exponent: u8, blocks: u32) -> Vec<u8> {
        let mut frame = 0xFD2F_B528_u32.to_le_bytes().to_vec();
        // No size, no dictionary, no checksum; then the window, as a power of two from 1 KiB on.
        frame.extend([0, (exponent + 3) << 3]);
        for block in 1..=blocks {
            let head = (128 << 10 << 3) | 1 << 1 | u32::from(block == blocks);
            frame.extend(&head.to_le_bytes()[..3]);
            frame.push(b'x');
        }
        frame
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Frames::new(bytes).read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn frames_follow_each_other_and_those_without_data_are_passed_over() {
        let skipped = [&0x184D_2A5F_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
        let large: Vec<u8> = (0..700_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let all = [packed(b"one "), skipped.clone(), packed(b""), packed(&large), skipped];
        assert_eq!(read(&all.concat()).unwrap(), [b"one ", &large[..]].concat());
        assert_eq!(read(&bomb(7, 9)).unwrap(), vec![b'x'; 9 * (128 << 10)]);
        assert_eq!(read(b"").unwrap(), b"");
    }

    #[test]
    fn what_is_cut_off_no_zstd_or_takes_too_much_memory_is_an_error() {
        let whole = packed(&[7; 300_000]);
        for cut in 1..whole.len() {
            assert!(read(&whole[..cut]).is_err(), "{cut} of {}", whole.len());
        }
        let skipped = [&0x184D_2A50_u32.to_le_bytes()[..], &9_u32.to_le_bytes(), b"abc"].concat();
        assert_eq!(read(&skipped).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(read(b"no zstd at all").is_err());
        assert!(read(&[&whole[..], b"trailer"].concat()).is_err());
        // 128 MiB is accepted, twice that is not.
        assert!(read(&bomb(14, 1)).is_ok());
        let error = read(&bomb(15, 1)).unwrap_err().to_string();
        assert!(error.to_lowercase().contains("window"), "{error}");
    }
}
