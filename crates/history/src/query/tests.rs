//! Queries over a history directory: their answers, rejected statements, and limits.

use super::*;
use crate::store::History;
use crate::testing::{BEGIN, DAY, Folder, feed, ingest, number, query, settings};

fn folder(count: u64) -> Folder {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &feed(count, 100));
    folder
}

fn fails(folder: &Folder, sql: &str) -> QueryError {
    HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default()).unwrap_err()
}

#[test]
fn a_mistake_is_shown_where_it_is() {
    let folder = folder(10);
    let check = |sql: &str, expected: &str| {
        assert_eq!(fails(&folder, sql), QueryError::Sql(expected.to_owned()));
    };
    check(
        "select usr from task_events",
        "no such column: usr\n  select usr from task_events\n         ^\ndid you mean user?",
    );
    check(
        "select e.x from job_events e",
        "no such column: e.x\n  select e.x from job_events e\n         ^\n\
         columns of job_events: time, day, log_index, position, user, job, event, reason, detail, \
         actor",
    );
    check(
        "select user\nfrom task_events\nwhere day == = 1",
        "near \"=\": syntax error\n  where day == = 1\n               ^",
    );
    check("", "nothing is asked: a query reads, with one SELECT");
    check("-- nothing", "nothing is asked: a query reads, with one SELECT");
    check("select ?", "the statement has 1 `?` and 0 args");
    let text = fails(&folder, "select * from tasks").to_string();
    let expected =
        "no such table: tasks\n  select * from tasks\n                ^\ntables: events, ";
    assert!(text.starts_with(expected), "{text}");
    let text = fails(&folder, "select * from taskevents").to_string();
    assert!(text.contains("^\ndid you mean task_events?\ntables: events, "), "{text}");
    let long = format!("select '{}'", "x".repeat(MAX_SQL));
    assert!(fails(&folder, &long).to_string().ends_with("allowed: 65536"));
}

#[test]
fn codes_are_told_in_the_words_of_the_commands() {
    let folder = folder(10);
    let sql = "select reason_words('agent-report'), reason_words('of-a-newer-build'),
        ended_words('code', 3), ended_words('out-of-memory', null), reason_words(null),
        ended_words(null, 3),
        event_words('a/w/0', 'failed-for-good', 'm3', 'too-many-failures', 'code', 3, null),
        event_words('a/w/0', 'failed', 'm3', 'exited', 'code', 3, 'a fault'),
        event_words('a/w/0', 'stopping', 'm3', 'preempted', null, null, 'by b/prod/1'),
        event_words('m3', 'drain-started', 'm3', 'requested', null, null, null),
        event_words(null, 'failed', 'm3', 'exited', null, null, null)";
    let text = |text: &str| Value::Text(text.into());
    let want = vec![
        text("seen by the machine's agent"),
        text("of-a-newer-build"),
        text("exited with code 3"),
        text("out of memory at its own limit"),
        Value::Null,
        Value::Null,
        text("a/w/0 failed for good on m3: exited with code 3, its job allows no more failures"),
        text("a/w/0 failed on m3: exited with code 3 (a fault)"),
        text("a/w/0 stopping on m3: preempted by b/prod/1"),
        text("m3 drain started: requested"),
        Value::Null,
    ];
    let answer = HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default()).unwrap();
    assert_eq!(answer.rows, [want]);
    // Every documented function exists, and takes the documented arguments.
    for (call, _) in crate::sql_functions::FUNCTIONS {
        let names = "'x' reason, 'code' exit_class, 1 exit_code, 'o' object, 'e' event,
            'm' machine, 'd' detail, 7 x, 95 p, 1 weight";
        let sql = format!("select {call} from (select {names})");
        HistoryReader::new(folder.path()).query(&sql, &[], QueryLimits::default()).unwrap();
    }
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
        let rejected = matches!(error, QueryError::NotAllowed(_) | QueryError::Sql(_));
        assert!(rejected, "{sql}: {error:?}");
    }
    for (sql, expected) in [
        ("delete from events", "DELETE"),
        ("with x as (select 1) update events set user = 'eve'", "UPDATE"),
        ("insert into events select * from events", "INSERT"),
        ("vacuum", "VACUUM"),
    ] {
        assert_eq!(fails(&folder, sql), QueryError::NotAllowed(expected.to_owned()), "{sql}");
    }
    assert_eq!(number(&query(&folder, "select count(*) from events")), 10);
}

