//! Queries: one untrusted SELECT over recent rows and archives.
//!
//! Each query has a connection of its own, opened read-only, in a transaction with one snapshot: a
//! day that is archived meanwhile is seen once. The authorizer allows nothing but SELECT, and time,
//! rows, bytes and depth of a query are limited.
//!
//! Rejected: a parser of our own in front. SQLite decides what a statement does as it prepares it,
//! and is right by construction.

use crate::archive::{Archive, archives};
use crate::page_checksums;
use crate::parquet_table::{ARCHIVE_ERROR_PREFIX, TableSource, register};
use crate::present::Present;
use crate::restored::restored_archives;
use crate::schema;
use crate::sql_functions;
use crate::store::{DATABASE_FILE, read_complete_since};
use crate::tables::{self, EVENTS, RAW, ROLLUPS, Table, USAGE, events_select, recent_table};
use crate::usage::UsageRow;
use cellwright_cell::suggestions::nearest;
use cellwright_cell::time::Time;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, Statement, params_from_iter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps of SQLite's virtual machine between two checks of the clock.
const STEPS_PER_CHECK: i32 = 4096;
/// Longest statement, in bytes.
pub const MAX_SQL: usize = 64 << 10;
/// Longest value that a query may make, in bytes. The clock is not checked within one function, and
/// with both arguments this long SQLite takes a tenth of a second for `instr` and `replace`, four
/// seconds for `trim`, and four times as much for every doubling.
const MAX_VALUE: usize = 128 << 10;
/// Most arguments of a statement.
pub const MAX_ARGS: usize = 100;
/// Page cache of one query, and memory of each sorter, in KiB. Smaller is faster here: pages are in
/// the system's cache too, and a small sort stays in the processor's.
const CACHE_KIB: i32 = 8 << 10;
/// Threads beside the query's own that sort for it: an archive has no index, so grouping sorts.
const SORTERS: i32 = 2;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Readers do not verify a database that is larger.
const MAX_VERIFIED_BYTES: u64 = 64 << 20;
/// The pause between two verifications, as a multiple of the time that one took.
const VERIFY_PAUSE_FACTOR: u32 = 10;
/// The table of usage that is not written yet.
const PRESENT_TABLE: &str = "usage_present";

/// The limits of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryLimits {
    pub max_time: Duration,
    pub max_rows: usize,
    /// Size of the answer.
    pub max_bytes: usize,
}

impl Default for QueryLimits {
    fn default() -> QueryLimits {
        QueryLimits { max_time: Duration::from_secs(30), max_rows: 1000, max_bytes: 16 << 20 }
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
    /// There were more or longer rows than the limits allow.
    pub truncated: bool,
    /// All events since then are in the tables; absent while there is none.
    pub reaches_back_to: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The statement is wrong; the text points to the mistake.
    #[error("{0}")]
    Sql(String),
    #[error("{0} is not allowed: a query reads, with one SELECT")]
    NotAllowed(String),
    #[error("the query took longer than {} ms", .0.as_millis())]
    TooSlow(Duration),
    #[error("the query was stopped: nobody waited for it")]
    Stopped,
    /// Not the caller's fault.
    #[error("{0}")]
    Broken(String),
}

/// Answers queries over a history directory; the writer may continue meanwhile.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    pub(crate) dir: PathBuf,
    /// Set when the answer is no longer needed.
    stop: Arc<AtomicBool>,
    /// When the pages were last verified, and how long that took.
    last_verified: Arc<Mutex<Option<(Instant, Duration)>>>,
}

impl HistoryReader {
    #[must_use]
    pub fn new(dir: &Path) -> HistoryReader {
        HistoryReader { dir: dir.to_owned(), stop: Arc::default(), last_verified: Arc::default() }
    }

    /// The same, whose queries end soon after this is set.
    #[must_use]
    pub fn with_stop(&self, stop: Arc<AtomicBool>) -> HistoryReader {
        HistoryReader { dir: self.dir.clone(), stop, last_verified: self.last_verified.clone() }
    }

