//! Resolves names of machines and tasks for explanations. The snapshot has rows, people know names;
//! the caller that requests an explanation provides the resolver.

use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::State;
use cellwright_cell::explanation::{MachineRef, TaskRef};
use cellwright_cell::id::{MachineId, TaskId};

/// Resolves names.
pub trait NameResolver {
    fn machine(&self, id: MachineId) -> String;
    /// `user/job/index`, as far as it is known.
    fn task(&self, id: TaskId) -> String;
}

/// The names in the cell's own state.
impl NameResolver for State {
    fn machine(&self, id: MachineId) -> String {
        let row = self.machines().get(id);
        row.map_or_else(|| format!("machine#{}", id.0), |row| row.spec.name.to_string())
    }

    fn task(&self, id: TaskId) -> String {
        self.task_name(id)
    }
}

/// The names that a snapshot alone can give: machines by number, tasks by job and index.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotNames<'a>(pub &'a ClusterSnapshot);

impl NameResolver for SnapshotNames<'_> {
    fn machine(&self, id: MachineId) -> String {
        format!("machine#{}", id.0)
    }

    fn task(&self, id: TaskId) -> String {
        let named = self.0.identity_of(id).and_then(|(job, index)| {
            let spec = self.0.job_spec(job)?;
            Some(format!("{}/{index}", spec.name))
        });
        named.unwrap_or_else(|| format!("task#{}", id.0))
    }
}

pub(crate) fn machine_ref(names: &dyn NameResolver, id: MachineId) -> MachineRef {
    MachineRef { id, name: names.machine(id) }
}

pub(crate) fn task_ref(names: &dyn NameResolver, id: TaskId) -> TaskRef {
    TaskRef { id, name: names.task(id) }
}
