//! The other parts of a cell as processes: a scheduler, and thousands of virtual machines that poll
//! over the real protocol.

use super::cell_process::answer_questions;
use super::workload;
use crate::flags::Flags;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_cell::name::Name;
use cellwright_scheduler::http_link::HttpLink;
use cellwright_scheduler::{Scheduler, SchedulerShard};
use cellwright_sim::agent::task_profile::Profile;
use cellwright_sim::agent::{TaskDelays, VirtualAgentConfig as Behaviour};
use cellwright_sim::simulated_agents::{SimulatedAgents, SimulatedMachine};
use std::io;
use std::sync::Arc;

const SEED: u64 = 1;
/// What a virtual machine takes to start and to stop a task, in milliseconds.
const MACHINE_DELAYS: TaskDelays = TaskDelays { start: 100, stop: 50 };

fn client(masters: Vec<String>, idle: usize) -> io::Result<Client> {
    let settings = ApiClientConfig { max_idle_connections: idle, ..ApiClientConfig::new(masters) };
    Client::new(settings).map_err(io::Error::other)
}

/// A scheduler for all jobs.
pub async fn scheduler(flags: Flags) -> io::Result<()> {
    let link = HttpLink::new(client(flags.list("masters")?, 64)?);
    let shard = SchedulerShard::new("").map_err(io::Error::other)?;
    let name = Name::new("bench").map_err(io::Error::other)?;
    let settings = cellwright_scheduler::SchedulerConfig::new(name, shard, SEED);
    let scheduler = Scheduler::new(Arc::new(link), settings).map_err(io::Error::other)?;
    tokio::select! {
        () = scheduler.run() => Ok(()),
        done = answer_questions(async |line| Ok(line)) => done,
    }
}

/// `--machines N`; every question is answered with how polling went so far.
pub async fn main(flags: Flags) -> io::Result<()> {
    let masters = flags.list("masters")?;
    let machines: u32 = flags.number("machines", 5000)?;
    // Every machine has a connection of its own.
    let client = client(masters, usize::try_from(machines).unwrap_or(usize::MAX))?;
    let member =
        |number| Ok(SimulatedMachine { spec: workload::machine(number)?, client: client.clone() });
    let members = (0..machines).map(member).collect::<io::Result<Vec<SimulatedMachine>>>()?;
    let fleet = SimulatedAgents::start(members, Behaviour::new(MACHINE_DELAYS, Profile::new(SEED)));
    let summary = async |_| serde_json::to_string(&fleet.summary()).map_err(io::Error::other);
    answer_questions(summary).await
}
