//! Turns an event of the feed into a row, and into the sums it adds to. A pure function of the
//! event and the names known by then, so that history can be rebuilt from the feed.

use crate::day::day_of;
use crate::tables::{JOB_EVENTS, MACHINE_EVENTS, OTHER_EVENTS, SUBMISSIONS, TASK_EVENTS, Table};
use crate::usage::NO_LABELS;
use cellwright_cell::components;
use cellwright_cell::event::{Event, EventKind, JobChange, MachineChange, TaskChange, UserChange};
use cellwright_cell::id::MachineId;
use cellwright_cell::priority::Priority;
use cellwright_cell::reason::Reason;
use cellwright_cell::scaling::ScalingChange;
use cellwright_cell::tables::TableName;
use cellwright_cell::task::ExitClass;
use cellwright_cell::words;
use rusqlite::types::Value;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// One event of the feed, with the name of its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    pub index: u64,
    pub position: u32,
    /// `user/job/index`, `user/job`, or the name of the object.
    pub object: String,
    /// The name of the object that the reason refers to, if there is one.
    pub related_object: Option<String>,
    pub event: Event,
    /// The version of the job that it brought, if it did.
    pub submission: Option<Submission>,
}

/// A version of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    pub version: u32,
    /// The spec as JSON, in the form of the API.
    pub spec: String,
}

/// Names of machines: events have ids, and an id is given to another machine in time.
pub type MachineNames = BTreeMap<MachineId, String>;

pub(crate) struct Row {
    pub table: &'static Table,
    pub values: Vec<Value>,
}

/// The machine's name in this event, if it has one.
pub(crate) fn machine_name(event: &FeedEvent) -> Option<(MachineId, &str)> {
    match event.event.kind {
        EventKind::Machine { machine, .. } => Some((machine, &event.object)),
        _ => None,
    }
}

pub(crate) fn to_row(feed_event: &FeedEvent, machines: &MachineNames) -> Row {
    let event = &feed_event.event;
    let table = table_of(&event.kind);
    let named = event.mentioned_machine().map(|id| match machines.get(&id) {
        Some(name) => name.clone(),
        None => format!("machine#{}", id.0),
    });
    let mut parts = feed_event.object.splitn(3, '/').map(str::to_owned);
    let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut values = vec![
        Value::Integer(to_sql_integer(event.at.0)),
        Value::Text(day_of(event.at.0)),
        Value::Integer(to_sql_integer(feed_event.index)),
        Value::Integer(i64::from(feed_event.position)),
    ];
    let (event_name, detail) = event_word(&event.kind);
    let reason = Value::Text(event.reason_code().to_owned());
    let detail = with_failures(detail, &event.reason);
    let detail = detail.or_else(|| reason_object(feed_event)).map_or(Value::Null, Value::Text);
    let event_name = Value::Text(event_name.to_owned());
    let rest = match &event.kind {
        EventKind::Task { index, attempt, .. } => {
            let exit = exit_class(event);
            vec![
                Value::Text(first),
                Value::Text(second),
                Value::Integer(i64::from(*index)),
                Value::Integer(i64::from(*attempt)),
                event_name,
                named.map_or(Value::Null, Value::Text),
                reason,
                exit.map_or(Value::Null, |exit| Value::Text(exit.code().to_owned())),
                number_of(exit),
                detail,
            ]
        }
        kind if is_about_job(kind) => {
            vec![Value::Text(first), Value::Text(second), event_name, reason, detail]
        }
        EventKind::Component(of_job) if is_of_job(of_job) => {
            vec![Value::Text(first), Value::Text(second), event_name, reason, detail]
        }
        EventKind::Machine { .. } => {
            vec![Value::Text(feed_event.object.clone()), event_name, reason, detail]
        }
        other => vec![
            Value::Text(object_kind(other).to_owned()),
            Value::Text(feed_event.object.clone()),
            event_name,
            named.map_or(Value::Null, Value::Text),
            reason,
            detail,
        ],
    };
    values.extend(rest);
    values.push(Value::Text(event.actor.to_string()));
    Row { table, values }
}

/// The row of `submissions` that an event brings, if it does. What its JSON does not say is absent
/// or 0: an older build may have known less of a job.
pub(crate) fn submission_row(feed_event: &FeedEvent) -> Option<Row> {
    let submission = feed_event.submission.as_ref()?;
    let spec: Json = serde_json::from_str(&submission.spec).unwrap_or(Json::Null);
    let priority = Priority(spec["priority"].as_u64().and_then(|p| p.try_into().ok()).unwrap_or(0));
    let limit = |name: &str| number_at(&spec["task"]["limits"][name]);
    let labels = match &spec["labels"] {
        Json::Object(labels) => serde_json::to_string(labels).unwrap_or_default(),
        _ => NO_LABELS.to_owned(),
    };
    let (user, job) = feed_event.object.split_once('/').unwrap_or((&feed_event.object, ""));
    let (event, _) = event_word(&feed_event.event.kind);
    let text = |text: &str| Value::Text(text.to_owned());
    let at = feed_event.event.at.0;
    let values = vec![
        Value::Integer(to_sql_integer(at)),
        Value::Text(day_of(at)),
        Value::Integer(to_sql_integer(feed_event.index)),
        Value::Integer(i64::from(feed_event.position)),
        text(user),
        text(job),
        Value::Integer(i64::from(submission.version)),
        text(event),
        text(if spec["kind"] == "alloc_set" { "allocs" } else { "tasks" }),
        Value::Integer(spec["count"].as_i64().unwrap_or(1)),
        Value::Integer(i64::from(priority.0)),
        text(priority.band().as_str()),
        limit("cpu"),
        limit("ram"),
        limit("disk"),
        Value::Text(labels),
        text(&submission.spec),
        Value::Text(feed_event.event.actor.to_string()),
    ];
    Some(Row { table: &SUBMISSIONS, values })
}

