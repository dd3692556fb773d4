//! The line of a simulated agent to the masters: polls one, tells it news, and lets the time of its
//! machine pass.

use super::clocks::Clocks;
use super::flaws::Flaws;
use super::net::{Lost, Place, VirtualNet};
use super::planted::{Panics, Planted};
use super::world::{AGENTS, Known};
use crate::agent::VirtualAgent;
use crate::agent::witness::Witness;
use cellwright_api::masters::Masters;
use cellwright_master::handle::Handle;
use cellwright_store::NodeId;
use cellwright_supervise::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) struct AgentLine {
    pub agent: Arc<Mutex<VirtualAgent>>,
    pub net: VirtualNet,
    pub place: Place,
    /// Whom it polls.
    pub line: Mutex<Known>,
    /// Orders came, so something else may be the next to change.
    pub orders: Notify,
    /// Something changed that the masters should hear of.
    pub news: Notify,
    pub started: Instant,
    pub clocks: Clocks,
    pub flaws: Flaws,
    pub planted: Planted,
}

impl AgentLine {
    /// Three things at once, none of which may hold up another: a lease ends on time while a
    /// message is on its way to nowhere.
    pub async fn run(self) {
        tokio::join!(self.keep_time(), self.tell_news(), self.poll());
    }

    async fn keep_time(&self) {
        loop {
            self.planted.reach(Panics::Agent);
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
                () = self.orders.notified() => {}
                () = change => {
                    let changed = lock(&self.agent).advance(self.now());
                    if changed {
                        self.news.notify_one();
                    }
                }
            }
        }
    }

    /// Sends news as they come. A lost message costs nothing: the next poll says it again.
    async fn tell_news(&self) {
        loop {
            self.news.notified().await;
            let replica = lock(&self.line).replica();
            let _lost = self.ask(replica, false).await;
        }
    }

    /// Polls a replica, another one when that fails.
    async fn poll(&self) {
        loop {
            let replica = lock(&self.line).replica();
            let stays = lock(&self.agent).bugs.knows_one_master;
            match self.ask(replica, true).await {
                Ok((said, redial)) => lock(&self.line).answered(said.as_ref(), redial),
                Err(Lost) if stays => {}
                Err(Lost) => lock(&self.line).failed(),
            }
        }
    }

    async fn ask(&self, replica: NodeId, hang: bool) -> Result<Told, Lost> {
        let sent = self.now();
        let wall = self.clocks.at(self.place);
        let report = lock(&self.agent).report(hang, wall, sent);
        let incarnation = report.incarnation;
        // As at the door of the product: one that was removed orders nothing.
        let poll = |master: Handle| async move {
            let is_member = !master.is_removed();
            let orders = if is_member { master.poll(report).await.ok() } else { None };
            (orders, master.masters())
        };
        let asked = self.net.ask(self.place, replica, poll);
        let answer = tokio::time::timeout(Duration::from_secs(3), asked).await;
        let (orders, said) = answer.map_err(|_| Lost)??;
        let orders = orders.ok_or(Lost)?;
        let redial = orders.redial.clone();
        let mut agent = lock(&self.agent);
        if agent.incarnation() == incarnation {
            agent.obey(orders, sent, self.now());
            self.orders.notify_one();
        }
        if let Some(flaw) = agent.witness.as_mut().and_then(Witness::take_flaw) {
            self.flaws.note(format!("machine {}: {flaw}", self.place - AGENTS));
        }
        Ok((said, redial))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Which masters there are, and where to go on.
type Told = (Option<Masters>, Option<String>);
