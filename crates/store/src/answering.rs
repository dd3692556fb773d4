//! What a replica answers others, after finding out whether they may ask.
//!
//! Whoever is named in this replica's membership may, under the name that stands there. A replica
//! that holds nothing yet belongs to no cell and listens to all who got through to it. Anybody
//! else is a stranger. One kind of stranger has a right to be heard: a voter of a membership that
//! has not reached this replica. It is heard when a voter that this replica does know vouches for
//! it. No membership changes without a majority of the one before, so where that takes this
//! replica itself, nobody is asked.
//!
//! Rejected: refusing all strangers. A follower that was away for a change of members would not
//! vote for the newcomer that alone has the whole log, and a cell with a majority of its members
//! up would have no leader.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::error::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::election::PreVote;
use crate::guard::check_call;
use crate::raft::{NodeId, TypeConfig};
use crate::replica::Replica;
use crate::status::{Member, Role};
use crate::transport::{RaftAnswer, RaftCall, Sender, refused};

/// For how long what was found out of a stranger is believed: it asks many times a second.
const BELIEVED: Duration = Duration::from_secs(2);
/// Strangers remembered at once.
const STRANGERS: usize = 64;

/// Who was asked about lately, whether somebody vouched for it, and when that was.
#[derive(Default)]
pub(crate) struct Vouched(Mutex<BTreeMap<Sender, (Instant, bool)>>);

/// Why somebody was last not listened to, so that it is logged once and not at every call.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<Option<(Sender, String)>>);

impl Refusals {
    fn note(&self, sender: &Sender, why: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (sender.clone(), why.to_owned());
        if last.as_ref() != Some(&now) {
            let Sender { id, name } = sender;
            tracing::error!(from = id, name, why, "a replica is not listened to");
            *last = Some(now);
        }
    }
}

impl Vouched {
    fn known(&self, stranger: &Sender) -> Option<bool> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, is_vouched) = known.get(stranger)?;
        (at.elapsed() < BELIEVED).then_some(*is_vouched)
    }

    fn note(&self, stranger: &Sender, is_vouched: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < BELIEVED);
        if known.len() < STRANGERS {
            known.insert(stranger.clone(), (Instant::now(), is_vouched));
        }
    }
}

impl Replica {
    /// Answers another replica.
    pub async fn handle(&self, sender: &Sender, call: RaftCall) -> RaftAnswer {
        let absurd = check_call(&call, sender.id, self.log.term()).err();
        let why = match absurd {
            Some(absurd) => Some(absurd.to_string()),
            None => self.refuses_sender(sender, &call).await,
        };
        if let Some(why) = why {
            self.refusals.note(sender, &why);
            return RaftAnswer::Refused { why };
        }
        if let Some(why) = self.refuses(&call) {
            return RaftAnswer::Refused { why };
        }
        self.answer(sender.id, call).await
    }

