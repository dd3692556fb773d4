//! What SQL over ten million task events costs: written through the writer that a master uses, half
//! a year of them, then counted by user and day from the daily sums, from the raw rows while all of
//! them are recent, and from the raw rows once most days are Parquet files. Times are by the wall,
//! since a query is something a person waits for; the load of the machine is in the report.

use crate::section_report::{Section, SectionedReport};
use cellwright_cell::command::Actor;
use cellwright_cell::event::{Event, EventKind, TaskChange};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::reason::Reason;
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::{Span, Time};
use cellwright_history::{
    FeedEvent, FeedSlice, History, HistoryReader, QueryLimits, RetentionConfig,
};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENTS: u64 = 10_000_000;
const DAYS: u64 = 28;
const USERS: u64 = 200;
const BATCH: u64 = 8192;
const DAY: u64 = 86_400_000;
/// 2026-10-01, midnight.
const BEGIN: u64 = 1_790_812_800_000;

const BOOK: SectionedReport = SectionedReport {
    name: "history",
    about: "SQL over the history of a cell: 10 M task events of 200 users on 28 days, written \
            through the master's own writer.",
    figures: &["recent", "archived"],
};

const ROLLUP: &str = "select user, day, sum(count) from task_events_daily group by user, day";
const MONTH: &str =
    "select user, substr(day, 1, 7), count(*) from task_events group by user, substr(day, 1, 7)";
const DATE: &str = "select date(time / 1000, 'unixepoch'), count(*) from task_events group by 1";
const RAW: &str = "select user, day, count(*) from task_events group by user, day";
const FAILED: &str = "select machine, count(*) from task_events where event = 'failed' and \
                      day = '2026-10-03' group by machine";
const JOB: &str = "select * from task_events where user = 'user-007' and job = 'job-207'";

pub fn main() -> std::io::Result<()> {
    let folder = std::env::temp_dir().join(format!("cellwright-bench-{}", std::process::id()));
    let done = run(&folder);
    std::fs::remove_dir_all(&folder)?;
    done.map_err(|error| std::io::Error::other(error.to_string()))
}

fn run(folder: &Path) -> Result<(), Box<dyn Error>> {
    let days = |days: u64| Span(days * DAY);
    let settings = RetentionConfig { recent: days(40), keep: days(400), max_bytes: 1 << 40 };
    let mut history = History::open(folder, settings)?;
    let mut section = Section::new(
        "All of it recent",
        "Every row in SQLite: the daily sums, all raw rows, one day of them, and one job.",
    );
    let started = Instant::now();
    for first in (0..EVENTS).step_by(BATCH as usize) {
        let facts: Vec<FeedEvent> = (first..(first + BATCH).min(EVENTS)).map(fact).collect();
        history
            .ingest(FeedSlice { events: &facts, gap: false }, &|id| Some(format!("m{}", id.0)))?;
    }
    let rate = EVENTS as f64 / started.elapsed().as_secs_f64();
    section.row("events folded in, 8,192 to a transaction", rate, "events/s", "");
    section.row("space of the database", history.disk_bytes()? as f64 / 1e6, "MB", "");
    queries(&mut section, folder)?;
    section.limits(
        "writing: the B-trees of the indices, half of the time in inserting into them; reading: an \
         index that has user and day is walked from end to end.",
    );
    section.save(&BOOK, "recent")?;
    drop(history);
    let mut history = History::open(folder, RetentionConfig { recent: days(3), ..settings })?;
    let mut section = Section::new(
        "Most of it archived",
        "The same rows after all but the last days moved to Parquet files, read through the \
         virtual table.",
    );
    let started = Instant::now();
    let moved = history.enforce_retention(Time(BEGIN + DAYS * DAY))?.archived_rows;
    let rate = moved as f64 / started.elapsed().as_secs_f64();
    section.row("rows moved to Parquet", rate, "rows/s", "");
    section.row("space of all of it", history.disk_bytes()? as f64 / 1e6, "MB", "");
    queries(&mut section, folder)?;
    section.limits(
        "SQLite groups by sorting, and an archive has no index: two thirds of the raw count are \
         comparisons of the sorter, on two threads beside the one that decodes. A hash table for \
         groups, which SQLite does not have, would lift it.",
    );
    section.save(&BOOK, "archived")?;
    Ok(())
}

fn queries(section: &mut Section, folder: &Path) -> Result<(), Box<dyn Error>> {
    let bounds =
        QueryLimits { max_time: Duration::from_secs(600), max_rows: 1_000_000, max_bytes: 1 << 30 };
    for (work, sql, target) in [
        ("group by user, day from the daily sums", ROLLUP, "≤ 2"),
        ("group by user, day from all raw rows", RAW, "≤ 10"),
        ("group by user, month (an expression) from all raw rows", MONTH, ""),
        ("group by the date of a time from all raw rows", DATE, ""),
        ("failures of one day by machine, raw", FAILED, ""),
        ("all events of one job, raw", JOB, ""),
    ] {
        let started = Instant::now();
        let answer = HistoryReader::new(folder).query(sql, &[], bounds)?;
        let took = started.elapsed().as_secs_f64();
        if sql == ROLLUP || sql == RAW {
            assert_eq!(answer.rows.len() as u64, USERS * DAYS, "{sql}");
        }
        section.row(work, took, "s", target);
    }
    Ok(())
}

fn fact(nth: u64) -> FeedEvent {
    // Spreads users without a random generator: a step that shares no factor with their number.
    let user = nth * 7 % USERS;
    let (job, index) = (user + USERS * (nth / USERS % 5), nth / 1000 % 100);
    let machine = MachineId((nth * 31 % 5000) as u32);
    let (change, reason) = match nth % 5 {
        0 => (TaskChange::Submitted, Reason::Admitted),
        1 => (TaskChange::Scheduled { machine }, Reason::FoundPlace),
        2 => (TaskChange::Started { machine }, Reason::AgentReport),
        3 => (TaskChange::Failed { machine }, Reason::Exited(ExitClass::Code(1))),
        _ => (TaskChange::Finished, Reason::Succeeded),
    };
    let payload = EventKind::Task {
        task: TaskId((nth % 1_000_000) as u32),
        job: JobId(job as u32),
        index: index as u32,
        attempt: 1,
        change,
    };
    let at = Time(BEGIN + nth * (DAYS * DAY) / EVENTS);
    FeedEvent {
        index: 1 + nth / 100,
        position: (nth % 100) as u32,
        object: format!("user-{user:03}/job-{job}/{index}"),
        related_object: None,
        event: Event { at, actor: Actor::Operator, kind: payload, reason },
        submission: None,
    }
}
