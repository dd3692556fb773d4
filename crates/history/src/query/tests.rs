//! Queries over a folder of history: what is answered, what is refused, and where limits bite.

use super::*;
use crate::store::History;
use crate::testing::{BEGIN, DAY, Folder, ask, feed, number, settings, take};

fn folder(count: u64) -> Folder {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    take(&mut history, &feed(count, 100));
    folder
}

fn fails(folder: &Folder, sql: &str) -> QueryError {
    Reader::new(folder.path()).query(sql, &[], Bounds::default()).unwrap_err()
}

#[test]
fn a_mistake_is_shown_where_it_is() {
    let folder = folder(10);
    let check = |sql: &str, expected: &str| {
        assert_eq!(fails(&folder, sql), QueryError::Sql(expected.to_owned()));
    };
    check(
        "select usr from task_events",
        "no such column: usr\n  select usr from task_events\n         ^",
    );
    check(
        "select user\nfrom task_events\nwhere day == = 1",
        "near \"=\": syntax error\n  where day == = 1\n               ^",
    );
    check("", "nothing is asked; say `select ...`");
    check("-- nothing", "nothing is asked; say `select ...`");
    check("select ?", "the statement has 1 `?` and 0 args");
    let text = fails(&folder, "select * from tasks").to_string();
    let expected =
        "no such table: tasks\n  select * from tasks\n                ^\ntables: events, ";
    assert!(text.starts_with(expected), "{text}");
    let long = format!("select '{}'", "x".repeat(MAX_SQL));
    assert!(fails(&folder, &long).to_string().ends_with("allowed: 65536"));
}

#[test]
fn nothing_but_reading_is_allowed() {
    let folder = folder(10);
    for sql in [
        "insert into recent_task_events select * from recent_task_events",
        "update recent_task_events set user = 'eve'",
        "delete from recent_task_events",
        "drop table recent_task_events",
        "create table x (a)",
        "create temp table x (a)",
        "create temp view x as select 1",
        "create virtual table temp.x using archived_usage",
        "attach '/etc/passwd' as x",
        "pragma journal_mode = delete",
        "pragma writable_schema = 1",
        "select * from pragma_database_list",
        "begin immediate",
        "vacuum into '/dev/shm/stolen'",
        "analyze",
        "reindex",
        "select 1; drop table recent_task_events",
        "select load_extension('x')",
        "select writefile('/dev/shm/x', 'y')",
        "explain delete from recent_task_events",
    ] {
        let error = fails(&folder, sql);
        let refused = matches!(error, QueryError::NotAllowed(_) | QueryError::Sql(_));
        assert!(refused, "{sql}: {error:?}");
    }
    assert_eq!(number(&ask(&folder, "select count(*) from events")), 10);
}

