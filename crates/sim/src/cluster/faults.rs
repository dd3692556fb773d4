//! Fault injection, drawn from the seed: one fault after another, sometimes several at once. The
//! run ends with everything healed, except for masters that are gone for good.

use super::disk::UNLIMITED_FREE;
use super::world::Cluster;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillMaster,
    CutPower,
    CutPowerOfAll,
    /// The leader loses its power while it flushes what some followers have flushed already, and
    /// comes back among those that have not received it.
    LoseUnflushedLeader,
    LoseMaster,
    StartReplica,
    CutOff {
        both: bool,
    },
    CutLeaderOff {
        both: bool,
    },
    Loss,
    SlowDisk,
    FullDisk,
    /// The leader's disk is left with less than its reserve.
    LowDisk,
    /// A replica that is not a member sends messages.
    UnknownSender,
    /// A follower is partitioned from all others.
    CutFollowerOff,
    /// A replica is removed from the membership.
    RemoveMember,
    /// All replicas are members again.
    ReaddMembers,
    /// A replica is killed while the members change.
    KillDuringChange,
    /// The log of a replica is truncated while it is off.
    CutLog,
    /// One user opens a thousand watches on the leader.
    ManyWatches,
    KillScheduler,
    StartScheduler,
    CutSomeAgents,
    CutMostAgents,
    RebootAgent,
    /// A machine comes back without its data, and with a clock that is behind.
    LoseData,
    /// The clock of some process jumps ten minutes or an hour, ahead or back.
    ClockJump {
        for_good: bool,
    },
    ClockOfLeaderJumps,
    /// A file of a replica's event or audit log is damaged while it is off.
    DamageRecords,
    Heal,
}

const MINUTE: i64 = 60_000;
const CLOCK_JUMPS: [i64; 4] = [10 * MINUTE, -10 * MINUTE, 60 * MINUTE, -60 * MINUTE];

const FAULT_WEIGHTS: [(Fault, u32); 32] = [
    (Fault::KillMaster, 4),
    (Fault::CutPower, 4),
    (Fault::CutPowerOfAll, 1),
    (Fault::LoseUnflushedLeader, 3),
    (Fault::LoseMaster, 1),
    (Fault::StartReplica, 8),
    (Fault::CutOff { both: true }, 2),
    (Fault::CutOff { both: false }, 2),
    (Fault::CutLeaderOff { both: true }, 2),
    (Fault::CutLeaderOff { both: false }, 2),
    (Fault::Loss, 2),
    (Fault::SlowDisk, 2),
    (Fault::FullDisk, 1),
    (Fault::LowDisk, 2),
    (Fault::UnknownSender, 2),
    (Fault::CutFollowerOff, 2),
    (Fault::RemoveMember, 2),
    (Fault::ReaddMembers, 2),
    (Fault::KillDuringChange, 2),
    (Fault::CutLog, 1),
    (Fault::ManyWatches, 1),
    (Fault::KillScheduler, 2),
    (Fault::StartScheduler, 3),
    (Fault::CutSomeAgents, 2),
    (Fault::CutMostAgents, 1),
    (Fault::RebootAgent, 2),
    (Fault::DamageRecords, 2),
    (Fault::LoseData, 2),
    (Fault::ClockJump { for_good: false }, 3),
    (Fault::ClockJump { for_good: true }, 1),
    (Fault::ClockOfLeaderJumps, 2),
    (Fault::Heal, 6),
];

/// Less than the reserve of a log and more than a quarter of it.
const LOW_DISK_BYTES: u64 = 200 << 20;

/// Draws the next fault.
pub fn draw_fault(rng: &mut ChaCha8Rng) -> Fault {
    FAULT_WEIGHTS
        .choose_weighted(rng, |(_, weight)| *weight)
        .map_or(Fault::Heal, |(fault, _)| *fault)
}

/// Injects a fault.
///
/// # Errors
/// When a replica that comes back cannot trust its own disk.
pub async fn inject(
    cluster: &mut Cluster,
    fault: Fault,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    cluster.fault_count += 1;
    let masters = cluster.shape.masters;
    let any = rng.random_range(1..=masters);
    let everybody: Vec<u64> = (1..=masters).chain(cluster.agent_addresses()).collect();
    let others =
        |excluded: u64| everybody.iter().copied().filter(|p| *p != excluded).collect::<Vec<_>>();
    match fault {
        Fault::KillMaster => cluster.stop_replica(any, false).await,
        Fault::CutPower => cluster.stop_replica(any, true).await,
        Fault::CutPowerOfAll => {
            for id in 1..=masters {
                cluster.stop_replica(id, true).await;
            }
        }
        Fault::LoseMaster => cluster.lose_replica(any).await,
        Fault::StartReplica => start_all_replicas(cluster).await?,
        Fault::CutOff { both } => cluster.net.cut(&[any], &others(any), both),
        Fault::CutLeaderOff { both } => {
            if let Some((leader, _)) = cluster.leader() {
                cluster.net.cut(&[leader], &others(leader), both);
            }
        }
        Fault::Loss => cluster.net.set_loss(200),
        Fault::SlowDisk => {
            if let Some(disk) = cluster.disk(any) {
                disk.set_slowness(rng.random_range(20..200));
            }
        }
        Fault::FullDisk => {
            if let Some(disk) = cluster.disk(any) {
                disk.set_full(true);
            }
        }
        Fault::LowDisk => {
            let leader = cluster.leader().map_or(any, |(leader, _)| leader);
            if let Some(disk) = cluster.disk(leader) {
                disk.set_free(LOW_DISK_BYTES);
            }
        }
        Fault::UnknownSender => cluster.net.send_as_stranger(any).await,
        Fault::CutFollowerOff => {
            if cluster.leader().is_some_and(|(leader, _)| leader != any) {
                cluster.net.cut(&[any], &others(any), true);
            }
        }
        Fault::RemoveMember => cluster.remove_member(any),
        Fault::ReaddMembers => drop(cluster.readd_members()),
        Fault::KillScheduler => cluster.kill_scheduler(0),
        Fault::StartScheduler => cluster.start_scheduler(0),
        Fault::CutSomeAgents | Fault::CutMostAgents => {
            let agents = cluster.agent_addresses();
            let share = if fault == Fault::CutMostAgents { 7 } else { 2 };
            let some = &agents[..agents.len() * share / 10];
            let all: Vec<u64> = (1..=masters).collect();
            cluster.net.cut(some, &all, true);
        }
        Fault::Heal => heal(cluster).await?,
        _ => inject_more(cluster, fault, any, rng).await?,
    }
    Ok(())
}

