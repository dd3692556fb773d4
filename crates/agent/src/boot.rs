//! The machine's incarnation. The kernel's boot id tells a reboot: what ran before it is dead,
//! whatever the records say. The number of the incarnation grows with each boot, so that the
//! masters can reject messages of an earlier one; where the record here is lost, the masters know
//! the number ([`cellwright_agent_core::incarnation`]).
//!
//! Times in the agent are milliseconds on the boot clock, which shims read too
//! (`crates/shim/src/boot.rs`).

use crate::record::{self, Durability, RecordError, Recorded};
use cellwright_agent_core::incarnation::IncarnationNumber;
use cellwright_shim::boot::BOOT_ID;
pub use cellwright_shim::boot::{boot_id, now};
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIncarnation {
    pub boot_id: String,
    pub number: IncarnationNumber,
}

impl Recorded for MachineIncarnation {}

/// The incarnation that follows `before` on a machine that booted as `boot_id`.
#[must_use]
pub fn next_incarnation(before: Option<&MachineIncarnation>, boot_id: &str) -> MachineIncarnation {
    match before {
        Some(stored) if stored.boot_id == boot_id => stored.clone(),
        _ => {
            let number = IncarnationNumber::next_after(before.map(|life| life.number));
            MachineIncarnation { boot_id: boot_id.to_owned(), number }
        }
    }
}

/// The current incarnation, and whether the machine booted since the one in `path`.
/// [`save_incarnation`] writes it, once everything of the incarnation before has been given its
/// exit.
///
/// # Errors
/// When the record cannot be read. A damaged one counts as none: the masters know the number.
pub fn load_incarnation(path: &Path) -> Result<(MachineIncarnation, bool), RecordError> {
    let before = match record::read::<MachineIncarnation>(path) {
        Ok(before) => before,
        Err(RecordError::Damaged { .. }) => None,
        Err(error) => return Err(error),
    };
    let io = |why| RecordError::Io { path: BOOT_ID.into(), why };
    let boot_id = boot_id().map_err(io)?;
    let incarnation = next_incarnation(before.as_ref(), &boot_id);
    let rebooted = before.as_ref().is_some_and(|old| old.boot_id != incarnation.boot_id);
    Ok((incarnation, rebooted))
}

/// # Errors
/// When the record cannot be written.
pub fn save_incarnation(path: &Path, incarnation: &MachineIncarnation) -> Result<(), RecordError> {
    match record::read::<MachineIncarnation>(path) {
        Ok(Some(stored)) if stored == *incarnation => Ok(()),
        _ => record::write(path, incarnation, Durability::PowerCut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_ends_with_the_boot_and_numbers_only_grow() {
        let first = next_incarnation(None, "a");
        assert_eq!((first.number.incarnation, first.number.is_granted), (1, false));
        assert_eq!(next_incarnation(Some(&first), "a"), first);
        let second = next_incarnation(Some(&first), "b");
        assert_eq!((second.boot_id.as_str(), second.number.incarnation), ("b", 2));
    }
}
