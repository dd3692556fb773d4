//! The network between the parts of a simulated cell: every message takes a while, may be lost, and
//! a link may be cut in one direction only. A call is a request and an answer, and each can be lost
//! on its own, so a master can act without any caller learning of it.

use super::failpoints::{Failpoint, PanicPoint};
use cellwright_api::wire::{NEWEST, OLDEST, WireRange, WireVersion, pack, unpack};
use cellwright_master::handle::MasterHandle;
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_store::{CallError, DiskSpace, NodeId, Peer, RaftAnswer, RaftCall};
use cellwright_supervise::lock;
use futures::future::BoxFuture;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The address of a process. Replicas have their ids; agents, schedulers and clients come after.
pub type NodeAddress = u64;

/// A caller gives up on a call without an answer after this long.
const CALL_TIMEOUT: Duration = Duration::from_millis(1000);

struct NetState {
    rng: ChaCha8Rng,
    /// Of the release that replicas with odd numbers are of; the others are of this one.
    other_release: WireVersion,
    /// Directed links that are cut.
    cut: BTreeSet<(NodeAddress, NodeAddress)>,
    /// Lost messages in a thousand.
    loss_permille: u32,
    /// Longest delay of a message in microseconds.
    max_delay_micros: u64,
    /// Replicas that are running, by id.
    masters: BTreeMap<NodeId, MasterHandle>,
    calls: u64,
    bugs: NetBugs,
}

/// Known bugs that a test injects to check that they are caught; they are here because the messages
/// between replicas pass here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetBugs {
    /// Every pre-vote is granted, though the candidate cannot be heard.
    pub skips_pre_vote: bool,
    /// No replica reports free disk space, so no leader transfers leadership.
    pub hides_disk_space: bool,
    /// The sender of a message is accepted as the member it claims to be.
    pub accepts_unknown_senders: bool,
}

#[derive(Clone)]
pub struct VirtualNet(Arc<Mutex<NetState>>);

/// One message did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLost;

impl VirtualNet {
    #[must_use]
    pub fn new(seed: u64, bugs: NetBugs) -> VirtualNet {
        VirtualNet(Arc::new(Mutex::new(NetState {
            rng: ChaCha8Rng::seed_from_u64(seed),
            other_release: match seed % 2 {
                0 => OLDEST,
                _ => WireVersion(NEWEST.0 + 1),
            },
            cut: BTreeSet::new(),
            loss_permille: 0,
            max_delay_micros: 2000,
            masters: BTreeMap::new(),
            calls: 0,
            bugs,
        })))
    }

    pub fn attach(&self, id: NodeId, master: MasterHandle) {
        self.lock().masters.insert(id, master);
    }

    pub fn detach(&self, id: NodeId) {
        self.lock().masters.remove(&id);
    }

    #[must_use]
    pub fn master(&self, id: NodeId) -> Option<MasterHandle> {
        self.lock().masters.get(&id).cloned()
    }

    /// Cuts everything between the two sides, one way or both.
    pub fn cut(&self, from: &[NodeAddress], to: &[NodeAddress], both: bool) {
        let mut state = self.lock();
        for a in from {
            for b in to {
                state.cut.insert((*a, *b));
                if both {
                    state.cut.insert((*b, *a));
                }
            }
        }
    }

    pub fn set_loss(&self, per_mille: u32) {
        self.lock().loss_permille = per_mille;
    }

    pub fn set_delay(&self, micros: u64) {
        self.lock().max_delay_micros = micros;
    }

    pub fn heal(&self) {
        let mut state = self.lock();
        state.cut.clear();
        state.loss_permille = 0;
        state.max_delay_micros = 2000;
    }

