//! Parquet files as a virtual table of SQLite: the one module with the word `unsafe` in it.
//!
//! SQLite calls back through structs that begin with its own. `rusqlite` requires the promise that
//! they do as an `unsafe impl`; `#[repr(C)]` with SQLite's struct as the first field is all there
//! is to keep, and no block here touches memory by hand. Everything else is ordinary code.
//!
//! Bounds on `time` and `day` decide which files and which row groups are opened, and only columns
//! that the query names are decoded. SQLite checks every row again, so a bound that is not
//! understood costs time and never rows.
#![expect(unsafe_code, reason = "virtual tables are offered to SQLite by unsafe traits alone")]

use crate::archive::Archive;
use crate::columns::{Decoded, ParquetReader};
use crate::tables::Table;
use rusqlite::ffi;
use rusqlite::types::{Null, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConnection, VTabCursor,
};
use rusqlite::{Connection, Error, Result};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::fmt::Display;
use std::fs::File;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows are in this order: time, log index, position.
const ORDER: [c_int; 3] = [0, 2, 3];
const TIME: c_int = 0;
const DAY: c_int = 1;
/// The prefix of errors about archive files, to tell them from mistakes in a statement.
pub(crate) const ARCHIVE_ERROR_PREFIX: &str = "an archive";
/// A full read of an archive, in SQLite's unit of cost.
const FULL_SCAN_COST: f64 = 1e7;

/// The source of one virtual table.
#[derive(Clone)]
pub(crate) struct TableSource {
    pub table: &'static Table,
    pub archives: Arc<Vec<Archive>>,
}

/// Makes the table `archived_…` over these files, for this connection.
pub(crate) fn register(db: &Connection, source: TableSource) -> Result<()> {
    const MODULE: Module<ParquetTable> = Module::eponymous_only_module();
    let name = CString::new(format!("archived_{}", source.table.name))?;
    db.create_module(name.as_c_str(), &MODULE, Some(source))
}

#[repr(C)]
struct ParquetTable {
    /// Must be first.
    base: ffi::sqlite3_vtab,
    source: TableSource,
}

// SAFETY: `#[repr(C)]`, and SQLite's struct is the first field.
unsafe impl<'vtab> VTab<'vtab> for ParquetTable {
    type Aux = TableSource;
    type Cursor = ParquetCursor<'vtab>;

    fn connect(
        _db: &mut VTabConnection,
        aux: Option<&TableSource>,
        _module_name: &[u8],
        _database_name: &[u8],
        _table_name: &[u8],
        _args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        let missing = || Error::ModuleError("a table without files behind it".into());
        let source = aux.cloned().ok_or_else(missing)?;
        let sql = CString::new(format!("CREATE TABLE x({})", source.table.column_definitions()))?;
        Ok((Cow::Owned(sql), ParquetTable { base: ffi::sqlite3_vtab::default(), source }))
    }

    /// The plan is passed to the cursor as text: the mask of columns, then a letter for each bound.
    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut plan = format!("{:x}:", info.col_used());
        let mut cost = FULL_SCAN_COST;
        let mut usable = Vec::new();
        for (at, constraint) in info.constraints().enumerate() {
            let letter = bound_letter(constraint.column(), constraint.operator());
            let Some(letter) = letter.filter(|_| constraint.is_usable()) else { continue };
            plan.push(letter);
            cost /= 4.0;
            usable.push(at);
        }
        for (nth, at) in usable.into_iter().enumerate() {
            let nth = c_int::try_from(nth + 1).unwrap_or(c_int::MAX);
            info.constraint_usage(at).set_argv_index(nth);
        }
        let order: Vec<c_int> = info.order_bys().map(|by| by.column()).collect();
        let ascending = info.order_bys().all(|by| !by.is_order_by_desc());
        if ascending && !order.is_empty() && ORDER.starts_with(&order) && self.is_in_order() {
            info.set_order_by_consumed(true);
        }
        info.set_idx_str(&plan);
        info.set_estimated_cost(cost);
        info.set_estimated_rows(cost as i64);
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<ParquetCursor<'vtab>> {
        Ok(ParquetCursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            source: self.source.clone(),
            filter: ScanFilter::default(),
            files: Vec::new(),
            reader: None,
            path: PathBuf::new(),
            group: 0,
            columns: Vec::new(),
            row: 0,
            rows: 0,
            rowid: 0,
            phantom: PhantomData,
        })
    }
}

