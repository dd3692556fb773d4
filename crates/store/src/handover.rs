//! Room on the disk of the log, and handing the lead over: for want of room, or before a stop.
//!
//! A leader without room refuses every write, however well its followers are. So a leader that
//! comes near its reserve looks for a voter that has room and lets it lead. A leader that is told
//! to stop does the same, or its followers would wait out its silence. Openraft 0.9 has no
//! transfer of leadership, and a replica that stands while the others hear a leader gets no votes;
//! so the leader takes no more proposals, waits until its successor has the whole log, stops its
//! heartbeats until the leases it gave have run out, and then asks the successor to stand at once.
//! Whatever comes of it, heartbeats go on again after a bound.
//!
//! Rejected: stepping down and leaving the rest to the timers. Whoever is up first may have as
//! little room, and the cell is without a leader for twice as long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::Raft;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::disk::DiskHandle;
use crate::raft::{NodeId, Peer, TypeConfig};
use crate::replica::Replica;
use crate::settings::Settings;
use crate::status::{Member, Role, Status};
use crate::transport::{RaftAnswer, RaftCall, Transport};

/// Between two looks at the disk.
const LOOK: Duration = Duration::from_millis(500);
/// Looks between two questions to the others; how they stand is for people to see.
const ASK_EVERY: u32 = 4;
/// After a try that came to nothing.
const AGAIN: Duration = Duration::from_secs(5);

/// Room on a replica's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub free: u64,
    /// What is kept for votes, snapshots and removals; writes are refused below.
    pub reserve: u64,
}

impl Room {
    /// Writes are refused.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.free < self.reserve
    }

    /// Somebody should look after this disk before writes are refused.
    #[must_use]
    pub fn is_getting_short(&self) -> bool {
        self.free < self.reserve.saturating_mul(2)
    }

    /// A leader hands over before it has to refuse anything.
    fn is_short_for_a_leader(&self) -> bool {
        self.free < self.reserve.saturating_add(self.reserve / 4)
    }

    /// Enough to lead for a while: what has just handed over is not handed the lead back.
    fn is_ample(&self) -> bool {
        self.free >= self.reserve.saturating_add(self.reserve / 2)
    }
}

/// How handing over stands.
#[derive(Clone, Default)]
pub(crate) struct Stage(Arc<AtomicU8>);

impl Stage {
    /// No need, or not tried yet.
    const IDLE: u8 = 0;
    /// Under way: proposals are not taken.
    const HANDING: u8 = 1;
    /// Nobody has more room.
    const NOBODY: u8 = 2;

    /// Whether it was begun: not while it is under way already.
    fn begin(&self) -> bool {
        self.0.swap(Stage::HANDING, Ordering::SeqCst) != Stage::HANDING
    }

    fn set(&self, stage: u8) {
        self.0.store(stage, Ordering::SeqCst);
    }

    pub(crate) fn is_handing(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Stage::HANDING
    }

    /// Whether it was seen that nobody could do better.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Stage::NOBODY
    }
}

/// Looks at the disk all along and hands over when need be.
pub(crate) struct Steward {
    pub(crate) raft: Raft<TypeConfig>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: Settings,
    pub(crate) disk: DiskHandle,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) stage: Stage,
    /// Somebody found the disk short before the next look.
    pub(crate) found: Arc<Notify>,
    pub(crate) room: Arc<Mutex<Room>>,
    pub(crate) rooms: Arc<Mutex<BTreeMap<NodeId, Room>>>,
}

/// Why the lead was not handed over.
#[derive(Debug, thiserror::Error)]
enum Kept {
    #[error("no other voter has room")]
    Nobody,
    #[error("replica {0} did not catch up")]
    Behind(NodeId),
    #[error("replica {0} does not answer")]
    Silent(NodeId),
    #[error("replica {0} was not elected")]
    NotElected(NodeId),
    #[error("it is being handed over already")]
    UnderWay,
}

impl Replica {
    /// Hands the lead over, if this replica has it and another voter can take it: whoever is about
    /// to stop leaves a cell that has a leader. Takes about a leader's lease and a heartbeat.
    pub async fn hand_over(&self) {
        self.steward().hand_over_before_stop().await;
    }

    pub(crate) fn steward(&self) -> Steward {
        Steward {
            raft: self.raft.clone(),
            transport: Arc::clone(&self.transport),
            settings: self.settings.clone(),
            disk: self.disk.clone(),
            status: self.status.clone(),
            stage: self.stage.clone(),
            found: Arc::clone(&self.short),
            room: Arc::clone(&self.room),
            rooms: Arc::clone(&self.rooms),
        }
    }
}

