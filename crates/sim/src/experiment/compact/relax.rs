//! Relaxes jobs that would not fit on half the cell because of their own constraints alone: hard
//! constraints become soft, and spread limits and static ports are removed, so that they do not
//! decide the outcome.

use crate::workload::Workload;
use cellwright_cell::constraint::Strength;

/// The weight of a constraint that was made soft: the highest one.
const SOFT_STRENGTH: Strength = Strength::Soft(100);

/// Relaxes jobs with more tasks than half of `machines`; returns how many had anything to relax.
pub fn relax_large_jobs(mut workload: Workload, machines: usize) -> (Workload, usize) {
    let mut relaxed = 0;
    for job in &mut workload.jobs {
        let spec = &mut job.spec;
        let is_large = spec.count as usize * 2 > machines;
        let hard = |strength: &Strength| matches!(strength, Strength::Hard);
        let has_demands = !spec.spread.is_empty()
            || !spec.task.static_ports.is_empty()
            || spec.constraints.iter().any(|c| hard(&c.strength));
        if is_large && has_demands {
            spec.spread.clear();
            // A static port that every task requires keeps them apart as a spread limit would.
            spec.task.static_ports.clear();
            for constraint in spec.constraints.iter_mut().filter(|c| hard(&c.strength)) {
                constraint.strength = SOFT_STRENGTH;
            }
            relaxed += 1;
        }
    }
    (workload, relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::plain_job;
    use crate::workload::{ReservedShare, WorkloadJob};
    use cellwright_cell::constraint::{Constraint, Operator};
    use cellwright_cell::name::{Name, Token};
    use cellwright_cell::priority::Priority;
    use cellwright_cell::resource::Resources;
    use cellwright_cell::spec::{Domain, SpreadLimit};

    fn job(count: u32) -> WorkloadJob {
        let name = Name::new(&format!("j{count}")).expect("a name");
        let mut spec = plain_job(name, count, Priority(200), Resources::new(1, 1, 0, 0));
        spec.spread.push(SpreadLimit { domain: Domain::Machine, limit: 1 });
        spec.constraints.push(Constraint {
            attribute: Token::new("flash").expect("a token"),
            operator: Operator::Exists,
            strength: Strength::Hard,
        });
        WorkloadJob { owner: Name::new("u").expect("a name"), spec, reserved: ReservedShare::ALL }
    }

    #[test]
    fn only_jobs_beyond_half_the_cell_are_softened() {
        let workload = Workload { jobs: vec![job(5), job(6)], ..Workload::default() };
        let (relaxed, count) = relax_large_jobs(workload, 10);
        assert_eq!(count, 1);
        assert_eq!(relaxed.jobs[0].spec, job(5).spec);
        assert!(relaxed.jobs[1].spec.spread.is_empty());
        assert_eq!(relaxed.jobs[1].spec.constraints[0].strength, SOFT_STRENGTH);
    }
}
