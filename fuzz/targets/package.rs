//! A package file: any bytes, bare and behind a head that fits them, are refused, or are a package
//! whose every entry stays inside its folder.

use cellwright_identity::secret::{hex, sha256};
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

/// Whether they are one, bare or behind a head.
pub fn run(bytes: &[u8]) -> bool {
    stays_inside(bytes) | stays_inside(&sealed(bytes))
}

fn stays_inside(file: &[u8]) -> bool {
    let Ok((_, entries)) = list(file, file.len() as u64, LIMITS) else { return false };
    for entry in entries {
        let path = entry.path.to_string();
        assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path}");
    }
    true
}
