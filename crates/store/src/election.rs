//! When a replica starts an election: pre-vote, built around openraft, whose own election timer is
//! off.
//!
//! Openraft 0.9 raises its term whenever its timer runs out, whether or not it can reach a peer. A
//! follower that was partitioned comes back with a term dozens ahead and deposes a healthy leader.
//! Here a replica first asks its peers whether they would vote for it ([`PreVote`]), which changes
//! no state anywhere. A peer would if it has not heard from a leader for the length of a leader's
//! lease, does not lead itself with a quorum behind it, has not voted a moment ago, and has no
//! entry that the candidate lacks. Of two candidates at the same time, the one with the longer log,
//! or else the higher number, gets the yes, so votes are not split. Only with a majority for it
//! does the replica have openraft start an election.
//!
//! Terms play no part in a pre-vote: a replica whose term is behind learns the newer one from the
//! real election that it loses, and starts another.
//!
//! Rejected: a patched openraft, which would have to be kept up with its releases; and refusing
//! real votes to returning replicas, which leaves them with a term that no other replica reaches
//! and that every later leader has to climb to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::Raft;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::StoreConfig;
use crate::log::Log;
use crate::raft::{LogId, NodeId, Peer, TypeConfig};
use crate::runtime::random_between;
use crate::status::{Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// Would you vote for me?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreVote {
    pub last_log: Option<LogId>,
}

/// The latest reasons for a replica not to start an election.
#[derive(Clone, Default)]
pub(crate) struct ElectionHoldoff(Arc<Mutex<ElectionActivity>>, Arc<watch::Sender<bool>>);

#[derive(Clone, Copy, Default)]
struct ElectionActivity {
    last_leader_contact: Option<Instant>,
    last_vote: Option<Instant>,
    /// This replica is asking its peers for pre-votes.
    is_pre_voting: bool,
}

impl ElectionHoldoff {
    fn activity(&self) -> ElectionActivity {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a leader was heard from.
    pub(crate) fn note_leader_contact(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_leader_contact =
            Some(Instant::now());
        self.1.send_if_modified(|is_lost| std::mem::replace(is_lost, false));
    }

    /// The leader has been silent for too long to be called the leader.
    fn mark_leader_lost(&self) {
        self.1.send_if_modified(|is_lost| !std::mem::replace(is_lost, true));
    }

    /// Whether the leader was lost, as a watch channel. Openraft forgets its leader when it becomes
    /// a candidate, and here that happens only when it would win.
    pub(crate) fn leader_lost(&self) -> watch::Receiver<bool> {
        self.1.subscribe()
    }

    /// Records a vote: a peer, or this replica, may be about to become leader.
    pub(crate) fn note_vote(&self) {
        let mut activity = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        activity.last_vote = Some(Instant::now());
    }

    /// Whether a leader was heard from within `lease`.
    pub(crate) fn has_leader_within(&self, lease: Duration) -> bool {
        self.activity().last_leader_contact.is_some_and(|at| at.elapsed() <= lease)
    }

    /// Whether there was a vote within this time.
    pub(crate) fn has_voted_within(&self, time: Duration) -> bool {
        self.activity().last_vote.is_some_and(|at| at.elapsed() <= time)
    }

    fn set_pre_voting(&self, is_pre_voting: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_pre_voting = is_pre_voting;
    }

    /// Whether this replica is asking for pre-votes itself.
    pub(crate) fn is_pre_voting(&self) -> bool {
        self.activity().is_pre_voting
    }

    /// Whether there was a leader or a vote since then.
    fn has_activity_since(&self, then: Instant) -> bool {
        let ElectionActivity { last_leader_contact: leader, last_vote: voted, .. } =
            self.activity();
        leader.max(voted) > Some(then)
    }
}

/// Starts an election when it is time.
pub(crate) struct Campaign {
    pub(crate) id: NodeId,
    pub(crate) raft: Raft<TypeConfig>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) log: Log,
    pub(crate) settings: StoreConfig,
    pub(crate) holdoff: ElectionHoldoff,
    pub(crate) status: watch::Receiver<Status>,
    /// The leader asks this replica to start an election now (raft's TimeoutNow).
    pub(crate) timeout_now: Arc<Notify>,
    /// Whether this replica's disk is too full to lead for long.
    pub(crate) is_disk_low: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A wait until the next campaign.
struct CampaignWait {
    since: Instant,
    random_delay: Duration,
    /// Right after a start it is soon known whether there is a leader, and a pre-vote harms no
    /// peer.
    is_first: bool,
}

impl Campaign {
    /// Runs until the replica stops.
    pub(crate) async fn run(mut self) {
        let first_delay = random_between(self.settings.heartbeat, self.settings.heartbeat * 2);
        let mut wait =
            CampaignWait { since: Instant::now(), random_delay: first_delay, is_first: true };
        loop {
            if !self.wait_eligible(&mut wait).await {
                return;
            }
            let timeout_now = self.timeout_now.clone();
            tokio::select! {
                biased;
                () = timeout_now.notified() => {}
                () = tokio::time::sleep_until(self.next_campaign_at(&wait)) => {
                    // A leader may have been heard from in the meantime.
                    if self.next_campaign_at(&wait) > Instant::now() {
                        if wait.is_first {
                            wait = self.next_wait();
                        }
                        continue;
                    }
                }
            }
            self.holdoff.mark_leader_lost();
            self.holdoff.set_pre_voting(true);
            let started_at = Instant::now();
            let has_majority =
                self.run_pre_vote().await && !self.holdoff.has_activity_since(started_at);
            let started = if has_majority { self.start_election().await } else { Ok(()) };
            self.holdoff.set_pre_voting(false);
            if started.is_err() {
                return;
            }
            wait = self.next_wait();
        }
    }

