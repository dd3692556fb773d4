//! Blobs: the contents of packages, by digest. The state records which blobs there are; the masters
//! hold the bytes, on a quorum of them before the row is created. So a row guarantees that the
//! bytes can be fetched; a job may name a digest the cell has no row for, which its machines then
//! fetch from elsewhere.

use crate::command::Actor;
use crate::name::Token;
use crate::reason::{Allowed, Given, Rejection};
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
    /// The actor that added it and may remove it.
    pub by: Actor,
}

/// Digits by which a blob is named where everybody can read.
const SHORT_DIGEST_DIGITS: usize = 12;

impl Blob {
    /// Enough of the digest to tell blobs apart, and not enough to fetch one: a caller that knows a
    /// whole digest may read the content.
    #[must_use]
    pub fn short_digest(&self) -> &str {
        self.digest.as_str().get(..SHORT_DIGEST_DIGITS).unwrap_or_default()
    }
}

/// A package counts as at least this much: its row and its file have a cost too.
pub const MIN_CHARGED_BYTES: u64 = 64 << 10;

/// Limits on the bytes of packages. They are set in the masters' configuration, and the leader
/// writes them into the command, so that all replicas decide by the same figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlobLimits {
    /// For one user.
    pub per_user: u64,
    /// For all users together.
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

/// Bytes of packages that are in the cell, or being uploaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPackages {
    /// Those of the user that adds more.
    pub own: u64,
    pub all: u64,
}

impl StoredPackages {
    /// Sums these packages, and those of `by` separately.
    pub fn of<'a>(blobs: impl Iterator<Item = &'a Blob>, by: &Actor) -> StoredPackages {
        blobs.fold(StoredPackages::default(), |sum, blob| {
            let counts = blob.bytes.max(MIN_CHARGED_BYTES);
            let own = if blob.by == *by { counts } else { 0 };
            StoredPackages { own: sum.own.saturating_add(own), all: sum.all.saturating_add(counts) }
        })
    }

    /// # Errors
    /// [`Rejection::PackageQuota`] when `by` may not add this many bytes. The cell's own parts have
    /// only the bound for all together.
    pub fn check_quota(self, by: &Actor, bytes: u64, limits: BlobLimits) -> Result<(), Rejection> {
        let more = bytes.max(MIN_CHARGED_BYTES);
        let over = |user, used: u64, limit| {
            if used.saturating_add(more) > limit {
                Err(Rejection::PackageQuota { user, used, more, limit })
            } else {
                Ok(())
            }
        };
        if let Actor::User(name) = by {
            over(Some(name.clone()), self.own, limits.per_user)?;
        }
        over(None, self.all, limits.in_all)
    }
}

/// # Errors
/// [`Rejection::BadField`] when this is no SHA-256 digest, or when the size is not allowed.
pub fn check_digest_and_size(digest: &Token, bytes: u64) -> Result<(), Rejection> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digest.as_str().len() != SHA256_DIGITS || !digest.as_str().bytes().all(hex) {
        return Err(Rejection::bad_field("digest", Given::text(digest), Allowed::ContentDigest));
    }
    if bytes > MAX_QUANTITY {
        let allowed = Allowed::AtMost(MAX_QUANTITY);
        return Err(Rejection::bad_field("bytes", Given::text(bytes), allowed));
    }
    Ok(())
}
