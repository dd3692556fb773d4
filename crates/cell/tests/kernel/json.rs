//! Tests of the JSON forms that people and programs write: which fields are optional, and the
//! errors for wrong ones.

use cellwright_cell::constraint::Strength;
use cellwright_cell::cron::{CronSpec, MissedRuns, Overlap};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::priority::Priority;
use cellwright_cell::quota::Quota;
use cellwright_cell::spec::{JobKind, JobSpec, RestartPolicy};
use cellwright_cell::time::{Span, Time};
use serde::de::DeserializeOwned;

const JOB: &str = r#"{"name": "web", "priority": 200,
    "task": {"limits": {"cpu": 500, "ram": 1000000}, "command": ["serve"]}}"#;

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn assert_rejected<T: DeserializeOwned + std::fmt::Debug>(text: &str, wants: &[&str]) {
    let error = serde_json::from_str::<T>(text).expect_err(text).to_string();
    for want in wants {
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    }
}

#[test]
fn what_a_person_leaves_out_has_a_meaning() {
    let job: JobSpec = read(JOB);
    assert_eq!((job.kind, job.count, job.priority), (JobKind::Tasks, 1, Priority(200)));
    assert_eq!((job.appclass, job.gang, job.reclaimable), (None, false, true));
    assert_eq!((job.task.notice, job.task.ports), (Span::seconds(10), 0));
    assert_eq!((job.task.limits.disk, job.restart), (0, RestartPolicy::default()));
    assert_eq!((job.max_down, job.at_most_one, job.after.is_empty()), (None, None, true));
    let machine: MachineSpec = read(r#"{"name": "m1", "capacity": {"cpu": 1, "ram": 2}}"#);
    assert_eq!(machine.ports, PortRange { first: 20_000, last: 31_999 });
    let quota: Quota = read(r#"{"amount": {"cpu": 1, "ram": 2}}"#);
    assert_eq!((quota.from, quota.until), (Time::ZERO, Time::NEVER));
    let cron = format!(r#"{{"name": "web", "schedule": "0 3 * * *", "job": {JOB}}}"#);
    let cron: CronSpec = read(&cron);
    assert_eq!((cron.missed, cron.overlap), (MissedRuns::Skip, Overlap::Allow));
    assert_eq!((cron.paused, cron.keep_runs), (false, 3));
}

#[test]
fn what_was_written_reads_back_the_same() {
    let full = JOB.replacen(
        r#""priority": 200,"#,
        r#""priority": 200, "kind": "tasks", "appclass": "latency_sensitive", "count": 3,
           "labels": {"tier": "front"}, "overrides": {"1": {"command": ["lead"]}},
           "constraints": [{"attribute": "os", "operator": {"equal": {"text": "debian"}}},
                           {"attribute": "ssd", "operator": "exists", "strength": {"soft": 5}}],
           "spread": [{"domain": "rack", "limit": 1}], "restart": {"max_failures": 4},
           "after": {"job": {"user": "ada", "job": "first"}},"#,
        1,
    );
    let job: JobSpec = read(&full);
    assert_eq!(job.constraints[0].strength, Strength::Hard);
    assert_eq!(job.overrides[&1].command.as_deref(), Some(&["lead".to_owned()][..]));
    assert!(matches!(&job.after[..], [after] if after.require_success));
    assert_eq!(job.restart.backoff_max, Span::seconds(300));
    let text = serde_json::to_string(&job).expect("a spec is JSON");
    assert_eq!(read::<JobSpec>(&text), job);
}

#[test]
fn a_job_waits_for_none_for_one_or_for_several() {
    let with = |after: &str| JOB.replacen('{', &format!("{{\"after\": {after},"), 1);
    let one = |job: &str| format!(r#"{{"job": {{"user": "ada", "job": "{job}"}}}}"#);
    let jobs = |text: &str| -> Vec<String> {
        let job: JobSpec = read(&with(text));
        job.after.iter().map(|after| after.job.to_string()).collect()
    };
    assert_eq!(jobs("null"), [""; 0]);
    assert_eq!(jobs("[]"), [""; 0]);
    assert_eq!(jobs(&one("a")), ["ada/a"]);
    assert_eq!(jobs(&format!("[{}, {}]", one("a"), one("b"))), ["ada/a", "ada/b"]);
    assert_rejected::<JobSpec>(
        &with("3"),
        &[r#"{"job": {"user": "ann", "job": "load"}}, or a list of these"#],
    );
    assert_rejected::<JobSpec>(&with(r#"{"job": {"user": "ada"}}"#), &["missing field `job`"]);
}

#[test]
fn what_is_wrong_is_called_by_its_name() {
    let with = |field: &str| JOB.replacen('{', &format!("{{{field},"), 1);
    assert_rejected::<JobSpec>(&with(r#""replicas": 3"#), &["unknown field `replicas`", "`count`"]);
    assert_rejected::<JobSpec>(
        &with(r#""kind": "service""#),
        &["`service`", "`tasks`", "`alloc_set`"],
    );
    let bad = JOB.replacen("web", "Web", 1);
    assert_rejected::<JobSpec>(&bad, &["name \"Web\" is not valid", "a-z, 0-9 and -"]);
    assert_rejected::<JobSpec>(&JOB.replacen("500", "0.5", 1), &["0.5", "u64"]);
    let deep = JOB.replacen(r#""cpu""#, r#""gpu": 1, "cpu""#, 1);
    assert_rejected::<JobSpec>(&deep, &["unknown field `gpu`", "`disk_rate`"]);
    assert_rejected::<JobSpec>(r#"{"name": "web"}"#, &["missing field `priority`"]);
    let cron = format!(r#"{{"name": "web", "schedule": "0 25 * * *", "job": {JOB}}}"#);
    assert_rejected::<CronSpec>(&cron, &["hour \"25\" is not valid", "0 to 23"]);
}

#[cfg(feature = "schema")]
#[test]
fn schemas_say_what_is_allowed_and_what_may_be_left_out() {
    let schema = serde_json::to_value(schemars::schema_for!(JobSpec)).expect("a schema is JSON");
    assert_eq!(schema["additionalProperties"], false);
    let required: Vec<&str> =
        schema["required"].as_array().expect("a list").iter().filter_map(|v| v.as_str()).collect();
    assert_eq!(required, ["name", "priority", "task"]);
    assert_eq!(schema["properties"]["count"]["default"], 1);
    let name = &schema["$defs"]["Name"];
    assert_eq!(name["maxLength"], 63);
    let pattern = name["pattern"].as_str().expect("a pattern");
    let pattern = regex_lite::Regex::new(pattern).expect("a regular expression");
    for (text, ok) in [("a", true), ("a-1", true), ("-a", false), ("a-", false), ("A", false)] {
        assert_eq!(pattern.is_match(text), ok, "{text}");
        assert_eq!(cellwright_cell::name::Name::new(text).is_ok(), ok, "{text}");
    }
    let command = schemars::schema_for!(cellwright_cell::command::Command);
    assert!(serde_json::to_string(&command).is_ok_and(|text| text.contains("\"cron\"")));
    let event = schemars::schema_for!(cellwright_cell::event::Event);
    assert!(serde_json::to_string(&event).is_ok_and(|text| text.contains("\"job_rejected\"")));
}
