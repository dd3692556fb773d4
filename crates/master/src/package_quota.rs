//! The package quota of users, checked before an upload is accepted.
//!
//! The log decides, by the figures in the command ([`StoredPackages::check_quota`]); but by then
//! the bytes are on the disks of a majority. So the same rule is checked at the start of the
//! upload, with uploads in progress counted as if they were complete: however many uploads a user
//! begins at once, together they take no more of the disk than the quota leaves.

use cellwright_cell::blob::{BlobLimits, MIN_CHARGED_BYTES, StoredPackages};
use cellwright_cell::command::Actor;
use cellwright_cell::reason::Rejection;
use cellwright_cell::state::State;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of uploads in progress, by uploader.
#[derive(Clone, Default)]
pub struct IncomingUploads(Arc<Mutex<BTreeMap<Actor, u64>>>);

/// Reserved space for one upload; released when dropped.
pub struct Claim {
    incoming: IncomingUploads,
    by: Actor,
    bytes: u64,
}

impl IncomingUploads {
    /// Reserves `bytes`, or as much as there is where the length is not announced.
    ///
    /// # Errors
    /// When the quota does not allow it.
    pub fn claim_upload(
        &self,
        state: &State,
        by: &Actor,
        bytes: Option<u64>,
        limits: BlobLimits,
    ) -> Result<Claim, Rejection> {
        let mut incoming = self.lock();
        let stored = StoredPackages::of(state.blobs().iter().map(|(_, row)| row), by);
        let own = incoming.get(by).copied().unwrap_or(0);
        let all = incoming.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let stored = StoredPackages {
            own: stored.own.saturating_add(own),
            all: stored.all.saturating_add(all),
        };
        stored.check_quota(by, bytes.unwrap_or(0), limits)?;
        let left = match by {
            Actor::User(_) => limits.per_user.saturating_sub(stored.own),
            _ => u64::MAX,
        };
        let left = left.min(limits.in_all.saturating_sub(stored.all));
        let bytes = bytes.map_or(left, |bytes| bytes.max(MIN_CHARGED_BYTES));
        Ok(self.new_claim(&mut incoming, by, bytes))
    }

    /// Reserves space to upload a package of this length once more. It is in the quota already, but
    /// is on the disk twice until it is compared, so uploads in progress stay within the quota too.
    ///
    /// # Errors
    /// When too many bytes are in progress.
    pub fn claim_repeat_upload(
        &self,
        by: &Actor,
        bytes: u64,
        limits: BlobLimits,
    ) -> Result<Claim, Rejection> {
        let mut incoming = self.lock();
        let own = incoming.get(by).copied().unwrap_or(0);
        let all = incoming.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        StoredPackages { own, all }.check_quota(by, bytes, limits)?;
        Ok(self.new_claim(&mut incoming, by, bytes))
    }

    fn new_claim(&self, incoming: &mut BTreeMap<Actor, u64>, by: &Actor, bytes: u64) -> Claim {
        let claimed = incoming.entry(by.clone()).or_default();
        *claimed = claimed.saturating_add(bytes);
        Claim { incoming: self.clone(), by: by.clone(), bytes }
    }

    /// Whether no upload is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Actor, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The rejection when more bytes came than were reserved.
    #[must_use]
    pub fn exceeded_rejection(&self, state: &State, limits: BlobLimits) -> Option<Rejection> {
        let stored = StoredPackages::of(state.blobs().iter().map(|(_, row)| row), &self.by);
        stored.check_quota(&self.by, self.bytes.saturating_add(1), limits).err()
    }

    /// Maximum bytes that may come.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut incoming = self.incoming.lock();
        let left = incoming.get(&self.by).copied().unwrap_or(0).saturating_sub(self.bytes);
        match left {
            0 => incoming.remove(&self.by),
            left => incoming.insert(self.by.clone(), left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_control::controller::testing::{Cell, name};

    #[test]
    fn uploads_at_once_share_the_quota_and_give_back_what_they_did_not_use() {
        let cell = Cell::with_machines(0);
        let limits =
            BlobLimits { per_user: 10 * MIN_CHARGED_BYTES, in_all: 15 * MIN_CHARGED_BYTES };
        let incoming = IncomingUploads::default();
        let claim = |by: &str, bytes| {
            incoming.claim_upload(&cell.state, &Actor::User(name(by)), bytes, limits)
        };
        let first = claim("ubar", Some(6 * MIN_CHARGED_BYTES)).ok().unwrap();
        let refused = claim("ubar", Some(6 * MIN_CHARGED_BYTES)).err().unwrap().to_string();
        let quota = "packages of ubar take 393216 bytes; 393216 more would exceed the quota of \
                     655360";
        assert_eq!(refused, quota);
        let rest = claim("ubar", None).ok().unwrap();
        assert_eq!(rest.bytes(), 4 * MIN_CHARGED_BYTES);
        assert_eq!(claim("ufoo", None).ok().unwrap().bytes(), 5 * MIN_CHARGED_BYTES);
        drop(rest);
        assert!(claim("ubar", Some(6 * MIN_CHARGED_BYTES)).is_err());
        drop(first);
        assert_eq!(claim("ubar", None).ok().unwrap().bytes(), 10 * MIN_CHARGED_BYTES);
        assert!(incoming.lock().is_empty());
    }
}
