//! Estimates when a pending task will start (X5), as far as that can be known: the queue is
//! simulated forward on a copy of the snapshot, over the moments of known future events.
//!
//! Known events are the ends of attempts with a limited run time (`max_run`), of back-offs and
//! leases, and of retained disk. At each such moment room is freed and the real scheduler makes a
//! pass over all pending tasks, in its own order: so tasks ahead of this one in the queue, and
//! smaller tasks that can be placed before it, take the room that they would take. A placed task
//! with a `max_run` ends again later, and an ended one is retried as its job says.
//!
//! The estimate is the latest start if no task arrives that goes first: attempts may end before
//! their time. A drain has no known end, nor has a job that another waits for, and neither is
//! guessed.
//!
//! Rejected: comparing the sum of free and freed room with the request. It ignores the queue, and
//! that room on two machines is not room for one task.

use crate::cluster_snapshot::{ClusterSnapshot, PendingTaskInfo, PlacementState};
use crate::queue::Queue;
use crate::solve::options::Options;
use crate::solve::{PassOutcome, Solver};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::retry;
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::Time;
use std::collections::BTreeMap;

/// Most moments simulated: the first half one by one, later ones grouped so that the last look is
/// at the end of the known events, as far as the work allows.
const MAX_MOMENTS: usize = 256;
/// Work for one estimate, in visits to a pending task: meant to be a tenth of a second, estimated
/// at a third of a microsecond each and not measured. Queries are answered one at a time, so that
/// is how long others wait. The work is bounded and not the number of looks, because ended tasks
/// come back: neither the queue nor the list of known events has to get shorter on the way.
pub const MAX_WORK: usize = 300_000;
/// The cost of a placement in such visits: machines are searched and scored for it.
const PLACEMENT_COST: usize = 10;
/// Ends listed for the machine that the task is placed on.
const MAX_NAMED_ENDS: usize = 5;

/// The basis of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateBasis {
    /// It can be placed now: the next pass.
    Now,
    /// Its own back-off or lease.
    NotBefore,
    /// Known ends of other tasks.
    Ends,
}

/// The moment it starts, at the latest unless a task arrives that goes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    pub at: Time,
    pub basis: EstimateBasis,
    pub machine: MachineId,
    /// Tasks whose end makes room on that machine, newest first.
    pub freed_by: Vec<TaskId>,
}

/// Why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEstimate {
    /// Nothing that holds room has a known end.
    NoKnownEnd,
    /// Everything with a known end has ended by then, and there is still no room.
    NoRoomUntil { until: Time },
    /// There was no room until then; later moments were not simulated.
    HorizonReached { until: Time },
}

/// The task in question.
#[derive(Clone, Copy, Debug)]
pub struct EstimateQuery {
    pub task: TaskId,
    pub now: Time,
    /// Whether a pass might place it as things are, so that a cell in which nothing ends need not
    /// be copied to find out.
    pub fits_now: bool,
    /// See [`MAX_WORK`]. The first pass is made in any case.
    pub max_work: usize,
}

/// A known future event.
#[derive(Clone, Copy, Debug)]
enum FutureEvent {
    /// The attempt is killed, if it is still that one.
    AttemptEnds { task: TaskId, attempt: u32 },
    /// Retained disk is released.
    DiskReleased { machine: MachineId, bytes: u64 },
    /// The machine on which the task crashed may be tried again.
    CrashAvoidanceEnds,
    /// Some task may be tried from now on.
    StartAllowed,
}

/// Estimates when a task would start. `snapshot` is the snapshot of `state`.
///
/// # Errors
/// Why there is no estimate.
pub fn estimate(
    state: &State,
    snapshot: &ClusterSnapshot,
    query: EstimateQuery,
    options: Options,
    seed: u64,
) -> Result<StartEstimate, NoEstimate> {
    let EstimateQuery { task, now, fits_now, max_work } = query;
    let future = known_events(state, task, now);
    if future.is_empty() && !fits_now {
        return Err(NoEstimate::NoKnownEnd);
    }
    let solver = Solver::new(options);
    let snapshot = snapshot.clone();
    let (freed, work) = (Vec::new(), 0);
    Simulation { state, snapshot, task, now, future, solver, seed, freed, work, max_work }.run()
}

