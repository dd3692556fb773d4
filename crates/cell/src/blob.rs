//! Blobs: the contents of packages, by digest. The state knows which there are; the bytes are with
//! the masters, on a quorum of them before the row is made. So a row is a promise that the bytes
//! can be had, and a job may name a digest the cell has no row for: its machines fetch that from
//! elsewhere.

use crate::command::Actor;
use crate::name::Token;
use crate::reason::Rejection;
use crate::resource::MAX_QUANTITY;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// Digits of a SHA-256 digest.
const SHA256_DIGITS: usize = 64;

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

/// Digits by which a blob is called where everybody reads.
const SHORT_DIGEST_DIGITS: usize = 12;

impl Blob {
    /// Enough of the digest to tell blobs apart, and not enough to fetch one: whoever knows a whole
    /// digest may read the content.
    #[must_use]
    pub fn short_digest(&self) -> &str {
        self.digest.as_str().get(..SHORT_DIGEST_DIGITS).unwrap_or_default()
    }
}

/// What a package counts as at least: its row and its file cost something too.
pub const MIN_CHARGED_BYTES: u64 = 64 << 10;

/// How many bytes of packages there may be. The masters' configuration says so, and whoever leads
/// writes it into the command, so that all replicas decide by the same figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlobLimits {
    /// Of one user.
    pub per_user: u64,
    /// Of all.
    pub in_all: u64,
}

impl BlobLimits {
    /// No limit at all.
    pub const UNLIMITED: BlobLimits = BlobLimits { per_user: u64::MAX, in_all: u64::MAX };
}

impl Default for BlobLimits {
    fn default() -> BlobLimits {
        BlobLimits { per_user: 16 << 30, in_all: 128 << 30 }
    }
}

/// Bytes of packages that are in the cell, or on their way to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPackages {
    /// Of whoever brings more.
    pub own: u64,
    pub all: u64,
}

impl StoredPackages {
    /// What these packages count as, for the sake of `by`.
    pub fn of<'a>(blobs: impl Iterator<Item = &'a Blob>, by: &Actor) -> StoredPackages {
        blobs.fold(StoredPackages::default(), |sum, blob| {
            let counts = blob.bytes.max(MIN_CHARGED_BYTES);
            let own = if blob.by == *by { counts } else { 0 };
            StoredPackages { own: sum.own.saturating_add(own), all: sum.all.saturating_add(counts) }
        })
    }

    /// # Errors
    /// [`Rejection::PackageQuota`] when `by` may not bring so many bytes more. The cell's own parts
    /// are bounded by what all may bring.
    pub fn check_quota(self, by: &Actor, bytes: u64, limits: BlobLimits) -> Result<(), Rejection> {
        let more = bytes.max(MIN_CHARGED_BYTES);
        let over = |user, used: u64, limit| match used.saturating_add(more) > limit {
            true => Err(Rejection::PackageQuota { user, used, more, limit }),
            false => Ok(()),
        };
        if let Actor::User(name) = by {
            over(Some(name.clone()), self.own, limits.per_user)?;
        }
        over(None, self.all, limits.in_all)
    }
}

/// # Errors
/// [`Rejection::BadField`] when this is no SHA-256 digest, or of no content a machine could hold.
pub fn check_digest_and_size(digest: &Token, bytes: u64) -> Result<(), Rejection> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digest.as_str().len() != SHA256_DIGITS || !digest.as_str().bytes().all(hex) {
        let allowed = format!("{SHA256_DIGITS} digits 0-9 and a-f: the content's SHA-256");
        return Err(Rejection::BadField {
            field: "digest".into(),
            value: digest.to_string(),
            allowed,
        });
    }
    if bytes > MAX_QUANTITY {
        let allowed = format!("at most {MAX_QUANTITY}");
        return Err(Rejection::BadField {
            field: "bytes".into(),
            value: bytes.to_string(),
            allowed,
        });
    }
    Ok(())
}
