//! Converts history to the format of the public cluster traces (the third version of the format
//! that Google publishes its traces in), so that tools for those traces can read this cell's.
//!
//! In that format, collections and machines are numbers: they are counted here in order of first
//! appearance, and a reused name is another collection. Amounts are fractions of the largest
//! machine; times are microseconds of a clock that starts ten minutes before the first row, as in
//! the public traces. Data that history does not keep (the spec of a purged job, the size of a
//! removed machine) is left empty, never guessed.

use cellwright_api::types::{JobView, MachineView, SqlValue};
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobKind, JobSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Events before the first row have time 0.
const LEAD_IN_MILLIS: i64 = 600_000;

const SUBMIT: u8 = 0;
const ENABLE: u8 = 2;
const SCHEDULE: u8 = 3;
const EVICT: u8 = 4;
const FAIL: u8 = 5;
const FINISH: u8 = 6;
const KILL: u8 = 7;
const UPDATE_RUNNING: u8 = 10;

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const UPDATE: u8 = 3;

/// No event of history says what created it.
const NO_CREATION: u8 = 3;

pub const COLLECTION_EVENTS: [&str; 17] = [
    "time",
    "type",
    "collection_id",
    "scheduling_class",
    "missing_type",
    "collection_type",
    "priority",
    "alloc_collection_id",
    "user",
    "collection_name",
    "collection_logical_name",
    "parent_collection_id",
    "start_after_collection_ids",
    "max_per_machine",
    "max_per_switch",
    "vertical_scaling",
    "scheduler",
];
pub const INSTANCE_EVENTS: [&str; 14] = [
    "time",
    "type",
    "collection_id",
    "scheduling_class",
    "missing_type",
    "collection_type",
    "priority",
    "alloc_collection_id",
    "instance_index",
    "machine_id",
    "alloc_instance_index",
    "resource_request.cpus",
    "resource_request.memory",
    "constraint",
];
pub const INSTANCE_USAGE: [&str; 20] = [
    "start_time",
    "end_time",
    "collection_id",
    "instance_index",
    "machine_id",
    "alloc_collection_id",
    "alloc_instance_index",
    "collection_type",
    "average_usage.cpus",
    "average_usage.memory",
    "maximum_usage.cpus",
    "maximum_usage.memory",
    "random_sample_usage.cpus",
    "assigned_memory",
    "page_cache_memory",
    "cycles_per_instruction",
    "memory_accesses_per_instruction",
    "sample_rate",
    "cpu_usage_distribution",
    "tail_cpu_usage_distribution",
];
pub const MACHINE_EVENTS: [&str; 8] = [
    "time",
    "machine_id",
    "type",
    "switch_id",
    "capacity.cpus",
    "capacity.memory",
    "platform_id",
    "missing_data_reason",
];
pub const MACHINE_ATTRIBUTES: [&str; 5] = ["time", "machine_id", "name", "value", "deleted"];

/// One row, as text; unknown columns are empty.
pub type Row = Vec<String>;
/// Time, log index and position: the order of history.
pub type HistoryPosition = (i64, i64, i64);

#[derive(Clone, Copy, Debug)]
struct Submission {
    position: HistoryPosition,
    id: u64,
    /// Whether history has the submission.
    is_seen: bool,
}

/// Known objects beside history, and the numbers assigned to names.
#[derive(Debug, Default)]
pub struct TraceConverter {
    /// The time of the first row, in milliseconds.
    start_millis: i64,
    jobs: BTreeMap<(String, String), JobView>,
    machines: BTreeMap<String, MachineView>,
    /// The unit of amounts: the maximum capacity of any machine.
    pub largest: Resources,
    machine_ids: BTreeMap<String, u64>,
    submissions: BTreeMap<(String, String), Vec<Submission>>,
    collections: u64,
    machines_up: BTreeSet<String>,
}

fn text(value: Option<&SqlValue>) -> &str {
    match value {
        Some(SqlValue::Text(text)) => text,
        _ => "",
    }
}

fn number(value: Option<&SqlValue>) -> i64 {
    match value {
        Some(SqlValue::Integer(number)) => *number,
        _ => 0,
    }
}