    /// # Errors
    /// What is wrong with the statement, that it exceeds its time, or that files cannot be read.
    pub fn query(
        &self,
        sql: &str,
        args: &[Value],
        limits: QueryLimits,
    ) -> Result<Answer, QueryError> {
        self.query_with(Present::default(), sql, args, limits)
    }

    /// The same, with what is in no table yet, or in none that is kept.
    ///
    /// # Errors
    /// As those of [`HistoryReader::query`].
    pub fn query_with(
        &self,
        present: Present,
        sql: &str,
        args: &[Value],
        limits: QueryLimits,
    ) -> Result<Answer, QueryError> {
        if sql.len() > MAX_SQL {
            let length = sql.len();
            let text = format!("the statement has {length} bytes; allowed: {MAX_SQL}");
            return Err(QueryError::Sql(text));
        }
        let query_error = |error: Error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => self.interruption(limits),
            _ => read_error(error),
        };
        self.verify_pages()?;
        let start = Instant::now();
        let mut db = self.open(start, limits.max_time).map_err(query_error)?;
        self.create_row_views(&db, &present.usage).map_err(query_error)?;
        present.create_tables(&db, sql).map_err(query_error)?;
        let reaches_back_to = read_complete_since(&db, "events").map_err(query_error)?;
        let denied = restrict(&mut db).map_err(read_error)?;
        let explain = |error: Error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => self.interruption(limits),
            _ => explain_error(error, sql, &denied),
        };
        let mut statement = db.prepare(sql).map_err(explain)?;
        if !statement.readonly() || statement.column_count() == 0 {
            return Err(not_a_query(sql));
        }
        let parameters = statement.parameter_count();
        if parameters != args.len() {
            let text = format!("the statement has {parameters} `?` and {} args", args.len());
            return Err(QueryError::Sql(text));
        }
        let columns = statement.column_names().map(str::to_owned).collect();
        let (rows, truncated) = fetch(&mut statement, args, limits).map_err(explain)?;
        Ok(Answer { columns, rows, truncated, reaches_back_to })
    }

    /// Verifies that no page is damaged before a query is answered. A small database is verified
    /// for every query, unless that would be most of the work; a large one is left to the writer,
    /// which verifies all of it from time to time.
    fn verify_pages(&self) -> Result<(), QueryError> {
        let mut last_verified = self.last_verified.lock().unwrap_or_else(PoisonError::into_inner);
        let is_pausing =
            last_verified.is_some_and(|(at, took)| at.elapsed() < took * VERIFY_PAUSE_FACTOR);
        if is_pausing || page_checksums::database_size(&self.dir) > MAX_VERIFIED_BYTES {
            return Ok(());
        }
        let start = Instant::now();
        // The first connection recovers the database after a crash.
        self.connect().and_then(|db| read_complete_since(&db, "events")).map_err(read_error)?;
        page_checksums::verify(&self.dir).map_err(|error| {
            let text = format!("{error}; it is set aside and made again, ask later");
            QueryError::Broken(text)
        })?;
        *last_verified = Some((Instant::now(), start.elapsed()));
        Ok(())
    }

    fn interruption(&self, limits: QueryLimits) -> QueryError {
        if self.stop.load(Ordering::Relaxed) {
            QueryError::Stopped
        } else {
            QueryError::TooSlow(limits.max_time)
        }
    }

    /// Whether a query that began then has used up its time.
    fn is_over(&self, start: Instant, time: Duration) -> bool {
        self.stop.load(Ordering::Relaxed) || start.elapsed() > time
    }

    /// A read-only connection with one snapshot.
    pub(crate) fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(self.dir.join(DATABASE_FILE), flags)?;
        db.busy_timeout(BUSY_TIMEOUT)?;
        db.pragma_update(None, "cache_size", -CACHE_KIB)?;
        sql_functions::register(&db)?;
        db.execute_batch("BEGIN")?;
        Ok(db)
    }

    /// Creates views of the raw tables: recent rows, archived ones and those not written yet.
    fn create_row_views(&self, db: &Connection, present: &[UsageRow]) -> rusqlite::Result<()> {
        if !present.is_empty() {
            add_unwritten_usage(db, present)?;
        }
        for table in RAW {
            let mut files = archives(db, &self.dir, table)?;
            files.extend(restored_archives(db, &self.dir, table, &files)?);
            let mut sql = create_view_sql(db, table, files)?;
            if table.name == USAGE.name && !present.is_empty() {
                sql.push_str(&format!(
                    " UNION ALL SELECT {} FROM temp.{PRESENT_TABLE}",
                    table.column_list()
                ));
            }
            db.execute_batch(&sql)?;
        }
        create_rollup_views(db)
    }

    /// A connection that gives up after `time`; creating the tables counts.
    fn open(&self, start: Instant, time: Duration) -> rusqlite::Result<Connection> {
        let mut db = self.connect()?;
        let reader = self.clone();
        db.progress_handler(STEPS_PER_CHECK, Some(move || reader.is_over(start, time)))?;
        for (limit, max) in [
            (Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE as i32),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
            (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, MAX_ARGS as i32),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, SORTERS),
        ] {
            db.set_limit(limit, max)?;
        }
        Ok(db)
    }
}

