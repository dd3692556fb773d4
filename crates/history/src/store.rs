//! The writer: folds the event feed, and the usage of tasks, into SQLite.
//!
//! Rows, sums and the cursor into the feed change in one transaction. However often the process is
//! killed, the next one continues after the last event in the tables; nothing is lost and nothing
//! is there twice. The file is not synced in every transaction: a power cut loses the newest
//! transactions as a whole, cursor included, and the feed repeats them.
//!
//! Rejected: writing rows in the path of every log entry. A query that holds the file's lock, or a
//! slow disk, would hold up the cell.

use crate::day::day_of;
use crate::error::HistoryError;
use crate::event_rows::{self, FeedEvent, MachineNames, to_sql_integer};
use crate::page_checksums;
use crate::repair;
use crate::restored::RestoredPart;
use crate::schema;
use crate::tables::{
    RAW, ROLLUPS, SUBMISSIONS, TASK_EVENTS, TASK_EVENTS_DAILY, Table, USAGE, USAGE_DAILY,
    USAGE_LEVELS_DAILY, recent_table,
};
use crate::usage::UsageRow;
use crate::usage_exchange;
use cellwright_cell::id::MachineId;
use cellwright_cell::time::{Span, Time};
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Transaction, params_from_iter};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const DATABASE_FILE: &str = "recent.sqlite";
/// The page cache: a batch of events touches as many pages of the indices as it has rows, and pages
/// that do not stay in memory are written and read again within one transaction.
const CACHE_KIB: i32 = 64 << 10;
/// A WAL of this size is checkpointed; the same as SQLite's own default.
const CHECKPOINT_BYTES: u64 = 4 << 20;
/// Readers never block the writer in WAL mode; this is for a second process that opens the file.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Retention: how much is kept, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Days older than this are moved from SQLite to Parquet files.
    pub recent: Span,
    /// Days older than this are deleted ...
    pub keep: Span,
    /// ... and so are the oldest ones when all of history takes more than this.
    pub max_bytes: u64,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        let days = |days: u64| Span(days * crate::day::MILLIS);
        RetentionConfig { recent: days(28), keep: days(400), max_bytes: 8 << 30 }
    }
}

/// A position in the feed: everything up to this event is in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedPosition {
    pub index: u64,
    pub position: u32,
}

impl FeedPosition {
    pub const START: FeedPosition = FeedPosition { index: 0, position: u32::MAX };
}

/// A slice of the feed to be ingested.
#[derive(Clone, Copy, Debug)]
pub struct FeedSlice<'a> {
    pub events: &'a [FeedEvent],
    /// Events between the cursor and the first of these are lost.
    pub gap: bool,
}

const WRITER_LOCK_FILE: &str = "writer.lock";

/// The kernel releases it when the process ends, however that comes about.
fn lock_as_writer(dir: &Path) -> Result<File, HistoryError> {
    let path = dir.join(WRITER_LOCK_FILE);
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).map_err(HistoryError::file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HistoryError::InUse { path: dir.to_owned() }),
        Err(TryLockError::Error(why)) => Err(HistoryError::File { path, why }),
    }
}

/// The one writer of a history directory.
pub struct History {
    pub(crate) db: Connection,
    pub(crate) dir: PathBuf,
    pub(crate) settings: RetentionConfig,
    /// How much longer days wait for an archive elsewhere, and which files are in there.
    pub(crate) hold: Option<(Span, BTreeSet<RestoredPart>)>,
    position: FeedPosition,
    log_epoch: u64,
    machines: MachineNames,
    take_repair_note: Option<String>,
    /// Released when the database is closed; the last field, for they are dropped in order.
    _writer_lock: Arc<File>,
}

impl History {
    /// Opens the directory, creating it if it does not exist. A damaged database is set aside and
    /// created anew; the list of archives is kept.
    ///
    /// # Errors
    /// When it cannot be read or written, a newer build wrote it, or another process writes it:
    /// SQLite would let both, but the checksums of one would not know the pages of the other.
    pub fn open(dir: &Path, settings: RetentionConfig) -> Result<History, HistoryError> {
        repair::make_folder(dir)?;
        let writer_lock = Arc::new(lock_as_writer(dir)?);
        let damage = match History::open_undamaged(dir, settings, &writer_lock) {
            Err(error) if repair::is_damage(&error) => error.to_string(),
            opened => return opened,
        };
        let archives = repair::set_aside(dir)?;
        let mut history = History::open_undamaged(dir, settings, &writer_lock)?;
        history.restore_archive_list(&archives)?;
        history.delete_strays()?;
        history.take_repair_note = Some(damage);
        Ok(history)
    }