/// The known future events, by time.
fn known_events(state: &State, task: TaskId, now: Time) -> BTreeMap<Time, Vec<FutureEvent>> {
    let mut future: BTreeMap<Time, Vec<FutureEvent>> = BTreeMap::new();
    let mut add = |at: Time, step: FutureEvent| future.entry(at.max(now)).or_default().push(step);
    for (id, row) in state.tasks().iter() {
        if row.state == TaskState::Pending && row.not_before > now {
            add(row.not_before, FutureEvent::StartAllowed);
        }
        let begun = match row.state {
            TaskState::Running => row.changed_at,
            // It is about to start.
            TaskState::Assigned => now,
            _ => continue,
        };
        let longest = state.spec_of(row).and_then(|spec| spec.task.max_run);
        if let Some(longest) = longest {
            add(begun.plus(longest), FutureEvent::AttemptEnds { task: id, attempt: row.attempt });
        }
    }
    for (machine, row) in state.machines().iter() {
        for kept in &row.retained {
            add(kept.until, FutureEvent::DiskReleased { machine, bytes: kept.bytes });
        }
    }
    let avoids = state.tasks().get(task).map_or(&[][..], |row| &row.crashed_on);
    for pair in avoids.iter().filter(|pair| pair.until > now) {
        add(pair.until, FutureEvent::CrashAvoidanceEnds);
    }
    future
}

struct Simulation<'a> {
    state: &'a State,
    snapshot: ClusterSnapshot,
    task: TaskId,
    now: Time,
    future: BTreeMap<Time, Vec<FutureEvent>>,
    solver: Solver,
    seed: u64,
    /// Tasks that have left, and their machines.
    freed: Vec<(TaskId, MachineId)>,
    /// Work done so far.
    work: usize,
    max_work: usize,
}