/// Creates the tables that are the same for every query.
fn create_rollup_views(db: &Connection) -> rusqlite::Result<()> {
    for rollup in ROLLUPS {
        let (name, select) = (rollup.table.name, schema::select_sums(db, rollup)?);
        db.execute_batch(&format!("CREATE TEMP VIEW {name} AS {select}"))?;
    }
    let (name, columns) = (EVENTS.name, EVENTS.column_list());
    db.execute_batch(&format!("CREATE TEMP VIEW {name} ({columns}) AS {}", events_select()))
}

/// Adds usage that is not written yet, the newest word on each, without rows written meanwhile, and
/// without days in archives: to find out whether an archive has such a row, it would have to be
/// read.
fn add_unwritten_usage(db: &Connection, rows: &[UsageRow]) -> rusqlite::Result<()> {
    let (table, columns) = (recent_table(&USAGE), USAGE.column_definitions());
    let key = USAGE.unique.join(", ");
    db.execute_batch(&format!("CREATE TEMP TABLE {PRESENT_TABLE} ({columns}, UNIQUE ({key}))"))?;
    let placeholders = vec!["?"; USAGE.columns.len()].join(", ");
    let sql = format!(
        "INSERT OR REPLACE INTO temp.{PRESENT_TABLE} ({}) VALUES ({placeholders})",
        USAGE.column_list()
    );
    let mut insert = db.prepare(&sql)?;
    // Two replicas may have heard of one: the longer is the later.
    let mut rows: Vec<&UsageRow> = rows.iter().collect();
    rows.sort_by_key(|row| row.millis);
    for row in rows {
        insert.execute(params_from_iter(row.values()))?;
    }
    let same: Vec<String> =
        USAGE.unique.iter().map(|name| format!("w.{name} = {PRESENT_TABLE}.{name}")).collect();
    let written = format!("SELECT 1 FROM main.{table} w WHERE {}", same.join(" AND "));
    let moved = format!("SELECT max(day) FROM main.archives WHERE what = '{}'", USAGE.name);
    db.execute_batch(&format!(
        "DELETE FROM temp.{PRESENT_TABLE} WHERE EXISTS ({written}) OR day <= ({moved})"
    ))
}

/// The view of a whole table: its recent part, and its archives if there are any. Without archives
/// the view is no union, and SQLite's indices serve it.
fn create_view_sql(
    db: &Connection,
    table: &'static Table,
    files: Vec<Archive>,
) -> rusqlite::Result<String> {
    let (name, columns) = (table.name, table.column_list());
    let mut sql = format!("CREATE TEMP VIEW {name} AS {}", schema::select_recent(db, table)?);
    if !files.is_empty() {
        register(db, TableSource { table, archives: Arc::new(files) })?;
        sql.push_str(&format!(" UNION ALL SELECT {columns} FROM archived_{name}"));
    }
    Ok(sql)
}

