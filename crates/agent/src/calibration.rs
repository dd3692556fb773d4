//! What this machine can do, measured where its operator does not say it (B3): how fast its cores
//! are beside the core that the cell counts in, and what its disk writes.
//!
//! Measured once: the results stand in the agent's folder and hold until the hardware or the folder
//! changes. A measurement at each start would give a machine another capacity after every restart,
//! by what its neighbours did at that moment.

mod cpu;
mod disk;

pub use cpu::{CpuFactor, CpuFactorSource};
pub use disk::DiskSpeed;

use crate::config::Config;
use std::path::Path;

/// What was measured, or configured in place of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calibration {
    pub cpu: CpuFactor,
    /// Absent where the operator gives a rate, or it could not be measured.
    pub disk: Option<DiskSpeed>,
}

impl Calibration {
    /// Reads what is known of this machine, and measures the rest: for less than a second, and no
    /// more than some megabytes. `data`: the agent's folder.
    #[must_use]
    pub fn load(config: &Config, data: &Path) -> Calibration {
        let cpu = match config.cpu_factor {
            CpuFactorSource::Given(factor) => factor,
            CpuFactorSource::Measured => cpu::load_or_measure(data),
        };
        // With a capacity the operator has said what the disk does.
        let disk = if config.capacity.is_some() { None } else { disk::load_or_measure(data) };
        Calibration { cpu, disk }
    }
}
