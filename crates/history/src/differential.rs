//! Random statements over random rows: a folder of history answers as plain SQLite does.
//!
//! The same rows are in a folder, most days of them in Parquet files, and in tables of a database
//! in memory that has nothing of ours. What the views, the virtual table and its bounds do to a
//! query would show as another answer. `CELL_DIFFERENTIAL=1000000` asks for as many statements, and
//! `CELL_DIFFERENTIAL_SEED` for others; a failure names the seed and the statement.

mod statement;

use crate::query::{Bounds, Reader, Value, fetch};
use crate::store::History;
use crate::tables::{Column, RAW, Table, USAGE, recent};
use crate::testing::{BEGIN, DAY, Folder, settings};
use cellwright_cell::time::Time;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use statement::{Dice, Grammar, Statement};

type Rows = Result<Vec<Vec<Value>>, String>;

/// What takes some seconds.
const STATEMENTS: u64 = 1000;
/// Days of rows.
const DAYS: u64 = 12;
/// Rows of each table, and the day on which old ones are archived: nothing at all, all of it
/// recent, all archived, and days on both sides.
const WORLDS: [(usize, u64); 6] = [(0, 0), (60, 0), (60, DAYS + 8), (150, 9), (12, 8), (60, 12)];

fn bounds() -> Bounds {
    Bounds { rows: 100_000, ..Bounds::default() }
}

/// The same rows twice.
struct World {
    folder: Folder,
    plain: Connection,
}

impl World {
    fn new(dice: &mut Dice, (count, today): (usize, u64)) -> World {
        let folder = Folder::new();
        let mut history = History::open(folder.path(), settings()).unwrap();
        let plain = Connection::open_in_memory().unwrap();
        for table in RAW.into_iter().filter(|table| table.name != USAGE.name) {
            let definitions = table.definitions();
            plain.execute_batch(&format!("CREATE TABLE {} ({definitions})", table.name)).unwrap();
            let insert = table.insert();
            let plainly = insert.replace(&recent(table), table.name);
            for nth in 0..count as u64 {
                let at = BEGIN + nth * DAYS * DAY / count as u64 + dice.below(60_000) as u64;
                let mut values = row(dice, table, at);
                history.db.execute(&insert, params_from_iter(&values)).unwrap();
                values.iter_mut().for_each(called_package);
                plain.execute(&plainly, params_from_iter(&values)).unwrap();
            }
        }
        history.tidy(Time(BEGIN + today * DAY)).unwrap();
        World { folder, plain }
    }

    fn viewed(&self, sql: &str) -> Rows {
        let answer = Reader::new(self.folder.path()).query(sql, &[], bounds());
        answer.map(|answer| answer.rows).map_err(|error| error.to_string())
    }

    fn plain(&self, sql: &str) -> Rows {
        let mut statement = self.plain.prepare(sql).map_err(|error| error.to_string())?;
        fetch(&mut statement, &[], bounds()).map(|found| found.0).map_err(|error| error.to_string())
    }
}

/// As the views show it ([`Table::shown`]).
fn called_package(value: &mut SqlValue) {
    if *value == SqlValue::Text("blob".into()) {
        *value = SqlValue::Text("package".into());
    }
}

/// Few values, so that groups have rows; some that are easily mistaken for each other.
fn row(dice: &mut Dice, table: &Table, at: u64) -> Vec<SqlValue> {
    let one = |column: &Column| {
        if !column.required && dice.one_in(3) {
            return SqlValue::Null;
        }
        match column.name {
            "time" => return SqlValue::Integer(at as i64),
            "day" => return SqlValue::Text(crate::day::day_of(at)),
            "log_index" if dice.one_in(20) => return SqlValue::Integer(i64::MAX / 2),
            "log_index" => return SqlValue::Integer(10 + dice.below(30) as i64),
            "exit_code" => return SqlValue::Integer(dice.pick(&[0, 1, 2, -1, 137])),
            "position" | "task_index" | "attempt" => {
                return SqlValue::Integer(1 + dice.below(3) as i64);
            }
            _ => {}
        }
        let texts: &[&str] = match column.name {
            "user" => &["ann", "Ann", "bob", "", "1", "ann "],
            "job" => &["a", "b", "web-1"],
            "kind" => &["user", "blob", "package", "cell"],
            "detail" => &["1", "1.0", "x", "X", "é", "[1]"],
            "machine" => &["m1", "m2", "m3"],
            "exit_class" => &["code", "signal"],
            _ => &["failed", "started", "exited", "submitted"],
        };
        SqlValue::Text(dice.pick(texts).to_owned())
    };
    table.columns.iter().map(one).collect()
}

/// Errors are alike: the words for them differ.
fn agree(one: &Rows, other: &Rows, statement: &Statement) -> bool {
    let (Ok(one), Ok(other)) = (one, other) else { return one.is_err() && other.is_err() };
    // As text, for numbers of two kinds may be equal.
    let mut texts =
        [one, other].map(|rows| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<String>>());
    if !statement.is_ordered {
        texts.iter_mut().for_each(|rows| rows.sort());
    }
    texts[0] == texts[1]
}

#[test]
fn archives_and_recent_rows_answer_as_plain_tables_do() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let most = number("CELL_DIFFERENTIAL").unwrap_or(STATEMENTS);
    let seed = number("CELL_DIFFERENTIAL_SEED").unwrap_or(1);
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let worlds = WORLDS.map(|world| World::new(&mut dice, world));
    let tables = [RAW[0], RAW[0], RAW[0], RAW[1], RAW[2], RAW[3]];
    let (mut refused, mut with_rows) = (0, 0);
    for nth in 0..most {
        let mut dice = Dice(seed.wrapping_mul(1 << 32).wrapping_add(nth));
        let at = dice.below(worlds.len());
        let statement = Grammar::new(&mut { dice }, tables[(nth % 6) as usize]).statement();
        let (viewed, plain) = (worlds[at].viewed(&statement.sql), worlds[at].plain(&statement.sql));
        assert!(
            agree(&viewed, &plain, &statement),
            "seed {seed}, statement {nth}, world {at}:\n{}\n{viewed:?}\n{plain:?}",
            statement.sql
        );
        refused += u64::from(plain.is_err());
        with_rows += u64::from(plain.is_ok_and(|rows| !rows.is_empty()));
    }
    println!("{most} statements, {refused} of them refused, {with_rows} answered with rows");
    assert!(refused * 10 < most && with_rows * 2 > most, "the statements are good for nothing");
}
