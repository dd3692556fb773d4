//! A copy of the snapshot in which only hypothetical tasks are pending.

use super::WhatifJob;
use crate::cluster_snapshot::{ClusterSnapshot, JobInfo, PendingTaskInfo};
use crate::explain::names::NameResolver;
use cellwright_cell::admit;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::name::Name;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use std::sync::Arc;

pub(super) struct HypotheticalJob {
    pub snapshot: ClusterSnapshot,
    job: JobId,
    job_name: Name,
    /// Row of the first hypothetical task; all rows from here on are hypothetical.
    first: TaskId,
    next: u32,
    /// Index of the next hypothetical task.
    index: u32,
}

impl HypotheticalJob {
    /// The job as it is, gang and overrides included.
    pub fn with_spec(
        snapshot: &ClusterSnapshot,
        job: WhatifJob<'_>,
    ) -> Result<HypotheticalJob, Rejection> {
        HypotheticalJob::new(snapshot, job, |_| {})
    }

    /// The job's plain task, any number of times.
    pub fn with_plain_tasks(
        snapshot: &ClusterSnapshot,
        job: WhatifJob<'_>,
    ) -> Result<HypotheticalJob, Rejection> {
        HypotheticalJob::new(snapshot, job, |spec| {
            spec.overrides.clear();
            spec.gang = false;
        })
    }

    fn new(
        snapshot: &ClusterSnapshot,
        whatif_job: WhatifJob<'_>,
        prepare: impl FnOnce(&mut JobSpec),
    ) -> Result<HypotheticalJob, Rejection> {
        if let WhatifJob::New { spec, .. } = whatif_job {
            admit::check_job(spec)?;
        }
        let mut snapshot = snapshot.clone();
        // Other pending tasks could not be placed before, and must not use up this pass.
        for task in snapshot.pending().to_vec() {
            snapshot.drop_task(task);
        }
        let (job, index, job_name) = match whatif_job {
            WhatifJob::New { user, spec, alloc_set } => {
                let job = JobId(snapshot.jobs.len() as u32);
                let mut spec = spec.clone();
                prepare(&mut spec);
                let name = spec.name.clone();
                let spec = Arc::new(spec);
                let info = JobInfo {
                    user,
                    spec: &spec,
                    version: 1,
                    alloc_set,
                    machines: &Arc::default(),
                    budget: None,
                    in_transition: 0,
                };
                snapshot.put_job(job, &info);
                (job, 0, name)
            }
            WhatifJob::More(job) => {
                let missing = || Rejection::NoSuchRow(job.into());
                let row = snapshot.job(job).ok_or_else(missing)?;
                let mut spec = row.spec.as_ref().clone();
                prepare(&mut spec);
                let (index, name) = (spec.count, spec.name.clone());
                let spec = Arc::new(spec);
                let info = JobInfo {
                    user: row.user,
                    spec: &spec,
                    version: row.version,
                    alloc_set: row.alloc_set,
                    machines: &Arc::default(),
                    budget: row.budget,
                    in_transition: 0,
                };
                snapshot.put_job(job, &info);
                (job, index, name)
            }
        };
        let first = TaskId(snapshot.tasks.len() as u32);
        Ok(HypotheticalJob { snapshot, job, job_name, first, next: first.0, index })
    }

    /// Adds so many pending tasks.
    pub fn add_pending(&mut self, tasks: u32, reservation: Option<Resources>) {
        for _ in 0..tasks {
            let info = PendingTaskInfo {
                job: self.job,
                index: self.index,
                attempt: 0,
                not_before: Time::ZERO,
                reservation,
                avoid: &[],
            };
            self.snapshot.put_pending(TaskId(self.next), &info);
            self.next += 1;
            self.index += 1;
        }
    }

    /// Names of existing rows and of hypothetical ones.
    pub fn names<'a>(&'a self, known: &'a dyn NameResolver) -> HypotheticalNames<'a> {
        HypotheticalNames { job: self, known }
    }
}

/// Hypothetical rows may have ids that belong to other tasks in the state.
pub(super) struct HypotheticalNames<'a> {
    job: &'a HypotheticalJob,
    known: &'a dyn NameResolver,
}

impl NameResolver for HypotheticalNames<'_> {
    fn machine(&self, id: MachineId) -> String {
        self.known.machine(id)
    }

    fn task(&self, id: TaskId) -> String {
        if id < self.job.first {
            return self.known.task(id);
        }
        let index = self.job.snapshot.identity_of(id).map_or(0, |(_, index)| index);
        format!("{}/{index} (imagined)", self.job.job_name)
    }
}
