//! Answers the RPCs of other replicas, after checking that the sender may call.
//!
//! A sender that this replica's membership contains may call, under the name recorded there. A
//! replica that holds nothing yet belongs to no cell and accepts calls from every replica that
//! reaches it. Any other sender is a stranger. One kind of stranger must be accepted: a voter of a
//! membership that has not reached this replica. It is accepted when a voter that this replica
//! knows vouches for it. No membership changes without a majority of the one before, so where that
//! majority needs this replica itself, no peer is asked.
//!
//! Rejected: refusing all strangers. A follower that missed a membership change would not vote for
//! the new replica that alone has the whole log, and a cell with a majority of its members up would
//! have no leader.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::error::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::election::PreVote;
use crate::raft::{NodeId, TypeConfig};
use crate::replica::Replica;
use crate::rpc_validation::check_call;
use crate::status::{Member, Role};
use crate::transport::{RaftAnswer, RaftCall, SenderIdentity, stopped_answer};

/// How long the verification of a stranger is valid; a stranger calls many times a second.
const VERIFICATION_TTL: Duration = Duration::from_secs(2);
/// Maximum number of strangers remembered at once.
const MAX_VERIFICATIONS: usize = 64;

/// The senders verified lately, whether a voter vouched for each, and when that was.
#[derive(Default)]
pub(crate) struct VerifiedSenders(Mutex<BTreeMap<SenderIdentity, (Instant, bool)>>);

/// Why a sender was last rejected, so that it is logged once and not at every call.
#[derive(Default)]
pub(crate) struct LastRejection(Mutex<Option<(SenderIdentity, String)>>);

impl LastRejection {
    fn log_once(&self, sender: &SenderIdentity, why: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (sender.clone(), why.to_owned());
        if last.as_ref() != Some(&now) {
            let SenderIdentity { id, name } = sender;
            tracing::error!(from = id, name, why, "a replica is not listened to");
            *last = Some(now);
        }
    }
}

impl VerifiedSenders {
    fn cached(&self, stranger: &SenderIdentity) -> Option<bool> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, is_verified) = known.get(stranger)?;
        (at.elapsed() < VERIFICATION_TTL).then_some(*is_verified)
    }

    fn record(&self, stranger: &SenderIdentity, is_verified: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < VERIFICATION_TTL);
        if known.len() < MAX_VERIFICATIONS {
            known.insert(stranger.clone(), (Instant::now(), is_verified));
        }
    }
}

impl Replica {
    /// Answers a call of another replica.
    pub async fn handle(&self, sender: &SenderIdentity, call: RaftCall) -> RaftAnswer {
        let invalid = check_call(&call, sender.id, self.log.term()).err();
        let why = match invalid {
            Some(invalid) => Some(invalid.to_string()),
            None => self.sender_rejection(sender, &call).await,
        };
        if let Some(why) = why {
            self.last_rejection.log_once(sender, &why);
            return RaftAnswer::Rejected { why };
        }
        if let Some(why) = self.call_rejection(&call) {
            return RaftAnswer::Rejected { why };
        }
        self.answer(sender.id, call).await
    }

