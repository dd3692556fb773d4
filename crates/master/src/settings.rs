//! How a master behaves, as numbers. The configuration file fills these in; the simulator and tests
//! choose their own.

use crate::controller::reclaim::ReclaimSettings;
use crate::dating::ClockSettings;
use crate::segments::Keep;
use crate::{admission, batching, controller, liveness};
use cellwright_cell::time::Span;

#[derive(Clone, Debug)]
pub struct Settings {
    pub admission: admission::Settings,
    pub batching: batching::Settings,
    pub liveness: liveness::Settings,
    pub control: controller::Settings,
    /// How often controllers look at the state.
    pub control_every: Span,
    pub scheduler_lease: Span,
    /// Whether agents are sent to the replica whose share they are.
    pub redial: bool,
    pub reclaim: ReclaimSettings,
    pub events: Keep,
    pub audit: Keep,
    /// Bytes of the audit log that one user's requests may take.
    pub audit_per_user: u64,
    pub clocks: ClockSettings,
}

/// A month, or a gibibyte.
const KEPT: Keep =
    Keep { segment_bytes: 8 << 20, total_bytes: 1 << 30, age: Span::seconds(30 * 24 * 3600) };

impl Default for Settings {
    fn default() -> Self {
        Settings {
            admission: admission::Settings::default(),
            batching: batching::Settings::default(),
            liveness: liveness::Settings::default(),
            control: controller::Settings::default(),
            control_every: Span(200),
            scheduler_lease: Span::seconds(2),
            redial: true,
            reclaim: ReclaimSettings::default(),
            events: KEPT,
            audit: KEPT,
            audit_per_user: KEPT.total_bytes / 16,
            clocks: ClockSettings::default(),
        }
    }
}
