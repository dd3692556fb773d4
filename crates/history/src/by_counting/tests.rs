//! That counting answers what sorting answers, whatever is asked.

use super::*;
use crate::store::History;
use crate::testing::{BEGIN, DAY, Folder, feed, settings, take};
use proptest::prelude::*;
use rusqlite::params;

type Rows = (Vec<String>, Vec<Vec<Value>>);

fn bounds() -> Bounds {
    Bounds { rows: 100_000, ..Bounds::default() }
}

fn whole(count: u64) -> Folder {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    take(&mut history, &feed(count, 100));
    folder
}

/// Most days are in archives.
fn archived(count: u64) -> Folder {
    let folder = whole(count);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(history.tidy(cellwright_cell::time::Time(BEGIN + 12 * DAY)).unwrap().archived_rows > 0);
    folder
}

/// What counting answers, if it does.
fn counted(folder: &Folder, sql: &str) -> Option<Rows> {
    let answer = Reader::new(folder.path()).by_counting(Instant::now(), sql, &[], bounds())?;
    Some((answer.columns, answer.rows))
}

/// What sorting answers, or what is wrong.
fn tried(folder: &Folder, sql: &str) -> Result<Rows, String> {
    let reader = Reader::new(folder.path());
    let db = reader.open(Instant::now(), Duration::from_secs(60)).unwrap();
    reader.offer_rows(&db, &[]).unwrap();
    let mut statement = db.prepare(sql).map_err(|error| error.to_string())?;
    let columns = statement.column_names().map(str::to_owned).collect();
    let rows = fetch(&mut statement, &[], bounds()).map_err(|error| error.to_string())?.0;
    Ok((columns, rows))
}

const COUNTED: [&str; 22] = [
    "select user, day, count(*) from task_events group by user, +day",
    "select day, user, count(*) from task_events group by user, +day order by 3 desc, 1, 2",
    "select exit_code, exit_class, count(*), max(user) from task_events group by 1, 2",
    "select machine, count(distinct event) n from task_events group by 1 having n > 0",
    "select event, count(*) from machine_events group by event",
    "select event, sum(task_index), avg(attempt) from task_events group by event",
    "select user, substr(day, 1, 7), count(*) from task_events group by user, substr(day, 1, 7)",
    "select substr(t.day, 9) as d, count(*) n from task_events as t group by d order by n desc, d",
    "select user || '/' || job, count(*), sum(attempt) from task_events group by 1",
    "select date(time / 1000, 'unixepoch'), count(*) from task_events group by 1",
    "select time / 86400000 d, user, min(attempt) from task_events group by d, user",
    "select strftime('%H', time / 1000, 'unixepoch') hour, count(*) from task_events group by hour",
    "select exit_code + 1, count(exit_code), avg(exit_code) from task_events group by 1",
    "select exit_code is null, total(exit_code), count(*) from task_events group by 1",
    "select upper(event) from task_events group by 1 having count(*) > 3 order by count(*), 1",
    "select max(n) from (select count(*) n from task_events group by substr(day, 6, 2))",
    "with d as (select day || user k, count(*) n from task_events group by 1) select * from d",
    "select case event when 'failed' then 1 else 0 end f, count(*) from task_events group by f",
    "select kind, count(*) from other_events group by kind",
    "select kind || '!' as k, count(*) from other_events where kind <> 'x' group by k",
    "select count(distinct user || day) from task_events",
    "select length(machine) l, count(*) from task_events where user = 'ann' or 1 group by l",
];

#[test]
fn counting_answers_what_sorting_answers() {
    for folder in [whole(4000), archived(4000)] {
        for sql in COUNTED {
            let sorted = tried(&folder, sql).unwrap();
            assert!(!sorted.1.is_empty(), "{sql}");
            assert_eq!(counted(&folder, sql), Some(sorted), "{sql}");
        }
    }
}

#[test]
fn a_kind_that_had_another_name_is_counted_with_the_new_one() {
    let folder = whole(400);
    let db = Connection::open(folder.path().join(crate::store::FILE)).unwrap();
    db.execute(
        "update recent_other_events set kind = iif(rowid % 2, 'blob', 'package')",
        params![],
    )
    .unwrap();
    let sql = "select kind, count(*) from other_events group by kind";
    let sorted = tried(&folder, sql).unwrap();
    assert_eq!(sorted.1.len(), 1);
    assert_eq!(counted(&folder, sql), Some(sorted));
}

#[test]
fn what_cannot_be_counted_is_answered_in_the_ordinary_way() {
    let folder = archived(4000);
    for sql in [
        "select user, count(*) from task_events where day = '2026-11-02' group by user",
        "select user, count(*) from events group by user",
        "select a.user, count(*) from task_events a, task_events b where a.day = b.day group by 1",
        "select user, nothing from task_events group by 1",
        "select distinct user from usage",
        "select user, group_concat(job) from task_events group by 1",
        "select user, sum(attempt * 0.1) from task_events group by 1",
        "select time, count(*) from task_events where random() group by 1",
        "select user || ?, count(*) from task_events group by 1",
        "select user || '' u, machine, count(*) from task_events group by u",
        "select user || '', sum(attempt) from (select user, 0.1 attempt from task_events) group by 1",
    ] {
        assert_eq!(counted(&folder, sql), None, "{sql}");
    }
    // An index leads to the rows, or has them in order.
    let folder = whole(400);
    for sql in [
        "select substr(day, 1, 7), count(*) from task_events where user = 'ann' group by 1",
        "select day, user, count(*) from task_events group by day, user",
    ] {
        assert_eq!(counted(&folder, sql), None, "{sql}");
    }
    let bounds = Bounds { time: Duration::ZERO, ..Bounds::default() };
    let sql = "select user, day || 'x', count(*) from task_events group by 1, 2";
    let answer = Reader::new(folder.path()).query(sql, &[], bounds);
    assert_eq!(answer, Err(crate::query::QueryError::TooSlow(Duration::ZERO)));
}