/// The first three columns of every query except the one for usage.
pub fn position(row: &[SqlValue]) -> HistoryPosition {
    (number(row.first()), number(row.get(1)), number(row.get(2)))
}

impl TraceConverter {
    /// `start_millis`: the time of the first row of history, in milliseconds.
    pub fn new(
        start_millis: i64,
        jobs: Vec<JobView>,
        machines: Vec<MachineView>,
    ) -> TraceConverter {
        let largest =
            machines.iter().fold(Resources::ZERO, |most, machine| most.max(machine.spec.capacity));
        let named = |job: JobView| ((job.user.to_string(), job.name.to_string()), job);
        let jobs = jobs.into_iter().map(named).collect();
        let machines =
            machines.into_iter().map(|machine| (machine.name.to_string(), machine)).collect();
        TraceConverter { start_millis, jobs, machines, largest, ..TraceConverter::default() }
    }

    /// Takes a row of `job_events`: time, log_index, position, user, job, event.
    pub fn collection_event(&mut self, row: &[SqlValue]) -> Option<Row> {
        let (at, [user, job, event]) = (position(row), [3, 4, 5].map(|nth| text(row.get(nth))));
        let kind = match event {
            "submitted" => SUBMIT,
            "released" => ENABLE,
            "update-opened" | "update-undone" | "resized" => UPDATE_RUNNING,
            "succeeded" => FINISH,
            "failed" => FAIL,
            "killed" | "never-ran" => KILL,
            _ => return None,
        };
        let key = (user.to_owned(), job.to_owned());
        if kind == SUBMIT {
            self.collections += 1;
            let new = Submission { position: at, id: self.collections, is_seen: true };
            self.submissions.entry(key.clone()).or_default().push(new);
        }
        let mut out = self.common_columns(at, kind, &key);
        let spec = self.spec_at(at, &key);
        let most = |domain: Domain| {
            let limits = spec.map(|spec| spec.spread.iter().filter(|limit| limit.domain == domain));
            limits.map(|limits| limits.map(|spread| spread.limit).min().unwrap_or(0).to_string())
        };
        let [machine, switch] = [Domain::Machine, Domain::Rack].map(most);
        let after = spec.map(|spec| {
            let ids = spec.after.iter().map(|after| {
                let key = (after.job.user.to_string(), after.job.job.to_string());
                self.last_id(&key).to_string()
            });
            format!("[{}]", ids.collect::<Vec<_>>().join(","))
        });
        // Limits are fixed by the owner: there is no vertical scaling.
        let scaling = spec.map(|_| "1".to_owned());
        out.extend([user.to_owned(), job.to_owned(), job.to_owned()]);
        out.extend([None, after, machine, switch, scaling, None].map(Option::unwrap_or_default));
        Some(out)
    }

    /// Takes a row of `task_events`: time, log_index, position, user, job, event, task_index,
    /// machine, reason.
    pub fn instance_events(&mut self, row: &[SqlValue]) -> Vec<Row> {
        let at = position(row);
        let [user, job, event] = [3, 4, 5].map(|nth| text(row.get(nth)));
        let (machine, reason) = (text(row.get(7)), text(row.get(8)));
        let kinds: &[u8] = match event {
            "submitted" => &[SUBMIT],
            "released" => &[ENABLE],
            "scheduled" => &[SCHEDULE],
            // One attempt has ended and the next begins.
            "restarted" if reason == "unhealthy" => &[FAIL, SCHEDULE],
            "restarted" => &[EVICT, SCHEDULE],
            "evicted" | "lost" => &[EVICT],
            "failed" | "failed-for-good" => &[FAIL],
            "completed" | "finished" => &[FINISH],
            "killed" | "never-ran" => &[KILL],
            "updated" => &[UPDATE_RUNNING],
            _ => &[],
        };
        let key = (user.to_owned(), job.to_owned());
        let index = number(row.get(6));
        let machine_id = self.machine_id(machine).to_string();
        let largest = self.largest;
        let mut rows = Vec::new();
        for kind in kinds {
            let mut out = self.common_columns(at, *kind, &key);
            let limits = self
                .spec_at(at, &key)
                .map(|spec| spec.limits_of(u32::try_from(index).unwrap_or(u32::MAX)));
            let [cpus, memory] = cpu_and_ram_shares(limits, largest);
            out.extend([
                index.to_string(),
                machine_id.clone(),
                "-1".into(),
                cpus,
                memory,
                "[]".into(),
            ]);
            rows.push(out);
        }
        rows
    }

