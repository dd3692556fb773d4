//! How often each combination of the values of some columns occurs in a table.
//!
//! A query that reads a whole table and groups it needs no row of it, only these counts. The
//! combinations are few (users, days, kinds of events), so they are counted in a hash table, where
//! SQLite would sort all rows. With too many of them counting gives up (`crate::by_counting`).

use crate::archive::Archive;
use crate::columns::{Decoded, Reader};
use crate::tables::{Table, recent};
use rusqlite::types::{Null, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params_from_iter};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

/// Most combinations that are counted: with more, sorting is not much slower.
const MOST: usize = 1 << 16;
/// Most bytes of different values: SQLite's sorter has the disk for more, this has not.
const MOST_BYTES: usize = 4 << 20;
/// Rows of SQLite between two looks at the clock.
const LOOK: usize = 4096;

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

/// What SQLite wants of a table, said while it prepares a statement.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<Wish>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub is_asked: bool,
    /// Bit of each column that is read; the last stands for all beyond.
    pub columns: u64,
    /// Columns by which it would like the rows to be ordered.
    pub orders: Vec<Vec<usize>>,
    /// There are bounds on time, by which most files can be left alone.
    pub is_bounded: bool,
}

impl Asked {
    /// Notes what SQLite wants; it asks several times.
    pub fn wants(&self, used: u64, order: &[usize], is_bounded: bool) {
        let mut wish = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wish.is_asked = true;
        wish.columns |= used;
        wish.is_bounded |= is_bounded;
        if !order.is_empty() && !wish.orders.iter().any(|known| known == order) {
            wish.orders.push(order.to_owned());
        }
    }

    pub fn wish(&self) -> Wish {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A table as one statement sees it.
pub(crate) struct Source {
    pub table: &'static Table,
    pub archives: Arc<Vec<Archive>>,
    pub asked: Arc<Asked>,
}

/// What is counted.
pub(crate) struct Task<'a> {
    pub source: &'a Source,
    /// Columns of the table that a combination has.
    pub columns: Vec<usize>,
    /// Times that are as far apart count as one, if that is more than nothing.
    pub grain: i64,
}

/// Every combination and how often it occurs, in order. Nothing if there are too many, the time
/// is over or a file cannot be read: who answers in the ordinary way says so.
pub(crate) fn count(
    db: &Connection,
    task: &Task<'_>,
    is_over: &dyn Fn() -> bool,
) -> Option<Vec<(Vec<Key>, u64)>> {
    let meaning = |at: &usize| match task.source.table.columns[*at].name {
        "time" if task.grain > 1 => Meaning::Time(task.grain),
        "kind" => Meaning::Kind,
        _ => Meaning::Plain,
    };
    let mut counter = Counter::new(task.columns.iter().map(meaning));
    archived(task, &mut counter, is_over)?;
    newer(db, task, &mut counter, is_over)?;
    Some(counter.in_order())
}

fn archived(task: &Task<'_>, counter: &mut Counter, is_over: &dyn Fn() -> bool) -> Option<()> {
    for archive in task.source.archives.iter() {
        let reader = Reader::new(task.source.table, File::open(&archive.path).ok()?).ok()?;
        for group in 0..reader.groups() {
            if is_over() {
                return None;
            }
            let decode = |at: &usize| reader.column(group, *at);
            let decoded: Vec<_> = task.columns.iter().map(decode).collect::<Result<_, _>>().ok()?;
            counter.add(reader.rows(group), &decoded)?;
        }
    }
    Some(())
}

/// The recent rows: grouped by SQLite where an index has them in order, and else one by one.
fn newer(
    db: &Connection,
    task: &Task<'_>,
    counter: &mut Counter,
    is_over: &dyn Fn() -> bool,
) -> Option<()> {
    let table = task.source.table;
    let names: Vec<&str> = task.columns.iter().map(|at| table.columns[*at].name).collect();
    let (names, from) = (names.join(", "), recent(table));
    let mut sql = format!("SELECT {names}, count(*) FROM main.{from} GROUP BY {names}");
    if plan(db, &sql)?.iter().any(|step| step.contains("TEMP B-TREE")) {
        sql = format!("SELECT {names}, 1 FROM main.{from}");
    }
    let mut select = db.prepare(&sql).ok()?;
    let mut rows = select.query([]).ok()?;
    let mut seen = 0_usize;
    while let Some(row) = rows.next().ok()? {
        seen += 1;
        if seen.is_multiple_of(LOOK) && is_over() {
            return None;
        }
        counter.add_row(row)?;
    }
    Some(())
}

/// How SQLite would go about a statement, step by step.
pub(crate) fn plan(db: &Connection, sql: &str) -> Option<Vec<String>> {
    let mut explain = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).ok()?;
    let nothing = vec![Null; explain.parameter_count()];
    let steps = explain.query_map(params_from_iter(nothing), |row| row.get("detail")).ok()?;
    steps.collect::<rusqlite::Result<_>>().ok()
}

