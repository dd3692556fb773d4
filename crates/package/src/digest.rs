//! A package's digest: the SHA-256 of its file. The masters' blobs use the same digest, so a
//! package is a blob like any other, and `sha256sum FILE` prints its name.

use cellwright_cell::name::{InvalidName, Token};
use cellwright_identity::secret::{hex, sha256, unhex32};
use ring::digest::{Context, SHA256};
use std::fmt;

/// SHA-256 of a package file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackageDigest(pub [u8; 32]);

impl PackageDigest {
    /// From 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<PackageDigest> {
        unhex32(text).map(PackageDigest)
    }

    #[must_use]
    pub fn of(content: &[u8]) -> PackageDigest {
        PackageDigest(sha256(content))
    }

    /// As job specs spell it.
    ///
    /// # Errors
    /// Never: 64 hexadecimal digits are a token.
    pub fn token(self) -> Result<Token, InvalidName> {
        Token::new(&self.to_string())
    }
}

impl fmt::Display for PackageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PackageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// SHA-256 of bytes that arrive in pieces.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn new() -> Hasher {
        Hasher(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(self.0.finish().as_ref());
        out
    }
}
