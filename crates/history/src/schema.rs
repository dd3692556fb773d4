//! The schema of the database, its version, and what an older one lacks.
//!
//! The writer converts a database when it opens it; a reader that comes before ([`HistoryReader`]
//! on a folder that no master serves) sees an older one through the views of the newest, with what
//! was not kept as absent.
//!
//! [`HistoryReader`]: crate::query::HistoryReader

use crate::tables::{Column, Kind, RAW, ROLLUPS, Rollup, Table, USAGE, USAGE_DAILY, recent_table};
use crate::usage::NO_LABELS;
use crate::usage_exchange;
use rusqlite::Connection;
use std::collections::BTreeSet;

/// In the file's `user_version`.
pub(crate) const VERSION: i64 = 2;

/// Statements that make what is not there.
pub(crate) fn create_sql() -> String {
    let mut sql = RAW.map(Table::create_sql).concat();
    for Rollup { table, keys, .. } in ROLLUPS {
        let name = recent_table(table);
        let key: Vec<&str> = table.columns[..keys].iter().map(|column| column.name).collect();
        let columns = table.column_definitions();
        sql.push_str(&format!(
            "CREATE TABLE IF NOT EXISTS {name} ({columns}, PRIMARY KEY ({})) WITHOUT ROWID;\n",
            key.join(", ")
        ));
    }
    sql.push_str(
        "CREATE TABLE IF NOT EXISTS feed_position (
             one INTEGER PRIMARY KEY CHECK (one = 1), log_epoch INTEGER NOT NULL,
             log_index INTEGER NOT NULL, position INTEGER NOT NULL);
         CREATE TABLE IF NOT EXISTS reach (what TEXT PRIMARY KEY, since INTEGER NOT NULL);
         CREATE TABLE IF NOT EXISTS machine_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
         CREATE TABLE IF NOT EXISTS archives (
             file TEXT PRIMARY KEY, what TEXT NOT NULL, day TEXT NOT NULL,
             first INTEGER NOT NULL, last INTEGER NOT NULL,
             rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sum INTEGER NOT NULL);\n",
    );
    sql.push_str(usage_exchange::SCHEMA);
    sql.push_str(&format!("PRAGMA user_version = {VERSION};\n"));
    sql
}

/// Converts a database of version `found` to this one.
pub(crate) fn migrate(db: &Connection, found: i64) -> rusqlite::Result<()> {
    // A file that a crash left without any is of version 0, and has nothing to convert.
    if found == 1 { from_1(db) } else { Ok(()) }
}

/// Rows had no CPU time and no labels; sums were by user and band, in whole units.
fn from_1(db: &Connection) -> rusqlite::Result<()> {
    let (rows, sums) = (recent_table(&USAGE), recent_table(&USAGE_DAILY));
    let keys = "day, user, band";
    let amounts: Vec<&str> = USAGE_DAILY.columns[4..].iter().map(|column| column.name).collect();
    let parts: Vec<String> = amounts.iter().map(|name| format!("{name} * 1000")).collect();
    db.execute_batch(&format!(
        "ALTER TABLE {rows} ADD COLUMN cpu_micros INTEGER;
         ALTER TABLE {rows} ADD COLUMN labels TEXT;
         ALTER TABLE {sums} RENAME TO old_sums;
         ALTER TABLE place RENAME TO feed_position;
         ALTER TABLE feed_position RENAME COLUMN era TO log_epoch;"
    ))?;
    db.execute_batch(&create_sql())?;
    db.execute_batch(&format!(
        "INSERT INTO {sums} ({keys}, labels, {}) SELECT {keys}, '{NO_LABELS}', {} FROM old_sums;
         DROP TABLE old_sums;",
        amounts.join(", "),
        parts.join(", ")
    ))
}

/// What the recent part of a table has, as the newest schema names it.
pub(crate) fn select_recent(db: &Connection, table: &Table) -> rusqlite::Result<String> {
    let from = recent_table(table);
    if version(db)? >= VERSION {
        return Ok(format!("SELECT {} FROM main.{from}", table.column_list()));
    }
    let known = stored_columns(db, &from)?;
    let columns: Vec<String> =
        table.columns.iter().map(|column| stored_or_absent(column, &known)).collect();
    let columns = columns.join(", ");
    Ok(if known.is_empty() {
        format!("SELECT {columns} WHERE 0")
    } else {
        format!("SELECT {columns} FROM main.{from}")
    })
}