/// How a column's values are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Meaning {
    #[default]
    Plain,
    /// Times, of which so many milliseconds are alike.
    Time(i64),
    /// A word that was once another ([`Table::shown`]).
    Kind,
}

/// Values of one column and their numbers. Rows are in the order of time, so a value is often that
/// of the row before.
#[derive(Default)]
struct Words {
    meaning: Meaning,
    numbers: HashMap<i64, u32>,
    texts: HashMap<Vec<u8>, u32>,
    absent: Option<u32>,
    keys: Vec<Key>,
    bytes: usize,
    last: u32,
}

impl Words {
    fn text(&mut self, text: &[u8]) -> u32 {
        let text = match (self.meaning, text) {
            (Meaning::Kind, b"blob") => b"package",
            _ => text,
        };
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

    /// Nothing for a time before 1970: which of those are alike is not known.
    fn number(&mut self, number: i64) -> Option<u32> {
        let number = match self.meaning {
            Meaning::Time(_) if number < 0 => return None,
            Meaning::Time(grain) => number / grain * grain,
            Meaning::Plain | Meaning::Kind => number,
        };
        if matches!(self.keys.get(self.last as usize), Some(Key::Number(last)) if *last == number) {
            return Some(self.last);
        }
        self.last = match self.numbers.get(&number) {
            Some(found) => *found,
            None => {
                let new = self.push(Key::Number(number));
                self.numbers.insert(number, new);
                new
            }
        };
        Some(self.last)
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

    /// Nothing for what no table of ours holds.
    fn of_value(&mut self, value: ValueRef<'_>) -> Option<u32> {
        match value {
            ValueRef::Null => Some(self.absent()),
            ValueRef::Integer(number) => self.number(number),
            ValueRef::Text(text) => Some(self.text(text)),
            ValueRef::Real(_) | ValueRef::Blob(_) => None,
        }
    }

    fn of_column(&mut self, column: Option<&Decoded>, row: usize) -> Option<u32> {
        match column {
            Some(Decoded::Integers(values)) => match values.get(row) {
                Some(Some(number)) => self.number(*number),
                _ => Some(self.absent()),
            },
            Some(Decoded::Texts(values)) => Some(match values.get(row) {
                Some(Some(text)) => self.text(text.data()),
                _ => self.absent(),
            }),
            None => Some(self.absent()),
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
    fn new(columns: impl Iterator<Item = Meaning>) -> Counter {
        let words: Vec<Words> =
            columns.map(|meaning| Words { meaning, ..Words::default() }).collect();
        Counter {
            row: vec![0; words.len()],
            words,
            places: HashMap::new(),
            counts: Vec::new(),
            last: (Vec::new(), 0),
        }
    }

    /// Nothing if there are too many combinations.
    fn add(&mut self, rows: usize, columns: &[Option<Decoded>]) -> Option<()> {
        for row in 0..rows {
            for (at, (words, column)) in self.words.iter_mut().zip(columns).enumerate() {
                self.row[at] = words.of_column(column.as_ref(), row)?;
            }
            self.count(1)?;
        }
        Some(())
    }

    /// A row of SQLite: the values, and how often they occur.
    fn add_row(&mut self, row: &Row<'_>) -> Option<()> {
        for (at, words) in self.words.iter_mut().enumerate() {
            self.row[at] = words.of_value(row.get_ref(at).ok()?)?;
        }
        let times: i64 = row.get(self.words.len()).ok()?;
        self.count(u64::try_from(times).ok()?)
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

    fn adds(counter: &mut Counter, value: ValueRef<'_>) -> bool {
        let number = counter.words[0].of_value(value);
        number.is_some_and(|number| {
            counter.row[0] = number;
            counter.count(1).is_some()
        })
    }

    #[test]
    fn a_counter_gives_up_before_it_holds_too_much() {
        let mut counter = Counter::new([Meaning::Plain].into_iter());
        let many = (0..).take_while(|nth| adds(&mut counter, ValueRef::Integer(*nth)));
        assert_eq!(many.count(), MOST);
        let mut counter = Counter::new([Meaning::Plain].into_iter());
        let long = |nth: i64| format!("{nth:050000}").into_bytes();
        let adds_long = |nth: &i64| adds(&mut counter, ValueRef::Text(&long(*nth)));
        let many = (0..).take_while(adds_long).count();
        assert!((80..90).contains(&many), "{many} of 50 kB each");
    }

    #[test]
    fn times_before_1970_are_not_counted_together() {
        let mut counter = Counter::new([Meaning::Time(1000)].into_iter());
        assert!((0..2000).all(|at| adds(&mut counter, ValueRef::Integer(at))));
        assert!(!adds(&mut counter, ValueRef::Integer(-1)));
        let expected = [(vec![Key::Number(0)], 1000), (vec![Key::Number(1000)], 1000)];
        assert_eq!(counter.in_order(), expected);
    }
}
