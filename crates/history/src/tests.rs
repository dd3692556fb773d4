//! History is the fold of the feed, however the feed is divided.

use crate::event_rows::{FeedEvent, Submission};
use crate::query::Value;
use crate::store::{FeedPosition, FeedSlice, History, RetentionConfig};
use crate::testing::{
    BEGIN, DAY, Folder, dump_all, feed, feed_event, ingest, number, query, settings,
};
use crate::usage::UsageRow;
use cellwright_cell::event::{EventKind, JobChange, TaskChange};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::{Span, Time};
use proptest::prelude::*;

/// The events after the writer's cursor, as the feed would give them.
fn feed_after(events: &[FeedEvent], position: FeedPosition, max: usize) -> &[FeedEvent] {
    let from = events.partition_point(|event| {
        (event.index, event.position) <= (position.index, position.position)
    });
    &events[from..events.len().min(from + max)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Steps of any size; the process dies after some of them, days move to archives in between,
    /// and the feed may repeat events.
    #[test]
    fn history_is_the_fold_of_the_feed_however_it_is_cut(
        steps in prop::collection::vec((1_usize..60, any::<bool>(), any::<bool>(), 0_usize..9), 40)
    ) {
        let events = feed(600, 60);
        let (cut, whole) = (Folder::new(), Folder::new());
        let mut expected = History::open(whole.path(), settings()).unwrap();
        let mut history = History::open(cut.path(), settings()).unwrap();
        for (most, dies, tidies, again) in steps {
            let new = feed_after(&events, history.position(), most);
            let Some(last) = new.last() else { break };
            let end = events.iter().position(|event| event == last).unwrap() + 1;
            let slice = &events[(end - new.len()).saturating_sub(again)..end];
            ingest(&mut history, slice);
            if tidies {
                history.enforce_retention(last.event.at).unwrap();
            }
            if dies {
                drop(history);
                history = History::open(cut.path(), settings()).unwrap();
            }
        }
        let done = events.iter().take_while(|event| {
            (event.index, event.position) <= (history.position().index, history.position().position)
        });
        let done: Vec<FeedEvent> = done.cloned().collect();
        ingest(&mut expected, &done);
        prop_assert_eq!(dump_all(&cut), dump_all(&whole));
    }
}

#[test]
fn a_move_that_was_cut_short_is_made_again_once() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &feed(500, 50));
    let before = dump_all(&folder);
    // As if the process had died after writing the file and before listing it.
    let stray = folder.path().join("archive/task_events/2026-11-01.parquet");
    std::fs::create_dir_all(stray.parent().unwrap()).unwrap();
    std::fs::write(&stray, b"PAR1 half of it").unwrap();
    assert_eq!(dump_all(&folder), before);
    drop(history);
    let mut history = History::open(folder.path(), settings()).unwrap();
    assert!(!stray.exists());
    let first = history.enforce_retention(Time(BEGIN + 20 * DAY)).unwrap();
    assert_eq!(first.archived_rows, 500);
    assert_eq!(history.enforce_retention(Time(BEGIN + 20 * DAY)).unwrap().archived_rows, 0);
    assert_eq!(number(&query(&folder, "select count(*) from main.recent_task_events")), 0);
    assert_eq!(dump_all(&folder), before);
}

#[test]
fn a_day_that_gets_late_rows_has_a_second_file() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let events = feed(120, 60);
    ingest(&mut history, &events[..40]);
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    ingest(&mut history, &events[40..]);
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    let days = folder.path().join("archive/task_events");
    assert!(days.join("2026-11-01.2.parquet").exists());
    assert_eq!(number(&query(&folder, "select count(*) from events")), 120);
}

