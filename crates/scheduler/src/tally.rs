//! What the master made of a plan: counts for the metrics page, and refusals by reason.

use cellwright_cell::command::{Done, Verdict};
use cellwright_cell::plan::{Group, Plan};
use cellwright_cell::reason::Refusal;
use std::collections::BTreeMap;

/// Groups refused, by the code of the reason.
pub type Refused = BTreeMap<&'static str, u64>;

/// What the master said to one plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub placed: u64,
    /// Victims accepted; tasks inside an evicted alloc are not counted apart.
    pub preempted: u64,
    /// Groups.
    pub refused: u64,
    pub by_reason: Refused,
}

impl Tally {
    /// No verdict at all counts as a refusal of everything.
    #[must_use]
    pub fn of(plan: &Plan, verdict: Option<&Verdict>) -> Tally {
        let mut tally = Tally::default();
        let refused = match verdict {
            Some(Ok(Done::Partly(refused))) => refused.as_slice(),
            Some(Ok(_)) => &[],
            Some(Err(refusal)) => {
                tally.refuse(code(refusal), plan.groups.len() as u64);
                return tally;
            }
            None => {
                tally.refuse("no-verdict", plan.groups.len() as u64);
                return tally;
            }
        };
        let mut why: BTreeMap<u32, &Refusal> = BTreeMap::new();
        why.extend(refused.iter().map(|(position, refusal)| (*position, refusal)));
        for (position, group) in plan.groups.iter().enumerate() {
            match why.get(&(position as u32)) {
                Some(refusal) => tally.refuse(code(refusal), 1),
                None => tally.accept(group),
            }
        }
        tally
    }

    fn accept(&mut self, group: &Group) {
        self.placed += group.assignments.len() as u64;
        self.preempted += group.victims.len() as u64;
    }

    fn refuse(&mut self, code: &'static str, groups: u64) {
        if groups > 0 {
            self.refused += groups;
            *self.by_reason.entry(code).or_default() += groups;
        }
    }
}

/// Stable code of the reasons for which groups of a plan are refused; of a misfit, its own.
#[must_use]
pub fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::DoesNotFit { misfit, .. } => misfit.code(),
        Refusal::StaleAttempt { .. } => "stale-attempt",
        Refusal::WrongTaskState { .. } => "wrong-task-state",
        Refusal::WrongState { .. } => "wrong-state",
        Refusal::NoSuchRow(_) => "no-such-row",
        Refusal::TooEarly { .. } => "too-early",
        Refusal::MayNotPreempt { .. } => "may-not-preempt",
        Refusal::NeedlessVictim(_) => "needless-victim",
        Refusal::BudgetExhausted { .. } => "budget-exhausted",
        Refusal::PartialGang { .. } => "partial-gang",
        Refusal::BadField { .. } => "bad-field",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::{MachineId, TaskId};
    use cellwright_cell::plan::{Assignment, Victim};
    use cellwright_cell::reason::Misfit;

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
        let tally = Tally::of(&plan(), verdict.as_ref());
        assert_eq!((tally.placed, tally.preempted, tally.refused), want, "{verdict:?}");
        let said: Vec<(&str, u64)> = tally.by_reason.into_iter().collect();
        assert_eq!(said, reasons, "{verdict:?}");
    }

    #[test]
    fn verdicts_are_counted_by_group_and_reason() {
        let stale = Refusal::StaleAttempt { task: TaskId(0), expected: 0, found: 1 };
        let (task, machine) = (TaskId(3), MachineId(0));
        let misfit = Refusal::DoesNotFit { task, machine, misfit: Misfit::MachineDown };
        check(Some(Ok(Done::Applied)), (4, 1, 0), &[]);
        check(Some(Ok(Done::Partly(vec![(0, stale.clone())]))), (2, 1, 1), &[("stale-attempt", 1)]);
        let both = vec![(1, stale.clone()), (2, misfit)];
        let reasons = [("machine-down", 1), ("stale-attempt", 1)];
        check(Some(Ok(Done::Partly(both))), (2, 0, 2), &reasons);
        check(Some(Err(stale)), (0, 0, 3), &[("stale-attempt", 3)]);
        check(None, (0, 0, 3), &[("no-verdict", 3)]);
    }
}
