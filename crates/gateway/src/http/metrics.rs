//! Metrics in Prometheus text, and readiness of the replica. Totals of the state are computed at
//! each request; only requests are counted as they happen.

use super::call::Call;
use super::cluster::role_text;
use super::{Api, ApiResult, cluster, removed_replica_error, reply};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::Route;
use cellwright_api::types::Alarm;
use cellwright_api::wire::WireVersion;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_master::handle::Caller;
use cellwright_store::{Role, Status};
use cellwright_supervise::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Entries that a replica may lag behind its own log and still be ready.
const MAX_READY_LAG: u64 = 10_000;

/// Counters of requests, by operation and status, and of package bytes sent to machines.
#[derive(Default)]
pub(super) struct RequestMetrics {
    counts: Mutex<BTreeMap<(String, u16), (u64, Duration)>>,
    package_bytes: AtomicU64,
    /// Messages of other parts by kind of part and wire version; no version: refused for it.
    messages: Mutex<BTreeMap<(String, Option<WireVersion>), u64>>,
}

impl RequestMetrics {
    /// A message of another part came in a version, or was refused for its version.
    pub fn heard(&self, from: &Caller, version: Option<WireVersion>) {
        let name = from.to_string();
        let kind = name.split(':').next().unwrap_or_default().to_owned();
        *lock(&self.messages).entry((kind, version)).or_default() += 1;
    }

    fn write_messages(&self, page: &mut MetricsPage) {
        let messages = lock(&self.messages).clone();
        let about = "Messages of other parts, by the wire version they were written in.";
        page.header("cell_wire_messages_total", "counter", about);
        for ((kind, version), count) in &messages {
            if let Some(version) = version {
                let labels = format!("from=\"{kind}\",wire=\"{version}\"");
                page.value("cell_wire_messages_total", &labels, *count);
            }
        }
        let about = "Messages of other parts refused for their wire version.";
        page.header("cell_wire_refused_total", "counter", about);
        for ((kind, version), count) in &messages {
            if version.is_none() {
                page.value("cell_wire_refused_total", &format!("from=\"{kind}\""), *count);
            }
        }
    }

    pub fn count(&self, route: &Route, status: u16, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = counts.entry((route.id(), status)).or_default();
        entry.0 += 1;
        entry.1 += took;
    }

    /// Counts bytes of a package that were sent to a machine.
    pub fn count_package_bytes(&self, bytes: usize) {
        self.package_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn write(&self, page: &mut MetricsPage) {
        panic_metrics(page);
        self.write_messages(page);
        let about = "Bytes of packages given to machines.";
        page.header("cell_package_bytes_given_total", "counter", about);
        let package_bytes = self.package_bytes.load(Ordering::Relaxed);
        page.value("cell_package_bytes_given_total", "", package_bytes);
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        page.header("cell_api_requests_total", "counter", "Requests answered.");
        for ((operation, status), (count, _)) in counts.iter() {
            let labels = format!("operation=\"{operation}\",status=\"{status}\"");
            page.value("cell_api_requests_total", &labels, *count);
        }
        page.header("cell_api_seconds_total", "counter", "Time spent answering.");
        for ((operation, status), (_, took)) in counts.iter() {
            let labels = format!("operation=\"{operation}\",status=\"{status}\"");
            page.value("cell_api_seconds_total", &labels, took.as_secs_f64());
        }
    }
}

/// Panics in this process that did not end it.
fn panic_metrics(page: &mut MetricsPage) {
    page.header("cell_panics_total", "counter", "Panics of this process, of any part.");
    page.value("cell_panics_total", "", cellwright_supervise::panics());
    let about = "Requests that failed because their handler panicked.";
    page.header("cell_handler_panics_total", "counter", about);
    page.value("cell_handler_panics_total", "", cellwright_supervise::handler_panics());
    let about = "Tasks of this process started again after a panic.";
    page.header("cell_task_restarts_total", "counter", about);
    for (task, count) in cellwright_supervise::restarts() {
        page.value("cell_task_restarts_total", &format!("task=\"{task}\""), count);
    }
}

#[derive(Default)]
struct MetricsPage(String);

impl MetricsPage {
    fn header(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{labels}}} {value}")
        };
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.header(name, "gauge", help);
        self.value(name, "", value);
    }

    /// A gauge of those alarms for which `of` returns labels and value.
    fn alarm_gauge(
        &mut self,
        name: &str,
        help: &str,
        alarms: &[Alarm],
        of: impl Fn(&Alarm) -> Option<(String, String)>,
    ) {
        self.header(name, "gauge", help);
        for (labels, value) in alarms.iter().filter_map(of) {
            self.value(name, &labels, value);
        }
    }

    fn resources(&mut self, name: &str, help: &str, amount: Resources) {
        self.header(name, "gauge", help);
        for dimension in Dimension::ALL {
            let labels = format!("dimension=\"{dimension}\"");
            self.value(name, &labels, amount.get(dimension));
        }
    }
}

