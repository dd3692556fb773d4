//! The event log of the cell: what happened, entry by entry, for watches and for history.
//!
//! Every replica writes its own, from the same entries, so a watch can continue at any of them with
//! its cursor: the log index and the position within that entry. Nothing is synced on the way,
//! because the events can be derived again from the replicated log; [`EventLog::sync`] is called
//! before that log is purged.
//!
//! Rows are numbers, and numbers mean nothing once the row is gone. Each record therefore contains
//! the names its rows had. Rejected: the name in every event, which for a job of a hundred thousand
//! tasks is the same text a hundred thousand times.

mod submissions;

use crate::record_body;
use crate::segments::{Record, RetentionLimits, Segments};
use cellwright_cell::event::{BlobChange, Event, JobChange, MachineChange};
use cellwright_cell::event::{EventKind, TaskChange, TokenChange, UserChange};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::reason::Reason;
use cellwright_cell::state::State;
use cellwright_cell::tables::{RowRef, TableName};
use cellwright_cell::time::Time;
use cellwright_store::Disk;
use cellwright_supervise::lock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
pub use submissions::Submission;
use submissions::submissions;

const DIR: &str = "events";
/// Of the bodies of its records. After a release a body that changes raises it, keeps a reader for
/// the form before, and is written in the new one from a level of the cell on: a replica that lost
/// its records is told them by others, and can be put back to the release before until then.
/// Format 1 was written by no release.
const FORMAT: u16 = 2;
/// Payload bytes read for one answer; an answer has at least one record.
const READ_BYTES: usize = 4 << 20;

/// One event, its place in the log, and the name of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    pub index: u64,
    pub position: u32,
    /// `user/job/index`, `user/job`, or the name of the object it is about.
    pub object: String,
    /// The name of the row in the reason, if it has one.
    pub reason_object: Option<String>,
    pub event: Event,
    /// The version of the job that it brought, if it did.
    pub submission: Option<Submission>,
}

/// A page of the event feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedEvents {
    pub items: Vec<RecordedEvent>,
    /// Events between the cursor and the first of these are missing, or never existed.
    pub gap: bool,
    /// Everything after this log index is present; nothing if the log is empty.
    pub reaches_back_to: Option<u64>,
}

#[derive(Deserialize)]
struct EventBody {
    events: Vec<Event>,
    names: Vec<(RowRef, String)>,
    submissions: Vec<Submission>,
}

/// Format 1 had no submissions.
#[derive(Deserialize)]
struct EventBody1 {
    events: Vec<Event>,
    names: Vec<(RowRef, String)>,
}

/// What is written of an entry, read again as an [`EventBody`].
#[derive(Serialize)]
struct NewEventBody<'a> {
    events: &'a [Event],
    names: Vec<(RowRef, String)>,
    submissions: Vec<Submission>,
}

fn body_of(record: &Record) -> io::Result<EventBody> {
    if record_body::format(&record.payload) == Some(1) {
        let old: EventBody1 = record_body::open(DIR, record.number, FORMAT, &record.payload)?;
        let EventBody1 { events, names } = old;
        return Ok(EventBody { events, names, submissions: Vec::new() });
    }
    record_body::open(DIR, record.number, FORMAT, &record.payload)
}

pub struct EventLog {
    pub(crate) segments: Segments,
    names: Mutex<BTreeMap<RowRef, String>>,
    /// Log index up to which everything had been recorded and synced when this was opened.
    covered: u64,
    /// The log index after which entries are applied, until the first one is.
    applies_after: Mutex<Option<u64>>,
}

impl EventLog {
    /// # Errors
    /// When the files cannot be read.
    pub fn open(disk: Arc<dyn Disk>, keep: RetentionLimits) -> io::Result<EventLog> {
        let (segments, found) = Segments::open(disk, DIR, keep)?;
        if let Some(last) = segments.last_record()? {
            record_body::check(DIR, last.number, FORMAT, &last.payload)?;
        }
        let (covered, from) = (found.covered, Mutex::new(Some(0)));
        Ok(EventLog { segments, names: Mutex::default(), covered, applies_after: from })
    }

