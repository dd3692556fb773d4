//! Counting instead of sorting, for queries that group whole tables.
//!
//! SQLite groups by sorting: ten million archived rows take it more than ten seconds. A query that
//! reads a whole table and groups it needs no row of it, only how often each combination of the
//! columns it names occurs. Those are few (users, days, kinds of events), so they are counted in a
//! hash table, and SQLite is given each combination in order, as often as it occurs: the same rows,
//! but for the order within a group, which SQL leaves open.
//!
//! Whether a query is one of these is not read from its text. It is prepared against such tables,
//! and SQLite tells them what it wants ([`Counted::wish`]). One that wants bounds on time, or no
//! order, or columns with too many values is answered in the ordinary way.

use crate::archive::Archive;
use crate::columns::{Decoded, Reader};
use crate::tables::{Table, recent};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Most combinations that are counted: with more, sorting is not much slower.
const MOST: usize = 1 << 16;
/// Most bytes of different values: SQLite's sorter has the disk for more, this has not.
const MOST_BYTES: usize = 4 << 20;
/// Counting may take this share of a query's time; what gives up late has the rest for sorting.
const SHARE: u32 = 3;

/// A value of a combination; the order is SQLite's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Absent,
    Number(i64),
    Text(Vec<u8>),
}

impl Key {
    pub fn value(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Borrowed(match self {
            Key::Absent => ValueRef::Null,
            Key::Number(number) => ValueRef::Integer(*number),
            Key::Text(text) => ValueRef::Text(text),
        })
    }
}

/// What SQLite wants of a table while it prepares a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Nothing,
    /// All rows in the order of these columns, and no other column.
    All(Vec<usize>),
    /// Something that counting does not give.
    Other,
}

/// One table, counted once somebody wants that.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    wish: Mutex<Wish>,
    groups: OnceLock<Groups>,
}

/// Every combination, in order, with how often it occurs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    /// Columns of the table that a combination has, in its order.
    pub columns: Vec<usize>,
    pub found: Vec<(Vec<Key>, u64)>,
}

impl Counted {
    /// Notes what SQLite wants; asked several times, it has to want the same.
    pub fn wants(&self, used: u64, order: &[usize], is_bounded: bool) {
        let rest = (0..63).filter(|at| used >> at & 1 == 1 && !order.contains(at));
        let columns: Vec<usize> = order.iter().copied().chain(rest).collect();
        let new = match is_bounded || order.is_empty() || used >> 63 == 1 {
            true => Wish::Other,
            false => Wish::All(columns),
        };
        let mut wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner);
        *wish = match std::mem::take(&mut *wish) {
            Wish::Nothing => new,
            old if old == new => old,
            _ => Wish::Other,
        };
    }

    fn wish(&self) -> Wish {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn groups(&self) -> Option<&Groups> {
        self.groups.get()
    }
}

/// A table as one statement sees it.
pub(crate) struct Source {
    pub table: &'static Table,
    pub archives: Arc<Vec<Archive>>,
    pub counted: Arc<Counted>,
}

/// Counts what the statement wants. False if that is not what it wants of all of the tables, there
/// are too many combinations, the time is over or a file cannot be read: who answers in the
/// ordinary way says so.
pub(crate) fn count(db: &Connection, sources: &[Source], start: Instant, time: Duration) -> bool {
    let wishes: Vec<Wish> = sources.iter().map(|source| source.counted.wish()).collect();
    let is_other = |wish: &Wish| *wish == Wish::Other;
    if wishes.iter().any(is_other) || wishes.iter().all(|wish| *wish == Wish::Nothing) {
        return false;
    }
    for (source, wish) in sources.iter().zip(wishes) {
        let Wish::All(columns) = wish else { continue };
        let mut counter = Counter::new(columns.len());
        let is_over = || start.elapsed() > time / SHARE;
        if archived(source, &columns, &mut counter, &is_over).is_none()
            || newer(db, source, &columns, &mut counter).is_none()
        {
            return false;
        }
        let groups = Groups { found: counter.in_order(), columns };
        if source.counted.groups.set(groups).is_err() {
            return false;
        }
    }
    true
}

fn archived(
    source: &Source,
    columns: &[usize],
    counter: &mut Counter,
    is_over: &dyn Fn() -> bool,
) -> Option<()> {
    for archive in source.archives.iter() {
        let reader = Reader::new(source.table, File::open(&archive.path).ok()?).ok()?;
        for group in 0..reader.groups() {
            if is_over() {
                return None;
            }
            let decode = |at: &usize| reader.column(group, *at);
            let decoded: Vec<_> = columns.iter().map(decode).collect::<Result<_, _>>().ok()?;
            counter.add(reader.rows(group), &decoded)?;
        }
    }
    Some(())
}

fn newer(db: &Connection, source: &Source, columns: &[usize], counter: &mut Counter) -> Option<()> {
    let names: Vec<&str> = columns.iter().map(|at| source.table.columns[*at].name).collect();
    let (names, from, limit) = (names.join(", "), recent(source.table), MOST + 1);
    let sql = format!("SELECT {names}, count(*) FROM main.{from} GROUP BY {names} LIMIT {limit}");
    let mut select = db.prepare(&sql).ok()?;
    let mut rows = select.query([]).ok()?;
    while let Some(row) = rows.next().ok()? {
        let keys: Vec<Key> = (0..columns.len()).map(|at| key(row, at)).collect::<Option<_>>()?;
        let times: i64 = row.get(columns.len()).ok()?;
        counter.add_times(&keys, u64::try_from(times).ok()?)?;
    }
    Some(())
}