    /// Takes a row of `usage_record`: time, millis, user, job, task_index, machine, cpu_avg,
    /// cpu_max, ram_avg, ram_max, samples, ram_limit.
    pub fn usage_record(&mut self, row: &[SqlValue]) -> Row {
        let (time, millis) = (number(row.first()), number(row.get(1)).max(1));
        let key = (text(row.get(2)).to_owned(), text(row.get(3)).to_owned());
        let at = (time, i64::MAX, i64::MAX);
        let id = self.submission(at, &key).id;
        let machine = self.machine_id(text(row.get(5)));
        let amount = |nth: usize| u64::try_from(number(row.get(nth))).unwrap_or(0);
        let largest = self.largest;
        let cpu = |nth| share(amount(nth), largest.cpu);
        let ram = |nth| share(amount(nth), largest.ram);
        let rate = amount(10) as f64 * 1000.0 / millis as f64;
        let kind = self.spec_at(at, &key).map(collection_type);
        vec![
            self.micros(time),
            self.micros(time + millis),
            id.to_string(),
            number(row.get(4)).to_string(),
            machine.to_string(),
            self.alloc_set(at, &key),
            "-1".into(),
            kind.unwrap_or_default(),
            cpu(6),
            ram(8),
            cpu(7),
            ram(9),
            String::new(),
            ram(11),
            String::new(),
            String::new(),
            String::new(),
            format!("{rate:.4}"),
            "[]".into(),
            "[]".into(),
        ]
    }

    /// Takes a row of `machine_events`: time, log_index, position, machine, event.
    pub fn machine_event(&mut self, row: &[SqlValue]) -> Option<Row> {
        let (time, name, event) = (position(row).0, text(row.get(3)), text(row.get(4)));
        let kind = match event {
            "up" if self.machines_up.insert(name.to_owned()) => ADD,
            "down" | "removed" if self.machines_up.remove(name) => REMOVE,
            "updated" if self.machines_up.contains(name) => UPDATE,
            _ => return None,
        };
        let (id, largest) = (self.machine_id(name), self.largest);
        let known = self.machines.get(name).map(|machine| &machine.spec);
        let [cpus, memory] = cpu_and_ram_shares(known.map(|spec| spec.capacity), largest);
        let rack = known.and_then(|spec| spec.rack.as_ref()).map(ToString::to_string);
        Some(vec![
            self.micros(time),
            id.to_string(),
            kind.to_string(),
            rack.unwrap_or_default(),
            cpus,
            memory,
            String::new(),
            "0".into(),
        ])
    }

    /// The attributes of current machines; history does not keep those of removed ones.
    pub fn attribute_rows(&mut self) -> Vec<Row> {
        use cellwright_cell::constraint::AttributeValue;
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let mut rows = Vec::new();
        for name in names {
            let id = self.machine_id(&name).to_string();
            let Some(machine) = self.machines.get(&name) else { continue };
            rows.extend(machine.spec.attributes.iter().map(|(attribute, value)| {
                let value = match value {
                    AttributeValue::Integer(number) => number.to_string(),
                    AttributeValue::Text(text) => text.clone(),
                };
                vec!["0".into(), id.clone(), attribute.to_string(), value, "false".into()]
            }));
        }
        rows
    }

