//! Spread limits: at most so many tasks of the job on one machine, in one rack, on one power
//! domain.
//! A machine whose rack or power domain is unknown is not held to a limit over it.

use super::Spot;
use crate::board::Board;
use crate::board::machines::NO_DOMAIN;
use crate::class::Class;
use cellwright_cell::reason::Misfit;
use cellwright_cell::spec::{Domain, SpreadLimit};

/// Tasks of the job that hold resources in the machine's domain.
#[inline]
pub(crate) fn in_domain(board: &Board, class: &Class, m: usize, domain: Domain) -> u32 {
    let Some(siblings) = class.request.siblings else { return 0 };
    let Some(job) = board.job(siblings.job) else { return 0 };
    let counts = if siblings.strict { &job.strict } else { &job.soft };
    let Some(counts) = counts else { return 0 };
    let known = |id: u32| (id != NO_DOMAIN).then_some(id);
    match domain {
        Domain::Machine => counts.machine.get(m as u32),
        Domain::Rack => known(board.machines.rack[m]).map_or(0, |id| counts.rack.get(id)),
        Domain::Power => known(board.machines.power[m]).map_or(0, |id| counts.power.get(id)),
    }
}

fn exceeded(board: &Board, class: &Class, m: usize, limit: &SpreadLimit) -> bool {
    let known = match limit.domain {
        Domain::Machine => true,
        Domain::Rack => board.machines.rack[m] != NO_DOMAIN,
        Domain::Power => board.machines.power[m] != NO_DOMAIN,
    };
    known && in_domain(board, class, m, limit.domain) >= limit.limit
}

/// Whether the limits would hold if nothing were on the machine: what its racks and power domains
/// hold elsewhere still counts.
pub(crate) fn holds_when_empty(board: &Board, class: &Class, m: usize) -> bool {
    let here = in_domain(board, class, m, Domain::Machine);
    class.request.spread.iter().all(|limit| {
        !exceeded(board, class, m, limit)
            || in_domain(board, class, m, limit.domain).saturating_sub(here) < limit.limit
    })
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let m = spot.machine.slot();
    let limits = class.request.spread.iter().filter(|limit| exceeded(board, class, m, limit));
    out.extend(limits.map(|l| Misfit::Spread { domain: l.domain, limit: l.limit }));
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    class.request.spread.iter().all(|limit| !exceeded(board, class, m, limit))
}
