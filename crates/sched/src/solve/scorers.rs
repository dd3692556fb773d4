//! Machine scorers: how well a machine suits a class as it is, or after preemption.

use super::preempt;
use super::search::MachineScorer;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::feasible;
use crate::score::{self, Ranking, ScoreKey};

/// Counters of the snapshot that grow when machines outside the log may have become better.
fn domain_departures(snapshot: &ClusterSnapshot, class: &Class) -> u64 {
    let job = class.request.siblings.and_then(|siblings| snapshot.job(siblings.job));
    job.map_or(0, |job| job.domain_departures)
}

/// Scores machines with free room.
pub(crate) struct FreeScorer<'a> {
    pub class: &'a Class,
    pub ranking: Ranking,
}

impl MachineScorer for FreeScorer<'_> {
    #[inline]
    fn key(&self, snapshot: &ClusterSnapshot, m: usize) -> Option<ScoreKey> {
        feasible::is_feasible(snapshot, self.class, m)
            .then(|| score::key(snapshot, self.class, m, self.ranking))
    }

    fn improvement_counters(&self, snapshot: &ClusterSnapshot) -> (u64, u64) {
        (domain_departures(snapshot, self.class), 0)
    }
}

/// Scores machines that have room once some tasks of lower priority are gone.
pub(crate) struct PreemptionScorer<'a> {
    pub class: &'a Class,
    pub ranking: Ranking,
}

impl MachineScorer for PreemptionScorer<'_> {
    fn key(&self, snapshot: &ClusterSnapshot, m: usize) -> Option<ScoreKey> {
        if !preempt::is_possible(snapshot, self.class, m) {
            return None;
        }
        let found = preempt::on_machine(snapshot, self.class, m, self.ranking)?;
        Some(found.score.key())
    }

    fn improvement_counters(&self, snapshot: &ClusterSnapshot) -> (u64, u64) {
        let changes = snapshot.budget_changes + snapshot.gang_departures;
        (domain_departures(snapshot, self.class), changes)
    }
}