    /// The columns that collection events and instance events share.
    fn common_columns(&mut self, at: HistoryPosition, kind: u8, key: &(String, String)) -> Row {
        let submission = self.submission(at, key);
        let missing = if submission.is_seen { 0 } else { NO_CREATION };
        let spec = self.spec_at(at, key);
        let class = spec.map(|spec| match spec.appclass() {
            AppClass::LatencySensitive => "2".to_owned(),
            AppClass::Batch => "1".to_owned(),
        });
        let priority = spec.map(|spec| spec.priority.0.to_string());
        vec![
            self.micros(at.0),
            kind.to_string(),
            submission.id.to_string(),
            class.unwrap_or_default(),
            missing.to_string(),
            spec.map(collection_type).unwrap_or_default(),
            priority.unwrap_or_default(),
            self.alloc_set(at, key),
        ]
    }

    /// The submission that an event at this position belongs to.
    fn submission(&mut self, at: HistoryPosition, key: &(String, String)) -> Submission {
        let list = self.submissions.entry(key.clone()).or_default();
        if let Some(found) = list.iter().rev().find(|submission| submission.position <= at) {
            return *found;
        }
        self.collections += 1;
        let first = (i64::MIN, 0, 0);
        let unseen = Submission { position: first, id: self.collections, is_seen: false };
        list.insert(0, unseen);
        unseen
    }

    /// The spec is known only for the last job of a name, until that job is purged.
    fn spec_at(&self, at: HistoryPosition, key: &(String, String)) -> Option<&JobSpec> {
        let last = self.submissions.get(key)?.last()?;
        let view = self.jobs.get(key).filter(|_| last.position <= at)?;
        let same =
            !last.is_seen || last.position.0 == i64::try_from(view.submitted_at.0).unwrap_or(0);
        same.then_some(&view.spec)
    }

    fn last_id(&self, key: &(String, String)) -> u64 {
        let last = self.submissions.get(key).and_then(|list| list.last());
        last.map_or(0, |submission| submission.id)
    }

    /// The alloc set: 0 if the job is in none, empty if unknown.
    fn alloc_set(&self, at: HistoryPosition, key: &(String, String)) -> String {
        let Some(spec) = self.spec_at(at, key) else { return String::new() };
        let set = spec.alloc_set.as_ref().map(|set| (set.user.to_string(), set.job.to_string()));
        set.map_or(0, |set| self.last_id(&set)).to_string()
    }

    /// The number of a machine; 0 means no machine.
    fn machine_id(&mut self, name: &str) -> u64 {
        if name.is_empty() {
            return 0;
        }
        let next = self.machine_ids.len() as u64 + 1;
        *self.machine_ids.entry(name.to_owned()).or_insert(next)
    }

    fn micros(&self, millis: i64) -> String {
        ((millis - self.start_millis + LEAD_IN_MILLIS) * 1000).to_string()
    }
}

fn collection_type(spec: &JobSpec) -> String {
    match spec.kind {
        JobKind::Tasks | JobKind::Daemon => "0".into(),
        JobKind::AllocSet => "1".into(),
    }
}

fn cpu_and_ram_shares(amount: Option<Resources>, largest: Resources) -> [String; 2] {
    match amount {
        Some(amount) => [share(amount.cpu, largest.cpu), share(amount.ram, largest.ram)],
        None => [String::new(), String::new()],
    }
}

