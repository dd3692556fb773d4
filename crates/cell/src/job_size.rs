//! The size of a job (B2, B7): how many tasks it has and how much each may use, apart from all else
//! that its spec says.
//!
//! A resize names only what becomes different; the rest stays as the cell has it when the command
//! is applied. Rejected: clients that read the spec, change it and write it back. They overwrite
//! what somebody else changed meanwhile unless each of them compares versions, and they cannot
//! write back secrets, which are never shown.

use crate::spec::{JobSpec, LimitsOverride};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

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

impl JobSpec {
    /// The spec with the size that was chosen for the job since, by the cell or by hand, as far as
    /// its policy of scaling allows that: what a file says of a scaled job is its first size.
    #[must_use]
    pub fn with_size_of<'s>(&'s self, present: &JobSpec) -> Cow<'s, JobSpec> {
        let Some(policy) = self.scale.as_ref().filter(|_| present.scale.is_some()) else {
            return Cow::Borrowed(self);
        };
        let mut sized = self.clone();
        sized.count = present.count.max(policy.min).min(policy.max);
        let limits = present.task.limits;
        if let Some(range) = policy.vertical.cpu {
            sized.task.limits.cpu = limits.cpu.max(range.min).min(range.max);
        }
        if let Some(range) = policy.vertical.ram {
            sized.task.limits.ram = limits.ram.max(range.min).min(range.max);
        }
        Cow::Owned(sized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::job;
    use crate::scale::{CpuRange, ScalePolicy};

    #[test]
    fn a_scaled_job_keeps_its_size_within_the_bounds_of_its_new_policy() {
        let mut present = job("jfoo", 7, 100);
        let file = job("jfoo", 2, 100);
        assert_eq!(*file.with_size_of(&present), file);
        present.scale = Some(ScalePolicy::between(1, 9));
        present.task.limits.cpu = 800;
        assert_eq!(*file.with_size_of(&present), file, "it is not to be scaled any more");
        let mut file = JobSpec { scale: Some(ScalePolicy::between(1, 5)), ..file };
        let cpu = file.task.limits.cpu;
        let sized = file.with_size_of(&present);
        assert_eq!((sized.count, sized.task.limits.cpu), (5, cpu));
        if let Some(policy) = &mut file.scale {
            policy.max = 100;
            policy.vertical.cpu = Some(CpuRange { min: 900, max: 1000 });
        }
        let sized = file.with_size_of(&present);
        assert_eq!((sized.count, sized.task.limits.cpu), (7, 900));
    }
}