    fn open_undamaged(
        dir: &Path,
        settings: RetentionConfig,
        writer_lock: &Arc<File>,
    ) -> Result<History, HistoryError> {
        let file = dir.join(DATABASE_FILE);
        repair::make_file(&file)?;
        let is_new = page_checksums::database_size(dir) == 0;
        let mut db = Connection::open(&file)?;
        // Checkpoints are made here, to record the checksum of each page: see `page_checksums`.
        // This comes first: a connection that is closed after an error would make one as well.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.busy_timeout(BUSY_TIMEOUT)?;
        // Before the first table: the space of deleted days is returned to the file system.
        db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.pragma_update(None, "cache_size", -CACHE_KIB)?;
        let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found > schema::VERSION {
            return Err(HistoryError::Newer { path: file, found, known: schema::VERSION });
        }
        page_checksums::verify(dir)?;
        let change = db.transaction()?;
        schema::migrate(&change, found)?;
        change.execute_batch(&schema::create_sql())?;
        change.commit()?;
        page_checksums::checkpoint(&db, dir)?;
        let (log_epoch, position) = read_position(&db)?;
        let machines = read_machine_names(&db)?;
        let (dir, repaired) = (dir.to_owned(), None);
        let mut history = History {
            db,
            dir,
            settings,
            hold: None,
            position,
            log_epoch,
            machines,
            take_repair_note: repaired,
            _writer_lock: writer_lock.clone(),
        };
        // The archives beside a new database are no strays: they are put on its list, or set aside
        // by hand.
        if !is_new {
            history.delete_strays()?;
        }
        Ok(history)
    }

    /// The damage for which this database was created anew, once.
    pub fn take_repair_note(&mut self) -> Option<String> {
        self.take_repair_note.take()
    }

    /// Checkpoints the WAL when it is large.
    pub(crate) fn checkpoint_if_large(&self) -> Result<(), HistoryError> {
        if page_checksums::wal_size(&self.dir) >= CHECKPOINT_BYTES {
            page_checksums::checkpoint(&self.db, &self.dir)
        } else {
            Ok(())
        }
    }

    /// The position from which to read the feed.
    #[must_use]
    pub fn position(&self) -> FeedPosition {
        self.position
    }

    /// The log of the feed. A restored cell begins a new one, whose indices count from the
    /// checkpoint: its feed is read from the beginning.
    ///
    /// # Errors
    /// When an operation on the database fails.
    pub fn enter_log(&mut self, log_epoch: u64) -> Result<(), HistoryError> {
        if self.log_epoch == log_epoch {
            return Ok(());
        }
        let change = self.db.transaction()?;
        save_position(&change, log_epoch, FeedPosition::START)?;
        change.commit()?;
        (self.log_epoch, self.position) = (log_epoch, FeedPosition::START);
        Ok(())
    }

    /// Ingests a slice of the feed. Events up to the cursor are skipped. `name` resolves machines
    /// whose own events were before the beginning.
    ///
    /// # Errors
    /// When an operation on the database fails; then nothing of the slice is in it.
    pub fn ingest(
        &mut self,
        stretch: FeedSlice<'_>,
        name: &dyn Fn(MachineId) -> Option<String>,
    ) -> Result<(), HistoryError> {
        let position = self.position;
        let new = |event: &&FeedEvent| {
            (event.index, event.position) > (position.index, position.position)
        };
        let events: Vec<&FeedEvent> = stretch.events.iter().filter(new).collect();
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Ok(()) };
        let position = FeedPosition { index: last.index, position: last.position };
        let change = self.db.transaction()?;
        if stretch.gap || self.position == FeedPosition::START {
            raise_complete_since(&change, "events", first.event.at)?;
        }
        let learned = match write_rows(&change, &events, &mut self.machines, name) {
            Ok(learned) => learned,
            Err(error) => {
                drop(change);
                self.machines = read_machine_names(&self.db)?;
                return Err(error);
            }
        };
        for (id, known) in learned {
            let sql = "INSERT OR REPLACE INTO machine_names (id, name) VALUES (?1, ?2)";
            change.execute(sql, (id.0, known))?;
        }
        save_position(&change, self.log_epoch, position)?;
        change.commit()?;
        self.position = position;
        self.checkpoint_if_large()
    }

    /// Adds the usage of tasks, as agents reported it to this replica. A row that exists is
    /// skipped. All of it is on the disk once this returns: the agents are told, and keep it no
    /// longer.
    ///
    /// # Errors
    /// When an operation on the database fails; then none of the rows is in it.
    pub fn ingest_usage(&mut self, rows: &[UsageRow]) -> Result<(), HistoryError> {
        let Some(more) = i64::try_from(rows.len()).ok().filter(|count| *count > 0) else {
            return Ok(());
        };
        self.db.pragma_update(None, "synchronous", "FULL")?;
        let written = self.write_own_usage(rows, more);
        self.db.pragma_update(None, "synchronous", "NORMAL")?;
        written?;
        self.checkpoint_if_large()
    }

    fn write_own_usage(&mut self, rows: &[UsageRow], more: i64) -> Result<(), HistoryError> {
        let change = self.db.transaction()?;
        let first = usage_exchange::next_own_row(&change)?;
        add_usage(&change, rows, Some(first))?;
        usage_exchange::record_own_rows(&change, first, first + more - 1)?;
        Ok(change.commit()?)
    }

    /// The time since which history is complete: that of events, or that of usage.
    ///
    /// # Errors
    /// When reading from the database fails.
    pub fn complete_since(&self, kind: &str) -> Result<Option<Time>, HistoryError> {
        Ok(read_complete_since(&self.db, kind)?)
    }
}