    async fn answer(&self, from: NodeId, call: RaftCall) -> RaftAnswer {
        match call {
            RaftCall::Append(request) => match self.handle_append(request).await {
                Ok(answer) => {
                    if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                        self.holdoff.note_leader_contact();
                    }
                    RaftAnswer::Append(answer)
                }
                Err(e) => RaftAnswer::Rejected { why: e.to_string() },
            },
            RaftCall::Vote(request) => match self.raft.vote(request).await {
                Ok(answer) => {
                    if answer.vote_granted {
                        self.holdoff.note_vote();
                    }
                    RaftAnswer::Vote(answer)
                }
                Err(e) => RaftAnswer::Rejected { why: e.to_string() },
            },
            RaftCall::Snapshot(request) => {
                if let Err(mismatch) = self.snapshot_progress.accept_chunk(&request) {
                    return RaftAnswer::SnapshotMismatch(mismatch);
                }
                let vote = request.vote;
                match self.raft.install_snapshot(request).await {
                    Ok(answer) => {
                        if answer.vote <= vote {
                            self.holdoff.note_leader_contact();
                        }
                        RaftAnswer::Snapshot(answer)
                    }
                    Err(RaftError::APIError(mismatch)) => RaftAnswer::SnapshotMismatch(mismatch),
                    Err(RaftError::Fatal(fatal)) => stopped_answer(&fatal),
                }
            }
            RaftCall::PreVote(request) => {
                RaftAnswer::PreVote { granted: self.would_vote(from, &request) }
            }
            RaftCall::VerifyVoter { id, name } => {
                let members = self.status().members;
                let is_voter = members.get(&id).is_some_and(|member| {
                    member.voter && name.is_none_or(|name| name == member.peer.name)
                });
                RaftAnswer::VerifyVoter { is_voter }
            }
            RaftCall::DiskSpace => {
                self.check_disk();
                RaftAnswer::DiskSpace(self.disk_space())
            }
            RaftCall::ReadIndex => match self.read_barrier().await {
                Ok(index) => RaftAnswer::ReadIndex { index },
                Err(e) => RaftAnswer::Rejected { why: e.to_string() },
            },
            RaftCall::TimeoutNow if self.status().leader == Some(from) => {
                self.timeout_now.notify_one();
                RaftAnswer::TimeoutNow
            }
            RaftCall::TimeoutNow => {
                RaftAnswer::Rejected { why: format!("replica {from} does not lead") }
            }
        }
    }

    /// The leader contact counts from when its message arrives, however long this replica's disk
    /// takes.
    async fn handle_append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<NodeId>, RaftError<NodeId>> {
        if request.vote.leader_id.term >= self.log.term() {
            self.holdoff.note_leader_contact();
        }
        self.raft.append_entries(request).await
    }

    /// Whether this replica would vote for the candidate if there were an election.
    fn would_vote(&self, candidate: NodeId, request: &PreVote) -> bool {
        let lease = self.settings.election_max;
        let last = self.log.last();
        let is_behind = request.last_log < last;
        // Of two candidates at once, both prefer the same one.
        let is_rival =
            self.holdoff.is_pre_voting() && (last, self.id()) > (request.last_log, candidate);
        let leads = self.status().role == Role::Leader && !self.transfer.is_transferring();
        let has_quorum = self.fence.since_contact().is_some_and(|silent| silent <= lease);
        // A replica that was voted for a moment ago must not be deposed before it could announce
        // itself.
        let has_voted = self.holdoff.has_voted_within(self.settings.heartbeat * 2);
        let is_led = (leads && has_quorum) || self.holdoff.has_leader_within(lease);
        !(is_behind || is_rival || has_voted || is_led)
    }

    /// The reason why the sender is rejected, if it is.
    async fn sender_rejection(&self, sender: &SenderIdentity, call: &RaftCall) -> Option<String> {
        let SenderIdentity { id, name } = sender;
        if *id == self.id() {
            return Some(format!("replica {id} is this one, and it sends itself nothing"));
        }
        let members = self.status().members;
        if members.is_empty() {
            return None;
        }
        if let Some(member) = members.get(id) {
            let presented = name.as_ref().filter(|name| **name != member.peer.name)?;
            let known = &member.peer.name;
            return Some(format!("replica {id} is {known}; the certificate is of {presented}"));
        }
        let is_verification = matches!(call, RaftCall::VerifyVoter { .. });
        if !is_verification && self.is_verified_voter(sender, &members).await {
            return None;
        }
        let member_ids: Vec<String> = members.keys().map(NodeId::to_string).collect();
        Some(format!("replica {id} is no member; members: {}", member_ids.join(", ")))
    }

    async fn is_verified_voter(
        &self,
        stranger: &SenderIdentity,
        members: &BTreeMap<NodeId, Member>,
    ) -> bool {
        let voters = || members.iter().filter(|(_, member)| member.voter);
        // Two voters, of which this is one, change nothing without it.
        let is_needed = voters().count() < 3 && voters().any(|(id, _)| *id == self.id());
        if is_needed {
            return false;
        }
        if let Some(known) = self.verified_senders.cached(stranger) {
            return known;
        }
        let SenderIdentity { id, name } = stranger.clone();
        let mut answers = JoinSet::new();
        for (to, member) in voters().filter(|(to, _)| **to != self.id()) {
            let call = RaftCall::VerifyVoter { id, name: name.clone() };
            let call = self.transport.call(*to, member.peer.clone(), call);
            let call_timeout = self.settings.election_min;
            answers.spawn(async move { timeout(call_timeout, call).await });
        }
        let mut is_verified = false;
        while let Some(answer) = answers.join_next().await {
            is_verified |= matches!(answer, Ok(Ok(Ok(RaftAnswer::VerifyVoter { is_voter: true }))));
            if is_verified {
                break;
            }
        }
        self.verified_senders.record(stranger, is_verified);
        is_verified
    }

    /// A follower low on disk space accepts heartbeats and votes, but nothing that fills the disk.
    fn call_rejection(&self, call: &RaftCall) -> Option<String> {
        let (is_bulky, term) = match call {
            RaftCall::Append(request) => (!request.entries.is_empty(), request.vote.leader_id.term),
            RaftCall::Snapshot(request) => (true, request.vote.leader_id.term),
            _ => (false, 0),
        };
        let free = self.disk.get().and_then(|disk| disk.free_bytes());
        let needed = self.settings.floor_bytes();
        match free {
            Err(e) => Some(e.to_string()),
            Ok(free) if is_bulky && free < needed => {
                // The sender leads, even though it cannot be followed.
                if term >= self.log.term() {
                    self.holdoff.note_leader_contact();
                }
                Some(format!("the log's disk has {free} bytes free and needs {needed}"))
            }
            Ok(_) => None,
        }
    }
}
