//! Validation of raft messages before they reach openraft.
//!
//! Openraft believes every message: it adds one to whatever term it last received, so a vote of
//! term `u64::MAX` ends it by overflow, at once or at the next start; it grants votes to replicas
//! that no membership contains; it opens a snapshot at whatever offset a chunk requests. Here every
//! message and every answer is checked first. A message names its sender, and the transport has
//! verified that name; a replica that claims to lead, or wants to, must be the sender.
//!
//! Terms are bounded twice. Openraft never sees one that it could not increase, and a term far
//! beyond this replica's own is not one that a real cell could reach: with an election every 300
//! ms, which no cell outlives, [`MAX_TERM_LEAP`] takes two months without a single leader.
//!
//! Rejected: bounding terms by time, so many a second. A replica that was away for a week would
//! have to know for how long.

use openraft::error::{InstallSnapshotError, SnapshotMismatch};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest};
use openraft::{SnapshotId, SnapshotSegmentId};
use std::sync::{Mutex, PoisonError};

use crate::raft::{LogId, NodeId, TypeConfig, Vote, next_index};
use crate::transport::{RaftAnswer, RaftCall};

/// How many terms a message may be ahead of this replica.
pub(crate) const MAX_TERM_LEAP: u64 = 1 << 24;
/// No term and no index is higher: counting up from here takes for ever.
pub(crate) const MAX_TERM_OR_INDEX: u64 = 1 << 62;

/// Why a message of another replica is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidMessage {
    #[error("term {term} is out of reach of this replica's {own}; allowed: up to {allowed}")]
    Term { term: u64, own: u64, allowed: u64 },
    #[error("log index {index} is out of reach; allowed: up to {MAX_TERM_OR_INDEX}")]
    Index { index: u64 },
    #[error("an entry of term {found} is in a message of term {term}")]
    EntryBeyondTerm { found: u64, term: u64 },
    #[error("entry {found} stands where {expected} was due")]
    OutOfOrder { found: u64, expected: u64 },
    #[error("replica {sender} speaks in the name of replica {claimed}")]
    SenderMismatch { sender: NodeId, claimed: NodeId },
    #[error("only a leader sends this, and the vote in it says that nobody was elected")]
    VoteNotCommitted,
    #[error("only a candidate sends this, and the vote in it says that it was elected")]
    VoteCommitted,
    #[error("the answer matches log index {found:?}; entries {from} to {to} were sent")]
    MatchesUnsent { found: Option<u64>, from: u64, to: u64 },
}

/// The highest term that a replica with term `own` accepts.
pub(crate) fn max_term(own: u64) -> u64 {
    own.saturating_add(MAX_TERM_LEAP).min(MAX_TERM_OR_INDEX)
}

fn check_term(term: u64, own: u64) -> Result<(), InvalidMessage> {
    let allowed = max_term(own);
    if term > allowed { Err(InvalidMessage::Term { term, own, allowed }) } else { Ok(()) }
}

/// Checks a log id against the term of the message that contains it.
fn check_log_id(id: Option<&LogId>, term: u64) -> Result<(), InvalidMessage> {
    let Some(id) = id else { return Ok(()) };
    if id.index >= MAX_TERM_OR_INDEX {
        return Err(InvalidMessage::Index { index: id.index });
    }
    let found = id.leader_id.term;
    if found > term { Err(InvalidMessage::EntryBeyondTerm { found, term }) } else { Ok(()) }
}

fn check_vote(vote: &Vote, sender: NodeId, own: u64) -> Result<(), InvalidMessage> {
    check_term(vote.leader_id.term, own)?;
    let claimed = vote.leader_id.node_id;
    if claimed == sender { Ok(()) } else { Err(InvalidMessage::SenderMismatch { sender, claimed }) }
}

/// Checks whether a call of replica `sender` may reach openraft; `own` is the term of this replica.
pub(crate) fn check_call(call: &RaftCall, sender: NodeId, own: u64) -> Result<(), InvalidMessage> {
    match call {
        RaftCall::Append(request) => check_append(request, sender, own),
        RaftCall::Snapshot(request) => check_snapshot(request, sender, own),
        RaftCall::Vote(request) => {
            check_vote(&request.vote, sender, own)?;
            if request.vote.committed {
                return Err(InvalidMessage::VoteCommitted);
            }
            check_log_id(request.last_log_id.as_ref(), request.vote.leader_id.term)
        }
        RaftCall::PreVote(request) => check_log_id(request.last_log.as_ref(), MAX_TERM_OR_INDEX),
        RaftCall::VerifyVoter { .. }
        | RaftCall::DiskSpace
        | RaftCall::TimeoutNow
        | RaftCall::ReadIndex => Ok(()),
    }
}

