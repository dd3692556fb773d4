//! Which machines an agent may fetch a package from: those that have it by their own report, and
//! those that run tasks of the same job, which have it soon and give on what has arrived. The
//! masters serve what none of them has.

use super::output::Agent;
use cellwright_api::client::internal_calls::{HoldersRequest, PackageHolder};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::State;
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

/// Machines named at most: more than are asked at once, so that some may be gone.
const MAX_HOLDERS: usize = 8;

/// Different askers are told of different machines, so that the first to have it is not asked by
/// all.
pub(super) fn find_holders(state: &State, request: &HoldersRequest) -> Vec<PackageHolder> {
    let job = request.task.and_then(|task| state.tasks().get(task)).map(|row| row.job);
    let tasks = job.and_then(|job| state.jobs().get(job)).map_or(&[][..], |row| &row.tasks);
    let machine_of = |task: &_| state.tasks().get(*task).and_then(|row| row.machine());
    let mut found: BTreeSet<MachineId> = tasks.iter().filter_map(machine_of).collect();
    for (id, row) in state.machines().iter() {
        if row.packages.iter().any(|package| package.digest == request.digest) {
            found.insert(id);
        }
    }
    let found: Vec<MachineId> = found.into_iter().collect();
    let start = xxh3_64(request.machine.as_str().as_bytes()) as usize;
    let rotated = (0..found.len()).map(|at| found[(start % found.len() + at) % found.len()]);
    let up = |id: &MachineId| {
        state
            .machines()
            .get(*id)
            .is_some_and(|row| row.status == MachineStatus::Up && row.spec.name != request.machine)
    };
    let agents = rotated.filter(up).filter_map(|id| Agent::of(state, id).ok());
    let holder = |agent: Agent| PackageHolder { machine: agent.machine, address: agent.address };
    agents.take(MAX_HOLDERS).map(holder).collect()
}
