//! Time as a number. In the replicated state it is log time: the core has no clock, the proposer
//! stamps every entry, and it only moves forward. Processes use the type for their own clocks too.

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch; of log time where a row, command or entry holds it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Time(pub u64);

/// A length of time in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Span(pub u64);

impl Time {
    pub const ZERO: Time = Time(0);
    /// The end of time: "no end" in quota spans and leases.
    pub const NEVER: Time = Time(u64::MAX);

    /// Saturates at [`Time::NEVER`]: a deadline beyond the end of time means no deadline.
    #[must_use]
    pub fn plus(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }

    /// Time passed since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    pub const ZERO: Span = Span(0);

    #[must_use]
    pub const fn seconds(s: u64) -> Span {
        Span(s * 1000)
    }
}
