//! Configuration of a master as numbers. The configuration file fills these in; the simulator and
//! tests choose their own.

use crate::segments::RetentionLimits;
use cellwright_api::level::known_level;
use cellwright_cell::time::Span;
use cellwright_control::config::ControlConfig as CoreSettings;
use cellwright_control::controller::reclaim::ReclamationConfig;

#[derive(Clone, Debug)]
pub struct MasterConfig {
    pub core: CoreSettings,
    /// Whether agents are redirected to the replica that polls them.
    pub redirect: bool,
    pub reclaim: ReclamationConfig,
    pub events: RetentionLimits,
    pub audit: RetentionLimits,
    /// Bytes of the audit log that one user's requests may take.
    pub audit_per_user: u64,
    /// The newest level of the cell that this replica knows; what is beyond it stops it.
    pub known_level: u32,
}

/// A month, or a gibibyte.
const DEFAULT_RETENTION: RetentionLimits = RetentionLimits {
    segment_bytes: 8 << 20,
    total_bytes: 1 << 30,
    age: Span::seconds(30 * 24 * 3600),
};

impl Default for MasterConfig {
    fn default() -> Self {
        MasterConfig {
            core: CoreSettings::default(),
            redirect: true,
            reclaim: ReclamationConfig::default(),
            events: DEFAULT_RETENTION,
            audit: DEFAULT_RETENTION,
            audit_per_user: DEFAULT_RETENTION.total_bytes / 16,
            known_level: known_level(),
        }
    }
}
