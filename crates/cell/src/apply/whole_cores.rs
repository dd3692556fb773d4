//! Whole cores that no machine of the cell has to give away are refused when they are asked for
//! (B38): the task would wait for ever, and its owner would learn of it last.
//!
//! A cell without machines refuses nothing. Rejected: the same rule for every resource. How large
//! machines will be is the operator's business, and an explanation says what is too large; of whole
//! cores most owners do not know that a machine keeps one for everybody else.

use super::Context;
use crate::reason::{Allowed, Given, Rejection};
use crate::spec::JobSpec;

impl Context<'_> {
    /// # Errors
    /// More than any machine of the cell keeps for tasks that reserve them.
    pub(super) fn check_whole_cores(&self, spec: &JobSpec) -> Result<(), Rejection> {
        let asked = u64::from(spec.task.isolation.whole_cores);
        if asked == 0 {
            return Ok(());
        }
        let most = self.state.machines.iter().map(|(_, row)| row.spec.whole_cores()).max();
        match most {
            Some(most) if asked > most => {
                let (field, allowed) =
                    ("task.isolation.whole_cores", Allowed::WholeCoresOfMachines { most });
                Err(Rejection::bad_field(field, Given::text(asked), allowed))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, machine, name};
    use crate::command::Command;
    use crate::id::MachineId;
    use crate::priority::{AppClass, Band};

    #[test]
    fn more_than_any_machine_gives_away_is_refused_and_what_is_taken_is_counted() {
        let mut cell = Cell::with_machines(0);
        let mut large = machine("m1", 100);
        large.capacity.cpu = 4000;
        cell.ok(Command::AddMachine(large));
        cell.ok(Command::MachineUp { machine: MachineId(0), incarnation: 1 });
        cell.grant("ubar", Band::Batch, 100_000);
        let mut spec = job("jfoo", 2, 100);
        spec.appclass = Some(AppClass::LatencySensitive);
        (spec.task.limits.cpu, spec.task.isolation.whole_cores) = (4000, 4);
        let submit = |spec: &crate::spec::JobSpec| Command::SubmitJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
        };
        let text = cell.rejection_text(submit(&spec));
        assert!(text.contains("whole_cores: value 4") && text.contains("at most 3"), "{text}");
        (spec.task.limits.cpu, spec.task.isolation.whole_cores) = (2000, 2);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        // There is room for both by their limits of CPU, and one whole core is left.
        let second = cell.task_id("jfoo", 1);
        let candidate = crate::fit::Candidate::of(&cell.state, second).unwrap();
        let infeasible = crate::fit::infeasible_reason(&cell.state, &candidate, MachineId(0), None);
        let words = crate::words::infeasible(&cell.state, &infeasible.unwrap());
        assert_eq!(words, "whole-cores: asked 2, available 1");
    }
}
