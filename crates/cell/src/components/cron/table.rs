//! The table of periodic jobs, its readers and its only writers: names, and the bytes of specs that
//! count towards their owner's bound, follow the rows.

use super::{Command, Cron, CronSpec, invariant, slots_fire_once};
use crate::apply::Context;
use crate::bounds::BoundKind;
use crate::bounds::encoded_bytes;
use crate::command::Verdict;
use crate::components::Component;
use crate::id::{CronId, UserId};
use crate::index::Index;
use crate::invariant::{Check, Step};
use crate::name::{JobKey, Name};
use crate::state::State;
use crate::table::Table;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub crons: Table<CronId, Cron>,
    // Derived.
    pub names: Index<(UserId, Name), CronId>,
}

impl Component for Tables {
    type Command = Command;

    fn apply(context: &mut Context<'_>, command: &Command) -> Verdict {
        match command {
            Command::Set { owner, spec, expect } => context.set_cron(owner, spec, *expect),
            Command::Remove { cron, expect } => context.remove_cron(cron, *expect),
            Command::Fire { cron, slot } => context.fire_cron(cron, *slot),
            Command::Run { cron } => context.run_cron(cron),
        }
    }

    fn derive(state: &mut State) {
        let rows = state.components.cron.crons.clone();
        for (id, cron) in rows.iter() {
            state.components.cron.names.insert((cron.user, cron.spec.name.clone()), id);
            state.count_cron(cron.user, &cron.spec, true);
        }
    }

    fn references(state: &State) -> Check {
        invariant::references(state)
    }

    fn check_state(state: &State) -> Check {
        invariant::names(state)
    }

    fn check_step(step: &Step<'_>) -> Check {
        slots_fire_once::check(step)
    }

    fn blocks_user_removal(&self, user: UserId) -> Option<(BoundKind, u64)> {
        let crons = self.crons.iter().filter(|(_, cron)| cron.user == user).count();
        (crons > 0).then_some((BoundKind::Crons, crons as u64))
    }

    fn spec_bytes(&self) -> Vec<(UserId, u64)> {
        self.crons.iter().map(|(_, cron)| (cron.user, invariant::bytes_of(&cron.spec))).collect()
    }
}

/// Reading.
impl State {
    pub fn crons(&self) -> &Table<CronId, Cron> {
        &self.components.cron.crons
    }

    /// A periodic job by its owner and name.
    pub fn cron_named(&self, key: &JobKey) -> Option<CronId> {
        let user = self.user_named(&key.user)?;
        self.components.cron.names.get(&(user, key.job.clone())).copied()
    }

    /// `user/name` of a periodic job, for people.
    pub fn cron_key(&self, cron: CronId) -> Option<JobKey> {
        let row = self.crons().get(cron)?;
        let user = self.users.get(row.user)?.name.clone();
        Some(JobKey { user, job: row.spec.name.clone() })
    }
}

/// Writing.
impl State {
    /// Changes a row. The name and the owner of a row must stay as they are.
    pub(super) fn edit_cron(&mut self, id: CronId, change: impl FnOnce(&mut Cron)) {
        let crons = &mut self.components.cron.crons;
        let Some(before) = crons.get(id).map(|cron| cron.spec.clone()) else { return };
        let Some(row) = crons.get_mut(id) else { return };
        change(row);
        let (user, after) = (row.user, row.spec.clone());
        if before != after {
            self.count_cron(user, &before, false);
            self.count_cron(user, &after, true);
        }
    }

    pub(super) fn insert_cron(&mut self, cron: Cron) -> CronId {
        let key = (cron.user, cron.spec.name.clone());
        self.count_cron(cron.user, &cron.spec.clone(), true);
        let id = self.components.cron.crons.push(cron);
        self.components.cron.names.insert(key, id);
        id
    }

    pub(super) fn drop_cron(&mut self, id: CronId) {
        if let Some(row) = self.components.cron.crons.remove(id) {
            self.components.cron.names.remove(&(row.user, row.spec.name.clone()));
            self.count_cron(row.user, &row.spec, false);
        }
    }

    fn count_cron(&mut self, user: UserId, spec: &CronSpec, add: bool) {
        if let Some(load) = self.user_loads.get_mut(user) {
            let (sum, bytes) = (load.spec_bytes, encoded_bytes(spec));
            load.spec_bytes =
                if add { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) };
        }
    }
}
