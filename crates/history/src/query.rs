//! Reading: one SELECT over recent rows and archives, by somebody who is not trusted.
//!
//! Each query has a connection of its own, opened for reading only, in a transaction that shows one
//! moment: a day that moves to its archive meanwhile is seen once. The authorizer lets nothing but
//! SELECT through, and what a query may take of time, rows, bytes and depth is bounded.
//!
//! Rejected: a parser of our own in front. SQLite decides what a statement does as it prepares it,
//! and is right by construction.

use crate::archive::{Archive, archives};
use crate::pages;
use crate::parquet_table::{Behind, TROUBLE, offer};
use crate::store::{FILE, since};
use crate::tables::{self, EVENTS, RAW, ROLLUPS, Table, USAGE, events_select, recent};
use crate::usage::UsageRow;
use crate::words;
use cellwright_cell::near::nearest;
use cellwright_cell::time::Time;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, Statement, params_from_iter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps of SQLite's machine between two looks at the clock.
const STEPS: i32 = 4096;
/// Longest statement, in bytes.
pub const MAX_SQL: usize = 64 << 10;
/// Longest value that a query may make, in bytes. The clock is not looked at within one function,
/// and with both arguments this long SQLite takes a tenth of a second for `instr` and `replace`,
/// four seconds for `trim`, and four times as much for every doubling.
const MAX_VALUE: usize = 128 << 10;
/// Most arguments of a statement.
pub const MAX_ARGS: usize = 100;
/// Memory for pages of one query, and for what each sorter sorts at a time, in KiB. Smaller is
/// faster here: pages are in the system's cache too, and what is sorted stays in the processor's.
const CACHE_KIB: i32 = 8 << 10;
/// Threads beside the query's own that sort for it: an archive has no index, so grouping sorts.
const SORTERS: i32 = 2;
const PATIENCE: Duration = Duration::from_secs(5);
/// A database that is larger is not looked at by readers.
const LOOK_BYTES: u64 = 64 << 20;
/// Between two looks, so many times as long as one took.
const LOOK_RESTS: u32 = 10;
/// Where usage is that is not written yet.
const PRESENT: &str = "usage_present";

/// What a query may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub time: Duration,
    pub rows: usize,
    /// Of the answer.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { time: Duration::from_secs(30), rows: 1000, bytes: 16 << 20 }
    }
}

/// One value of an answer or an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
    /// There were more rows, or longer ones, than the bounds let through.
    pub truncated: bool,
    /// Every event since is in the tables; absent while there is none.
    pub reaches_back_to: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The statement is wrong; the text shows where.
    #[error("{0}")]
    Sql(String),
    #[error("{0} is not allowed: a query reads, with one SELECT")]
    NotAllowed(String),
    #[error("the query took longer than {} ms", .0.as_millis())]
    TooSlow(Duration),
    #[error("the query was stopped: nobody waited for it")]
    Stopped,
    /// Not the asker's fault.
    #[error("{0}")]
    Broken(String),
}

/// Answers queries over a folder of history; the writer may go on meanwhile.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) dir: PathBuf,
    /// Set when nobody waits for the answer any more.
    stop: Arc<AtomicBool>,
    /// When the pages were last looked at, and how long that took.
    looked: Arc<Mutex<Option<(Instant, Duration)>>>,
}

impl Reader {
    #[must_use]
    pub fn new(dir: &Path) -> Reader {
        Reader { dir: dir.to_owned(), stop: Arc::default(), looked: Arc::default() }
    }

    /// The same, whose queries end soon after this is set.
    #[must_use]
    pub fn until(&self, stop: Arc<AtomicBool>) -> Reader {
        Reader { dir: self.dir.clone(), stop, looked: self.looked.clone() }
    }

    /// # Errors
    /// What is wrong with the statement, that it takes too long, or that files cannot be read.
    pub fn query(&self, sql: &str, args: &[Value], bounds: Bounds) -> Result<Answer, QueryError> {
        self.query_with(&[], sql, args, bounds)
    }

