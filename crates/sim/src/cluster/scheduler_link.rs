//! The link of a simulated scheduler to the masters: it learns their addresses as the product's
//! does, and tries another when one does not answer.

use super::clocks::Clocks;
use super::failpoints::{Failpoint, PanicPoint};
use super::net::{MessageLost, NodeAddress, VirtualNet};
use super::world::MasterSelector;
use cellwright_cell::time::Span;
use cellwright_master::handle::MasterHandle;
use cellwright_messages::{
    LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer, Unavailable,
};
use cellwright_scheduler::{LinkError, MasterLink};
use cellwright_supervise::lock;
use std::sync::{Arc, Mutex};

pub(super) struct SchedulerLink {
    pub net: VirtualNet,
    pub node_address: NodeAddress,
    pub known_masters: Arc<Mutex<MasterSelector>>,
    pub clocks: Clocks,
    pub failpoint: Failpoint,
}

impl SchedulerLink {
    async fn call_replica<T, F>(&self, work: impl FnOnce(MasterHandle) -> F) -> Result<T, LinkError>
    where
        F: Future<Output = Result<T, Unavailable>>,
    {
        self.failpoint.reach(PanicPoint::Scheduler);
        let to = lock(&self.known_masters).replica();
        let work = |master: MasterHandle| async move {
            let masters = master.masters();
            (work(master).await, masters)
        };
        let answer = self.net.call_replica(self.node_address, to, work).await;
        let mut line = lock(&self.known_masters);
        Err(match answer {
            Ok((Ok(answer), masters)) => {
                line.note_answer(masters.as_ref(), None);
                return Ok(answer);
            }
            Ok((Err(Unavailable::NotLeader { leader: Some(address) }), masters)) => {
                line.note_answer(masters.as_ref(), Some(address.clone()));
                // The leader may be named even though it has just not answered.
                if line.round.master() != address {
                    line.note_failure();
                }
                LinkError::Rejected("not the leader".into())
            }
            Ok((Err(error), _)) => {
                line.note_failure();
                LinkError::Rejected(error.to_string())
            }
            Err(MessageLost) => {
                line.note_failure();
                LinkError::Unreachable("lost".into())
            }
        })
    }
}

impl MasterLink for SchedulerLink {
    async fn log_after(&self, index: u64, wait: Span) -> Result<LogAnswer, LinkError> {
        self.call_replica(|master| async move {
            if master.is_removed() {
                Err(Unavailable::ShuttingDown)
            } else {
                Ok(master.log_after(index, wait).await)
            }
        })
        .await
    }

    async fn propose(&self, proposal: Proposal) -> Result<ProposalAnswer, LinkError> {
        let by = proposal.requests.first().map(|request| request.by.clone());
        let Some(caller) = by else { return Ok(ProposalAnswer { index: 0, verdicts: vec![] }) };
        self.call_replica(|master| async move { master.propose_as(&caller, proposal).await }).await
    }

    async fn lease(&self, mut request: LeaseRequest) -> Result<LeaseAnswer, LinkError> {
        request.wall = self.clocks.clock_time(self.node_address);
        self.call_replica(|master| async move { master.lease(request).await }).await
    }
}