type DeniedAction = Arc<Mutex<Option<String>>>;

/// Restricts the connection before the untrusted statement is prepared.
fn restrict(db: &mut Connection) -> rusqlite::Result<DeniedAction> {
    let denied: DeniedAction = Arc::default();
    let seen = denied.clone();
    db.authorizer(Some(move |context: AuthContext<'_>| match denied_action(&context.action) {
        None => Authorization::Allow,
        Some(action) => {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(action);
            Authorization::Deny
        }
    }))?;
    Ok(denied)
}

/// The denied action of a statement, in plain words; `None` for an allowed one.
fn denied_action(action: &AuthAction<'_>) -> Option<String> {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } => {
            let denied_functions =
                ["load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"];
            let is_denied =
                denied_functions.iter().any(|name| function_name.eq_ignore_ascii_case(name));
            is_denied.then(|| format!("the function {function_name}"))
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
    limits: QueryLimits,
) -> rusqlite::Result<(Vec<Vec<Value>>, bool)> {
    let width = statement.column_count();
    let mut found = statement.query(params_from_iter(args.iter().map(to_sql_value)))?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let values: Vec<Value> = (0..width)
            .map(|at| row.get_ref(at).map(from_sql_value))
            .collect::<rusqlite::Result<_>>()?;
        bytes += values.iter().map(value_size).sum::<usize>();
        if rows.len() >= limits.max_rows || bytes > limits.max_bytes {
            return Ok((rows, true));
        }
        rows.push(values);
    }
    Ok((rows, false))
}

pub(crate) fn to_sql_value(value: &Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Integer(number) => SqlValue::Integer(*number),
        Value::Real(number) => SqlValue::Real(*number),
        Value::Text(text) => SqlValue::Text(text.clone()),
    }
}

fn from_sql_value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Text(bytes.iter().map(|b| format!("{b:02x}")).collect()),
    }
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len() + 3,
        Value::Null | Value::Integer(_) | Value::Real(_) => 9,
    }
}

pub(crate) fn read_error(error: Error) -> QueryError {
    QueryError::Broken(format!("history cannot be read: {error}"))
}

fn explain_error(error: Error, sql: &str, denied: &DeniedAction) -> QueryError {
    let action = denied.lock().unwrap_or_else(PoisonError::into_inner).take();
    let message = match &error {
        Error::SqlInputError { msg, .. } => msg.as_str(),
        Error::SqliteFailure(_, Some(text)) => text.as_str(),
        _ => "",
    };
    if let Some(rejection) = denied_change(message, sql) {
        return rejection;
    }
    match (&error, error.sqlite_error_code()) {
        (_, Some(ErrorCode::AuthorizationForStatementDenied)) => {
            QueryError::NotAllowed(action.unwrap_or_else(|| "that".into()))
        }
        (Error::SqlInputError { msg, offset, .. }, _) => {
            let offset = usize::try_from(*offset).unwrap_or(0);
            QueryError::Sql(format!(
                "{msg}\n{}{}",
                caret_text(sql, offset),
                suggest_columns(msg, sql)
            ))
        }
        (Error::MultipleStatement, _) => {
            QueryError::NotAllowed("more than one statement".to_owned())
        }
        (_, Some(ErrorCode::TooBig)) => {
            QueryError::Sql(format!("a value is too big; allowed: {MAX_VALUE} bytes"))
        }
        (_, Some(code)) if is_storage_error(code) => read_error(error),
        (Error::SqliteFailure(_, Some(text)), _) if text.starts_with(ARCHIVE_ERROR_PREFIX) => {
            read_error(error)
        }
        (Error::SqliteFailure(_, Some(text)), _) => QueryError::Sql(locate_table_error(text, sql)),
        (Error::SqliteFailure(code, None), _) => QueryError::Sql(code.to_string()),
        _ => QueryError::Sql(error.to_string()),
    }
}

