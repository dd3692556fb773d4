//! Exchange of usage rows between replicas, so that every replica has those of the whole cell: each
//! writes the reports of the agents it polls, and fetches from the others what they wrote.
//!
//! A replica returns its own rows in the order in which it wrote them, and the fetching one stores
//! its cursor in the transaction that adds the rows: killed anywhere, it continues from there.
//! Which rows are a replica's own is kept as ranges of row numbers, one for each batch of the
//! writer, so nothing is stored twice. A log that was lost and begun anew has another id, and is
//! read from its beginning; so is one that was restored from a backup and is shorter than a
//! reader's cursor. Rows that exist already are skipped.
//!
//! Rejected: sending rows out. A replica that is away would be owed them, and the debt kept
//! somewhere.

use crate::error::HistoryError;
use crate::event_rows::to_sql_integer;
use crate::query::{HistoryReader, QueryError, read_error};
use crate::store::{History, add_usage};
use crate::tables::{USAGE, recent_table};
use crate::usage::UsageRow;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use rusqlite::{Connection, OptionalExtension, Row, Transaction};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS usage_log (
        one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL);
    INSERT OR IGNORE INTO usage_log (one, id) VALUES (1, abs(random() % 9007199254740991));
    CREATE TABLE IF NOT EXISTS own_usage (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS usage_cursors (
        replica INTEGER PRIMARY KEY, log_id INTEGER NOT NULL, upto INTEGER NOT NULL);\n";

/// A cursor into the usage log of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCursor {
    pub log_id: u64,
    pub up_to: u64,
}

/// Rows that a replica wrote of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageBatch {
    /// Where these end; the cursor of the next fetch.
    pub cursor: UsageCursor,
    pub rows: Vec<UsageRow>,
    /// There are more already.
    pub more: bool,
}

/// The row number of the next own row; later ones are larger, even after deletions.
pub(crate) fn next_own_row(db: &Connection) -> rusqlite::Result<i64> {
    let sql = format!(
        "SELECT max(coalesce((SELECT max(last) FROM own_usage), 0),
                    coalesce((SELECT max(rowid) FROM {}), 0)) + 1",
        recent_table(&USAGE)
    );
    db.query_row(&sql, [], |row| row.get(0))
}

/// Records that rows from `first` on are own ones. Ranges whose rows were deleted are removed,
/// except the newest, which is where to continue.
pub(crate) fn record_own_rows(
    change: &Transaction<'_>,
    first: i64,
    last: i64,
) -> rusqlite::Result<()> {
    change
        .execute("INSERT OR REPLACE INTO own_usage (first, last) VALUES (?1, ?2)", [first, last])?;
    let sql = format!(
        "DELETE FROM own_usage WHERE last < coalesce((SELECT min(rowid) FROM {}), 0)
         AND first < (SELECT max(first) FROM own_usage)",
        recent_table(&USAGE)
    );
    change.execute(&sql, []).map(drop)
}

