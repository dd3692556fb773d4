//! Rebuilds the derived sums of a freshly loaded state from its rows. The rows' references have
//! been checked by the time this runs. Adding rows in the order of their ids makes the result
//! canonical; in particular a name shared by several jobs ends up with the newest.

use crate::components;
use crate::edit::retained_disk;
use crate::id::TaskId;
use crate::load::{JobLoad, MachineLoad, UserLoad};
use crate::state::State;
use crate::table::{Key, Table};
use std::sync::Arc;

pub(super) fn rebuild_sums(state: &mut State) {
    users(state);
    components::derive(state);
    names(state);
    machines(state);
    jobs(state);
    tasks(state);
}

/// A load for each row, an absence for each vacant slot: loads are indexed by the row's id.
fn loads_for_rows<K: Key, V: Clone, L: Clone>(
    rows: &Table<K, V>,
    mut load_of: impl FnMut(K, &V) -> L,
) -> Table<K, L> {
    let mut loads = Table::default();
    for slot in 0..rows.slots() {
        let key = K::from_slot(slot);
        match rows.get(key) {
            Some(row) => {
                loads.push(load_of(key, row));
            }
            None => loads.push_vacant(),
        }
    }
    loads
}

fn users(state: &mut State) {
    let State { users, user_names, .. } = state;
    state.user_loads = loads_for_rows(users, |id, user| {
        user_names.insert(user.name.clone(), id);
        UserLoad::default()
    });
}

fn names(state: &mut State) {
    let State { tokens, token_names, blobs, blob_names, .. } = state;
    for (id, token) in tokens.iter() {
        token_names.insert(token.id.clone(), id);
    }
    for (id, blob) in blobs.iter() {
        blob_names.insert(blob.digest.clone(), id);
    }
}

fn machines(state: &mut State) {
    let State { machines, machine_names, capacity, .. } = state;
    state.machine_loads = loads_for_rows(machines, |id, machine| {
        machine_names.insert(machine.spec.name.clone(), id);
        *capacity = capacity.plus(machine.spec.capacity);
        MachineLoad { reserved: retained_disk(machine), ..MachineLoad::default() }
    });
}

fn jobs(state: &mut State) {
    let rows = state.jobs.clone();
    state.job_loads = loads_for_rows(&rows, |_, _| JobLoad::default());
    for (id, job) in rows.iter() {
        state.job_names.insert((job.user, job.name.clone()), id);
        state.count_job(id, job, true);
    }
}

fn tasks(state: &mut State) {
    let rows = state.tasks.clone();
    let vacant = (0..rows.slots()).map(TaskId::from_slot).filter(|id| rows.get(*id).is_none());
    state.vacant_tasks = Arc::new(vacant.collect());
    for (id, task) in rows.iter() {
        state.count_task(id, task, true);
    }
}