#[test]
fn parquet_files_have_the_columns_and_the_magic_of_any_other() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &feed(300, 100));
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    let path = folder.path().join("archive/task_events/2026-11-02.parquet");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::try_from(path.as_path()).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let sql = "select count(*) from task_events where day = '2026-11-02'";
    assert_eq!(rows.len() as i64, number(&query(&folder, sql)));
    let names: Vec<&String> = rows[0].get_column_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), crate::tables::TASK_EVENTS.columns.len());
    assert!(rows[0].to_string().contains("day: \"2026-11-02\""), "{}", rows[0]);
}

#[test]
fn what_is_kept_is_bounded_by_age_and_by_size() {
    let folder = Folder::new();
    let keep = RetentionConfig { keep: Span(5 * DAY), ..settings() };
    let mut history = History::open(folder.path(), keep).unwrap();
    ingest(&mut history, &feed(1000, 100));
    assert_eq!(history.complete_since("events").unwrap(), Some(Time(BEGIN)));
    let result = history.enforce_retention(Time(BEGIN + 10 * DAY - 1)).unwrap();
    assert_eq!(result.forgotten_days, 4);
    assert_eq!(history.complete_since("events").unwrap(), Some(Time(BEGIN + 4 * DAY)));
    assert_eq!(number(&query(&folder, "select count(*) from events")), 600);
    let first = query(&folder, "select min(day) from task_events_daily").rows;
    assert_eq!(first, [[Value::Text("2026-11-05".into())]]);
    drop(history);
    let small = RetentionConfig { max_bytes: 1, ..keep };
    let mut history = History::open(folder.path(), small).unwrap();
    history.enforce_retention(Time(BEGIN + 10 * DAY - 1)).unwrap();
    let days = query(&folder, "select distinct day from events").rows;
    assert_eq!(days, [[Value::Text("2026-11-10".into())]], "today stays");
    let left = std::fs::read_dir(folder.path().join("archive/task_events")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn a_gap_in_the_feed_shortens_how_far_back_it_reaches() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let events = feed(100, 50);
    ingest(&mut history, &events[..20]);
    history.ingest(FeedSlice { events: &events[60..], gap: true }, &|_| None).unwrap();
    assert_eq!(history.complete_since("events").unwrap(), Some(events[60].event.at));
    let answer = query(&folder, "select count(*) from events");
    assert_eq!((number(&answer), answer.reaches_back_to), (60, Some(events[60].event.at)));
}

#[test]
fn the_feed_of_a_restored_cell_is_read_from_its_beginning() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let events = feed(100, 50);
    history.enter_log(0).unwrap();
    ingest(&mut history, &events);
    drop(history);
    let mut history = History::open(folder.path(), settings()).unwrap();
    history.enter_log(1).unwrap();
    assert_eq!(history.position(), FeedPosition::START);
    let renumbered: Vec<FeedEvent> = events[..20]
        .iter()
        .map(|event| {
            let mut event = event.clone();
            event.event.at = Time(BEGIN + 5 * DAY);
            event
        })
        .collect();
    ingest(&mut history, &renumbered);
    history.enter_log(1).unwrap();
    ingest(&mut history, &renumbered);
    assert_eq!(number(&query(&folder, "select count(*) from events")), 120);
}

#[test]
fn machines_have_the_name_they_had_then() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let id = MachineId(7);
    let started = |index| {
        let change = TaskChange::Started { machine: id };
        let event_kind =
            EventKind::Task { task: TaskId(1), job: JobId(1), index: 0, attempt: 1, change };
        feed_event(index, 0, "ann/web/0", BEGIN + index, event_kind, Reason::AgentReport)
    };
    let added = |index, name: &str| {
        let change = cellwright_cell::event::MachineChange::Added;
        let event_kind = EventKind::Machine { machine: id, change };
        feed_event(index, 0, name, BEGIN + index, event_kind, Reason::Requested)
    };
    let events = [started(1), added(2, "new"), started(3), added(4, "newer")];
    let name = |_| Some("from-the-state".to_owned());
    history.ingest(FeedSlice { events: &events[..3], gap: false }, &name).unwrap();
    drop(history);
    let mut history = History::open(folder.path(), settings()).unwrap();
    let rest = [added(4, "newer"), started(5)];
    history.ingest(FeedSlice { events: &rest, gap: false }, &|_| None).unwrap();
    let found = query(&folder, "select machine from task_events order by log_index").rows;
    let expected = ["from-the-state", "new", "newer"].map(|name| [Value::Text(name.into())]);
    assert_eq!(found, expected);
}