/// Adds rows of usage and their sums; `first` is the number of the first row where that matters.
pub(crate) fn add_usage(
    change: &Transaction<'_>,
    rows: &[UsageRow],
    first: Option<i64>,
) -> Result<(), HistoryError> {
    let Some(oldest) = rows.iter().map(|row| row.time).min() else { return Ok(()) };
    let known = "SELECT 1 FROM reach WHERE what = 'usage'";
    if change.query_row(known, [], |_| Ok(())).optional()?.is_none() {
        raise_complete_since(change, "usage", oldest)?;
    }
    let placeholders = vec!["?"; USAGE.columns.len() + 1].join(", ");
    let (table, names) = (recent_table(&USAGE), USAGE.column_list());
    let sql = format!("INSERT OR IGNORE INTO {table} (rowid, {names}) VALUES ({placeholders})");
    let mut insert = change.prepare(&sql)?;
    let mut find_labels = change.prepare(&labels_sql())?;
    let mut sums: BTreeMap<(String, &str, &str, String), [i64; 7]> = BTreeMap::new();
    let mut levels: BTreeMap<(String, &str, &str, &str, i64), i64> = BTreeMap::new();
    for (offset, row) in (0..).zip(rows) {
        let number = first.map_or(Value::Null, |first| Value::Integer(first + offset));
        let mut labelled = row.clone();
        if labelled.labels.is_empty() {
            let at = (&row.user, &row.job, to_sql_integer(row.time.0));
            let found = find_labels.query_row(at, |row| row.get::<_, Option<String>>(0));
            labelled.labels = found.optional()?.flatten().unwrap_or_default();
        }
        let values = std::iter::once(number).chain(labelled.values());
        if insert.execute(params_from_iter(values))? == 0 {
            continue;
        }
        let day = day_of(row.time.0);
        for (resource, level, millis) in row.levels() {
            let key = (day.clone(), row.user.as_str(), row.band.as_str(), resource, level);
            let sum = levels.entry(key).or_default();
            *sum = sum.saturating_add(millis);
        }
        let labels = labelled.known_labels().to_owned();
        let sum = sums.entry((day, row.user.as_str(), row.band.as_str(), labels)).or_default();
        let more = row.sums();
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    let mut add = change.prepare(&upsert_sum_sql(&USAGE_DAILY))?;
    for ((day, user, band, labels), sum) in sums {
        let key = [day, user.to_owned(), band.to_owned(), labels].map(Value::Text);
        add.execute(params_from_iter(key.into_iter().chain(sum.map(Value::Integer))))?;
    }
    let mut add = change.prepare(&upsert_sum_sql(&USAGE_LEVELS_DAILY))?;
    for ((day, user, band, resource, level), millis) in levels {
        add.execute((day, user, band, resource, level, millis))?;
    }
    Ok(())
}

/// Labels of a job at a time, from what was submitted: for rows that come when the cell has
/// forgotten the job. Submissions that are in archives are not looked for.
fn labels_sql() -> String {
    format!(
        "SELECT labels FROM {} WHERE user = ?1 AND job = ?2 AND time <= ?3
         ORDER BY time DESC, log_index DESC, position DESC LIMIT 1",
        recent_table(&SUBMISSIONS)
    )
}

pub(crate) fn read_complete_since(db: &Connection, kind: &str) -> rusqlite::Result<Option<Time>> {
    let sql = "SELECT since FROM reach WHERE what = ?1";
    let found = db.query_row(sql, [kind], |row| row.get::<_, i64>(0)).optional()?;
    Ok(found.map(|millis| Time(u64::try_from(millis).unwrap_or(0))))
}

/// From now on history is complete no further back than this.
pub(crate) fn raise_complete_since(
    change: &Transaction<'_>,
    kind: &str,
    at: Time,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO reach (what, since) VALUES (?1, ?2)
               ON CONFLICT (what) DO UPDATE SET since = max(since, excluded.since)";
    change.execute(sql, (kind, to_sql_integer(at.0)))?;
    Ok(())
}

/// Writes rows and sums; returns the names of machines found in them.
fn write_rows(
    change: &Transaction<'_>,
    events: &[&FeedEvent],
    machines: &mut MachineNames,
    name: &dyn Fn(MachineId) -> Option<String>,
) -> Result<BTreeMap<MachineId, String>, HistoryError> {
    let mut inserts = BTreeMap::new();
    for table in RAW {
        inserts.insert(table.name, change.prepare(&table.insert_sql())?);
    }
    let user = TASK_EVENTS.column_position("user").unwrap_or(0);
    let event = TASK_EVENTS.column_position("event").unwrap_or(0);
    let mut learned = BTreeMap::new();
    let mut counts: BTreeMap<[String; 3], i64> = BTreeMap::new();
    for feed_event in events {
        if let Some((id, known)) = event_rows::machine_name(feed_event)
            && machines.get(&id).is_none_or(|name| name != known)
        {
            machines.insert(id, known.to_owned());
            learned.insert(id, known.to_owned());
        }
        if let Some(id) =
            feed_event.event.mentioned_machine().filter(|id| !machines.contains_key(id))
            && let Some(known) = name(id)
        {
            machines.insert(id, known.clone());
            learned.insert(id, known);
        }
        let row = event_rows::to_row(feed_event, machines);
        if row.table.name == TASK_EVENTS.name {
            let key = [1, user, event].map(|at| text_of(&row.values[at]));
            *counts.entry(key).or_default() += 1;
        }
        for row in std::iter::once(row).chain(event_rows::submission_row(feed_event)) {
            if let Some(insert) = inserts.get_mut(row.table.name) {
                insert.execute(params_from_iter(row.values))?;
            }
        }
    }
    let mut add = change.prepare(&upsert_sum_sql(&TASK_EVENTS_DAILY))?;
    for ([day, user, event], count) in counts {
        add.execute((day, user, event, count))?;
    }
    Ok(learned)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        _ => String::new(),
    }
}

