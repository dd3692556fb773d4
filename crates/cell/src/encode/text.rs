//! The text form of a state, for reading and repair by hand in an emergency: JSON lines, one line
//! for each row, so that `grep`, `sed`, `jq` and an editor all work.
//!
//! The first line is the head and the last one the end mark, without which text that was cut
//! between two lines would go unnoticed. Each other line is of one table and is a row with its id,
//! or a range of ids whose rows are gone:
//!
//! ```json
//! {"checkpoint":1,"index":42,"term":2,"level":3,…,"slots":{"users":2,…}}
//! {"table":"jobs","id":3,"name":"ann/web","row":{…}}
//! {"table":"jobs","vacant":[0,2]}
//! {"end":true}
//! ```
//!
//! `name` is for people: it must agree with the row, or be left out, so changing it alone is an
//! error and not a change without effect. Rows refer to each other by id. Removing a line removes
//! its row. Derived values are not written, so they cannot be repaired wrongly. Text that was not
//! changed gives back the same bytes that it was made of.
//!
//! Rejected: one pretty-printed document. It reads well while it is small, but then no line-based
//! tool can remove a row from it, and an error could not name the row by its line.

mod fields;
mod read;
#[cfg(test)]
mod tests;

pub use crate::tables::TableName;
pub use read::{RepairedState, TextError, read};

use super::Rows;
use crate::bounds::Bounds;
use crate::command::{Actor, Verdict};
use crate::name::{JobKey, Name};
use crate::replay_windows::{RecordedAnswer, ReplayWindow};
use crate::tables::{TableRow, each_table};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the text form. Other versions are refused.
pub const VERSION: u32 = 1;

/// The position in its log that a state was made at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
}

/// Selects the rows to write. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFilter {
    pub table: Option<TableName>,
    /// The job, its tasks and its versions.
    pub job: Option<JobKey>,
    /// The machine, the tasks that are on it or hold room there, and its ephemeral resources.
    pub machine: Option<Name>,
}

impl RowFilter {
    fn selects_all(&self) -> bool {
        *self == RowFilter::default()
    }

    fn matches(&self, table: TableName, label: &str, concerns: impl Fn(&Name) -> bool) -> bool {
        let of_job = |job: &JobKey| {
            let rest = label.strip_prefix(&job.to_string());
            matches!(table, TableName::Jobs | TableName::Tasks | TableName::JobVersions)
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.table.is_none_or(|wanted| wanted == table)
            && self.job.as_ref().is_none_or(of_job)
            && self.machine.as_ref().is_none_or(concerns)
    }
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    checkpoint: u32,
    index: u64,
    term: u64,
    level: u32,
    now: Time,
    applied: u64,
    attempt_floor: u32,
    bounds: Bounds,
    /// The minimum for `attempt_floor` once task rows are removed: a machine may still send reports
    /// about them.
    next_attempt: u32,
    /// Whether rows were left out, so that the text cannot be imported.
    part: bool,
    slots: Slots,
}

macro_rules! slots {
    ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
        /// Number of ids each table has given out, and the number of windows, which have no ids.
        #[derive(Clone, Copy, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Slots {
            $(#[serde(rename = $word)] $field: u32,)*
            windows: u32,
        }

        impl Slots {
            /// Tables refuse to grow past this many rows, so no cast loses bits.
            fn of(rows: &Rows) -> Slots {
                Slots { $($field: rows.$field.len() as u32,)* windows: rows.windows.len() as u32 }
            }
        }
    };
}
each_table!(slots);

/// The last line of a whole text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    end: bool,
}

/// Any other line when read: an id and its row, or a range of ids, both ends included.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<T> {
    #[serde(rename = "table")]
    _table: TableName,
    id: Option<u32>,
    /// For people; it has to be right all the same.
    name: Option<String>,
    vacant: Option<(u32, u32)>,
    row: Option<T>,
}

/// A number without meaning for people. Written as text, because tools that take numbers for
/// floating-point ones would change it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Hex(u64);

impl From<Hex> for String {
    fn from(Hex(number): Hex) -> String {
        format!("{number:016x}")
    }
}

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Hex, String> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Hex).ok_or_else(|| format!("{text:?}; allowed: 16 digits 0-9 and a-f"))
    }
}

/// One client's window.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowRow {
    by: Actor,
    client: Hex,
    /// By sequence number.
    entries: BTreeMap<u64, AnsweredRow>,
    forgotten: Option<u64>,
    last_at: Time,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnsweredRow {
    fingerprint: Hex,
    verdict: Verdict,
}