impl Simulation<'_> {
    fn run(mut self) -> Result<StartEstimate, NoEstimate> {
        let (mut at, mut ended) = (self.now, false);
        for looks in 1..=MAX_MOMENTS {
            if let Some(machine) = self.run_pass(at) {
                return Ok(self.start_estimate(at, machine));
            }
            if self.future.is_empty() {
                return Err(if ended {
                    NoEstimate::NoRoomUntil { until: at }
                } else {
                    NoEstimate::NoKnownEnd
                });
            }
            let mut moment = None;
            // No events after the last look: the reported moment must be one at which a pass was
            // made.
            for _ in 0..self.moments_per_look(looks) {
                let Some((time, steps)) = self.next_events() else { break };
                moment = Some(time);
                ended |= steps.iter().any(|step| matches!(step, FutureEvent::AttemptEnds { .. }));
                steps.into_iter().for_each(|step| self.apply_event(time, step));
            }
            match moment {
                Some(time) => at = time,
                None => break,
            }
        }
        Err(NoEstimate::HorizonReached { until: at })
    }

    /// How many moments are grouped before the next look, after so many looks.
    fn moments_per_look(&self, looks: usize) -> usize {
        // Half of the work that is left is for the looks, half for the events between them.
        let half = self.max_work.saturating_sub(self.work) / 2;
        let affordable = (half / self.snapshot.pending().len().max(1)).max(1);
        match affordable.min(MAX_MOMENTS - looks) {
            0 => 0,
            left if looks < left => 1,
            left => self.future.len().div_ceil(left).min(half / left).max(1),
        }
    }

    /// The next events, if enough work is left for them and for the look after them.
    fn next_events(&mut self) -> Option<(Time, Vec<FutureEvent>)> {
        let steps = self.future.first_key_value().map_or(0, |(_, steps)| steps.len());
        // Each may put one more task into the queue.
        let needed = self.snapshot.pending().len() + 2 * steps;
        if self.work + needed > self.max_work {
            return None;
        }
        self.work += steps;
        self.future.pop_first()
    }

    /// Runs a pass over all pending tasks; returns where the task is placed, if it is.
    fn run_pass(&mut self, at: Time) -> Option<MachineId> {
        self.work += self.snapshot.pending().len();
        let queue = Queue::new(&self.snapshot, self.solver.options.order, at, self.seed);
        let outcome = self.solver.pass_with_queue(&mut self.snapshot, queue, self.seed);
        let mut found = None;
        for assignment in outcome.plan.groups.iter().flat_map(|group| &group.assignments) {
            let task = assignment.task;
            self.work += PLACEMENT_COST;
            if task == self.task {
                found = Some(assignment.machine);
            }
            let longest = self.state.tasks().get(task).and_then(|row| {
                let job = self.state.jobs().get(row.job)?;
                job.spec().task.max_run
            });
            if let (Some(longest), Some(attempt)) = (longest, self.snapshot.attempt_of(task)) {
                self.schedule_event(at.plus(longest), FutureEvent::AttemptEnds { task, attempt });
            }
        }
        self.requeue_evicted(&outcome);
        found
    }

    /// Makes evicted tasks pending again, and the gangs that went with them. Tasks inside an alloc
    /// stay gone: their room is the alloc's.
    fn requeue_evicted(&mut self, outcome: &PassOutcome) {
        let state = self.state;
        for victim in outcome.plan.groups.iter().flat_map(|group| &group.victims) {
            let row = state.tasks().get(victim.task);
            let Some(job) = row.and_then(|row| state.jobs().get(row.job)) else { continue };
            let gang = if job.spec().gang { &job.tasks[..] } else { &[] };
            for task in gang.iter().copied().filter(|task| *task != victim.task) {
                let row = state.tasks().get(task);
                if row.is_some_and(|row| row.state.holds_resources()) {
                    self.requeue_gone(task, job);
                }
            }
            self.requeue_gone(victim.task, job);
        }
    }

    fn requeue_gone(&mut self, task: TaskId, job: &Job) {
        let row = self.state.tasks().get(task);
        let Some(row) = row.filter(|_| self.snapshot.placement_of(task).is_none()) else { return };
        self.snapshot.requeue(task, job.spec().limits_of(row.index));
    }

    fn schedule_event(&mut self, at: Time, step: FutureEvent) {
        self.future.entry(at).or_default().push(step);
    }

    fn apply_event(&mut self, at: Time, step: FutureEvent) {
        match step {
            FutureEvent::StartAllowed => {}
            FutureEvent::AttemptEnds { task, attempt } => self.end_attempt(at, task, attempt),
            FutureEvent::DiskReleased { machine, bytes } => {
                self.adjust_retained_disk(machine, -(bytes as i64))
            }
            FutureEvent::CrashAvoidanceEnds => {
                if matches!(
                    self.snapshot.placement_of(self.task),
                    Some(PlacementState::Pending { .. })
                ) {
                    let not_before = self.state.tasks().get(self.task).map(|row| row.not_before);
                    self.enqueue(self.task, not_before.unwrap_or(at), at);
                }
            }
        }
    }

    /// Ends the attempt: its room is free, its disk may stay, and it may be retried.
    fn end_attempt(&mut self, at: Time, task: TaskId, attempt: u32) {
        let placement = self.snapshot.placement_of(task);
        let Some(machine) = placement.and_then(PlacementState::machine) else { return };
        let in_alloc = placement.and_then(PlacementState::alloc).is_some();
        let row = self.state.tasks().get(task).filter(|_| {
            // An attempt that was evicted meanwhile and placed again has its full time ahead.
            self.snapshot.attempt_of(task) == Some(attempt)
        });
        let Some(row) = row else { return };
        let Some(job) = self.state.jobs().get(row.job) else { return };
        self.snapshot.drop_task(task);
        self.freed.push((task, machine));
        if let Some(kept) = job.spec().retain_disk.as_ref().filter(|_| !in_alloc) {
            self.adjust_retained_disk(machine, kept.bytes as i64);
            self.schedule_event(
                at.plus(kept.keep),
                FutureEvent::DiskReleased { machine, bytes: kept.bytes },
            );
        }
        if let Some(wait) = retry::backoff_after(&job.spec().restart, row, ExitClass::TimedOut) {
            let retry_at = at.plus(wait);
            self.enqueue(task, retry_at, at);
            self.schedule_event(retry_at, FutureEvent::StartAllowed);
        }
    }

    /// Adds to a machine's retained disk; `bytes` may be negative.
    fn adjust_retained_disk(&mut self, machine: MachineId, bytes: i64) {
        self.snapshot.retain_disk(machine, bytes);
        self.snapshot.change_log.push(machine.0);
    }

    /// Puts a task into the queue as it is at time `at`.
    fn enqueue(&mut self, task: TaskId, not_before: Time, at: Time) {
        let Some(row) = self.state.tasks().get(task) else { return };
        let Some(job) = self.state.jobs().get(row.job) else { return };
        let crashed = row.crashed_on.iter().filter(|pair| row.avoids(pair.machine, at));
        let avoid: Vec<MachineId> = crashed.map(|pair| pair.machine).collect();
        let info = PendingTaskInfo {
            job: row.job,
            index: row.index,
            attempt: self.snapshot.attempt_of(task).unwrap_or(row.attempt),
            not_before,
            reservation: Some(job.spec().limits_of(row.index)),
            avoid: &avoid,
        };
        self.snapshot.put_pending(task, &info);
    }

    fn start_estimate(&self, at: Time, machine: MachineId) -> StartEstimate {
        let left = self.freed.iter().rev().filter(|(_, from)| *from == machine);
        let after: Vec<TaskId> = left.map(|(task, _)| *task).take(MAX_NAMED_ENDS).collect();
        let own_not_before = self.state.tasks().get(self.task).map(|row| row.not_before);
        let basis = if !after.is_empty() {
            EstimateBasis::Ends
        } else if at == self.now {
            EstimateBasis::Now
        } else if own_not_before == Some(at) {
            EstimateBasis::NotBefore
        } else {
            EstimateBasis::Ends
        };
        StartEstimate { at, basis, machine, freed_by: after }
    }
}
