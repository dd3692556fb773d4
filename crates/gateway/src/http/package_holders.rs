//! Package holders: the machines from which an agent may fetch a package. These are the machines
//! that report having it, and those that run tasks of the same job, which will have it soon and
//! serve the chunks that have arrived. The masters serve what no machine has.

use super::output::Agent;
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::state::State;
use cellwright_messages::{HoldersRequest, PackageHolder};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

/// Limit of the machines returned: more than are used at once, so that some may be unavailable.
const MAX_HOLDERS: usize = 8;

/// Different agents get different machines, so that the first holder is not used by all.
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