    /// The same, with usage that is not in the tables yet.
    ///
    /// # Errors
    /// As those of [`Reader::query`].
    pub fn query_with(
        &self,
        present: &[UsageRow],
        sql: &str,
        args: &[Value],
        bounds: Bounds,
    ) -> Result<Answer, QueryError> {
        if sql.len() > MAX_SQL {
            let length = sql.len();
            let text = format!("the statement has {length} bytes; allowed: {MAX_SQL}");
            return Err(QueryError::Sql(text));
        }
        let slow_or_broken = |error: Error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => self.interrupted(bounds),
            _ => broken(error),
        };
        self.look_at_pages()?;
        let start = Instant::now();
        let mut db = self.open(start, bounds.time).map_err(slow_or_broken)?;
        self.offer_rows(&db, present).map_err(slow_or_broken)?;
        let reaches_back_to = since(&db, "events").map_err(slow_or_broken)?;
        let denied = guard(&mut db).map_err(broken)?;
        let explain = |error: Error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => self.interrupted(bounds),
            _ => explained(error, sql, &denied),
        };
        let mut statement = db.prepare(sql).map_err(explain)?;
        if !statement.readonly() || statement.column_count() == 0 {
            return Err(no_question(sql));
        }
        let wants = statement.parameter_count();
        if wants != args.len() {
            let text = format!("the statement has {wants} `?` and {} args", args.len());
            return Err(QueryError::Sql(text));
        }
        let columns = statement.column_names().map(str::to_owned).collect();
        let (rows, truncated) = fetch(&mut statement, args, bounds).map_err(explain)?;
        Ok(Answer { columns, rows, truncated, reaches_back_to })
    }

    /// Sees that no page was damaged before an answer is made from it. A small database is looked
    /// at for every answer, unless that would be most of the work; a large one is left to the
    /// writer, who looks at all of it now and then.
    fn look_at_pages(&self) -> Result<(), QueryError> {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = looked.is_some_and(|(at, took)| at.elapsed() < took * LOOK_RESTS);
        if rests || pages::size(&self.dir) > LOOK_BYTES {
            return Ok(());
        }
        let start = Instant::now();
        // What a crash left is put in order by the first connection.
        self.connect().and_then(|db| since(&db, "events")).map_err(broken)?;
        pages::verify(&self.dir).map_err(|error| {
            let text = format!("{error}; it is set aside and made again, ask later");
            QueryError::Broken(text)
        })?;
        *looked = Some((Instant::now(), start.elapsed()));
        Ok(())
    }

    fn interrupted(&self, bounds: Bounds) -> QueryError {
        match self.stop.load(Ordering::Relaxed) {
            true => QueryError::Stopped,
            false => QueryError::TooSlow(bounds.time),
        }
    }

    /// Whether a query that began then has to end.
    fn is_over(&self, start: Instant, time: Duration) -> bool {
        self.stop.load(Ordering::Relaxed) || start.elapsed() > time
    }

    /// A connection for reading alone that shows one moment.
    pub(crate) fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(self.dir.join(FILE), flags)?;
        db.busy_timeout(PATIENCE)?;
        db.pragma_update(None, "cache_size", -CACHE_KIB)?;
        words::add(&db)?;
        db.execute_batch("BEGIN")?;
        Ok(db)
    }

    /// The raw tables as rows: recent ones, archived ones and what is not written yet.
    fn offer_rows(&self, db: &Connection, present: &[UsageRow]) -> rusqlite::Result<()> {
        if !present.is_empty() {
            add_present(db, present)?;
        }
        for table in RAW {
            let files = archives(db, &self.dir, table)?;
            let mut sql = view(db, table, files)?;
            if table.name == USAGE.name && !present.is_empty() {
                sql.push_str(&format!(" UNION ALL SELECT {} FROM temp.{PRESENT}", table.names()));
            }
            db.execute_batch(&sql)?;
        }
        offer_rest(db)
    }

    /// One that gives up this long after the start; the making of tables counts.
    fn open(&self, start: Instant, time: Duration) -> rusqlite::Result<Connection> {
        let mut db = self.connect()?;
        let reader = self.clone();
        db.progress_handler(STEPS, Some(move || reader.is_over(start, time)))?;
        for (limit, most) in [
            (Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE as i32),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
            (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, MAX_ARGS as i32),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, SORTERS),
        ] {
            db.set_limit(limit, most)?;
        }
        Ok(db)
    }
}

