//! Spreading over machines, racks and power domains: what share of the job is already at stake with
//! this domain, in sixteenths. A share below a sixteenth counts as nothing, so large jobs are
//! packed freely until a domain holds a part of them that would hurt.

use crate::board::Board;
use crate::class::Class;
use crate::feasible::in_domain;
use cellwright_cell::spec::Domain;

const STEPS: u64 = 16;

#[inline]
pub(crate) fn share_at_stake(board: &Board, class: &Class, m: usize) -> u8 {
    let Some(siblings) = class.request.siblings else { return 0 };
    let share = |domain| {
        let here = u64::from(in_domain(board, class, m, domain));
        (here * STEPS / u64::from(siblings.count.max(1))).min(STEPS)
    };
    (share(Domain::Machine) + share(Domain::Rack) + share(Domain::Power)) as u8
}