fn key(row: &Row<'_>, at: usize) -> Option<Key> {
    match row.get_ref(at).ok()? {
        ValueRef::Null => Some(Key::Absent),
        ValueRef::Integer(number) => Some(Key::Number(number)),
        ValueRef::Text(text) => Some(Key::Text(text.to_vec())),
        ValueRef::Real(_) | ValueRef::Blob(_) => None,
    }
}

/// Values of one column and their numbers. Rows are in the order of time, so a value is often that
/// of the row before.
#[derive(Default)]
struct Words {
    numbers: HashMap<i64, u32>,
    texts: HashMap<Vec<u8>, u32>,
    absent: Option<u32>,
    keys: Vec<Key>,
    bytes: usize,
    last: u32,
}

impl Words {
    fn text(&mut self, text: &[u8]) -> u32 {
        if matches!(self.keys.get(self.last as usize), Some(Key::Text(last)) if last == text) {
            return self.last;
        }
        self.last = match self.texts.get(text) {
            Some(found) => *found,
            None => {
                let new = self.push(Key::Text(text.to_vec()));
                self.texts.insert(text.to_vec(), new);
                new
            }
        };
        self.last
    }

    fn number(&mut self, number: i64) -> u32 {
        if let Some(found) = self.numbers.get(&number) {
            return *found;
        }
        let new = self.push(Key::Number(number));
        self.numbers.insert(number, new);
        new
    }

    fn absent(&mut self) -> u32 {
        if let Some(found) = self.absent {
            return found;
        }
        let new = self.push(Key::Absent);
        self.absent = Some(new);
        new
    }

    fn push(&mut self, key: Key) -> u32 {
        // Never more than `MOST` of them: the counter gives up before.
        let new = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.bytes += if let Key::Text(text) = &key { text.len() } else { 0 };
        self.keys.push(key);
        new
    }

    fn of_key(&mut self, key: &Key) -> u32 {
        match key {
            Key::Absent => self.absent(),
            Key::Number(number) => self.number(*number),
            Key::Text(text) => self.text(text),
        }
    }

    fn of_column(&mut self, column: Option<&Decoded>, row: usize) -> u32 {
        match column {
            Some(Decoded::Integers(values)) => match values.get(row) {
                Some(Some(number)) => self.number(*number),
                _ => self.absent(),
            },
            Some(Decoded::Texts(values)) => match values.get(row) {
                Some(Some(text)) => self.text(text.data()),
                _ => self.absent(),
            },
            None => self.absent(),
        }
    }
}

/// Combinations of the numbers of values, and how often each occurs.
struct Counter {
    words: Vec<Words>,
    places: HashMap<Vec<u32>, usize>,
    counts: Vec<u64>,
    /// The combination of the row before and its place.
    last: (Vec<u32>, usize),
    row: Vec<u32>,
}

impl Counter {
    fn new(width: usize) -> Counter {
        Counter {
            words: (0..width).map(|_| Words::default()).collect(),
            places: HashMap::new(),
            counts: Vec::new(),
            last: (Vec::new(), 0),
            row: vec![0; width],
        }
    }

    /// Nothing if there are too many combinations.
    fn add(&mut self, rows: usize, columns: &[Option<Decoded>]) -> Option<()> {
        for row in 0..rows {
            for (at, (words, column)) in self.words.iter_mut().zip(columns).enumerate() {
                self.row[at] = words.of_column(column.as_ref(), row);
            }
            self.count(1)?;
        }
        Some(())
    }

    fn add_times(&mut self, keys: &[Key], times: u64) -> Option<()> {
        for (at, (words, key)) in self.words.iter_mut().zip(keys).enumerate() {
            self.row[at] = words.of_key(key);
        }
        self.count(times)
    }

    fn count(&mut self, times: u64) -> Option<()> {
        if self.last.0 != self.row {
            let place = match self.places.get(&self.row) {
                Some(place) => *place,
                None if self.counts.len() == MOST || self.is_too_much() => return None,
                None => {
                    self.counts.push(0);
                    self.places.insert(self.row.clone(), self.counts.len() - 1);
                    self.counts.len() - 1
                }
            };
            self.last.0.clone_from(&self.row);
            self.last.1 = place;
        }
        self.counts[self.last.1] += times;
        Some(())
    }

    fn is_too_much(&self) -> bool {
        self.words.iter().map(|words| words.bytes).sum::<usize>() > MOST_BYTES
    }

    fn in_order(self) -> Vec<(Vec<Key>, u64)> {
        let key = |(words, at): (&Words, &u32)| words.keys[*at as usize].clone();
        let whole = |row: &Vec<u32>| self.words.iter().zip(row).map(key).collect::<Vec<Key>>();
        let mut found: Vec<(Vec<Key>, u64)> =
            self.places.iter().map(|(row, place)| (whole(row), self.counts[*place])).collect();
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_gives_up_before_it_holds_too_much() {
        let mut counter = Counter::new(1);
        let many = (0..).take_while(|nth| counter.add_times(&[Key::Number(*nth)], 1).is_some());
        assert_eq!(many.count(), MOST);
        let mut counter = Counter::new(1);
        let long = |nth: i64| Key::Text(format!("{nth:050000}").into_bytes());
        let many = (0..).take_while(|nth| counter.add_times(&[long(*nth)], 1).is_some()).count();
        assert!((80..90).contains(&many), "{many} of 50 kB each");
    }
}
