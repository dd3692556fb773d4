//! The estimate of one task, fed with usage samples.

use super::config::{DimensionReclaimConfig, ReclaimConfig};
use crate::resource::{DIMENSIONS, Dimension, Resources};
use crate::time::{Span, Time};

/// Buckets of the peak window; old usage is dropped in steps of window / this.
const BUCKETS: usize = 8;

/// Usage of a task over a short interval that ended at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at: Time,
    pub usage: Resources,
}

/// Maximum over a sliding window, in buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Peak {
    buckets: [u64; BUCKETS],
    /// Number of the bucket the newest sample fell into, counted from the epoch.
    newest: u64,
}

impl Peak {
    fn push(&mut self, at: Time, window: Span, usage: u64) {
        let width = (window.0 / BUCKETS as u64).max(1);
        let bucket = at.0 / width;
        // A sample older than the newest counts in the newest: time never runs backwards here.
        let passed = bucket.saturating_sub(self.newest).min(BUCKETS as u64);
        for step in 1..=passed {
            self.buckets[((self.newest + step) % BUCKETS as u64) as usize] = 0;
        }
        self.newest = self.newest.max(bucket);
        // After a long gap the loop above cleared every bucket, whichever numbers they had.
        let at = (self.newest % BUCKETS as u64) as usize;
        self.buckets[at] = self.buckets[at].max(usage);
    }

    fn max(&self) -> u64 {
        self.buckets.iter().copied().max().unwrap_or(0)
    }
}

/// Running estimate and logged reservation of one task since its last start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    limits: Resources,
    started_at: Time,
    last_at: Time,
    peaks: [Peak; DIMENSIONS],
    /// In 1/256 units, so that slow decays are not lost to rounding.
    current: [u64; DIMENSIONS],
    logged: Resources,
}

const FRACTION: u64 = 256;

impl Estimate {
    /// A task that just started: its limits are reserved.
    #[must_use]
    pub fn new(limits: Resources, started_at: Time) -> Estimate {
        Estimate {
            limits,
            started_at,
            last_at: started_at,
            peaks: [Peak::default(); DIMENSIONS],
            current: limits.to_array().map(|l| l.saturating_mul(FRACTION)),
            logged: limits,
        }
    }

    /// The logged reservation, as far as this estimate knows it.
    #[must_use]
    pub fn logged(&self) -> Resources {
        self.logged
    }

    /// The running estimate, rounded up.
    #[must_use]
    pub fn current(&self) -> Resources {
        Resources::from_array(self.current.map(|c| c.div_ceil(FRACTION)))
    }

    /// Adds a sample; returns the reservation to log, if the change is large enough.
    pub fn sample(&mut self, config: &ReclaimConfig, sample: Sample) -> Option<Resources> {
        let passed = sample.at.since(self.last_at);
        self.last_at = self.last_at.max(sample.at);
        let is_warming_up = sample.at.since(self.started_at) < config.warm_up;
        for dimension in Dimension::ALL {
            let dimension_config = &config.dimensions[dimension as usize];
            self.update_dimension(dimension, dimension_config, sample, passed, is_warming_up);
        }
        self.reservation_to_log(config)
    }

    fn update_dimension(
        &mut self,
        dimension: Dimension,
        config: &DimensionReclaimConfig,
        sample: Sample,
        passed: Span,
        is_warming_up: bool,
    ) {
        let at = dimension as usize;
        let limit = self.limits.get(dimension).saturating_mul(FRACTION);
        let usage = sample.usage.get(dimension);
        self.peaks[at].push(sample.at, config.peak_window, usage);
        let target = with_margin(self.peaks[at].max(), config.margin_permille).min(limit);
        let current = self.current[at];
        self.current[at] = if is_warming_up {
            limit
        } else if usage.saturating_mul(FRACTION) > current || target > current {
            // Usage passed the estimate, or came within the margin of it.
            target.max(current)
        } else {
            target + decayed(current - target, passed, config.half_life)
        };
    }

