//! The table of job versions, and its only writers: the versions of a job in their order, the bytes
//! of the specs that are kept here, and vacant rows follow the rows.

use super::{Command, JobVersion, JobVersionId, RolledBack, invariant};
use crate::apply::Context;
use crate::bounds::encoded_bytes;
use crate::command::Verdict;
use crate::components::Component;
use crate::id::{JobId, UserId};
use crate::index::Index;
use crate::invariant::Check;
use crate::sorted_map::SortedMap;
use crate::spec::JobSpec;
use crate::state::State;
use crate::table::{Key, Table};
use crate::tables::{RowRef, TableName};
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub versions: Table<JobVersionId, JobVersion>,
    // Derived.
    /// By job, oldest version first.
    pub by_job: SortedMap<JobId, Arc<Vec<JobVersionId>>>,
    /// Encoded bytes of the specs kept here, by the owner of their jobs; none is absent.
    pub spec_bytes: Index<UserId, u64>,
    /// Vacant rows; the smallest is used next, so that replicas agree after a reload.
    pub vacant: SortedMap<JobVersionId, ()>,
}

impl Component for Tables {
    type Command = Command;

    fn apply(context: &mut Context<'_>, command: &Command) -> Verdict {
        match command {
            Command::Revert { job, version, expect } => context.revert_job(job, *version, *expect),
            Command::Promote { job, expect } => context.promote_update(job, *expect),
            Command::Finish { job, expect } => context.finish_update(job, *expect),
        }
    }

    fn derive(state: &mut State) {
        let rows = state.components.rollout.versions.clone();
        let mut in_order: Vec<(JobId, u32, JobVersionId)> =
            rows.iter().map(|(id, row)| (row.job, row.version, id)).collect();
        in_order.sort_unstable();
        for (_, _, id) in in_order {
            state.count_version(id, true);
        }
        for id in (0..rows.slots()).map(JobVersionId::from_slot) {
            if rows.get(id).is_none() {
                state.components.rollout.vacant.insert(id, ());
            }
        }
    }

    fn references(state: &State) -> Check {
        invariant::references(state)
    }

    fn check_state(state: &State) -> Check {
        invariant::versions_on_record(state)?;
        invariant::sums(state)
    }

    fn removed_with(&self, row: RowRef) -> Option<RowRef> {
        self.reported_with(row)
    }

    fn reported_with(&self, row: RowRef) -> Option<RowRef> {
        let is_version = row.table == TableName::JobVersions;
        let version = is_version.then(|| self.versions.get(JobVersionId(row.slot)))??;
        Some(version.job.into())
    }
}

impl Tables {
    /// The rows of a job, oldest version first.
    pub fn of_job(&self, job: JobId) -> &[JobVersionId] {
        self.by_job.get(&job).map_or(&[], |ids| ids)
    }

    pub fn id_of(&self, job: JobId, version: u32) -> Option<JobVersionId> {
        let is_it =
            |id: &&JobVersionId| self.versions.get(**id).is_some_and(|row| row.version == version);
        self.of_job(job).iter().rev().find(is_it).copied()
    }

    /// Bytes of specs kept here for jobs of a user.
    pub fn bytes_of(&self, user: UserId) -> u64 {
        self.spec_bytes.get(&user).copied().unwrap_or(0)
    }
}

/// Reading.
impl State {
    pub fn versions(&self) -> &Table<JobVersionId, JobVersion> {
        &self.components.rollout.versions
    }
}

/// Writing.
impl State {
    /// Adds a version, which is newer than all others of its job.
    pub(super) fn insert_version(&mut self, row: JobVersion) {
        let tables = &mut self.components.rollout;
        let id = match tables.vacant.first().copied() {
            Some(id) => {
                tables.vacant.remove(&id);
                tables.versions.refill(id, row);
                id
            }
            None => tables.versions.push(row),
        };
        self.count_version(id, true);
    }

    pub(super) fn remove_version(&mut self, id: JobVersionId) {
        self.count_version(id, false);
        let tables = &mut self.components.rollout;
        if tables.versions.remove(id).is_some() {
            tables.vacant.insert(id, ());
        }
    }

    /// The job drops the spec of this version, which is kept here from now on.
    pub(super) fn keep_spec(&mut self, id: JobVersionId, spec: Arc<JobSpec>) {
        self.count_version(id, false);
        if let Some(row) = self.components.rollout.versions.get_mut(id) {
            row.spec = Some(spec);
        }
        self.count_version(id, true);
    }

    pub(crate) fn mark_rolled_back(&mut self, job: JobId, version: u32, mark: RolledBack) {
        let tables = &mut self.components.rollout;
        let Some(id) = tables.id_of(job, version) else { return };
        if let Some(row) = tables.versions.get_mut(id) {
            row.rolled_back = Some(mark);
        }
    }

    /// Removes the versions of a job that is purged. Its row is still there.
    pub(crate) fn forget_versions(&mut self, job: JobId) {
        for id in self.components.rollout.of_job(job).to_vec() {
            self.remove_version(id);
        }
    }

    /// Adds a row to what is derived, or takes it out.
    fn count_version(&mut self, id: JobVersionId, add: bool) {
        let Some(row) = self.components.rollout.versions.get(id).cloned() else { return };
        let tables = &mut self.components.rollout;
        let mut ids = tables.by_job.get(&row.job).cloned().unwrap_or_default();
        let versions = &tables.versions;
        let newer =
            |other: &JobVersionId| versions.get(*other).is_some_and(|o| o.version > row.version);
        let list = Arc::make_mut(&mut ids);
        list.retain(|other| *other != id);
        if add {
            let at = list.iter().position(newer).unwrap_or(list.len());
            list.insert(at, id);
        }
        if list.is_empty() {
            tables.by_job.remove(&row.job);
        } else {
            tables.by_job.insert(row.job, ids);
        }
        let (Some(spec), Some(job)) = (&row.spec, self.jobs.get(row.job)) else { return };
        let (held, bytes) = (tables.bytes_of(job.user), encoded_bytes(&**spec));
        match if add { held.saturating_add(bytes) } else { held.saturating_sub(bytes) } {
            0 => tables.spec_bytes.remove(&job.user),
            held => tables.spec_bytes.insert(job.user, held),
        };
    }
}