/// The same for sums: they are kept in parts of what queries see.
pub(crate) fn select_sums(db: &Connection, rollup: Rollup) -> rusqlite::Result<String> {
    let Rollup { table, keys, parts } = rollup;
    if parts == 1 || version(db)? < VERSION {
        return select_recent(db, table);
    }
    let half = parts / 2;
    let columns = table.columns.iter().enumerate().map(|(at, column)| match column.name {
        key if at < keys => key.to_owned(),
        sum => format!("({sum} + {half}) / {parts} AS {sum}"),
    });
    let columns: Vec<String> = columns.collect();
    Ok(format!("SELECT {} FROM main.{}", columns.join(", "), recent_table(table)))
}

fn version(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn stored_columns(db: &Connection, table: &str) -> rusqlite::Result<BTreeSet<String>> {
    let mut select = db.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let names = select.query_map([table], |row| row.get(0))?;
    names.collect()
}

fn stored_or_absent(column: &Column, known: &BTreeSet<String>) -> String {
    let name = column.name;
    match (known.contains(name), column.required, column.kind) {
        (true, _, _) => name.to_owned(),
        (false, false, _) => format!("NULL AS {name}"),
        (false, true, Kind::Text) => format!("'{NO_LABELS}' AS {name}"),
        (false, true, _) => format!("0 AS {name}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::page_checksums::checkpoint;
    use crate::query::Value;
    use crate::store::History;
    use crate::testing::{Folder, query, settings};

    /// As the first build left it, with a row and its sums.
    const FIRST: &str = "
        DROP TABLE recent_submissions;
        DROP TABLE recent_usage_levels_daily;
        DROP TABLE recent_usage_daily;
        ALTER TABLE recent_usage DROP COLUMN labels;
        ALTER TABLE recent_usage DROP COLUMN cpu_micros;
        CREATE TABLE recent_usage_daily (
            day TEXT NOT NULL, user TEXT NOT NULL, band TEXT NOT NULL,
            task_seconds INTEGER NOT NULL, cpu_used INTEGER NOT NULL,
            cpu_reserved INTEGER NOT NULL, cpu_limit INTEGER NOT NULL, ram_used INTEGER NOT NULL,
            ram_reserved INTEGER NOT NULL, ram_limit INTEGER NOT NULL,
            PRIMARY KEY (day, user, band)) WITHOUT ROWID;
        INSERT INTO recent_usage_daily
            VALUES ('2026-11-01', 'ann', 'batch', 300, 150000, 3, 4, 5, 6, 7);
        INSERT INTO recent_usage (time, day, millis, user, job, task_index, attempt, machine, band,
            samples, cpu_avg, cpu_max, ram_avg, ram_max, disk_max, disk_rate_avg, cpu_reserved,
            ram_reserved, cpu_limit, ram_limit)
            VALUES (1793491200000, '2026-11-01', 300000, 'ann', 'web', 0, 1, 'm1', 'batch',
            60, 500, 600, 1, 2, 3, 4, 5, 6, 7, 8);
        ALTER TABLE feed_position RENAME TO place;
        ALTER TABLE place RENAME COLUMN log_epoch TO era;
        PRAGMA user_version = 1;";

    #[test]
    fn a_database_of_the_first_build_is_read_as_it_is_and_then_converted() {
        let folder = Folder::new();
        let history = History::open(folder.path(), settings()).unwrap();
        history.db.execute_batch(FIRST).unwrap();
        checkpoint(&history.db, folder.path()).unwrap();
        drop(history);
        let text = |text: &str| Value::Text(text.into());
        let sums = "select user, labels, task_seconds, cpu_used from usage_daily";
        let row = vec![text("ann"), text("{}"), Value::Integer(300), Value::Integer(150_000)];
        let rows = "select cpu_avg, cpu_micros, labels from usage";
        let absent = vec![Value::Integer(500), Value::Null, Value::Null];
        let none = "select count(*) from submissions";
        for _ in 0..2 {
            assert_eq!(query(&folder, sums).rows, std::slice::from_ref(&row));
            assert_eq!(query(&folder, rows).rows, std::slice::from_ref(&absent));
            assert_eq!(query(&folder, none).rows, [[Value::Integer(0)]]);
            drop(History::open(folder.path(), settings()).unwrap());
        }
    }
}