    /// Records the events of an entry; `state` is the one after it. An entry that is already
    /// recorded is skipped, so the replicated log may be applied again after a restart.
    ///
    /// # Errors
    /// When the disk fails. The caller must not go on: the feed would have a hole.
    pub fn append(&self, index: u64, at: Time, events: &[Event], state: &State) -> io::Result<()> {
        if let Some(from) = self.lock_applies_after().take() {
            self.segments.rewind(from)?;
        }
        if events.is_empty() {
            return Ok(());
        }
        let names = self.row_names(events, state);
        if index <= self.segments.last() {
            return Ok(());
        }
        let body = NewEventBody { events, names, submissions: submissions(events, state) };
        let bytes = record_body::seal(FORMAT, &body, 64 * events.len())?;
        self.segments.append(index, at, &bytes)?;
        Ok(())
    }

    /// This replica starts from `state`, which is at `index`. Loads the names of its rows; entries
    /// before that index that were not recorded are a gap from now on.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn restore_names(&self, index: u64, state: &State) -> io::Result<()> {
        *self.lock_names() = all_names(state);
        if let Some(from) = self.lock_applies_after().as_mut() {
            *from = index;
        }
        if index <= self.covered { Ok(()) } else { self.segments.skip_to(index) }
    }

    /// The last entry that had certainly been applied when this was opened.
    #[must_use]
    pub fn durable_applied(&self) -> u64 {
        self.segments.last().max(self.covered)
    }

    /// Everything recorded so far survives a power cut once this returns, and so does everything of
    /// the log up to `covered`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self, covered: u64) -> io::Result<()> {
        self.segments.sync(covered)
    }

    /// Removes what is beyond the limits of age and size.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn trim(&self, now: Time) -> io::Result<()> {
        self.segments.trim(now)
    }

    /// Index of the last entry recorded.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.segments.last()
    }

    /// Everything after this log index is present; nothing if the log is empty.
    #[must_use]
    pub fn reaches_back_to(&self) -> Option<u64> {
        self.segments.reaches_back_to()
    }

    /// Events after the one at `position` of entry `index`, oldest first, at most `most`.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn read_after(&self, index: u64, position: u32, most: usize) -> io::Result<RecordedEvents> {
        let whole = position == u32::MAX;
        let from = index.saturating_add(u64::from(whole));
        let batch = self.segments.read_from(from, READ_BYTES)?;
        let mut feed = RecordedEvents { gap: batch.has_gap, ..RecordedEvents::default() };
        feed.reaches_back_to = self.reaches_back_to();
        let seen = batch.records.last().map(|record| record.number);
        for record in batch.records {
            let body: EventBody = body_of(&record)?;
            let names: BTreeMap<RowRef, String> = body.names.into_iter().collect();
            let mut submitted = body.submissions.into_iter().peekable();
            for (at, event) in body.events.into_iter().enumerate() {
                let at = u32::try_from(at).unwrap_or(u32::MAX);
                let submission = submitted.next_if(|submission| submission.position == at);
                if record.number == index && at <= position {
                    continue;
                }
                if feed.items.len() >= most {
                    return Ok(feed);
                }
                let object = object_name(&event.kind, &names);
                let other = reason_row(&event.reason).and_then(|row| names.get(&row).cloned());
                let index = record.number;
                feed.items.push(RecordedEvent {
                    index,
                    position: at,
                    object,
                    reason_object: other,
                    event,
                    submission,
                });
            }
        }
        match seen {
            // The cursor was on the last event of these: what follows may lie behind a gap.
            Some(seen) if feed.items.is_empty() => self.read_after(seen, u32::MAX, most),
            _ => Ok(feed),
        }
    }

    /// The machine that an attempt of a task was placed on, as far back as events are kept. If the
    /// row number belonged to another task before, the newest such row counts. Reads the whole log.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn machine_of_attempt(&self, task: TaskId, attempt: u32) -> io::Result<Option<MachineId>> {
        let (mut found, mut from) = (None, 0);
        loop {
            let batch = self.segments.read_from(from, READ_BYTES)?;
            let Some(last) = batch.records.last().map(|record| record.number) else {
                return Ok(found);
            };
            for record in batch.records {
                let body: EventBody = body_of(&record)?;
                for event in body.events {
                    if let EventKind::Task { task: of, attempt: nth, change, .. } = event.kind
                        && (of, nth) == (task, attempt)
                    {
                        found = placed_machine(&change).or(found);
                    }
                }
            }
            from = last + 1;
        }
    }

    /// The newest `most` events of one task of a job, oldest first, and the log index after which
    /// everything was searched. Searches backwards in growing steps up to a limit: a query must not
    /// read gigabytes.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn recent_task_events(
        &self,
        job: JobId,
        index: u32,
        most: usize,
    ) -> io::Result<(Vec<Event>, u64)> {
        const LOOKBACK_STEPS: [u64; 4] = [256, 2048, 16_384, 131_072];
        const MAX_BYTES: usize = 16 << 20;
        let (last, oldest) = (self.last(), self.reaches_back_to().unwrap_or_default());
        let mut found = (Vec::new(), last);
        for stride in LOOKBACK_STEPS {
            let from = last.saturating_sub(stride).max(oldest);
            let Some(events) = self.task_events_after(from, job, index, MAX_BYTES)? else { break };
            let enough = events.len() >= most || from <= oldest;
            found = (events, from);
            if enough {
                break;
            }
        }
        let surplus = found.0.len().saturating_sub(most);
        found.0.drain(..surplus);
        Ok(found)
    }

    /// Events of one task after log index `applies_after`; nothing when those are more than
    /// `most_bytes`.
    fn task_events_after(
        &self,
        from: u64,
        job: JobId,
        index: u32,
        most_bytes: usize,
    ) -> io::Result<Option<Vec<Event>>> {
        let mut found = Vec::new();
        let seen = self.for_each_event(from + 1..=u64::MAX, most_bytes, |event| {
            if matches!(&event.kind, EventKind::Task { job: of, index: nth, change, .. }
                if (*of, *nth) == (job, index) && *change != TaskChange::ReservationChanged)
            {
                found.push(event);
            }
        })?;
        Ok(seen.map(|_| found))
    }

    /// How many tasks that `counts` accepts, by job and index, were placed after `since`, and the
    /// time from which on events were searched. Searches backwards as
    /// [`EventLog::recent_task_events`] does, until `enough` were found; no event is read twice.
    ///
    /// A task is counted once, however often it was placed. Rejected: counting only first attempts,
    /// because a row that was another task's before continues its numbers.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn recent_placements(
        &self,
        since: Time,
        enough: u32,
        counts: impl Fn(JobId, u32) -> bool,
    ) -> io::Result<(u32, Time)> {
        const LOOKBACK_STEPS: [u64; 3] = [256, 2048, 16_384];
        const MAX_BYTES: usize = 8 << 20;
        let (last, oldest) = (self.last(), self.reaches_back_to().unwrap_or_default());
        let mut found = (0, Time::NEVER);
        let (mut placed, mut first) = (BTreeSet::new(), Time::NEVER);
        let (mut to, mut bytes) = (last, MAX_BYTES);
        for stride in LOOKBACK_STEPS {
            let from = last.saturating_sub(stride).max(oldest);
            let seen = self.for_each_event(from + 1..=to, bytes, |event| {
                first = first.min(event.at);
                if let EventKind::Task { job, index, change, .. } = event.kind
                    && matches!(change, TaskChange::Scheduled { .. })
                    && event.at > since
                    && counts(job, index)
                {
                    placed.insert((job, index));
                }
            })?;
            // A step that was read only in part says nothing about the time it covers.
            let Some(seen) = seen else { break };
            (to, bytes) = (from, bytes.saturating_sub(seen));
            let count = u32::try_from(placed.len()).unwrap_or(u32::MAX);
            found = (count, first.max(since));
            if count >= enough || first <= since || from <= oldest {
                break;
            }
        }
        Ok(found)
    }

    /// Passes every event of these entries to `take` and returns how many bytes they were; returns
    /// nothing, and does not pass on all, when they are more than `most_bytes`.
    fn for_each_event(
        &self,
        entries: RangeInclusive<u64>,
        most_bytes: usize,
        mut take: impl FnMut(Event),
    ) -> io::Result<Option<usize>> {
        let (mut at, mut bytes) = (*entries.start(), 0);
        while at <= *entries.end() {
            let batch = self.segments.read_from(at, READ_BYTES.min(most_bytes - bytes))?;
            let Some(last) = batch.records.last().map(|record| record.number) else { break };
            for record in batch.records {
                if record.number > *entries.end() {
                    return Ok(Some(bytes));
                }
                bytes += record.payload.len();
                if bytes > most_bytes {
                    return Ok(None);
                }
                let body: EventBody = body_of(&record)?;
                body.events.into_iter().for_each(&mut take);
            }
            at = last + 1;
        }
        Ok(Some(bytes))
    }

    /// The names of all rows that the events are about. The name of a row that is gone is taken
    /// from the cache, and then dropped from it.
    fn row_names(&self, events: &[Event], state: &State) -> Vec<(RowRef, String)> {
        let mut known = self.lock_names();
        let mut found = BTreeMap::new();
        for event in events {
            let rows = referenced_rows(&event.kind).into_iter().chain([reason_row(&event.reason)]);
            for object in rows.flatten() {
                if found.contains_key(&object) {
                    continue;
                }
                let name = match row_name(state, object) {
                    // A task's name is made of its job's, which is cached.
                    Some(name) if object.table == TableName::Tasks => name,
                    Some(name) => {
                        known.insert(object, name.clone());
                        name
                    }
                    None => match known.get(&object) {
                        Some(name) => name.clone(),
                        None => object.to_string(),
                    },
                };
                found.insert(object, name);
            }
        }
        for event in events.iter().filter(|event| removes_row(&event.kind)) {
            for object in referenced_rows(&event.kind).into_iter().flatten() {
                if row_name(state, object).is_none() {
                    known.remove(&object);
                }
            }
        }
        found.into_iter().collect()
    }

    fn lock_applies_after(&self) -> MutexGuard<'_, Option<u64>> {
        self.applies_after.lock().unwrap_or_else(|_| std::process::abort())
    }

    fn lock_names(&self) -> MutexGuard<'_, BTreeMap<RowRef, String>> {
        lock(&self.names)
    }
}

