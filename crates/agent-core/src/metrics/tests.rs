//! Readings, one text after another, and what holds of any text.

use super::*;
use cellwright_cell::name::Token;
use proptest::prelude::*;

fn series(name: &str, kind: MetricKind, labels: &[(&str, &str)]) -> MetricSeries {
    let token = |text: &str| Token::new(text).unwrap();
    let labels = labels.iter().map(|(name, value)| (token(name), (*value).to_owned())).collect();
    MetricSeries { name: token(name), kind, labels }
}

fn reader(series: &[MetricSeries]) -> MetricReader {
    let source = MetricSource::File("metrics.prom".into());
    MetricReader::new(MetricsOrder { source, series: series.to_vec() })
}

fn one(name: &str, kind: MetricKind, labels: &[(&str, &str)]) -> MetricReader {
    reader(&[series(name, kind, labels)])
}

/// The only number, if it is told.
fn told(reader: &mut MetricReader, now: u64, text: &str) -> Option<u64> {
    let found = reader.read(now, text);
    assert!(found.len() <= 1, "{found:?}");
    found.first().map(|(_, number)| *number)
}

#[test]
fn decimal_numbers_are_thousandths_and_nothing_else_is_a_number() {
    for (text, want) in [
        ("0", Some(0)),
        ("1", Some(1000)),
        ("+1.5", Some(1500)),
        ("42.0009", Some(42_000)),
        (".5", Some(500)),
        ("5.", Some(5000)),
        ("1.5e+03", Some(1_500_000)),
        ("25E-2", Some(250)),
        ("1e-300", Some(0)),
        ("0e999999", Some(0)),
        ("-0.0", Some(0)),
        ("000000000000000000000000000000000000000001.25", Some(1250)),
        ("0.0000000000000000000000000000000000001e37", Some(1000)),
        ("9007199254740993", Some(9_007_199_254_740_993_000)),
        ("9300000000000000", None),
        ("1e300", None),
        ("1e99999999999", None),
        ("-1", None),
        ("NaN", None),
        ("+Inf", None),
        ("-Inf", None),
        ("inf", None),
        ("0x10", None),
        ("1_000", None),
        ("1e", None),
        ("e5", None),
        (".", None),
        ("-", None),
        ("", None),
        ("１", None),
    ] {
        assert_eq!(thousandths(text), want, "{text}");
    }
}

const PAGE: &str = r#"
# HELP http_requests_total The total.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="get", code="200",} 3
  http_requests_total {method = "get" , code = "500" } 4 # {trace="x"} 1