impl Api {
    pub(super) async fn metrics(&self, _call: Call) -> ApiResult {
        let mut page = MetricsPage::default();
        self.replica_metrics(&mut page);
        let view = self.handle.read();
        state_metrics(&mut page, &cluster::cluster_sums(&view.state));
        self.scheduler_metrics(&mut page);
        self.controller_metrics(&mut page);
        self.request_metrics.write(&mut page);
        page.0.push_str(&self.services.metrics());
        Ok(reply::text(METRICS_CONTENT_TYPE, page.0))
    }

    fn replica_metrics(&self, page: &mut MetricsPage) {
        let status = self.handle.status();
        page.gauge("cell_raft_term", "Term of the replica.", status.term);
        page.gauge("cell_raft_applied_index", "Last entry applied.", status.applied.unwrap_or(0));
        page.gauge("cell_raft_last_index", "Last entry in the log.", status.last_log.unwrap_or(0));
        let snapshot = status.snapshot.unwrap_or(0);
        page.gauge("cell_raft_snapshot_index", "Last entry in a snapshot.", snapshot);
        page.header("cell_raft_role", "gauge", "1 for what the replica is.");
        for kind in [Role::Learner, Role::Follower, Role::Candidate, Role::Leader] {
            let labels = format!("role=\"{}\"", role_text(kind));
            page.value("cell_raft_role", &labels, u8::from(status.role == kind));
        }
        let silent = status.quorum_silent_millis.unwrap_or(0);
        page.gauge("cell_raft_quorum_silent_ms", "Since a quorum was heard; leader.", silent);
        let room = self.handle.replica().disk_space();
        page.gauge("cell_disk_free_bytes", "Free on the disk of the log.", room.free);
        page.gauge("cell_disk_reserve_bytes", "Writes are refused below.", room.reserve);
        self.alarm_metrics(page);
    }

    /// The alarms that this replica adds to those of `GET /v1/alarms`, as gauges.
    fn alarm_metrics(&self, page: &mut MetricsPage) {
        let alarms = self.local_alarms();
        page.header("cell_alarms", "gauge", "What a person should look at.");
        for alarm in &alarms {
            let (name, value) = match alarm {
                Alarm::MostMachinesSilent { silent, .. } => ("most_machines_silent", silent),
                Alarm::DownRateLimited { waiting } => ("down_rate_limited", waiting),
                Alarm::DiskDamage { parts, .. } => ("disk_damage", parts),
                Alarm::ArchiveFailing { waiting, .. } => ("archive_failing", waiting),
                _ => continue,
            };
            page.value("cell_alarms", &format!("alarm=\"{name}\""), value);
        }
        let about = "What is damaged or missing on the disk of this replica.";
        page.gauge("cell_damage", about, self.handle.disk_damage().len());
        let about = "Since a machine that is up was heard from; leader, the longest silent ones.";
        page.alarm_gauge("cell_machine_silent_seconds", about, &alarms, |alarm| match alarm {
            Alarm::MachineSilent { machine, seconds } => {
                Some((format!("machine=\"{machine}\""), seconds.to_string()))
            }
            _ => None,
        });
        let about = "By how much a clock is ahead of the cell's, beyond the bound; leader.";
        page.alarm_gauge("cell_clock_alarm_seconds", about, &alarms, |alarm| match alarm {
            Alarm::ClockSkew { clock, seconds } => {
                Some((format!("clock=\"{clock}\""), seconds.to_string()))
            }
            _ => None,
        });
        self.clock_metrics(page);
        let about = "Free on a replica's disk, less than its reserve.";
        page.alarm_gauge("cell_disk_short_bytes", about, &alarms, |alarm| match alarm {
            Alarm::DiskShort { replica, free_bytes } => {
                Some((format!("replica=\"{replica}\""), free_bytes.to_string()))
            }
            _ => None,
        });
        let about = "Free on a replica's disk, less than twice its reserve.";
        page.alarm_gauge("cell_disk_low_bytes", about, &alarms, |alarm| match alarm {
            Alarm::DiskLow { replica, free_bytes } => {
                Some((format!("replica=\"{replica}\""), free_bytes.to_string()))
            }
            _ => None,
        });
    }

