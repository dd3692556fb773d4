//! The CPU factor: how many cores of the cell one CPU of this machine is worth. Jobs ask for cores
//! of the cell; cgroups and the kernel's accounts know the CPUs of this machine. The agent converts
//! where the two meet, and nobody else has to know.
//!
//! It is measured by a loop that depends on what most programs wait for: a chain of integer
//! arithmetic through a table that fits into a core's own cache. The best of several short rounds
//! counts, because whatever disturbs a round makes it slower, and it is rounded, so that machines
//! of one model have one factor.
//!
//! Rejected: the clock rate, which says nothing of what a core does in a cycle; measuring unless
//! switched off. A cell of one model gains nothing by it, and where a neighbour on the same
//! hardware is loud the first measurement would be kept.

use crate::record::{self, Durability, Recorded};
use cellwright_cell::resource::Resources;
use cellwright_isolate::machine;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const CPU_FILE: &str = "cpu_factor";
/// Least and most, in thousandths: what is outside is a mistake.
const RANGE: std::ops::RangeInclusive<u32> = 100..=10_000;
/// Measured factors are multiples of so many thousandths.
const STEP: u64 = 50;
/// Rounds of the loop in a millisecond on a core of factor 1: one thread of a server core of 2021.
const REFERENCE_ROUNDS_PER_MS: u64 = 300_000;
/// Steps of the loop in one round of the measurement, some ten milliseconds.
const STEPS: u64 = 3_000_000;
const ROUNDS: u32 = 12;
/// Entries of the table: 32 KiB.
const TABLE: usize = 4096;

/// Cores of the cell in a thousand CPUs of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFactor(u32);

impl Default for CpuFactor {
    fn default() -> CpuFactor {
        CpuFactor(1000)
    }
}

impl CpuFactor {
    /// In thousandths; `None` where that is no factor of any machine.
    #[must_use]
    pub fn of_thousandths(thousandths: u32) -> Option<CpuFactor> {
        RANGE.contains(&thousandths).then_some(CpuFactor(thousandths))
    }

    #[must_use]
    pub fn is_one(self) -> bool {
        self == CpuFactor::default()
    }

    /// Thousandths of this machine's CPUs as thousandths of cores of the cell.
    #[must_use]
    pub fn to_cell(self, milli: u64) -> u64 {
        milli.saturating_mul(u64::from(self.0)) / 1000
    }

    /// The other way round: never less than was asked for.
    #[must_use]
    pub fn to_machine(self, milli: u64) -> u64 {
        milli.saturating_mul(1000).div_ceil(u64::from(self.0))
    }

    /// What the cell counts as what this machine has to give for it.
    #[must_use]
    pub fn on_machine(self, amounts: Resources) -> Resources {
        Resources { cpu: self.to_machine(amounts.cpu), ..amounts }
    }
}