#[test]
fn what_a_query_takes_is_bounded() {
    let folder = folder(500);
    let reader = Reader::new(folder.path());
    let bounds = Bounds { time: Duration::ZERO, ..Bounds::default() };
    let endless = "with recursive n(x) as (select 1 union all select x + 1 from n)
                   select sum(x) from n";
    assert_eq!(reader.query(endless, &[], bounds), Err(QueryError::TooSlow(Duration::ZERO)));
    let bounds = Bounds { rows: 7, ..Bounds::default() };
    let some = reader.query("select * from events", &[], bounds).unwrap();
    assert_eq!((some.rows.len(), some.truncated), (7, true));
    let bounds = Bounds { rows: 500, bytes: 1000, ..Bounds::default() };
    let some = reader.query("select object from events", &[], bounds).unwrap();
    assert!(some.truncated && some.rows.len() < 200, "{}", some.rows.len());
    let text = fails(&folder, "select zeroblob(1000000000)").to_string();
    assert!(text.contains("too big"), "{text}");
    let deep = format!("select {}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(matches!(fails(&folder, &deep), QueryError::Sql(_)));
}

#[test]
fn arguments_are_values_and_never_sql() {
    let folder = folder(100);
    let ask = |value: &str| {
        let sql = "select count(*) from task_events where user = ?";
        let args = [Value::Text(value.to_owned())];
        number(&Reader::new(folder.path()).query(sql, &args, Bounds::default()).unwrap())
    };
    assert!(ask("ann") > 0);
    assert_eq!(ask("ann' or '1' = '1"), 0);
}

#[test]
fn archived_and_recent_rows_answer_alike_and_bounds_skip_files() {
    let (moved, whole) = (folder(1500), folder(1500));
    let mut history = History::open(moved.path(), settings()).unwrap();
    let tidied = history.tidy(Time(BEGIN + 15 * DAY)).unwrap();
    assert!(tidied.archived_rows > 1000, "{tidied:?}");
    for sql in [
        "select count(*) from task_events",
        "select count(*) from task_events where day = '2026-11-04'",
        "select count(*) from task_events where day >= '2026-11-04' and day < '2026-11-09'",
        "select count(*) from task_events where day > '2026-11-30'",
        "select count(*) from events where day between '2026-11-02' and '2026-11-13'",
        "select count(*) from task_events where day in ('2026-11-02', '2026-11-03')",
        "select count(*) from task_events where time >= 1793577600000 and time < 1793750400123",
        "select count(*) from task_events where time = '1793577600000'",
        "select count(*) from task_events where machine is null",
        "select sum(exit_code) from task_events where exit_class = 'code'",
        "select count(distinct user || day) from task_events",
        "select count(*) from task_events a join machine_events b using (day)",
        "select * from task_events order by time, log_index, position limit 300",
        "select * from events order by time, log_index, position limit 700",
        "select * from task_events order by time desc, log_index desc, position desc limit 30",
    ] {
        assert_eq!(ask(&moved, sql).rows, ask(&whole, sql).rows, "{sql}");
    }
    // Without the files of other days the same day still answers: they are not opened.
    for day in ["2026-11-02", "2026-11-05"] {
        let path = moved.path().join(format!("archive/task_events/{day}.parquet"));
        std::fs::remove_file(path).unwrap();
    }
    let sql = "select count(*) from task_events where day = '2026-11-04'";
    assert!(number(&ask(&moved, sql)) > 10);
    let from = BEGIN + 5 * DAY;
    let sql = format!("select count(*) from task_events where time >= {from}");
    assert!(number(&ask(&moved, &sql)) > 10);
    assert!(fails(&moved, "select count(*) from task_events").to_string().contains("ask again"));
}

/// Usage of task `nth` at a time.
fn used(at: u64, nth: u32) -> UsageRow {
    let none = cellwright_cell::resource::Resources::ZERO;
    UsageRow {
        time: Time(at),
        millis: 1000,
        user: "ann".into(),
        job: "web".into(),
        task_index: nth,
        attempt: 1,
        machine: "m1".into(),
        band: "batch".into(),
        samples: 1,
        average: none,
        most: none,
        reserved: none,
        limit: none,
    }
}

#[test]
fn putting_usage_before_a_query_counts_in_its_time() {
    let folder = folder(1);
    let rows: Vec<UsageRow> = (0..5000).map(|nth| used(BEGIN, nth)).collect();
    let bounds = Bounds { time: Duration::ZERO, ..Bounds::default() };
    let answer = Reader::new(folder.path()).query_with(&rows, "select 1", &[], bounds);
    assert_eq!(answer, Err(QueryError::TooSlow(Duration::ZERO)));
}

#[test]
fn usage_of_days_that_are_in_archives_is_not_shown_twice() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let (old, new) = (used(BEGIN, 1), used(BEGIN + 9 * DAY, 1));
    history.take_usage(std::slice::from_ref(&old)).unwrap();
    assert_eq!(history.tidy(Time(BEGIN + 9 * DAY)).unwrap().archived_rows, 1);
    let sql = "select count(*), max(time) from usage";
    let answer = Reader::new(folder.path())
        .query_with(&[old, new.clone()], sql, &[], Bounds::default())
        .unwrap();
    let time = i64::try_from(new.time.0).unwrap();
    assert_eq!(answer.rows, [[Value::Integer(2), Value::Integer(time)]]);
}