#[test]
fn the_last_failure_says_where_and_how_and_what_it_was_for_want_of() {
    use cellwright_cell::event::JobChange;
    use cellwright_cell::task::ExitClass;
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let of_task = |index, reason, change| {
        let event_kind =
            EventKind::Task { task: TaskId(1), job: JobId(1), index: 0, attempt: 1, change };
        feed_event(index, 0, "ann/sums/0", BEGIN + index, event_kind, reason)
    };
    let (machine, exit) = (MachineId(7), ExitClass::Code(3));
    let given_up = of_task(1, Reason::TooManyFailures, TaskChange::GaveUp { machine, exit });
    let by = TaskId(9);
    let mut pushed = of_task(2, Reason::Preempted { by }, TaskChange::Stopping { machine });
    pushed.related_object = Some("bob/prod/1".into());
    let event_kind = EventKind::Job { job: JobId(2), change: JobChange::NeverRan };
    let why = Reason::DependencyFailed { job: JobId(1) };
    let mut never = feed_event(3, 0, "ann/join", BEGIN + 3, event_kind, why);
    never.related_object = Some("ann/sums".into());
    let name = |_| Some("m7".to_owned());
    let events = [given_up, pushed, never];
    history.ingest(FeedSlice { events: &events, gap: false }, &name).unwrap();
    let sql = "select event, machine, exit_class, exit_code, detail from events order by log_index";
    let text = |text: &str| Value::Text(text.into());
    let expected = [
        [text("failed-for-good"), text("m7"), text("code"), Value::Integer(3), Value::Null],
        [text("stopping"), text("m7"), Value::Null, Value::Null, text("by bob/prod/1")],
        [text("never-ran"), Value::Null, Value::Null, Value::Null, text("ann/sums")],
    ];
    assert_eq!(query(&folder, sql).rows, expected);
    let query = queries_of_the_guide().into_iter().find(|query| query.contains("failures"));
    let row = ["m7", "code"].map(text).into_iter().chain([3, 1, 1].map(Value::Integer));
    assert_eq!(self::query(&folder, &query.unwrap()).rows, [row.collect::<Vec<_>>()]);
}

fn usage(nth: u64, user: &str) -> UsageRow {
    let amount = |cpu, ram| Resources { cpu, ram, ..Resources::ZERO };
    UsageRow {
        time: Time(BEGIN + nth * 300_000),
        millis: 300_000,
        user: user.into(),
        job: "web".into(),
        task_index: 0,
        attempt: 1,
        machine: "m1".into(),
        band: "production".into(),
        samples: 60,
        average: amount(500, 1 << 30),
        peak: amount(900, 2 << 30),
        reserved: amount(1000, 3 << 30),
        limit: amount(2000, 4 << 30),
        cpu_micros: 150_000_000,
        labels: r#"{"team":"search"}"#.into(),
    }
}

#[test]
fn usage_that_comes_twice_counts_once_and_adds_up_to_days() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let rows: Vec<UsageRow> = (0..288 * 2).map(|nth| usage(nth, "ann")).collect();
    history.ingest_usage(&rows[..300]).unwrap();
    history.ingest_usage(&rows[200..]).unwrap();
    history.enforce_retention(Time(BEGIN + 10 * DAY)).unwrap();
    assert_eq!(number(&query(&folder, "select count(*) from usage")), 576);
    let sql = "select task_seconds, cpu_used, cpu_limit, ram_used, ram_reserved from usage_daily";
    let day = [86_400, 43_200_000, 172_800_000, 88_473_600, 265_420_800].map(Value::Integer);
    assert_eq!(query(&folder, sql).rows, [day.to_vec(), day.to_vec()]);
    assert_eq!(history.complete_since("usage").unwrap(), Some(Time(BEGIN)));
}

