//! A cell that is upgraded to the next release while faults happen: replicas and schedulers that
//! start after the beginning know one level more than this build, and a format of the log that goes
//! with it. The leader raises the cell when all know the level, in the middle of whatever goes on.
//!
//! Nothing of it is checked here: that every replica reads what every leader writes, and that all
//! come to the same state, is what the checker looks at in every run. A replica that met a format
//! it does not know would have stopped, and the cell would not settle.

use super::net::{NodeAddress, VirtualNet, replica_of_address};
use super::world::Cluster;
use cellwright_cell::state::{HIGHEST_LEVEL, LEVEL};
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe, raise_level};
use cellwright_store::{NodeId, OpenError};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// Runs are short: checked more often than in a real cell.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What a process of either release knows.
pub(super) fn known_level(is_upgraded: bool) -> u32 {
    if is_upgraded { HIGHEST_LEVEL } else { LEVEL }
}

/// A replica that asks the others which level they know.
struct VirtualProbe {
    net: VirtualNet,
    from: NodeAddress,
}

impl ReplicaProbe for VirtualProbe {
    fn identify(&self, address: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>> {
        async move {
            let to = replica_of_address(&address).ok_or("no replica has this address")?;
            let asked = self.net.call_replica(self.from, to, |master| async move {
                ReplicaIdentity { id: master.status().id, level: master.replicated().known_level() }
            });
            asked.await.map_err(|lost| format!("{lost:?}"))
        }
        .boxed()
    }
}

impl Cluster {
    /// The leader raises the level from now on, whichever replica that is.
    pub(super) fn raise_levels(&self) {
        let (net, masters) = (self.net.clone(), self.shape.masters);
        self.spawn_background("raising the level", async move {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                for id in 1..=masters {
                    let Some(master) = net.master(id) else { continue };
                    let probe = Arc::new(VirtualProbe { net: net.clone(), from: id });
                    raise_level(&master, probe.as_ref()).await;
                }
            }
        });
    }

    /// Everybody who was not started again by a fault is upgraded now, one after the other.
    ///
    /// # Errors
    /// When a replica finds its disk damaged.
    pub async fn upgrade_all(&mut self) -> Result<(), OpenError> {
        for id in 1..=self.shape.masters as NodeId {
            self.stop_replica(id, false).await;
            self.start_replica(id).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        for number in 0..self.shape.schedulers {
            self.kill_scheduler(number);
            self.start_scheduler(number);
        }
        Ok(())
    }
}
