//! What goes wrong, drawn from the seed: one thing after another, sometimes several at once. The
//! run ends with everything healed, except for masters that are gone for good.

use super::disk::PLENTY;
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
    /// comes back among those that have not seen it.
    LoseUnflushed,
    LoseMaster,
    TurnOn,
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
    ShortDisk,
    /// A replica that is no member speaks.
    Stranger,
    /// A follower is cut off from everybody.
    CutFollowerOff,
    /// A replica is taken out of the members.
    DropMember,
    /// All replicas are members again.
    TakeIn,
    /// A replica is killed while the members change.
    KillDuringChange,
    /// The log of a replica is cut short while it is off.
    CutLog,
    /// One user opens a thousand watches of the leader.
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
const JUMPS: [i64; 4] = [10 * MINUTE, -10 * MINUTE, 60 * MINUTE, -60 * MINUTE];

const MENU: [(Fault, u32); 32] = [
    (Fault::KillMaster, 4),
    (Fault::CutPower, 4),
    (Fault::CutPowerOfAll, 1),
    (Fault::LoseUnflushed, 3),
    (Fault::LoseMaster, 1),
    (Fault::TurnOn, 8),
    (Fault::CutOff { both: true }, 2),
    (Fault::CutOff { both: false }, 2),
    (Fault::CutLeaderOff { both: true }, 2),
    (Fault::CutLeaderOff { both: false }, 2),
    (Fault::Loss, 2),
    (Fault::SlowDisk, 2),
    (Fault::FullDisk, 1),
    (Fault::ShortDisk, 2),
    (Fault::Stranger, 2),
    (Fault::CutFollowerOff, 2),
    (Fault::DropMember, 2),
    (Fault::TakeIn, 2),
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
const SHORT: u64 = 200 << 20;

/// Draws what goes wrong next.
pub fn draw(rng: &mut ChaCha8Rng) -> Fault {
    MENU.choose_weighted(rng, |(_, weight)| *weight).map_or(Fault::Heal, |(fault, _)| *fault)
}

/// Lets it go wrong.
///
/// # Errors
/// When a replica that comes back cannot trust its own disk.
pub async fn strike(
    cluster: &mut Cluster,
    fault: Fault,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    cluster.strikes += 1;
    let masters = cluster.shape.masters;
    let any = rng.random_range(1..=masters);
    let everybody: Vec<u64> = (1..=masters).chain(cluster.agent_places()).collect();
    let others = |one: u64| everybody.iter().copied().filter(|p| *p != one).collect::<Vec<_>>();
    match fault {
        Fault::KillMaster => cluster.turn_off(any, false).await,
        Fault::CutPower => cluster.turn_off(any, true).await,
        Fault::CutPowerOfAll => {
            for id in 1..=masters {
                cluster.turn_off(id, true).await;
            }
        }
        Fault::LoseMaster => cluster.lose(any).await,
        Fault::TurnOn => turn_all_on(cluster).await?,
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
        Fault::ShortDisk => {
            let leader = cluster.leader().map_or(any, |(leader, _)| leader);
            if let Some(disk) = cluster.disk(leader) {
                disk.set_free(SHORT);
            }
        }
        Fault::Stranger => cluster.net.send_strangers(any).await,
        Fault::CutFollowerOff => {
            if cluster.leader().is_some_and(|(leader, _)| leader != any) {
                cluster.net.cut(&[any], &others(any), true);
            }
        }
        Fault::DropMember => cluster.drop_member(any),
        Fault::TakeIn => drop(cluster.has_all_members()),
        Fault::KillScheduler => cluster.kill_scheduler(0),
        Fault::StartScheduler => cluster.start_scheduler(0),
        Fault::CutSomeAgents | Fault::CutMostAgents => {
            let agents = cluster.agent_places();
            let share = if fault == Fault::CutMostAgents { 7 } else { 2 };
            let some = &agents[..agents.len() * share / 10];
            let all: Vec<u64> = (1..=masters).collect();
            cluster.net.cut(some, &all, true);
        }
        Fault::Heal => heal(cluster).await?,
        _ => strike_more(cluster, fault, any, rng).await?,
    }
    Ok(())
}

async fn strike_more(
    cluster: &mut Cluster,
    fault: Fault,
    any: u64,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    match fault {
        Fault::KillDuringChange => kill_during_change(cluster, any, rng).await,
        Fault::LoseUnflushed => lose_unflushed(cluster, rng).await?,
        Fault::CutLog => cluster.cut_log(any, rng).await?,
        Fault::ManyWatches => cluster.open_many_watches().await?,
        _ => strike_clocks_and_data(cluster, fault, any, rng).await,
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
    cluster.turn_off(leader, true).await;
    for id in sent {
        cluster.turn_off(*id, rng.random_bool(0.5)).await;
    }
    if let Some(disk) = cluster.disk(leader) {
        disk.set_slowness(1);
    }
    cluster.net.heal();
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
    cluster.turn_on(leader).await.map_err(|error| format!("replica {leader}: {error}"))
}

/// Members change, and somebody dies of something else meanwhile.
async fn kill_during_change(cluster: &mut Cluster, any: u64, rng: &mut ChaCha8Rng) {
    let leader = cluster.leader().map_or(any, |(leader, _)| leader);
    if cluster.has_all_members() {
        cluster.drop_member(1 + any % cluster.shape.masters);
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
    let killed = if rng.random_bool(0.5) { leader } else { any };
    cluster.turn_off(killed, rng.random_bool(0.5)).await;
}

/// What goes wrong with clocks, and with what machines and replicas have written.
async fn strike_clocks_and_data(
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
            let machines = cluster.agent_places();
            let number = rng.random_range(0..machines.len());
            let behind = if rng.random_bool(0.5) { 10 * MINUTE } else { 60 * MINUTE };
            cluster.clocks.jump(machines[number], -behind, false);
            cluster.lose_data(number);
        }
        Fault::ClockJump { for_good } => {
            let mut places: Vec<u64> = (1..=cluster.shape.masters).collect();
            places.extend(cluster.agent_places());
            places.push(cluster.scheduler_place(0));
            if let (Some(place), Some(ahead)) = (places.choose(rng), JUMPS.choose(rng)) {
                cluster.clocks.jump(*place, *ahead, for_good);
            }
        }
        Fault::ClockOfLeaderJumps => {
            if let (Some((leader, _)), Some(ahead)) = (cluster.leader(), JUMPS.choose(rng)) {
                cluster.clocks.jump(leader, *ahead, false);
            }
        }
        Fault::DamageRecords => {
            cluster.turn_off(any, false).await;
            if let Some(disk) = cluster.disk(any) {
                disk.damage_records(rng);
            }
        }
        _ => {}
    }
}

/// Everything works again that can.
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
            disk.set_free(PLENTY);
        }
    }
    turn_all_on(cluster).await?;
    cluster.start_scheduler(0);
    Ok(())
}

async fn turn_all_on(cluster: &mut Cluster) -> Result<(), String> {
    // A replica that stopped because of its disk is a process that ended: start it again.
    for id in cluster.failed() {
        cluster.turn_off(id, false).await;
    }
    for id in 1..=cluster.shape.masters {
        cluster.turn_on(id).await.map_err(|error| format!("replica {id}: {error}"))?;
    }
    Ok(())
}