    /// Rises at once; decays when a whole step has accumulated in some dimension.
    fn reservation_to_log(&mut self, config: &ReclaimConfig) -> Option<Resources> {
        let wanted = self.quantised(config.steps);
        let rises = Dimension::ALL.iter().any(|d| wanted.get(*d) > self.logged.get(*d));
        let falls = Dimension::ALL.iter().any(|d| {
            let step = self.limits.get(*d) / u64::from(config.steps.max(1));
            let gap = self.logged.get(*d).saturating_sub(wanted.get(*d));
            gap > 0 && gap >= step
        });
        if !rises && !falls {
            return None;
        }
        self.logged = wanted;
        Some(wanted)
    }

    /// The estimate rounded up to whole steps of the limit.
    fn quantised(&self, steps: u32) -> Resources {
        let current = self.current();
        let mut out = Resources::ZERO;
        for dimension in Dimension::ALL {
            let limit = self.limits.get(dimension);
            let step = limit.div_ceil(u64::from(steps.max(1))).max(1);
            let up = current.get(dimension).div_ceil(step).saturating_mul(step);
            out.set(dimension, up.min(limit));
        }
        out
    }
}

fn with_margin(peak: u64, permille: u32) -> u64 {
    peak.saturating_mul(FRACTION).saturating_mul(1000 + u64::from(permille)) / 1000
}

