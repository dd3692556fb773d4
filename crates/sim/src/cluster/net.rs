//! The network between the parts of a simulated cell: every message takes a while, may be lost, and
//! a link may be cut in one direction only. A call is a request and an answer, and each can be lost
//! on its own, which is how a master can act without anybody hearing of it.

use super::planted::{Panics, Planted};
use cellwright_master::handle::Handle;
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_store::{CallError, NodeId, Peer, RaftAnswer, RaftCall, Room};
use cellwright_supervise::lock;
use futures::future::BoxFuture;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Somebody with an address. Replicas have their ids; agents, schedulers and clients come after.
pub type Place = u64;

/// A caller gives up on a silent line after this long.
const PATIENCE: Duration = Duration::from_millis(1000);

struct Wires {
    rng: ChaCha8Rng,
    /// Directed links that are cut.
    cut: BTreeSet<(Place, Place)>,
    /// Lost messages in a thousand.
    loss: u32,
    /// Longest travel in microseconds.
    delay: u64,
    /// Replicas that are on, by life.
    masters: BTreeMap<NodeId, Handle>,
    calls: u64,
    bugs: NetBugs,
}

/// Known bugs that a test plants to see them caught, here because what replicas ask each other
/// passes here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetBugs {
    /// Whoever asks whether it would be voted for is told yes, though nobody can hear it.
    pub skips_pre_vote: bool,
    /// Nobody admits to having room, so no leader hands over.
    pub hides_room: bool,
    /// Whoever sends a message is taken for the member it wants to be.
    pub believes_strangers: bool,
}

#[derive(Clone)]
pub struct VirtualNet(Arc<Mutex<Wires>>);

/// One message did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl VirtualNet {
    #[must_use]
    pub fn new(seed: u64, bugs: NetBugs) -> VirtualNet {
        VirtualNet(Arc::new(Mutex::new(Wires {
            rng: ChaCha8Rng::seed_from_u64(seed),
            cut: BTreeSet::new(),
            loss: 0,
            delay: 2000,
            masters: BTreeMap::new(),
            calls: 0,
            bugs,
        })))
    }

    pub fn plug(&self, id: NodeId, master: Handle) {
        self.lock().masters.insert(id, master);
    }

    pub fn unplug(&self, id: NodeId) {
        self.lock().masters.remove(&id);
    }

    #[must_use]
    pub fn master(&self, id: NodeId) -> Option<Handle> {
        self.lock().masters.get(&id).cloned()
    }

    /// Cuts everything between the two sides, one way or both.
    pub fn cut(&self, from: &[Place], to: &[Place], both: bool) {
        let mut wires = self.lock();
        for a in from {
            for b in to {
                wires.cut.insert((*a, *b));
                if both {
                    wires.cut.insert((*b, *a));
                }
            }
        }
    }

    pub fn set_loss(&self, per_mille: u32) {
        self.lock().loss = per_mille;
    }

    pub fn set_delay(&self, micros: u64) {
        self.lock().delay = micros;
    }

    pub fn heal(&self) {
        let mut wires = self.lock();
        wires.cut.clear();
        wires.loss = 0;
        wires.delay = 2000;
    }

    /// Nothing is cut and nothing is lost.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let wires = self.lock();
        wires.cut.is_empty() && wires.loss == 0
    }

    /// A replica that is no member asks for votes, sanely and absurdly, and says that it leads.
    pub async fn send_strangers(&self, to: NodeId) {
        let Some(master) = self.master(to) else { return };
        let status = master.status();
        let is_believed = self.lock().bugs.believes_strangers;
        // Believed, it passes for one that may: the next of the members.
        let others = || status.members.keys().copied();
        let other = others().find(|id| *id > to).or_else(|| others().find(|id| *id != to));
        let from = other.filter(|_| is_believed).unwrap_or(STRANGER);
        let era = master.replicated().with(|view| view.era);
        for term in [status.term + 50, u64::MAX] {
            for call in [RaftCall::leading(term, from), RaftCall::standing(term, from)] {
                let call = PeerCall::Raft { era, from, call };
                // Whatever it is told, it is not told by this net.
                let _answer = master.answer_peer(Some(&format!("m{from}")), call).await;
            }
        }
    }

    /// Messages sent so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// One message travels, or hangs until its sender gives up.
    ///
    /// # Errors
    /// When it is lost.
    pub async fn travel(&self, from: Place, to: Place) -> Result<(), Lost> {
        let (lost, micros) = {
            let mut wires = self.lock();
            wires.calls += 1;
            let loss = wires.loss;
            let unlucky = wires.rng.random_range(0..1000) < loss;
            let most = wires.delay;
            let micros = wires.rng.random_range(most / 10..=most);
            (unlucky || wires.cut.contains(&(from, to)), micros)
        };
        if lost {
            tokio::time::sleep(PATIENCE).await;
            return Err(Lost);
        }
        tokio::time::sleep(Duration::from_micros(micros)).await;
        Ok(())
    }

    /// A call to a replica: there, the work, and back.
    ///
    /// # Errors
    /// When either message is lost or nobody is there.
    pub async fn ask<T, F>(
        &self,
        from: Place,
        to: NodeId,
        work: impl FnOnce(Handle) -> F,
    ) -> Result<T, Lost>
    where
        F: Future<Output = T>,
    {
        self.travel(from, to).await?;
        let Some(master) = self.master(to) else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Err(Lost);
        };
        let answer = work(master).await;
        self.travel(to, from).await?;
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, Wires> {
        lock(&self.0)
    }
}

