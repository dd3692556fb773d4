//! The knobs of the estimator, per dimension, and the three named settings.

use crate::resource::DIMENSIONS;
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// How one dimension is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DimensionSettings {
    /// Added to recent peak usage, in thousandths of that usage.
    pub margin_permille: u32,
    /// Time in which the gap between estimate and target halves.
    pub half_life: Span,
    /// How far back the peak is taken from.
    pub peak_window: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Settings {
    /// By [`crate::resource::Dimension`].
    pub dimensions: [DimensionSettings; DIMENSIONS],
    /// The limit is reserved this long after a start: usage of a starting task says little.
    pub warm_up: Span,
    /// Decays are logged in steps of limit / this.
    pub steps: u32,
}

const fn dimension(margin_permille: u32, half_life_s: u64, window_s: u64) -> DimensionSettings {
    DimensionSettings {
        margin_permille,
        half_life: Span::seconds(half_life_s),
        peak_window: Span::seconds(window_s),
    }
}

/// Half-lives: CPU moves with load and can be throttled, so it decays in minutes; memory kills when
/// it is short, so it decays over an hour and looks back further; disk fills and stays.
const fn with_margins(cpu: u32, ram: u32, disk: u32, rate: u32) -> Settings {
    Settings {
        dimensions: [
            dimension(cpu, 600, 900),
            dimension(ram, 1800, 3600),
            dimension(disk, 3600, 3600),
            dimension(rate, 600, 900),
        ],
        warm_up: Span::seconds(300),
        steps: 16,
    }
}

impl Settings {
    /// Wide margins: few surprises, little reclaimed.
    pub const BASELINE: Settings = with_margins(500, 300, 200, 500);
    /// Midway; the default.
    pub const MEDIUM: Settings = with_margins(300, 200, 150, 300);
    /// Small margins: most reclaimed, most evictions of non-prod work.
    pub const AGGRESSIVE: Settings = with_margins(100, 100, 100, 100);

    /// The same margins, with estimates that fall so many times as fast.
    #[must_use]
    pub fn hastened(mut self, times: u64) -> Settings {
        for dimension in &mut self.dimensions {
            dimension.half_life = shortened(dimension.half_life, times);
            dimension.peak_window = shortened(dimension.peak_window, times);
        }
        self
    }

    /// By name, for command lines and configuration.
    ///
    /// # Errors
    /// Names what is allowed.
    pub fn named(name: &str) -> Result<Settings, String> {
        match name {
            "baseline" => Ok(Settings::BASELINE),
            "medium" => Ok(Settings::MEDIUM),
            "aggressive" => Ok(Settings::AGGRESSIVE),
            other => Err(format!(
                "reclamation setting {other:?} is not valid; allowed: baseline, medium, aggressive"
            )),
        }
    }
}

/// Never nothing at all: time is divided by these.
fn shortened(span: Span, times: u64) -> Span {
    Span((span.0 / times.max(1)).max(1))
}

impl Default for Settings {
    fn default() -> Self {
        Settings::MEDIUM
    }
}
