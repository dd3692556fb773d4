//! What a replica knows about itself and its cell, for people, metrics and the fence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::error::Fatal;
use openraft::{RaftMetrics, ServerState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::disk::DiskHandle;
use crate::raft::{NodeId, Peer};
use crate::settings::FatalHook;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Receives the log and does not vote; also what a replica is before it belongs to a cell.
    #[default]
    Learner,
    Follower,
    Candidate,
    Leader,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub peer: Peer,
    pub voter: bool,
    /// Last index known to be on this member; only a leader knows.
    pub matched: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub id: NodeId,
    pub term: u64,
    pub role: Role,
    pub leader: Option<NodeId>,
    pub last_log: Option<u64>,
    pub applied: Option<u64>,
    pub snapshot: Option<u64>,
    pub purged: Option<u64>,
    pub members: BTreeMap<NodeId, Member>,
    /// For a leader: milliseconds since a quorum was last heard from.
    pub quorum_silent_millis: Option<u64>,
}

impl Status {
    pub fn leader_peer(&self) -> Option<(NodeId, Peer)> {
        let id = self.leader?;
        Some((id, self.members.get(&id)?.peer.clone()))
    }

    fn of(metrics: &RaftMetrics<NodeId, Peer>) -> Status {
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let member = |(id, peer): (&NodeId, &Peer)| {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(id).copied());
            let matched = matched.flatten().map(|log_id| log_id.index);
            (*id, Member { peer: peer.clone(), voter: voters.contains(id), matched })
        };
        Status {
            id: metrics.id,
            term: metrics.current_term,
            role: match metrics.state {
                ServerState::Learner => Role::Learner,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Leader => Role::Leader,
                ServerState::Shutdown => Role::Stopped,
            },
            leader: metrics.current_leader,
            last_log: metrics.last_log_index,
            applied: metrics.last_applied.map(|id| id.index),
            snapshot: metrics.snapshot.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            members: membership.nodes().map(member).collect(),
            quorum_silent_millis: metrics.millis_since_quorum_ack,
        }
    }
}

/// When a quorum was last heard from. Openraft reports an age with each turn of its loop; kept as
/// an instant it goes on ageing when that loop stalls, which is when it matters.
#[derive(Clone, Default)]
pub(crate) struct Fence(Arc<Mutex<Option<Heard>>>);

#[derive(Clone, Copy)]
struct Heard {
    term: u64,
    at: Instant,
}

impl Fence {
    /// `None` if this replica has never led.
    fn heard(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|heard| heard.at)
    }

    fn note(&self, metrics: &RaftMetrics<NodeId, Peer>) {
        if metrics.state != ServerState::Leader {
            return;
        }
        let (now, term) = (Instant::now(), metrics.current_term);
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = heard.filter(|heard| heard.term == term).map(|heard| heard.at);
        let age = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        let acked = age.and_then(|age| now.checked_sub(age));
        // Nothing of this term yet: it was elected by a quorum just now.
        let at = acked.max(before).unwrap_or(now);
        *heard = Some(Heard { term, at });
    }

    pub(crate) fn silent(&self) -> Option<Duration> {
        self.heard().map(|heard| heard.elapsed())
    }

    /// Ends when no quorum was heard for `bound`, counted from now at the earliest.
    pub(crate) async fn trips(&self, bound: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let since = self.heard().map_or(start, |heard| heard.max(start));
            tokio::time::sleep_until(since + bound).await;
            let since = self.heard().map_or(start, |heard| heard.max(start));
            if since.elapsed() >= bound {
                return since.elapsed();
            }
        }
    }
}

/// Follows openraft's metrics until the replica stops.
pub(crate) async fn follow(
    mut metrics: watch::Receiver<RaftMetrics<NodeId, Peer>>,
    status: watch::Sender<Status>,
    fence: Fence,
    disk: DiskHandle,
    on_fatal: FatalHook,
) {
    loop {
        let (now, stopped) = {
            let seen = metrics.borrow_and_update();
            fence.note(&seen);
            (Status::of(&seen), seen.running_state.clone().err())
        };
        status.send_if_modified(|last| {
            let differs = *last != now;
            *last = now;
            differs
        });
        match stopped {
            Some(Fatal::Stopped) => return,
            // Stopped from outside, in whatever it was doing.
            Some(_) if disk.is_closed() => return,
            Some(fatal) => return on_fatal(&format!("the replica stopped: {fatal}")),
            None if metrics.changed().await.is_err() => return,
            None => {}
        }
    }
}
