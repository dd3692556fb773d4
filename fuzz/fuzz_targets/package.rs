//! Any file is refused or is a package whose every entry stays inside its folder.
#![no_main]

use cellwright_api::secret::{hex, sha256};
use cellwright_package::head::{CHUNK_BYTES, HEAD_NAME};
use cellwright_package::unpack::{Limits, list};

const LIMITS: Limits = Limits { entries: 10_000, bytes: 1 << 24, disk: 1 << 26 };

/// The body behind a head that fits it, written from the documented layout: without one a digest
/// would keep every mutation out.
fn sealed(body: &[u8]) -> Vec<u8> {
    let chunks: Vec<String> =
        body.chunks(CHUNK_BYTES as usize).map(|chunk| hex(&sha256(chunk))).collect();
    let head = serde_json::json!({
        "format": 1, "chunk_bytes": CHUNK_BYTES, "body_bytes": body.len(), "chunks": chunks,
    });
    let head = head.to_string().into_bytes();
    let mut header = tar::Header::new_ustar();
    header.set_path(HEAD_NAME).expect("a short name");
    header.set_size(head.len() as u64);
    header.set_mode(0o444);
    header.set_cksum();
    let mut file = header.as_bytes().to_vec();
    file.extend(&head);
    file.resize(file.len().next_multiple_of(512), 0);
    file.extend(body);
    file
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = list(bytes, bytes.len() as u64, LIMITS);
    let whole = sealed(bytes);
    let Ok((_, entries)) = list(whole.as_slice(), whole.len() as u64, LIMITS) else { return };
    for entry in entries {
        let path = entry.path.to_string();
        assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path}");
    }
});
