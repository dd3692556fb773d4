//! Reads repaired text back into a state: each line by itself, then the tables with their ids, then
//! all checks of the checkpoint loader.

use super::fields::{check_round_trip, parse};
use super::{End, Head, Line, LogPosition, Slots, TableName, VERSION, WindowRow};
use crate::command::Actor;
use crate::encode::{LoadError, Rows};
use crate::replay_windows::ReplayWindow;
use crate::state::State;
use crate::tables::each_table;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why text is not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("the text is empty; allowed: what `cell checkpoint export` writes")]
    Empty,
    #[error(
        "the text ends before its end mark: it was cut; allowed: all that `cell checkpoint export` \
         writes, up to the last line, {{\"end\":true}}"
    )]
    Cut,
    #[error("line {line}: {field}: {why}")]
    Line { line: usize, field: String, why: String },
    #[error("{}{why}", line_prefix(.line))]
    State {
        /// The line of the row that the error names.
        line: Option<usize>,
        why: LoadError,
    },
}

fn line_prefix(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("line {line}: "))
}

/// Most ids that may be without a line, since rows are removed by hand. Each takes memory, and a
/// typo in the number of slots must not exhaust it.
const MAX_DROPPED: u64 = 1_000_000;

/// A state read from text, and what is known of the repair.
pub struct RepairedState {
    pub position: LogPosition,
    pub state: State,
    /// Rows whose lines were removed. Windows have no ids: which of them were removed is not known.
    pub dropped: Vec<(TableName, u32)>,
    /// New tasks begin above the attempts of removed tasks.
    pub attempt_floor_raised_to: Option<u32>,
}

/// Reads the state that this text describes.
///
/// # Errors
/// The first line that is wrong, or the first invariant that the rows break.
pub fn read(text: &str) -> Result<RepairedState, TextError> {
    let mut lines = (1_usize..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (number, line) = lines.next().ok_or(TextError::Empty)?;
    let head: Head = parse(number, line)?;
    check_round_trip(number, line, None, &head)?;
    check_head(number, &head)?;
    let mut found = ParsedTables::default();
    let mut end = None;
    for (number, line) in lines {
        if let Some(end) = end {
            let why = format!("is after the end mark in line {end}; allowed: nothing");
            return Err(TextError::Line { line: number, field: "the line".into(), why });
        }
        if is_end_line(line) {
            end = Some(number)
        } else {
            found.take(number, line, &head.slots)?
        }
    }
    end.ok_or(TextError::Cut)?;
    found.check_slots(number, &head.slots)?;
    let position = LogPosition { index: head.index, term: head.term };
    let (rows, dropped, numbers) = found.into_rows_and_lines(&head);
    let raised = Some(rows.attempt_floor).filter(|floor| *floor > head.attempt_floor);
    let wrong_name_error = wrong_name(&rows, &numbers);
    let state = rows.into_state().map_err(|why| {
        let line = line_of(&why, &numbers);
        TextError::State { line, why }
    })?;
    // Only now: if rows contradict each other, that error is more useful than a wrong name.
    wrong_name_error.map_or(Ok(()), Err)?;
    Ok(RepairedState { position, state, dropped, attempt_floor_raised_to: raised })
}

fn is_end_line(line: &str) -> bool {
    serde_json::from_str(line).is_ok_and(|End { end }| end)
}

fn check_head(line: usize, head: &Head) -> Result<(), TextError> {
    let wrong = |field: &str, why: String| TextError::Line { line, field: field.into(), why };
    if head.checkpoint != VERSION {
        let why = format!("is {}; allowed: {VERSION}", head.checkpoint);
        return Err(wrong("checkpoint", why));
    }
    if head.part {
        let why = "is true: rows were left out of this text; allowed: an export of everything";
        return Err(wrong("part", why.into()));
    }
    Ok(())
}

/// Lines by table and id, to name the line of a row.
type LineNumbers = BTreeMap<(TableName, u32), LineInfo>;

/// The part of a line beside its row.
struct LineInfo {
    line: usize,
    name: Option<String>,
}

/// The first line whose name differs from the name in its row.
fn wrong_name(rows: &Rows, numbers: &LineNumbers) -> Option<TextError> {
    numbers.iter().find_map(|((table, id), given)| {
        let (name, found) = (given.name.as_ref()?, rows.name_of(*table, *id)?);
        let (given_name, own) = (own_part(*table, name), own_part(*table, &found));
        (given_name != own).then(|| {
            let that = if own == found { "that" } else { "that at its end" };
            let why = format!("is {name:?}, and the row says {own:?}; allowed: {that}, or no name");
            TextError::Line { line: given.line, field: "name".into(), why }
        })
    })
}

/// The part of a row's name that is in the row itself. The owner, and the job of a task, are in
/// other rows: renaming one must not make all lines wrong that depend on it.
fn own_part(table: TableName, name: &str) -> &str {
    if table.is_labelled_by_others() {
        return "";
    }
    let own = name.rsplit_once('/').filter(|_| table.is_owned());
    own.map_or(name, |(_, own)| own)
}

macro_rules! found {
    ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
        at $($place:ident).+;)*) => {
        #[derive(Default)]
        struct ParsedTables {
            $($field: ParsedTable<$row>,)*
            windows: Vec<((Actor, u64), ReplayWindow)>,
        }

        impl ParsedTables {
            fn take(&mut self, number: usize, text: &str, slots: &Slots) -> Result<(), TextError> {
                let table = table_of(number, text)?;
                let at = TableLine { table, number };
                match table {
                    $(TableName::$variant => self.$field.take(at, text, slots.$field),)*
                    TableName::Windows => self.take_window(at, text),
                }
            }

            /// Number of ids of each table, by the head and by its lines.
            fn ids(&self, slots: &Slots) -> Vec<(TableName, u32, u64)> {
                vec![
                    $((TableName::$variant, slots.$field, self.$field.ids()),)*
                    (TableName::Windows, slots.windows, self.windows.len() as u64),
                ]
            }

            fn into_rows(self, end: &mut RowCollector<'_>, slots: &Slots) -> Rows {
                Rows {
                    $($field: end.list(TableName::$variant, self.$field, slots.$field),)*
                    windows: self.windows,
                    ..Rows::default()
                }
            }
        }
    };
}
each_table!(found);

