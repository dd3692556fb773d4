//! Rounded tick marks that cover a range of values.

/// An axis from the first tick to the last, at equal steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub low: f64,
    pub high: f64,
    pub step: f64,
}

/// About how many steps an axis has.
const STEPS: f64 = 6.0;

impl Axis {
    /// The smallest axis with steps of 1, 2 or 5 times a power of ten that holds all values.
    pub fn covering(values: impl Iterator<Item = f64>) -> Axis {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) =
            finite.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return Axis { low: 0.0, high: 1.0, step: 0.2 };
        }
        // A single value gets some space around it.
        let spread = if high > low { high - low } else { high.abs().max(1.0) * 0.1 };
        let power = 10_f64.powf((spread / STEPS).log10().floor());
        let fits = |step: &&f64| spread / (**step * power) <= STEPS;
        let step = [1.0, 2.0, 5.0].iter().find(fits).unwrap_or(&10.0) * power;
        let first = (low / step).floor() * step;
        let last = (high / step).ceil() * step;
        Axis { low: first, high: if last > first { last } else { first + step }, step }
    }

    /// Where a value lies, 0 at the low end and 1 at the high one.
    pub fn position(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    pub fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        (0..=count).map(|i| self.low + self.step * i as f64).collect()
    }

    /// A tick with as many decimals as the step needs.
    pub fn label(&self, tick: f64) -> String {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        // Rounding can leave a minus in front of zero.
        let text = format!("{tick:.decimals$}");
        if text.trim_start_matches(['-', '0', '.']).is_empty() { "0".into() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        let axis = Axis::covering(values.iter().copied());
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(labels(&[0.0, 10.0]), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(&[73.2, 76.7]), ["73", "74", "75", "76", "77"]);
        assert_eq!(
            labels(&[0.031, 0.058]),
            ["0.030", "0.035", "0.040", "0.045", "0.050", "0.055", "0.060"]
        );
        assert!(labels(&[5.0]).len() >= 2);
        assert_eq!(labels(&[f64::NAN]).len(), 6);
    }

    #[test]
    fn positions_run_from_zero_to_one() {
        let axis = Axis::covering([0.0, 10.0].into_iter());
        assert_eq!((axis.position(0.0), axis.position(5.0), axis.position(10.0)), (0.0, 0.5, 1.0));
    }
}
