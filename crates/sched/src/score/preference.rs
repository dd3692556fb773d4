//! Soft constraints: the sum of the weights of those that do not hold.

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;

#[inline]
pub(crate) fn missed_weight(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> u16 {
    class.request.constraints.map_or(0, |list| {
        snapshot.constraints.result(list, snapshot.machines.profile[m], m).missed_weight
    })
}