/// The table of a line, parsed before its row.
#[derive(Deserialize)]
struct TableTag {
    table: TableName,
}

impl ParsedTables {
    fn take_window(&mut self, at: TableLine, text: &str) -> Result<(), TextError> {
        let line: Line<WindowRow> = line(at, text)?;
        let alone = line.id.is_none() && line.name.is_none() && line.vacant.is_none();
        let row = line.row.filter(|_| alone);
        let row = row.ok_or_else(|| at.error("the line", "allowed: table and row"))?;
        self.windows.push(row.into_window());
        Ok(())
    }

    fn check_slots(&self, line: usize, slots: &Slots) -> Result<(), TextError> {
        for (table, slots, ids) in self.ids(slots) {
            let most = ids.saturating_add(MAX_DROPPED);
            if u64::from(slots) > most {
                let field = format!("slots.{table}");
                let why = format!(
                    "is {slots}; allowed: at most {most}, {MAX_DROPPED} above the {ids} ids that \
                     have a row here or are vacant"
                );
                return Err(TextError::Line { line, field, why });
            }
        }
        Ok(())
    }

    fn into_rows_and_lines(self, head: &Head) -> (Rows, Vec<(TableName, u32)>, LineNumbers) {
        let (mut dropped, mut numbers) = (Vec::new(), LineNumbers::new());
        let mut end = RowCollector { dropped: &mut dropped, numbers: &mut numbers };
        let slots = &head.slots;
        let mut rows = Rows {
            level: head.level,
            now: head.now,
            applied: head.applied,
            attempt_floor: head.attempt_floor,
            bounds: head.bounds,
            ..self.into_rows(&mut end, slots)
        };
        // A late report about a row that was taken out must never name an attempt of the next one
        // to get that row.
        if dropped.iter().any(|(table, _)| *table == TableName::Tasks) {
            rows.attempt_floor = rows.attempt_floor.max(head.next_attempt);
        }
        let windows = rows.windows.len().try_into().unwrap_or(u32::MAX);
        dropped.extend((windows..slots.windows).map(|window| (TableName::Windows, window)));
        (rows, dropped, numbers)
    }
}

fn table_of(line: usize, text: &str) -> Result<TableName, TextError> {
    parse(line, text).map(|TableTag { table }| table)
}

/// Position of a line of a table, for errors.
#[derive(Clone, Copy)]
struct TableLine {
    table: TableName,
    number: usize,
}

impl TableLine {
    fn error(self, field: &str, why: impl ToString) -> TextError {
        TextError::Line { line: self.number, field: field.to_owned(), why: why.to_string() }
    }