/// Rows whose names a reader needs: the object of the event, and the other one it mentions.
fn referenced_rows(what: &EventKind) -> [Option<RowRef>; 2] {
    match what {
        EventKind::Component(event) => {
            let event = event.as_component();
            [Some(event.row()), event.related_row()]
        }
        EventKind::Task { job, .. } | EventKind::Job { job, .. } => [Some((*job).into()), None],
        EventKind::Machine { machine, .. } => [Some((*machine).into()), None],
        EventKind::User { user, .. } => [Some((*user).into()), None],
        EventKind::Token { token, .. } => [Some((*token).into()), None],
        EventKind::Blob { blob, .. } => [Some((*blob).into()), None],
        EventKind::JobRejected { .. }
        | EventKind::LevelRaised { .. }
        | EventKind::BoundsChanged => [None, None],
    }
}

/// The row that a reason refers to.
fn reason_row(reason: &Reason) -> Option<RowRef> {
    match reason {
        Reason::Preempted { by } => Some((*by).into()),
        Reason::DependencyFailed { job } => Some((*job).into()),
        _ => None,
    }
}

/// Whether the row is gone after this event.
fn removes_row(what: &EventKind) -> bool {
    match what {
        EventKind::Job { change, .. } => matches!(change, JobChange::Purged),
        EventKind::Machine { change, .. } => matches!(change, MachineChange::Removed),
        EventKind::User { change, .. } => matches!(change, UserChange::Removed),
        EventKind::Component(event) => event.as_component().removes_row(),
        EventKind::Token { change, .. } => {
            matches!(change, TokenChange::Revoked | TokenChange::Expired)
        }
        EventKind::Blob { change, .. } => matches!(change, BlobChange::Removed),
        EventKind::Task { .. } | EventKind::JobRejected { .. } => false,
        EventKind::LevelRaised { .. } | EventKind::BoundsChanged => false,
    }
}