#[test]
fn usage_has_the_labels_of_its_job_also_when_the_cell_has_forgotten_it() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let submitted = |index: u64, at: u64, team: &str| {
        let event_kind =
            EventKind::Job { job: cellwright_cell::id::JobId(1), change: JobChange::Submitted };
        let event = feed_event(index, 0, "ann/web", at, event_kind, Reason::Requested);
        let spec = format!(
            r#"{{"name": "web", "count": 3, "priority": 210, "labels": {{"team": "{team}"}},
                "task": {{"limits": {{"cpu": 500, "ram": 7, "disk": 0, "disk_rate": 0}}}}}}"#
        );
        FeedEvent { submission: Some(Submission { version: index as u32, spec }), ..event }
    };
    ingest(&mut history, &[submitted(1, BEGIN, "search"), submitted(2, BEGIN + DAY, "ads")]);
    let unknown = |nth| UsageRow { labels: String::new(), ..usage(nth, "ann") };
    let of_nobody = UsageRow { user: "cid".into(), ..unknown(2) };
    history.ingest_usage(&[unknown(0), unknown(288), usage(1, "bob"), of_nobody]).unwrap();
    let sql = "select user, json_extract(labels, '$.team'), sum(cpu_used) from usage_daily
               group by 1, 2 order by 1, 2";
    let row = |user: &str, team: Option<&str>| {
        let team = team.map_or(Value::Null, |team| Value::Text(team.into()));
        vec![Value::Text(user.into()), team, Value::Integer(150_000)]
    };
    let expected = [
        row("ann", Some("ads")),
        row("ann", Some("search")),
        row("bob", Some("search")),
        row("cid", None),
    ];
    assert_eq!(query(&folder, sql).rows, expected);
    let sql = "select user, job, version, tasks, priority, band, cpu_limit, ram_limit, event
               from submissions order by log_index limit 1";
    let text = |text: &str| Value::Text(text.into());
    let expected = vec![
        text("ann"),
        text("web"),
        Value::Integer(1),
        Value::Integer(3),
        Value::Integer(210),
        text("production"),
        Value::Integer(500),
        Value::Integer(7),
        text("submitted"),
    ];
    assert_eq!(query(&folder, sql).rows, [expected]);
}

#[test]
fn levels_of_a_day_say_percentiles_as_its_rows_do() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let at = |nth: u64, cpu: u64| {
        let average = Resources { cpu, ..usage(nth, "ann").average };
        UsageRow { average, ..usage(nth, "ann") }
    };
    let rows: Vec<UsageRow> = (0..200).map(|nth| at(nth, 10 + nth * nth)).collect();
    history.ingest_usage(&rows).unwrap();
    for percent in [5, 50, 95, 100] {
        let of_rows = format!("select percentile(cpu_avg, {percent}, millis) from usage");
        let of_levels = format!(
            "select percentile(level, {percent}, task_seconds) from usage_levels_daily
             where resource = 'cpu'"
        );
        let (exact, near) =
            (number(&query(&folder, &of_rows)), number(&query(&folder, &of_levels)));
        assert!(near >= exact && near - exact <= exact / 16, "{percent}: {exact} {near}");
    }
    let count = number(&query(&folder, "select count(*) from usage_levels_daily"));
    assert!(count < 150, "{count} levels for 200 rows");
}