/// `gap` after `passed`, halving every `half_life`: whole halvings by shifts, the rest by the
/// quadratic through 1, 1/sqrt 2 and 1/2, which is within 0.05 % of the exponential.
fn decayed(gap: u64, passed: Span, half_life: Span) -> u64 {
    let half_life = half_life.0.max(1);
    let halvings = passed.0 / half_life;
    if halvings >= 63 {
        return 0;
    }
    let rest = u128::from(passed.0 % half_life) * 65_536 / u128::from(half_life);
    // 2^-x = 1 - 0.671573 x + 0.171573 x^2 at x = 0, 1/2, 1; in 1/65536.
    let linear = 44_012 * rest / 65_536;
    let square = 11_244 * rest * rest / (65_536 * 65_536);
    let factor = 65_536 - linear + square;
    ((u128::from(gap >> halvings) * factor) / 65_536) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 16_000;

    /// Adds a sample of CPU usage every 10 s; returns (seconds, usage, logged) after each sample
    /// and how often a reservation was logged.
    fn run(settings: &ReclaimConfig, usage: impl Fn(u64) -> u64, until_s: u64) -> Run {
        let mut estimate = Estimate::new(Resources::new(LIMIT, 0, 0, 0), Time::ZERO);
        let mut out = Run { rows: Vec::new(), entries: 0 };
        for s in (10..=until_s).step_by(10) {
            let sample = Sample { at: Time(s * 1000), usage: Resources::new(usage(s), 0, 0, 0) };
            out.entries += u32::from(estimate.sample(settings, sample).is_some());
            assert!(estimate.logged().cpu <= LIMIT, "never above the limit");
            assert!(
                estimate.logged().cpu >= estimate.current().cpu.min(LIMIT).saturating_sub(1000),
                "the log lags the estimate by less than a step"
            );
            out.rows.push((s, usage(s), estimate.logged().cpu));
        }
        out
    }

    struct Run {
        rows: Vec<(u64, u64, u64)>,
        entries: u32,
    }

    impl Run {
        fn at(&self, s: u64) -> u64 {
            self.rows.iter().find(|r| r.0 == s).unwrap().2
        }
    }

    #[test]
    fn reserves_the_limit_for_the_first_300_seconds() {
        let run = run(&ReclaimConfig::MEDIUM, |_| 1_000, 290);
        assert!(run.rows.iter().all(|r| r.2 == LIMIT));
        assert_eq!(run.entries, 0);
    }

    #[test]
    fn decays_slowly_to_usage_and_margin_then_rests() {
        let run = run(&ReclaimConfig::MEDIUM, |_| 4_000, 6 * 3600);
        // One half-life (600 s) after warm-up: about half the way from 16,000 to 5,200.
        assert!((10_000..=12_000).contains(&run.at(900)), "{}", run.at(900));
        // 4,000 + 30 % = 5,200, rounded up to a step of 1,000.
        assert_eq!(run.at(6 * 3600), 6_000);
        assert!(run.entries <= 16, "one entry per step at most, got {}", run.entries);
        let late = run.rows.iter().filter(|r| r.0 > 3 * 3600).map(|r| r.2);
        assert!(late.clone().max() == late.min(), "at rest nothing is logged");
    }

    #[test]
    fn rises_at_once_when_usage_passes_the_reservation() {
        let run = run(&ReclaimConfig::MEDIUM, |s| if s < 7_200 { 2_000 } else { 12_000 }, 7_300);
        assert!(run.at(7_190) <= 4_000);
        assert!(run.at(7_200) >= 12_000, "{}", run.at(7_200));
    }

    #[test]
    fn a_spike_is_forgotten_only_after_the_peak_window() {
        let spike = |s| if (7_200..7_230).contains(&s) { 10_000 } else { 2_000 };
        let run = run(&ReclaimConfig::MEDIUM, spike, 4 * 3600);
        assert_eq!(run.at(7_230), 13_000);
        assert_eq!(run.at(7_230 + 600), 13_000, "inside the window of 900 s");
        assert!(run.at(4 * 3600) <= 4_000, "{}", run.at(4 * 3600));
    }

    #[test]
    fn a_sawtooth_inside_the_window_logs_nothing_once_settled() {
        let run = run(&ReclaimConfig::MEDIUM, |s| 2_000 + (s % 300) * 10, 4 * 3600);
        let late: Vec<u64> = run.rows.iter().filter(|r| r.0 > 2 * 3600).map(|r| r.2).collect();
        assert!(late.windows(2).all(|w| w[0] == w[1]), "usage swings, the reservation does not");
        assert!(run.rows.iter().skip(60).all(|r| r.2 >= r.1), "never below usage");
    }

    #[test]
    fn follows_a_day_and_logs_a_few_entries_an_hour() {
        // Triangle between 2,000 and 12,000 over 24 h.
        let day = |s: u64| {
            let phase = s % 86_400;
            let up = phase.min(86_400 - phase);
            2_000 + up * 10_000 / 43_200
        };
        let run = run(&ReclaimConfig::MEDIUM, day, 3 * 86_400);
        assert!(run.rows.iter().all(|r| r.2 >= r.1), "never below usage");
        let per_hour = f64::from(run.entries) / 72.0;
        assert!(per_hour < 2.0, "{per_hour} entries per task-hour");
    }

    #[test]
    fn smaller_margins_reclaim_more() {
        let at_rest = |s: &ReclaimConfig| run(s, |_| 8_000, 6 * 3600).at(6 * 3600);
        let (b, m, a) = (
            at_rest(&ReclaimConfig::BASELINE),
            at_rest(&ReclaimConfig::MEDIUM),
            at_rest(&ReclaimConfig::AGGRESSIVE),
        );
        assert!(b > m && m > a, "{b} {m} {a}");
    }

    #[test]
    fn decay_halves_per_half_life() {
        let half = Span::seconds(600);
        assert_eq!(decayed(1 << 20, Span::ZERO, half), 1 << 20);
        assert_eq!(decayed(1 << 20, half, half), 1 << 19);
        let twice = decayed(decayed(1 << 30, Span(300_000), half), Span(300_000), half);
        assert!((twice as i64 - (1 << 29)).abs() < 1 << 20, "{twice}");
        assert_eq!(decayed(u64::MAX, Span(u64::MAX), half), 0);
    }

    #[test]
    fn hostile_samples_do_not_overflow() {
        let mut e = Estimate::new(Resources::new(u64::MAX, 0, 5, 7), Time(5));
        let huge = Resources::new(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        for at in [Time::ZERO, Time::NEVER, Time(7), Time::NEVER] {
            e.sample(&ReclaimConfig::MEDIUM, Sample { at, usage: huge });
        }
        assert_eq!(e.logged().disk, 5);
    }
}