#[test]
fn a_term_to_group_by_can_do_nothing_but_make_an_index() {
    let folder = whole(10);
    let reader = Reader::new(folder.path());
    let mut db = reader.open(Instant::now(), Duration::from_secs(60)).unwrap();
    db.execute_batch("create temp table t (a)").unwrap();
    db.authorizer(Some(only_indices)).unwrap();
    for (sql, is_allowed) in [
        ("create index temp.x on t (substr(a, 1))", true),
        ("create temp view y as select 1", false),
        ("delete from t", false),
        ("insert into t values (1)", false),
        ("drop table t", false),
        ("pragma cache_size = 5", false),
        ("create index temp.z on t (load_extension(a))", false),
    ] {
        assert_eq!(db.execute_batch(sql).is_ok(), is_allowed, "{sql}");
    }
}

/// Other spellings of `time` than those that are looked for: as SQLite reads them, every one is
/// the name of the column or has it within.
const SPELLINGS: [&str; 13] = [
    "time",
    "TIME",
    "\"time\"",
    "[Time]",
    "`time`",
    "t.time",
    "t.'time'",
    "'t'.'TIME'",
    "0Xe+time",
    "0xE+time",
    "1-\u{feff}time",
    "+/* x */time",
    "(time)",
];

#[test]
fn a_time_is_seen_however_it_is_written() {
    let folder = archived(1500);
    for time in SPELLINGS {
        let day = "date(time/1000, 'unixepoch') d";
        let sql = format!("select max({time}) m, {day}, count(*) from task_events t group by d");
        let sorted = tried(&folder, &sql).unwrap();
        assert!(sorted.1.len() > 10, "{sql}");
        if let Some(counted) = counted(&folder, &sql) {
            assert_eq!(counted, sorted, "{sql}");
        }
    }
}

fn expression() -> impl Strategy<Value = String> {
    let column = prop::sample::select(vec![
        "day",
        "user",
        "job",
        "event",
        "machine",
        "reason",
        "exit_class",
        "exit_code",
        "attempt",
        "task_index",
        "position",
        "time / 3600000",
        "time / 86400000",
        "date(time / 1000, 'unixepoch')",
        "strftime('%H', time / 1000, 'unixepoch')",
    ])
    .prop_map(str::to_owned);
    column.prop_recursive(2, 6, 2, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            two.clone().prop_map(|(a, b)| format!("({a} || {b})")),
            two.clone().prop_map(|(a, b)| format!("({a}) + ({b})")),
            two.clone().prop_map(|(a, b)| format!("coalesce({a}, {b})")),
            two.prop_map(|(a, b)| format!("case when {a} > {b} then {a} end")),
            (inner.clone(), 1..6).prop_map(|(a, n)| format!("substr({a}, {n}, 3)")),
            (inner.clone(), 2..5).prop_map(|(a, n)| format!("(({a}) / {n})")),
            inner.clone().prop_map(|a| format!("length({a})")),
            inner.clone().prop_map(|a| format!("({a}) is null")),
            inner.prop_map(|a| format!("{a} collate nocase")),
        ]
    })
}

fn aggregate() -> impl Strategy<Value = String> {
    let number = prop::sample::select(vec!["exit_code", "attempt", "task_index", "log_index"]);
    prop_oneof![
        Just("count(*)".to_owned()),
        expression().prop_map(|of| format!("count({of})")),
        expression().prop_map(|of| format!("count(distinct {of})")),
        expression().prop_map(|of| format!("min({of})")),
        expression().prop_map(|of| format!("max({of})")),
        prop::sample::select(&SPELLINGS[..]).prop_map(|of| format!("max({of})")),
        (prop::sample::select(vec!["sum", "avg", "total"]), number)
            .prop_map(|(name, of)| format!("{name}({of})")),
    ]
}

fn statement() -> impl Strategy<Value = String> {
    let list = |one| prop::collection::vec(one, 1..3);
    let filter = prop::option::weighted(0.3, expression().prop_map(|of| format!("where {of}")));
    let having = prop::option::weighted(0.2, Just("having count(*) > 2".to_owned()));
    let terms = list(expression().boxed());
    (terms, list(aggregate().boxed()), filter, having, any::<bool>()).prop_map(
        |(terms, shown, filter, having, by_place)| {
            let places: Vec<String> = (1..=terms.len()).map(|nth| nth.to_string()).collect();
            let by = if by_place { places.join(", ") } else { terms.join(", ") };
            let (filter, having) = (filter.unwrap_or_default(), having.unwrap_or_default());
            let (terms, shown) = (terms.join(", "), shown.join(", "));
            format!("select {terms}, {shown} from task_events t {filter} group by {by} {having}")
        },
    )
}

#[test]
fn counting_and_sorting_agree_whatever_is_asked() {
    let folders = [whole(1500), archived(1500)];
    let answered = std::cell::Cell::new(0_u32);
    let cases = 200;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let check = |sql: String| {
        for folder in &folders {
            if let Some(counted) = counted(folder, &sql) {
                answered.set(answered.get() + 1);
                prop_assert_eq!(Ok(counted), tried(folder, &sql), "{}", sql);
            }
        }
        Ok(())
    };
    runner.run(&statement(), check).unwrap();
    assert!(answered.get() > cases / 2, "{} were counted", answered.get());
}
