//! The agent's next actions, as a function of its orders, the observed attempts and the time. No
//! input, no output: the loop around it carries out the actions and has no decisions of its own.
//!
//! The rules:
//! * an attempt is started once, when nothing of the same task lives here, those whose resources it
//!   takes over are gone, its alloc is held and its lease has time left;
//! * an attempt that lives and is not listed is killed; one that is told to stop gets its notice,
//!   and is told again when the notice became shorter: the earlier end counts;
//! * an end is kept, and reported at every poll, until orders come that no longer list it;
//! * the disk of an ended attempt is retained as long as orders say so, or a log saver reads it;
//! * with no orders at all no attempt is touched.
//!
//! Restarts are not decided here: a failed attempt is reported, and the masters order the next one,
//! with back-off, here or elsewhere. Rejected: restarting on the machine first. Two places would
//! count failures, and a task that crashes its machine would be kept on it.

use cellwright_cell::desired::{Action as Order, DesiredTask};
use cellwright_cell::id::TaskId;
use cellwright_cell::observed::{LimitsInForce, ObservedState, ObservedTask};
use cellwright_cell::plan::Victim;
use cellwright_cell::task::{ExitClass, NoticeOutcome};
use cellwright_cell::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use cellwright_cell::id::Attempt;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Finished,
    Failed(ExitClass),
    /// Gone without an observed end, or before a notice could be given.
    Gone,
    /// Requested to stop, and the outcome of the notice.
    Stopped(NoticeOutcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not healthy yet, and with time left to become so.
    Starting,
    Healthy,
    Unhealthy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Preparing,
    Running(Health),
    Ended(End),
}

/// What was requested of an attempt, mildest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requested {
    #[default]
    Nothing,
    Stop,
    Kill,
}

/// The observed status of one attempt on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptStatus {
    pub phase: Phase,
    pub requested: Requested,
    /// Of a stop that was requested: its notice. Absent after a restart of the agent.
    pub notice: Option<Span>,
    /// Holds resources and runs nothing.
    pub is_alloc: bool,
    /// The alloc it is in.
    pub alloc: Option<TaskId>,
    /// When its shim kills it unless the lease is renewed.
    pub lease_until: Option<u64>,
    /// What its machine allows it.
    pub limits: LimitsInForce,
}

impl AttemptStatus {
    #[must_use]
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }

    /// Whether [`reconcile`] may return other actions for a machine on which this became `after`.
    /// That a program runs, and its health, concerns the masters alone; that an alloc is held does
    /// not.
    #[must_use]
    pub fn affects_reconcile(&self, after: &AttemptStatus) -> bool {
        let phase = |seen: &AttemptStatus| (!seen.is_active(), seen.is_alloc.then_some(seen.phase));
        let rest = |seen: &AttemptStatus| {
            ((seen.requested, seen.notice), seen.lease_until, (seen.is_alloc, seen.alloc))
        };
        phase(self) != phase(after) || rest(self) != rest(after)
    }
}

pub type Attempts = BTreeMap<Attempt, AttemptStatus>;

/// An action for the loop to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Start {
        order: Box<DesiredTask>,
        lease_until: Option<u64>,
    },
    /// Give notice, wait, kill.
    Stop {
        attempt: Attempt,
        notice: Span,
    },
    Kill {
        attempt: Attempt,
    },
    Renew {
        attempt: Attempt,
        until: u64,
    },
    /// The masters know its end.
    Forget {
        attempt: Attempt,
    },
}

pub struct ReconcileInput<'a> {
    /// Nothing until some were accepted.
    pub orders: Option<&'a [DesiredTask]>,
    pub statuses: &'a Attempts,
    /// When the leader is known to have received a poll of this machine, on the boot clock.
    pub leader_heard_at: Option<u64>,
    pub now: u64,
}

/// The actions that bring the observed status towards the orders. Once done and observed, they are
/// not returned again.
#[must_use]
pub fn reconcile(input: &ReconcileInput<'_>) -> Vec<Action> {
    let Some(orders) = input.orders else { return Vec::new() };
    let desired: BTreeMap<Attempt, &DesiredTask> =
        orders.iter().map(|order| (Attempt::of(order), order)).collect();
    let present = input.statuses.iter().filter_map(|(attempt, seen)| {
        let order = desired.get(attempt).copied();
        input.action_for_present(*attempt, seen, order)
    });
    let absent = desired.iter().filter(|(attempt, _)| !input.statuses.contains_key(attempt));
    let starts = absent.filter_map(|(attempt, order)| input.action_for_absent(*attempt, order));
    present.chain(starts).collect()
}

