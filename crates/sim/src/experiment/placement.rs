//! A hash of all placements: two runs that put every task onto the same machine have the same hash,
//! whatever order they did it in.

use cellwright_cell::State;
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// Hash over all pairs of task name and machine name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementHash(pub u64);

impl fmt::Display for PlacementHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl serde::Serialize for PlacementHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The sum of the pairs' hashes: a sum does not depend on the order.
#[must_use]
pub fn placement_hash(state: &State) -> PlacementHash {
    let mut sum = 0_u64;
    for (id, task) in state.tasks().iter().filter(|(_, task)| task.state.holds_resources()) {
        let Some(machine) = task.machine().and_then(|m| state.machines().get(m)) else { continue };
        // Names contain no blanks, so a pair has one spelling.
        let pair = format!("{} {}", state.task_name(id), machine.spec.name);
        sum = sum.wrapping_add(xxh3_64(pair.as_bytes()));
    }
    PlacementHash(sum)
}
