//! How the core behaves, as numbers. The configuration of the master fills these in; the simulator
//! and tests choose their own.

use crate::dating::ClockSettings;
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
    pub clocks: ClockSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            admission: admission::Settings::default(),
            batching: batching::Settings::default(),
            liveness: liveness::Settings::default(),
            control: controller::Settings::default(),
            control_every: Span(200),
            scheduler_lease: Span::seconds(2),
            clocks: ClockSettings::default(),
        }
    }
}
