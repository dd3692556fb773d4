//! A state as rows alone, for whoever shows or mends it by hand. Nothing about [`Rows`] is known
//! except that they are rows: they become a state again only through every check of the loader.
//!
//! Rejected: handing out a `State` that was not checked. Everything that takes a state relies on
//! its sums and references, and a type that may lie about them would be believed.

use super::{LoadError, checked};
use crate::blob::Blob;
use crate::bounds::Bounds;
use crate::command::Actor;
use crate::credential::AccessToken;
use crate::cron::Cron;
use crate::ephemeral::ResourceRow;
use crate::job::Job;
use crate::machine::Machine;
use crate::quota::User;
use crate::replay::{Window, Windows};
use crate::state::State;
use crate::table::{Key, Table};
use crate::task::Task;
use crate::time::Time;

/// What a state holds and does not derive. In each list the position is the id, and an absence is
/// a row that was removed.
#[derive(Clone, Debug)]
pub struct Rows {
    pub level: u32,
    pub now: Time,
    pub applied: u64,
    pub attempt_floor: u32,
    pub bounds: Bounds,
    pub users: Vec<Option<User>>,
    pub machines: Vec<Option<Machine>>,
    pub resources: Vec<Option<ResourceRow>>,
    pub jobs: Vec<Option<Job>>,
    pub tasks: Vec<Option<Task>>,
    pub crons: Vec<Option<Cron>>,
    pub tokens: Vec<Option<AccessToken>>,
    pub blobs: Vec<Option<Blob>>,
    /// By who asked and which of their clients, in that order.
    pub windows: Vec<((Actor, u64), Window)>,
}

impl Rows {
    #[must_use]
    pub fn of(state: &State) -> Rows {
        let mut windows: Vec<_> =
            state.windows.iter().map(|(key, window)| (key.clone(), window.clone())).collect();
        windows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Rows {
            level: state.level,
            now: state.now,
            applied: state.applied,
            attempt_floor: state.attempt_floor,
            bounds: state.bounds,
            users: list(&state.users),
            machines: list(&state.machines),
            resources: list(&state.resources),
            jobs: list(&state.jobs),
            tasks: list(&state.tasks),
            crons: list(&state.crons),
            tokens: list(&state.tokens),
            blobs: list(&state.blobs),
            windows,
        }
    }

    /// The state that these rows are, with every sum rebuilt and every invariant checked.
    ///
    /// # Errors
    /// The first row that is wrong, or the first invariant that they break.
    pub fn into_state(self) -> Result<State, LoadError> {
        let mut windows = Windows::default();
        for (key, window) in self.windows {
            if windows.get(&key).is_some() {
                let row = format!("replay window of client {}", key.1);
                return Err(LoadError::BadRow { row, why: "it is there twice".into() });
            }
            windows.insert(key, window);
        }
        checked(State {
            level: self.level,
            now: self.now,
            applied: self.applied,
            attempt_floor: self.attempt_floor,
            bounds: self.bounds,
            users: table(self.users),
            machines: table(self.machines),
            resources: table(self.resources),
            jobs: table(self.jobs),
            tasks: table(self.tasks),
            crons: table(self.crons),
            tokens: table(self.tokens),
            blobs: table(self.blobs),
            windows,
            ..State::default()
        })
    }
}

fn list<K: Key, V: Clone>(table: &Table<K, V>) -> Vec<Option<V>> {
    (0..table.slots()).map(|slot| table.get(K::from_slot(slot)).cloned()).collect()
}

fn table<K: Key, V: Clone>(rows: Vec<Option<V>>) -> Table<K, V> {
    let mut table = Table::default();
    for row in rows {
        match row {
            Some(row) => {
                table.push(row);
            }
            None => table.push_vacant(),
        }
    }
    table
}
