//! Invariants: conditions on every state and every step, one file each, checked after every step of
//! every test and, for states, by the loader.
//!
//! The checks recompute what they need from the rows, with code of their own: a check that calls
//! the function it guards agrees with its mistakes.
//!
//! | invariant | of | from |
//! |---|---|---|
//! | [`mod@references`] | state | ids, names and versions lead to rows: B2 |
//! | [`sums_equal_parts`] | state | the accounting behind every decision: B3, §2.5 |
//! | [`one_machine`] | state | a task runs in one place, its ports its own: B3, §2.3 |
//! | [`one_per_machine`] | state | a daemon has one task for each machine: B2, §2.3 |
//! | [`job_state_follows_tasks`] | state | a job's state follows from its tasks': B5, §2.3 |
//! | [`deferred`] | state | deferred start: B6, §2.3 |
//! | [`versions_in_use_kept`] | state | updates can be undone until closed: B7, §2.3 |
//! | [`alloc_rules`] | state, step | inner tasks charge their alloc alone: B9, §2.4 |
//! | [`retained_disk_charged`] | state, step | retained disk stays for its log saver: B9, §2.4 |
//! | [`overcommit_flagged`] | state | over-commitment has its victims: B40, §5.5 |
//! | [`no_voluntary_overcommit`] | step | prod at limits, all at reservations: B40, E2, §5.5 |
//! | [`reservation_bounds`] | state | a reservation is at most the limit: B40, §5.5 |
//! | [`limits_in_force`] | state, step | limits change in place, never sold twice: B7, B20 |
//! | [`counted_apart`] | state | separate retry counters: X3 |
//! | [`inner_not_above_set`] | state | a job is not worth more than its alloc: B9, §2.4 |
//! | `one_owner_per_namespace` | state | ephemeral resources have an owner: E1 |
//! | [`placed_where_allowed`] | step | hard constraints, drains, crash pairings: B4, B30, B41 |
//! | [`spread_kept`] | step | tasks are spread over failure domains: B41, §4 |
//! | [`leases_kept`] | step | no task starts before its time: B41 |
//! | [`waits_for_leaving`] | step | a task waits for those leaving its room: B3 |
//! | [`prod_never_preempts_prod`] | step | no preemption cascades: B10, §2.5 |
//! | [`quota`] | state, step | nothing is admitted beyond quota: B11, §2.5 |
//! | [`prod_quota_sold`] | step | prod quota sold is at most the cell: B11, §2.5 |
//! | [`budgets`] | step | disruption budgets: B41, §4 |
//! | [`disruption_rate`] | state, step | disruptions over time: B41, §4 |
//! | [`restarts_due`] | state | a task is restarted once: B7 |
//! | [`gang_whole`] | step | a gang gets and loses its places as a whole: E4, B32 |
//! | [`events_cover_changes`] | step | every transition is a recorded event: B5 |
//! | [`rejected_leaves_no_trace`] | step | rejections and repeats change nothing: B25, §4 |
//! | `slots_fire_once` | step | a periodic job runs once for each slot: B42 |
//! | [`time_monotone`] | step | log time never runs backwards: B22 |
//!
//! Invariants of a component are in its folder of [`crate::components`].
//!
//! Sections (§) are those of the Borg paper of 2015.

mod alloc_rules;
mod budgets;
#[cfg(test)]
mod corruption_tests;
mod counted_apart;
mod deferred;
mod disruption_rate;
mod events_cover_changes;
mod gang_whole;
mod inner_not_above_set;
mod job_state_follows_tasks;
mod leases_kept;
mod limits_in_force;
mod no_voluntary_overcommit;
mod one_machine;
mod one_per_machine;
mod overcommit_flagged;
mod placed_where_allowed;
mod prod_never_preempts_prod;
mod prod_quota_sold;
mod quota;
pub(crate) mod references;
mod rejected_leaves_no_trace;
mod reservation_bounds;
mod restarts_due;
mod retained_disk_charged;
mod spread_kept;
pub(crate) mod sums_equal_parts;
mod time_monotone;
mod versions_in_use_kept;
mod waits_for_leaving;

use crate::command::{Command, Entry, EvictCause, Request, Verdict};
use crate::components;
use crate::event::Event;
use crate::id::TaskId;
use crate::state::State;
use std::fmt::Display;

pub use cellwright_rows::Violation;

