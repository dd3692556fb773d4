//! Numbers that tasks tell of themselves, as targets of scaling: which ones, what each task is
//! meant for, and where they are read.
//!
//! A number is whole thousandths from the machine that reads it on, so that all replicas add up the
//! same. Rejected: floats as programs write them; their sums depend on the order.

#[cfg(feature = "schema")]
use crate::constraint::MAX_PATTERN;
use crate::name::Token;
#[cfg(feature = "schema")]
use crate::resource::MAX_QUANTITY;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Most numbers of one job.
pub const MAX_METRICS: usize = 8;
/// Most labels by which the series of a number are chosen.
pub const MAX_METRIC_LABELS: usize = 8;
/// Longest value of such a label.
pub const MAX_METRIC_LABEL: usize = 128;

/// A number that tasks tell, and how much of it each task is meant for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MetricTarget {
    /// Its name, as tasks write it: letters, digits, `_` and `:`.
    pub name: Token,
    /// Thousandths of what one task is meant for, at its largest limits; of a rate, in a second.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_QUANTITY)))]
    pub per_task: u64,
    /// Whether the number counts as it is, or by how much it grows in a second. Left out: value.
    #[serde(default)]
    pub kind: MetricKind,
    /// Only series with these labels count; all that do are added up. Left out: all.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = MAX_METRIC_LABELS)))]
    pub labels: BTreeMap<Token, String>,
}

/// What of a number counts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// The number as it is: of what goes up and down, such as a queue.
    #[default]
    Value,
    /// By how much it grows in a second: of what only counts up, such as requests.
    Rate,
}

/// Where a task tells its numbers, in lines of `NAME{LABEL="VALUE"} NUMBER` as Prometheus reads
/// them. Ports are counted among those the task was given, as for health checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MetricSource {
    /// The answer to a GET of `path`. Left out: `/metrics`.
    Http {
        port: u8,
        #[serde(default = "default_path")]
        #[cfg_attr(feature = "schema", schemars(length(max = MAX_PATTERN)))]
        path: String,
    },
    /// A file in the task's folder. One that is nothing but a number is the number of the first
    /// target.
    File(String),
}

fn default_path() -> String {
    "/metrics".into()
}

/// Which lines of a task's numbers are meant, and what of them counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MetricSeries {
    pub name: Token,
    pub kind: MetricKind,
    pub labels: BTreeMap<Token, String>,
}

impl MetricTarget {
    #[must_use]
    pub fn series(&self) -> MetricSeries {
        let MetricTarget { name, per_task: _, kind, labels } = self;
        MetricSeries { name: name.clone(), kind: *kind, labels: labels.clone() }
    }
}

/// What an agent is to read of a task again and again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MetricsOrder {
    pub source: MetricSource,
    pub series: Vec<MetricSeries>,
}

/// Running tasks that did not tell a number which they are scaled by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Untold {
    pub metric: Token,
    pub tasks: u32,
    pub of: u32,
}

/// Whether it is one that programs can tell.
#[must_use]
pub fn is_metric_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    first && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

/// Whether it is a label that programs can tell.
#[must_use]
pub fn is_label_name(name: &str) -> bool {
    is_metric_name(name) && !name.contains(':')
}

impl fmt::Display for MetricSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricSource::Http { port, path } => write!(f, "port {port} {path}"),
            MetricSource::File(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_needs_no_more_than_name_and_number() {
        let text = r#"{"name": "requests_total", "per_task": 100000}"#;
        let target: MetricTarget = serde_json::from_str(text).unwrap();
        assert_eq!((target.kind, target.labels.len()), (MetricKind::Value, 0));
        let text = r#"{"http": {"port": 0}}"#;
        let source: MetricSource = serde_json::from_str(text).unwrap();
        assert_eq!(source, MetricSource::Http { port: 0, path: "/metrics".into() });
        assert!(serde_json::from_str::<MetricSource>(r#"{"http": {"prt": 0}}"#).is_err());
        for (name, is_name) in
            [("a:b_9", true), ("_", true), ("9a", false), ("", false), ("a-b", false)]
        {
            assert_eq!(is_metric_name(name), is_name, "{name}");
        }
        assert!(is_label_name("a_9") && !is_label_name("a:b"));
    }
}
