//! How a master behaves, as numbers. The configuration file fills these in; the simulator and tests
//! choose their own.

use crate::segments::Keep;
use cellwright_cell::time::Span;
use cellwright_control::controller::reclaim::ReclaimSettings;
use cellwright_control::settings::Settings as CoreSettings;

#[derive(Clone, Debug)]
pub struct Settings {
    pub core: CoreSettings,
    /// Whether agents are sent to the replica whose share they are.
    pub redial: bool,
    pub reclaim: ReclaimSettings,
    pub events: Keep,
    pub audit: Keep,
    /// Bytes of the audit log that one user's requests may take.
    pub audit_per_user: u64,
}

/// A month, or a gibibyte.
const KEPT: Keep =
    Keep { segment_bytes: 8 << 20, total_bytes: 1 << 30, age: Span::seconds(30 * 24 * 3600) };

impl Default for Settings {
    fn default() -> Self {
        Settings {
            core: CoreSettings::default(),
            redial: true,
            reclaim: ReclaimSettings::default(),
            events: KEPT,
            audit: KEPT,
            audit_per_user: KEPT.total_bytes / 16,
        }
    }
}
