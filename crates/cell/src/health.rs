//! Health checks (B15). The agent of the task's machine probes the task; the results decide whether
//! the task counts as started, and whether it is restarted.

#[cfg(feature = "schema")]
use crate::admit::{MAX_SPAN, MIN_PROBE_INTERVAL};
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// Asked again and again while the task runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    pub probe: Probe,
    /// Milliseconds between two probes. Left out: 10,000.
    #[serde(default = "defaults::interval")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("minimum" = MIN_PROBE_INTERVAL, "maximum" = MAX_SPAN.0))
    )]
    pub interval: Span,
    /// Milliseconds an answer may take. Left out: 2,000.
    #[serde(default = "defaults::timeout")]
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub timeout: Span,
    /// Milliseconds after the start in which failures do not count. Until the first success, or the
    /// end of this time, the task is still starting. Left out: 30,000.
    #[serde(default = "defaults::start_period")]
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub start_period: Span,
    /// Failures in a row that make it ill. Left out: 3.
    #[serde(default = "defaults::failures")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub failures: u32,
}

/// One question to a task. Ports are counted among those the task was given: static ones first, in
/// the order of the spec, then those the system chose.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// Well when a GET of `path` is answered with a status of 200 to 399.
    Http { port: u8, path: String },
    /// Well when a connection is accepted.
    Tcp { port: u8 },
    /// Well when it exits with 0. Runs with the task's environment, in its folder.
    Command(Vec<String>),
}

mod defaults {
    use crate::time::Span;

    pub fn interval() -> Span {
        Span::seconds(10)
    }
    pub fn timeout() -> Span {
        Span::seconds(2)
    }
    pub fn start_period() -> Span {
        Span::seconds(30)
    }
    pub fn failures() -> u32 {
        3
    }
}
