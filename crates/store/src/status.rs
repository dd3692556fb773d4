//! The status of a replica and of its cell as it knows it, for people, metrics and the leader's
//! fence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cellwright_supervise::{Supervisor, failpoint};
use openraft::error::Fatal;
use openraft::{RaftMetrics, ServerState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::FatalHook;
use crate::disk::DiskHandle;
use crate::raft::{Membership, NodeId, Peer};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Receives the log and does not vote; a replica that belongs to no cell yet is one, too.
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
    /// Term and index of the entry that set this membership, once a quorum is known to hold it.
    pub committed_membership: Option<(u64, u64)>,
    /// For a leader: milliseconds since a quorum was last heard from.
    pub quorum_silent_millis: Option<u64>,
}

/// The members in a membership, with nothing more known about them.
pub(crate) fn members_of(membership: &Membership) -> BTreeMap<NodeId, Member> {
    let voters: Vec<NodeId> = membership.voter_ids().collect();
    let member = |(id, peer): (&NodeId, &Peer)| {
        (*id, Member { peer: peer.clone(), voter: voters.contains(id), matched: None })
    };
    membership.nodes().map(member).collect()
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
        let applied = metrics.last_applied.map(|id| id.index);
        let entry = metrics.membership_config.log_id().filter(|id| Some(id.index) <= applied);
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
            applied,
            snapshot: metrics.snapshot.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            members: membership.nodes().map(member).collect(),
            committed_membership: entry.map(|id| (id.leader_id.term, id.index)),
            quorum_silent_millis: metrics.millis_since_quorum_ack,
        }
    }
}

/// When a quorum was last heard from. Openraft reports an age with each turn of its loop. Kept as
/// an instant it goes on ageing when that loop stalls, which is when it matters.
#[derive(Clone, Default)]
pub(crate) struct Fence(Arc<Mutex<Option<QuorumContact>>>);

#[derive(Clone, Copy)]
struct QuorumContact {
    term: u64,
    at: Instant,
}

impl Fence {
    /// `None` if this replica has never led.
    fn last_contact(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|contact| contact.at)
    }

    fn note(&self, metrics: &RaftMetrics<NodeId, Peer>) {
        if metrics.state != ServerState::Leader {
            return;
        }
        let (now, term) = (Instant::now(), metrics.current_term);
        let mut contact = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = contact.filter(|contact| contact.term == term).map(|contact| contact.at);
        let age = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        let acked = age.and_then(|age| now.checked_sub(age));
        // No contact in this term yet: it was elected by a quorum just now.
        let at = acked.max(before).unwrap_or(now);
        *contact = Some(QuorumContact { term, at });
    }

    pub(crate) fn since_contact(&self) -> Option<Duration> {
        self.last_contact().map(|contact| contact.elapsed())
    }

    /// Returns when no quorum was heard for `bound`, counted from now at the earliest.
    pub(crate) async fn wait_tripped(&self, bound: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let since = self.last_contact().map_or(start, |contact| contact.max(start));
            tokio::time::sleep_until(since + bound).await;
            let since = self.last_contact().map_or(start, |contact| contact.max(start));
            if since.elapsed() >= bound {
                return since.elapsed();
            }
        }
    }
}

/// Handles the end of consensus.
pub(crate) struct ExitHandler {
    pub(crate) disk: DiskHandle,
    pub(crate) on_fatal: FatalHook,
    pub(crate) supervisor: Supervisor,
}

impl ExitHandler {
    /// A core that ends by itself leaves a replica that takes no part any more, whatever its last
    /// status was.
    async fn core_ended(&self, status: &watch::Sender<Status>) {
        status.send_modify(|last| {
            last.role = Role::Stopped;
            last.leader = None;
        });
        self.supervisor.report_ended("the core of consensus").await;
    }
}

/// Follows openraft's metrics until the replica stops.
pub(crate) async fn follow_metrics(
    mut metrics: watch::Receiver<RaftMetrics<NodeId, Peer>>,
    status: watch::Sender<Status>,
    fence: Fence,
    exit_handler: ExitHandler,
    mut lost: watch::Receiver<bool>,
) {
    loop {
        failpoint("status");
        let (mut now, stopped) = {
            let seen = metrics.borrow_and_update();
            fence.note(&seen);
            (Status::of(&seen), seen.running_state.clone().err())
        };
        if *lost.borrow_and_update() && now.role == Role::Follower {
            now.leader = None;
        }
        status.send_if_modified(|last| {
            // A core that has not looked at its log yet reports no members; the log had some.
            if now.members.is_empty() {
                now.members = std::mem::take(&mut last.members);
            }
            let differs = *last != now;
            *last = now;
            differs
        });
        match stopped {
            Some(Fatal::Stopped) => return exit_handler.core_ended(&status).await,
            // Stopped from outside, whatever it was doing.
            Some(_) if exit_handler.disk.is_closed() => return,
            Some(fatal) => {
                return (exit_handler.on_fatal)(&format!("the replica stopped: {fatal}"));
            }
            None => {
                tokio::select! {
                    biased;
                    // It panicked, or its runtime is shutting down.
                    changed = metrics.changed() => if changed.is_err() {
                        return exit_handler.core_ended(&status).await;
                    },
                    changed = lost.changed() => if changed.is_err() {
                        return;
                    },
                }
            }
        }
    }
}
