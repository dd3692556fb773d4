//! Priorities, their bands (B10) and appclasses (B38).
//!
//! Bands are non-overlapping ranges of one integer, so that one comparison orders any two tasks,
//! and the rule against preemption cascades is a rule about bands.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Highest priority.
pub const MAX_PRIORITY: u16 = 399;

/// A priority: 0-99 best effort, 100-199 batch, 200-299 production, 300-399 monitoring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Priority(#[cfg_attr(feature = "schema", schemars(range(max = MAX_PRIORITY)))] pub u16);

/// Priority bands, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Band {
    BestEffort,
    Batch,
    Production,
    Monitoring,
}

impl Band {
    pub const ALL: [Band; 4] = [Band::BestEffort, Band::Batch, Band::Production, Band::Monitoring];

    /// Production and monitoring together are "prod": placed by limits, never evicted for
    /// reclaimed resources.
    #[must_use]
    pub fn is_prod(self) -> bool {
        self >= Band::Production
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Band::BestEffort => "best-effort",
            Band::Batch => "batch",
            Band::Production => "production",
            Band::Monitoring => "monitoring",
        }
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Priority {
    /// `None` above [`MAX_PRIORITY`].
    #[must_use]
    pub fn new(value: u16) -> Option<Priority> {
        (value <= MAX_PRIORITY).then_some(Priority(value))
    }

    #[must_use]
    pub fn band(self) -> Band {
        match self.0 {
            0..=99 => Band::BestEffort,
            100..=199 => Band::Batch,
            200..=299 => Band::Production,
            _ => Band::Monitoring,
        }
    }

    #[must_use]
    pub fn is_prod(self) -> bool {
        self.band().is_prod()
    }

    /// Whether a task of this priority may preempt one of `victim`'s. Inside a prod band no task
    /// preempts another: that is what stops preemption cascades.
    #[must_use]
    pub fn may_preempt(self, victim: Priority) -> bool {
        self > victim && !(self.is_prod() && self.band() == victim.band())
    }
}

impl Priority {
    /// Whether disruption budgets of the victim's job do not bind a preemptor of this priority: a
    /// budget bounds what the cell chooses, and what a higher band takes is no choice. Within a
    /// band it protects, for its owner has bought as much as the other.
    #[must_use]
    pub fn overrules_budget_of(self, victim: Priority) -> bool {
        self.may_preempt(victim) && self.band() > victim.band()
    }

    /// Counted from the lowest priority of its band.
    #[must_use]
    pub fn in_band(self) -> u16 {
        self.0 - 100 * self.band() as u16
    }
}

/// How the machine treats a task's CPU time and, with its priority, what the task is packed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AppClass {
    LatencySensitive,
    Batch,
}

impl AppClass {
    /// The class of a job that says nothing of it: production is there for somebody who waits.
    #[must_use]
    pub fn of_priority(priority: Priority) -> AppClass {
        if priority.is_prod() { AppClass::LatencySensitive } else { AppClass::Batch }
    }
}
