//! Spread limits: at most so many tasks of the job on one machine, in one rack, on one power
//! domain, or in the whole cell at once. A machine whose rack or power domain is unknown is not
//! held to a limit over it.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::NO_DOMAIN;
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::spec::{Domain, SpreadLimit};

/// Tasks of the job that hold resources in the machine's domain.
#[inline]
pub(crate) fn tasks_in_domain(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    domain: Domain,
) -> u32 {
    let Some(siblings) = class.request.siblings else { return 0 };
    let Some(job) = snapshot.job(siblings.job) else { return 0 };
    let counts = if siblings.strict { &job.hard_spread_counts } else { &job.soft_spread_counts };
    let Some(counts) = counts else { return 0 };
    let known = |id: u32| (id != NO_DOMAIN).then_some(id);
    match domain {
        Domain::Machine => counts.machine.get(m as u32),
        Domain::Rack => known(snapshot.machines.rack[m]).map_or(0, |id| counts.rack.get(id)),
        Domain::Power => known(snapshot.machines.power[m]).map_or(0, |id| counts.power.get(id)),
        Domain::Cell => counts.cell,
    }
}

fn is_exceeded(snapshot: &ClusterSnapshot, class: &Class, m: usize, limit: &SpreadLimit) -> bool {
    let known = match limit.domain {
        Domain::Machine | Domain::Cell => true,
        Domain::Rack => snapshot.machines.rack[m] != NO_DOMAIN,
        Domain::Power => snapshot.machines.power[m] != NO_DOMAIN,
    };
    known && tasks_in_domain(snapshot, class, m, limit.domain) >= limit.limit
}

/// Whether the limits would hold if the machine were empty: tasks elsewhere in its rack and power
/// domain still count.
pub(crate) fn is_met_when_empty(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    let on_machine = tasks_in_domain(snapshot, class, m, Domain::Machine);
    class.request.spread.iter().all(|limit| {
        !is_exceeded(snapshot, class, m, limit)
            || tasks_in_domain(snapshot, class, m, limit.domain).saturating_sub(on_machine)
                < limit.limit
    })
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let m = target.machine.slot();
    let limits = class.request.spread.iter().filter(|limit| is_exceeded(snapshot, class, m, limit));
    out.extend(limits.map(|l| InfeasibleReason::Spread { domain: l.domain, limit: l.limit }));
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    class.request.spread.iter().all(|limit| !is_exceeded(snapshot, class, m, limit))
}
