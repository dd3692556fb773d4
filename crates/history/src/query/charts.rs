//! The console's own query for charts, read from its source file, over windows as they are written.

use super::*;
use crate::testing::{BEGIN, Folder};
use cellwright_cell::resource::Resources;

const SCRIPT: &str = include_str!("../../../../console/past.js");
const MINUTE: u64 = 60_000;

/// The text between the first pair of backticks after `const NAME =`.
fn query_of_console(name: &str) -> String {
    let (_, rest) = SCRIPT.split_once(&format!("const {name} = `")).unwrap();
    rest.split_once('`').unwrap().0.replace("WHICH", "")
}

fn window(task_index: u32, from: u64, until: u64) -> UsageRow {
    let amount = |cpu| Resources { cpu, ram: cpu << 20, ..Resources::ZERO };
    UsageRow {
        time: Time(BEGIN + from),
        millis: until - from,
        user: "ann".into(),
        job: "web".into(),
        task_index,
        attempt: 1,
        machine: "m1".into(),
        band: "batch".into(),
        samples: 1,
        average: amount(50),
        peak: amount(60),
        reserved: amount(100),
        limit: amount(150),
        cpu_micros: 50 * (until - from),
        labels: String::new(),
    }
}

/// Seconds after the begin, and the limit of the tasks there, in milli-cores.
fn limits(rows: &[UsageRow]) -> Vec<(i64, i64)> {
    let folder = Folder::new();
    crate::store::History::open(folder.path(), crate::testing::settings()).unwrap();
    let args = [Value::Text("ann".into()), Value::Text("web".into()), Value::Integer(0)];
    let sql = query_of_console("HISTORY");
    let reader = HistoryReader::new(folder.path());
    let present = Present::of_usage(rows.to_vec());
    let answer = reader.query_with(present, &sql, &args, QueryLimits::default()).unwrap();
    let number = |value: &Value| match value {
        Value::Integer(number) => *number,
        other => panic!("{other:?} is no number"),
    };
    let begin = i64::try_from(BEGIN).unwrap();
    let point = |row: &Vec<Value>| ((number(&row[0]) - begin) / 1000, number(&row[5]));
    answer.rows.iter().map(point).collect()
}

#[test]
fn a_limit_that_never_changed_is_drawn_level_from_the_first_window_on() {
    assert_eq!(BEGIN % MINUTE, 0);
    // Two tasks that start a while apart; windows end one sample before each fifth minute.
    let first = [(2 * MINUTE + 7000, 297_000), (297_000, 597_000), (597_000, 640_000)];
    let second = [(4 * MINUTE + 2000, 299_000), (299_000, 596_000), (596_000, 640_000)];
    let of = |task, spans: &[(u64, u64)]| {
        spans.iter().map(move |(from, until)| window(task, *from, *until)).collect::<Vec<_>>()
    };
    let middle = |minute: i64| minute * 60 + 30;
    let level: Vec<(i64, i64)> = (2..=10).map(|minute| (middle(minute), 150)).collect();
    assert_eq!(limits(&of(0, &first)), level);
    let both = limits(&[of(0, &first), of(1, &second)].concat());
    let want = |minute: i64| (middle(minute), if minute < 4 { 150 } else { 300 });
    assert_eq!(both, (2..=10).map(want).collect::<Vec<_>>());
}