    /// The random delay begins after the lease has run out. It need only keep two replicas from
    /// starting a pre-vote at the same moment, and a round of pre-votes takes much less than a
    /// heartbeat.
    fn next_wait(&self) -> CampaignWait {
        let random_delay = random_between(self.settings.heartbeat, self.settings.heartbeat * 3);
        CampaignWait { since: Instant::now(), random_delay, is_first: false }
    }

    /// Waits until this replica is eligible to be a candidate; `false` when it has stopped.
    async fn wait_eligible(&mut self, wait: &mut CampaignWait) -> bool {
        let may = |role| matches!(role, Role::Follower | Role::Candidate);
        if may(self.status.borrow().role) {
            return true;
        }
        let stands = |status: &Status| may(status.role) || status.role == Role::Stopped;
        let Ok(role) = self.status.wait_for(stands).await.map(|status| status.role) else {
            return false;
        };
        wait.since = Instant::now();
        role != Role::Stopped
    }

    /// The time of the next campaign, as far as is known now.
    fn next_campaign_at(&self, wait: &CampaignWait) -> Instant {
        let ElectionActivity { last_leader_contact: leader, last_vote: voted, .. } =
            self.holdoff.activity();
        let lease = self.settings.election_max;
        let is_alone = self.raft.metrics().borrow().membership_config.voter_ids().eq([self.id]);
        if is_alone && wait.is_first {
            return wait.since;
        }
        // Replicas with free disk space go first.
        let random_delay =
            if (self.is_disk_low)() { wait.random_delay + lease } else { wait.random_delay };
        let earliest = [voted, leader.map(|at| at + lease)];
        earliest.into_iter().flatten().fold(wait.since, Instant::max) + random_delay
    }

    /// Has openraft start an election, and waits until it has taken that in: a core that hangs on
    /// its disk must not find a queue of elections when it wakes.
    async fn start_election(&self) -> Result<(), ()> {
        self.holdoff.note_vote();
        self.raft.trigger().elect().await.map_err(drop)?;
        self.raft.with_raft_state(|_| ()).await.map_err(drop)
    }

    /// Asks the peers; returns whether a majority, of either half of a joint membership, would
    /// vote.
    async fn run_pre_vote(&self) -> bool {
        let (halves, peers) = self.voters();
        let mut granted = BTreeSet::from([self.id]);
        let is_won = |granted: &BTreeSet<NodeId>| {
            let majority =
                |half: &BTreeSet<NodeId>| half.intersection(granted).count() * 2 > half.len();
            !halves.is_empty() && halves.iter().all(majority)
        };
        let mut answers = JoinSet::new();
        for (to, peer) in peers {
            let request = PreVote { last_log: self.log.last() };
            let call = self.transport.call(to, peer, RaftCall::PreVote(request));
            let call_timeout = self.settings.election_min;
            answers.spawn(async move { (to, tokio::time::timeout(call_timeout, call).await) });
        }
        while !is_won(&granted) {
            match answers.join_next().await {
                Some(Ok((from, Ok(Ok(RaftAnswer::PreVote { granted: true }))))) => {
                    granted.insert(from);
                }
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    fn voters(&self) -> (Vec<BTreeSet<NodeId>>, BTreeMap<NodeId, Peer>) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        let halves: Vec<BTreeSet<NodeId>> = membership.get_joint_config().clone();
        if !halves.iter().any(|half| half.contains(&self.id)) {
            return (Vec::new(), BTreeMap::new());
        }
        let others = membership.voter_ids().filter(|id| *id != self.id);
        let peers = others.filter_map(|id| Some((id, membership.get_node(&id)?.clone())));
        (halves, peers.collect())
    }
}
