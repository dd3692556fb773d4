//! What goes wrong, drawn from the seed: one thing after another, sometimes several at once. The
//! run ends with everything healed.

use super::world::Cluster;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillMaster,
    CutPower,
    CutPowerOfAll,
    TurnOn,
    CutOff { both: bool },
    CutLeaderOff { both: bool },
    Loss,
    SlowDisk,
    FullDisk,
    KillScheduler,
    StartScheduler,
    CutSomeAgents,
    CutMostAgents,
    RebootAgent,
    Heal,
}

const MENU: [(Fault, u32); 18] = [
    (Fault::KillMaster, 4),
    (Fault::CutPower, 4),
    (Fault::CutPowerOfAll, 1),
    (Fault::TurnOn, 8),
    (Fault::CutOff { both: true }, 2),
    (Fault::CutOff { both: false }, 2),
    (Fault::CutLeaderOff { both: true }, 2),
    (Fault::CutLeaderOff { both: false }, 2),
    (Fault::Loss, 2),
    (Fault::SlowDisk, 2),
    (Fault::FullDisk, 1),
    (Fault::KillScheduler, 2),
    (Fault::StartScheduler, 3),
    (Fault::CutSomeAgents, 2),
    (Fault::CutMostAgents, 1),
    (Fault::RebootAgent, 2),
    (Fault::Heal, 6),
    (Fault::Heal, 0),
];

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
        Fault::KillScheduler => cluster.kill_scheduler(0),
        Fault::StartScheduler => cluster.start_scheduler(0),
        Fault::CutSomeAgents | Fault::CutMostAgents => {
            let agents = cluster.agent_places();
            let share = if fault == Fault::CutMostAgents { 7 } else { 2 };
            let some = &agents[..agents.len() * share / 10];
            let all: Vec<u64> = (1..=masters).collect();
            cluster.net.cut(some, &all, true);
        }
        Fault::RebootAgent => {
            let machines = usize::try_from(cluster.shape.machines).unwrap_or(1);
            cluster.reboot_agent(rng.random_range(0..machines));
        }
        Fault::Heal => heal(cluster).await?,
    }
    Ok(())
}

/// Everything works again.
///
/// # Errors
/// When a replica that comes back cannot trust its own disk.
pub async fn heal(cluster: &mut Cluster) -> Result<(), String> {
    cluster.net.heal();
    for id in 1..=cluster.shape.masters {
        if let Some(disk) = cluster.disk(id) {
            disk.set_slowness(1);
            disk.set_full(false);
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