    fn check_id(self, field: &str, id: u32, slots: u32) -> Result<(), TextError> {
        if id < slots {
            return Ok(());
        }
        let allowed = match slots {
            0 => "no id".to_owned(),
            _ => format!("0 to {}", slots - 1),
        };
        let table = self.table;
        let why = format!("is {id}; allowed: {allowed}, or more slots.{table} in the first line");
        Err(self.error(field, why))
    }
}

/// Parses a line strictly.
fn line<T: DeserializeOwned + Serialize>(at: TableLine, text: &str) -> Result<Line<T>, TextError> {
    let line: Line<T> = parse(at.number, text)?;
    if let Some(row) = &line.row {
        check_round_trip(at.number, text, Some("row"), row)?;
    }
    Ok(line)
}

/// One table: rows by id with the line of each, and ids without a row.
struct ParsedTable<T> {
    rows: BTreeMap<u32, (LineInfo, T)>,
    /// By the first id of a range: its last id, and the line.
    vacant: BTreeMap<u32, (u32, usize)>,
}

impl<T> Default for ParsedTable<T> {
    fn default() -> Self {
        ParsedTable { rows: BTreeMap::new(), vacant: BTreeMap::new() }
    }
}

impl<T: DeserializeOwned + Serialize> ParsedTable<T> {
    fn take(&mut self, at: TableLine, text: &str, slots: u32) -> Result<(), TextError> {
        let line: Line<T> = line(at, text)?;
        match (line.id, line.name, line.vacant, line.row) {
            (Some(id), name, None, Some(row)) => {
                at.check_id("id", id, slots)?;
                if let Some(other) = self.line_of(id) {
                    return Err(at.error("id", format!("{id} is in line {other} already")));
                }
                self.rows.insert(id, (LineInfo { line: at.number, name }, row));
                Ok(())
            }
            (None, None, Some((from, to)), None) => {
                at.check_id("vacant", to, slots)?;
                if from > to {
                    let why = format!("from {from} to {to}; allowed: the smaller one first");
                    return Err(at.error("vacant", why));
                }
                let taken = self.rows.range(from..=to).next().map(|(_, (other, _))| other.line);
                if let Some(other) = taken.or_else(|| self.vacant_in(from, to)) {
                    let why = format!("{from} to {to} are in line {other} in part");
                    return Err(at.error("vacant", why));
                }
                self.vacant.insert(from, (to, at.number));
                Ok(())
            }
            _ => Err(at.error("the line", "allowed: an id and its row, or vacant alone")),
        }
    }

    /// The line that declares some of these ids vacant.
    fn vacant_in(&self, from: u32, to: u32) -> Option<usize> {
        let (_, (last, line)) = self.vacant.range(..=to).next_back()?;
        (*last >= from).then_some(*line)
    }

    /// Number of ids that have a line.
    fn ids(&self) -> u64 {
        let vacant = self.vacant.iter().map(|(from, (to, _))| u64::from(to - from) + 1);
        vacant.fold(self.rows.len() as u64, u64::saturating_add)
    }

    fn line_of(&self, id: u32) -> Option<usize> {
        self.rows.get(&id).map(|(given, _)| given.line).or_else(|| self.vacant_in(id, id))
    }
}

struct RowCollector<'a> {
    dropped: &'a mut Vec<(TableName, u32)>,
    numbers: &'a mut LineNumbers,
}

impl RowCollector<'_> {
    fn list<T>(&mut self, table: TableName, found: ParsedTable<T>, slots: u32) -> Vec<Option<T>> {
        let ParsedTable { mut rows, vacant } = found;
        let mut list = Vec::new();
        for id in 0..slots {
            let row = rows.remove(&id).map(|(given, row)| {
                self.numbers.insert((table, id), given);
                row
            });
            let is_vacant = || vacant.range(..=id).next_back().is_some_and(|(_, v)| v.0 >= id);
            if row.is_none() && !is_vacant() {
                self.dropped.push((table, id));
            }
            list.push(row);
        }
        list
    }
}

/// The line of the row that an error is about.
fn line_of(why: &LoadError, numbers: &LineNumbers) -> Option<usize> {
    let row = match why {
        LoadError::BadRow { row, .. } => row,
        LoadError::InvariantViolated(violation) => &violation.row,
        _ => return None,
    };
    TableName::ALL.iter().find_map(|table| {
        let rest = row.strip_prefix(table.noun()?)?.strip_prefix(" row ")?;
        let id = rest.split(' ').next()?.parse().ok()?;
        numbers.get(&(*table, id)).map(|given| given.line)
    })
}
