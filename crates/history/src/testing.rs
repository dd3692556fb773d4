//! Helpers for tests of this crate: a directory that is deleted afterwards, and a plausible feed.

use crate::event_rows::FeedEvent;
use crate::query::{Answer, HistoryReader, QueryLimits, Value};
use crate::store::{FeedSlice, History, RetentionConfig};
use cellwright_cell::command::Actor;
use cellwright_cell::event::{Event, EventKind, JobChange, MachineChange, TaskChange};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::reason::Reason;
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::{Span, Time};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub const DAY: u64 = crate::day::MILLIS;
/// 2026-11-01, midnight.
pub const BEGIN: u64 = 1_793_491_200_000;

pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cellwright-history-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left by an earlier process with the same number.
        drop(std::fs::remove_dir_all(&path));
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

pub fn settings() -> RetentionConfig {
    RetentionConfig { recent: Span(3 * DAY), keep: Span(1000 * DAY), max_bytes: 1 << 40 }
}

pub fn feed_event(
    index: u64,
    position: u32,
    object: &str,
    at: u64,
    event_kind: EventKind,
    reason: Reason,
) -> FeedEvent {
    let (object, event) = (
        object.to_owned(),
        Event { at: Time(at), actor: Actor::Operator, kind: event_kind, reason },
    );
    FeedEvent { index, position, object, related_object: None, event, submission: None }
}

fn task(nth: u64, change: TaskChange) -> EventKind {
    let job = JobId(u32::try_from(nth % 5).unwrap_or(0));
    let (task, index) = (TaskId(u32::try_from(nth % 50).unwrap_or(0)), (nth % 10) as u32);
    EventKind::Task { task, job, index, attempt: 1 + (nth % 3) as u32, change }
}

/// `count` events, `per_day` a day, of all kinds.
pub fn feed(count: u64, per_day: u64) -> Vec<FeedEvent> {
    let machine = |nth: u64| MachineId(u32::try_from(nth % 4).unwrap_or(0));
    let event = |nth: u64| {
        let at = BEGIN + nth * DAY / per_day;
        let user = ["ann", "bob", "cid"][(nth / 7 % 3) as usize];
        let of_task = format!("{user}/job-{}/{}", nth % 5, nth % 10);
        let (index, position) = (10 + nth / 3 * 2, (nth % 3) as u32);
        let id = machine(nth);
        let (object, event_kind, reason) = match nth % 8 {
            0 => (
                format!("m{}", nth % 4),
                EventKind::Machine { machine: id, change: MachineChange::Up { incarnation: nth } },
                Reason::AgentReport,
            ),
            1 => {
                let change = JobChange::Resized { count: nth as u32 };
                let job = JobId(1);
                (format!("{user}/job-1"), EventKind::Job { job, change }, Reason::Requested)
            }
            2 => {
                let failed = task(nth, TaskChange::Failed { machine: id });
                (of_task, failed, Reason::Exited(ExitClass::Code((nth % 4) as i32)))
            }
            3 => ("cell".into(), EventKind::LevelRaised { level: nth as u32 }, Reason::Requested),
            4 => (of_task, task(nth, TaskChange::Finished), Reason::Succeeded),
            _ => {
                let started = task(nth, TaskChange::Started { machine: id });
                (of_task, started, Reason::AgentReport)
            }
        };
        feed_event(index, position, &object, at, event_kind, reason)
    };
    (0..count).map(event).collect()
}

pub fn ingest(history: &mut History, events: &[FeedEvent]) {
    history.ingest(FeedSlice { events, gap: false }, &|_| None).unwrap();
}

pub fn query(folder: &Folder, sql: &str) -> Answer {
    HistoryReader::new(folder.path()).query(sql, &[], QueryLimits::default()).unwrap()
}

/// Everything that queries can see, table by table, in the order it has.
pub fn dump_all(folder: &Folder) -> Vec<(&'static str, Vec<Vec<Value>>)> {
    let limits = QueryLimits { max_rows: 1_000_000, ..QueryLimits::default() };
    let read = |table: &'static crate::tables::Table| {
        let order = match table.column_position("log_index") {
            Some(_) => "log_index, position",
            None => "1, 2, 3, 4",
        };
        let sql = format!("select * from {} order by {order}", table.name);
        (table.name, HistoryReader::new(folder.path()).query(&sql, &[], limits).unwrap().rows)
    };
    crate::tables::kept_tables().into_iter().map(read).collect()
}

/// The one number of an answer.
pub fn number(answer: &Answer) -> i64 {
    match answer.rows[..] {
        [ref row] => match row[..] {
            [Value::Integer(number)] => number,
            _ => panic!("not one number: {row:?}"),
        },
        _ => panic!("not one row: {answer:?}"),
    }
}
