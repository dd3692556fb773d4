//! Archives are readable by another program: DuckDB, which knows nothing of this one.
//!
//! `scripts/install-tools.sh test` installs it, as a Python library, where this test looks for it.
//! The reader of the library that writes the files would agree with its own mistakes.

use crate::query::Value;
use crate::store::History;
use crate::testing::{BEGIN, DAY, Folder, feed, ingest, query, settings};
use cellwright_cell::time::Time;
use std::path::PathBuf;
use std::process::Command;

/// One line per row, columns separated by tabs, `None` for absent values.
const SCRIPT: &str = "
import duckdb, sys
for row in duckdb.sql(sys.argv[1]).fetchall():
    print(*row, sep='\\t')
";

fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let python = cache.or(home)?.join("cellwright/duckdb/bin/python");
    let probe = Command::new(&python).args(["-c", "import duckdb"]).output().ok()?;
    probe.status.success().then_some(python)
}

fn line(row: &[Value]) -> String {
    let cell_text = |value: &Value| match value {
        Value::Null => "None".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
    };
    row.iter().map(cell_text).collect::<Vec<_>>().join("\t")
}

#[test]
fn duckdb_reads_archives_as_they_are() {
    let Some(python) = python() else {
        assert!(std::env::var_os("CI").is_none(), "no DuckDB: scripts/install-tools.sh test");
        println!("skipped: there is no DuckDB; scripts/install-tools.sh test fetches it");
        return;
    };
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &feed(3000, 300));
    history.enforce_retention(Time(BEGIN + 30 * DAY)).unwrap();
    let files = |table: &str| format!("'{}/archive/{table}/*.parquet'", folder.path().display());
    for (table, our_sql, their_sql) in [
        (
            "task_events",
            "select user, day, event, machine, exit_class, exit_code, count(*), min(time) \
             from task_events group by 1, 2, 3, 4, 5, 6 order by 1, 2, 3, 4, 5, 6",
            "select user, day, event, machine, exit_class, exit_code, count(*), \
             epoch_ms(min(time)) from FILES group by all order by 1, 2, 3, 4 nulls first, \
             5 nulls first, 6 nulls first",
        ),
        (
            "machine_events",
            "select machine, day, max(time), sum(log_index) \
             from machine_events group by 1, 2 order by 1, 2",
            "select machine, day, epoch_ms(max(time)), sum(log_index) \
             from FILES group by 1, 2 order by 1, 2",
        ),
    ] {
        let our_rows: Vec<String> =
            query(&folder, our_sql).rows.iter().map(|row| line(row)).collect();
        let sql = their_sql.replace("FILES", &files(table));
        let output = Command::new(&python).args(["-c", SCRIPT, &sql]).output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        assert!(!our_rows.is_empty(), "{table} has no rows to compare");
        assert_eq!(out.lines().collect::<Vec<_>>(), our_rows, "{table}");
    }
}