impl ParquetTable {
    /// Whether reading file after file goes forward in time; late rows of a day have a file of
    /// their own. Usage has other columns after its time, and windows that begin together.
    fn is_in_order(&self) -> bool {
        let files = &self.source.archives;
        self.source.table.column_position("log_index") == Some(2)
            && files.windows(2).all(|pair| pair[0].last < pair[1].first)
    }
}

/// The letter of a bound in the plan: small letters for times, capitals for days.
fn bound_letter(column: c_int, operator: IndexConstraintOp) -> Option<char> {
    use IndexConstraintOp as Op;
    let letter = match operator {
        Op::SQLITE_INDEX_CONSTRAINT_EQ => 'e',
        Op::SQLITE_INDEX_CONSTRAINT_GE => 'g',
        Op::SQLITE_INDEX_CONSTRAINT_GT => 'a',
        Op::SQLITE_INDEX_CONSTRAINT_LE => 'l',
        Op::SQLITE_INDEX_CONSTRAINT_LT => 'b',
        _ => return None,
    };
    match column {
        TIME => Some(letter),
        DAY => Some(letter.to_ascii_uppercase()),
        _ => None,
    }
}

/// Filters the rows that a query can need.
#[derive(Default)]
struct ScanFilter {
    /// Bit of each column that is read; the last stands for all beyond.
    columns: u64,
    from: Option<i64>,
    to: Option<i64>,
    first_day: Option<String>,
    before_day: Option<String>,
}

impl ScanFilter {
    fn read(plan: &str, args: &Filters<'_>) -> ScanFilter {
        let (mask, letters) = plan.split_once(':').unwrap_or(("", ""));
        let mut filter = ScanFilter {
            columns: u64::from_str_radix(mask, 16).unwrap_or(u64::MAX),
            ..ScanFilter::default()
        };
        for (letter, value) in letters.chars().zip(args.iter()) {
            match (letter, value) {
                ('a'..='z', ValueRef::Integer(bound)) => filter.bound_time(letter, bound),
                ('A'..='Z', ValueRef::Text(day)) => {
                    filter.bound_day(letter, &String::from_utf8_lossy(day));
                }
                // A comparison with another type: SQLite knows what that means.
                _ => {}
            }
        }
        filter
    }

    fn bound_time(&mut self, letter: char, bound: i64) {
        if matches!(letter, 'e' | 'g' | 'a') {
            self.from = self.from.max(Some(bound));
        }
        if matches!(letter, 'e' | 'l' | 'b') {
            self.to = Some(self.to.map_or(bound, |to| to.min(bound)));
        }
    }

    /// Whole files are skipped by their day, so it matters whether a bound itself is included.
    fn bound_day(&mut self, letter: char, bound: &str) {
        // The next text after `bound` in sort order.
        let next = format!("{bound}\0");
        if matches!(letter, 'E' | 'G' | 'A') {
            let first = if letter == 'A' { next.clone() } else { bound.to_owned() };
            self.first_day = self.first_day.take().max(Some(first));
        }
        if matches!(letter, 'E' | 'L' | 'B') {
            let end = if letter == 'B' { bound.to_owned() } else { next };
            let before = self.before_day.take();
            self.before_day = Some(before.map_or(end.clone(), |before| before.min(end)));
        }
    }

    fn overlaps(&self, first: i64, last: i64) -> bool {
        self.from.is_none_or(|from| from <= last) && self.to.is_none_or(|to| first <= to)
    }

