//! Spreading over machines, racks and power domains: what share of the job already depends on this
//! domain, in sixteenths. A share below a sixteenth counts as nothing, so large jobs are packed
//! freely until a domain holds a part of them that would hurt. It concerns services of every band
//! and jobs with spread limits, and stands before whatever only makes starts faster or packing
//! tighter: that a service survives a rack is worth more than either.

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::feasible::tasks_in_domain;
use cellwright_cell::spec::Domain;

const STEPS: u64 = 16;
/// The whole job in one machine, one rack and one power domain.
pub(crate) const MAX_SHARES: u8 = 3 * STEPS as u8;

#[inline]
pub(crate) fn share_at_stake(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> u8 {
    let Some(siblings) = class.request.siblings else { return 0 };
    let share = |domain| {
        let in_domain_share = u64::from(tasks_in_domain(snapshot, class, m, domain));
        (in_domain_share * STEPS / u64::from(siblings.count.max(1))).min(STEPS)
    };
    (share(Domain::Machine) + share(Domain::Rack) + share(Domain::Power)) as u8
}