/// Adds to a row of a rollup, creating it if need be.
fn upsert_sum_sql(table: &Table) -> String {
    let keys = ROLLUPS.iter().find(|rollup| rollup.table.name == table.name);
    let keys = keys.map_or(0, |rollup| rollup.keys);
    let placeholders = vec!["?"; table.columns.len()].join(", ");
    let key: Vec<&str> = table.columns[..keys].iter().map(|column| column.name).collect();
    let sums = table.columns[keys..].iter().map(|column| column.name);
    let sums: Vec<String> = sums.map(|name| format!("{name} = {name} + excluded.{name}")).collect();
    format!(
        "INSERT INTO {} ({}) VALUES ({placeholders}) ON CONFLICT ({}) DO UPDATE SET {}",
        recent_table(table),
        table.column_list(),
        key.join(", "),
        sums.join(", ")
    )
}

fn save_position(
    change: &Transaction<'_>,
    log_epoch: u64,
    position: FeedPosition,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO feed_position (one, log_epoch, log_index, position) \
               VALUES (1, ?1, ?2, ?3)";
    change.execute(
        sql,
        (to_sql_integer(log_epoch), to_sql_integer(position.index), position.position),
    )?;
    Ok(())
}

fn read_position(db: &Connection) -> rusqlite::Result<(u64, FeedPosition)> {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let sql = "SELECT log_epoch, log_index, position FROM feed_position";
    let found = db.query_row(sql, [], |row| {
        let position = FeedPosition { index: number(row.get(1)?), position: row.get(2)? };
        Ok((number(row.get(0)?), position))
    });
    Ok(found.optional()?.unwrap_or((0, FeedPosition::START)))
}

fn read_machine_names(db: &Connection) -> rusqlite::Result<MachineNames> {
    let mut select = db.prepare("SELECT id, name FROM machine_names")?;
    let rows = select.query_map([], |row| Ok((MachineId(row.get(0)?), row.get(1)?)))?;
    rows.collect()
}