/// Of a replica that no cell has.
const STRANGER: NodeId = 9;

/// What a buggy run answers in place of whoever was asked.
fn instead(bugs: NetBugs, call: &PeerCall) -> Option<PeerAnswer> {
    let PeerCall::Raft { call, .. } = call else { return None };
    let answer = match call {
        RaftCall::PreVote(_) if bugs.skips_pre_vote => RaftAnswer::PreVote { granted: true },
        RaftCall::Room if bugs.hides_room => RaftAnswer::Room(Room { free: 0, reserve: 1 }),
        _ => return None,
    };
    Some(PeerAnswer::Raft(answer))
}

/// One replica's way to the others.
pub struct VirtualPeers {
    pub net: VirtualNet,
    pub from: NodeId,
    pub planted: Planted,
}

impl Peers for VirtualPeers {
    fn call(
        &self,
        to: NodeId,
        _peer: Peer,
        call: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
        let (net, from) = (self.net.clone(), self.from);
        let bugs = net.lock().bugs;
        if let Some(answer) = instead(bugs, &call) {
            return Box::pin(async move { Ok(answer) });
        }
        let planted = self.planted;
        Box::pin(async move {
            if matches!(call, PeerCall::Raft { call: RaftCall::Room, .. }) {
                planted.reach(Panics::Call);
            }
            // The message is encoded and decoded as on a real line.
            let bytes = postcard::to_stdvec(&call).map_err(|e| failed(&e))?;
            let name = format!("m{from}");
            let answer = net.ask(from, to, |master| async move {
                let call: PeerCall = postcard::from_bytes(&bytes).ok()?;
                let answer = master.answer_peer(Some(&name), call).await;
                postcard::to_stdvec(&answer).ok()
            });
            let bytes = answer.await.map_err(|Lost| CallError::Unreachable("lost".into()))?;
            let bytes = bytes.ok_or_else(|| failed(&"undecodable call"))?;
            postcard::from_bytes(&bytes).map_err(|e| failed(&e))
        })
    }
}

fn failed(error: &dyn std::fmt::Display) -> CallError {
    CallError::Failed(error.to_string())
}

/// The replica behind an address of the simulation.
pub(crate) fn address_id(address: &str) -> Option<NodeId> {
    address.strip_prefix('m')?.split(':').next()?.parse().ok()
}