    async fn answer(&self, from: NodeId, call: RaftCall) -> RaftAnswer {
        match call {
            RaftCall::Append(request) => match self.append(request).await {
                Ok(answer) => {
                    if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                        self.calm.heard_leader();
                    }
                    RaftAnswer::Append(answer)
                }
                Err(e) => RaftAnswer::Refused { why: e.to_string() },
            },
            RaftCall::Vote(request) => match self.raft.vote(request).await {
                Ok(answer) => {
                    if answer.vote_granted {
                        self.calm.voted();
                    }
                    RaftAnswer::Vote(answer)
                }
                Err(e) => RaftAnswer::Refused { why: e.to_string() },
            },
            RaftCall::Snapshot(request) => {
                if let Err(mismatch) = self.received.take(&request) {
                    return RaftAnswer::SnapshotMismatch(mismatch);
                }
                let vote = request.vote;
                match self.raft.install_snapshot(request).await {
                    Ok(answer) => {
                        if answer.vote <= vote {
                            self.calm.heard_leader();
                        }
                        RaftAnswer::Snapshot(answer)
                    }
                    Err(RaftError::APIError(mismatch)) => RaftAnswer::SnapshotMismatch(mismatch),
                    Err(RaftError::Fatal(fatal)) => refused(&fatal),
                }
            }
            RaftCall::PreVote(asked) => {
                RaftAnswer::PreVote { granted: self.would_vote(from, &asked) }
            }
            RaftCall::Vouch { id, name } => {
                let members = self.status().members;
                let is_voter = members.get(&id).is_some_and(|member| {
                    member.voter && name.is_none_or(|name| name == member.peer.name)
                });
                RaftAnswer::Vouched { is_voter }
            }
            RaftCall::Room => {
                self.look_at_disk();
                RaftAnswer::Room(self.room())
            }
            RaftCall::ReadIndex => match self.read_barrier().await {
                Ok(index) => RaftAnswer::ReadIndex { index },
                Err(e) => RaftAnswer::Refused { why: e.to_string() },
            },
            RaftCall::TakeOver if self.status().leader == Some(from) => {
                self.take_over.notify_one();
                RaftAnswer::TakingOver
            }
            RaftCall::TakeOver => {
                RaftAnswer::Refused { why: format!("replica {from} does not lead") }
            }
        }
    }

    /// A leader is heard from when its message comes, however long this replica's disk takes.
    async fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<NodeId>, RaftError<NodeId>> {
        if request.vote.leader_id.term >= self.log.term() {
            self.calm.heard_leader();
        }
        self.raft.append_entries(request).await
    }

    /// Whether this replica would vote for the asker, were there an election.
    fn would_vote(&self, asker: NodeId, asked: &PreVote) -> bool {
        let lease = self.settings.election_max;
        let last = self.log.last();
        let is_behind = asked.last_log < last;
        // Of two that ask at once, the same one is preferred by both.
        let is_rival = self.calm.is_asking() && (last, self.id()) > (asked.last_log, asker);
        let leads = self.status().role == Role::Leader && !self.stage.is_handing();
        let is_heard = self.fence.silent().is_some_and(|silent| silent <= lease);
        // Whoever was voted for a moment ago is not to be deposed before it could say so.
        let is_busy = self.calm.has_voted_within(self.settings.heartbeat * 2);
        let is_led = (leads && is_heard) || self.calm.is_led_within(lease);
        !(is_behind || is_rival || is_busy || is_led)
    }

    /// Why the sender is not listened to.
    async fn refuses_sender(&self, sender: &Sender, call: &RaftCall) -> Option<String> {
        let Sender { id, name } = sender;
        if *id == self.id() {
            return Some(format!("replica {id} is this one, and it sends itself nothing"));
        }
        let members = self.status().members;
        if members.is_empty() {
            return None;
        }
        if let Some(member) = members.get(id) {
            let proved = name.as_ref().filter(|name| **name != member.peer.name)?;
            let known = &member.peer.name;
            return Some(format!("replica {id} is {known}; the certificate is of {proved}"));
        }
        let asks_for_another = matches!(call, RaftCall::Vouch { .. });
        if !asks_for_another && self.is_vouched_for(sender, &members).await {
            return None;
        }
        let named: Vec<String> = members.keys().map(NodeId::to_string).collect();
        Some(format!("replica {id} is no member; members: {}", named.join(", ")))
    }

    async fn is_vouched_for(&self, stranger: &Sender, members: &BTreeMap<NodeId, Member>) -> bool {
        let voters = || members.iter().filter(|(_, member)| member.voter);
        // Two voters, of whom this is one, change nothing without it.
        let is_needed = voters().count() < 3 && voters().any(|(id, _)| *id == self.id());
        if is_needed {
            return false;
        }
        if let Some(known) = self.vouched.known(stranger) {
            return known;
        }
        let Sender { id, name } = stranger.clone();
        let mut answers = JoinSet::new();
        for (to, member) in voters().filter(|(to, _)| **to != self.id()) {
            let call = RaftCall::Vouch { id, name: name.clone() };
            let call = self.transport.call(*to, member.peer.clone(), call);
            let patience = self.settings.election_min;
            answers.spawn(async move { timeout(patience, call).await });
        }
        let mut is_vouched = false;
        while let Some(answer) = answers.join_next().await {
            is_vouched |= matches!(answer, Ok(Ok(Ok(RaftAnswer::Vouched { is_voter: true }))));
            if is_vouched {
                break;
            }
        }
        self.vouched.note(stranger, is_vouched);
        is_vouched
    }

    /// A follower short of space takes heartbeats and votes, but nothing that fills the disk.
    fn refuses(&self, call: &RaftCall) -> Option<String> {
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
                // Whoever sends it leads, though it cannot be followed.
                if term >= self.log.term() {
                    self.calm.heard_leader();
                }
                Some(format!("the log's disk has {free} bytes free and needs {needed}"))
            }
            Ok(_) => None,
        }
    }
}