impl History {
    /// The cursor of this replica in the usage log of another one.
    ///
    /// # Errors
    /// When reading from the database fails.
    pub fn cursor_of(&self, replica: u64) -> Result<UsageCursor, HistoryError> {
        let sql = "SELECT log_id, upto FROM usage_cursors WHERE replica = ?1";
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        let read = |row: &Row<'_>| {
            Ok(UsageCursor { log_id: number(row.get(0)?), up_to: number(row.get(1)?) })
        };
        Ok(self.db.query_row(sql, [to_sql_integer(replica)], read).optional()?.unwrap_or_default())
    }

    /// The cursors of all replicas that have sent something.
    ///
    /// # Errors
    /// When reading from the database fails.
    pub fn cursors(&self) -> Result<BTreeMap<u64, UsageCursor>, HistoryError> {
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        let mut select = self.db.prepare("SELECT replica, log_id, upto FROM usage_cursors")?;
        let rows = select.query_map([], |row| {
            let cursor = UsageCursor { log_id: number(row.get(1)?), up_to: number(row.get(2)?) };
            Ok((number(row.get(0)?), cursor))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Adds the batch of another replica, and its cursor.
    ///
    /// # Errors
    /// When an operation on the database fails; then nothing of it is there.
    pub fn merge_batch(&mut self, replica: u64, batch: &UsageBatch) -> Result<(), HistoryError> {
        let change = self.db.transaction()?;
        add_usage(&change, &batch.rows, None)?;
        let sql =
            "INSERT OR REPLACE INTO usage_cursors (replica, log_id, upto) VALUES (?1, ?2, ?3)";
        change
            .execute(sql, [replica, batch.cursor.log_id, batch.cursor.up_to].map(to_sql_integer))?;
        change.commit()?;
        self.checkpoint_if_large()
    }
}

impl HistoryReader {
    /// Up to `max_rows` rows that this replica wrote itself after `cursor`; all of them for a
    /// cursor of another log, or past the end of this one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn usage_after(
        &self,
        cursor: UsageCursor,
        max_rows: usize,
    ) -> Result<UsageBatch, QueryError> {
        self.own_rows(cursor, max_rows).map_err(read_error)
    }

    fn own_rows(&self, cursor: UsageCursor, max_rows: usize) -> rusqlite::Result<UsageBatch> {
        let db = self.connect()?;
        let log_id = db.query_row("SELECT id FROM usage_log", [], |row| row.get::<_, i64>(0))?;
        let log_id = u64::try_from(log_id).unwrap_or(0);
        let end = "SELECT coalesce(max(last), 0) FROM own_usage";
        let end = db.query_row(end, [], |row| row.get::<_, i64>(0))?;
        let known = log_id == cursor.log_id && cursor.up_to <= u64::try_from(end).unwrap_or(0);
        let after = if known { cursor.up_to } else { 0 };
        let sql = format!(
            "SELECT u.rowid, {} FROM own_usage o
             JOIN {} u ON u.rowid BETWEEN max(o.first, ?1 + 1) AND o.last
             WHERE o.last > ?1 ORDER BY o.first, u.rowid LIMIT ?2",
            USAGE.column_list(),
            recent_table(&USAGE)
        );
        let mut select = db.prepare(&sql)?;
        let mut found =
            select.query((to_sql_integer(after), to_sql_integer(max_rows as u64 + 1)))?;
        let mut batch =
            UsageBatch { cursor: UsageCursor { log_id, up_to: after }, ..UsageBatch::default() };
        while let Some(row) = found.next()? {
            if batch.rows.len() == max_rows {
                batch.more = true;
                return Ok(batch);
            }
            batch.cursor.up_to = row.get::<_, i64>(0).map(|at| u64::try_from(at).unwrap_or(0))?;
            batch.rows.push(read_row(row)?);
        }
        Ok(batch)
    }
}

/// A row as [`UsageRow::values`] wrote it, after its number.
fn read_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    let number = |at: usize| row.get::<_, i64>(at).map(|n| u64::try_from(n).unwrap_or(0));
    let small = |at: usize| number(at).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let none = Resources::ZERO;
    let (millis, cpu_avg) = (number(3)?, number(11)?);
    // Rows of before it was kept have the rounded rate alone.
    let counted = row.get::<_, Option<i64>>(21)?.and_then(|micros| u64::try_from(micros).ok());
    Ok(UsageRow {
        time: Time(number(1)?),
        millis,
        user: row.get(4)?,
        job: row.get(5)?,
        task_index: small(6)?,
        attempt: small(7)?,
        machine: row.get(8)?,
        band: row.get(9)?,
        samples: number(10)?,
        average: Resources { cpu: cpu_avg, ram: number(13)?, disk: 0, disk_rate: number(16)? },
        peak: Resources { cpu: number(12)?, ram: number(14)?, disk: number(15)?, disk_rate: 0 },
        reserved: Resources { cpu: number(17)?, ram: number(18)?, ..none },
        limit: Resources { cpu: number(19)?, ram: number(20)?, ..none },
        cpu_micros: counted.unwrap_or(cpu_avg.saturating_mul(millis)),
        labels: row.get::<_, Option<String>>(22)?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RetentionConfig;
    use crate::testing::{BEGIN, Folder, number, query};

    /// The usage of a task in a turn; every figure is different.
    fn used(turn: u64, task: u64) -> UsageRow {
        let two = |cpu, ram| Resources { cpu, ram, ..Resources::ZERO };
        UsageRow {
            time: Time(BEGIN + turn * 300_000 + task),
            millis: 60_000,
            user: "ann".into(),
            job: format!("job-{task}"),
            task_index: 3,
            attempt: 2,
            machine: "m1".into(),
            band: "batch".into(),
            samples: 7,
            average: Resources { disk_rate: 11, ..two(500, 1 << 30) },
            peak: Resources { disk: 12, ..two(900, 2 << 30) },
            reserved: two(1000, 3 << 30),
            limit: two(2000, 4 << 30),
            cpu_micros: 30_000_123,
            labels: r#"{"team":"search"}"#.into(),
        }
    }

    fn open(folder: &Folder) -> History {
        History::open(folder.path(), RetentionConfig::default()).unwrap()
    }

    /// Fetches until there is nothing more, a few rows at a time.
    fn fetch(into: &mut History, replica: u64, from: &Folder) -> usize {
        let mut rounds = 0;
        loop {
            let cursor = into.cursor_of(replica).unwrap();
            let batch = HistoryReader::new(from.path()).usage_after(cursor, 3).unwrap();
            into.merge_batch(replica, &batch).unwrap();
            rounds += 1;
            if !batch.more {
                return rounds;
            }
        }
    }

    const COUNT: &str = "select count(*) from usage";
    const SECONDS: &str = "select coalesce(sum(task_seconds), 0) from usage_daily";

    #[test]
    fn every_replica_comes_to_have_the_usage_of_all() {
        let folders = [Folder::new(), Folder::new(), Folder::new()];
        let mut all = folders.each_ref().map(open);
        for turn in 0..4_u64 {
            for (nth, history) in (0_u64..).zip(&mut all) {
                let rows: Vec<UsageRow> = (0..5).map(|task| used(turn, nth * 10 + task)).collect();
                history.ingest_usage(&rows).unwrap();
            }
            for (nth, history) in all.iter_mut().enumerate() {
                for (other, folder) in folders.iter().enumerate().filter(|(at, _)| *at != nth) {
                    let rounds = fetch(history, other as u64, folder);
                    assert_eq!(rounds, 2, "its own five, and none that it fetched itself");
                }
            }
        }
        let sums = folders.each_ref().map(|folder| number(&query(folder, SECONDS)));
        assert_eq!(folders.each_ref().map(|folder| number(&query(folder, COUNT))), [60; 3]);
        assert_eq!(sums, [sums[0]; 3]);
    }

    #[test]
    fn a_reader_that_was_killed_goes_on_where_it_was_and_counts_nothing_twice() {
        let (own_folder, other) = (Folder::new(), Folder::new());
        let mut source = open(&own_folder);
        source.ingest_usage(&(0..7).map(|task| used(0, task)).collect::<Vec<_>>()).unwrap();
        let mut history = open(&other);
        let batch =
            HistoryReader::new(own_folder.path()).usage_after(UsageCursor::default(), 3).unwrap();
        assert_eq!((batch.rows.len(), batch.more), (3, true));
        assert_eq!(batch.rows[0], used(0, 0));
        history.merge_batch(1, &batch).unwrap();
        drop(history);
        let mut history = open(&other);
        assert_eq!(history.cursor_of(1).unwrap(), batch.cursor);
        assert_eq!(history.cursors().unwrap(), BTreeMap::from([(1, batch.cursor)]));
        history.merge_batch(1, &batch).unwrap();
        assert_eq!(number(&query(&other, COUNT)), 3, "told again, and passed over");
        fetch(&mut history, 1, &own_folder);
        assert_eq!(number(&query(&other, COUNT)), 7);
        assert_eq!(number(&query(&other, SECONDS)), number(&query(&own_folder, SECONDS)));
    }

    #[test]
    fn a_book_that_was_begun_anew_is_read_from_its_beginning() {
        let (first, second, other) = (Folder::new(), Folder::new(), Folder::new());
        let mut history = open(&other);
        open(&first).ingest_usage(&[used(0, 1), used(0, 2), used(0, 3)]).unwrap();
        fetch(&mut history, 1, &first);
        open(&second).ingest_usage(&[used(9, 4)]).unwrap();
        fetch(&mut history, 1, &second);
        assert_eq!(number(&query(&other, COUNT)), 4);
    }

    #[test]
    fn a_book_restored_from_a_backup_is_read_from_its_beginning() {
        let (own_folder, other) = (Folder::new(), Folder::new());
        let mut source = open(&own_folder);
        source.ingest_usage(&[used(0, 1), used(0, 2)]).unwrap();
        source.ingest_usage(&[used(1, 1), used(1, 2), used(1, 3)]).unwrap();
        let mut history = open(&other);
        fetch(&mut history, 1, &own_folder);
        // As it was after the first turn; then it writes on, with row numbers that were sent
        // before.
        source.db.execute_batch("DELETE FROM recent_usage WHERE rowid > 2").unwrap();
        source.db.execute_batch("DELETE FROM own_usage WHERE first > 2").unwrap();
        source.ingest_usage(&[used(2, 1)]).unwrap();
        fetch(&mut history, 1, &own_folder);
        assert_eq!(number(&query(&other, COUNT)), 6, "five that were there, and the new one");
        assert_eq!(history.cursor_of(1).unwrap().up_to, 3);
        source.ingest_usage(&[used(3, 1)]).unwrap();
        assert_eq!(fetch(&mut history, 1, &own_folder), 1);
        assert_eq!(number(&query(&other, COUNT)), 7);
    }

    #[test]
    fn numbers_of_rows_grow_whatever_is_forgotten() {
        let folder = Folder::new();
        let mut history = open(&folder);
        history.ingest_usage(&[used(0, 1), used(0, 2)]).unwrap();
        let cursor = HistoryReader::new(folder.path())
            .usage_after(UsageCursor::default(), 9)
            .unwrap()
            .cursor;
        history.db.execute_batch("DELETE FROM recent_usage").unwrap();
        history.ingest_usage(&[used(1, 1)]).unwrap();
        let batch = HistoryReader::new(folder.path()).usage_after(cursor, 9).unwrap();
        assert_eq!(batch.rows, [used(1, 1)]);
    }
}
