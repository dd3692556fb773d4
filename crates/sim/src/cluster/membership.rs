//! Membership changes, and replicas that are gone for good: what an operator does while other
//! faults happen.

use super::failpoints::PanicPoint;
use super::world::{Cluster, peer};
use cellwright_store::{NodeId, OpenError};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::Ordering;

impl Cluster {
    /// Whether the remaining replicas would be a majority of the members, whichever is lost.
    pub(super) fn has_spare_replica(&self) -> bool {
        let is_minority = (self.lost_count() + 1) * 2 < self.shape.masters;
        is_minority && !self.has_removed_member.load(Ordering::SeqCst)
    }

    /// Truncates the log of a replica while it is off. It has to report that and to stay off,
    /// because its votes are lost with it: an operator removes it and creates another.
    ///
    /// # Errors
    /// When it starts as if nothing were missing.
    pub async fn cut_log(&mut self, id: NodeId, rng: &mut ChaCha8Rng) -> Result<(), String> {
        if self.lost_count() > 0 || !self.has_spare_replica() || !self.readd_members() {
            return Ok(());
        }
        let Some((_, handle)) = self.running_replicas().into_iter().find(|(on, _)| *on == id)
        else {
            return Ok(());
        };
        let applied = handle.status().applied.unwrap_or(0);
        self.stop_replica(id, false).await;
        if !self.disk(id).is_some_and(|disk| disk.cut_log(applied, rng)) {
            return Ok(());
        }
        match self.start_replica(id).await {
            Err(OpenError::Damaged { .. }) => {
                self.lose_replica(id).await;
                Ok(())
            }
            Err(other) => Err(format!("replica {id}, whose log was cut, says {other}")),
            Ok(()) => Err(format!("replica {id} starts with a log that was cut short")),
        }
    }

    /// Removes a replica other than the leader from the membership, whatever comes of it.
    pub fn remove_member(&self, id: NodeId) {
        let Some((leader, handle)) = self.leader().filter(|(leader, _)| *leader != id) else {
            return;
        };
        let voters = handle.status().members.values().filter(|member| member.voter).count();
        // The remaining ones must have a majority.
        if leader != id && voters > 2 && (self.is_lost(id) || self.lost_count() == 0) {
            self.has_removed_member.store(true, Ordering::SeqCst);
            let planted = self.failpoint();
            self.spawn_background("a change of members", async move {
                planted.reach(PanicPoint::Members);
                drop(handle.replica().remove(id).await);
            });
        }
    }

    /// Has the leader add the removed replicas again; returns whether all that remain are members.
    pub fn readd_members(&self) -> bool {
        let Some((_, handle)) = self.leader() else { return false };
        let members = handle.status().members;
        let is_removed = |id: &NodeId| !members.get(id).is_some_and(|member| member.voter);
        let mut left = (1..=self.shape.masters).filter(|id| !self.is_lost(*id));
        let Some(id) = left.find(is_removed) else { return true };
        let planted = self.failpoint();
        self.spawn_background("a change of members", async move {
            planted.reach(PanicPoint::Members);
            // Rejected while another change is under way; the caller tries again.
            if handle.replica().add_learner(id, peer(id)).await.is_ok() {
                let _later = handle.replica().promote(id).await;
            }
        });
        false
    }
}
