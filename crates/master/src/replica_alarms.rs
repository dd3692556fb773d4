//! Alarms of the whole cell: what each replica knows, asked of all of them.
//!
//! Only the leader hears all machines, compares all clocks and looks at all disks; what is damaged
//! on a disk, its own replica knows. Nothing of it is in the log, so a replica that is asked for
//! the cell's alarms asks the others. Rejected: answering with what the replica knows itself.
//! Whoever happens to read from a follower would see no machine that is silent. Rejected: sending
//! the caller on to the leader. A page of the console has one origin, and may call no other.

use crate::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_control::input::Alarm;
use cellwright_store::{DiskSpace, NodeId, Peer};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long other replicas may take to say what they know.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// What one replica knows. Machines and replicas are numbers, which mean the same to all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaAlarms {
    /// Whether it leads, and hears a majority.
    pub leads: bool,
    /// What the leader has noticed of machines and clocks.
    pub noticed: Vec<Alarm>,
    /// Of all replicas on the leader, which polls them; of itself on others.
    pub disks: BTreeMap<NodeId, DiskSpace>,
    /// What is damaged or missing on its own disk.
    pub damage: Vec<String>,
    /// For how long it has known no leader, or has heard no majority as one.
    pub leaderless_seconds: Option<u64>,
}

/// Says what is damaged on the disk of this replica.
pub type DamageSource = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// What the replicas know that answer, `own` among them.
pub(crate) async fn of_all(
    own: (NodeId, ReplicaAlarms),
    peers: &Arc<dyn Peers>,
    others: Vec<(NodeId, Peer)>,
) -> BTreeMap<NodeId, ReplicaAlarms> {
    let calls = others.into_iter().map(|(id, peer)| {
        let call = timeout(CALL_TIMEOUT, peers.call(id, peer, PeerCall::Alarms));
        async move { (id, call.await) }
    });
    let mut known = BTreeMap::from([own]);
    for (id, answer) in join_all(calls).await {
        if let Ok(Ok(PeerAnswer::Alarms(alarms))) = answer {
            known.insert(id, alarms);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_store::CallError;
    use futures::future::BoxFuture;

    /// Replica 2 leads, replica 3 never answers.
    struct Others;

    impl Peers for Others {
        fn call(
            &self,
            to: NodeId,
            _: Peer,
            call: PeerCall,
        ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
            assert!(matches!(call, PeerCall::Alarms));
            Box::pin(async move {
                if to == 3 {
                    std::future::pending::<()>().await;
                }
                let noticed = vec![Alarm::DownRateLimited { waiting: 4 }];
                let alarms = ReplicaAlarms { leads: true, noticed, ..ReplicaAlarms::default() };
                Ok(PeerAnswer::Alarms(alarms))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_has_the_alarms_of_its_leader_and_does_not_wait_for_the_dead() {
        let peers: Arc<dyn Peers> = Arc::new(Others);
        let peer =
            |id: NodeId| (id, Peer { name: format!("m{id}"), address: "127.0.0.1:1".into() });
        let own = ReplicaAlarms { leaderless_seconds: None, ..ReplicaAlarms::default() };
        let known = of_all((1, own.clone()), &peers, vec![peer(2), peer(3)]).await;
        assert_eq!(known.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(known[&1], own);
        assert!(known[&2].leads);
        assert_eq!(known[&2].noticed, [Alarm::DownRateLimited { waiting: 4 }]);
    }
}
