//! Blobs: the contents of packages, by digest. The state knows which there are; the bytes are with
//! the masters, on a quorum of them before the row is made. So a row is a promise that the bytes
//! can be had, and a job may name a digest the cell has no row for: its machines fetch that from
//! elsewhere.

use crate::command::Actor;
use crate::name::Token;
use crate::reason::Refusal;
use crate::resource::MAX_QUANTITY;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// Digits of a SHA-256 digest.
const DIGITS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blob {
    /// SHA-256 of the content in lower-case hexadecimal.
    pub digest: Token,
    pub bytes: u64,
    pub created: Time,
    /// Who brought it, and may take it away again.
    pub by: Actor,
}

/// # Errors
/// [`Refusal::BadField`] when this is no SHA-256 digest, or of no content a machine could hold.
pub fn check(digest: &Token, bytes: u64) -> Result<(), Refusal> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digest.as_str().len() != DIGITS || !digest.as_str().bytes().all(hex) {
        let allowed = format!("{DIGITS} digits 0-9 and a-f: the content's SHA-256");
        return Err(Refusal::BadField {
            field: "digest".into(),
            value: digest.to_string(),
            allowed,
        });
    }
    if bytes > MAX_QUANTITY {
        let allowed = format!("at most {MAX_QUANTITY}");
        return Err(Refusal::BadField { field: "bytes".into(), value: bytes.to_string(), allowed });
    }
    Ok(())
}