http_requests_total_other 99
escaped{path="C:\\DIR\"x\"\n{}",} 1.5e1
empty{} 7
queue 2.5
bad NaN
half{a="b" 5
half{a="c"} 6
twice 1
twice 2
"#;

#[test]
fn series_are_chosen_by_labels_and_added_up() {
    let check = |name: &str, labels: &[(&str, &str)], want: Option<u64>, refused: u64| {
        let mut reader = one(name, MetricKind::Value, labels);
        assert_eq!(told(&mut reader, 1, PAGE), want, "{name} {labels:?}");
        assert_eq!(reader.refused(), refused, "{name}");
    };
    check("http_requests_total", &[], Some(1_034_000), 0);
    check("http_requests_total", &[("code", "200")], Some(1_030_000), 0);
    check("http_requests_total", &[("code", "500"), ("method", "get")], Some(4000), 0);
    check("http_requests_total", &[("code", "404")], None, 0);
    check("escaped", &[("path", "C:\\DIR\"x\"\n{}")], Some(15_000), 0);
    check("empty", &[], Some(7000), 0);
    check("queue", &[], Some(2500), 0);
    check("absent", &[], None, 0);
    check("bad", &[], None, 1);
    check("half", &[], None, 1);
    check("twice", &[], None, 1);
    // What is refused of one number is not of the others.
    let all = ["queue", "bad", "empty"].map(|name| series(name, MetricKind::Value, &[]));
    let mut reader = reader(&all);
    let names: Vec<String> =
        reader.read(1, PAGE).iter().map(|(series, _)| series.name.to_string()).collect();
    assert_eq!((names, reader.refused()), (vec!["queue".to_owned(), "empty".to_owned()], 1));
}

#[test]
fn a_rate_is_growth_between_two_readings() {
    let mut reader = one("n", MetricKind::Rate, &[]);
    let read = &mut |now, text: &str| told(&mut reader, now, text);
    assert_eq!(read(10_000, "n 100\n"), None, "one reading is no growth");
    assert_eq!(read(20_000, "n 150\n"), Some(5000));
    assert_eq!(read(20_000, "n 150\n"), None, "no time has passed");
    assert_eq!(read(30_000, "n 150\n"), Some(0));
    assert_eq!(read(40_000, "n 20\n"), Some(2000), "it began anew");
    assert_eq!(read(50_000, "other 1\n"), None, "not told");
    assert_eq!(read(60_000, "n 40\n"), None, "and so not known since when");
    assert_eq!(read(70_000, "n 45\n"), Some(500));
    assert_eq!(read(70_001 + MAX_GAP, "n 50\n"), None, "too long ago");
}

#[test]
fn a_series_that_comes_or_goes_is_no_growth() {
    let mut reader = one("n", MetricKind::Rate, &[]);
    let read = &mut |now, text: &str| told(&mut reader, now, text);
    assert_eq!(read(0, "n{a=\"1\"} 1000000\nn{a=\"2\"} 5\n"), None);
    assert_eq!(read(1000, "n{a=\"2\"} 6\n"), Some(1000));
    assert_eq!(read(2000, "n{a=\"1\"} 1000000\nn{a=\"2\"} 8\n"), Some(2000));
}

#[test]
fn a_file_may_be_nothing_but_a_number() {
    let both = ["queue", "other"].map(|name| series(name, MetricKind::Value, &[]));
    let mut of_file = reader(&both);
    assert_eq!(of_file.read(1, " 12.5\n"), [(both[0].clone(), 12_500)]);
    for (refused, text) in ["-3\n", "NaN", "queue\n"].into_iter().enumerate() {
        assert_eq!(of_file.read(1, text), [], "{text}");
        assert_eq!(of_file.refused(), refused as u64 + 1);
    }
    assert_eq!(of_file.read(1, "#EOF\n"), []);
    assert_eq!(of_file.read(1, ""), []);
    assert_eq!(of_file.read(1, "1 2"), []);
    assert_eq!(of_file.refused(), 3);
    let http = MetricSource::Http { port: 0, path: "/".into() };
    let mut of_page = MetricReader::new(MetricsOrder { source: http, series: both.to_vec() });
    assert_eq!(of_page.read(1, "12\n"), []);
}

#[test]
fn too_many_series_are_refused() {
    let page =
        |count: usize| -> String { (0..count).map(|at| format!("n{{a=\"{at}\"}} 1\n")).collect() };
    let mut reader = one("n", MetricKind::Value, &[]);
    assert_eq!(told(&mut reader, 1, &page(MAX_SERIES)), Some(MAX_SERIES as u64 * 1000));
    assert_eq!(told(&mut reader, 2, &page(MAX_SERIES + 1)), None);
    assert_eq!(reader.refused(), 1);
}

proptest! {
    #[test]
    fn no_text_is_more_than_refused(
        lines in prop::collection::vec("(n|n\\{|m)?[ -~\\t\\\\\"{}=,é]{0,40}", 0..8),
        now in prop::collection::vec(0..u64::MAX, 2),
    ) {
        let mut reader = reader(&[
            series("n", MetricKind::Rate, &[]),
            series("n", MetricKind::Value, &[("a", "b")]),
        ]);
        for now in now {
            for (_, number) in reader.read(now, &lines.join("\n")) {
                prop_assert!(number <= MAX_NUMBER);
            }
        }
    }

    #[test]
    fn a_number_that_is_written_is_read(whole in 0..1_000_000_000_000u64, parts in 0..1000u64) {
        prop_assert_eq!(thousandths(&format!("{whole}.{parts:03}")), Some(whole * 1000 + parts));
        let scientific = format!("{whole}{parts:03}e-3");
        prop_assert_eq!(thousandths(&scientific), Some(whole * 1000 + parts));
    }

    /// However a counter begins anew: no rate is larger than what it says now, or than its growth.
    #[test]
    fn a_reset_never_makes_a_large_rate(readings in prop::collection::vec(0..1_000_000u64, 2..20)) {
        let mut reader = one("n", MetricKind::Rate, &[]);
        for (second, number) in readings.iter().enumerate() {
            let now = second as u64 * 1000;
            let Some(rate) = told(&mut reader, now, &format!("n {number}\n")) else { continue };
            prop_assert!(rate <= number * 1000);
        }
    }
}