fn number_at(value: &Json) -> Value {
    Value::Integer(to_sql_integer(value.as_u64().unwrap_or(0)))
}

/// SQLite's integers are signed. Times and indices beyond their range are clamped to the largest.
pub(crate) fn to_sql_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Decisions on the size of a job are its events; what was measured for them every minute is not.
fn is_of_job(event: &components::Event) -> bool {
    match event {
        components::Event::Scaling(event) => {
            !matches!(event.change, ScalingChange::Measured { .. })
        }
        _ => false,
    }
}

fn table_of(event_kind: &EventKind) -> &'static Table {
    match event_kind {
        EventKind::Component(event) if is_of_job(event) => &JOB_EVENTS,
        EventKind::Task { .. } => &TASK_EVENTS,
        kind if is_about_job(kind) => &JOB_EVENTS,
        EventKind::Machine { .. } => &MACHINE_EVENTS,
        _ => &OTHER_EVENTS,
    }
}

/// Events of a component may be about a job too.
fn is_about_job(event_kind: &EventKind) -> bool {
    match event_kind {
        EventKind::Job { .. } | EventKind::JobRejected { .. } => true,
        EventKind::Component(event) => event.as_component().row().table == TableName::Jobs,
        _ => false,
    }
}

/// How many attempts brought the old version back.
fn with_failures(detail: Option<String>, reason: &Reason) -> Option<String> {
    let Reason::UpdateFailed { failures, within } = reason else { return detail };
    let failed = format!("{failures} failed within {}", words::quantity::span(*within));
    Some(detail.map_or(failed.clone(), |detail| format!("{detail}, {failed}")))
}

fn object_kind(event_kind: &EventKind) -> &'static str {
    match event_kind {
        EventKind::Component(event) if is_of_job(event) => "job",
        EventKind::Component(event) => event.as_component().kind(),
        EventKind::Task { .. } => "task",
        EventKind::Job { .. } | EventKind::JobRejected { .. } => "job",
        EventKind::Machine { .. } => "machine",
        EventKind::User { .. } => "user",
        EventKind::LevelRaised { .. } | EventKind::BoundsChanged => "cell",
        EventKind::Token { .. } => "token",
        EventKind::Blob { .. } => "package",
    }
}

/// How a run ended, if that is the event or its reason.
fn exit_class(event: &Event) -> Option<ExitClass> {
    match (&event.kind, &event.reason) {
        (EventKind::Task { change: TaskChange::GaveUp { exit, .. }, .. }, _)
        | (_, Reason::Exited(exit) | Reason::NotRetried { exit, .. }) => Some(*exit),
        _ => None,
    }
}

fn number_of(exit: Option<ExitClass>) -> Value {
    let number = exit.and_then(ExitClass::number);
    number.map_or(Value::Null, |number| Value::Integer(i64::from(number)))
}

/// The object that the reason refers to.
fn reason_object(event: &FeedEvent) -> Option<String> {
    match (&event.event.reason, &event.related_object) {
        (Reason::Preempted { .. }, Some(task)) => Some(format!("by {task}")),
        (Reason::Preempted { by }, None) => Some(format!("by task row {}", by.0)),
        (Reason::DependencyFailed { .. }, Some(job)) => Some(job.clone()),
        (Reason::DependencyFailed { job }, None) => Some(format!("job row {}", job.0)),
        _ => None,
    }
}

/// The name of the event, and its numbers.
fn event_word(event_kind: &EventKind) -> (&'static str, Option<String>) {
    match event_kind {
        EventKind::Task { change, .. } => (task_word(*change), task_detail(*change)),
        EventKind::Job { change, .. } => job_words(*change),
        EventKind::JobRejected { rejection, .. } => ("rejected", Some(rejection.to_string())),
        EventKind::Machine { change, .. } => machine_words(*change),
        EventKind::User { change, .. } => user_words(*change),
        EventKind::Component(event) => event.as_component().label_and_detail(),
        EventKind::LevelRaised { level } => ("level-raised", Some(format!("level {level}"))),
        EventKind::BoundsChanged => ("bounds-changed", None),
        EventKind::Token { change, .. } => (token_word(*change), None),
        EventKind::Blob { change, .. } => (blob_word(*change), None),
    }
}