#[test]
fn what_a_query_takes_is_bounded() {
    let folder = folder(500);
    let reader = HistoryReader::new(folder.path());
    let limits = QueryLimits { max_time: Duration::ZERO, ..QueryLimits::default() };
    let endless = "with recursive n(x) as (select 1 union all select x + 1 from n)
                   select sum(x) from n";
    assert_eq!(reader.query(endless, &[], limits), Err(QueryError::TooSlow(Duration::ZERO)));
    let limits = QueryLimits { max_rows: 7, ..QueryLimits::default() };
    let some = reader.query("select * from events", &[], limits).unwrap();
    assert_eq!((some.rows.len(), some.truncated), (7, true));
    let limits = QueryLimits { max_rows: 500, max_bytes: 1000, ..QueryLimits::default() };
    let some = reader.query("select object from events", &[], limits).unwrap();
    assert!(some.truncated && some.rows.len() < 200, "{}", some.rows.len());
    // Inside such a function the clock is not checked, for minutes.
    let slow = "select instr(hex(zeroblob(8000000)), hex(zeroblob(4000000)) || '1')";
    for sql in ["select zeroblob(1000000000)", "select length(hex(zeroblob(100000)))", slow] {
        assert_eq!(fails(&folder, sql).to_string(), "a value is too big; allowed: 131072 bytes");
    }
    assert_eq!(number(&query(&folder, "select length(hex(zeroblob(65000)))")), 130_000);
    let deep = format!("select {}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(matches!(fails(&folder, &deep), QueryError::Sql(_)));
}

#[test]
fn a_query_that_nobody_waits_for_ends() {
    let folder = folder(10);
    let endless = "with recursive n(x) as (select 1 union all select x + 1 from n)
                   select sum(x) from n";
    let limits = QueryLimits { max_time: Duration::from_secs(3600), ..QueryLimits::default() };
    let stop = Arc::new(AtomicBool::new(false));
    let reader = HistoryReader::new(folder.path()).with_stop(stop.clone());
    assert!(!reader.is_over(Instant::now(), limits.max_time));
    stop.store(true, Ordering::Relaxed);
    assert!(reader.is_over(Instant::now(), limits.max_time));
    assert_eq!(reader.query(endless, &[], limits), Err(QueryError::Stopped));
}

#[test]
fn arguments_are_values_and_never_sql() {
    let folder = folder(100);
    let count = |value: &str| {
        let sql = "select count(*) from task_events where user = ?";
        let args = [Value::Text(value.to_owned())];
        number(
            &HistoryReader::new(folder.path()).query(sql, &args, QueryLimits::default()).unwrap(),
        )
    };
    assert!(count("ann") > 0);
    assert_eq!(count("ann' or '1' = '1"), 0);
}

#[test]
fn archived_and_recent_rows_answer_alike_and_bounds_skip_files() {
    let (moved, whole) = (folder(1500), folder(1500));
    let mut history = History::open(moved.path(), settings()).unwrap();
    let result = history.enforce_retention(Time(BEGIN + 15 * DAY)).unwrap();
    assert!(result.archived_rows > 1000, "{result:?}");
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
        assert_eq!(query(&moved, sql).rows, query(&whole, sql).rows, "{sql}");
    }
    // Without the files of other days the same day still answers: they are not opened.
    for day in ["2026-11-02", "2026-11-05"] {
        let path = moved.path().join(format!("archive/task_events/{day}.parquet"));
        std::fs::remove_file(path).unwrap();
    }
    let sql = "select count(*) from task_events where day = '2026-11-04'";
    assert!(number(&query(&moved, sql)) > 10);
    let from = BEGIN + 5 * DAY;
    let sql = format!("select count(*) from task_events where time >= {from}");
    assert!(number(&query(&moved, &sql)) > 10);
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
        peak: none,
        reserved: none,
        limit: none,
        cpu_micros: 0,
        labels: String::new(),
    }
}