/// The tables that are the same for every query.
fn offer_rest(db: &Connection) -> rusqlite::Result<()> {
    for (table, _) in ROLLUPS {
        let (name, from, columns) = (table.name, recent(table), table.names());
        let sql = format!("CREATE TEMP VIEW {name} AS SELECT {columns} FROM main.{from}");
        db.execute_batch(&sql)?;
    }
    let (name, columns) = (EVENTS.name, EVENTS.names());
    db.execute_batch(&format!("CREATE TEMP VIEW {name} ({columns}) AS {}", events_select()))
}

/// Usage that is not written yet, less what has been written meanwhile, and less days that are in
/// archives here: whether such a row is among theirs would take reading them.
fn add_present(db: &Connection, rows: &[UsageRow]) -> rusqlite::Result<()> {
    let (table, columns) = (recent(&USAGE), USAGE.definitions());
    let key = USAGE.unique.join(", ");
    db.execute_batch(&format!("CREATE TEMP TABLE {PRESENT} ({columns}, UNIQUE ({key}))"))?;
    let marks = vec!["?"; USAGE.columns.len()].join(", ");
    let sql = format!("INSERT OR IGNORE INTO temp.{PRESENT} ({}) VALUES ({marks})", USAGE.names());
    let mut insert = db.prepare(&sql)?;
    for row in rows {
        insert.execute(params_from_iter(row.values()))?;
    }
    let same: Vec<String> =
        USAGE.unique.iter().map(|name| format!("w.{name} = {PRESENT}.{name}")).collect();
    let written = format!("SELECT 1 FROM main.{table} w WHERE {}", same.join(" AND "));
    let moved = format!("SELECT max(day) FROM main.archives WHERE what = '{}'", USAGE.name);
    db.execute_batch(&format!(
        "DELETE FROM temp.{PRESENT} WHERE EXISTS ({written}) OR day <= ({moved})"
    ))
}

/// The whole of a table: its recent part, and its archives if there are any. Without archives the
/// view is no union, and SQLite's indices serve it.
fn view(db: &Connection, table: &'static Table, files: Vec<Archive>) -> rusqlite::Result<String> {
    let (name, columns, from) = (table.name, table.shown(), recent(table));
    let mut sql = format!("CREATE TEMP VIEW {name} AS SELECT {columns} FROM main.{from}");
    if !files.is_empty() {
        offer(db, Behind { table, archives: Arc::new(files) })?;
        sql.push_str(&format!(" UNION ALL SELECT {columns} FROM archived_{name}"));
    }
    Ok(sql)
}

type Denied = Arc<Mutex<Option<String>>>;

/// From here on the connection is in the hands of whoever wrote the statement.
fn guard(db: &mut Connection) -> rusqlite::Result<Denied> {
    let denied: Denied = Arc::default();
    let seen = denied.clone();
    db.authorizer(Some(move |context: AuthContext<'_>| match refusal(&context.action) {
        None => Authorization::Allow,
        Some(what) => {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
            Authorization::Deny
        }
    }))?;
    Ok(denied)
}