/// The fraction of the largest machine; empty if no machine is known.
fn share(amount: u64, largest: u64) -> String {
    match largest {
        0 => String::new(),
        largest => format!("{:.9}", amount as f64 / largest as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(values: serde_json::Value) -> Vec<SqlValue> {
        serde_json::from_value(values).unwrap()
    }

    fn layout() -> TraceConverter {
        let zero = json!({"cpu": 0, "ram": 0});
        let machine = serde_json::from_value(json!({
            "name": "m1", "status": "up", "draining": false, "over_committed": false,
            "generation": 1, "incarnation": 1,
            "spec": {
                "name": "m1", "capacity": {"cpu": 4000, "ram": 8_u64 << 30}, "rack": "r7",
                "attributes": {"os": {"text": "debian"}}, "power": null,
            },
            "reserved": zero, "prod_limits": zero, "limits": zero, "available": zero,
            "available_prod": zero, "tasks": 0, "stopping": 0, "named": [], "devices_used": [],
            "packages": 0, "retained_bytes": 0, "drain_waits": [], "resource_pressure": [], "since": 0,
        }));
        let job = serde_json::from_value(json!({
            "user": "ann", "name": "web", "state": "active", "version": 1, "redacted": false,
            "update": null, "update_complete": false,
            "spec": {
                "name": "web", "priority": 200, "appclass": "latency_sensitive",
                "task": {"limits": {"cpu": 1000, "ram": 1 << 30}, "command": ["web"]},
            },
            "tasks": {
                "deferred": 0, "pending": 0, "assigned": 0, "running": 1, "stopping": 0,
                "finished": 0, "failed": 0, "killed": 0,
            },
            "waits_for": [], "submitted_at": 3000, "ended_at": null,
        }));
        TraceConverter::new(1000, vec![job.unwrap()], vec![machine.unwrap()])
    }

    #[test]
    fn a_name_that_is_used_again_is_another_collection() {
        let mut layout = layout();
        let mut job = |time: i64, event: &str| {
            let event_row =
                layout.collection_event(&row(json!([time, time, 0, "ann", "web", event])));
            event_row.map(|columns| columns[..8].join(","))
        };
        // Nothing is known of the first job beyond its existence.
        assert_eq!(job(1000, "submitted").unwrap(), "600000000,0,1,,0,,,");
        assert_eq!(job(2000, "succeeded").unwrap(), "601000000,6,1,,0,,,");
        assert_eq!(job(3000, "submitted").unwrap(), "602000000,0,2,2,0,0,200,0");
        assert_eq!(job(3000, "accepted"), None);
        assert_eq!(job(4000, "killed").unwrap(), "603000000,7,2,2,0,0,200,0");
        let mut task = |event: &str, machine: &str, reason: &str| -> Vec<String> {
            let event = json!([3500, 9, 0, "ann", "web", event, 0, machine, reason]);
            layout.instance_events(&row(event)).iter().map(|row| row.join(",")).collect()
        };
        let scheduled = "602500000,3,2,2,0,0,200,0,0,1,-1,0.250000000,0.125000000,[]";
        assert_eq!(task("scheduled", "m1", "found-place"), [scheduled]);
        assert_eq!(task("restarted", "m1", "unhealthy").len(), 2);
        assert_eq!(task("reservation-changed", "", "reservation"), Vec::<String>::new());
        let before = json!([500, 1, 0, "bob", "old", "failed", 0, "m9", "exited"]);
        let before = layout.instance_events(&row(before)).concat();
        assert_eq!((before[2].as_str(), before[4].as_str()), ("3", "3"), "never submitted");
        assert_eq!(before[9], "2", "another machine");
    }

    #[test]
    fn machines_come_and_go_once_and_usage_is_a_share_of_the_largest() {
        let mut layout = layout();
        let mut machine = |time: i64, event: &str| {
            layout.machine_event(&row(json!([time, time, 0, "m1", event]))).map(|row| row.join(","))
        };
        assert_eq!(machine(1000, "added"), None);
        let up = "600000000,1,1,r7,1.000000000,1.000000000,,0";
        assert_eq!(machine(1000, "up").unwrap(), up);
        assert_eq!(machine(1500, "up"), None, "it was");
        assert!(machine(2000, "down").unwrap().starts_with("601000000,1,2,"));
        assert_eq!(machine(2500, "removed"), None, "it was gone");
        let usage_row = layout.usage_record(&row(json!([
            61_000,
            60_000,
            "ann",
            "web",
            0,
            "m1",
            1000,
            2000,
            1 << 30,
            2_i64 << 30,
            12,
            4_i64 << 30,
        ])));
        assert_eq!(usage_row.len(), INSTANCE_USAGE.len());
        let selected = [&usage_row[..2], &usage_row[8..12], &usage_row[13..14], &usage_row[17..18]]
            .concat()
            .join(",");
        let want = "660000000,720000000,0.250000000,0.125000000,0.500000000,0.250000000,\
                    0.500000000,0.2000";
        assert_eq!(selected, want);
        let attributes = layout.attribute_rows().concat().join(",");
        assert_eq!(attributes, "0,1,os,debian,false");
    }
}