impl std::fmt::Display for CpuFactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Where the factor comes from: a number such as `1.25`, or `"measured"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum CpuFactorSource {
    Given(CpuFactor),
    Measured,
}

impl Default for CpuFactorSource {
    fn default() -> CpuFactorSource {
        CpuFactorSource::Given(CpuFactor::default())
    }
}

impl TryFrom<toml::Value> for CpuFactorSource {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<CpuFactorSource, String> {
        let number = match &value {
            toml::Value::String(text) if text == "measured" => {
                return Ok(CpuFactorSource::Measured);
            }
            toml::Value::Float(number) => Some(*number),
            toml::Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
            _ => None,
        };
        let thousandths = number.map(|number| (number * 1000.0).round());
        let sane = thousandths.filter(|number| (0.0..1e6).contains(number));
        // In range, so nothing is cut off.
        let factor = sane.and_then(|number| CpuFactor::of_thousandths(number as u32));
        factor.map(CpuFactorSource::Given).ok_or_else(|| {
            format!("cpu_factor: {value}; allowed: a number from 0.1 to 10, or \"measured\"")
        })
    }
}

/// A measurement, and the CPUs that it is of.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredCpu {
    model: String,
    factor: CpuFactor,
}

impl Recorded for MeasuredCpu {}

/// The factor that is on record for CPUs of this model, else a new one.
pub(super) fn load_or_measure(data: &Path) -> CpuFactor {
    load_or_measure_as(data, &machine::cpu_model_name().unwrap_or_default(), measure)
}

fn load_or_measure_as(data: &Path, model: &str, measure: impl Fn() -> CpuFactor) -> CpuFactor {
    let path = data.join(CPU_FILE);
    let found = record::read::<MeasuredCpu>(&path).unwrap_or_else(|error| {
        tracing::warn!(%error, "the speed of this machine's cores is measured again");
        None
    });
    let is_sane = |known: &MeasuredCpu| RANGE.contains(&known.factor.0);
    if let Some(known) = found.filter(|known| known.model == model && is_sane(known)) {
        return known.factor;
    }
    let measured = MeasuredCpu { model: model.to_owned(), factor: measure() };
    tracing::info!(model, factor = %measured.factor, "the speed of this machine's cores");
    if let Err(error) = record::write(&path, &measured, Durability::Process) {
        tracing::warn!(%error, "the speed of this machine's cores will be measured again");
    }
    measured.factor
}

fn measure() -> CpuFactor {
    let table = table();
    let round = |_| {
        let begun = Instant::now();
        black_box(walk(black_box(&table), STEPS));
        u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    };
    factor_of((0..ROUNDS).map(round).min().unwrap_or(1))
}

/// The factor of a core that takes so many microseconds for a round.
fn factor_of(micros: u64) -> CpuFactor {
    let thousandths = STEPS.saturating_mul(1_000_000) / REFERENCE_ROUNDS_PER_MS / micros.max(1);
    let rounded = (thousandths + STEP / 2) / STEP * STEP;
    let bounded = rounded.clamp(u64::from(*RANGE.start()), u64::from(*RANGE.end()));
    CpuFactor(u32::try_from(bounded).unwrap_or(*RANGE.end()))
}

fn table() -> Vec<u64> {
    (0..TABLE as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)).collect()
}

/// Each step needs the result of the one before, and a look into the table.
fn walk(table: &[u64], steps: u64) -> u64 {
    let mut at = 1u64;
    for _ in 0..steps {
        let entry = table[(at >> 40) as usize % TABLE];
        at = (at ^ entry).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::state_dir::scratch::Scratch;
    use std::cell::Cell;

    fn source(text: &str) -> Result<CpuFactorSource, String> {
        let text = format!("name = \"m7\"\ndata_dir = \"/\"\n{text}");
        Config::parse(&text).map(|config| config.cpu_factor).map_err(|error| error.to_string())
    }

    #[test]
    fn an_operator_gives_a_factor_or_has_it_measured() {
        let given = |thousandths| CpuFactorSource::Given(CpuFactor(thousandths));
        assert_eq!(source("").unwrap(), given(1000));
        assert_eq!(source("cpu_factor = 1.25").unwrap(), given(1250));
        assert_eq!(source("cpu_factor = 2").unwrap(), given(2000));
        assert_eq!(source("cpu_factor = \"measured\"").unwrap(), CpuFactorSource::Measured);
        for wrong in ["0.01", "11", "-1.0", "nan", "\"fast\"", "true", "1e300"] {
            let error = source(&format!("cpu_factor = {wrong}")).unwrap_err();
            assert!(error.contains("0.1 to 10"), "{wrong}: {error}");
        }
    }

    #[test]
    fn amounts_there_and_back_are_never_less_than_was_asked_for() {
        for thousandths in [100, 333, 850, 1000, 1370, 10_000] {
            let factor = CpuFactor(thousandths);
            for milli in [0, 1, 7, 100, 1000, 4321, 1 << 50] {
                let there = factor.to_machine(milli);
                assert!(factor.to_cell(there) >= milli, "{factor}: {milli}");
            }
        }
        let fast = CpuFactor(2000);
        assert_eq!((fast.to_cell(4000), fast.to_machine(1000)), (8000, 500));
        assert_eq!(fast.on_machine(Resources::new(1000, 5, 6, 7)), Resources::new(500, 5, 6, 7));
        assert_eq!(CpuFactor(1050).to_string(), "1.050");
    }

    #[test]
    fn a_measurement_is_rounded_and_within_bounds() {
        let exactly = STEPS * 1000 / REFERENCE_ROUNDS_PER_MS;
        assert_eq!(factor_of(exactly), CpuFactor(1000));
        assert_eq!(factor_of(exactly * 102 / 100), CpuFactor(1000));
        assert_eq!(factor_of(exactly / 2), CpuFactor(2000));
        assert_eq!(factor_of(u64::MAX), CpuFactor(100));
        assert_eq!(factor_of(0), CpuFactor(10_000));
        assert!(RANGE.contains(&measure().0));
        assert_eq!(walk(&table(), 1000), walk(&table(), 1000));
    }

    #[test]
    fn what_was_measured_holds_for_as_long_as_the_model_does() {
        let scratch = Scratch::new();
        let data = scratch.path("");
        let measured = Cell::new(0);
        let load = |model: &str, result: u32| {
            load_or_measure_as(&data, model, || {
                measured.set(measured.get() + 1);
                CpuFactor(result)
            })
        };
        assert_eq!((load("old", 900), load("old", 700)), (CpuFactor(900), CpuFactor(900)));
        assert_eq!((load("new", 1300), measured.get()), (CpuFactor(1300), 2));
        // Damage is measured anew, and not an end of the agent.
        std::fs::write(data.join(CPU_FILE), "rubbish").unwrap();
        assert_eq!((load("new", 1200), load("new", 1)), (CpuFactor(1200), CpuFactor(1200)));
    }
}
