//! Text that must not be seen: token secrets and private keys.
//!
//! The type has neither `Debug` nor `Display`, so that a secret cannot reach a log line through a
//! struct that happens to hold it: such a struct does not derive `Debug` either, and the compiler
//! says so. Rejected: a `Debug` that prints stars. It works until someone formats the inner text.

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

/// A secret text. Reading it takes an explicit [`Secret::expose`] at every use.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// The system could not give random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random source gave no bytes")]
pub struct NoRandomness;

impl Secret {
    #[must_use]
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// A fresh secret of 256 bits, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> Result<Secret, NoRandomness> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Secret(hex(&bytes)))
    }

    /// The text itself, for the wire or a file of mode 0600.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What may be stored and compared instead of the secret.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        sha256(self.0.as_bytes())
    }
}

/// SHA-256 of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let pair = |b: &u8| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]];
    bytes.iter().flat_map(pair).map(char::from).collect()
}

/// Exactly 32 bytes in lower-case hexadecimal digits, or `None`.
#[must_use]
pub fn unhex32(text: &str) -> Option<[u8; 32]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_only_one_spelling_is_read() {
        let bytes = sha256(b"cell");
        assert_eq!(unhex32(&hex(&bytes)), Some(bytes));
        assert_eq!(unhex32(&hex(&bytes).to_uppercase()), None);
        assert_eq!(unhex32("00"), None);
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
    }

    #[test]
    fn two_secrets_differ() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(one.hash(), other.hash());
        assert_eq!(one.expose().len(), 64);
    }
}