/// A statement that compiles and has no answer.
fn not_a_query(sql: &str) -> QueryError {
    let is_verb = |word: &String| word.starts_with(|first: char| first.is_ascii_alphabetic());
    match sql_words(sql).into_iter().find(is_verb) {
        Some(first) => QueryError::NotAllowed(first.to_uppercase()),
        None => QueryError::Sql("nothing is asked: a query reads, with one SELECT".into()),
    }
}

/// The action that changes data, where SQLite rejects it for being on a view before it calls the
/// authorizer: that our tables are views means nothing to the user.
fn denied_change(message: &str, sql: &str) -> Option<QueryError> {
    const WORDS: [&str; 4] = ["insert", "replace", "update", "delete"];
    let is_refused = message.ends_with("because it is a view");
    let word = sql_words(sql).into_iter().find(|word| WORDS.contains(&word.as_str()));
    let word = is_refused.then_some(word).flatten();
    word.map(|word| QueryError::NotAllowed(word.to_uppercase()))
}

/// The words of a statement in lower case, without comments. They only serve error messages; the
/// meaning of a statement is up to SQLite.
fn sql_words(sql: &str) -> Vec<String> {
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

/// Whether the disk or the file is the cause, and not the statement.
fn is_storage_error(code: ErrorCode) -> bool {
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
fn caret_text(sql: &str, offset: usize) -> String {
    let mut offset = offset.min(sql.len());
    while !sql.is_char_boundary(offset) {
        offset -= 1;
    }
    let begin = sql[..offset].rfind('\n').map_or(0, |at| at + 1);
    let line = sql[begin..].lines().next().unwrap_or("");
    // A statement may be one very long line.
    let before: Vec<char> = sql[begin..offset].chars().collect();
    let skipped = before.len().saturating_sub(80);
    let excerpt: String = line.chars().skip(skipped).take(120).collect();
    format!("  {excerpt}\n  {}^", " ".repeat(before.len() - skipped))
}

/// SQLite does not report the position of an unknown table; its name is easy to find.
fn locate_table_error(message: &str, sql: &str) -> String {
    let Some(name) = message.strip_prefix("no such table: ") else { return message.to_owned() };
    if tables::PRESENT.iter().any(|table| table.name == name) {
        return format!("{name} is what is now, and only a running master has it");
    }
    let names: Vec<&str> = tables::all_tables().iter().map(|table| table.name).collect();
    let caret = sql.find(name).map(|at| format!("\n{}", caret_text(sql, at)));
    let caret = caret.unwrap_or_default();
    let suggestion =
        nearest(name, names.iter().copied()).map(|name| format!("\ndid you mean {name}?"));
    format!("{message}{caret}{}\ntables: {}", suggestion.unwrap_or_default(), names.join(", "))
}

/// Suggestions for an unknown column, from the tables that the statement names: the nearest
/// columns, or all of them where none is near.
fn suggest_columns(message: &str, sql: &str) -> String {
    let Some(unknown) = message.strip_prefix("no such column: ") else { return String::new() };
    let unknown = unknown.rsplit('.').next().unwrap_or(unknown);
    let lowercase_words = sql_words(sql);
    let is_named = |table: &&Table| lowercase_words.iter().any(|word| word == table.name);
    let named: Vec<&Table> = tables::all_tables().into_iter().filter(is_named).collect();
    let columns = named.iter().flat_map(|table| table.columns).map(|column| column.name);
    if let Some(column) = nearest(unknown, columns) {
        return format!("\ndid you mean {column}?");
    }
    let columns_text =
        |table: &&Table| format!("\ncolumns of {}: {}", table.name, table.column_list());
    named.iter().map(columns_text).collect()
}

#[cfg(test)]
mod charts;
#[cfg(test)]
mod tests;
