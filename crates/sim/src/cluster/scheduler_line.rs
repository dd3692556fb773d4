//! The line of a simulated scheduler to the masters: it learns them as the product's does, and
//! tries another when one does not answer.

use super::clocks::Clocks;
use super::net::{Lost, Place, VirtualNet};
use super::planted::{Panics, Planted};
use super::world::Known;
use cellwright_api::internal::{LeaseAnswer, LeaseRequest, LogAnswer, Proposal, ProposalAnswer};
use cellwright_cell::time::Span;
use cellwright_control::input::Unavailable;
use cellwright_master::handle::Handle;
use cellwright_scheduler::{LinkError, MasterLink};
use cellwright_supervise::lock;
use std::sync::{Arc, Mutex};

pub(super) struct SchedulerLine {
    pub net: VirtualNet,
    pub place: Place,
    pub line: Arc<Mutex<Known>>,
    pub clocks: Clocks,
    pub planted: Planted,
}

impl SchedulerLine {
    async fn ask<T, F>(&self, work: impl FnOnce(Handle) -> F) -> Result<T, LinkError>
    where
        F: Future<Output = Result<T, Unavailable>>,
    {
        self.planted.reach(Panics::Scheduler);
        let to = lock(&self.line).replica();
        let work = |master: Handle| async move {
            let said = master.masters();
            (work(master).await, said)
        };
        let answer = self.net.ask(self.place, to, work).await;
        let mut line = lock(&self.line);
        Err(match answer {
            Ok((Ok(answer), said)) => {
                line.answered(said.as_ref(), None);
                return Ok(answer);
            }
            Ok((Err(Unavailable::NotLeader { leader: Some(address) }), said)) => {
                line.answered(said.as_ref(), Some(address.clone()));
                // One that has just not answered may be named all the same.
                if line.round.master() != address {
                    line.failed();
                }
                LinkError::Refused("not the leader".into())
            }
            Ok((Err(error), _)) => {
                line.failed();
                LinkError::Refused(error.to_string())
            }
            Err(Lost) => {
                line.failed();
                LinkError::Unreachable("lost".into())
            }
        })
    }
}

impl MasterLink for SchedulerLine {
    async fn log_after(&self, index: u64, wait: Span) -> Result<LogAnswer, LinkError> {
        self.ask(|master| async move {
            match master.is_removed() {
                true => Err(Unavailable::ShuttingDown),
                false => Ok(master.log_after(index, wait).await),
            }
        })
        .await
    }

    async fn propose(&self, proposal: Proposal) -> Result<ProposalAnswer, LinkError> {
        let by = proposal.requests.first().map(|request| request.by.clone());
        let Some(caller) = by else { return Ok(ProposalAnswer { index: 0, verdicts: vec![] }) };
        self.ask(|master| async move { master.propose_as(&caller, proposal).await }).await
    }

    async fn lease(&self, mut request: LeaseRequest) -> Result<LeaseAnswer, LinkError> {
        request.wall = self.clocks.at(self.place);
        self.ask(|master| async move { master.lease(request).await }).await
    }
}
