//! A copy of the board on which imagined tasks wait alone.

use super::Whose;
use crate::board::{Board, JobFacts, PendingFacts};
use crate::explain::names::Names;
use cellwright_cell::admit;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::name::Name;
use cellwright_cell::reason::Refusal;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use std::sync::Arc;

pub(super) struct Stage {
    pub board: Board,
    job: JobId,
    job_name: Name,
    /// Row of the first imagined task; all rows from here on are imagined.
    first: TaskId,
    next: u32,
    /// Index of the next imagined task.
    index: u32,
}

impl Stage {
    /// The job as it is, gang and overrides included.
    pub fn whole(board: &Board, whose: Whose<'_>) -> Result<Stage, Refusal> {
        Stage::new(board, whose, |_| {})
    }

    /// The job's plain task, any number of times.
    pub fn alike(board: &Board, whose: Whose<'_>) -> Result<Stage, Refusal> {
        Stage::new(board, whose, |spec| {
            spec.overrides.clear();
            spec.gang = false;
        })
    }

    fn new(
        board: &Board,
        whose: Whose<'_>,
        prepare: impl FnOnce(&mut JobSpec),
    ) -> Result<Stage, Refusal> {
        if let Whose::New { spec, .. } = whose {
            admit::check_job(spec)?;
            admit::check(spec, admit::may_bound_notice)?;
            admit::check(spec, admit::asks_for_no_gaps)?;
            admit::check(spec, admit::volumes_can_be_seen)?;
        }
        let mut board = board.clone();
        // Who waits already found no place, and must not be what this pass is spent on.
        for task in board.pending().to_vec() {
            board.drop_task(task);
        }
        let (job, index, job_name) = match whose {
            Whose::New { user, spec, alloc_set } => {
                let job = JobId(board.jobs.len() as u32);
                let mut spec = spec.clone();
                prepare(&mut spec);
                let name = spec.name.clone();
                let spec = Arc::new(spec);
                let facts =
                    JobFacts { user, spec: &spec, version: 1, alloc_set, budget: None, absent: 0 };
                board.put_job(job, &facts);
                (job, 0, name)
            }
            Whose::More(job) => {
                let missing = || Refusal::NoSuchRow(format!("job row {}", job.0));
                let row = board.job(job).ok_or_else(missing)?;
                let mut spec = row.spec.as_ref().clone();
                prepare(&mut spec);
                let (index, name) = (spec.count, spec.name.clone());
                let spec = Arc::new(spec);
                let facts = JobFacts {
                    user: row.user,
                    spec: &spec,
                    version: row.version,
                    alloc_set: row.alloc_set,
                    budget: row.budget,
                    absent: 0,
                };
                board.put_job(job, &facts);
                (job, index, name)
            }
        };
        let first = TaskId(board.tasks.len() as u32);
        Ok(Stage { board, job, job_name, first, next: first.0, index })
    }

    /// Adds so many waiting tasks.
    pub fn wait(&mut self, tasks: u32, reservation: Option<Resources>) {
        for _ in 0..tasks {
            let facts = PendingFacts {
                job: self.job,
                index: self.index,
                attempt: 0,
                not_before: Time::ZERO,
                reservation,
                avoid: &[],
            };
            self.board.put_pending(TaskId(self.next), &facts);
            self.next += 1;
            self.index += 1;
        }
    }

    /// Names of what is there, and of what is imagined.
    pub fn names<'a>(&'a self, known: &'a dyn Names) -> ImaginedNames<'a> {
        ImaginedNames { stage: self, known }
    }
}

/// Imagined rows may carry numbers under which the state knows somebody else.
pub(super) struct ImaginedNames<'a> {
    stage: &'a Stage,
    known: &'a dyn Names,
}

impl Names for ImaginedNames<'_> {
    fn machine(&self, id: MachineId) -> String {
        self.known.machine(id)
    }

    fn task(&self, id: TaskId) -> String {
        if id < self.stage.first {
            return self.known.task(id);
        }
        let index = self.stage.board.identity_of(id).map_or(0, |(_, index)| index);
        format!("{}/{index} (imagined)", self.stage.job_name)
    }
}
