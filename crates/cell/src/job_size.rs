//! The size of a job (B2, B7): how many tasks it has and how much each may use, apart from all else
//! that its spec says.
//!
//! A resize names only what becomes different; the rest stays as the cell has it when the command
//! is applied. Rejected: clients that read the spec, change it and write it back. They overwrite
//! what somebody else changed meanwhile unless each of them compares versions, and they cannot
//! write back secrets, which are never shown.

use crate::spec::{JobSpec, LimitsOverride};
use serde::{Deserialize, Serialize};

/// What is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSize {
    /// Number of tasks the job should have.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200_000)))]
    pub count: Option<u32>,
    /// Thousandths of a core that each task may use, unless it has limits of its own.
    pub cpu: Option<u64>,
    /// Bytes of memory that each task may use, unless it has limits of its own.
    pub ram: Option<u64>,
    /// Bytes of disk that each task may use, unless it has limits of its own.
    pub disk: Option<u64>,
    /// Bytes a second that each task may read from and write to disks, unless it has limits of its
    /// own.
    pub disk_rate: Option<u64>,
}

impl JobSize {
    /// Another number of tasks, and nothing else.
    #[must_use]
    pub fn tasks(count: u32) -> JobSize {
        JobSize { count: Some(count), ..JobSize::default() }
    }

    /// Whether it names nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == JobSize::default()
    }

    /// The limits that it names.
    #[must_use]
    pub fn limits(&self) -> LimitsOverride {
        let JobSize { cpu, ram, disk, disk_rate, .. } = *self;
        LimitsOverride { cpu, ram, disk, disk_rate }
    }

    /// The spec with this size.
    #[must_use]
    pub fn applied_to(&self, spec: &JobSpec) -> JobSpec {
        let mut resized = spec.clone();
        resized.task.limits = self.limits().over(spec.task.limits);
        resized.count = self.count.unwrap_or(spec.count);
        resized
    }
}
