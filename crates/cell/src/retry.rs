//! Retry policy: which ends of a task are retried, and how often (X3).
//!
//! `max_failures` is one number for all that can go wrong. But an exit code that says "this input
//! is broken" is as true at the tenth attempt as at the first, a start that failed because a
//! package was missing may succeed in a minute, and a job that must not run twice wants no second
//! attempt even when its machine died. So a kind of end may have a number of its own; it is then
//! counted separately and does not use up `max_failures`.
//!
//! What the cell does to a task (its machine or its place is taken away, memory goes to a
//! neighbour) is no failure of the task: it never uses up `max_failures`, and is retried without
//! end unless the owner set a number.
//!
//! Rejected: a counter for each kind on every row. Nearly all jobs name no kind, so a row has only
//! the counters that are separate.

use crate::apply::back_off;
use crate::reason::Reason;
use crate::spec::RestartPolicy;
use crate::task::{ExitClass, Task};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often in a row one kind of end is forgiven; the next one is for good. A kind with a number
/// here is counted apart and does not use up `max_failures`; nought: never tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Retries {
    /// By exit code, from 1 to 255: stronger than `failed`. Left out: none.
    pub exit: BTreeMap<u32, u32>,
    /// Any other exit code, or a signal. Left out: counts for `max_failures`.
    pub failed: Option<u32>,
    /// Exceeded its own memory limit. Left out: counts for `max_failures`.
    pub out_of_memory: Option<u32>,
    /// Exceeded its disk limit. Left out: counts for `max_failures`.
    pub over_disk_limit: Option<u32>,
    /// Ran longer than `max_run`. Left out: counts for `max_failures`.
    pub timed_out: Option<u32>,
    /// Its packages or its machine could not start it. Left out: counts for `max_failures`.
    pub could_not_start: Option<u32>,
    /// Failed its health check. Left out: counts for `max_failures`.
    pub unhealthy: Option<u32>,
    /// Killed for memory that others used. Left out: always tried again.
    pub out_of_memory_bystander: Option<u32>,
    /// Its machine died or lost it. Left out: always tried again.
    pub lost: Option<u32>,
    /// Preempted, drained or moved. Left out: always tried again.
    pub evicted: Option<u32>,
}

/// A kind of end, as far as the retry policy distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptEndKind {
    /// An exit code that the policy lists.
    Exit(u32),
    Failed,
    OutOfMemory,
    OverDiskLimit,
    TimedOut,
    CouldNotStart,
    Unhealthy,
    CrowdedOut,
    Lost,
    Evicted,
}

impl AttemptEndKind {
    /// Whether the end was caused by the cell and not by the task.
    fn is_external(self) -> bool {
        matches!(self, AttemptEndKind::CrowdedOut | AttemptEndKind::Lost | AttemptEndKind::Evicted)
    }

    /// Whether the attempt was seen to fail, so that the next one waits for its back-off.
    fn is_failure(self) -> bool {
        !matches!(self, AttemptEndKind::Lost | AttemptEndKind::Evicted)
    }
}

/// Ends of one kind since the task last succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndCount {
    pub kind: AttemptEndKind,
    pub count: u32,
}

impl Retries {
    fn kind_of(&self, exit: ExitClass) -> AttemptEndKind {
        match exit {
            ExitClass::Code(code) => match u32::try_from(code) {
                Ok(code) if self.exit.contains_key(&code) => AttemptEndKind::Exit(code),
                _ => AttemptEndKind::Failed,
            },
            ExitClass::Signal(_) => AttemptEndKind::Failed,
            ExitClass::OutOfMemory => AttemptEndKind::OutOfMemory,
            ExitClass::OverDiskLimit => AttemptEndKind::OverDiskLimit,
            ExitClass::CouldNotStart => AttemptEndKind::CouldNotStart,
            ExitClass::TimedOut => AttemptEndKind::TimedOut,
            ExitClass::Unhealthy => AttemptEndKind::Unhealthy,
            ExitClass::OutOfMemoryBystander | ExitClass::GaveWayTo(_) => AttemptEndKind::CrowdedOut,
            ExitClass::Lost => AttemptEndKind::Lost,
            ExitClass::Evicted => AttemptEndKind::Evicted,
        }
    }

