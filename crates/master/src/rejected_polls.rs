//! Agents whose polls are rejected, and why, to explain why a machine is down. A replica keeps the
//! last rejection of each agent that polls it, and asks the others for theirs on request.
//!
//! Soft state: an agent that is rejected polls again within seconds, so the entries are always
//! recent. Only agents with a certificate of the cell are recorded, each once, so the list cannot
//! be filled up.

use crate::clock::Clock;
use crate::handle::MasterHandle;
use crate::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::enroll::CertificateHolder;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::OutOfDateHook;
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A rejection that was not repeated for this long is over, however it ended.
const REJECTION_TTL: Duration = Duration::from_secs(60);
/// How long other replicas may take to list their rejections.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a reason, which may repeat what the agent sent.
const MAX_REASON_LEN: usize = 400;

/// A rejected poll, as it is sent between replicas. Clocks differ, durations do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedPoll {
    pub machine: Name,
    pub reason: String,
    pub next: String,
    /// Milliseconds since its polls began to be rejected without exception.
    pub lasted: u64,
    /// Milliseconds since the last rejection.
    pub age: u64,
}

struct LastRejection {
    first: Instant,
    last: Instant,
    reason: String,
    next: String,
}

/// Records expired certificates that a listener meets with the replica, which is started after the
/// listener is bound and before it serves.
#[must_use]
pub fn expired_certificate_hook(
    replica: Arc<OnceLock<MasterHandle>>,
    clock: Arc<dyn Clock>,
) -> OutOfDateHook {
    OutOfDateHook::new(move |holder| {
        if let Some(handle) = replica.get() {
            handle.local_rejected_polls().note_expired_certificate(holder, clock.wall_time());
        }
    })
}

#[derive(Default)]
pub struct RejectedPolls(Mutex<BTreeMap<Name, LastRejection>>);

impl RejectedPolls {
    /// Records that a poll of the machine's agent was rejected.
    pub fn note(&self, machine: &Name, error: &ApiError) {
        let now = Instant::now();
        let mut rejections = self.lock();
        rejections.retain(|_, held| now.duration_since(held.last) < REJECTION_TTL);
        let first = rejections.get(machine).map_or(now, |held| held.first);
        let reason = error.message.chars().take(MAX_REASON_LEN).collect();
        let rejection = LastRejection { first, last: now, reason, next: error.hint.clone() };
        rejections.insert(machine.clone(), rejection);
    }

    /// Records that an agent was rejected for the dates of its certificate, by a clock that reads
    /// `now`. Its poll was never read.
    pub fn note_expired_certificate(&self, holder: &CertificateHolder, now: Time) {
        let Part::Agent(machine) = &holder.identity.part else { return };
        let validity = if holder.is_expired(now) { "has expired" } else { "is not valid yet" };
        let message = format!(
            "the certificate of its agent {validity}, by the clock of the master that was asked"
        );
        let hint = format!(
            "if clocks are right: cell token create --agent {machine} --token-file FILE; then on \
             the machine: cell agent join --token-file FILE, and start the agent again"
        );
        self.note(machine, &ApiError::new(Code::Unauthenticated, message).hint(hint));
    }

    /// Records that a poll was accepted.
    pub fn clear(&self, machine: &Name) {
        self.lock().remove(machine);
    }

    /// The rejections of this replica.
    #[must_use]
    pub fn local(&self) -> Vec<RejectedPoll> {
        let millis = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let rejections = self.lock();
        let present = rejections.iter().filter(|(_, held)| held.last.elapsed() < REJECTION_TTL);
        present
            .map(|(machine, rejection)| RejectedPoll {
                machine: machine.clone(),
                reason: rejection.reason.clone(),
                next: rejection.next.clone(),
                lasted: millis(rejection.first),
                age: millis(rejection.last),
            })
            .collect()
    }

    /// The rejections of all replicas; for each machine, the latest.
    pub async fn all(
        &self,
        peers: &Arc<dyn Peers>,
        others: Vec<(NodeId, Peer)>,
    ) -> BTreeMap<Name, RejectedPoll> {
        let calls = others
            .into_iter()
            .map(|(id, peer)| timeout(CALL_TIMEOUT, peers.call(id, peer, PeerCall::RejectedPolls)));
        let mut found = self.local();
        for answer in join_all(calls).await {
            // Replicas that do not answer are left out.
            if let Ok(Ok(PeerAnswer::RejectedPolls(peer_polls))) = answer {
                found.extend(peer_polls);
            }
        }
        // The latest rejection comes last and stays.
        found.sort_by_key(|rejected| std::cmp::Reverse(rejected.age));
        found.into_iter().map(|rejected| (rejected.machine.clone(), rejected)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, LastRejection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_store::CallError;
    use futures::future::BoxFuture;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    struct Other;

    impl Peers for Other {
        fn call(
            &self,
            _: NodeId,
            _: Peer,
            call: PeerCall,
        ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
            assert!(matches!(call, PeerCall::RejectedPolls));
            let poll = |machine, age| RejectedPoll {
                machine: name(machine),
                reason: "of the other".into(),
                next: String::new(),
                lasted: 9000,
                age,
            };
            let all = vec![poll("n1", 9000), poll("n2", 10)];
            Box::pin(async move { Ok(PeerAnswer::RejectedPolls(all)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lasts_from_the_first_to_the_last_and_ends_with_a_poll_that_is_heard() {
        let book = RejectedPolls::default();
        let error = ApiError::new(Code::BadBody, "x".repeat(3 * MAX_REASON_LEN)).hint("do this");
        book.note(&name("n1"), &error);
        tokio::time::advance(Duration::from_secs(5)).await;
        book.note(&name("n1"), &error);
        tokio::time::advance(Duration::from_secs(1)).await;
        let own = book.local();
        assert_eq!((own[0].lasted, own[0].age, own[0].reason.len()), (6000, 1000, MAX_REASON_LEN));
        let others = vec![(2, Peer { name: "m2".into(), address: "127.0.0.1:1".into() })];
        let peers: Arc<dyn Peers> = Arc::new(Other);
        let all = book.all(&peers, others).await;
        assert_eq!(all[&name("n1")].next, "do this", "its word is newer");
        assert_eq!(all[&name("n2")].reason, "of the other");
        book.clear(&name("n1"));
        assert_eq!(book.local(), []);
        book.note(&name("n1"), &error);
        tokio::time::advance(REJECTION_TTL).await;
        assert_eq!(book.local(), [], "it asks no more, or another");
    }
}