/// What of a statement is refused, in a person's words.
fn refusal(action: &AuthAction<'_>) -> Option<String> {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } => {
            let refused = ["load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"];
            let is = refused.iter().any(|name| function_name.eq_ignore_ascii_case(name));
            is.then(|| format!("the function {function_name}"))
        }
        AuthAction::Pragma { pragma_name, .. } => Some(format!("PRAGMA {pragma_name}")),
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => Some("ATTACH".into()),
        AuthAction::Insert { .. } => Some("INSERT".into()),
        AuthAction::Update { .. } => Some("UPDATE".into()),
        AuthAction::Delete { .. } => Some("DELETE".into()),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some("BEGIN".into()),
        AuthAction::Analyze { .. } => Some("ANALYZE".into()),
        AuthAction::Reindex { .. } => Some("REINDEX".into()),
        AuthAction::AlterTable { .. } => Some("ALTER".into()),
        _ => Some("CREATE or DROP".into()),
    }
}

pub(crate) fn fetch(
    statement: &mut Statement<'_>,
    args: &[Value],
    bounds: Bounds,
) -> rusqlite::Result<(Vec<Vec<Value>>, bool)> {
    let width = statement.column_count();
    let mut found = statement.query(params_from_iter(args.iter().map(argument)))?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let values: Vec<Value> =
            (0..width).map(|at| row.get_ref(at).map(shown)).collect::<rusqlite::Result<_>>()?;
        bytes += values.iter().map(size).sum::<usize>();
        if rows.len() >= bounds.rows || bytes > bounds.bytes {
            return Ok((rows, true));
        }
        rows.push(values);
    }
    Ok((rows, false))
}

fn argument(value: &Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Integer(number) => SqlValue::Integer(*number),
        Value::Real(number) => SqlValue::Real(*number),
        Value::Text(text) => SqlValue::Text(text.clone()),
    }
}

fn shown(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Text(bytes.iter().map(|b| format!("{b:02x}")).collect()),
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len() + 3,
        Value::Null | Value::Integer(_) | Value::Real(_) => 9,
    }
}

pub(crate) fn broken(error: Error) -> QueryError {
    QueryError::Broken(format!("history cannot be read: {error}"))
}

fn explained(error: Error, sql: &str, denied: &Denied) -> QueryError {
    let refused = denied.lock().unwrap_or_else(PoisonError::into_inner).take();
    let message = match &error {
        Error::SqlInputError { msg, .. } => msg.as_str(),
        Error::SqliteFailure(_, Some(text)) => text.as_str(),
        _ => "",
    };
    if let Some(refused) = changing(message, sql) {
        return refused;
    }
    match (&error, error.sqlite_error_code()) {
        (_, Some(ErrorCode::AuthorizationForStatementDenied)) => {
            QueryError::NotAllowed(refused.unwrap_or_else(|| "that".into()))
        }
        (Error::SqlInputError { msg, offset, .. }, _) => {
            let offset = usize::try_from(*offset).unwrap_or(0);
            QueryError::Sql(format!("{msg}\n{}{}", pointed(sql, offset), meant_column(msg, sql)))
        }
        (Error::MultipleStatement, _) => {
            QueryError::NotAllowed("more than one statement".to_owned())
        }
        (_, Some(ErrorCode::TooBig)) => {
            QueryError::Sql(format!("a value is too big; allowed: {MAX_VALUE} bytes"))
        }
        (_, Some(code)) if is_ours(code) => broken(error),
        (Error::SqliteFailure(_, Some(text)), _) if text.starts_with(TROUBLE) => broken(error),
        (Error::SqliteFailure(_, Some(text)), _) => QueryError::Sql(unplaced(text, sql)),
        (Error::SqliteFailure(code, None), _) => QueryError::Sql(code.to_string()),
        _ => QueryError::Sql(error.to_string()),
    }
}

