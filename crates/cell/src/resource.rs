//! The dense resource vector: CPU, RAM, disk space, disk rate (B3). Fixed-width integers, so sums
//! are exact and equal on every replica. Countable named resources are sparse and live in
//! [`crate::named`]; devices in [`crate::device`].
//!
//! Why four fixed dimensions and not a map: feasibility of every machine for every class is the
//! hot path of the scheduler, and a fixed array is four comparisons.

use crate::units::{self, Rounding};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A dimension of [`Resources`], in reporting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Milli-cores of a normalised hyperthread. Compressible.
    Cpu,
    /// Bytes of memory. Not compressible.
    Ram,
    /// Bytes of disk space. Not compressible.
    Disk,
    /// Bytes a second of disk access. Compressible.
    DiskRate,
}

impl Dimension {
    pub const ALL: [Dimension; DIMENSIONS] =
        [Dimension::Cpu, Dimension::Ram, Dimension::Disk, Dimension::DiskRate];

    /// A shortage of a compressible resource slows tasks down; of any other it kills.
    #[must_use]
    pub fn is_compressible(self) -> bool {
        matches!(self, Dimension::Cpu | Dimension::DiskRate)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Dimension::Cpu => "cpu",
            Dimension::Ram => "ram",
            Dimension::Disk => "disk",
            Dimension::DiskRate => "disk-rate",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub const DIMENSIONS: usize = 4;

/// Largest quantity in one dimension of one task or machine. What is held on one machine, what a
/// job asks for and what the cell has are bounded as well (by admission), so that all sums are
/// exact without 128-bit arithmetic.
pub const MAX_QUANTITY: u64 = 1 << 50;

/// An amount of every dense dimension.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Milli-cores.
    pub cpu: u64,
    /// Bytes.
    pub ram: u64,
    /// Bytes. Left out: 0.
    #[serde(default)]
    pub disk: u64,
    /// Bytes a second. Left out: 0.
    #[serde(default)]
    pub disk_rate: u64,
}

impl Resources {
    pub const ZERO: Resources = Resources { cpu: 0, ram: 0, disk: 0, disk_rate: 0 };

    #[must_use]
    pub const fn new(cpu: u64, ram: u64, disk: u64, disk_rate: u64) -> Resources {
        Resources { cpu, ram, disk, disk_rate }
    }

    #[must_use]
    #[inline]
    pub fn to_array(self) -> [u64; DIMENSIONS] {
        [self.cpu, self.ram, self.disk, self.disk_rate]
    }

    #[must_use]
    #[inline]
    pub fn from_array(a: [u64; DIMENSIONS]) -> Resources {
        Resources { cpu: a[0], ram: a[1], disk: a[2], disk_rate: a[3] }
    }

    #[must_use]
    pub fn get(&self, dimension: Dimension) -> u64 {
        self.to_array()[dimension as usize]
    }

    pub fn set(&mut self, dimension: Dimension, value: u64) {
        let mut a = self.to_array();
        a[dimension as usize] = value;
        *self = Resources::from_array(a);
    }

    #[inline]
    fn zip(self, other: Resources, f: impl Fn(u64, u64) -> u64) -> Resources {
        let (a, b) = (self.to_array(), other.to_array());
        Resources::from_array([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])])
    }

    /// Exact while every part is at most [`MAX_QUANTITY`]; saturating beyond, which a loader of
    /// outside bytes could otherwise turn into a wrap.
    #[must_use]
    #[inline]
    pub fn plus(self, other: Resources) -> Resources {
        self.zip(other, u64::saturating_add)
    }

    /// What is left after taking `other`, zero where nothing is.
    #[must_use]
    #[inline]
    pub fn minus(self, other: Resources) -> Resources {
        self.zip(other, u64::saturating_sub)
    }

    #[must_use]
    #[inline]
    pub fn times(self, n: u64) -> Resources {
        self.zip(Resources::ZERO, |a, _| a.saturating_mul(n))
    }

    #[must_use]
    #[inline]
    pub fn max(self, other: Resources) -> Resources {
        self.zip(other, u64::max)
    }

    #[must_use]
    #[inline]
    pub fn min(self, other: Resources) -> Resources {
        self.zip(other, u64::min)
    }

    /// True when every dimension is at most that of `room`.
    #[must_use]
    #[inline]
    pub fn within(self, room: Resources) -> bool {
        self.cpu <= room.cpu
            && self.ram <= room.ram
            && self.disk <= room.disk
            && self.disk_rate <= room.disk_rate
    }

    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Resources::ZERO
    }

    /// First dimension (reporting order) in which `self` exceeds `room`, with the shortfall.
    #[must_use]
    pub fn first_excess(self, room: Resources) -> Option<Shortfall> {
        Dimension::ALL.into_iter().find_map(|dimension| {
            let (requested, available) = (self.get(dimension), room.get(dimension));
            (requested > available).then_some(Shortfall { dimension, requested, available })
        })
    }
}

/// One dimension in which a request exceeds what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shortfall {
    pub dimension: Dimension,
    pub requested: u64,
    pub available: u64,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.requested - self.available.min(self.requested);
        let amount = |value, rounding| units::amount(self.dimension, value, rounding);
        write!(
            f,
            "{}: asked {}, available {}, short by {}",
            self.dimension,
            amount(self.requested, Rounding::Up),
            amount(self.available, Rounding::Down),
            amount(short, Rounding::Up)
        )
    }
}
