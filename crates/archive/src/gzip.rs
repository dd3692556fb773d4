//! Compression: gzip, which every system can read, and whose checksum tells a damaged object.

use crate::store::StoreError;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read, Write};

/// Content that is compressed as it comes.
pub struct GzipWriter(GzEncoder<Vec<u8>>);

impl Default for GzipWriter {
    fn default() -> GzipWriter {
        // The time in the header stays zero: the same content makes the same bytes.
        GzipWriter(GzEncoder::new(Vec::new(), Compression::default()))
    }
}

impl GzipWriter {
    pub fn write(&mut self, bytes: &[u8]) {
        // Writing to memory cannot fail.
        let _ = self.0.write_all(bytes);
    }

    /// Bytes after compression so far.
    #[must_use]
    pub fn compressed_bytes(&self) -> usize {
        self.0.get_ref().len()
    }

    #[must_use]
    pub fn finish(self) -> Bytes {
        self.0.finish().unwrap_or_default().into()
    }
}

#[must_use]
pub fn compress(content: &[u8]) -> Bytes {
    let mut writer = GzipWriter::default();
    writer.write(content);
    writer.finish()
}

/// The content of an object, if it is whole and no longer than `most` bytes.
///
/// # Errors
/// When it is damaged, or too long.
pub fn decompress(name: &str, compressed: &[u8], most: u64) -> Result<Vec<u8>, StoreError> {
    let damaged = |why: String| StoreError::Damaged { name: name.to_owned(), why };
    let mut content = Vec::new();
    let mut reader = MultiGzDecoder::new(compressed).take(most.saturating_add(1));
    reader.read_to_end(&mut content).map_err(|why| damaged(why.to_string()))?;
    if content.len() as u64 > most {
        return Err(damaged(format!("it holds more than {most} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_makes_the_same_bytes_and_damage_is_told() {
        let content = b"some text, some text, some text".repeat(20);
        let packed = compress(&content);
        assert_eq!(packed, compress(&content));
        assert!(packed.len() < content.len());
        assert_eq!(decompress("a", &packed, 1 << 20).unwrap(), content);
        let mut broken = packed.to_vec();
        let at = broken.len() - 6;
        broken[at] ^= 1;
        for bad in [&broken[..], &packed[..packed.len() - 1]] {
            assert!(matches!(decompress("a", bad, 1 << 20), Err(StoreError::Damaged { .. })));
        }
        assert!(decompress("a", &packed, 30).unwrap_err().to_string().contains("more than 30"));
    }
}