fn check_append(
    request: &AppendEntriesRequest<TypeConfig>,
    sender: NodeId,
    own: u64,
) -> Result<(), InvalidMessage> {
    let term = request.vote.leader_id.term;
    check_vote(&request.vote, sender, own)?;
    if !request.vote.committed {
        return Err(InvalidMessage::VoteNotCommitted);
    }
    check_log_id(request.prev_log_id.as_ref(), term)?;
    check_log_id(request.leader_commit.as_ref(), term)?;
    let first = next_index(request.prev_log_id.as_ref());
    for (expected, entry) in (first..).zip(&request.entries) {
        check_log_id(Some(&entry.log_id), term)?;
        let found = entry.log_id.index;
        if found != expected {
            return Err(InvalidMessage::OutOfOrder { found, expected });
        }
    }
    Ok(())
}

fn check_snapshot(
    request: &InstallSnapshotRequest<TypeConfig>,
    sender: NodeId,
    own: u64,
) -> Result<(), InvalidMessage> {
    check_vote(&request.vote, sender, own)?;
    if !request.vote.committed {
        return Err(InvalidMessage::VoteNotCommitted);
    }
    let term = request.vote.leader_id.term;
    check_log_id(request.meta.last_log_id.as_ref(), term)?;
    check_log_id(request.meta.last_membership.log_id().as_ref(), term)
}

/// Checks whether an answer may reach openraft, which takes over the votes in it.
pub(crate) fn check_answer(answer: &RaftAnswer, own: u64) -> Result<(), InvalidMessage> {
    let vote = match answer {
        RaftAnswer::Append(AppendEntriesResponse::HigherVote(vote)) => vote,
        RaftAnswer::Vote(answer) => &answer.vote,
        RaftAnswer::Snapshot(answer) => &answer.vote,
        _ => return Ok(()),
    };
    check_term(vote.leader_id.term, own)
}

/// Checks that what a follower reports as matching is part of what it was sent.
pub(crate) fn check_matched(
    answer: &RaftAnswer,
    previous: Option<LogId>,
    sent: u64,
) -> Result<(), InvalidMessage> {
    let RaftAnswer::Append(AppendEntriesResponse::PartialSuccess(matched)) = answer else {
        return Ok(());
    };
    let from = next_index(previous.as_ref());
    let next = next_index(matched.filter(|id| id.index < MAX_TERM_OR_INDEX).as_ref());
    if (from..=from + sent).contains(&next) && matched.is_none_or(|id| id.index < MAX_TERM_OR_INDEX)
    {
        return Ok(());
    }
    Err(InvalidMessage::MatchesUnsent { found: matched.map(|id| id.index), from, to: from + sent })
}

/// How much of which snapshot has been received. Openraft seeks to the offset that a chunk names,
/// and fills the gap before it with zeros in memory.
#[derive(Debug, Default)]
pub(crate) struct SnapshotProgress(Mutex<Option<(SnapshotId, u64)>>);