#[test]
fn putting_usage_before_a_query_counts_in_its_time() {
    let folder = folder(1);
    let rows: Vec<UsageRow> = (0..5000).map(|nth| used(BEGIN, nth)).collect();
    let limits = QueryLimits { max_time: Duration::ZERO, ..QueryLimits::default() };
    let present = Present::of_usage(rows);
    let answer = HistoryReader::new(folder.path()).query_with(present, "select 1", &[], limits);
    assert_eq!(answer, Err(QueryError::TooSlow(Duration::ZERO)));
}

#[test]
fn usage_of_days_that_are_in_archives_is_not_shown_twice() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let (old, new) = (used(BEGIN, 1), used(BEGIN + 9 * DAY, 1));
    history.ingest_usage(std::slice::from_ref(&old)).unwrap();
    assert_eq!(history.enforce_retention(Time(BEGIN + 9 * DAY)).unwrap().archived_rows, 1);
    let sql = "select count(*), max(time) from usage";
    let answer = HistoryReader::new(folder.path())
        .query_with(Present::of_usage(vec![old, new.clone()]), sql, &[], QueryLimits::default())
        .unwrap();
    let time = i64::try_from(new.time.0).unwrap();
    assert_eq!(answer.rows, [[Value::Integer(2), Value::Integer(time)]]);
}

/// The error for a directory with a damaged file; the other days still answer.
fn check_damaged(folder: &Folder, path: &Path, damage: &str) {
    for sql in [
        "select sum(log_index), max(user) from task_events",
        "select user || event from \
        task_events group by 1",
        "select * from task_events",
    ] {
        let error =
            HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default()).unwrap_err();
        assert!(matches!(error, QueryError::Broken(_)), "{damage}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{damage}: {text}");
        assert!(text.contains("from another replica or a backup"), "{damage}: {text}");
    }
    for rest in ["day = '2026-11-03'", "day > '2026-11-04'", "day < '2026-11-04'"] {
        let sql = format!("select count(*), max(user) from task_events where {rest}");
        assert_eq!(query(folder, &sql).rows.len(), 1, "{damage}: {rest}");
    }
    assert!(number(&query(folder, "select count(*) from machine_events")) > 10);
}

#[test]
fn a_damaged_archive_is_named_and_other_days_still_answer() {
    let folder = folder(1500);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.enforce_retention(Time(BEGIN + 15 * DAY)).unwrap().archived_rows > 1000);
    let path = folder.path().join("archive/task_events/2026-11-04.parquet");
    let good = std::fs::read(&path).unwrap();
    for (damage, bytes) in [
        ("empty", Vec::new()),
        ("something else", b"not at all".to_vec()),
        ("cut short", good[..good.len() / 2].to_vec()),
        ("without its last byte", good[..good.len() - 1].to_vec()),
        ("zeros within", {
            let end = good.len() - 1000;
            [&good[..4], &vec![0; end - 4][..], &good[end..]].concat()
        }),
    ] {
        std::fs::write(&path, bytes).unwrap();
        check_damaged(&folder, &path, damage);
    }
    std::fs::remove_file(&path).unwrap();
    check_damaged(&folder, &path, "gone");
}

#[test]
fn no_damage_of_an_archive_ends_the_process() {
    let folder = folder(300);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.enforce_retention(Time(BEGIN + 15 * DAY)).unwrap().archived_rows > 100);
    let path = folder.path().join("archive/task_events/2026-11-02.parquet");
    let good = std::fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(29) {
        for byte in [0, 0x7f, 0xff, good[at] ^ 1] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            std::fs::write(&path, bytes).unwrap();
            let sql = "select * from task_events";
            match HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default()) {
                Ok(answer) => {
                    assert!(answer.rows.len() >= 100, "byte {at}: rows are missing");
                    let is_whole = |row: &Vec<Value>| {
                        let mut values = row.iter().zip(tables::TASK_EVENTS.columns);
                        values.all(|(value, column)| !column.required || *value != Value::Null)
                    };
                    assert!(answer.rows.iter().all(is_whole), "byte {at}: values are missing");
                }
                Err(error) => assert!(error.to_string().contains("2026-11-02.parquet"), "{error}"),
            }
        }
    }
}