impl Steward {
    /// Ends with the replica.
    pub(crate) async fn run(self) {
        let mut not_before = Instant::now();
        for look in 0_u32.. {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.found.notified() => {}
                () = self.disk.closed() => return,
            }
            let free = match self.disk.get().and_then(|disk| disk.free_bytes()) {
                Ok(free) => free,
                Err(_) if self.disk.is_closed() => return,
                // What the disk did not say now it says at the next look.
                Err(error) => {
                    tracing::warn!(%error, "the disk does not say how much is free");
                    continue;
                }
            };
            let room = Room { free, reserve: self.settings.reserve_bytes };
            *self.room.lock().unwrap_or_else(PoisonError::into_inner) = room;
            // Somebody else hands over, and says when that is done.
            if self.stage.is_handing() {
                continue;
            }
            let leads = self.status.borrow().role == Role::Leader;
            match leads {
                true if look.is_multiple_of(ASK_EVERY) => drop(self.ask_others().await),
                true => {}
                false => self.note_others(&[]),
            }
            if !leads || !room.is_short_for_a_leader() {
                self.stage.set(Stage::IDLE);
                continue;
            }
            if Instant::now() < not_before {
                continue;
            }
            match self.hand_over(Room::is_ample).await {
                Ok(to) => tracing::warn!(free, to, "handed the lead over: the disk is short"),
                Err(why) => {
                    if !self.stage.is_hopeless() {
                        tracing::warn!(free, %why, "leads on with a disk that is short");
                    }
                    self.stage.set(Stage::NOBODY);
                    not_before = Instant::now() + AGAIN;
                }
            }
        }
    }

    /// For a leader that is about to stop; whatever comes of it, it may.
    pub(crate) async fn hand_over_before_stop(&self) {
        let is_alone = {
            let status = self.status.borrow();
            let voters = status.members.values().filter(|member| member.voter).count();
            status.role != Role::Leader || voters < 2
        };
        if is_alone {
            return;
        }
        match self.hand_over(|room| !room.is_short()).await {
            Ok(to) => tracing::info!(to, "handed the lead over before stopping"),
            Err(why) => tracing::warn!(%why, "stops as the leader"),
        }
    }

    async fn hand_over(&self, will_do: impl Fn(&Room) -> bool) -> Result<NodeId, Kept> {
        let (to, peer) = self.successor(will_do).await.ok_or(Kept::Nobody)?;
        if !self.stage.begin() {
            return Err(Kept::UnderWay);
        }
        let done = self.hand_to(to, peer).await;
        self.raft.runtime_config().heartbeat(true);
        self.stage.set(Stage::IDLE);
        done.map(|()| to)
    }

    /// The voter whose room will do that is furthest in the log.
    async fn successor(&self, will_do: impl Fn(&Room) -> bool) -> Option<(NodeId, Peer)> {
        let others = self.ask_others().await;
        let able = others.into_iter().filter(|(_, _, room)| will_do(room));
        let best = able.max_by_key(|(id, member, room)| (member.matched, room.free, *id));
        best.map(|(id, member, _)| (id, member.peer))
    }

    /// Asks the other voters for their room.
    async fn ask_others(&self) -> Vec<(NodeId, Member, Room)> {
        let mut answers = JoinSet::new();
        let Status { id: own, members, .. } = self.status.borrow().clone();
        for (id, member) in members {
            if !member.voter || id == own {
                continue;
            }
            let call = self.transport.call(id, member.peer.clone(), RaftCall::Room);
            let patience = self.settings.election_min;
            answers.spawn(async move { (id, member, timeout(patience, call).await) });
        }
        let mut found = Vec::new();
        while let Some(answer) = answers.join_next().await {
            if let Ok((id, member, Ok(Ok(RaftAnswer::Room(room))))) = answer {
                found.push((id, member, room));
            }
        }
        self.note_others(&found);
        found
    }

    fn note_others(&self, found: &[(NodeId, Member, Room)]) {
        let rooms = found.iter().map(|(id, _, room)| (*id, *room)).collect();
        *self.rooms.lock().unwrap_or_else(PoisonError::into_inner) = rooms;
    }

    async fn hand_to(&self, to: NodeId, peer: Peer) -> Result<(), Kept> {
        let lease = self.settings.election_max;
        let mut status = self.status.clone();
        let has_all = |status: &Status| {
            let matched = status.members.get(&to).and_then(|member| member.matched);
            status.role != Role::Leader || matched >= status.last_log
        };
        match timeout(lease, status.wait_for(has_all)).await {
            Ok(Ok(_)) => {}
            _ => return Err(Kept::Behind(to)),
        }
        self.raft.runtime_config().heartbeat(false);
        // One heartbeat may be on its way still.
        tokio::time::sleep(lease + self.settings.heartbeat).await;
        let call = self.transport.call(to, peer, RaftCall::TakeOver);
        match timeout(self.settings.election_min, call).await {
            Ok(Ok(RaftAnswer::TakingOver)) => {}
            _ => return Err(Kept::Silent(to)),
        }
        let is_over = status.wait_for(|status| status.role != Role::Leader);
        match timeout(lease, is_over).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Kept::NotElected(to)),
        }
    }
}
