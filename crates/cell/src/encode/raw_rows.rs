//! A state as rows alone, for display and repair by hand. Nothing about [`Rows`] is known except
//! that they are rows: they become a state again only through every check of the loader.
//!
//! Rejected: a `State` that was not checked. All code that takes a state relies on its sums and
//! references, and would believe wrong ones.

use super::{LoadError, checked};
use crate::bounds::Bounds;
use crate::command::Actor;
use crate::replay_windows::{ReplayWindow, ReplayWindows};
use crate::state::State;
use crate::table::{Key, Table};
use crate::tables::each_table;
use crate::time::Time;

macro_rules! rows {
    ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
        at $($place:ident).+;)*) => {
        /// The part of a state that is not derived. In each list the position is the id, and an
        /// absence is a row that was removed.
        #[derive(Clone, Debug, Default)]
        pub struct Rows {
            pub level: u32,
            pub now: Time,
            pub applied: u64,
            pub attempt_floor: u32,
            pub bounds: Bounds,
            $(pub $field: Vec<Option<$row>>,)*
            /// By actor and the actor's client, in that order.
            pub windows: Vec<((Actor, u64), ReplayWindow)>,
        }

        impl Rows {
            fn of_tables(state: &State) -> Rows {
                Rows { $($field: list(&state.$($place).+),)* ..Rows::default() }
            }

            fn into_tables(self) -> State {
                let mut state = State::default();
                $(state.$($place).+ = table(self.$field);)*
                state
            }
        }
    };
}
each_table!(rows);

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
            windows,
            ..Rows::of_tables(state)
        }
    }

    /// Makes a state of these rows, with every sum rebuilt and every invariant checked.
    ///
    /// # Errors
    /// The first row that is wrong, or the first invariant that the rows break.
    pub fn into_state(mut self) -> Result<State, LoadError> {
        let mut windows = ReplayWindows::default();
        for (key, window) in std::mem::take(&mut self.windows) {
            if windows.get(&key).is_some() {
                let row = format!("replay window of client {}", key.1);
                return Err(LoadError::BadRow { row, why: "it is there twice".into() });
            }
            windows.insert(key, window);
        }
        let (level, now, applied) = (self.level, self.now, self.applied);
        let (attempt_floor, bounds) = (self.attempt_floor, self.bounds);
        let tables = self.into_tables();
        checked(State { level, now, applied, attempt_floor, bounds, windows, ..tables })
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
