//! Membership changes of the cell, one replica at a time.
//!
//! A new replica first follows as a learner and gets a vote only when it has caught up; a voter
//! with an empty log would leave the cell one failure away from losing its quorum. Openraft commits
//! each change through a joint configuration, so a crash half-way leaves a cell that works.

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::MemberError;
use crate::raft::{NodeId, Peer};
use crate::replica::Replica;
use crate::status::{Member, Role, Status};
use crate::transport::{RaftAnswer, RaftCall};

impl Replica {
    /// Makes a replica follow the log. Adding it twice at the same address does nothing.
    pub async fn add_learner(&self, id: NodeId, peer: Peer) -> Result<(), MemberError> {
        let _one_at_a_time = self.membership_lock.try_lock().map_err(|_| MemberError::Busy)?;
        match self.leader_status()?.members.get(&id) {
            Some(member) if member.peer == peer => Ok(()),
            Some(member) => Err(MemberError::Exists { id, address: member.peer.address.clone() }),
            None => {
                self.change_membership(ChangeMembers::AddNodes(BTreeMap::from([(id, peer)])), true)
                    .await
            }
        }
    }

    /// Gives a learner a vote, after waiting until it has caught up.
    pub async fn promote(&self, id: NodeId) -> Result<(), MemberError> {
        let _one_at_a_time = self.membership_lock.try_lock().map_err(|_| MemberError::Busy)?;
        let status = self.leader_status()?;
        if status.members.get(&id).ok_or(MemberError::Unknown { id })?.voter {
            return Ok(());
        }
        self.wait_caught_up(id).await?;
        self.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
    }

    /// Takes a replica out of the cell, voter or not.
    pub async fn remove(&self, id: NodeId) -> Result<(), MemberError> {
        let _one_at_a_time = self.membership_lock.try_lock().map_err(|_| MemberError::Busy)?;
        let status = self.leader_status()?;
        let ids = BTreeSet::from([id]);
        if !status.members.get(&id).ok_or(MemberError::Unknown { id })?.voter {
            return self.change_membership(ChangeMembers::RemoveNodes(ids), false).await;
        }
        if status.members.values().filter(|member| member.voter).count() == 1 {
            return Err(MemberError::LastVoter { id });
        }
        self.check_majority_without(id, &status).await?;
        self.change_membership(ChangeMembers::RemoveVoters(ids), false).await
    }

    /// Checks that the replicas that would form the majority without this voter answer. A change
    /// that leaves most votes with replicas that are down could not be completed, and neither could
    /// one that repairs it.
    async fn check_majority_without(&self, id: NodeId, status: &Status) -> Result<(), MemberError> {
        let remains = |(other, member): &(&NodeId, &Member)| member.voter && **other != id;
        let left: Vec<(&NodeId, &Member)> = status.members.iter().filter(remains).collect();
        let mut answers = JoinSet::new();
        for (other, member) in &left {
            if **other != status.id {
                let call = self.transport.call(**other, member.peer.clone(), RaftCall::DiskSpace);
                answers.spawn(timeout(self.settings.election_min, call));
            }
        }
        let mut answering = usize::from(id != status.id);
        while let Some(answer) = answers.join_next().await {
            answering += usize::from(matches!(answer, Ok(Ok(Ok(RaftAnswer::DiskSpace(_))))));
        }
        let voters = left.len();
        if answering * 2 > voters {
            Ok(())
        } else {
            Err(MemberError::NoMajorityLeft { id, answering, voters })
        }
    }

    fn leader_status(&self) -> Result<Status, MemberError> {
        let status = self.status();
        match status.role {
            Role::Leader => Ok(status),
            _ => Err(MemberError::NotLeader { leader: status.leader_peer() }),
        }
    }

    async fn wait_caught_up(&self, id: NodeId) -> Result<(), MemberError> {
        let allowed = self.settings.promote_lag;
        let waited = self.settings.promote_timeout;
        let mut watch = self.watch();
        let caught_up = watch.wait_for(|status| {
            status.role != Role::Leader
                || replication_lag(status, id).is_none_or(|lag| lag <= allowed)
        });
        let caught_up = tokio::time::timeout(waited, caught_up).await.map(|seen| seen.is_ok());
        match caught_up {
            Ok(true) => {
                let status = self.leader_status()?;
                replication_lag(&status, id).map(|_| ()).ok_or(MemberError::Unknown { id })
            }
            Ok(false) => Err(MemberError::Fatal { why: "it was shut down".to_owned() }),
            Err(_elapsed) => {
                let behind = replication_lag(&self.status(), id).unwrap_or_default();
                Err(MemberError::NotCaughtUp { id, behind, allowed, waited })
            }
        }
    }

    async fn change_membership(
        &self,
        change: ChangeMembers<NodeId, Peer>,
        keep_as_learner: bool,
    ) -> Result<(), MemberError> {
        // As in `propose`: openraft uses the same error for what was never in the log and for what
        // may still be in one.
        self.leader_status()?;
        // The target has the whole log, and an entry after that would cost it the election.
        if self.transfer.is_transferring() {
            return Err(MemberError::Busy);
        }
        let changing = async {
            // Openraft accepts a change once it calls the one before committed. Until that one is
            // durable here it may be on fewer disks than a majority, and a crash of this leader
            // would leave two memberships whose majorities share no replica.
            if let Err(error) = self.log.wait_all_durable().await {
                return Err(MemberError::Fatal { why: error.to_string() });
            }
            Ok(self.raft.change_membership(change, keep_as_learner).await)
        };
        let changed = tokio::select! {
            biased;
            changed = changing => changed?,
            silent = self.fence.wait_tripped(self.settings.fence_after) => {
                return Err(MemberError::OutcomeUnknown { silent });
            }
        };
        let error = match changed {
            Ok(done) => return self.wait_visible(done.log_id.index).await,
            Err(RaftError::Fatal(fatal)) => MemberError::Fatal { why: fatal.to_string() },
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                MemberError::Deposed { leader: forward.leader_id.zip(forward.leader_node) }
            }
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(e))) => match e {
                ChangeMembershipError::InProgress(_) => MemberError::Busy,
                ChangeMembershipError::EmptyMembership(_) => {
                    MemberError::LastVoter { id: self.status().id }
                }
                ChangeMembershipError::LearnerNotFound(e) => MemberError::Unknown { id: e.node_id },
            },
        };
        Err(error)
    }

    /// Waits until the status contains a change that is at `index`: the next caller, for instance a
    /// promotion that checks for a learner, must find it there.
    async fn wait_visible(&self, index: u64) -> Result<(), MemberError> {
        let mut watch = self.watch();
        let seen = watch.wait_for(|status| status.last_log >= Some(index)).await;
        seen.map(drop).map_err(|_| MemberError::Fatal { why: "it was shut down".to_owned() })
    }
}

/// How many entries the leader has that the member is not known to have; `None` if not a member.
fn replication_lag(status: &Status, id: NodeId) -> Option<u64> {
    let member = status.members.get(&id)?;
    let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
    Some(next(status.last_log).saturating_sub(next(member.matched)))
}
