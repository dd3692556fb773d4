//! Differential test: random statements over random rows; history answers as plain SQLite does.
//!
//! The same rows are in a history directory, most days of them in Parquet files, and in ordinary
//! tables of a database in memory. Any effect of the views, the virtual table or its bounds on a
//! query would show as a different answer. `CELL_DIFFERENTIAL=1000000` sets the number of
//! statements, and `CELL_DIFFERENTIAL_SEED` the seed; a failure names the seed and the statement.

mod statement;

use crate::query::{HistoryReader, QueryLimits, Value, fetch};
use crate::store::History;
use crate::tables::{Column, Kind, RAW, Table, USAGE, recent_table};
use crate::testing::{BEGIN, DAY, Folder, settings};
use cellwright_cell::time::Time;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use statement::{Statement, StatementGenerator, TestRng};

type Rows = Result<Vec<Vec<Value>>, String>;

/// Takes some seconds.
const DEFAULT_STATEMENTS: u64 = 1000;
/// Days of rows.
const DAYS: u64 = 12;
/// Rows of each table, and the day on which old ones are archived: no rows, all recent, all
/// archived, and days on both sides.
const WORLDS: [(usize, u64); 6] = [(0, 0), (60, 0), (60, DAYS + 8), (150, 9), (12, 8), (60, 12)];

fn bounds() -> QueryLimits {
    QueryLimits { max_rows: 100_000, ..QueryLimits::default() }
}

/// The same rows twice.
struct World {
    folder: Folder,
    query_plain: Connection,
}

impl World {
    fn new(rng: &mut TestRng, (count, today): (usize, u64)) -> World {
        let folder = Folder::new();
        let mut history = History::open(folder.path(), settings()).unwrap();
        let query_plain = Connection::open_in_memory().unwrap();
        for table in RAW.into_iter().filter(|table| table.name != USAGE.name) {
            let definitions = table.column_definitions();
            query_plain
                .execute_batch(&format!("CREATE TABLE {} ({definitions})", table.name))
                .unwrap();
            let insert = table.insert_sql();
            let plainly = insert.replace(&recent_table(table), table.name);
            for nth in 0..count as u64 {
                let at = BEGIN + nth * DAYS * DAY / count as u64 + rng.below(60_000) as u64;
                let values = row(rng, table, at);
                history.db.execute(&insert, params_from_iter(&values)).unwrap();
                query_plain.execute(&plainly, params_from_iter(&values)).unwrap();
            }
        }
        history.enforce_retention(Time(BEGIN + today * DAY)).unwrap();
        World { folder, query_plain }
    }

    fn query_views(&self, sql: &str) -> Rows {
        let answer = HistoryReader::new(self.folder.path()).query(sql, &[], bounds());
        answer.map(|answer| answer.rows).map_err(|error| error.to_string())
    }

    fn query_plain(&self, sql: &str) -> Rows {
        let mut statement = self.query_plain.prepare(sql).map_err(|error| error.to_string())?;
        fetch(&mut statement, &[], bounds()).map(|found| found.0).map_err(|error| error.to_string())
    }
}

/// Few distinct values, so that groups have rows; some that are easily mistaken for each other.
fn row(rng: &mut TestRng, table: &Table, at: u64) -> Vec<SqlValue> {
    let random_value = |column: &Column| {
        if !column.required && rng.one_in(3) {
            return SqlValue::Null;
        }
        match column.name {
            "time" => return SqlValue::Integer(at as i64),
            "day" => return SqlValue::Text(crate::day::day_of(at)),
            "log_index" if rng.one_in(20) => return SqlValue::Integer(i64::MAX / 2),
            "log_index" => return SqlValue::Integer(10 + rng.below(30) as i64),
            "exit_code" => return SqlValue::Integer(rng.pick(&[0, 1, 2, -1, 137])),
            "position" | "task_index" | "attempt" => {
                return SqlValue::Integer(1 + rng.below(3) as i64);
            }
            _ => {}
        }
        if column.kind == Kind::Integer {
            return SqlValue::Integer(rng.below(5) as i64);
        }
        let texts: &[&str] = match column.name {
            "user" => &["ann", "Ann", "bob", "", "1", "ann "],
            "job" => &["a", "b", "web-1"],
            "kind" => &["user", "cron", "package", "cell"],
            "detail" => &["1", "1.0", "x", "X", "é", "[1]"],
            "machine" => &["m1", "m2", "m3"],
            "exit_class" => &["code", "signal"],
            _ => &["failed", "started", "exited", "submitted"],
        };
        SqlValue::Text(rng.pick(texts).to_owned())
    };
    table.columns.iter().map(random_value).collect()
}

/// Errors count as equal: their messages differ.
fn results_agree(left: &Rows, other: &Rows, statement: &Statement) -> bool {
    let (Ok(left), Ok(other)) = (left, other) else { return left.is_err() && other.is_err() };
    // Compared as text, because numbers of two types may be equal.
    let mut texts = [left, other]
        .map(|rows| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<String>>());
    if !statement.is_ordered {
        texts.iter_mut().for_each(|rows| rows.sort());
    }
    texts[0] == texts[1]
}

#[test]
fn archives_and_recent_rows_answer_as_plain_tables_do() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("CELL_DIFFERENTIAL").unwrap_or(DEFAULT_STATEMENTS);
    let seed = number("CELL_DIFFERENTIAL_SEED").unwrap_or(1);
    println!("seed {seed}");
    let mut rng = TestRng(seed);
    let worlds = WORLDS.map(|world| World::new(&mut rng, world));
    let tables = [RAW[0], RAW[0], RAW[0], RAW[1], RAW[2], RAW[3], RAW[5]];
    let (mut rejected, mut with_rows) = (0, 0);
    for nth in 0..count {
        let mut rng = TestRng(seed.wrapping_mul(1 << 32).wrapping_add(nth));
        let at = rng.below(worlds.len());
        let statement =
            StatementGenerator::new(&mut { rng }, tables[(nth % 7) as usize]).statement();
        let (viewed, plain) =
            (worlds[at].query_views(&statement.sql), worlds[at].query_plain(&statement.sql));
        assert!(
            results_agree(&viewed, &plain, &statement),
            "seed {seed}, statement {nth}, world {at}:\n{}\n{viewed:?}\n{plain:?}",
            statement.sql
        );
        rejected += u64::from(plain.is_err());
        with_rows += u64::from(plain.is_ok_and(|rows| !rows.is_empty()));
    }
    println!("{count} statements, {rejected} of them refused, {with_rows} answered with rows");
    assert!(rejected * 10 < count && with_rows * 2 > count, "the statements are good for nothing");
}
