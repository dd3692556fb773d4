//! The link of a simulated agent to the masters: polls one of them, sends it reports, and advances
//! the time of its machine.

use super::clocks::Clocks;
use super::failpoints::{Failpoint, PanicPoint};
use super::net::{MessageLost, NodeAddress, VirtualNet};
use super::violations::ViolationLog;
use super::world::{FIRST_AGENT_ADDRESS, MasterSelector};
use crate::agent::VirtualAgent;
use crate::agent::invariants::AgentInvariants;
use cellwright_api::masters::MasterList;
use cellwright_master::handle::MasterHandle;
use cellwright_store::NodeId;
use cellwright_supervise::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) struct AgentLink {
    pub agent: Arc<Mutex<VirtualAgent>>,
    pub net: VirtualNet,
    pub node_address: NodeAddress,
    /// The masters that it polls.
    pub known_masters: Mutex<MasterSelector>,
    /// New orders arrived, so the next change may come earlier.
    pub orders_changed: Notify,
    /// Something changed that must be reported to the masters.
    pub report_due: Notify,
    pub started: Instant,
    pub clocks: Clocks,
    pub violations: ViolationLog,
    pub failpoint: Failpoint,
}

impl AgentLink {
    /// Three things at once, none of which may hold up another: a lease ends on time while a
    /// message is being lost.
    pub async fn run(self) {
        tokio::join!(self.run_clock(), self.send_news(), self.poll());
    }

    async fn run_clock(&self) {
        loop {
            self.failpoint.reach(PanicPoint::Agent);
            let due = lock(&self.agent).next_change();
            let at = due.map(|at| self.started + Duration::from_millis(at));
            let change = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.orders_changed.notified() => {}
                () = change => {
                    let changed = lock(&self.agent).advance(self.now());
                    if changed {
                        self.report_due.notify_one();
                    }
                }
            }
        }
    }

    /// Sends reports of changes as they come. A lost message costs nothing: the next poll repeats
    /// it.
    async fn send_news(&self) {
        loop {
            self.report_due.notified().await;
            let replica = lock(&self.known_masters).replica();
            let _lost = self.call_replica(replica, false).await;
        }
    }

    /// Polls a replica, and another one when that fails.
    async fn poll(&self) {
        loop {
            let replica = lock(&self.known_masters).replica();
            let stays = lock(&self.agent).bugs.knows_one_master;
            match self.call_replica(replica, true).await {
                Ok((masters, redirect)) => {
                    lock(&self.known_masters).note_answer(masters.as_ref(), redirect);
                }
                Err(MessageLost) if stays => {}
                Err(MessageLost) => lock(&self.known_masters).note_failure(),
            }
        }
    }

    async fn call_replica(&self, replica: NodeId, hang: bool) -> Result<PollAnswer, MessageLost> {
        let sent = self.now();
        let wall = self.clocks.clock_time(self.node_address);
        let report = lock(&self.agent).report(hang, wall, sent);
        let incarnation = report.incarnation;
        // As at the listener of the product: a master that was removed gives no orders.
        let poll = |master: MasterHandle| async move {
            let is_member = !master.is_removed();
            let orders = if is_member { master.poll(report).await.ok() } else { None };
            (orders, master.masters())
        };
        let call = self.net.call_replica(self.node_address, replica, poll);
        let answer = tokio::time::timeout(Duration::from_secs(3), call).await;
        let (orders, masters) = answer.map_err(|_| MessageLost)??;
        let orders = orders.ok_or(MessageLost)?;
        let redirect = orders.redirect.clone();
        let mut agent = lock(&self.agent);
        if agent.incarnation() == incarnation {
            agent.apply_orders(orders, sent, self.now());
            self.orders_changed.notify_one();
        }
        if let Some(violation) = agent.invariants.as_mut().and_then(AgentInvariants::take_violation)
        {
            self.violations.record(format!(
                "machine {}: {violation}",
                self.node_address - FIRST_AGENT_ADDRESS
            ));
        }
        Ok((masters, redirect))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The masters there are, and the one to poll next.
type PollAnswer = (Option<MasterList>, Option<String>);