    /// The number that the owner set for a kind.
    fn limit_of(&self, kind: AttemptEndKind) -> Option<u32> {
        match kind {
            AttemptEndKind::Exit(code) => self.exit.get(&code).copied(),
            AttemptEndKind::Failed => self.failed,
            AttemptEndKind::OutOfMemory => self.out_of_memory,
            AttemptEndKind::OverDiskLimit => self.over_disk_limit,
            AttemptEndKind::TimedOut => self.timed_out,
            AttemptEndKind::CouldNotStart => self.could_not_start,
            AttemptEndKind::Unhealthy => self.unhealthy,
            AttemptEndKind::CrowdedOut => self.out_of_memory_bystander,
            AttemptEndKind::Lost => self.lost,
            AttemptEndKind::Evicted => self.evicted,
        }
    }

    fn is_counted_separately(&self, kind: AttemptEndKind) -> bool {
        self.limit_of(kind).is_some() || kind.is_external()
    }
}

/// The consequence of one more end of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryDecision {
    pub failures_in_row: u32,
    pub separate_counts: Vec<EndCount>,
    /// Why it is not retried.
    pub final_reason: Option<Reason>,
}

/// Counts an end of `task` and decides whether it is retried. The present policy applies, also to
/// earlier ends: a kind that lost its number counts with the others again.
pub(crate) fn decide_retry(policy: &RestartPolicy, task: &Task, exit: ExitClass) -> RetryDecision {
    let retries = &policy.retry;
    let kind = retries.kind_of(exit);
    let failures_in_row = task.failures_in_row.saturating_add(u32::from(kind.is_failure()));
    let mut apart = task.apart.clone();
    apart.retain(|entry| retries.is_counted_separately(entry.kind));
    let own = retries.limit_of(kind);
    // Ends that are always retried and never failures need no counter.
    if own.is_some() || (kind.is_external() && kind.is_failure()) {
        let count = increment(&mut apart, kind);
        let end = own
            .filter(|forgiven| count > *forgiven)
            .map(|forgiven| Reason::NotRetried { exit, forgiven });
        return RetryDecision { failures_in_row, separate_counts: apart, final_reason: end };
    }
    let others: u32 = counted_failures(&apart);
    let counting = failures_in_row.saturating_sub(others);
    let over = |most: u32| !kind.is_external() && counting > most;
    let end = policy.max_failures.is_some_and(over).then_some(Reason::TooManyFailures);
    RetryDecision { failures_in_row, separate_counts: apart, final_reason: end }
}

/// How long a task waits for its next attempt if this one ends so; `None`: it is not retried.
#[must_use]
pub fn backoff_after(policy: &RestartPolicy, task: &Task, exit: ExitClass) -> Option<Span> {
    let RetryDecision { failures_in_row, final_reason: end, .. } = decide_retry(policy, task, exit);
    let wait = || back_off(policy.backoff, policy.backoff_max, failures_in_row);
    end.is_none().then(wait)
}

/// Sum of the separate counters that are failures.
pub(crate) fn counted_failures(apart: &[EndCount]) -> u32 {
    let failed = apart.iter().filter(|entry| entry.kind.is_failure());
    failed.fold(0, |sum, entry| sum.saturating_add(entry.count))
}