pub(crate) type Check = Result<(), Violation>;

pub(crate) fn violation(
    invariant: &'static str,
    row: impl Display,
    detail: impl Display,
) -> Violation {
    Violation { invariant, row: row.to_string(), detail: detail.to_string() }
}

/// Ids, names and versions lead to rows. All other checks may rely on it, so it comes first.
///
/// # Errors
/// The first reference that leads nowhere or to the wrong row.
pub fn references(state: &State) -> Check {
    references::check(state)
}

/// Every invariant of a state.
///
/// # Errors
/// The first invariant found broken.
pub fn check_state(state: &State) -> Check {
    let checks: [fn(&State) -> Check; 18] = [
        references::check,
        components::check_state,
        sums_equal_parts::check,
        one_machine::check,
        one_per_machine::check,
        job_state_follows_tasks::check,
        deferred::check,
        versions_in_use_kept::check,
        reservation_bounds::check,
        alloc_rules::check,
        retained_disk_charged::check,
        overcommit_flagged::check,
        quota::check,
        inner_not_above_set::check,
        counted_apart::check,
        disruption_rate::check,
        restarts_due::check,
        limits_in_force::check,
    ];
    checks.iter().try_for_each(|check| check(state))
}

/// Every invariant of a step: `entry` led from `before` to `after`, with these verdicts and events.
///
/// Rules about what one command may do are checked if the entry has one request; of an entry with
/// several it cannot be known afterwards which one made a change.
///
/// # Errors
/// The first invariant found broken.
pub fn check_step(
    before: &State,
    entry: &Entry,
    verdicts: &[Verdict],
    after: &State,
    events: &[Event],
) -> Check {
    let step = Step { before, entry, verdicts, after, events };
    let checks: [fn(&Step<'_>) -> Check; 18] = [
        time_monotone::check,
        components::check_step,
        rejected_leaves_no_trace::check,
        events_cover_changes::check,
        no_voluntary_overcommit::check,
        prod_never_preempts_prod::check,
        quota::check_step,
        prod_quota_sold::check,
        budgets::check,
        disruption_rate::check_step,
        gang_whole::check,
        alloc_rules::check_step,
        placed_where_allowed::check,
        spread_kept::check,
        leases_kept::check,
        waits_for_leaving::check,
        retained_disk_charged::check_step,
        limits_in_force::check_step,
    ];
    checks.iter().try_for_each(|check| check(&step))
}

/// One entry with the states before and after it.
pub(crate) struct Step<'a> {
    pub before: &'a State,
    pub entry: &'a Entry,
    pub verdicts: &'a [Verdict],
    pub after: &'a State,
    pub events: &'a [Event],
}

impl<'a> Step<'a> {
    /// The one command of this entry and its verdict.
    fn only_command(&self) -> Option<(&'a Command, &'a Verdict)> {
        match (&self.entry.requests[..], self.verdicts) {
            ([request], [verdict]) => Some((&request.command, verdict)),
            _ => None,
        }
    }

    /// The one command, if it is voluntary: one that the system is free to leave undone.
    fn voluntary_command(&self) -> Option<&'a Command> {
        let (command, _) = self.only_command()?;
        let voluntary = match command {
            Command::CommitPlan(_)
            | Command::StepUpdate { .. }
            | Command::StepRestart { .. }
            | Command::ReserveHold(_) => true,
            Command::Evict { cause: EvictCause::Rebalance, .. } => true,
            Command::Evict { task, cause: EvictCause::Drain, .. } => !self.is_overdue(*task),
            _ => false,
        };
        voluntary.then_some(command)
    }

    /// Whether the task is on a machine whose drain has passed its deadline.
    fn is_overdue(&self, task: TaskId) -> bool {
        let machine = self.before.tasks.get(task).and_then(|row| row.machine());
        let by = machine.and_then(|machine| self.before.machines.get(machine)?.drain_by);
        by.is_some_and(|by| by <= self.after.now)
    }

    /// Whether a window had one of the request ids before: answered, not applied again.
    fn is_repeated(&self) -> bool {
        let known = |request: &Request| {
            let id = request.id?;
            let window = self.before.windows.get(&(request.by.clone(), id.client))?;
            Some(window.entries.contains_key(&id.sequence) || Some(id.sequence) <= window.forgotten)
        };
        self.entry.requests.iter().filter_map(known).any(|known| known)
    }
}