#[test]
fn tasks_of_a_fiftieth_of_a_second_add_up_to_the_microsecond() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let row = |nth: u64| {
        let (time, millis, cpu_micros) = (Time(BEGIN + nth), 20, 4321);
        UsageRow { time, millis, cpu_micros, ..usage(0, "ann") }
    };
    let rows: Vec<UsageRow> = (0..1000).map(row).collect();
    rows.chunks(300).for_each(|rows| history.ingest_usage(rows).unwrap());
    let sql = "select task_seconds, cpu_used from usage_daily";
    assert_eq!(query(&folder, sql).rows, [[Value::Integer(20), Value::Integer(4321)]]);
}

#[test]
fn packages_are_found_by_that_name_among_recent_rows_and_in_archives() {
    use cellwright_cell::event::BlobChange;
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    let added = |index: u64| {
        let event_kind =
            EventKind::Blob { blob: cellwright_cell::id::BlobId(1), change: BlobChange::Added };
        feed_event(index, 0, "cafe", BEGIN + index * DAY, event_kind, Reason::Requested)
    };
    let level = feed_event(
        9,
        0,
        "cell",
        BEGIN + 9 * DAY,
        EventKind::LevelRaised { level: 2 },
        Reason::Requested,
    );
    ingest(&mut history, &[added(1), added(8), level]);
    assert_eq!(history.enforce_retention(Time(BEGIN + 9 * DAY)).unwrap().archived_rows, 1);
    ingest(&mut history, &[added(10)]);
    for table in ["events", "other_events"] {
        let find = format!("select count(*) from {table} where kind = 'package'");
        assert_eq!(number(&query(&folder, &find)), 3, "{table}");
        let kinds = format!("select kind, count(*) from {table} group by kind");
        let row = |kind: &str, times| vec![Value::Text(kind.into()), Value::Integer(times)];
        assert_eq!(query(&folder, &kinds).rows, [row("cell", 1), row("package", 3)], "{table}");
    }
}

#[test]
fn a_folder_of_a_newer_build_is_left_alone() {
    let folder = Folder::new();
    drop(History::open(folder.path(), settings()).unwrap());
    let db = rusqlite::Connection::open(folder.path().join("recent.sqlite")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    let error = History::open(folder.path(), settings()).err().unwrap().to_string();
    assert!(error.contains("format 99"), "{error}");
}

/// Queries between ```sql and ``` in the guide.
fn queries_of_the_guide() -> Vec<String> {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
    let read = |page: &str| std::fs::read_to_string(format!("{guide}/{page}")).unwrap();
    let text = read("history.md") + &read("charging.md");
    let blocks = text.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or("").to_owned()).collect()
}

#[test]
fn every_query_of_the_guide_answers() {
    let folder = Folder::new();
    let mut history = History::open(folder.path(), settings()).unwrap();
    ingest(&mut history, &feed(2000, 200));
    let rows: Vec<UsageRow> = (0..288 * 9).map(|nth| usage(nth, "ann")).collect();
    history.ingest_usage(&rows).unwrap();
    history.enforce_retention(Time(BEGIN + 10 * DAY - 1)).unwrap();
    let queries = queries_of_the_guide();
    assert!(queries.len() >= 7, "{}", queries.len());
    for query in queries {
        let rows = self::query(&folder, &query).rows;
        // In the feed of this test no task is evicted and none exceeds its limits. Queries about
        // the guide's own cell are answered there, where its pages are typed.
        let is_quiet = ["evictions", "having", "'dev'"].iter().any(|part| query.contains(part));
        assert!(is_quiet || !rows.is_empty(), "{query}");
    }
}

#[test]
fn the_guide_names_every_table_and_column() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/history.md");
    let text = std::fs::read_to_string(path).unwrap();
    for table in crate::tables::all_tables() {
        let begin = format!("| `{}` |", table.name);
        let line = text.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("{} is not described", table.name));
        for column in table.columns.iter().filter(|column| !["time", "day"].contains(&column.name))
        {
            assert!(line.contains(&format!("`{}`", column.name)), "{begin} {}", column.name);
        }
    }
}