/// Adds one to the counter of a kind; the list stays in order.
fn increment(apart: &mut Vec<EndCount>, kind: AttemptEndKind) -> u32 {
    match apart.binary_search_by_key(&kind, |entry| entry.kind) {
        Ok(at) => {
            apart[at].count = apart[at].count.saturating_add(1);
            apart[at].count
        }
        Err(at) => {
            apart.insert(at, EndCount { kind, count: 1 });
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key};
    use crate::command::{Command, EvictCause, Observed};
    use crate::id::TaskId;
    use crate::spec::JobSpec;
    use crate::task::{NoticeOutcome, TaskOutcome, TaskState};

    /// Applies these ends of one task one after the other and compares the final reason, `None` if
    /// the task is still retried.
    fn check(policy: &RestartPolicy, ends: &[ExitClass], want: Option<Reason>) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let mut task = cell.task("jfoo", 0).clone();
        let mut reason = None;
        for exit in ends {
            assert_eq!(reason, None, "{ends:?}: it was over before {exit:?}");
            let decision = decide_retry(policy, &task, *exit);
            (task.failures_in_row, task.apart) =
                (decision.failures_in_row, decision.separate_counts);
            reason = decision.final_reason;
        }
        assert_eq!(reason, want, "{ends:?} under {policy:?}");
    }

    fn policy(max_failures: Option<u32>, retry: Retries) -> RestartPolicy {
        RestartPolicy { max_failures, retry, ..RestartPolicy::default() }
    }

    #[test]
    fn a_kind_with_a_number_is_counted_apart() {
        use ExitClass::{Code, CouldNotStart, OutOfMemory, TimedOut, Unhealthy};
        let retry = Retries {
            exit: BTreeMap::from([(42, 0), (75, 2)]),
            out_of_memory: Some(1),
            ..Retries::default()
        };
        let rules = policy(Some(1), retry);
        let not = |exit, forgiven| Some(Reason::NotRetried { exit, forgiven });
        check(&rules, &[Code(42)], not(Code(42), 0));
        check(&rules, &[Code(1), Code(42)], not(Code(42), 0));
        check(&rules, &[Code(75), Code(75)], None);
        check(&rules, &[Code(75), Code(75), Code(75)], not(Code(75), 2));
        check(&rules, &[OutOfMemory, OutOfMemory], not(OutOfMemory, 1));
        // Neither uses up the other's number.
        check(&rules, &[Code(75), OutOfMemory, Code(75), Code(1)], None);
        check(&rules, &[OutOfMemory, TimedOut, Code(1)], Some(Reason::TooManyFailures));
        check(&rules, &[CouldNotStart, Unhealthy], Some(Reason::TooManyFailures));
        let any = policy(None, Retries { failed: Some(0), ..Retries::default() });
        check(&any, &[TimedOut, TimedOut, TimedOut], None);
        check(&any, &[TimedOut, ExitClass::Signal(9)], not(ExitClass::Signal(9), 0));
    }

    #[test]
    fn what_the_cell_does_to_a_task_is_no_failure_of_its_own() {
        use ExitClass::{Code, Evicted, GaveWayTo, Lost, OutOfMemoryBystander};
        let outside = [Evicted, Lost, OutOfMemoryBystander, GaveWayTo(TaskId(7)), Lost];
        let none = policy(Some(0), Retries::default());
        check(&none, &outside, None);
        check(&none, &[Evicted, OutOfMemoryBystander, Code(1)], Some(Reason::TooManyFailures));
        let once = policy(Some(0), Retries { lost: Some(1), evicted: Some(0), ..none.retry });
        check(&once, &[Lost, OutOfMemoryBystander], None);
        let lost = Reason::NotRetried { exit: Lost, forgiven: 1 };
        check(&once, &[Lost, Lost], Some(lost));
        let evicted = Reason::NotRetried { exit: Evicted, forgiven: 0 };
        check(&once, &[Lost, Evicted], Some(evicted));
    }

    #[test]
    fn a_kind_that_lost_its_number_counts_with_the_others() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let mut task = cell.task("jfoo", 0).clone();
        let exit = BTreeMap::from([(75, 9)]);
        let with = policy(Some(1), Retries { exit, ..Retries::default() });
        let decision = decide_retry(&with, &task, ExitClass::Code(75));
        (task.failures_in_row, task.apart) = (decision.failures_in_row, decision.separate_counts);
        assert_eq!(decide_retry(&with, &task, ExitClass::Code(1)).final_reason, None);
        let without = policy(Some(1), Retries::default());
        let decision = decide_retry(&without, &task, ExitClass::Code(1));
        assert_eq!(
            (decision.final_reason, decision.separate_counts),
            (Some(Reason::TooManyFailures), vec![])
        );
    }

    /// `jfoo/0` runs on `m1` under this policy; then `action` is applied.
    fn check_outcome(retry: Retries, action: fn(&mut Cell), want: TaskState, expected_event: &str) {
        let mut cell = Cell::with_machines(2);
        let mut spec: JobSpec = job("jfoo", 1, 100);
        spec.restart = policy(Some(3), retry);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        action(&mut cell);
        assert_eq!(cell.states("jfoo"), [want]);
        assert!(
            cell.event_lines.iter().any(|line| line.contains(expected_event)),
            "{expected_event}: {:?}",
            cell.event_lines
        );
    }

    #[test]
    fn the_rules_hold_whichever_way_a_task_ends() {
        let dead = |exit| TaskState::Dead(TaskOutcome::Failed(exit));
        let none = Retries::default();
        check_outcome(
            Retries { exit: BTreeMap::from([(42, 0)]), ..none.clone() },
            |cell| cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(42))),
            dead(ExitClass::Code(42)),
            "failed for good on m1: not retried: exit 42 is final",
        );
        check_outcome(
            Retries { unhealthy: Some(0), ..none.clone() },
            |cell| {
                cell.report("jfoo", 0, Observed::Unhealthy);
                cell.report("jfoo", 0, Observed::Stopped);
            },
            dead(ExitClass::Unhealthy),
            "not retried: a failed health check is final",
        );
        check_outcome(
            Retries { lost: Some(0), ..none.clone() },
            |cell| {
                cell.ok(Command::MachineDown { machine: crate::id::MachineId(0) });
            },
            dead(ExitClass::Lost),
            "not retried: the loss of its machine is final",
        );
        let rebalanced = |cell: &mut Cell| {
            let (task, cause) = (cell.task_id("jfoo", 0), EvictCause::Rebalance);
            cell.ok(Command::Evict { task, attempt: 1, cause });
            cell.report("jfoo", 0, Observed::Stopped);
        };
        let evicted = Retries { evicted: Some(0), ..none.clone() };
        let expected = "not retried: an eviction is final";
        check_outcome(evicted.clone(), rebalanced, dead(ExitClass::Evicted), expected);
        check_outcome(none, rebalanced, TaskState::Pending, "evicted from m1, pending again");
        // What the owner requests is no eviction.
        let shrunk = |cell: &mut Cell| {
            cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
            cell.report("jfoo", 0, Observed::Stopped);
        };
        check_outcome(evicted, shrunk, TaskState::Dead(TaskOutcome::Killed), "killed: requested");
    }

    #[test]
    fn a_row_keeps_why_it_is_not_tried_again() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.retry.out_of_memory = Some(0);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Failed(ExitClass::OutOfMemory));
        let why = cell.task("jfoo", 0).last_end.as_ref().map(|end| end.why.clone());
        let exit = ExitClass::OutOfMemory;
        assert_eq!(why, Some(Reason::NotRetried { exit, forgiven: 0 }));
    }

    #[test]
    fn a_final_end_keeps_when_it_was_told_and_what_became_of_the_warning() {
        let retry = Retries { unhealthy: Some(0), lost: Some(0), ..Retries::default() };
        let running = || {
            let mut cell = Cell::with_machines(1);
            let mut spec = job("jfoo", 1, 100);
            spec.restart.retry = retry.clone();
            cell.submit(&spec);
            cell.run("jfoo", 0, "m1");
            cell
        };
        let mut cell = running();
        cell.report("jfoo", 0, Observed::Unhealthy);
        let stop_end = cell.task("jfoo", 0).last_end.clone().unwrap();
        cell.report("jfoo", 0, Observed::Left(NoticeOutcome::Overrun));
        let end = cell.task("jfoo", 0).last_end.clone().unwrap();
        assert_eq!((end.at, end.notice), (stop_end.at, Some(NoticeOutcome::Overrun)));
        let not = |exit| Reason::NotRetried { exit, forgiven: 0 };
        assert_eq!(end.why, not(ExitClass::Unhealthy));
        let mut cell = running();
        cell.report("jfoo", 0, Observed::Lost);
        let why = cell.task("jfoo", 0).last_end.as_ref().map(|end| end.why.clone());
        assert_eq!(why, Some(not(ExitClass::Lost)));
    }
}
