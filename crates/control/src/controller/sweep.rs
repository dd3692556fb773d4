//! Sweeps through a large table a few rows at a time. A cursor goes round and round; rows worth
//! watching are put on a list that is checked every time, so that a drain that has begun is
//! followed closely while a hundred thousand quiet rows cost next to nothing.

use cellwright_cell::table::{Key, Table};
use std::collections::BTreeSet;
use std::ops::Bound;

/// A position in a table, by slot, wrapping at its end.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    next: usize,
}

impl Cursor {
    /// The next `rows` occupied slots, and whether the end of the table was reached. No pass goes
    /// over the end, so a caller can tell one round from the next.
    pub fn advance<'a, K: Key, V: Clone>(
        &mut self,
        table: &'a Table<K, V>,
        rows: usize,
    ) -> (impl Iterator<Item = (K, &'a V)> + use<'a, K, V>, bool) {
        let from = if self.next < table.slots() { self.next } else { 0 };
        let end = table.slots().min(from.saturating_add(rows));
        self.next = end;
        let found = (from..end).map(K::from_slot).filter_map(|key| Some((key, table.get(key)?)));
        (found, end == table.slots())
    }
}

/// Rows to watch, and how far the search for more has come.
#[derive(Clone, Debug)]
pub struct Sweep<K> {
    cursor: Cursor,
    watched: BTreeSet<K>,
    /// The key that was served last.
    last_served: Option<K>,
}

impl<K> Default for Sweep<K> {
    fn default() -> Self {
        Sweep { cursor: Cursor::default(), watched: BTreeSet::new(), last_served: None }
    }
}

impl<K: Key + Ord> Sweep<K> {
    /// Scans the next `rows` of the table, and checks again what is watched already.
    pub fn scan<V: Clone>(
        &mut self,
        table: &Table<K, V>,
        rows: usize,
        worth_watching: impl Fn(&V) -> bool,
    ) {
        self.scan_by_key(table, rows, |_, row| worth_watching(row));
    }

    /// The same where the row alone does not say whether it is worth watching.
    pub fn scan_by_key<V: Clone>(
        &mut self,
        table: &Table<K, V>,
        rows: usize,
        worth_watching: impl Fn(K, &V) -> bool,
    ) {
        self.watched.retain(|key| table.get(*key).is_some_and(|row| worth_watching(*key, row)));
        let (found, _) = self.cursor.advance(table, rows);
        let worth = found.filter(|(key, row)| worth_watching(*key, row)).map(|(key, _)| key);
        self.watched.extend(worth);
    }

    pub fn watched(&self) -> &BTreeSet<K> {
        &self.watched
    }

    /// The watched keys, beginning after the one served last: a key that did not get its turn in
    /// one step is first in the next.
    pub fn in_turn(&self) -> Vec<K> {
        let after = self.last_served.map_or(Bound::Unbounded, Bound::Excluded);
        let late = self.watched.range((after, Bound::Unbounded));
        let up_to = self.last_served.map_or(Bound::Unbounded, Bound::Included);
        let early = self.last_served.map(|_| self.watched.range((Bound::Unbounded, up_to)));
        late.chain(early.into_iter().flatten()).copied().collect()
    }

    pub fn last_served(&mut self, key: K) {
        self.last_served = Some(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::JobId;

    fn table(values: impl IntoIterator<Item = u32>) -> Table<JobId, u32> {
        let mut table = Table::default();
        values.into_iter().for_each(|value| {
            table.push(value);
        });
        table
    }

    #[test]
    fn a_cursor_goes_round_in_pieces_and_says_where_a_round_ends() {
        let mut rows = table(0..5);
        rows.remove(JobId(3));
        let mut cursor = Cursor::default();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (found, end) = cursor.advance(&rows, 2);
            seen.push((found.map(|(_, value)| *value).collect::<Vec<_>>(), end));
        }
        let want = [(vec![0, 1], false), (vec![2], false), (vec![4], true), (vec![0, 1], false)];
        assert_eq!(seen, want);
        let empty: Table<JobId, u32> = Table::default();
        let (found, end) = cursor.advance(&empty, 2);
        assert_eq!((found.count(), end), (0, true));
    }

    #[test]
    fn what_was_found_is_watched_until_it_is_no_longer_worth_it() {
        let mut rows = table([0, 7, 0, 0, 7]);
        let mut sweep = Sweep::default();
        let mut view = |rows: &Table<JobId, u32>| {
            sweep.scan(rows, 2, |value| *value == 7);
            sweep.watched().iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(view(&rows), [1]);
        assert_eq!(view(&rows), [1]);
        assert_eq!(view(&rows), [1, 4]);
        *rows.get_mut(JobId(1)).unwrap() = 0;
        rows.remove(JobId(4));
        assert!(view(&rows).is_empty());
    }

    #[test]
    fn who_was_served_last_is_last_in_turn() {
        let mut sweep = Sweep::default();
        sweep.scan(&table([7; 4]), 10, |_| true);
        let turns =
            |sweep: &Sweep<JobId>| sweep.in_turn().into_iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(turns(&sweep), [0, 1, 2, 3]);
        sweep.last_served(JobId(1));
        assert_eq!(turns(&sweep), [2, 3, 0, 1]);
        sweep.last_served(JobId(3));
        assert_eq!(turns(&sweep), [0, 1, 2, 3]);
    }
}