impl SnapshotProgress {
    /// Records a chunk that starts a snapshot, or continues or repeats what was received.
    ///
    /// # Errors
    /// When it does neither; the sender starts over.
    pub(crate) fn accept_chunk(
        &self,
        request: &InstallSnapshotRequest<TypeConfig>,
    ) -> Result<(), InstallSnapshotError> {
        let mut received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = &request.meta.snapshot_id;
        let same = received.as_ref().filter(|(known, _)| known == id && request.offset > 0);
        let received_bytes = same.map_or(0, |(_, have)| *have);
        let end = request.offset.checked_add(request.data.len() as u64);
        match end.filter(|_| request.offset <= received_bytes) {
            Some(end) => {
                *received = Some((id.clone(), received_bytes.max(end)));
                Ok(())
            }
            None => {
                let segment = |offset| SnapshotSegmentId { id: id.clone(), offset };
                let (expect, got) = (segment(0), segment(request.offset));
                Err(SnapshotMismatch { expect, got }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{Entry, EntryPayload, LeaderId};
    use openraft::raft::{VoteRequest, VoteResponse};

    fn at(term: u64, index: u64) -> LogId {
        LogId::new(LeaderId::new(term, 1), index)
    }

    fn vote(term: u64, last: Option<LogId>) -> RaftCall {
        RaftCall::Vote(VoteRequest::new(Vote::new(term, 2), last))
    }

    fn append(term: u64, previous: Option<LogId>, entries: &[LogId]) -> RaftCall {
        let entry = |id: &LogId| Entry { log_id: *id, payload: EntryPayload::Blank };
        RaftCall::Append(AppendEntriesRequest {
            vote: Vote::new_committed(term, 2),
            prev_log_id: previous,
            entries: entries.iter().map(entry).collect(),
            leader_commit: None,
        })
    }

    #[track_caller]
    fn check(call: &RaftCall, expected: &str) {
        let found = check_call(call, 2, 5).err().map_or(String::new(), |e| e.to_string());
        assert_eq!(found, expected);
    }

    #[test]
    fn terms_are_bounded_and_places_stay_within_them() {
        check(&vote(6, Some(at(5, 9))), "");
        check(&vote(5 + MAX_TERM_LEAP, None), "");
        let far = "term 18446744073709551615 is out of reach of this replica's 5; allowed: up to \
                   16777221";
        check(&vote(u64::MAX, None), far);
        check(&append(u64::MAX, None, &[]), far);
        check(&vote(6, Some(at(7, 9))), "an entry of term 7 is in a message of term 6");
        let index = "log index 18446744073709551615 is out of reach; allowed: up to \
                     4611686018427387904";
        check(&vote(6, Some(at(5, u64::MAX))), index);
        check(&append(6, Some(at(5, u64::MAX)), &[]), index);
    }

    #[test]
    fn nobody_speaks_in_anothers_name() {
        let found = check_call(&vote(6, None), 3, 5).unwrap_err();
        assert_eq!(found.to_string(), "replica 3 speaks in the name of replica 2");
        let found = check_call(&append(6, None, &[]), 9, 5).unwrap_err();
        assert_eq!(found.to_string(), "replica 9 speaks in the name of replica 2");
    }

    #[test]
    fn entries_follow_each_other_and_come_from_the_elected() {
        check(&append(6, Some(at(5, 3)), &[at(6, 4), at(6, 5)]), "");
        check(&append(6, None, &[at(0, 0)]), "");
        let gap = append(6, Some(at(5, 3)), &[at(6, 4), at(6, 6)]);
        check(&gap, "entry 6 stands where 5 was due");
        let RaftCall::Append(mut request) = append(6, None, &[]) else { unreachable!() };
        request.vote.committed = false;
        let nobody = "only a leader sends this, and the vote in it says that nobody was elected";
        check(&RaftCall::Append(request), nobody);
    }

    #[test]
    fn answers_are_no_way_around() {
        let answer = |term| RaftAnswer::Vote(VoteResponse::new(Vote::new(term, 3), None, false));
        assert!(check_answer(&answer(7), 5).is_ok());
        assert!(check_answer(&answer(u64::MAX), 5).is_err());
        let higher = AppendEntriesResponse::HigherVote(Vote::new(u64::MAX, 3));
        assert!(check_answer(&RaftAnswer::Append(higher), 5).is_err());
        let some = |index| RaftAnswer::Append(AppendEntriesResponse::PartialSuccess(index));
        let previous = Some(at(5, 3));
        for (index, fits) in [(3, true), (5, true), (6, false), (2, false), (u64::MAX, false)] {
            let found = check_matched(&some(Some(at(5, index))), previous, 2);
            assert_eq!(found.is_ok(), fits, "{index}: {found:?}");
        }
        assert!(check_matched(&some(None), previous, 2).is_err());
    }

    #[test]
    fn chunks_of_a_snapshot_leave_no_hole() {
        let chunk = |id: &str, offset, bytes| InstallSnapshotRequest::<TypeConfig> {
            vote: Vote::new_committed(5, 2),
            meta: crate::raft::SnapshotMeta { snapshot_id: id.into(), ..Default::default() },
            offset,
            data: vec![0; bytes],
            done: false,
        };
        let received = SnapshotProgress::default();
        for (id, offset, fits) in [
            ("a", 10, false),
            ("a", 0, true),
            ("a", 10, true),
            ("a", 10, true),
            ("a", 21, false),
            ("a", u64::MAX, false),
            ("b", 10, false),
            ("b", 0, true),
            ("a", 10, false),
        ] {
            assert_eq!(
                received.accept_chunk(&chunk(id, offset, 10)).is_ok(),
                fits,
                "{id} {offset}"
            );
        }
    }
}