    /// Nothing is cut and nothing is lost.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let state = self.lock();
        state.cut.is_empty() && state.loss_permille == 0
    }

    /// A replica that is no member requests votes, with valid and with absurd terms, and claims to
    /// lead.
    pub async fn send_as_stranger(&self, to: NodeId) {
        let Some(master) = self.master(to) else { return };
        let status = master.status();
        let is_believed = self.lock().bugs.accepts_unknown_senders;
        // If it is believed, it passes for a real voter: the next of the members.
        let others = || status.members.keys().copied();
        let other = others().find(|id| *id > to).or_else(|| others().find(|id| *id != to));
        let from = other.filter(|_| is_believed).unwrap_or(STRANGER);
        let log_epoch = master.replicated().with(|view| view.log_epoch);
        for term in [status.term + 50, u64::MAX] {
            for call in [RaftCall::heartbeat(term, from), RaftCall::vote_request(term, from)] {
                let call = PeerCall::Raft { log_epoch, from, call };
                // The answer does not matter and does not travel on this network.
                let _answer = master.handle_peer_call(Some(&format!("m{from}")), call).await;
            }
        }
    }

    /// Messages sent so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Delivers one message, or hangs until its sender gives up.
    ///
    /// # Errors
    /// When it is lost.
    pub async fn deliver(&self, from: NodeAddress, to: NodeAddress) -> Result<(), MessageLost> {
        let (lost, micros) = {
            let mut state = self.lock();
            state.calls += 1;
            let loss = state.loss_permille;
            let is_dropped = state.rng.random_range(0..1000) < loss;
            let most = state.max_delay_micros;
            let micros = state.rng.random_range(most / 10..=most);
            (is_dropped || state.cut.contains(&(from, to)), micros)
        };
        if lost {
            tokio::time::sleep(CALL_TIMEOUT).await;
            return Err(MessageLost);
        }
        tokio::time::sleep(Duration::from_micros(micros)).await;
        Ok(())
    }

    /// A call to a replica: request, work, and answer.
    ///
    /// # Errors
    /// When either message is lost or no replica is there.
    pub async fn call_replica<T, F>(
        &self,
        from: NodeAddress,
        to: NodeId,
        work: impl FnOnce(MasterHandle) -> F,
    ) -> Result<T, MessageLost>
    where
        F: Future<Output = T>,
    {
        self.deliver(from, to).await?;
        let Some(master) = self.master(to) else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Err(MessageLost);
        };
        let answer = work(master).await;
        self.deliver(to, from).await?;
        Ok(answer)
    }

    /// Cells are in the middle of an upgrade: replicas are of two releases that follow each other.
    fn speaks(&self, replica: NodeId) -> WireRange {
        match replica % 2 {
            0 => WireRange::BUILT,
            _ => WireRange::of_release(self.lock().other_release),
        }
    }

    fn lock(&self) -> MutexGuard<'_, NetState> {
        lock(&self.0)
    }
}

/// The id of a replica that no cell has.
const STRANGER: NodeId = 9;

/// What a buggy run answers in place of the called replica.
fn buggy_answer(bugs: NetBugs, call: &PeerCall) -> Option<PeerAnswer> {
    let PeerCall::Raft { call, .. } = call else { return None };
    let answer = match call {
        RaftCall::PreVote(_) if bugs.skips_pre_vote => RaftAnswer::PreVote { granted: true },
        RaftCall::DiskSpace if bugs.hides_disk_space => {
            RaftAnswer::DiskSpace(DiskSpace { free: 0, reserve: 1 })
        }
        _ => return None,
    };
    Some(PeerAnswer::Raft(answer))
}

/// One replica's connection to the others.
pub struct VirtualPeers {
    pub net: VirtualNet,
    pub from: NodeId,
    pub failpoint: Failpoint,
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
        if let Some(answer) = buggy_answer(bugs, &call) {
            return Box::pin(async move { Ok(answer) });
        }
        let planted = self.failpoint;
        Box::pin(async move {
            if matches!(call, PeerCall::Raft { call: RaftCall::DiskSpace, .. }) {
                planted.reach(PanicPoint::Call);
            }
            // The message is encoded and decoded as on a real connection.
            let (own, peer) = (net.speaks(from), net.speaks(to));
            let version = own.to_write(Some(peer));
            let bytes = pack(version, &call).map_err(|e| call_failed(&e))?;
            let name = format!("m{from}");
            let answer = net.call_replica(from, to, |master| async move {
                let call: PeerCall = unpack(peer, version, &bytes).ok()?;
                let answer = master.handle_peer_call(Some(&name), call).await;
                pack(version, &answer).ok()
            });
            let bytes =
                answer.await.map_err(|MessageLost| CallError::Unreachable("lost".into()))?;
            let bytes = bytes.ok_or_else(|| call_failed(&"undecodable call"))?;
            unpack(own, version, &bytes).map_err(|e| call_failed(&e))
        })
    }
}

fn call_failed(error: &dyn std::fmt::Display) -> CallError {
    CallError::Failed(error.to_string())
}

/// The replica behind an address of the simulation.
pub(crate) fn replica_of_address(address: &str) -> Option<NodeId> {
    address.strip_prefix('m')?.split(':').next()?.parse().ok()
}