/// A statement that compiles and has no answer.
fn no_question(sql: &str) -> QueryError {
    let is_verb = |word: &String| word.starts_with(|first: char| first.is_ascii_alphabetic());
    match words_of(sql).into_iter().find(is_verb) {
        Some(first) => QueryError::NotAllowed(first.to_uppercase()),
        None => QueryError::Sql("nothing is asked: a query reads, with one SELECT".into()),
    }
}

/// The word that changes something, where SQLite refuses it for what a view is before it asks us:
/// that our tables are views says nothing to whoever asks.
fn changing(message: &str, sql: &str) -> Option<QueryError> {
    const WORDS: [&str; 4] = ["insert", "replace", "update", "delete"];
    let is_refused = message.ends_with("because it is a view");
    let word = words_of(sql).into_iter().find(|word| WORDS.contains(&word.as_str()));
    let word = is_refused.then_some(word).flatten();
    word.map(|word| QueryError::NotAllowed(word.to_uppercase()))
}

/// The words of a statement in small letters, comments left out. Errors are worded by them; what a
/// statement means is SQLite's to say.
fn words_of(sql: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), sql);
    while let Some(first) = rest.chars().next() {
        let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
        let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("--") {
            until("\n")
        } else if rest.starts_with("/*") {
            until("*/")
        } else if is_of_word(first) {
            let length = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            words.push(rest[..length].to_lowercase());
            length
        } else {
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    words
}

/// Whether the disk or the file is to blame, and not the statement.
fn is_ours(code: ErrorCode) -> bool {
    use ErrorCode as C;
    matches!(
        code,
        C::InternalMalfunction
            | C::PermissionDenied
            | C::DatabaseBusy
            | C::DatabaseLocked
            | C::SystemIoFailure
            | C::DatabaseCorrupt
            | C::DiskFull
            | C::CannotOpen
            | C::NotADatabase
    )
}

/// The line with the mistake, and a caret under it.
fn pointed(sql: &str, offset: usize) -> String {
    let mut offset = offset.min(sql.len());
    while !sql.is_char_boundary(offset) {
        offset -= 1;
    }
    let begin = sql[..offset].rfind('\n').map_or(0, |at| at + 1);
    let line = sql[begin..].lines().next().unwrap_or("");
    // A statement may be one endless line.
    let before: Vec<char> = sql[begin..offset].chars().collect();
    let skipped = before.len().saturating_sub(80);
    let shown: String = line.chars().skip(skipped).take(120).collect();
    format!("  {shown}\n  {}^", " ".repeat(before.len() - skipped))
}

/// SQLite does not say where it read the name of a table that there is not; it is not hard to find.
fn unplaced(message: &str, sql: &str) -> String {
    let Some(name) = message.strip_prefix("no such table: ") else { return message.to_owned() };
    let names = tables::all().map(|table| table.name);
    let place = sql.find(name).map(|at| format!("\n{}", pointed(sql, at)));
    let place = place.unwrap_or_default();
    let meant = nearest(name, names).map(|name| format!("\ndid you mean {name}?"));
    format!("{message}{place}{}\ntables: {}", meant.unwrap_or_default(), names.join(", "))
}

/// What columns there are for one that there is not, of the tables that the statement names: the
/// nearest, or all of them where none is near.
fn meant_column(message: &str, sql: &str) -> String {
    let Some(wrong) = message.strip_prefix("no such column: ") else { return String::new() };
    let wrong = wrong.rsplit('.').next().unwrap_or(wrong);
    let words = words_of(sql);
    let is_named = |table: &&Table| words.iter().any(|word| word == table.name);
    let named: Vec<&Table> = tables::all().into_iter().filter(is_named).collect();
    let columns = named.iter().flat_map(|table| table.columns).map(|column| column.name);
    if let Some(column) = nearest(wrong, columns) {
        return format!("\ndid you mean {column}?");
    }
    let one = |table: &&Table| format!("\ncolumns of {}: {}", table.name, table.names());
    named.iter().map(one).collect()
}

#[cfg(test)]
mod charts;
#[cfg(test)]
mod tests;