fn token_word(change: cellwright_cell::event::TokenChange) -> &'static str {
    use cellwright_cell::event::TokenChange as C;
    match change {
        C::Added => "added",
        C::Used => "used",
        C::Revoked => "revoked",
        C::Expired => "expired",
        C::Confirmed => "confirmed",
    }
}

fn blob_word(change: cellwright_cell::event::BlobChange) -> &'static str {
    use cellwright_cell::event::BlobChange as C;
    match change {
        C::Added => "added",
        C::Removed => "removed",
    }
}

/// The details of a task's event beyond its name.
fn task_detail(change: TaskChange) -> Option<String> {
    match change {
        TaskChange::Left { notice, .. } => Some(notice.describe().to_owned()),
        TaskChange::Resized { before, after } => words::limits_change(before, after),
        _ => None,
    }
}

fn task_word(change: TaskChange) -> &'static str {
    use TaskChange as T;
    match change {
        T::Submitted => "submitted",
        T::Released => "released",
        T::Scheduled { .. } => "scheduled",
        T::Started { .. } => "started",
        T::Stopping { .. } => "stopping",
        T::Evicted { .. } => "evicted",
        T::Completed { .. } => "completed",
        T::Failed { .. } => "failed",
        T::Lost { .. } => "lost",
        T::Restarted { .. } => "restarted",
        T::Updated => "updated",
        T::UpdateSkipped => "update-skipped",
        T::ReservationChanged => "reservation-changed",
        T::Finished => "finished",
        T::GaveUp { .. } => "failed-for-good",
        T::Killed => "killed",
        T::NeverRan => "never-ran",
        T::Purged => "purged",
        T::LogSaverFailed { .. } => "log-saver-failed",
        T::Saved { .. } => "saved",
        T::NotSaved { .. } => "not-saved",
        T::Left { .. } => "left",
        T::HoldReserved { .. } => "hold-reserved",
        T::HoldReleased { .. } => "hold-released",
        T::RestartDue => "restart-due",
        T::Resized { .. } => "resized",
    }
}

fn job_words(change: JobChange) -> (&'static str, Option<String>) {
    use JobChange as J;
    let version = |version: u32| Some(format!("version {version}"));
    match change {
        J::Submitted => ("submitted", None),
        J::Accepted => ("accepted", None),
        J::Released => ("released", None),
        J::StillWaits { left } => ("still-waits", Some(format!("{left} left"))),
        J::MachinesMatched { tasks } => ("machines-matched", Some(format!("{tasks} machines"))),
        J::MachinesLeftOut { machines } => {
            ("machines-left-out", Some(format!("{machines} machines")))
        }
        J::UpdateOpened { version: v } => ("update-opened", version(v)),
        J::UpdateUndone { version: v } => ("update-undone", version(v)),
        J::UpdateClosed { version: v } => ("update-closed", version(v)),
        J::LimitsChanged { version: v } => ("limits-changed", version(v)),
        J::Resized { count } => ("resized", Some(format!("count {count}"))),
        J::Stopping => ("stopping", None),
        J::Succeeded => ("succeeded", None),
        J::Failed => ("failed", None),
        J::Killed => ("killed", None),
        J::NeverRan => ("never-ran", None),
        J::Purged => ("purged", None),
        J::StartedAgain => ("started-again", None),
    }
}

fn machine_words(change: MachineChange) -> (&'static str, Option<String>) {
    use MachineChange as M;
    match change {
        M::Added => ("added", None),
        M::Updated => ("updated", None),
        M::Removed => ("removed", None),
        M::Up { incarnation } => ("up", Some(format!("incarnation {incarnation}"))),
        M::Down => ("down", None),
        M::DrainStarted => ("drain-started", None),
        M::DrainStopped => ("drain-stopped", None),
        M::PackagesChanged => ("packages-changed", None),
        M::OverCommitted => ("over-committed", None),
        M::Recovered => ("recovered", None),
        M::DiskRetained { bytes } => ("disk-retained", Some(format!("{bytes} bytes"))),
        M::DiskReleased { bytes } => ("disk-released", Some(format!("{bytes} bytes"))),
        M::PressureReported { dimension } => ("short", Some(dimension.to_string())),
        M::PressureEvicted { dimension } => ("pressure-evicted", Some(dimension.to_string())),
        M::PressureEased { dimension } => ("pressure-eased", Some(dimension.to_string())),
        M::PressureEnded { dimension } => ("pressure-ended", Some(dimension.to_string())),
    }
}

fn user_words(change: UserChange) -> (&'static str, Option<String>) {
    use UserChange as U;
    let band = |band: cellwright_cell::priority::Band| Some(format!("band {band}"));
    match change {
        U::Added => ("added", None),
        U::Removed => ("removed", None),
        U::CapabilitiesChanged => ("capabilities-changed", None),
        U::QuotaChanged { band: b } => ("quota-changed", band(b)),
        U::QuotaExceeded { band: b } => ("quota-exceeded", band(b)),
        U::QuotaRecovered { band: b } => ("quota-recovered", band(b)),
    }
}