fn row_name(state: &State, row: RowRef) -> Option<String> {
    match row.table {
        TableName::Tasks => Some(state.task_name(TaskId(row.slot))),
        _ => state.row_name(row),
    }
}

/// The names of all rows but tasks, whose names are made of their jobs'.
fn all_names(state: &State) -> BTreeMap<RowRef, String> {
    let tables = TableName::ALL.into_iter().filter(|table| *table != TableName::Tasks);
    let rows = tables.flat_map(|table| state.rows_of(table));
    rows.filter_map(|row| Some((row, row_name(state, row)?))).collect()
}

fn object_name(what: &EventKind, names: &BTreeMap<RowRef, String>) -> String {
    let name = |object: RowRef| match names.get(&object) {
        Some(name) => name.clone(),
        None => object.to_string(),
    };
    match what {
        EventKind::Task { job, index, .. } => format!("{}/{index}", name((*job).into())),
        EventKind::JobRejected { user, job, .. } => format!("{user}/{job}"),
        EventKind::LevelRaised { .. } | EventKind::BoundsChanged => "cell".to_owned(),
        other => referenced_rows(other)[0].map(name).unwrap_or_default(),
    }
}

/// The machine on which a change places an attempt, if it does.
fn placed_machine(change: &TaskChange) -> Option<MachineId> {
    match change {
        TaskChange::Scheduled { machine } | TaskChange::Restarted { machine } => Some(*machine),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use cellwright_cell::command::{Command, Entry, Request};
    use cellwright_cell::name::Name;
    use cellwright_cell::time::Span;

    const KEEP: RetentionLimits =
        RetentionLimits { segment_bytes: 300, total_bytes: 1 << 20, age: Span::seconds(1_000_000) };

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_record_without_submissions_is_still_read() {
        let (folder, mut state) = (TempFolder::new(), State::default());
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let events = step(&log, &mut state, 1, vec![add("ann")]);
        let names: Vec<(RowRef, String)> = Vec::new();
        let old = record_body::seal(1, &(&events, names), 0).unwrap();
        log.segments.append(2, Time(20), &old).unwrap();
        let feed = log.read_after(1, u32::MAX, 10).unwrap();
        assert_eq!(feed.items.len(), events.len());
        assert_eq!(feed.items[0].event, events[0]);
        assert_eq!(feed.items[0].submission, None);
    }

    #[test]
    fn each_version_of_a_job_is_in_the_feed_without_what_it_runs() {
        let (folder, mut state) = (TempFolder::new(), State::default());
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        step(&log, &mut state, 1, vec![add("ann")]);
        let job = |cpu: u64| {
            let spec = serde_json::json!({
                "name": "web", "priority": 0, "labels": { "team": "search" },
                "task": { "limits": { "cpu": cpu, "ram": 1 << 20 }, "command": ["hidden"] },
            });
            Command::SubmitJob { owner: name("ann"), spec: serde_json::from_value(spec).unwrap() }
        };
        step(&log, &mut state, 2, vec![job(100)]);
        let feed = log.read_after(1, u32::MAX, 10).unwrap();
        let found: Vec<&Submission> =
            feed.items.iter().filter_map(|item| item.submission.as_ref()).collect();
        let [first] = found[..] else { panic!("{found:?}") };
        let spec: serde_json::Value = serde_json::from_str(&first.spec).unwrap();
        assert_eq!((first.version, &spec["labels"]["team"]), (1, &"search".into()));
        assert_eq!(spec["task"]["limits"]["cpu"], 100);
        assert!(!first.spec.contains("hidden"), "{}", first.spec);
    }

    /// Applies the commands as one entry and records its events.
    fn step(log: &EventLog, state: &mut State, index: u64, commands: Vec<Command>) -> Vec<Event> {
        let request = |command| Request::from_default_sender(command, state);
        let requests = commands.into_iter().map(request).collect();
        let at = Time(index * 10);
        let mut events = Vec::new();
        let verdicts = state.apply(&Entry { now: at, requests }, &mut events);
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
        log.append(index, at, &events, state).unwrap();
        events
    }

    fn add(user: &str) -> Command {
        Command::AddUser { name: name(user) }
    }

    fn event_positions(
        log: &EventLog,
        index: u64,
        position: u32,
        most: usize,
    ) -> Vec<(u64, u32, String)> {
        let feed = log.read_after(index, position, most).unwrap();
        assert!(!feed.gap);
        feed.items.into_iter().map(|item| (item.index, item.position, item.object)).collect()
    }

    #[test]
    fn a_reader_goes_on_in_the_middle_of_an_entry() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        step(&log, &mut state, 1, vec![add("ann"), add("bob"), add("cid")]);
        step(&log, &mut state, 2, vec![Command::Expire]);
        step(&log, &mut state, 4, vec![add("dee")]);
        let at = |index, position, object: &str| (index, position, object.to_owned());
        let all = [at(1, 0, "ann"), at(1, 1, "bob"), at(1, 2, "cid"), at(4, 0, "dee")];
        assert_eq!(event_positions(&log, 0, u32::MAX, 10), all);
        assert_eq!(event_positions(&log, 1, 0, 2), all[1..3]);
        assert_eq!(event_positions(&log, 1, 2, 10), all[3..]);
        assert_eq!(event_positions(&log, 1, u32::MAX, 10), all[3..]);
        assert_eq!(event_positions(&log, 4, 0, 10), []);
    }

    #[test]
    fn entries_applied_again_after_a_restart_are_not_taken_down_twice() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        step(&log, &mut state, 1, vec![add("ann")]);
        step(&log, &mut state, 2, vec![add("bob")]);
        log.sync(2).unwrap();
        drop(log);
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        log.restore_names(0, &state).unwrap();
        step(&log, &mut state, 1, vec![add("ann")]);
        step(&log, &mut state, 2, vec![add("bob")]);
        step(&log, &mut state, 3, vec![add("cid")]);
        let objects: Vec<_> =
            event_positions(&log, 0, u32::MAX, 10).into_iter().map(|p| p.2).collect();
        assert_eq!(objects, ["ann", "bob", "cid"]);
    }

    #[test]
    fn a_removed_row_keeps_its_name_in_the_feed() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        step(&log, &mut state, 1, vec![add("ann"), add("bob")]);
        drop(log);
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        log.restore_names(1, &state).unwrap();
        let gone = Command::RemoveUser { name: name("ann"), expect: None };
        let events = step(&log, &mut state, 2, vec![gone]);
        let feed = log.read_after(1, u32::MAX, 10).unwrap();
        assert_eq!(feed.items.len(), events.len());
        assert!(feed.items.iter().all(|item| item.object == "ann"), "{feed:?}");
        assert_eq!(feed.items.iter().map(|item| item.event.clone()).collect::<Vec<_>>(), events);
    }

    #[test]
    fn a_snapshot_of_another_replica_leaves_a_gap() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        step(&log, &mut state, 1, vec![add("ann")]);
        log.restore_names(9, &state).unwrap();
        step(&log, &mut state, 10, vec![add("bob")]);
        let before = log.read_after(0, u32::MAX, 10).unwrap();
        assert_eq!((before.items.len(), before.gap), (1, false));
        for position in [0, u32::MAX] {
            let after = log.read_after(1, position, 10).unwrap();
            assert_eq!((after.items.len(), after.gap), (1, true), "after {position}");
            assert_eq!(after.reaches_back_to, Some(0));
        }
    }

    #[test]
    fn old_events_go_and_the_log_says_so() {
        let folder = TempFolder::new();
        let keep = RetentionLimits { total_bytes: 600, ..KEEP };
        let log = EventLog::open(folder.disk(), keep).unwrap();
        let mut state = State::default();
        for index in 1..=40 {
            step(&log, &mut state, index, vec![add(&format!("u{index}"))]);
        }
        log.trim(Time(400)).unwrap();
        let back = log.reaches_back_to().unwrap();
        assert!(back > 10 && back < 40, "{back}");
        assert!(log.read_after(back - 1, u32::MAX, 5).unwrap().gap);
        let rest = log.read_after(back, u32::MAX, 100).unwrap();
        assert_eq!((rest.items.len() as u64, rest.gap), (40 - back, false));
    }

    fn web(count: u32) -> Command {
        let job = serde_json::json!({"name": "web", "priority": 0, "count": count,
            "task": {"limits": {"cpu": 10, "ram": 10}, "command": ["true"]}});
        let spec = serde_json::from_value(job).unwrap();
        Command::SubmitJob { owner: name("ann"), spec }
    }

    /// Ann's job `web` in a cell of one machine, and a plan for each of its tasks from entry 3 on.
    fn placed_web(log: &EventLog, state: &mut State, count: u32) {
        let machine = serde_json::json!({"name": "m1", "capacity": {"cpu": 1000, "ram": 1000}});
        let machine = serde_json::from_value(machine).unwrap();
        step(log, state, 1, vec![add("ann"), Command::AddMachine(machine)]);
        let up = Command::MachineUp { machine: MachineId(0), incarnation: 1 };
        step(log, state, 2, vec![up, web(count)]);
        (0..count).for_each(|task| place_task(log, state, 3 + u64::from(task), TaskId(task)));
    }

    fn place_task(log: &EventLog, state: &mut State, index: u64, task: TaskId) {
        use cellwright_cell::plan::{Assignment, Group, Plan};
        let assignment = Assignment {
            task,
            attempt: state.tasks().get(task).unwrap().attempt,
            machine: MachineId(0),
            alloc: None,
            ports: Vec::new(),
            devices: Vec::new(),
        };
        let group = Group { victims: Vec::new(), assignments: vec![assignment] };
        let plan = Plan { made_at: 0, groups: vec![group] };
        step(log, state, index, vec![Command::CommitPlan(plan)]);
    }

    #[test]
    fn places_are_counted_from_a_moment_on() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        assert_eq!(log.recent_placements(Time(0), 1, |_, _| true).unwrap().0, 0);
        placed_web(&log, &mut state, 3);
        let found = |since| log.recent_placements(Time(since), 9, |_, _| true).unwrap();
        assert_eq!(found(0), (3, Time(10)));
        assert_eq!(found(30), (2, Time(30)));
        assert_eq!(found(50), (0, Time(50)));
        assert_eq!(log.recent_placements(Time(0), 9, |_, index| index == 1).unwrap().0, 1);
    }

    #[test]
    fn places_are_counted_in_a_cell_that_has_purged_a_job() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), KEEP).unwrap();
        let mut state = State::default();
        step(&log, &mut state, 1, vec![add("ann"), web(1)]);
        let job = cellwright_cell::name::JobKey { user: name("ann"), job: name("web") };
        let purge = Command::PurgeJobs { ended_before: Time::NEVER };
        step(&log, &mut state, 2, vec![Command::StopJob { job, expect: None }, purge]);
        assert!(state.tasks().is_empty());
        let machine = serde_json::json!({"name": "m1", "capacity": {"cpu": 1000, "ram": 1000}});
        let machine = serde_json::from_value(machine).unwrap();
        let up = Command::MachineUp { machine: MachineId(0), incarnation: 1 };
        step(&log, &mut state, 3, vec![Command::AddMachine(machine)]);
        step(&log, &mut state, 4, vec![up, web(2)]);
        let rows: Vec<TaskId> = state.tasks().iter().map(|(id, _)| id).collect();
        assert!(state.tasks().iter().all(|(_, row)| row.attempt > 0), "the row goes on");
        for (index, task) in (5..).zip(rows) {
            place_task(&log, &mut state, index, task);
        }
        assert_eq!(log.recent_placements(Time(0), 9, |_, _| true).unwrap().0, 2);
    }

    #[test]
    fn places_far_back_are_counted_once_each() {
        let folder = TempFolder::new();
        let log = EventLog::open(folder.disk(), RetentionLimits { segment_bytes: 1 << 20, ..KEEP })
            .unwrap();
        let mut state = State::default();
        placed_web(&log, &mut state, 3);
        for index in 10..400 {
            step(&log, &mut state, index, vec![add(&format!("u{index}"))]);
        }
        let found = log.recent_placements(Time(0), 9, |_, _| true).unwrap();
        assert_eq!(found, (3, Time(10)), "in the second stride");
        let last = |bytes| log.for_each_event(396..=398, bytes, |_| {}).unwrap();
        let whole = last(1 << 20).unwrap();
        assert_eq!(last(whole), Some(whole));
        assert_eq!(last(whole - 1), None);
    }
}
