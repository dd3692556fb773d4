//! Parameters of the usage estimator, by dimension, and the three named presets.

use crate::resource::DIMENSIONS;
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// Parameters for one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DimensionReclaimConfig {
    /// Margin added to recent peak usage, in thousandths of that usage.
    pub margin_permille: u32,
    /// Time in which the gap between estimate and target halves.
    pub half_life: Span,
    /// Length of the window whose peak usage counts.
    pub peak_window: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReclaimConfig {
    /// By [`crate::resource::Dimension`].
    pub dimensions: [DimensionReclaimConfig; DIMENSIONS],
    /// The limit is reserved for this long after a start: usage of a starting task says little.
    pub warm_up: Span,
    /// Decays are logged in steps of the limit divided by this.
    pub steps: u32,
}

const fn dimension_config(
    margin_permille: u32,
    half_life_s: u64,
    window_s: u64,
) -> DimensionReclaimConfig {
    DimensionReclaimConfig {
        margin_permille,
        half_life: Span::seconds(half_life_s),
        peak_window: Span::seconds(window_s),
    }
}

/// Half-lives: CPU moves with load and can be throttled, so it decays in minutes; memory kills when
/// it is short, so it decays over an hour and looks back further; disk fills and stays.
const fn with_margins(cpu: u32, ram: u32, disk: u32, rate: u32) -> ReclaimConfig {
    ReclaimConfig {
        dimensions: [
            dimension_config(cpu, 600, 900),
            dimension_config(ram, 1800, 3600),
            dimension_config(disk, 3600, 3600),
            dimension_config(rate, 600, 900),
        ],
        warm_up: Span::seconds(300),
        steps: 16,
    }
}

impl ReclaimConfig {
    /// Wide margins: few surprises, little reclaimed.
    pub const BASELINE: ReclaimConfig = with_margins(500, 300, 200, 500);
    /// Midway; the default.
    pub const MEDIUM: ReclaimConfig = with_margins(300, 200, 150, 300);
    /// Small margins: most reclaimed, most evictions of non-prod work.
    pub const AGGRESSIVE: ReclaimConfig = with_margins(100, 100, 100, 100);

    /// The same margins, with estimates that decay `times` times as fast.
    #[must_use]
    pub fn accelerated(mut self, times: u64) -> ReclaimConfig {
        for dimension in &mut self.dimensions {
            dimension.half_life = shortened(dimension.half_life, times);
            dimension.peak_window = shortened(dimension.peak_window, times);
        }
        self
    }

    /// A preset by name, for command lines and configuration.
    ///
    /// # Errors
    /// The allowed names.
    pub fn by_name(name: &str) -> Result<ReclaimConfig, String> {
        match name {
            "baseline" => Ok(ReclaimConfig::BASELINE),
            "medium" => Ok(ReclaimConfig::MEDIUM),
            "aggressive" => Ok(ReclaimConfig::AGGRESSIVE),
            other => Err(format!(
                "reclamation setting {other:?} is not valid; allowed: baseline, medium, aggressive"
            )),
        }
    }
}

/// At least 1: time is divided by these spans.
fn shortened(span: Span, times: u64) -> Span {
    Span((span.0 / times.max(1)).max(1))
}

impl Default for ReclaimConfig {
    fn default() -> Self {
        ReclaimConfig::MEDIUM
    }
}
