//! The result of a plan at the master: counts for the metrics page, and rejections by reason.

use cellwright_cell::command::{Done, Verdict};
use cellwright_cell::plan::{Group, Plan};
use cellwright_cell::reason::Rejection;
use std::collections::BTreeMap;

/// Rejected groups, by the code of the reason.
pub type RejectedByReason = BTreeMap<&'static str, u64>;

/// The master's verdict on one plan, as counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanResult {
    pub placed: u64,
    /// Victims accepted; tasks inside an evicted alloc are not counted apart.
    pub preempted: u64,
    /// Groups.
    pub rejected: u64,
    pub by_reason: RejectedByReason,
}

impl PlanResult {
    /// Without a verdict, every group counts as rejected.
    #[must_use]
    pub fn of(plan: &Plan, verdict: Option<&Verdict>) -> PlanResult {
        let mut result = PlanResult::default();
        let rejected = match verdict {
            Some(Ok(Done::Partly(rejected))) => rejected.as_slice(),
            Some(Ok(_)) => &[],
            Some(Err(rejection)) => {
                result.reject(rejection_code(rejection), plan.groups.len() as u64);
                return result;
            }
            None => {
                result.reject("no-verdict", plan.groups.len() as u64);
                return result;
            }
        };
        let mut why: BTreeMap<u32, &Rejection> = BTreeMap::new();
        why.extend(rejected.iter().map(|(position, rejection)| (*position, rejection)));
        for (position, group) in plan.groups.iter().enumerate() {
            match why.get(&(position as u32)) {
                Some(rejection) => result.reject(rejection_code(rejection), 1),
                None => result.accept(group),
            }
        }
        result
    }

    fn accept(&mut self, group: &Group) {
        self.placed += group.assignments.len() as u64;
        self.preempted += group.victims.len() as u64;
    }

    fn reject(&mut self, code: &'static str, groups: u64) {
        if groups > 0 {
            self.rejected += groups;
            *self.by_reason.entry(code).or_default() += groups;
        }
    }
}

/// Stable code of the reason for which a group of a plan is rejected; for an infeasible one, the
/// code of its [`InfeasibleReason`](cellwright_cell::reason::InfeasibleReason).
#[must_use]
pub fn rejection_code(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::DoesNotFit { infeasible: reason, .. } => reason.code(),
        Rejection::StaleAttempt { .. } => "stale-attempt",
        Rejection::WrongTaskState { .. } => "wrong-task-state",
        Rejection::WrongState(_) => "wrong-state",
        Rejection::NoSuchRow(_) => "no-such-row",
        Rejection::TooEarly { .. } => "too-early",
        Rejection::MayNotPreempt { .. } => "may-not-preempt",
        Rejection::NeedlessVictim(_) => "needless-victim",
        Rejection::BudgetExhausted { .. } => "budget-exhausted",
        Rejection::PartialGang { .. } => "partial-gang",
        Rejection::BadField { .. } => "bad-field",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::{MachineId, TaskId};
    use cellwright_cell::plan::{Assignment, Victim};
    use cellwright_cell::reason::InfeasibleReason;

    fn plan() -> Plan {
        let assignment = |task| Assignment {
            task: TaskId(task),
            attempt: 0,
            machine: MachineId(0),
            alloc: None,
            ports: vec![],
            devices: vec![],
        };
        let victim = Victim { task: TaskId(9), attempt: 1 };
        let group = |tasks: &[u32], victims: &[Victim]| Group {
            victims: victims.to_vec(),
            assignments: tasks.iter().map(|t| assignment(*t)).collect(),
        };
        let groups = vec![group(&[0, 1], &[]), group(&[2], &[victim]), group(&[3], &[])];
        Plan { made_at: 0, groups }
    }

    fn check(verdict: Option<Verdict>, want: (u64, u64, u64), reasons: &[(&str, u64)]) {
        let result = PlanResult::of(&plan(), verdict.as_ref());
        assert_eq!((result.placed, result.preempted, result.rejected), want, "{verdict:?}");
        let counted: Vec<(&str, u64)> = result.by_reason.into_iter().collect();
        assert_eq!(counted, reasons, "{verdict:?}");
    }

    #[test]
    fn verdicts_are_counted_by_group_and_reason() {
        let stale = Rejection::StaleAttempt { task: TaskId(0), expected: 0, found: 1 };
        let (task, machine) = (TaskId(3), MachineId(0));
        let infeasible_reason =
            Rejection::DoesNotFit { task, machine, infeasible: InfeasibleReason::MachineDown };
        check(Some(Ok(Done::Applied)), (4, 1, 0), &[]);
        check(Some(Ok(Done::Partly(vec![(0, stale.clone())]))), (2, 1, 1), &[("stale-attempt", 1)]);
        let both = vec![(1, stale.clone()), (2, infeasible_reason)];
        let reasons = [("machine-down", 1), ("stale-attempt", 1)];
        check(Some(Ok(Done::Partly(both))), (2, 0, 2), &reasons);
        check(Some(Err(stale)), (0, 0, 3), &[("stale-attempt", 3)]);
        check(None, (0, 0, 3), &[("no-verdict", 3)]);
    }
}