    /// The clock skew of every replica and of the log, within the limit or not.
    fn clock_metrics(&self, page: &mut MetricsPage) {
        let skews = self.handle.skews();
        let about = "By how much a master's clock is ahead of the cell's; leader.";
        page.header("cell_clock_skew_seconds", "gauge", about);
        for (id, ahead) in &skews.replicas {
            let labels = format!("master=\"{}\"", self.replica_name(*id));
            page.value("cell_clock_skew_seconds", &labels, *ahead as f64 / 1000.0);
        }
        let about = "By how much log time is ahead of the cell's clock; leader.";
        page.gauge("cell_log_time_skew_seconds", about, skews.log as f64 / 1000.0);
    }

    fn scheduler_metrics(&self, page: &mut MetricsPage) {
        let passes = self.handle.passes();
        type Counter = fn(&cellwright_messages::PassStatistics) -> u64;
        let counters: [(&str, &str, Counter); 5] = [
            ("cell_scheduler_passes_total", "Passes made.", |p| p.passes),
            ("cell_scheduler_placed_total", "Tasks placed.", |p| p.placed),
            ("cell_scheduler_refused_total", "Placements refused by the log.", |p| p.rejected),
            ("cell_scheduler_preempted_total", "Tasks evicted for others.", |p| p.preempted),
            ("cell_scheduler_micros_total", "Microseconds spent in passes.", |p| p.micros),
        ];
        for (name, help, of) in counters {
            page.header(name, "counter", help);
            for (scheduler, statistics) in &passes {
                let labels = format!("scheduler=\"{}\"", escaped(scheduler));
                page.value(name, &labels, of(statistics));
            }
        }
    }

    fn controller_metrics(&self, page: &mut MetricsPage) {
        let about = "Commands given by a controller in this leadership; leader.";
        page.header("cell_controller_commands_total", "counter", about);
        for (controller, status) in self.handle.controllers() {
            let labels = format!("controller=\"{controller}\"");
            page.value("cell_controller_commands_total", &labels, status);
        }
    }

    pub(super) async fn health(&self, _call: Call) -> ApiResult {
        match self.handle.failure() {
            None => Ok(reply::text("text/plain; charset=utf-8", "ok\n".into())),
            Some(why) => Err(ApiError::new(Code::NotReady, why)),
        }
    }

    pub(super) async fn ready(&self, _call: Call) -> ApiResult {
        if self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        match not_ready_reason(&self.handle.status()) {
            None => Ok(reply::text("text/plain; charset=utf-8", "ready\n".into())),
            Some(why) => Err(ApiError::new(Code::NotReady, why)),
        }
    }
}

/// Why clients should use another replica.
fn not_ready_reason(status: &Status) -> Option<String> {
    let behind = status.last_log.unwrap_or(0).saturating_sub(status.applied.unwrap_or(0));
    match status.role {
        Role::Stopped => Some("the replica has stopped".into()),
        _ if status.leader.is_none() => Some("no leader is known".into()),
        _ if behind > MAX_READY_LAG => Some(format!("{behind} entries are still to be applied")),
        _ => None,
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn state_metrics(page: &mut MetricsPage, sums: &cellwright_api::types::ClusterStatus) {
    page.gauge("cell_machines", "Machines known.", sums.machines);
    page.gauge("cell_machines_up", "Machines up.", sums.machines_up);
    page.gauge("cell_machines_draining", "Machines draining.", sums.machines_draining);
    page.gauge("cell_jobs", "Jobs on record, dead ones too.", sums.jobs);
    page.gauge("cell_users", "Users.", sums.users);
    page.resources("cell_capacity", "Capacity of all machines.", sums.capacity);
    page.resources("cell_available", "What new non-production work could get.", sums.available);
    page.header("cell_tasks", "gauge", "Tasks by state.");
    let tasks = &sums.tasks;
    for (state, count) in [
        ("deferred", tasks.deferred),
        ("pending", tasks.pending),
        ("assigned", tasks.assigned),
        ("running", tasks.running),
        ("stopping", tasks.stopping),
        ("finished", tasks.finished),
        ("failed", tasks.failed),
        ("killed", tasks.killed),
    ] {
        page.value("cell_tasks", &format!("state=\"{state}\""), count);
    }
}