async fn inject_more(
    cluster: &mut Cluster,
    fault: Fault,
    any: u64,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    match fault {
        Fault::KillDuringChange => kill_during_change(cluster, any, rng).await,
        Fault::LoseUnflushedLeader => lose_unflushed(cluster, rng).await?,
        Fault::CutLog => cluster.cut_log(any, rng).await?,
        Fault::ManyWatches => cluster.open_many_watches().await?,
        _ => inject_clock_or_data_fault(cluster, fault, any, rng).await,
    }
    Ok(())
}

/// A majority forms without those that hold what the leader had sent and not flushed.
async fn lose_unflushed(cluster: &mut Cluster, rng: &mut ChaCha8Rng) -> Result<(), String> {
    let Some((leader, _)) = cluster.leader() else { return Ok(()) };
    let mut others: Vec<u64> = (1..=cluster.shape.masters).filter(|id| *id != leader).collect();
    others.shuffle(rng);
    let (sent, unsent) = others.split_at(others.len() / 2);
    cluster.net.cut(unsent, &[sent, &[leader]].concat(), true);
    if let Some(disk) = cluster.disk(leader) {
        disk.set_slowness(rng.random_range(100..1000));
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
    cluster.stop_replica(leader, true).await;
    for id in sent {
        cluster.stop_replica(*id, rng.random_bool(0.5)).await;
    }
    if let Some(disk) = cluster.disk(leader) {
        disk.set_slowness(1);
    }
    cluster.net.heal();
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
    cluster.start_replica(leader).await.map_err(|error| format!("replica {leader}: {error}"))
}

/// The membership changes, and a replica dies of something else in the meantime.
async fn kill_during_change(cluster: &mut Cluster, any: u64, rng: &mut ChaCha8Rng) {
    let leader = cluster.leader().map_or(any, |(leader, _)| leader);
    if cluster.readd_members() {
        cluster.remove_member(1 + any % cluster.shape.masters);
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
    let killed = if rng.random_bool(0.5) { leader } else { any };
    cluster.stop_replica(killed, rng.random_bool(0.5)).await;
}

/// Faults of clocks, and of the files of machines and replicas.
async fn inject_clock_or_data_fault(
    cluster: &mut Cluster,
    fault: Fault,
    any: u64,
    rng: &mut ChaCha8Rng,
) {
    match fault {
        Fault::RebootAgent => {
            let machines = usize::try_from(cluster.shape.machines).unwrap_or(1);
            cluster.reboot_agent(rng.random_range(0..machines));
        }
        Fault::LoseData => {
            let machines = cluster.agent_addresses();
            let number = rng.random_range(0..machines.len());
            let behind = if rng.random_bool(0.5) { 10 * MINUTE } else { 60 * MINUTE };
            cluster.clocks.jump(machines[number], -behind, false);
            cluster.lose_data(number);
        }
        Fault::ClockJump { for_good } => {
            let mut node_addresses: Vec<u64> = (1..=cluster.shape.masters).collect();
            node_addresses.extend(cluster.agent_addresses());
            node_addresses.push(cluster.scheduler_address(0));
            if let (Some(node_address), Some(ahead)) =
                (node_addresses.choose(rng), CLOCK_JUMPS.choose(rng))
            {
                cluster.clocks.jump(*node_address, *ahead, for_good);
            }
        }
        Fault::ClockOfLeaderJumps => {
            if let (Some((leader, _)), Some(ahead)) = (cluster.leader(), CLOCK_JUMPS.choose(rng)) {
                cluster.clocks.jump(leader, *ahead, false);
            }
        }
        Fault::DamageRecords => {
            cluster.stop_replica(any, false).await;
            if let Some(disk) = cluster.disk(any) {
                disk.damage_records(rng);
            }
        }
        _ => {}
    }
}

/// Heals every fault that can be healed.
///
/// # Errors
/// When a replica that comes back cannot trust its own disk.
pub async fn heal(cluster: &mut Cluster) -> Result<(), String> {
    cluster.net.heal();
    cluster.clocks.heal();
    cluster.close_watches().await?;
    for id in 1..=cluster.shape.masters {
        if let Some(disk) = cluster.disk(id) {
            disk.set_slowness(1);
            disk.set_full(false);
            disk.set_free(UNLIMITED_FREE);
        }
    }
    start_all_replicas(cluster).await?;
    cluster.start_scheduler(0);
    Ok(())
}

async fn start_all_replicas(cluster: &mut Cluster) -> Result<(), String> {
    // A replica that stopped because of its disk is a process that ended: start it again.
    for id in cluster.failed_replicas() {
        cluster.stop_replica(id, false).await;
    }
    for id in 1..=cluster.shape.masters {
        cluster.start_replica(id).await.map_err(|error| format!("replica {id}: {error}"))?;
    }
    Ok(())
}
