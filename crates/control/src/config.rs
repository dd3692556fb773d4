//! The configuration of the core. The master's configuration fills it in; the simulator and tests
//! choose their own.

use crate::log_time::ClockConfig;
use crate::{admission, batching, controller, liveness};
use cellwright_cell::time::Span;

#[derive(Clone, Debug)]
pub struct ControlConfig {
    pub admission: admission::AdmissionConfig,
    pub batching: batching::BatchingConfig,
    pub liveness: liveness::LivenessConfig,
    pub controllers: controller::ControllerConfig,
    /// How often controllers step.
    pub controller_interval: Span,
    pub scheduler_lease: Span,
    pub clocks: ClockConfig,
}

impl Default for ControlConfig {
    fn default() -> Self {
        ControlConfig {
            admission: admission::AdmissionConfig::default(),
            batching: batching::BatchingConfig::default(),
            liveness: liveness::LivenessConfig::default(),
            controllers: controller::ControllerConfig::default(),
            controller_interval: Span(200),
            scheduler_lease: Span::seconds(2),
            clocks: ClockConfig::default(),
        }
    }
}
