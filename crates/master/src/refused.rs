//! Agents whose polls are refused, and why, for whoever wonders why a machine is down. A replica
//! keeps the last refusal of each agent that asks it, and asks the others for theirs when somebody
//! looks.
//!
//! Soft: an agent that is refused asks again within seconds, so what is said of it is news. Only
//! agents with a certificate of the cell are taken down, each once, so nobody fills the book.

use crate::clock::Clock;
use crate::handle::Handle;
use crate::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_api::error::{ApiError, Code};
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_identity::enroll::Holder;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::OutOfDate;
use cellwright_store::{NodeId, Peer};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A refusal that was not repeated for this long is over, however it ended.
const KEPT: Duration = Duration::from_secs(60);
/// How long other replicas may take to say whom they refuse.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of a reason, which may repeat what the agent sent.
const LONGEST: usize = 400;

/// One of them, as it travels between replicas. Clocks differ, spans do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPoll {
    pub machine: Name,
    pub reason: String,
    pub next: String,
    /// Milliseconds since its polls are refused without one that was not.
    pub lasted: u64,
    /// Milliseconds since the last of them.
    pub age: u64,
}

struct Held {
    first: Instant,
    last: Instant,
    reason: String,
    next: String,
}

/// What a listener hears of certificates that are out of date goes into the book of the replica,
/// which is started after the listener is bound and before it serves.
#[must_use]
pub fn out_of_date(replica: Arc<OnceLock<Handle>>, clock: Arc<dyn Clock>) -> OutOfDate {
    OutOfDate::told(move |holder| {
        if let Some(handle) = replica.get() {
            handle.refused_here().note_out_of_date(holder, clock.wall());
        }
    })
}

#[derive(Default)]
pub struct RefusedBook(Mutex<BTreeMap<Name, Held>>);

impl RefusedBook {
    /// A poll of the machine's agent was refused.
    pub fn note(&self, machine: &Name, error: &ApiError) {
        let now = Instant::now();
        let mut held = self.held();
        held.retain(|_, held| now.duration_since(held.last) < KEPT);
        let first = held.get(machine).map_or(now, |held| held.first);
        let reason = error.message.chars().take(LONGEST).collect();
        let this = Held { first, last: now, reason, next: error.hint.clone() };
        held.insert(machine.clone(), this);
    }

    /// An agent was turned away for the dates of its certificate, by a clock that says `now`. It
    /// never came as far as to poll.
    pub fn note_out_of_date(&self, holder: &Holder, now: Time) {
        let Part::Agent(machine) = &holder.identity.part else { return };
        let what = if holder.is_over(now) { "has expired" } else { "is not valid yet" };
        let message = format!(
            "the certificate of its agent {what}, by the clock of the master that was asked"
        );
        let hint = format!(
            "if clocks are right: cell token create --agent {machine} --token-file FILE; then on \
             the machine: cell agent join --token-file FILE, and start the agent again"
        );
        self.note(machine, &ApiError::new(Code::Unauthenticated, message).hint(hint));
    }

    /// One was not.
    pub fn forget(&self, machine: &Name) {
        self.held().remove(machine);
    }

    /// Whom this replica refuses.
    #[must_use]
    pub fn own(&self) -> Vec<RefusedPoll> {
        let millis = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let held = self.held();
        let present = held.iter().filter(|(_, held)| held.last.elapsed() < KEPT);
        present
            .map(|(machine, held)| RefusedPoll {
                machine: machine.clone(),
                reason: held.reason.clone(),
                next: held.next.clone(),
                lasted: millis(held.first),
                age: millis(held.last),
            })
            .collect()
    }

    /// Whom any replica refuses: of one machine, what was said last.
    pub async fn all(
        &self,
        peers: &Arc<dyn Peers>,
        others: Vec<(NodeId, Peer)>,
    ) -> BTreeMap<Name, RefusedPoll> {
        let asked = others
            .into_iter()
            .map(|(id, peer)| timeout(PATIENCE, peers.call(id, peer, PeerCall::RefusedPolls)));
        let mut found = self.own();
        for answer in join_all(asked).await {
            // Whoever does not answer leaves a blank.
            if let Ok(Ok(PeerAnswer::RefusedPolls(told))) = answer {
                found.extend(told);
            }
        }
        // The latest word comes last and stays.
        found.sort_by_key(|refused| std::cmp::Reverse(refused.age));
        found.into_iter().map(|refused| (refused.machine.clone(), refused)).collect()
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Name, Held>> {
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
            assert!(matches!(call, PeerCall::RefusedPolls));
            let told = |machine, age| RefusedPoll {
                machine: name(machine),
                reason: "of the other".into(),
                next: String::new(),
                lasted: 9000,
                age,
            };
            let all = vec![told("n1", 9000), told("n2", 10)];
            Box::pin(async move { Ok(PeerAnswer::RefusedPolls(all)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lasts_from_the_first_to_the_last_and_ends_with_a_poll_that_is_heard() {
        let book = RefusedBook::default();
        let error = ApiError::new(Code::BadBody, "x".repeat(3 * LONGEST)).hint("do this");
        book.note(&name("n1"), &error);
        tokio::time::advance(Duration::from_secs(5)).await;
        book.note(&name("n1"), &error);
        tokio::time::advance(Duration::from_secs(1)).await;
        let own = book.own();
        assert_eq!((own[0].lasted, own[0].age, own[0].reason.len()), (6000, 1000, LONGEST));
        let others = vec![(2, Peer { name: "m2".into(), address: "127.0.0.1:1".into() })];
        let peers: Arc<dyn Peers> = Arc::new(Other);
        let all = book.all(&peers, others).await;
        assert_eq!(all[&name("n1")].next, "do this", "its word is newer");
        assert_eq!(all[&name("n2")].reason, "of the other");
        book.forget(&name("n1"));
        assert_eq!(book.own(), []);
        book.note(&name("n1"), &error);
        tokio::time::advance(KEPT).await;
        assert_eq!(book.own(), [], "it asks no more, or another");
    }
}