impl WindowRow {
    fn of((by, client): &(Actor, u64), window: &ReplayWindow) -> WindowRow {
        let entry = |(sequence, answered): (&u64, &RecordedAnswer)| {
            let RecordedAnswer { fingerprint, verdict } = answered.clone();
            (*sequence, AnsweredRow { fingerprint: Hex(fingerprint), verdict })
        };
        WindowRow {
            by: by.clone(),
            client: Hex(*client),
            entries: window.entries.iter().map(entry).collect(),
            forgotten: window.forgotten,
            last_at: window.last_at,
        }
    }

    fn into_window(self) -> ((Actor, u64), ReplayWindow) {
        let entry = |(sequence, row): (u64, AnsweredRow)| {
            let AnsweredRow { fingerprint: Hex(fingerprint), verdict } = row;
            (sequence, RecordedAnswer { fingerprint, verdict })
        };
        let WindowRow { by, client: Hex(client), entries, forgotten, last_at } = self;
        let entries = entries.into_iter().map(entry).collect();
        ((by, client), ReplayWindow { entries, forgotten, last_at })
    }
}

/// Renders these rows as text.
#[must_use]
pub fn write(position: LogPosition, rows: &Rows, filter: &RowFilter) -> String {
    let mut writer = Writer { rows, filter, out: String::new() };
    writer.line(&json(&head(position, rows, filter)));
    macro_rules! write_tables {
        ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
            $(writer.table(TableName::$variant, &rows.$field);)*
        };
    }
    each_table!(write_tables);
    writer.windows();
    // A part is never imported, so it needs no mark that it is complete.
    if filter.selects_all() {
        writer.line(&json(&End { end: true }));
    }
    writer.out
}

fn head(position: LogPosition, rows: &Rows, filter: &RowFilter) -> Head {
    let attempts = rows.tasks.iter().flatten().map(|task| task.attempt.saturating_add(1));
    Head {
        checkpoint: VERSION,
        index: position.index,
        term: position.term,
        level: rows.level,
        now: rows.now,
        applied: rows.applied,
        attempt_floor: rows.attempt_floor,
        bounds: rows.bounds,
        next_attempt: attempts.fold(rows.attempt_floor, u32::max),
        part: !filter.selects_all(),
        slots: Slots::of(rows),
    }
}

impl Rows {
    /// The rows are not validated: an owner may be missing.
    pub(crate) fn user_name(&self, slot: usize) -> String {
        let row = self.users.get(slot).and_then(Option::as_ref);
        row.map_or_else(|| format!("user#{slot}"), |user| user.name.to_string())
    }

    /// The name of the row with this id; `None` if there is no such row, or it has no name.
    fn name_of(&self, table: TableName, id: u32) -> Option<String> {
        let (rows, at) = (self, id as usize);
        macro_rules! label {
            ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
            at $($place:ident).+;)*) => {
                match table {
                    $(TableName::$variant => Some(rows.$field.get(at)?.as_ref()?.label(rows)),)*
                    TableName::Windows => None,
                }
            };
        }
        each_table!(label)
    }
}

/// Only maps with keys that are no text fail, and no row has one: the round trip of random states
/// tests that.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("every row has a form in JSON")
}

struct Writer<'a> {
    rows: &'a Rows,
    filter: &'a RowFilter,
    out: String,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn table<T: TableRow>(&mut self, table: TableName, list: &[Option<T>]) {
        let rows = self.rows;
        let mut vacant_range: Option<(u32, u32)> = None;
        for (id, row) in (0u32..).zip(list) {
            let Some(row) = row else {
                vacant_range = Some((vacant_range.map_or(id, |(from, _)| from), id));
                continue;
            };
            self.vacant(table, vacant_range.take());
            let label = row.label(rows);
            if self.filter.matches(table, &label, |machine| row.is_of_machine(rows, machine)) {
                let (name, row) = (json(&label), json(row));
                let line = format!(r#"{{"table":"{table}","id":{id},"name":{name},"row":{row}}}"#);
                self.line(&line);
            }
        }
        self.vacant(table, vacant_range);
    }

    fn vacant(&mut self, table: TableName, range: Option<(u32, u32)>) {
        if let Some((from, to)) = range
            && self.filter.selects_all()
        {
            self.line(&format!(r#"{{"table":"{table}","vacant":[{from},{to}]}}"#));
        }
    }

    fn windows(&mut self) {
        let rows = self.rows;
        for (key, window) in &rows.windows {
            let table = TableName::Windows;
            if self.filter.matches(table, "", |_| false) {
                let row = json(&WindowRow::of(key, window));
                self.line(&format!(r#"{{"table":"{table}","row":{row}}}"#));
            }
        }
    }
}