impl ReconcileInput<'_> {
    fn action_for_present(
        &self,
        attempt: Attempt,
        seen: &AttemptStatus,
        order: Option<&DesiredTask>,
    ) -> Option<Action> {
        let Some(order) = order else {
            return if seen.is_active() {
                self.kill(attempt, seen)
            } else {
                (!self.is_saved(attempt)).then_some(Action::Forget { attempt })
            };
        };
        if !seen.is_active() {
            return None;
        }
        if order.action == Order::Keep {
            return self.kill(attempt, seen);
        }
        if let Order::Stop { notice, .. } = order.action {
            let is_news = match seen.requested {
                Requested::Nothing => true,
                Requested::Stop => !seen.is_alloc && seen.notice.is_none_or(|had| notice < had),
                Requested::Kill => false,
            };
            let stop = is_news && !self.is_occupied(attempt.task, seen);
            return stop.then_some(Action::Stop { attempt, notice });
        }
        let until = self.lease_until(order)?;
        let later = seen.lease_until.is_none_or(|current| until > current);
        (later && seen.requested == Requested::Nothing).then_some(Action::Renew { attempt, until })
    }

    fn kill(&self, attempt: Attempt, seen: &AttemptStatus) -> Option<Action> {
        let kill = seen.requested < Requested::Kill && !self.is_occupied(attempt.task, seen);
        kill.then_some(Action::Kill { attempt })
    }

    fn action_for_absent(&self, attempt: Attempt, order: &DesiredTask) -> Option<Action> {
        let (waits_for, alloc) = match &order.action {
            Order::Run(work) => (&work.waits_for, work.alloc),
            Order::Hold { waits_for, .. } => (waits_for, None),
            // Never got here, or is gone: its absence from the report says so.
            Order::Stop { .. } | Order::Keep => return None,
        };
        let lease_until = self.lease_until(order);
        let has_time = match order.lease {
            Some(_) => lease_until.is_some_and(|until| until > self.now),
            None => true,
        };
        let no_other_attempt = if attempt.is_log_saver() {
            !self.is_saved(attempt.without_log_saver())
                && !self.is_alive(attempt.without_log_saver())
        } else {
            !self.has_active_attempt(attempt.task)
        };
        let free = no_other_attempt
            && !waits_for.iter().any(|victim| self.is_victim_active(victim))
            && alloc.is_none_or(|alloc| self.is_held(alloc));
        let order = Box::new(order.clone());
        (free && has_time).then_some(Action::Start { order, lease_until })
    }

    fn lease_until(&self, order: &DesiredTask) -> Option<u64> {
        Some(self.leader_heard_at?.saturating_add(order.lease?.0))
    }

    /// Not the log savers of an attempt.
    fn attempts_of(&self, task: TaskId) -> impl Iterator<Item = &AttemptStatus> {
        let last = Attempt { log_saver_run: u32::MAX, ..Attempt::new(task, u32::MAX) };
        let all = self.statuses.range(Attempt::new(task, 0)..=last);
        all.filter(|(attempt, _)| !attempt.is_log_saver()).map(|(_, seen)| seen)
    }

    fn is_alive(&self, attempt: Attempt) -> bool {
        self.statuses.get(&attempt).is_some_and(AttemptStatus::is_active)
    }

    /// Whether a log saver reads the disk that the attempt left.
    fn is_saved(&self, attempt: Attempt) -> bool {
        let savers = Attempt { log_saver_run: 1, ..attempt }..=Attempt {
            log_saver_run: u32::MAX,
            ..attempt
        };
        !attempt.is_log_saver() && self.statuses.range(savers).any(|(_, seen)| seen.is_active())
    }

    fn has_active_attempt(&self, task: TaskId) -> bool {
        self.attempts_of(task).any(AttemptStatus::is_active)
    }

    fn is_held(&self, alloc: TaskId) -> bool {
        self.attempts_of(alloc).any(|seen| matches!(seen.phase, Phase::Running(_)))
    }

    fn is_victim_active(&self, victim: &Victim) -> bool {
        self.is_alive(Attempt::new(victim.task, victim.attempt))
    }

    /// An alloc ends after everything in it.
    fn is_occupied(&self, task: TaskId, seen: &AttemptStatus) -> bool {
        seen.is_alloc && self.statuses.values().any(|s| s.alloc == Some(task) && s.is_active())
    }
}

/// All observed attempts, for the report to the masters.
#[must_use]
pub fn report(seen: &Attempts) -> Vec<ObservedTask> {
    let observed = |(attempt, seen): (&Attempt, &AttemptStatus)| ObservedTask {
        task: attempt.task,
        attempt: attempt.number,
        log_saver_run: attempt.log_saver_run,
        state: match seen.phase {
            Phase::Preparing | Phase::Running(Health::Starting) => ObservedState::Preparing,
            Phase::Running(Health::Healthy) => ObservedState::Running { healthy: true },
            Phase::Running(Health::Unhealthy) => ObservedState::Running { healthy: false },
            Phase::Ended(End::Finished) => ObservedState::Finished,
            Phase::Ended(End::Failed(exit)) => ObservedState::Failed(exit),
            Phase::Ended(End::Gone) => ObservedState::Stopped,
            Phase::Ended(End::Stopped(notice)) => ObservedState::Left(notice),
        },
        limits: (seen.limits.resizes > 0).then_some(seen.limits),
    };
    seen.iter().map(observed).collect()
}

#[cfg(test)]
pub(crate) mod tests;