    fn includes_file(&self, archive: &Archive) -> bool {
        self.overlaps(archive.first, archive.last)
            && self.first_day.as_ref().is_none_or(|day| *day <= archive.day)
            && self.before_day.as_ref().is_none_or(|day| archive.day < *day)
    }

    fn includes_column(&self, at: usize) -> bool {
        self.columns >> at.min(63) & 1 == 1
    }
}

#[repr(C)]
struct ParquetCursor<'vtab> {
    /// Must be first.
    base: ffi::sqlite3_vtab_cursor,
    source: TableSource,
    filter: ScanFilter,
    /// Still to be read, the next one last.
    files: Vec<Archive>,
    reader: Option<ParquetReader>,
    /// The path of the open file.
    path: PathBuf,
    /// Next row group of the open file.
    group: usize,
    columns: Vec<Option<Decoded>>,
    row: usize,
    rows: usize,
    rowid: i64,
    phantom: PhantomData<&'vtab ParquetTable>,
}

impl ParquetCursor<'_> {
    /// Decodes row groups until there is a row, or none is left.
    fn advance(&mut self) -> Result<()> {
        while self.row >= self.rows {
            let Some(reader) = &self.reader else {
                let Some(archive) = self.files.pop() else { return Ok(()) };
                self.open_file(&archive)?;
                continue;
            };
            if self.group >= reader.group_count() {
                self.reader = None;
                continue;
            }
            let group = self.group;
            self.group += 1;
            if reader
                .time_range(group)
                .is_some_and(|(first, last)| !self.filter.overlaps(first, last))
            {
                continue;
            }
            let width = self.source.table.columns.len();
            let mut columns = Vec::with_capacity(width);
            for at in 0..width {
                let column = if self.filter.includes_column(at) {
                    reader.column(group, at).map_err(|why| archive_error(&self.path, &why))?
                } else {
                    None
                };
                columns.push(column);
            }
            (self.row, self.rows) = (0, reader.row_count(group));
            self.columns = columns;
        }
        Ok(())
    }

    fn open_file(&mut self, archive: &Archive) -> Result<()> {
        self.path.clone_from(&archive.path);
        let file = File::open(&self.path).map_err(|why| archive_error(&self.path, &why))?;
        let reader = ParquetReader::new(self.source.table, file);
        self.reader = Some(reader.map_err(|why| archive_error(&self.path, &why))?);
        self.group = 0;
        Ok(())
    }
}

/// A day may have been deleted meanwhile; a damaged file stays damaged until an operator acts.
fn archive_error(path: &Path, why: &dyn Display) -> Error {
    Error::ModuleError(format!(
        "{ARCHIVE_ERROR_PREFIX} cannot be read: {}: {why}; ask again, ask for other days, or put \
         the file there from another replica or a backup",
        path.display()
    ))
}

// SAFETY: `#[repr(C)]`, and SQLite's struct is the first field.
unsafe impl VTabCursor for ParquetCursor<'_> {
    fn filter(&mut self, _number: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.filter = ScanFilter::read(plan.unwrap_or(""), args);
        let files =
            self.source.archives.iter().rev().filter(|file| self.filter.includes_file(file));
        self.files = files.cloned().collect();
        self.reader = None;
        (self.row, self.rows, self.rowid) = (0, 0, 0);
        self.advance()
    }

    fn next(&mut self) -> Result<()> {
        self.rowid += 1;
        self.row += 1;
        self.advance()
    }

    fn eof(&self) -> bool {
        self.row >= self.rows
    }

    fn column(&self, context: &mut Context, at: c_int) -> Result<()> {
        let at = usize::try_from(at).ok();
        let column = at.and_then(|at| self.columns.get(at));
        match column.and_then(Option::as_ref) {
            Some(column) => context.set_result(column.value(self.row)),
            None => context.set_result(Null),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.rowid)
    }
}
